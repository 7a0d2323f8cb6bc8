"""The core: pure functions over dicts. The tables name the pods that exist and what is done."""

import json
import socket
from typing import Any

import pytest
from kubernetes.client import ApiClient, ApiException, Configuration

import milvus_operator as mo
from tests.lib.objects import NOW, Obj, decided, milvus, new_status, pod, pods, read, taken

# --- What to do ---
BackOffs = dict[int | str, mo.BackOff]
WAITS, OVER = mo.BackOff(until=1), mo.BackOff(until=0)  # it is 0 now
THREE_OLD = "x-0 old, x-1 old, x-2 old"
GOES = "uid-of-x-0"
GONE = "restart: claim data-x-0 is gone or being deleted"
ADOPTED = "adopt: it has no controller, but the name and labels of a pod of this Milvus"


def todo(replicas: int, there: str, back_offs: BackOffs, leaving: str = "") -> str:
    """What is done now, such as `delete x-2, create x-0`."""
    actions = decided(milvus(replicas), pods(there))
    ended = [mo.uid_of(pod) for pod in pods(there)]
    actions = mo.choose(actions, back_offs, leaving.split(), ended, 0)
    return ", ".join(f"{action.verb} x-{action.ordinal}" for action in actions)


@pytest.mark.parametrize(
    ("what", "replicas", "there", "expected"),
    [
        ("missing pods are created", 4, "x-0, x-2 starting", "create x-1, create x-3"),
        ("surplus pods go", 1, "x-0, x-1 failed, x-2 ending, x-3", "delete x-3, delete x-1"),
        ("ending pods are waited for", 2, "x-0 ending, x-1 failed ending", ""),
        ("a pod that has ended is deleted first", 1, "x-0 failed", "restart x-0"),
        ("whatever its template", 3, "x-0 failed old, x-1, x-2", "replace x-0"),
        ("deletes come first", 2, "x-1 failed, x-2", "delete x-2, restart x-1, create x-0"),
        ("strangers are left alone", 3, "x-0 stranger, x-1 of-y, x-3 stranger", "create x-2"),
        ("so are orphans with other labels", 2, "x-0 orphan unlabelled, x-1 orphan unmanaged", ""),
        ("our pod without its labels is not created again", 1, "x-0 unmanaged", ""),
        ("a pod of an earlier x is waited for", 3, "x-0, x-1 earlier", "create x-2"),
        ("an orphan is adopted, surplus or outdated", 1, "x-1 orphan old, x-0", "adopt x-1"),
        ("an orphan needs no index", 1, "x-0 orphan unnumbered", "adopt x-0"),
        ("an owner that is no controller does not count", 1, "x-0 loose", "adopt x-0"),
        ("an ending orphan is waited for", 2, "x-0, x-1 orphan ending", ""),
        ("names that are not made from ours", 0, "x-y-0, x-01 orphan, x-y, y-0 orphan, x-²", ""),
        # A roll: not Ready first and all at once, then one Ready pod at a time.
        ("one at a time, from the highest", 3, "x-0 old, x-1 old, x-2 old", "replace x-2"),
        ("the next one when that is Ready", 3, "x-0 old, x-1 old, x-2", "replace x-1"),
        ("not while that is starting", 3, "x-0 old, x-1 old, x-2 starting", ""),
        ("not while that is ending", 3, "x-0 old, x-1 old, x-2 old ending", ""),
        ("not while a pod is missing", 3, "x-0 old, x-1 old", "create x-2"),
        ("not while a current pod has failed", 2, "x-0 old, x-1 failed", "restart x-1"),
        ("not while an orphan is there", 2, "x-0 old, x-1 orphan", "adopt x-1"),
        ("not while an earlier x's pod is there", 2, "x-0 old, x-1 earlier", ""),
        ("broken ones first", 3, "x-0 old, x-1 old starting, x-2 old", "replace x-1"),
        ("and all at once", 2, "x-0 old starting, x-1 old starting", "replace x-1, replace x-0"),
        ("no Ready one together with a Ready surplus one", 1, "x-0 old, x-1", "delete x-1"),
        ("a broken one, with surplus", 1, "x-0 old starting, x-1", "delete x-1, replace x-0"),
        ("any one, with broken surplus", 1, "x-0 old, x-1 starting", "delete x-1, replace x-0"),
        ("a pod without a fingerprint is outdated", 2, "x-0, x-1 bare", "replace x-1"),
    ],
)
def test_the_actions_for_the_pods(what: str, replicas: int, there: str, expected: str) -> None:
    assert todo(replicas, there, {}) == expected, what


