"""The core: pure functions over dicts. The tables name the pods that exist and what is done."""

from typing import Any

import pytest

import milvus_operator as mo
from tests.lib.front import Obj, Request
from tests.lib.objects import NOW, claim, decided, milvus, named, new_status, pod, pods, read
from tests.lib.world import World
from tests.lib.world import milvus as created

# --- What to do ---
WAITS, OVER = 1, 0  # it is 0 now
REFUSED = mo.BackOff(WAITS, 10, mo.ApiError(403, "no"))
LOST = mo.BackOff(WAITS, 1, mo.ApiError(0, "no answer"))
HELD = mo.BackOff(WAITS, 10, mo.ApiError(409, "the name is taken"))
HELD.error.why = mo.Reason("NameConflict")  # type: ignore[union-attr]
THREE_OLD = "x-0 old, x-1 old, x-2 old"


def todo(replicas: int, there: str, failed: mo.BackOffs) -> set[str]:
    """What is done now, such as {"delete x-2", "create x-0"}."""
    actions = decided(milvus(replicas), pods(there), failed=failed)
    now = [one for one in actions if one.is_due and failed.get(one.key, mo.NO_BACK_OFF).until <= 0]
    return {f"{action.verb} x-{action.ordinal}" for action in now}


@pytest.mark.parametrize(
    ("what", "replicas", "there", "expected"),
    [
        ("missing pods are created", 4, "x-0, x-2 starting", "create x-1, create x-3"),
        ("surplus pods go", 1, "x-0, x-1 failed, x-2 ending, x-3", "delete x-3, delete x-1"),
        ("ending pods are waited for", 2, "x-0 ending, x-1 failed ending", ""),
        ("a pod that has ended is deleted first", 1, "x-0 failed", "restart x-0"),
        ("whatever its template", 3, "x-0 failed old, x-1, x-2", "replace x-0"),
        ("strangers are not listed to be touched", 1, "x-0, x-1 stranger, x-2 of-y", ""),
        ("our pod without its labels is there", 1, "x-0 unmanaged", ""),
        ("an orphan is adopted, surplus or outdated", 1, "x-1 orphan old, x-0", "adopt x-1"),
        ("an orphan needs no index", 1, "x-0 orphan unnumbered", "adopt x-0"),
        ("an owner that is no controller does not count", 1, "x-0 loose", "adopt x-0"),
        ("one with other labels is no orphan of ours", 0, "x-0 orphan unmanaged", ""),
        ("an ending orphan is waited for", 2, "x-0, x-1 orphan ending", ""),
        ("names that are not made from ours", 0, "x-y-0, x-01 orphan, x-y, y-0 orphan, x-²", ""),
        # A roll: not Ready first and all at once, then one Ready pod at a time.
        ("one at a time, from the highest", 3, THREE_OLD, "replace x-2"),
        ("the next one when that is Ready", 3, "x-0 old, x-1 old, x-2", "replace x-1"),
        ("not while that is starting", 3, "x-0 old, x-1 old, x-2 starting", ""),
        ("not while that is ending", 3, "x-0 old, x-1 old, x-2 old ending", ""),
        ("not while a pod is missing", 3, "x-0 old, x-1 old", "create x-2"),
        ("not while a current pod has failed", 2, "x-0 old, x-1 failed", "restart x-1"),
        ("not while an orphan is there", 2, "x-0 old, x-1 orphan", "adopt x-1"),
        ("broken ones first", 3, "x-0 old, x-1 old starting, x-2 old", "replace x-1"),
        ("and all at once", 2, "x-0 old starting, x-1 old starting", "replace x-1, replace x-0"),
        ("no Ready one together with a Ready surplus one", 1, "x-0 old, x-1", "delete x-1"),
        ("a broken one, with surplus", 1, "x-0 old starting, x-1", "delete x-1, replace x-0"),
        ("a pod without a fingerprint is outdated", 2, "x-0, x-1 bare", "replace x-1"),
        # Pods whose nodes fell silent may still serve: they are not broken.
        ("one at a time of those", 2, "x-0 old silent, x-1 old silent", "replace x-1"),
        ("they hold up no other old one", 3, "x-0 old silent, x-1 old, x-2", "replace x-1"),
        ("but hold up the roll once replaced", 3, "x-0 old silent, x-1 old, x-2 silent", ""),
    ],
)
def test_the_actions_for_the_pods(what: str, replicas: int, there: str, expected: str) -> None:
    assert todo(replicas, there, {}) == {*expected.split(", ")} - {""}, what


