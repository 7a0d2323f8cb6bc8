"""The core: pure functions over dicts. The tables name the pods that exist and what is done."""

from __future__ import annotations

import json
import socket
from collections.abc import Collection
from typing import Any

import pytest
from kubernetes.client import ApiClient, ApiException, Configuration

import milvus_operator as mo
from tests.lib.objects import NOW, Obj, conditions, milvus, pod, pods, read

BackOffs = dict[int | str, mo.BackOff]

# What to do ----------------------------------------------------------------------------


def todo(
    milvus: Obj,
    pods: list[Obj],
    backing_off: Collection[int] = (),
    *,
    lost: bool = False,
    may_restart: bool = True,
) -> str:
    """What is done now, such as `delete x-2, create x-0`; as in the loop."""
    spec = mo.spec_of(milvus)
    taken = [mo.name_of(pod) for pod in pods if mo.conflict_with(milvus, spec, pod)]
    back_offs: BackOffs = {key: mo.BackOff(until=1, lost=lost) for key in backing_off}
    actions = mo.choose(mo.decide(milvus, spec, pods, taken), back_offs, may_restart, 0)
    return ", ".join(f"{action.verb} x-{action.ordinal}" for action in actions)


def unscheduled(name: str, because: str) -> Obj:
    """A pod that the scheduler cannot place."""
    message = f"0/3 nodes are available: persistentvolumeclaim {because}."
    condition = {"type": "PodScheduled", "status": "False", "message": message}
    return pod(name, "starting", conditions=[condition])


@pytest.mark.parametrize(
    ("what", "replicas", "there", "expected"),
    [
        ("nothing is there", 3, "", "create x-0, create x-1, create x-2"),
        ("all are there", 3, "x-0, x-1, x-2", ""),
        ("none is desired", 0, "", ""),
        ("one is missing", 3, "x-0, x-2", "create x-1"),
        ("surplus pods go, from the highest ordinal", 1, "x-0, x-1, x-2", "delete x-2, delete x-1"),
        ("failed surplus pods go, too", 0, "x-0 failed", "delete x-0"),
        ("an ending surplus pod needs nothing", 2, "x-0, x-1, x-2 ending", ""),
        ("an ending pod is waited for", 2, "x-0, x-1 ending", ""),
        ("a failed pod that is ending is waited for", 1, "x-0 failed ending", ""),
        ("a failed pod is deleted first", 1, "x-0 failed", "restart x-0"),
        ("a succeeded pod, too", 1, "x-0 succeeded", "restart x-0"),
        ("deletes come first", 2, "x-1 failed, x-2", "delete x-2, restart x-1, create x-0"),
        ("a starting pod needs nothing", 1, "x-0 starting", ""),
        ("a stranger is left alone", 3, "x-0, x-1 stranger", "create x-2"),
        ("a stranger with our name and no owner", 1, "x-0 orphan unlabelled", ""),
        ("a stranger with an undesired ordinal", 1, "x-0, x-1 stranger", ""),
        ("another Milvus's pod is left alone", 1, "x-0 of-y", ""),
        ("a pod of an earlier x is waited for", 3, "x-0, x-1 earlier", "create x-2"),
        ("an orphan is adopted", 3, "x-0, x-1 orphan, x-2", "adopt x-1"),
        ("an orphan without its index is adopted", 1, "x-0 orphan unnumbered", "adopt x-0"),
        ("an orphan with a foreign label is a stranger", 1, "x-0 orphan unmanaged", ""),
        ("a surplus orphan is adopted, to be deleted then", 1, "x-0, x-1 orphan", "adopt x-1"),
        ("an old orphan is adopted, to be rolled then", 1, "x-0 orphan old", "adopt x-0"),
        ("an ending orphan is waited for", 2, "x-0, x-1 orphan ending", ""),
        ("an owner that is no controller does not count", 1, "x-0 loose", "adopt x-0"),
        ("our pod without labels is not created again", 1, "x-0 unmanaged", ""),
        ("names that are not made from ours", 0, "x-y-0, x-01, x-y, y-0 orphan, x-²", ""),
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
        ("a broken new template takes no Ready pod", 2, "x-0 old, x-1 starting", ""),
        ("rolling back past a broken one", 2, "x-0, x-1 old starting", "replace x-1"),
        ("an old failed one at once", 2, "x-0 old, x-1 old failed", "replace x-1"),
        ("no Ready one together with a Ready surplus one", 1, "x-0 old, x-1", "delete x-1"),
        ("a broken one, with surplus", 1, "x-0 old starting, x-1", "delete x-1, replace x-0"),
        ("any one, with broken surplus", 1, "x-0 old, x-1 starting", "delete x-1, replace x-0"),
        ("a pod without a fingerprint is outdated", 2, "x-0, x-1 bare", "replace x-1"),
        ("a stranger does not block a roll", 3, "x-0 old, x-1 stranger, x-2 old", "replace x-2"),
        ("an undesired stranger, neither", 1, "x-0 old, x-1 stranger", "replace x-0"),
    ],
)
def test_the_actions_for_the_pods_that_are_there(
    what: str, replicas: int, there: str, expected: str
) -> None:
    assert todo(milvus(replicas), pods(there)) == expected, what
    backwards = todo(milvus(replicas), pods(there)[::-1])
    assert backwards == expected, "the order of the list does not matter"