@pytest.mark.parametrize(
    ("what", "there", "back_offs", "leaving", "expected"),
    [
        ("a missing pod delays no other", "", {1: WAITS}, "", "create x-0, create x-2"),
        ("what has failed comes last", "", {1: OVER}, "", "create x-0, create x-2, create x-1"),
        ("an orphan", "x-0, x-1 orphan", {1: WAITS}, "", "create x-2"),
        ("a surplus pod", "x-0, x-1, x-2, x-3, x-4", {4: WAITS}, "", "delete x-3"),
        ("a surplus pod holds up no roll", "x-0, x-1, x-2 old, x-3", {3: WAITS}, "", "replace x-2"),
        ("a Ready old pod: the next is taken", THREE_OLD, {2: WAITS}, "", "replace x-1"),
        ("also when it could be tried again", THREE_OLD, {2: OVER}, "", "replace x-1"),
        ("no Ready one for a broken one", "x-0 old, x-1 old, x-2 old starting", {2: WAITS}, "", ""),
        ("broken ones", "x-0, x-1 old starting, x-2 old starting", {2: WAITS}, "", "replace x-1"),
        # While a Ready pod may go at any moment:
        ("no other Ready pod goes", THREE_OLD, {0: WAITS}, GOES, ""),
        ("it comes first", THREE_OLD, {0: OVER}, GOES, "replace x-0"),
        ("also if it may stay now", "x-0, x-1 old, x-2 old", {}, GOES, ""),
        ("a failed one does", "x-0 old, x-1 failed, x-2", {0: WAITS}, GOES, "restart x-1"),
        ("and any that is not Ready", "x-0, x-1, x-2 old starting", {}, GOES, "replace x-2"),
    ],
)
def test_what_backs_off_or_may_still_go_delays_only_what_it_must(
    what: str, there: str, back_offs: BackOffs, leaving: str, expected: str
) -> None:
    assert todo(3, there, back_offs, leaving) == expected, what


def unscheduled(because: str) -> Obj:
    """A pod that the scheduler cannot place."""
    message = f"0/3 nodes are available: persistentvolumeclaim {because}."
    condition = {"type": "PodScheduled", "status": "False", "message": message}
    return pod("x-0", "starting", conditions=[condition])


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (pod("x-0", "failed"), "restart: Failed"),
        (pod("x-0", "succeeded", reason="Evicted"), "restart: Succeeded (Evicted)"),
        (pod("x-0", "orphan"), ADOPTED),
        (unscheduled('"data-x-0" not found'), GONE),
        (unscheduled('"data-x-0" is being deleted'), GONE),
        (unscheduled('"my-data-x-0" not found'), ""),
        (unscheduled('"data-x-01" not found'), ""),
    ],
)
def test_each_action_has_its_reason(there: Obj, said: str) -> None:
    actions = decided(milvus(1, storage={"size": "1Gi"}), [there])
    found = [f"{action.verb}: {action.reason}" for action in actions if action.pod]
    assert found == ([said] if said else [])
    reasons = [action.reason for action in decided(milvus(1), [there])]
    assert not any("claim" in reason for reason in reasons), "without storage, it is another's"


# --- Whose pod it is ---
OF_OTHERS = {
    "x-0 stranger": "belongs to ReplicaSet web",
    "x-1 of-y": "belongs to Milvus y",
    "x-2 of-milvus.io": "belongs to Milvus x",
    "x-3 orphan unlabelled": "has no controller",
    "x-4 orphan unmanaged": "has no controller",
}


@pytest.mark.parametrize(("there", "whose"), OF_OTHERS.items())
def test_a_pod_of_others_with_a_desired_name_is_a_conflict(there: str, whose: str) -> None:
    (found,) = pods(there)
    reason, message = mo.conflict_with(milvus(5), read(milvus(5)), found) or ("", "")
    assert reason == "NameConflict"
    text = f"pod {mo.name_of(found)} already exists and {whose}, so the operator does not touch it"
    assert message.startswith(text)


def test_only_a_pod_of_others_that_stays_is_a_conflict() -> None:
    there = "x-0 stranger ending, x-1 earlier, x-2 orphan, x-3, x-4 stranger, x-01 stranger"
    assert taken(milvus(4), pods(there)) == set()