BROKEN = "x-0 old, x-1 old, x-2 old starting"


@pytest.mark.parametrize(
    ("what", "there", "failed", "expected"),
    [
        ("a missing pod delays no other", "", {("create", 1): REFUSED}, "create x-0, create x-2"),
        ("nor a roll, if a stranger has its name", THREE_OLD[:-9], {("create", 2): HELD}, "replace x-1"),
        ("a surplus pod holds up no roll", "x-0, x-1, x-2 old, x-3", {("delete", 3): REFUSED}, "replace x-2"),
        ("a Ready pod that may not go: the next one goes", THREE_OLD, {("replace", 2): REFUSED}, "replace x-1"),
        ("also when it could be tried again", THREE_OLD, {("replace", 2): REFUSED._replace(until=OVER)}, "replace x-1"),
        ("while its delete may be under way, no other goes", THREE_OLD, {("replace", 2): LOST}, ""),
        ("but it is repeated", THREE_OLD, {("replace", 2): LOST._replace(until=OVER)}, "replace x-2"),
        ("nor does a broken one that may not go hold up a roll", BROKEN, {("replace", 2): REFUSED}, "replace x-1"),
    ],
)  # fmt: skip
def test_what_has_failed_delays_only_what_it_must(
    what: str, there: str, failed: mo.BackOffs, expected: str
) -> None:
    assert todo(3, there, failed) == {*expected.split(", ")} - {""}, what


def test_only_an_unscheduled_pod_of_the_current_template_is_replaced_when_its_claim_is_gone() -> (
    None
):
    stored = milvus(1, storage={"size": "1Gi"})
    unscheduled = {"conditions": [{"type": "PodScheduled", "status": "False"}]}
    current = pod("x-0", "starting") | {}
    current["metadata"]["annotations"] = {mo.TEMPLATE_HASH: read(stored).template_hash}
    waiting = current | {"status": current["status"] | unscheduled}

    def verbs(served: Obj, there: Obj, claims: list[Obj]) -> list[str]:
        return [action.verb for action in decided(served, [there], claims)]

    assert verbs(stored, waiting, []) == ["restart"]
    there = [claim("data-x-0")]
    assert verbs(stored, waiting, there) == verbs(stored, current, []) == []
    assert verbs(milvus(1), waiting, []) == [], "without storage, a claim is another's"


# --- Whose pod it is ---
OF_OTHERS = {
    "x-0 stranger": "belongs to ReplicaSet web",
    "x-1 of-y": "belongs to Milvus y",
    "x-3 orphan unlabelled": "has no controller",
}


@pytest.mark.parametrize(("there", "whose"), OF_OTHERS.items())
def test_a_pod_of_others_with_a_desired_name_is_a_conflict(there: str, whose: str) -> None:
    (found,) = pods(there)
    reason, message = mo.why_name_is_taken(milvus(5), found)
    assert reason == "NameConflict"
    text = f"pod {mo.name_of(found)} already exists and {whose}, so the operator does not touch it"
    assert message.startswith(text)


@pytest.mark.parametrize("there", ["stranger ending", "earlier", "orphan", "loose", "unnumbered"])
def test_a_pod_that_goes_or_is_to_be_ours_is_no_conflict(there: str) -> None:
    assert mo.why_name_is_taken(milvus(), pod("x-0", *there.split())).reason == mo.PENDING