@pytest.mark.parametrize(
    ("what", "there", "backing_off", "expected"),
    [
        ("a missing pod", "", {1}, "create x-0, create x-2"),
        ("a failed pod", "x-0, x-1, x-2 failed", {2}, ""),
        ("an orphan", "x-0, x-1 orphan", {1}, "create x-2"),
        ("a surplus pod", "x-0, x-1, x-2, x-3, x-4", {4}, "delete x-3"),
        ("a surplus pod holds up no roll", "x-0, x-1, x-2 old, x-3", {3}, "replace x-2"),
        ("a Ready old pod: the next is taken", "x-0 old, x-1 old, x-2 old", {2}, "replace x-1"),
        ("no Ready one instead of a broken one", "x-0 old, x-1 old, x-2 old starting", {2}, ""),
        ("other broken ones go", "x-0, x-1 old starting, x-2 old starting", {2}, "replace x-1"),
    ],
)
def test_a_pod_that_backs_off_delays_no_other(
    what: str, there: str, backing_off: set[int], expected: str
) -> None:
    assert todo(milvus(3), pods(there), backing_off) == expected, what


@pytest.mark.parametrize(
    ("there", "backing_off", "expected"),
    [
        ("x-0 old, x-1 old, x-2 old", {2}, ""),
        ("x-0 old, x-1 old, x-2 old", {0}, ""),
        ("x-0 old starting, x-1, x-2 old starting", {2}, "replace x-0"),
        ("x-0, x-1", {1, 2}, ""),
        ("x-0, x-1 failed", {2}, "restart x-1"),
    ],
)
def test_no_ready_pod_goes_while_the_lost_delete_of_another_may_still_take_effect(
    there: str, backing_off: set[int], expected: str
) -> None:
    assert todo(milvus(3), pods(there), backing_off, lost=True) == expected


def test_a_lost_delete_of_a_ready_pod_is_repeated_before_any_other() -> None:
    there = pods("x-0 old, x-1 old, x-2 old")
    back_offs: BackOffs = {0: mo.BackOff(until=1, lost=True)}
    actions = mo.choose(mo.decide(milvus(3), read(milvus(3)), there, []), back_offs, True, 1)
    assert [(action.verb, action.ordinal) for action in actions] == [("replace", 0)]


def test_a_rejected_delete_of_a_ready_pod_is_repeated_after_the_others() -> None:
    there = pods("x-0 old, x-1 old")
    back_offs: BackOffs = {1: mo.BackOff(until=1)}
    actions = mo.choose(mo.decide(milvus(2), read(milvus(2)), there, []), back_offs, True, 1)
    assert [(action.verb, action.ordinal) for action in actions] == [("replace", 0)]


