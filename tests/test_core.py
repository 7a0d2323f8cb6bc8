"""The core: pure functions over dicts. The tables name the pods that exist and what is done."""

import re
from types import MappingProxyType
from typing import Any

import pytest
import yaml
from kubernetes.client import ApiException

import milvus_operator as mo
from tests.lib.front import Obj
from tests.lib.objects import NOW, claim, decided, milvus, named, new_status, pod, pods, read
from tests.lib.world import World
from tests.lib.world import milvus as created

# --- What to do ---
# The replicas that are desired, the pods, and sometimes what the server has refused, which backs
# off: what is to be done.
ACTIONS = {
    "4: x-0, x-2 starting": "create x-1, create x-3",
    "1: x-0, x-1 failed, x-2 ending, x-3": "delete x-1, delete x-3",
    "2: x-0 ending, x-1 failed ending": "",
    "2: x-0 failed old, x-1 succeeded": "restart x-0, restart x-1",
    # Whose pods they are.
    "1: x-0, x-1 of-web, x-2 of-y": "",
    "1: x-0 relabelled": "",
    "1: x-0 old relabelled, x-1 relabelled": "delete x-1",
    "1: x-0 stolen": "create x-0",  # which fails, and tells what to do
    "1: x-1 orphan old, x-0 orphan relabelled": "adopt x-0, adopt x-1",
    "2: x-0 loose, x-1 earlier": "adopt x-0, create x-1",
    "2: x-0 orphan unlabelled, x-1 orphan ending": "create x-0",
    "0: x-y-0, x-01 orphan, x-y, y-0 orphan, x-²": "",  # other names
    # A roll: pods that are not Ready first, then one Ready pod at a time.
    "3: x-0 old, x-1 old, x-2 old": "replace x-2",
    "3: x-0 old, x-1 old": "create x-2",
    "3: x-0 old starting, x-1 old starting, x-2 old": "replace x-0, replace x-1",
    "1: x-0 old, x-1": "delete x-1",
    "1: x-0 old starting, x-1": "delete x-1, replace x-0",
    "2: x-0, x-1 bare": "",  # something removed its fingerprint, and would remove the next
    # Pods whose nodes fell silent may still serve requests, and may come back.
    "2: x-0 old silent, x-1 old silent": "",
    "2: x-0 old silent, x-1 old": "",
    "3: x-0 old silent, x-1 old, x-2 silent": "",
    "2: x-0 old starting, x-1 old silent": "replace x-0",
    "2: x-0 old, x-1 silent": "",
    # A surplus pod that may serve is one that goes in this pass; one that ends already does not.
    "1: x-0 old, x-1 silent": "delete x-1",
    "1: x-0 old, x-1 ending": "replace x-0",
    "1: x-0 old, x-1 silent ending": "replace x-0",
    "1: x-0 old, x-1 failed": "delete x-1, replace x-0",
    # Until a gate of the owner's opens, a pod serves nobody.
    "2: x-0 old gated, x-1 old gated": "replace x-0, replace x-1",
    "2: x-0 old, x-1 gated": "",
    # What is refused delays only what it must.
    "3: x-0 old, x-1 old; create 2": "create x-2",
    "3: x-0, x-1, x-2 old, x-3; delete 3": "delete x-3, replace x-2",
    "3: x-0, x-1, x-2 old, x-3": "delete x-3",
    "3: x-0 old, x-1 old, x-2 old; replace 2": "replace x-1",
    "3: x-0 old, x-1 old, x-2 old ending": "",
    "3: x-0 old, x-1 old; replace 2": "create x-2",  # it has gone meanwhile
    "3: x-0 old, x-1 old, x-2 starting; replace 2": "",
    "3: x-0 old, x-1 old, x-2 old starting; replace 2": "replace x-1, replace x-2",
    "3: x-0 old, x-1 old, x-2 old starting": "replace x-2",
}


@pytest.mark.parametrize(("given", "expected"), ACTIONS.items())
def test_the_actions_for_the_pods(given: str, expected: str) -> None:
    replicas, _, there = given.partition(": ")
    there, _, failure = there.partition("; ")
    refused = set[mo.Key]()
    if failure:
        verb, ordinal = failure.split()
        refused = {(verb, int(ordinal))}
    actions = decided(milvus(int(replicas)), pods(there), refused=refused)
    done = sorted(f"{action.verb} x-{action.ordinal}" for action in actions)
    assert ", ".join(done) == expected


STORED = {"size": "2Gi"}