def test_a_milvus_is_given_the_pods_that_have_its_names() -> None:
    """Names, and even the UIDs of owners, may be the same in several namespaces."""
    x, y, elsewhere = pods("x-1, x-2 orphan, x-3 of-y, x-4 unlabelled"), pod("y-0"), pod("x-0")
    elsewhere["metadata"]["namespace"] = "other"
    there = [*x, y, elsewhere, *pods("x-01, x-y")]
    assert named(milvus(), there) == dict(enumerate(x, 1))
    assert named(milvus(name="y"), there) == {0: y}


def test_admission_may_add_labels_and_remove_the_index() -> None:
    def admit(request: Request) -> None:
        labels = request.body["metadata"]["labels"]
        del labels[mo.POD_INDEX_LABEL]
        labels["added-by"] = "admission"

    world = World(created("x"))
    world.server.when("create", "pods", admit)
    world.settle()
    assert (world.reason(), len(world.names("create", "pods"))) == ("Reconciled", 1)


# --- The spec ---
@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"metadata": milvus()["metadata"]}, "the spec is missing"),
        *((milvus(replicas=wrong), "spec.replicas ") for wrong in (-1, 1001)),
        (milvus(milvusSpec="a: [b"), "spec.milvusSpec, line 2: it is not valid YAML"),  # its end
    ],
)
def test_a_spec_that_cannot_be_used_says_why(broken: Obj, message: str) -> None:
    found = conditions(broken, pods("x-0, x-1"))
    text = found["Ready"][2]
    assert text.startswith(message)
    no = ("False", "Invalid", text)
    assert found == {"Ready": no, "Reconciled": no, "Stalled": ("True", "Invalid", text)}


@pytest.mark.parametrize(
    "wrong",
    [
        "text",
        {"image": "a", "replicas": 1.0},
        {"image": "a", "replicas": "3"},
        {"image": "a", "milvusSpec": {"a": 1}},
        {"image": "a", "storage": 5},
        {"image": "a", "storage": {"size": "large"}},
        {"image": "a", "pod": "text"},
        {"image": "a", "pod": {"spec": 7}},
    ],
)
def test_a_field_of_the_wrong_type_is_invalid_under_an_older_crd(wrong: Any) -> None:
    world = World(created("x") | {"spec": wrong}, created("y"))
    world.settle()
    assert world.pods() == ["y-0"]
    assert [world.reason(name) for name in ("x", "y")] == ["Invalid", "Reconciled"]
    assert "the wrong type, or is nested too deeply" in world.message()


def test_from_none_to_a_thousand_replicas_are_served() -> None:
    assert [read(milvus(asked)).replicas for asked in (None, 0, 1000)] == [1, 0, 1000]


def test_the_fingerprint_covers_the_users_fields_and_no_others() -> None:
    here = read(milvus()).template_hash
    assert here == "b6a521d9532c84ad", "a new version must not restart pods"
    for same in (milvus(9), milvus(milvusSpec=None), milvus(storage={"size": "1Gi"})):
        assert read(same).template_hash == here
    for other in (milvus(image="milvus:2"), milvus(milvusSpec="a: b"), milvus(pod={"spec": {}})):
        assert read(other).template_hash != here
    assert read(milvus(pod={"a": 1, "b": [1]})) == read(milvus(pod={"b": [1], "a": 1}))


# --- The status ---
def conditions(
    milvus: Obj, pods: list[Obj], problems: dict[int, mo.Reason] | None = None
) -> dict[str, tuple[str, ...]]:
    """Status, reason and message of each condition."""
    return {
        one["type"]: (one["status"], one["reason"], one["message"])
        for one in new_status(milvus, pods, problems or {})["conditions"]
    }