def test_a_name_that_is_taken_is_not_counted_twice() -> None:
    """A name may count as taken a little longer, after the labels of our pod were restored."""
    there = pods("x-0 old, x-1 old, x-2 old")
    actions = mo.choose(mo.decide(milvus(3), read(milvus(3)), there, ["x-1"]), {}, True, 0)
    assert [(action.verb, action.ordinal) for action in actions] == [("replace", 2)]


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ("x-0 failed, x-1 succeeded", ""),
        ("x-0 failed old, x-1", "replace x-0"),
        ("x-0 failed, x-2 failed", "delete x-2, create x-1"),
    ],
)
def test_only_pods_that_end_with_the_current_template_wait_for_the_back_off(
    there: str, expected: str
) -> None:
    assert todo(milvus(2), pods(there), may_restart=False) == expected


@pytest.mark.parametrize(
    ("because", "expected"),
    [
        ('"data-x-0" not found', "restart x-0"),
        ('"data-x-0" is being deleted', "restart x-0"),
        ('"my-data-x-0" not found', ""),
        ('"data-x-01" not found', ""),
        ('"data-x-0" bound to no volume', ""),
    ],
)
def test_a_pod_whose_claim_is_gone_is_restarted(because: str, expected: str) -> None:
    stored = milvus(1, storage={"size": "1Gi"})
    waiting = unscheduled("x-0", because)
    waiting["metadata"]["annotations"] = {mo.TEMPLATE_HASH: read(stored).template_hash}
    assert todo(stored, [waiting]) == expected


@pytest.mark.parametrize(
    ("there", "reason"),
    [
        (pod("x-5"), "spec.replicas is 1"),
        (pod("x-0", "failed"), "Failed"),
        (pod("x-0", "failed", reason="Evicted"), "Failed (Evicted)"),
        (pod("x-0", "old"), "outdated template"),
        (unscheduled("x-0", '"data-x-0" not found'), "claim data-x-0 is gone or being deleted"),
        (pod("x-0", "orphan"), "no controller, but the name and labels of a pod of this Milvus"),
    ],
)
def test_each_action_has_its_reason(there: Obj, reason: str) -> None:
    stored = milvus(1, storage={"size": "1Gi"})
    there["metadata"]["annotations"].setdefault(mo.TEMPLATE_HASH, "")
    actions = mo.decide(stored, read(stored), [there], [])
    assert [action.reason for action in actions if action.pod] == [reason]


# Whose pod it is -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "whose"),
    [
        ("x-1 stranger", "belongs to ReplicaSet web"),
        ("x-1 of-y", "belongs to Milvus y"),
        ("x-1 of-milvus.io", "belongs to Milvus x"),
        ("x-1 orphan unlabelled", "has no controller"),
        ("x-1 orphan unmanaged", "has no controller"),
        ("x-1 stranger ending", None),
        ("x-1 earlier", None),
        ("x-1 orphan", None),
        ("x-1", None),
        ("x-3 stranger", None),
        ("x-01 stranger", None),
    ],
)
def test_a_stranger_with_a_desired_name_is_a_conflict(there: str, whose: str | None) -> None:
    (found,) = pods(there)
    conflict = mo.conflict_with(milvus(3), read(milvus(3)), found)
    advice = "delete it (the operator retries within 5 minutes), or create the Milvus under "
    advice += "another name"
    text = f"pod x-1 already exists and {whose}, so the operator does not touch it: {advice}"
    assert conflict == (mo.Reason("NameConflict", text) if whose else None)


def test_the_conflict_with_our_pod_that_lost_its_labels_says_how_to_restore_them() -> None:
    conflict = mo.conflict_with(milvus(3), read(milvus(3)), pod("x-1", "unmanaged"))
    assert conflict == mo.Reason(
        "NameConflict",
        "pod x-1 has lost its labels; restore them: kubectl label --overwrite -n ns pod x-1 "
        "app.kubernetes.io/name=milvus app.kubernetes.io/instance=x "
        "app.kubernetes.io/managed-by=milvus-polling-operator",
    )