def ending(name: str) -> Obj:
    """A claim that is being deleted, and waits for its pod."""
    found = claim(name)
    found["metadata"]["deletionTimestamp"] = NOW
    return found


def test_a_pod_without_a_claim_gets_one_unless_it_ends_or_has_ended() -> None:
    there = pods("x-0, x-1 starting, x-2 failed, x-3 ending, x-4 old")
    actions = decided(milvus(5, storage=STORED), there, [claim("data-x-4", "2Gi")])
    found = [action.key for action in actions if action.verb in ("claim", "require_claim")]
    # One that has run had a claim: it is looked for, and never made anew.
    assert found == [("require_claim", 0), ("claim", 1)]
    assert not {"claim", "require_claim"} & {action.verb for action in decided(milvus(5), there)}


def test_while_its_claim_is_being_deleted_a_pod_is_neither_created_nor_replaced() -> None:
    """The data would go with it."""
    stored = milvus(2, storage=STORED)
    claims = [claim("data-x-0", "2Gi"), ending("data-x-1")]
    for there in (
        "",
        ", x-1",
        ", x-1 old",
        ", x-1 old silent",
        ", x-1 old starting",
        ", x-1 failed",
    ):
        assert decided(stored, pods(f"x-0{there}"), claims) == [], there
    actions = decided(stored, pods("x-0 old, x-1 old, x-2 starting"), claims)
    assert [action.key for action in actions] == [("delete", 2), ("replace", 0)]
    next_one = [("replace", 0)]
    blocked = {"starting": next_one, "": next_one, "failed": next_one, "silent": [], "ending": []}
    for other, expected in blocked.items():
        actions = decided(stored, pods(f"x-0 old, x-1 old {other}"), claims)
        assert [action.key for action in actions] == expected, f"a roll beside one that is {other}"
    without = decided(milvus(2), pods("x-0"), claims)
    assert [action.key for action in without] == [("create", 1)], "without storage, it is not ours"


def test_bound_claims_that_are_smaller_and_desired_grow() -> None:
    claims = [
        claim("data-x-0", "20479Mi"),
        claim("data-x-1", "20480Mi"),
        claim("data-x-2", phase="Pending"),
        claim("data-x-3"),
    ]
    stored = milvus(3, storage={"size": "20Gi"})
    actions = decided(stored, pods("x-0, x-1, x-2, x-3"), claims)
    assert [action.key for action in actions] == [("delete", 3), ("grow", 0)]


# --- Whose pod it is ---
# The pod that has the name of a desired one: the reason why that cannot be created.
WHOSE = {
    "x-0 of-web": "NameConflict: pod x-0 already exists and belongs to ReplicaSet web, so the",
    "x-1 of-y": "NameConflict: pod x-1 already exists and belongs to Milvus y, so the",
    "x-0 of-set": "NameConflict: pod x-0 already exists and belongs to StatefulSet x, so the",
    "x-2 orphan unlabelled": "NameConflict: pod x-2 already exists and has no controller, so the",
    "x-0 of-web ending": "Waiting: ",
    "x-0 earlier": "Waiting: ",
    "x-0 earlier unlabelled": "Waiting: ",
    "x-0 of-theirs": "NameConflict: pod x-0 already exists and belongs to Milvus x, so the",
    "x-0 unlabelled": "NameConflict: pod x-0 of this Milvus has lost its label, so the operator",
    "x-0 stolen": "NameConflict: pod x-0 of this Milvus has lost its label, so the operator",
    "x-0 orphan": "Waiting: ",
    "x-0 orphan relabelled": "Waiting: ",
    "x-0 loose": "Waiting: ",
    "x-0": "Waiting: ",
}


@pytest.mark.parametrize(("there", "why"), WHOSE.items())
def test_a_pod_of_another_owner_is_a_conflict_unless_it_goes(there: str, why: str) -> None:
    (found,) = pods(there)
    reason, said = mo.why_name_is_taken(milvus(), found)
    assert f"{reason}: {said}".startswith(why)


def test_pods_in_another_namespace_are_not_ours() -> None:
    elsewhere = pod("x-0")
    elsewhere["metadata"]["namespace"] = "other"
    assert [*named(milvus(), [elsewhere, pod("x-1")])] == [1]