def test_the_status_of_a_milvus_whose_pods_are_ready() -> None:
    """The conditions of others are kept, and the time of ours changes only with their status."""
    others: list[Obj] = [{"type": "BackedUp", "status": "True", "by": "them"}, {"type": "Paused"}]
    stalled = {"type": "Stalled", "status": "True", "lastTransitionTime": "then"}
    was_ready = stalled | {"type": "Ready"}
    was_failing = stalled | {"type": "Reconciled", "status": "False"}
    earlier = [others[0], stalled, was_ready, was_failing, others[1]]
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
    there = named(before, pods("x-1, x-0"))
    assert mo.status_of(before, read(before), there, {}, "later") == status


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


WAITING = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling"}}
KILLED = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
COMPLETED = {"terminated": {"reason": "Completed", "exitCode": 0}}


@pytest.mark.parametrize("strange", ["text", {"conditions": "none"}, {"conditions": [1, []]}])
def test_a_status_of_any_shape_keeps_no_pod_waiting(strange: Any) -> None:
    """An older CRD allows it."""
    world = World(created("x"), created("y"))
    world.server.ask("patch", "milvuses/status", "x", {"status": strange})
    world.settle()
    assert (world.pods(), world.reason("y")) == (["x-0", "y-0"], "Reconciled")


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
        (None, "Creating", ""),
        (pod("x-1", "ending"), "Terminating", "Terminating"),
        (pod("x-1", "failed", "ending"), "Terminating", "Terminating"),
        (pod("x-1", "old"), "Updating", ""),
        (pod("x-1", "failed", reason="Evicted", message="low on disk"), "Evicted", "low on disk"),
        (pod("x-1", "failed", reason="Long", message="a" * 2000), "Long", "a" * 900),
        (running(WAITING), "ImagePullBackOff", "Back-off pulling"),
        (running({}, WAITING), "ImagePullBackOff", "Back-off pulling"),
        (running(KILLED), "OOMKilled", ""),
        (running(COMPLETED), "Pending", "Pending"),
        (running(WAITING, init=KILLED), "OOMKilled", ""),
        (running(WAITING, init=COMPLETED), "ImagePullBackOff", "Back-off pulling"),
        (told("Pending", "Ready False A a", "PodScheduled False Full none"), "Full", "none"),
        (told("Running", "PodScheduled True A a", "Ready False Gate shut"), "Gate", "shut"),
        (told("Running", "Ready Unknown NodeLost gone"), "NodeLost", "gone"),
    ],
)
def test_ready_uses_the_pods_own_words(there: Obj | None, reason: str, message: str) -> None:
    listed = [*pods("x-0"), *([there] if there else [])]
    found = conditions(milvus(2), listed)
    assert conditions(milvus(2), [*map(mo.slim_pod, listed)]) == found, "the words are kept"
    assert found["Ready"][:2] == ("False", reason)
    text = f"1 of 2 pods are ready and up to date; x-1: {message}"
    assert found["Ready"][2].startswith(text)
    assert len(found["Ready"][2]) <= 1024
    assert found["Reconciled"][:2] == ("True", "Reconciled")
    assert "Stalled" not in found


UNREADY = told("Running", "Ready False ContainersNotReady", name="x-0")
UPDATING = [pod("x-0", word) for word in ("ending", "starting", "old")]


@pytest.mark.parametrize("passing", [*UPDATING, UNREADY, pod("x-2")])
def test_a_real_problem_is_shown_before_one_that_will_pass(passing: Obj) -> None:
    shown = conditions(milvus(3), [passing, running(WAITING)])["Ready"]
    assert shown[1] == "ImagePullBackOff"


STALLED = ["Invalid", "NameConflict", "Forbidden", "QuotaExceeded"]
PASSING = ["Pending"]  # they are waited for, and are no failure