def test_a_milvus_is_given_its_own_pods_and_those_that_have_its_names() -> None:
    """Names, and even the UIDs of owners, may be the same in several namespaces."""
    x, y, elsewhere = pods("x-1, x-2 orphan, x-3 of-y, x-4 unlabelled"), pod("y-0"), pod("x-0")
    elsewhere["metadata"]["namespace"] = "other"
    expected = {("ns", "x"): x, ("ns", "y"): [y], ("other", "x"): [elsewhere]}
    assert mo.group([*x[:3], y, x[3], elsewhere]) == expected


def test_admission_may_add_labels_and_remove_the_index() -> None:
    sent = mo.new_pod(milvus(), read(milvus()), 0)
    stored = pod("x-0", "unnumbered")
    stored["metadata"]["labels"]["added-by"] = "admission"
    assert mo.lacks(sent, stored) == ""


# --- The spec ---
def deep(levels: int, value: Any = None) -> Any:
    """Nested mappings, or lists if the value is one."""
    for _ in range(levels):
        value = [value] if isinstance(value, list) else {"a": value or {}}
    return value


NUMBER = "spec.replicas must be a whole number from 0 to 1000"
LEVELS = "the spec is nested more than 100 levels deep"
NAME = "the name must be a DNS label of at most 52 characters"


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (milvus(image=None), "spec.image is required"),
        (milvus(image=""), "spec.image is required"),
        (milvus(image=3.14), "spec.image must be a string"),
        (milvus() | {"spec": "text"}, "spec.image is required"),
        ({"metadata": milvus()["metadata"]}, "spec.image is required"),
        *((milvus(replicas=wrong), NUMBER) for wrong in (-1, 1001, True, 1.0, "3")),
        (milvus(milvusSpec={"a": 1}), "spec.milvusSpec must be a string"),
        (milvus(milvusSpec="a: [b"), "spec.milvusSpec, line 1: it is not valid YAML"),
        (milvus(storage=5), "spec.storage must be a mapping"),
        (milvus(pod="text"), "spec.pod must be a mapping"),
        (milvus(pod=deep(101)), LEVELS),
        (milvus(pod={"spec": deep(100, [])}), LEVELS),
        (milvus(pod=deep(100_000)), LEVELS),
        *((milvus(name=name), NAME) for name in ("a.b", "a" * 53, "-a", "a-", "A", "a\n")),
    ],
)
def test_a_spec_that_cannot_be_used_says_why(broken: Obj, message: str) -> None:
    assert read(broken).invalid == message
    no = ("False", "Invalid", message)
    expected = {"Ready": no, "Reconciled": no, "Stalled": ("True", "Invalid", message)}
    assert conditions(broken, pods("x-0, x-1")) == expected


@pytest.mark.parametrize(
    "spec", [{"name": "a" * 52}, {"name": "0--9"}, {"pod": deep(99)}, {"pod": {"a": deep(98, [])}}]
)
@pytest.mark.parametrize(("asked", "replicas"), [(None, 1), (0, 0), (1000, 1000)])
def test_a_spec_at_its_limits_is_served(spec: Obj, asked: int | None, replicas: int) -> None:
    assert mo.spec_of(milvus(asked, **spec)).replicas == replicas


def test_the_fingerprint_covers_the_users_fields_and_no_others() -> None:
    here = read(milvus()).template_hash
    assert here == "b6a521d9532c84ad", "a new version must not restart pods"
    for same in (milvus(9), milvus(milvusSpec=None), milvus(storage={"size": "1Gi"})):
        assert read(same).template_hash == here
    for other in (milvus(image="milvus:2"), milvus(milvusSpec="a: b"), milvus(pod={"spec": {}})):
        assert read(other).template_hash != here
    assert read(milvus(pod={"a": 1, "b": [1]})) == read(milvus(pod={"b": [1], "a": 1}))


# --- The status ---
def conditions(milvus: Obj, pods: list[Obj], **problems: mo.Reason) -> dict[str, tuple[str, ...]]:
    """Status, reason and message of each condition."""
    return {
        one["type"]: (one["status"], one["reason"], one["message"])
        for one in new_status(milvus, pods, **problems)["conditions"]
    }