# --- The spec ---
@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"metadata": milvus()["metadata"]}, "the spec is missing"),
        (milvus(-1), "spec.replicas must"),
        (milvus(1001), "spec.replicas must"),
        (milvus(1.5), "spec.replicas must"),
        (milvus("3"), "spec.replicas must"),
        (milvus(1, pod=7), "spec.pod must be a mapping"),
        (milvus(1, pod={"spec": 5}), "spec.pod.spec must be a mapping"),
        (
            milvus(milvusSpec="a: [b"),
            "spec.milvusSpec, line 2: it is not one valid YAML document",
        ),  # its end
    ],
)
def test_a_spec_that_cannot_be_used_says_why(broken: Obj, message: str) -> None:
    found = conditions(broken, pods("x-0, x-1"))
    assert found["Stalled"].startswith(f"True Invalid: {message}")
    assert found["Stalled"].endswith("; until that is corrected, nothing is done about its pods")
    assert found["Ready"] == found["Reconciled"] == found["Stalled"].replace("True", "False")


@pytest.mark.parametrize(
    "wrong",
    [
        {"image": [], "milvusSpec": 7},
        {"updateStrategy": 7},
        {"image": "a", "updateStrategy": {"minReadySeconds": "soon"}},
    ],
)
def test_a_field_of_the_wrong_type_is_invalid_under_an_older_crd(wrong: Any) -> None:
    world = World(created("x") | {"spec": wrong}, created("y"))
    world.settle()
    assert world.pods() == ["y-0"]
    assert world.reason() == "Invalid"
    assert "the wrong type, or is nested too deeply" in world.message()


def fingerprint(text: str) -> str:
    found = read(milvus(**yaml.safe_load(text)))
    assert not found.invalid, text
    return found.template_hash


# A spec: others that mean the same, and others that do not.
SAME = {
    "replicas: 3": """
        replicas: 9; milvusSpec: null; storage: {size: 1Gi}; milvusSpec: ''; milvusSpec: a few words
        milvusSpec: other words; milvusSpec: '# a: comment'; milvusSpec: 'a: {b: {}}'; pod: {}
        pod: {spec: null}; pod: {metadata: {labels: {}}, spec: {}}; milvusSpec: 'minio: {}'
        pod: {spec: {nodeSelektor: {}}}; updateStrategy: {type: OnDelete}""",
    "milvusSpec: '{a: {b: 1, c: [x, 0.5]}}'": """
        milvusSpec: "a.c: x,0.5 # why\\na.b: 1"; milvusSpec: "a: {b: '1'}\\na.c: [x, '0.5']\\n" """,
    "milvusSpec: 'a.b: -1'": "milvusSpec: 'a: {b: \"-1\"}'",
    "milvusSpec: 'a.b: true'": "milvusSpec: 'a: {b: \"true\"}'; milvusSpec: \"a:\\n  b: 'true'\\n\"",
    "pod: {spec: {a: 1, b: 1}, metadata: {labels: {c: d}}}": """
        pod: {metadata: {labels: {c: d}, annotations: {}}, spec: {b: 1, a: 1, securityContext: {}}}""",
    "milvusSpec: 'knowhere.DISKANN.build.x: 1'": "milvusSpec: 'knowhere: {DISKANN: {build: {x: 1}}}'",
}
DIFFERENT = {
    "replicas: 3": "image: milvus:2; milvusSpec: 'a: b'; milvusSpec: 'a: '; "
    "pod: {spec: {tolerations: []}}; pod: {spec: {securityContext: null}}",
    # YAML reads `on` as true, and 0777 as 511; in quotes, they are words.
    "milvusSpec: 'a.b: on'": "milvusSpec: 'a.b: \"on\"'; milvusSpec: 'a.b: off'; milvusSpec: 'a.c: on'",
    "milvusSpec: 'a: 0777'": "milvusSpec: 'a: \"0777\"'; milvusSpec: 'a: 777'",
    "milvusSpec: 'a: [null]'": "milvusSpec: 'a: [\"null\"]'; milvusSpec: 'a: []'",
    "pod: {spec: {containers: [{name: milvus}]}}": (
        "pod: {spec: {containers: [{name: milvus, resources: {}}]}}"
    ),
    # Milvus looks these up by their case, and the members of a group by their whole names.
    "milvusSpec: 'knowhere.diskann.x: 1'": "milvusSpec: 'knowhere.DISKANN.x: 1'",
    "milvusSpec: 'proxy.accessLog.formatters.myfmt.format: a'": (
        "milvusSpec: 'proxy.accessLog.formatters.my_fmt.format: a'"
    ),
}


@pytest.mark.parametrize("text", SAME)
def test_what_means_the_same_is_the_same_template(text: str) -> None:
    for same in re.split(r";\s|\n\s+", SAME[text].strip()):
        assert fingerprint(same) == fingerprint(text), same