def test_a_milvus_is_given_its_own_pods_and_those_that_have_its_names() -> None:
    """Names, and even the UIDs of owners, may be the same in several namespaces."""
    elsewhere = pod("x-0")
    elsewhere["metadata"]["namespace"] = "other"
    there = [*pods("x-1, x-2 orphan, x-3 of-y, y-0 of-y, x-4 unlabelled"), elsewhere]
    groups = mo.group(there)
    named = {key: [mo.name_of(pod) for pod in groups[key]] for key in groups}
    assert named == {
        ("ns", "x"): ["x-1", "x-2", "x-3", "x-4"],
        ("ns", "y"): ["y-0"],
        ("other", "x"): ["x-0"],
    }


@pytest.mark.parametrize(
    ("there", "lacking"),
    [
        ("x-0", ""),
        ("x-0 unnumbered", ""),
        ("x-0 orphan", "the owner reference"),
        ("x-0 loose", "the owner reference"),
        ("x-0 unmanaged", "the labels"),
        ("x-0 old", "the annotation zilliz.com/template-hash"),
        ("x-0 bare", "the annotation zilliz.com/template-hash"),
    ],
)
def test_what_admission_has_removed_from_a_pod_is_noticed(there: str, lacking: str) -> None:
    sent = mo.new_pod(milvus(), read(milvus()), 0)
    (stored,) = pods(there)
    stored["metadata"]["labels"]["added-by"] = "admission"
    assert mo.lacks(sent, stored) == lacking


# The spec ------------------------------------------------------------------------------


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
        *((milvus(replicas=wrong), NUMBER) for wrong in (-1, 1001, 2**31, True, False, 1.0, "3")),
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
    """Its pods are still counted, as outdated; decide() is never asked about it."""
    with pytest.raises(mo.Invalid) as error:
        mo.spec_of(broken)
    assert str(error.value) == message
    no, there = ("False", "Invalid", message), pods("x-0, x-1")
    expected = {"Ready": no, "Reconciled": no, "Stalled": ("True", "Invalid", message)}
    assert conditions(broken, there) == expected
    status = mo.status_of(broken, read(broken), there, {}, NOW)
    counted = len(there) if broken["metadata"]["name"] == "x" else 0
    assert (status["replicas"], status["readyReplicas"]) == (counted, counted)
    assert status["updatedReplicas"] == 0


@pytest.mark.parametrize(
    ("what", "served", "replicas"),
    [
        ("no replicas", milvus(None), 1),
        ("the fewest replicas", milvus(0), 0),
        ("the most replicas", milvus(1000), 1000),
        ("the longest name", milvus(1, name="a" * 52), 1),
        ("a name of digits and dashes", milvus(1, name="0--9"), 1),
        ("the deepest pod", milvus(1, pod=deep(99)), 1),
        ("the deepest lists", milvus(1, pod={"spec": deep(98, [])}), 1),
    ],
)
def test_a_spec_at_its_limits_is_served(what: str, served: Obj, replicas: int) -> None:
    assert mo.spec_of(served).replicas == replicas, what


def test_the_fingerprint_covers_the_users_fields_and_no_others() -> None:
    here = read(milvus()).template_hash
    assert here == "b6a521d9532c84ad", "a new version must not restart pods"
    same: Obj
    other: Obj
    for same in ({"replicas": 9}, {"milvusSpec": None}, {"storage": {"size": "1Gi"}}):
        assert read(milvus(**same)).template_hash == here, same
    for other in ({"image": "milvus:2"}, {"milvusSpec": "a: b"}, {"pod": {"spec": {}}}):
        assert read(milvus(**other)).template_hash != here, other
    there, back = ({"a": 1, "b": [1]}, {"b": [1], "a": 1})
    assert read(milvus(pod=there)).template_hash == read(milvus(pod=back)).template_hash


# The status ----------------------------------------------------------------------------