def test_the_status_of_a_milvus_whose_pods_are_ready() -> None:
    """The conditions of others are kept, unless they are too deep to be written, and the time of
    ours changes only with their status."""
    others: list[Obj] = [{"type": "BackedUp", "status": "True", "by": "them"}, {"type": "Paused"}]
    stalled = {"type": "Stalled", "status": "True", "lastTransitionTime": "then"}
    was_ready = stalled | {"type": "Ready"}
    was_failing = stalled | {"type": "Reconciled", "status": "False"}
    too_deep = {"type": "Deep", "by": deep(6000)}
    earlier = [others[0], too_deep, stalled, was_ready, was_failing, others[1]]
    before = milvus(2) | {"status": {"conditions": earlier}}
    before["metadata"]["generation"] = 7
    text = "2 of 2 pods are ready and up to date"
    ready = was_ready | {"observedGeneration": 7, "reason": "Ready", "message": text}
    text = "the pods match the spec or are being brought in line with it"
    reconciled = ready | {"type": "Reconciled", "reason": "Reconciled", "message": text}
    reconciled["lastTransitionTime"] = NOW
    status = new_status(before, pods("x-1, x-0"))
    assert status == {
        "observedGeneration": 7,
        "replicas": 2,
        "readyReplicas": 2,
        "updatedReplicas": 2,
        "pods": ["x-0", "x-1"],
        "selector": "app.kubernetes.io/instance=x,"
        "app.kubernetes.io/managed-by=milvus-polling-operator,app.kubernetes.io/name=milvus",
        "conditions": [ready, reconciled, *others],
    }
    before["status"] = status
    assert mo.status_of(before, read(before), pods("x-1, x-0"), {}, "later") == status


@pytest.mark.parametrize(
    ("served", "there", "replicas", "ready", "updated", "names"),
    [
        (milvus(), "", 0, 0, 0, ""),
        (milvus(), "x-0, x-1 failed, x-2 ending", 2, 1, 2, "x-0 x-1"),
        (milvus(), "x-0 old, x-1 starting, x-2 old starting", 3, 1, 1, "x-0 x-1 x-2"),
        (milvus(), "x-10, x-9, x-2 stranger, x-1 orphan", 2, 2, 2, "x-9 x-10"),
        (milvus(image=""), "x-0", 1, 1, 0, "x-0"),
    ],
)
def test_the_status_counts_our_pods_that_are_not_ending(
    served: Obj, there: str, replicas: int, ready: int, updated: int, names: str
) -> None:
    status = new_status(served, pods(there))
    counts = status["replicas"], status["readyReplicas"], status["updatedReplicas"]
    assert counts == (replicas, ready, updated)
    assert status["pods"] == names.split()


ODD = {"type": "Ready", "status": "True", "lastTransitionTime": 3}
WAITING = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling"}}
KILLED = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
COMPLETED = {"terminated": {"reason": "Completed", "exitCode": 0}}


@pytest.mark.parametrize("strange", ["text", {"conditions": "none"}, {"conditions": [1, [], ODD]}])
def test_a_status_of_any_shape_is_replaced(strange: Any) -> None:
    there = milvus(1) | {"status": strange}
    assert new_status(there, pods("x-0")) == new_status(milvus(1), pods("x-0"))


def running(*states: Obj, init: Obj | None = None) -> Obj:
    """A pod whose containers are in these states."""
    found = [{"state": state} for state in states]
    return pod("x-1", "starting", initContainerStatuses=[{"state": init}], containerStatuses=found)


def told(phase: str, *found: str, name: str = "x-1") -> Obj:
    """A pod with these conditions: type, status, reason, message."""
    keys = ("type", "status", "reason", "message")
    conditions = [dict(zip(keys, one.split(), strict=False)) for one in found]
    return pod(name, "starting", phase=phase, conditions=conditions)