@pytest.mark.parametrize("text", DIFFERENT)
def test_what_means_something_else_is_another_template(text: str) -> None:
    for other in DIFFERENT[text].split("; "):
        assert fingerprint(other) != fingerprint(text), other


HASHES = {
    "replicas: 3": "2df1ea7bbb7aa9f4",
    "milvusSpec: 'a: {b: on, c: 0777, d: [null, 0.5, x]}'": "528e270e50d7b7ac",
    "milvusSpec: '{a: 1.0, b: -1, c: 2}'": "4b77105c89611354",
    "pod: {spec: {nodeSelector: {a: b}, securityContext: null}}": "51c4cf81e8c59c86",
}


@pytest.mark.parametrize(("text", "hash_"), HASHES.items())
def test_a_new_version_of_the_operator_replaces_no_pods(text: str, hash_: str) -> None:
    assert fingerprint(text) == hash_


def test_an_empty_mapping_that_changes_no_fingerprint_is_not_sent_either() -> None:
    """The API server would refuse it when the next pod is made, long after the mistake."""
    there = milvus(pod={"spec": {"nodeSelektor": {}}})
    assert "nodeSelektor" not in mo.new_pod(there, read(there), 0)["spec"]


# --- The status ---
def conditions(
    milvus: Obj, there: list[Obj], problems: mo.Problems = MappingProxyType({}), **more: Any
) -> dict[str, str]:
    """What each condition says, such as `True Ready: 1 of 1 pods …`."""
    found = new_status(milvus, there, problems, **more)["conditions"]
    return {one["type"]: f"{one['status']} {one['reason']}: {one['message']}" for one in found}


def test_the_status_keeps_conditions_of_others_and_the_times_of_ours() -> None:
    """The time of a condition changes only with its status."""
    before = milvus(2) | yaml.safe_load("""
        status:
          conditions:
          - {type: BackedUp, status: "True", by: them}
          - {type: Stalled, status: "True", lastTransitionTime: then}
          - {type: Ready, status: "True", lastTransitionTime: then}
          - {type: Reconciled, status: "False", lastTransitionTime: then}
          - {type: Paused}
        """)
    before["metadata"]["generation"] = 7
    assert new_status(before, pods("x-1, x-0")) == yaml.safe_load(f"""
        {{observedGeneration: 7, replicas: 2, readyReplicas: 2, updatedReplicas: 2,
        pods: [x-0, x-1], selector: {mo.selector_of(before)!r}, conditions: [
        {{type: Ready, status: "True", observedGeneration: 7, lastTransitionTime: then,
        reason: Ready, message: 2 of 2 pods are ready and up to date}},
        {{type: Reconciled, status: "True", observedGeneration: 7, lastTransitionTime: "{NOW}",
        reason: Reconciled, message: {mo.MATCHING}}},
        {{type: BackedUp, status: "True", by: them}}, {{type: Paused}}]}}
        """)
    assert mo.selector_of(before) == "zilliz.com/milvus=x"


# The replicas, those that are ready and up to date, and their names.
COUNTS = {
    "x-0, x-1 failed, x-2 ending": "2 1 2 ['x-0', 'x-1']",
    "x-0 old, x-1 starting, x-2 old starting": "3 1 1 ['x-0', 'x-1', 'x-2']",
    "x-10, x-9, x-2 of-web, x-1 orphan": "2 2 2 ['x-9', 'x-10']",
}


@pytest.mark.parametrize(("there", "expected"), COUNTS.items())
def test_the_status_counts_our_pods_that_are_not_ending(there: str, expected: str) -> None:
    status = new_status(milvus(), pods(there))
    assert "{replicas} {readyReplicas} {updatedReplicas} {pods}".format_map(status) == expected