@pytest.mark.parametrize("reason", [*STALLED, *PASSING, "APIError"])
def test_what_was_rejected_is_told_and_is_stalled_while_somebody_has_to_act(reason: str) -> None:
    for there in ("x-0", "x-0, x-1 old"):
        found = conditions(milvus(2), pods(there), {1: mo.Reason(reason, "why")})
        text = "1 of 2 pods are ready and up to date; x-1: why"
        assert found["Ready"] == ("False", reason, text)
        assert (found["Reconciled"] == ("False", reason, "why")) == (reason not in PASSING)
        assert (found["Reconciled"][0] == "True") == (reason in PASSING)
        stalled = ("True", reason, "why") if reason in STALLED else None
        assert found.get("Stalled") == stalled


# --- Events ---
@pytest.mark.parametrize(
    ("note", "sent"),
    [("a" + "é" * 1000, "a" + "é" * 511), ("lone \ud800", "lone ?"), ("b" * 1024, "b" * 1024)],
)
def test_an_event_has_its_milvus_and_a_note_of_at_most_1024_bytes(note: str, sent: str) -> None:
    event = mo.new_event(milvus(), "Created", note, False)
    x = {"apiVersion": "zilliz.com/v1", "kind": "Milvus", "name": "x", "uid": "uid-of-x"}
    assert event["regarding"] == x | {"namespace": "ns"}
    assert event["metadata"] == {"generateName": "x-", "namespace": "ns"}
    assert [event[key] for key in ("type", "reason", "note")] == ["Normal", "Created", sent]
    assert mo.new_event(milvus(), "Created", note, True) == event | {"type": "Warning"}


# --- The server's words, and those of users ---
DENIED = 'pods "x-0" is forbidden: '
USER = 'User "system:serviceaccount:a:b" cannot create resource "pods" in API group ""'
ANONYMOUS = USER.replace("serviceaccount:a:b", "anonymous")
OWNER = "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set"
QUOTA = "exceeded quota: a, requested: pods=1"
WORDS = [start + words for start in ("", DENIED) for words in (ANONYMOUS, USER, OWNER, QUOTA)]
LOGIN = "http://memory rejects the credentials: log in again, or renew the token"
ROLE = "not allowed to create pods in namespace test: "


@pytest.mark.parametrize(
    ("code", "message", "reason", "line"),
    [
        (401, "Unauthorized", "APIError", LOGIN),
        (403, DENIED + USER, "Forbidden", ROLE + DENIED + USER),
        (403, DENIED + OWNER, "Forbidden", ROLE + DENIED + OWNER),
        (403, DENIED + QUOTA, "QuotaExceeded", ""),
        (403, f'{DENIED}violates PodSecurity "restricted:latest"', "Forbidden", ""),
        (422, 'Pod "x-0" is invalid: spec.x', "Invalid", ""),
        (400, "strict decoding error: unknown field", "Invalid", ""),
        (404, "not found", "APIError", ""),
        (410, "a\n\tb " + "c" * 2000, "APIError", ""),
        # What a user has written is further on in a message, or in one with another code.
        (401, 'admission webhook "a" denied the request: no', "APIError", ""),
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
    world = World(created("x"))
    world.server.refuse("create", "pods", code, message)
    world.passes()
    assert world.reason() == reason
    text = " ".join(message.split())[:900]
    assert text in world.message()
    troubles = [line for line in world.troubles if text not in line or line.startswith(ROLE)]
    assert len(troubles) == bool(line)
    assert not line or troubles[0].startswith(line)


@pytest.mark.platform
@pytest.mark.parametrize("levels", [10, 150, 900, 5000])
def test_json_is_cut_where_it_is_nested_too_deeply(levels: int) -> None:
    nested = b'{"b":[' * levels + b"1" + b"]}" * levels
    text = b'[{"s":{"a":%b,"c":"]}\\"{"}},{"d":[1,{"e":null}]}]' % nested
    for body in (text, mo.shallow(text)):
        first, second = mo.parse(body)
        assert (first["s"]["c"], second) == (']}"{', {"d": [1, {"e": None}]})
    assert mo.shallow(b'[{"a": [1]}]') == b'[{"a": [1]}]'