@pytest.mark.parametrize(
    ("there", "reason", "message"),
    [
        (None, "Creating", "it is being created"),
        (pod("x-1", "ending"), "Terminating", "Terminating"),
        (pod("x-1", "failed", "ending"), "Terminating", "Terminating"),
        (pod("x-1", "old"), "Updating", "outdated template"),
        (pod("x-1", "failed", reason="Evicted", message="low on disk"), "Evicted", "low on disk"),
        (pod("x-1", "failed", reason="no space"), "nospace", "no space"),
        (pod("x-1", "failed", reason="?"), "Unknown", "?"),
        (pod("x-1", "failed", reason="Long", message="a" * 2000), "Long", "a" * 2000),
        (running(WAITING), "ImagePullBackOff", "Back-off pulling"),
        (running({}, WAITING), "ImagePullBackOff", "Back-off pulling"),
        (running({"waiting": {"message": "soon"}}), "Waiting", "soon"),
        (running(KILLED), "OOMKilled", "exit code 137"),
        (running({"terminated": {"exitCode": 1}}), "Error", "exit code 1"),
        (running(COMPLETED), "Pending", "Pending"),
        (running(WAITING, init=KILLED), "OOMKilled", "exit code 137"),
        (running(WAITING, init=COMPLETED), "ImagePullBackOff", "Back-off pulling"),
        (pod("x-1") | {"status": {}}, "Pending", "Pending"),
        ({"metadata": pod("x-1")["metadata"]}, "Pending", "Pending"),
        (told("Pending", "Ready False A a", "PodScheduled False Full none"), "Full", "none"),
        (told("Running", "PodScheduled True A a", "Ready False Gate shut"), "Gate", "shut"),
        # A node that is lost sets no reason; Running must not be read as "it runs".
        (told("Running", "Ready False"), "NotReady", "NotReady"),
        (told("Running", "Ready False Ready"), "NotReady", "NotReady"),  # not at its word
        (told("Pending", "Ready False"), "Pending", "Pending"),
        (told("Running", "Ready Unknown NodeLost gone"), "NodeLost", "gone"),
    ],
)
def test_ready_uses_the_pods_own_words(there: Obj | None, reason: str, message: str) -> None:
    listed = [*pods("x-0"), *([there] if there else [])]
    found = conditions(milvus(2), listed)
    assert conditions(milvus(2), [*map(mo.slim_pod, listed)]) == found, "the words are kept"
    text = f"1 of 2 pods are ready and up to date; x-1: {message}"
    assert found["Ready"] == ("False", reason, text[:1024])
    assert found["Reconciled"][:2] == ("True", "Reconciled")
    assert "Stalled" not in found


UNREADY = told("Running", "Ready False ContainersNotReady", name="x-0")
UPDATING = [pod("x-0", word) for word in ("ending", "starting", "old")]
STALLED = ["Invalid", "NameConflict", "Forbidden", "QuotaExceeded"]
PASSING = ["ClaimTerminating", "NamespaceTerminating"]  # they are waited for, and are no failure


@pytest.mark.parametrize("passing", [*UPDATING, UNREADY, pod("x-2")])
def test_a_real_problem_is_shown_before_one_that_will_pass(passing: Obj) -> None:
    shown = conditions(milvus(3), [passing, running(WAITING)])["Ready"]
    assert shown[1] == "ImagePullBackOff"
    ending = mo.Reason("ClaimTerminating", "why")
    shown = conditions(milvus(3), [running(WAITING)], x_0=ending)["Ready"]
    assert shown[1] == "ImagePullBackOff"


@pytest.mark.parametrize("reason", [*STALLED, *PASSING, "APIError"])
def test_what_was_rejected_is_told_and_is_stalled_while_somebody_has_to_act(reason: str) -> None:
    for there in ("x-0", "x-0, x-1 old"):
        found = conditions(milvus(2), pods(there), x_1=mo.Reason(reason, "why"))
        text = "1 of 2 pods are ready and up to date; x-1: why"
        assert found["Ready"] == ("False", reason, text)
        said = "pod x-1: why" if reason == "APIError" else "why"
        assert (found["Reconciled"] == ("False", reason, said)) == (reason not in PASSING)
        assert (found["Reconciled"][0] == "True") == (reason in PASSING)
        stalled = ("True", reason, "why") if reason in STALLED else None
        assert found.get("Stalled") == stalled


# --- Events ---
@pytest.mark.parametrize(
    ("note", "sent"),
    [("a" + "é" * 1000, "a" + "é" * 511), ("lone \ud800", "lone ?"), ("b" * 1024, "b" * 1024)],
)
def test_an_event_has_its_milvus_and_a_note_of_at_most_1024_bytes(note: str, sent: str) -> None:
    x = {"apiVersion": "zilliz.com/v1", "kind": "Milvus", "name": "x", "uid": "uid-of-x"}
    expected = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": "x-", "namespace": "ns"},
        "regarding": x | {"namespace": "ns"},
        "type": "Normal",
        "reason": "Created",
        "action": "Reconcile",
        "note": sent,
        "eventTime": NOW,
        "reportingController": "zilliz.com/milvus-polling-operator",
        "reportingInstance": socket.gethostname(),
    }
    assert mo.new_event(milvus(), "Created", note, False, NOW) == expected
    assert mo.new_event(milvus(), "Created", note, True, NOW) == expected | {"type": "Warning"}