PULLING = "state: {waiting: {reason: ImagePullBackOff, message: Back-off}}"
KILLED = "state: {terminated: {reason: Killed, exitCode: 137}}"
COMPLETED = "state: {terminated: {reason: Completed, exitCode: 0}}"
UNSCHEDULED = "{type: PodScheduled, status: 'False', reason: Full, message: none}"
GATED = "{type: Ready, status: 'False', reason: Gate, message: shut}"
# What the status of a pod says: reason and message of the Ready condition.
REASONS = {
    "{phase: Failed, reason: Evicted, message: low on disk}": "Evicted: low on disk",
    f"containerStatuses: [state: {{}}, {PULLING}]": "ImagePullBackOff: Back-off",
    f"containerStatuses: [{KILLED}]": "Killed: Killed",
    f"containerStatuses: [{COMPLETED}]": "Pending: Pending",
    f"{{initContainerStatuses: [{KILLED}], containerStatuses: [{PULLING}]}}": "Killed: Killed",
    f"conditions: [{GATED}, {UNSCHEDULED}]": "Full: none",
    f"conditions: [{GATED}, {{type: PodScheduled, status: 'True', reason: A}}]": "Gate: shut",
    "conditions: [{type: Ready, status: Unknown, reason: Lost, message: gone}]": "Lost: gone",
    # Its node fell silent: nobody says why.
    "{phase: Running, conditions: [{type: Ready, status: 'False'}]}": "NotReady: NotReady",
    "{phase: Running, containerStatuses: [{ready: true, state: {running: {}}}]}": (
        "NotReady: NotReady"
    ),
}


@pytest.mark.parametrize(("status", "expected"), REASONS.items())
def test_ready_uses_the_pods_own_words(status: str, expected: str) -> None:
    unready = pod("x-1", "starting", **yaml.safe_load(status))
    reason, _, message = expected.partition(": ")
    ready = f"False {reason}: 1 of 2 pods are ready and up to date; x-1: {message}"
    found = {"Ready": ready, "Reconciled": f"True Reconciled: {mo.MATCHING}"}
    for one in (unready, mo.slim_pod(unready)):
        assert conditions(milvus(2), [pod("x-0"), one]) == found


def test_the_finalizers_that_hold_a_pod_are_named() -> None:
    held = pod("x-0", "ending")
    assert conditions(milvus(1), [held])["Ready"].endswith("; x-0: Terminating")
    held["metadata"]["finalizers"] = ["example.com/backup", "example.com/hold"]
    ready = conditions(milvus(1), [held])["Ready"]
    assert ready.startswith("False Terminating: ")
    names = "example.com/backup, example.com/hold"
    assert ready.endswith(f"; x-0: it waits for its finalizers: {names}")


def test_with_on_delete_outdated_pods_stay_and_ready_does_not_wait_for_them() -> None:
    stored = milvus(4, storage=STORED, updateStrategy={"type": "OnDelete"})
    claims = [claim(f"data-x-{ordinal}") for ordinal in range(6)]
    there = pods("x-0 old, x-1 old starting, x-2 old failed, x-5 old")
    actions = decided(stored, there, claims)
    done = sorted(f"{action.verb} {action.ordinal}" for action in actions)
    assert done == ["create 3", "delete 5", "grow 0", "grow 1", "grow 2", "grow 3", "restart 2"]
    assert conditions(milvus(2, updateStrategy={"type": "OnDelete"}), pods("x-0 old, x-1")) == {
        "Ready": "True Ready: 2 of 2 pods are ready; outdated until somebody deletes them: 1",
        "Reconciled": f"True Reconciled: {mo.MATCHING}",
    }
    rolling = milvus(2, updateStrategy={"type": "RollingUpdate"})
    assert [action.key for action in decided(rolling, pods("x-0 old, x-1"))] == [("replace", 0)]


UNREADY = yaml.safe_load("conditions: [{type: Ready, status: 'False', reason: ContainersNotReady}]")