def test_the_status_of_a_served_milvus() -> None:
    before = milvus(2)
    before["metadata"]["generation"] = 7
    known = [{"type": "Ready", "status": "True"}, {"type": "Reconciled", "status": "False"}]
    before["status"] = {"conditions": [one | {"lastTransitionTime": "then"} for one in known]}
    selector = (
        "app.kubernetes.io/instance=x,app.kubernetes.io/managed-by=milvus-polling-operator,"
        "app.kubernetes.io/name=milvus"
    )
    status = mo.status_of(before, read(before), pods("x-1, x-0"), {}, NOW)
    ready, reconciled = status.pop("conditions")
    assert status == {
        "observedGeneration": 7,
        "replicas": 2,
        "readyReplicas": 2,
        "updatedReplicas": 2,
        "pods": ["x-0", "x-1"],
        "selector": selector,
    }
    values = ["status", "observedGeneration", "lastTransitionTime", "reason", "message"]
    text = "2 of 2 pods are ready and up to date"
    assert ready == dict(
        zip(["type", *values], ["Ready", "True", 7, "then", "Ready", text], strict=True)
    )
    text = "the pods match the spec or are being brought in line with it"
    row = ["Reconciled", "True", 7, NOW, "Reconciled", text]
    assert reconciled == dict(zip(["type", *values], row, strict=True))


@pytest.mark.parametrize(
    ("there", "replicas", "ready", "updated", "names"),
    [
        ("", 0, 0, 0, ""),
        ("x-0, x-1 failed, x-2 ending", 2, 1, 2, "x-0 x-1"),
        ("x-0 old, x-1 starting, x-2 old starting", 3, 1, 1, "x-0 x-1 x-2"),
        ("x-10, x-9, x-2 stranger, x-1 orphan", 2, 2, 2, "x-9 x-10"),
    ],
)
def test_the_status_counts_our_pods_that_are_not_ending(
    there: str, replicas: int, ready: int, updated: int, names: str
) -> None:
    status = mo.status_of(milvus(3), read(milvus(3)), pods(there), {}, NOW)
    counts = status["replicas"], status["readyReplicas"], status["updatedReplicas"]
    assert counts == (replicas, ready, updated)
    assert status["pods"] == names.split()


def test_a_pod_that_has_ended_is_not_ready_whatever_its_condition_says() -> None:
    ended = pod("x-0", "failed", conditions=[{"type": "Ready", "status": "True"}])
    assert mo.status_of(milvus(1), read(milvus(1)), [ended], {}, NOW)["readyReplicas"] == 0
    assert todo(milvus(2), [ended, *pods("x-1 old")]) == "restart x-0"


WAITING = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling"}}
KILLED = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
COMPLETED = {"terminated": {"reason": "Completed", "exitCode": 0}}


def running(*states: Obj, init: tuple[Obj, ...] = ()) -> Obj:
    """A pod whose containers are in these states."""
    return pod(
        "x-1",
        "starting",
        initContainerStatuses=[{"state": state} for state in init],
        containerStatuses=[{"state": state} for state in states],
    )


def told(phase: str, *found: str) -> Obj:
    """A pod with these conditions: type, status, reason, message."""
    keys = ("type", "status", "reason", "message")
    conditions = [dict(zip(keys, one.split(), strict=False)) for one in found]
    return pod("x-1", "starting", phase=phase, conditions=conditions)