# --- The server's words, and those of users ---
DENIED = 'pods "x-0" is forbidden: '
USER = 'User "system:serviceaccount:a:b" cannot create resource "pods" in API group ""'
ANONYMOUS = USER.replace("serviceaccount:a:b", "anonymous")
OWNER = "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set"
QUOTA = "exceeded quota: a, requested: pods=1"
WORDS = [start + words for start in ("", DENIED) for words in (ANONYMOUS, USER, OWNER, QUOTA)]
ROLE = "in namespace ns: add this permission to the operator's role (see deploy.yaml)"
ENDING = "NamespaceTerminating"
LOGIN = "http://localhost rejects the credentials: log in again, or renew the token"


@pytest.mark.parametrize(
    ("code", "message", "reason", "line"),
    [
        (401, "Unauthorized", "APIError", LOGIN),
        (403, f"pods is forbidden: {ANONYMOUS}", "Forbidden", LOGIN),
        (403, DENIED + USER, "Forbidden", f"not allowed to create pods {ROLE}"),
        (403, DENIED + OWNER, "Forbidden", f"not allowed to update milvuses/finalizers {ROLE}"),
        (403, DENIED + QUOTA, "QuotaExceeded", ""),
        (403, f'{DENIED}violates PodSecurity "restricted:latest"', "Forbidden", ""),
        (422, 'Pod "x-0" is invalid: spec.x', "Invalid", ""),
        (400, "strict decoding error: unknown field", "Invalid", ""),
        (404, "not found", "APIError", ""),
        (0, "connection refused", "APIError", ""),
        # What a user has written is further on in a message, or in one with another code.
        *((403, f"{DENIED}no PriorityClass {words}", "Forbidden", "") for words in WORDS),
        *((403, f"{DENIED}x: {words}", "Forbidden", "") for words in WORDS),
        *((403, f'webhook "a" denied the request: {words}', "Forbidden", "") for words in WORDS),
        *((422, words, "Invalid", "") for words in WORDS),
        *((500, words, "APIError", "") for words in WORDS),
    ],
)
def test_what_the_server_says_is_told_apart_from_a_users_words(
    code: int, message: str, reason: str, line: str
) -> None:
    error = mo.ApiError(code, message)
    assert error.why() == mo.Reason(reason, message)
    connection = mo.Connection(ApiClient(Configuration("http://localhost")), "ns", None, {})
    assert mo.Cluster(lambda _: connection).outage(error, "ns") == line


@pytest.mark.parametrize(
    ("body", "message", "reason"),
    [
        ({"message": "a\n\tb", "reason": "Conflict"}, "a b", "Conflict"),
        ({"message": "a" * 2000}, "a" * 1000, ""),
        ({"message": "m", "details": {"causes": [{"reason": ENDING}]}}, "m", ENDING),
        ({}, "Gone", ""),
        ("no object", "Gone", ""),
        (None, "Gone", ""),
    ],
)
def test_an_error_of_any_shape_is_read(body: Any, message: str, reason: str) -> None:
    exception = ApiException(410, "Gone")
    exception.body = None if body is None else json.dumps(body)
    error = mo.api_error(exception)
    assert (error.code, str(error), error.reason) == (410, message, reason)


@pytest.mark.platform
@pytest.mark.parametrize("levels", [10, 150, 900, 5000])
def test_json_is_cut_where_it_is_nested_too_deeply(levels: int) -> None:
    nested = b'{"b":[' * levels + b"1" + b"]}" * levels
    text = b'{"items":[{"a":%b,"c":"]}\\"{"},{"d":[1,{"e":null}]}]}' % nested
    for body in (text, mo.shallow(text)):
        first, second = mo.parse(body)["items"]
        assert (first["c"], second) == (']}"{', {"d": [1, {"e": None}]})
    assert mo.shallow(b'[{"a": [1]}]') == b'[{"a": [1]}]'