def waiting_for(reason: str) -> Obj:
    return {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": reason}}}]}


PASSING = {
    "Creating": [],
    "Terminating": pods("x-0 failed ending"),
    "Pending": pods("x-0 starting"),
    "Updating": pods("x-0 old"),
    "PodInitializing": [pod("x-0", "starting", **waiting_for("PodInitializing"))],
    "ContainerCreating": [pod("x-0", "starting", **waiting_for("ContainerCreating"))],
    "ContainersNotReady": [pod("x-0", "starting", **UNREADY)],
}


@pytest.mark.parametrize("reason", PASSING)
def test_a_problem_that_lasts_is_shown_before_one_that_will_pass(reason: str) -> None:
    there = PASSING[reason]
    assert conditions(milvus(1), there)["Ready"].startswith(f"False {reason}: ")
    evicted = pod("x-1", "failed", reason="Evicted")
    assert conditions(milvus(2), [*there, evicted])["Ready"].startswith("False Evicted: ")


@pytest.mark.parametrize("state", ["", "starting", "ending"])
def test_a_rolling_update_shows_the_pod_that_it_waits_for(state: str) -> None:
    there = pods(f"x-0 old, x-1 {state}") if state else pods("x-0 old")
    stale = {0: mo.Why("Waiting", "a conflict")}
    assert "; x-1: " in conditions(milvus(2), there, stale)["Ready"]


STALLED = ["Invalid", "NameConflict", "Forbidden", "QuotaExceeded"]


@pytest.mark.parametrize("reason", [*STALLED, "APIError", "Waiting"])
@pytest.mark.parametrize(
    ("there", "count"),
    [
        ("x-0, x-2", "2 of 3 pods are ready and up to date"),
        ("x-0, x-1 old, x-2", "3 of 3 pods are ready, 1 of them outdated"),
    ],
)
def test_what_was_rejected_is_told_and_is_stalled_while_somebody_has_to_act(
    reason: str, there: str, count: str
) -> None:
    problems = {2: mo.Why("APIError", "later"), 1: mo.Why(reason, "why")}
    found = conditions(milvus(3), pods(there), problems)
    ready = f"False {reason}: {count}; x-1: why"
    assert found.pop("Ready") == ready
    expected = {"Reconciled": f"False {reason}: why"}
    if reason in STALLED:
        expected["Stalled"] = f"True {reason}: why"
    if reason == "Waiting":  # it is waited for, and is no failure
        expected = {"Reconciled": "False APIError: later"}
    assert found == expected


def test_a_new_spec_has_its_own_half_minute_before_it_is_stalled() -> None:
    x = milvus(1)
    problems = {0: mo.Why("Forbidden", "why")}
    x["status"] = new_status(x, [], problems)
    assert conditions(x, [], problems, lasting=frozenset())["Stalled"] == "True Forbidden: why"
    x["metadata"]["generation"] = 2
    assert "Stalled" not in conditions(x, [], problems, lasting=frozenset())


def test_that_an_ended_pod_cannot_be_deleted_says_more_than_how_it_ended() -> None:
    problems = {0: mo.Why("Forbidden", "cannot delete")}
    found = conditions(milvus(1), pods("x-0 failed"), problems)["Ready"]
    assert found == "False Forbidden: 0 of 1 pods are ready and up to date; x-0: cannot delete"


def test_messages_and_notes_are_as_long_as_the_api_server_allows() -> None:
    problems = {0: mo.Why("Invalid", "a" * 2000)}
    for condition in new_status(milvus(1), [], problems)["conditions"]:
        assert len(condition["message"]) == 1024
    event = mo.new_event(milvus(), "Created", "lone \ud800" + "é" * 1000, is_warning=False)
    assert event["note"] == "lone ?" + "é" * 509
    assert str(mo.rejection(ApiException(504))) == "HTTP 504"  # a gateway's, without words


# --- The server's words, and those of users ---
DENIAL = 'pods "x-0" is forbidden: '
FORBIDDEN = f"403 {DENIAL}"
USER = 'User "system:serviceaccount:a:b" cannot create resource "pods"'
OWNER = "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set"
QUOTA = "exceeded quota: a, requested: pods=1"
# A code and a message: the reason.
MEANINGS = {
    "401 Unauthorized": "APIError",
    FORBIDDEN + USER: "Forbidden",
    FORBIDDEN + OWNER: "Forbidden",
    FORBIDDEN + QUOTA: "QuotaExceeded",
    FORBIDDEN + "violates PodSecurity": "Forbidden",
    '422 Pod "x-0" is invalid: spec.x': "Invalid",
    "400 strict decoding error: unknown field": "Invalid",
    "410 a\n\tb " + "c" * 2000: "APIError",
    '401 admission webhook "a" denied the request: no': "APIError",
}
# What a user has written is further on in a message, or in one with another code.
for words in (USER, OWNER, QUOTA, DENIAL + USER, DENIAL + QUOTA):
    MEANINGS |= {
        f"{FORBIDDEN}no PriorityClass {words}": "Forbidden",
        f'403 webhook "a" denied the request: {words}': "Forbidden",
        f"422 {words}": "Invalid",
        f"500 {words}": "APIError",
    }


@pytest.mark.parametrize(("response", "meaning"), MEANINGS.items())
def test_what_the_server_says_is_told_apart_from_a_users_words(response: str, meaning: str) -> None:
    """And no words of a write are trouble of the operator."""
    world = World(created("x"))
    code, _, message = response.partition(" ")
    world.server.reject("create", "pods", int(code), message)
    world.passes(2)
    assert " ".join(message.split())[:900] in world.message()
    assert world.reason() == meaning
    assert all(line.startswith("milvus test/x: ") for line in world.warnings)