@pytest.mark.parametrize(
    ("there", "reason", "message"),
    [
        (None, "Creating", "it is being created"),
        (pod("x-1", "ending"), "Terminating", "Terminating"),
        (pod("x-1", "failed", "ending"), "Terminating", "Terminating"),
        (pod("x-1", "old"), "Updating", "outdated template"),
        (pod("x-1", "failed", reason="Evicted", message="low on disk"), "Evicted", "low on disk"),
        (pod("x-1", "failed"), "Failed", "Failed"),
        (pod("x-1", "succeeded"), "Succeeded", "Succeeded"),
        (pod("x-1", "failed", reason="no space"), "nospace", "no space"),
        (pod("x-1", "failed", reason="?"), "Unknown", "?"),
        (running(WAITING), "ImagePullBackOff", "Back-off pulling"),
        (running({}, WAITING), "ImagePullBackOff", "Back-off pulling"),
        (running({"waiting": {"message": "soon"}}), "Waiting", "soon"),
        (running(KILLED), "OOMKilled", "exit code 137"),
        (running({"terminated": {"exitCode": 1}}), "Error", "exit code 1"),
        (running(COMPLETED), "Pending", "Pending"),
        (running(WAITING, init=(KILLED,)), "OOMKilled", "exit code 137"),
        (running(WAITING, init=(COMPLETED,)), "ImagePullBackOff", "Back-off pulling"),
        (running({"running": {}}), "Pending", "Pending"),
        (pod("x-1", "starting", containerStatuses=[{}]), "Pending", "Pending"),
        (pod("x-1", "starting", conditions=[]), "Pending", "Pending"),
        (pod("x-1") | {"status": {}}, "Pending", "Pending"),
        ({"metadata": pod("x-1")["metadata"]}, "Pending", "Pending"),
        (told("Pending", "Ready False A a", "PodScheduled False Full none"), "Full", "none"),
        (told("Running", "PodScheduled True A a", "Ready False Gate shut"), "Gate", "shut"),
        # A node that is lost sets no reason; Running must not be read as "it runs".
        (told("Running", "Ready False"), "NotReady", "NotReady"),
        (told("Pending", "Ready False"), "Pending", "Pending"),
        (told("Running", "Ready Unknown NodeLost gone"), "NodeLost", "gone"),
    ],
)
def test_ready_uses_the_pods_own_words(there: Obj | None, reason: str, message: str) -> None:
    listed = [*pods("x-0"), *([there] if there else [])]
    found = conditions(milvus(2), listed)
    assert conditions(milvus(2), [*map(mo.slim_pod, listed)]) == found, "the words are kept"
    text = f"1 of 2 pods are ready and up to date; x-1: {message}"
    assert found["Ready"] == ("False", reason, text)
    assert found["Reconciled"][:2] == ("True", "Reconciled")
    assert "Stalled" not in found


@pytest.mark.parametrize(
    "passing", ["x-0 ending", "x-0 starting", "x-0 old", "x-2", "x-3", "x-0 old starting"]
)
def test_a_real_problem_is_shown_before_one_that_will_pass(passing: str) -> None:
    found = conditions(milvus(3), [*pods(passing), running(WAITING)])
    assert found["Ready"][1] == "ImagePullBackOff"


def test_a_refusal_is_reported_in_both_conditions_in_its_own_words() -> None:
    refused = mo.Reason("QuotaExceeded", "pods is forbidden: exceeded quota")
    for there in ("x-0", "x-0, x-1 old"):
        found = conditions(milvus(2), pods(there), x_1=refused)
        assert found["Reconciled"] == ("False", *refused)
        text = f"1 of 2 pods are ready and up to date; x-1: {refused.message}"
        assert found["Ready"] == ("False", "QuotaExceeded", text)


@pytest.mark.parametrize(
    ("reason", "stalled"),
    [(reason, True) for reason in ("Invalid", "NameConflict", "Forbidden", "QuotaExceeded")]
    + [("APIError", False)],
)
def test_stalled_is_present_while_somebody_has_to_act(reason: str, stalled: bool) -> None:
    before = milvus(2)
    found = conditions(before, pods("x-0"), x_1=mo.Reason(reason, "why"))
    said = "pod x-1: why" if reason == "APIError" else "why"
    assert found["Reconciled"] == ("False", reason, said)
    assert found.get("Stalled") == (("True", reason, said) if stalled else None)
    refused = {"x-1": mo.Reason(reason, "why")}
    before["status"] = mo.status_of(before, read(before), pods("x-0"), refused, NOW)
    healed = conditions(before, pods("x-0, x-1"))
    assert healed.keys() == {"Ready", "Reconciled"}, "absent as soon as the problem is resolved"


@pytest.mark.parametrize("reason", ["ClaimTerminating", "NamespaceTerminating"])
def test_what_is_being_deleted_is_waited_for_and_is_no_failure(reason: str) -> None:
    found = conditions(milvus(1), [], x_0=mo.Reason(reason, "wait"))
    assert found["Ready"] == ("False", reason, "0 of 1 pods are ready and up to date; x-0: wait")
    assert found["Reconciled"][:2] == ("True", "Reconciled")
    assert "Stalled" not in found


def test_text_that_is_not_a_mapping_is_reported() -> None:
    found = conditions(milvus(1, milvusSpec="this is milvus spec"), [])
    text = "spec.milvusSpec is not a YAML mapping, so it sets nothing"
    assert found["Reconciled"] == ("True", "SpecIsText", text)
    assert "Stalled" not in found


@pytest.mark.parametrize("order", [("x_0", "x_1"), ("x_1", "x_0")])
def test_of_several_refusals_the_same_one_is_reported_in_any_order(order: tuple[str, ...]) -> None:
    problems = {name: mo.Reason("Forbidden", f"not {name}") for name in order}
    assert conditions(milvus(2), [], **problems)["Reconciled"][2] == "not x_0"


def test_a_long_message_is_cut() -> None:
    found = conditions(milvus(1), [], x_0=mo.Reason("Invalid", "a" * 2000))
    assert found["Reconciled"][2] == "a" * 1024


def test_conditions_of_others_are_kept() -> None:
    others = [{"type": "BackedUp", "status": "True", "by": "them"}, {"type": "Paused"}]
    ours = [{"type": kind, "status": "True"} for kind in ("Stalled", "Ready", "Reconciled")]
    there = milvus(1) | {"status": {"conditions": [others[0], *ours, others[1]]}}
    found = mo.status_of(there, read(there), pods("x-0"), {}, NOW)["conditions"]
    assert [one["type"] for one in found] == ["Ready", "Reconciled", "BackedUp", "Paused"]
    assert found[2:] == others


@pytest.mark.parametrize("strange", ["text", [1], {"conditions": "none"}, {"conditions": [1, []]}])
def test_a_status_of_any_shape_is_replaced(strange: Any) -> None:
    there = milvus(1) | {"status": strange}
    fresh = mo.status_of(milvus(1), read(there), pods("x-0"), {}, NOW)
    assert mo.status_of(there, read(there), pods("x-0"), {}, NOW) == fresh


def test_a_time_that_is_no_text_is_replaced() -> None:
    known = {"type": "Ready", "status": "True", "lastTransitionTime": 3}
    there = milvus(1) | {"status": {"conditions": [known]}}
    status = mo.status_of(there, read(there), pods("x-0"), {}, NOW)
    assert status["conditions"][0]["lastTransitionTime"] == NOW


# Events --------------------------------------------------------------------------------


def test_an_event_is_about_its_milvus() -> None:
    regarding = {"apiVersion": "zilliz.com/v1", "kind": "Milvus", "name": "x", "uid": "uid-of-x"}
    assert mo.new_event(milvus(), "Created", "created pod x-0", False, NOW) == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": "x-", "namespace": "ns"},
        "regarding": regarding | {"namespace": "ns"},
        "type": "Normal",
        "reason": "Created",
        "action": "Reconcile",
        "note": "created pod x-0",
        "eventTime": NOW,
        "reportingController": "zilliz.com/milvus-polling-operator",
        "reportingInstance": socket.gethostname(),
    }
    assert mo.new_event(milvus(), "Invalid", "", True, NOW)["type"] == "Warning"


@pytest.mark.parametrize(
    ("note", "sent"),
    [("a" + "é" * 1000, "a" + "é" * 511), ("lone \ud800", "lone ?"), ("b" * 1024, "b" * 1024)],
)
def test_the_note_of_an_event_has_at_most_1024_bytes(note: str, sent: str) -> None:
    assert mo.new_event(milvus(), "Created", note, False, NOW)["note"] == sent


TEN = "x-0, x-1, x-2, x-3, x-4, x-5, x-6, x-7, x-8, x-9"


@pytest.mark.parametrize(
    ("verb", "count", "reason", "said"),
    [
        ("create", 1, "", "created pod x-0"),
        ("create", 10, "", f"created pods {TEN}"),
        ("create", 11, "", f"created pods {TEN} and 1 more"),
        ("adopt", 1, "why", "adopted pod x-0: why"),
        ("delete", 2, "why", "deleted pods x-0, x-1: why"),
        ("replace", 1, "why", "deleted pod x-0 in order to replace it: why"),
        ("restart", 2, "why", "deleted pods x-0, x-1 in order to replace them: why"),
    ],
)
def test_what_was_done_is_one_sentence(verb: str, count: int, reason: str, said: str) -> None:
    assert mo.sentence(verb, [f"x-{number}" for number in range(count)], reason) == said


# The server's words, and those of users ------------------------------------------------

DENIED = 'pods "x-0" is forbidden: '
USER = 'User "system:serviceaccount:a:b" cannot create resource "pods" in API group ""'
ANONYMOUS = USER.replace("serviceaccount:a:b", "anonymous")
OWNER = "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set"
ROLE = "in namespace ns: add this permission to the operator's role (see deploy.yaml)"
LOGIN = "http://localhost rejects the credentials: log in again, or renew the token"


def outage(code: int, message: str, verb: str = "create", resource: str = "pods") -> str:
    connection = mo.Connection(ApiClient(Configuration("http://localhost")), "ns", None, {})
    error = mo.ApiError(code, message)
    error.resource = resource
    return mo.Cluster(lambda _: connection).outage(error, verb, "ns")


@pytest.mark.parametrize(
    ("code", "message", "reason", "line"),
    [
        (401, "Unauthorized", "APIError", LOGIN),
        (403, f"pods is forbidden: {ANONYMOUS}", "Forbidden", LOGIN),
        (403, DENIED + USER, "Forbidden", f"not allowed to create pods {ROLE}"),
        (403, DENIED + OWNER, "Forbidden", f"not allowed to update milvuses/finalizers {ROLE}"),
        (403, f"{DENIED}exceeded quota: a, requested: pods=1", "QuotaExceeded", ""),
        (403, f'{DENIED}violates PodSecurity "restricted:latest"', "Forbidden", ""),
        (422, 'Pod "x-0" is invalid: spec.x', "Invalid", ""),
        (400, "strict decoding error: unknown field", "Invalid", ""),
        (404, "not found", "APIError", ""),
        (409, "conflict", "APIError", ""),
        (500, "webhook timed out", "APIError", ""),
        (0, "connection refused", "APIError", ""),
    ],
)
def test_what_the_server_says_is_sorted(code: int, message: str, reason: str, line: str) -> None:
    assert mo.ApiError(code, message).why() == mo.Reason(reason, message)
    assert outage(code, message) == line


QUOTA = "exceeded quota: a"


@pytest.mark.parametrize(
    "words", [ANONYMOUS, DENIED + ANONYMOUS, USER, OWNER, QUOTA, DENIED + QUOTA]
)
@pytest.mark.parametrize(
    ("code", "message"),
    [
        (403, DENIED + 'no PriorityClass with name "{}" was found'),
        (403, DENIED + "x: {} is no PriorityClass"),
        (403, 'admission webhook "a.b" denied the request: {}'),
        (422, 'Pod "x-0" is invalid: spec.dnsPolicy: Unsupported value: "{}"'),
        (422, "{}"),
        (422, DENIED + "{}"),
        (400, DENIED + "{}"),
        (500, DENIED + "{}"),
    ],
)
def test_a_users_words_never_pass_for_the_servers(code: int, message: str, words: str) -> None:
    error = mo.ApiError(code, message.format(words))
    assert outage(code, str(error)) == ""
    assert error.why().reason in ("Forbidden", "Invalid", "APIError")


def test_a_list_that_fails_is_an_outage_of_its_own_resource() -> None:
    crd = "does not serve milvuses.zilliz.com: install the CRD with `kubectl apply -f crd.yaml`"
    assert outage(404, "no", "list", "milvuses") == f"http://localhost {crd}"
    assert outage(404, "no", "list") == "cannot list pods in namespace ns: HTTP 404: no"
    assert outage(0, "refused", "list") == "requests to http://localhost fail: refused"


ENDING = "NamespaceTerminating"


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
