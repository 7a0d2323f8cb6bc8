"""The core: pure functions over dicts. The tables list the pods that exist and the actions that are expected."""

from __future__ import annotations

import socket
from typing import Any

import pytest

import milvus_operator as mo

Obj = dict[str, Any]
NOW = "2026-01-01T00:00:00Z"


def milvus(replicas: Any = 3, name: str = "x", image: Any = "milvus:1", **extra: Any) -> Obj:
    metadata = {
        "name": name,
        "namespace": "ns",
        "uid": f"uid-of-{name}",
        "generation": 1,
        "resourceVersion": "1",
    }
    return {"metadata": metadata, "spec": {"image": image, "replicas": replicas} | extra}


def pod(
    name: str, *state: str, owner: str | None = "uid-of-x", image: str = "milvus:1", **status: Any
) -> Obj:
    """A pod of x; `state` is any of ready, ending, failed, unlabelled."""
    start, _, ordinal = name.rpartition("-")
    labels = mo.pod_labels(milvus(name=start), int(ordinal)) if ordinal.isdecimal() else {}
    metadata: Obj = {
        "name": name,
        "namespace": "ns",
        "uid": f"uid-of-{name}",
        "resourceVersion": "1",
    }
    metadata["labels"] = {} if "unlabelled" in state else labels
    metadata["annotations"] = {mo.TEMPLATE_HASH: mo.template_hash(milvus(image=image))}
    if owner:
        metadata["ownerReferences"] = [
            {
                "apiVersion": mo.API_VERSION,
                "kind": "Milvus",
                "name": start,
                "uid": owner,
                "controller": True,
            }
        ]
    if "ending" in state:
        metadata["deletionTimestamp"] = NOW
    status["phase"] = (
        "Failed" if "failed" in state else "Running" if "ready" in state else "Pending"
    )
    status.setdefault(
        "conditions", [{"type": "Ready", "status": "True" if "ready" in state else "False"}]
    )
    return {"metadata": metadata, "status": status}


def actions(milvus: Obj, *pods: Obj, **limits: Any) -> list[str]:
    """The decisions, as verbs and names of pods."""
    held = {*limits.pop("held", ()), *mo.strangers(milvus, pods)}
    decided = mo.decide(milvus, pods, mo.Limits(held=held, **limits))
    return [f"{action.verb} {mo.name_of(action.pod)}" for action in decided]


def said(milvus: Obj, pods: list[Obj], **problems: mo.Words) -> dict[str, tuple[str, str, str]]:
    """Status, reason and message of each condition; `problems` is by verb, or by pod with _ for -."""
    found = mo.status_of(
        milvus, pods, {key.replace("_", "-"): problems[key] for key in problems}, NOW
    )["conditions"]
    return {
        condition["type"]: (condition["status"], condition["reason"], condition["message"])
        for condition in found
    }


def deep(levels: int) -> Any:
    inner: Any = {}
    for _ in range(levels):
        inner = {"a": inner}
    return inner


def deep_lists(levels: int) -> Any:
    inner: Any = []
    for _ in range(levels):
        inner = [inner]
    return inner


READY = [pod(f"x-{i}", "ready") for i in range(3)]
OLD = [pod(f"x-{i}", "ready", image="milvus:0") for i in range(3)]
STRANGER = pod("x-1", "ready", owner="uid-of-somebody")
STRANGER["metadata"]["ownerReferences"][0] |= {
    "apiVersion": "apps/v1",
    "kind": "ReplicaSet",
    "name": "web",
}
LEAVING = pod("x-1", "ready", owner="uid-of-an-earlier-x")
ORPHAN = pod("x-1", "ready", owner=None)
BARE = pod("x-2", "ready")
del BARE["metadata"]["annotations"]
ORPHAN_WITHOUT_INDEX = pod("x-1", "ready", owner=None)
del ORPHAN_WITHOUT_INDEX["metadata"]["labels"][mo.POD_INDEX_LABEL]
ANOTHER_NAME = pod("y-1", "ready", owner=None)
ANOTHER_NAME["metadata"]["labels"] = ORPHAN["metadata"]["labels"]
LOOSE = pod("x-1", "ready")
LOOSE["metadata"]["ownerReferences"][0]["controller"] = False


def unscheduled(name: str, because: str) -> Obj:
    """A pod that the scheduler cannot place."""
    message = f"0/3 nodes are available: persistentvolumeclaim {because}."
    return pod(name, conditions=[{"type": "PodScheduled", "status": "False", "message": message}])


@pytest.mark.parametrize(
    ("what", "replicas", "pods", "expected"),
    [
        ("nothing there", 3, [], ["create x-0", "create x-1", "create x-2"]),
        ("all there", 3, READY, []),
        ("none wanted", 0, [], []),
        ("one missing", 3, [READY[0], READY[2]], ["create x-1"]),
        (
            "surplus pods are deleted from the highest ordinal",
            1,
            READY,
            ["delete x-2", "delete x-1"],
        ),
        (
            "surplus pods that have failed are deleted, too",
            0,
            [pod("x-0", "failed")],
            ["delete x-0"],
        ),
        ("a surplus pod that is ending needs nothing", 2, [*READY[:2], pod("x-2", "ending")], []),
        ("an ending pod is waited for", 2, [READY[0], pod("x-1", "ending")], []),
        ("a failed pod is deleted first", 1, [pod("x-0", "failed")], ["delete x-0"]),
        (
            "a succeeded pod is deleted, too",
            1,
            [pod("x-0") | {"status": {"phase": "Succeeded"}}],
            ["delete x-0"],
        ),
        ("a failed pod that is ending is waited for", 1, [pod("x-0", "failed", "ending")], []),
        ("an ending pod needs no labels", 1, [pod("x-0", "ending", "unlabelled")], []),
        (
            "deletes come before creates",
            2,
            [pod("x-1", "failed"), pod("x-2", "ready")],
            ["delete x-2", "delete x-1", "create x-0"],
        ),
        ("a stranger is left alone", 3, [READY[0], STRANGER], ["create x-2"]),
        ("a stranger with an unwanted ordinal is left alone", 1, [READY[0], STRANGER], []),
        ("a pod of an earlier x is waited for", 3, [READY[0], LEAVING], ["create x-2"]),
        ("an orphan is adopted", 3, [READY[0], ORPHAN, READY[2]], ["adopt x-1"]),
        (
            "an orphan without its index is adopted",
            3,
            [READY[0], ORPHAN_WITHOUT_INDEX, READY[2]],
            ["adopt x-1"],
        ),
        (
            "an orphan with our labels and another name is left alone",
            1,
            [READY[0], ANOTHER_NAME],
            [],
        ),
        (
            "a surplus orphan is adopted, and deleted after that",
            1,
            [READY[0], ORPHAN],
            ["adopt x-1"],
        ),
        (
            "an owner that is not the controller does not count",
            3,
            [READY[0], LOOSE, READY[2]],
            ["adopt x-1"],
        ),
        ("an ending orphan is waited for", 2, [READY[0], pod("x-1", "ending", owner=None)], []),
        (
            "a pod without labels gets them back",
            1,
            [pod("x-0", "ready", "unlabelled")],
            ["label x-0"],
        ),
        (
            "a pod whose claim is gone gets it back",
            1,
            [unscheduled("x-0", '"data-x-0" not found')],
            ["claim x-0"],
        ),
        (
            "and if its claim is ending",
            1,
            [unscheduled("x-0", '"data-x-0" is being deleted')],
            ["claim x-0"],
        ),
        (
            "a claim of another name is the user's own",
            1,
            [unscheduled("x-0", '"my-data-x-0" not found')],
            [],
        ),
        (
            "a claim that waits for its volume exists",
            1,
            [unscheduled("x-0", '"data-x-0" bound to no volume')],
            [],
        ),
        (
            "a pod without our owner or labels is a stranger",
            1,
            [pod("x-0", "ready", "unlabelled", owner=None)],
            [],
        ),
        (
            "names that are not made from ours are not ours",
            0,
            [pod("x-y-0"), pod("x-01"), pod("x-y")],
            [],
        ),
    ],
)
def test_the_expected_actions(
    what: str, replicas: int, pods: list[Obj], expected: list[str]
) -> None:
    assert actions(milvus(replicas), *pods) == expected, what
    assert sorted(actions(milvus(replicas), *reversed(pods))) == sorted(expected), (
        "the order of the list must not matter"
    )


@pytest.mark.parametrize(
    ("what", "pods", "expected"),
    [
        ("one Ready pod at a time, from the highest ordinal", OLD, ["delete x-2"]),
        ("the next one when the last one is Ready", [*OLD[:2], READY[2]], ["delete x-1"]),
        ("not while the last one is starting", [*OLD[:2], pod("x-2")], []),
        ("not while the last one is ending", [*OLD[:2], pod("x-2", "ready", "ending", image="milvus:0")], []),
        ("not while one is missing", OLD[:2], ["create x-2"]),
        ("broken ones go first, all at once", [OLD[0], pod("x-1", image="milvus:0"), pod("x-2", image="milvus:0")],
         ["delete x-2", "delete x-1"]),
        ("a broken new one blocks the roll, and a Ready old one stays", [*OLD[:2], pod("x-2", image="milvus:1")], []),
        ("rolling back past broken ones", [READY[0], READY[1], pod("x-2", image="milvus:broken")], ["delete x-2"]),
        ("a failed old one is deleted at once", [*OLD[:2], pod("x-2", "failed", image="milvus:0")], ["delete x-2"]),
        ("no Ready one together with surplus ones", [*OLD, pod("x-3", "ready")], ["delete x-3"]),
        ("broken ones together with surplus ones",
         [*OLD[:2], pod("x-2", image="milvus:0"), pod("x-3", "ready")], ["delete x-3", "delete x-2"]),
        ("broken ones are deleted before missing ones are created",
         [pod("x-0", image="milvus:0"), OLD[2]], ["delete x-0", "create x-1"]),
        ("a broken one without labels is deleted without them",
         [*OLD[:2], pod("x-2", "unlabelled", image="milvus:0")], ["delete x-2"]),
        ("a pod without a fingerprint is of an earlier template", [*READY[:2], BARE], ["delete x-2"]),
        ("the end of a roll", READY, []),
    ],
)  # fmt: skip
def test_the_steps_of_a_roll(what: str, pods: list[Obj], expected: list[str]) -> None:
    assert actions(milvus(3), *pods, replace=False) == expected, what


def test_a_stranger_does_not_block_a_roll() -> None:
    assert actions(milvus(3), OLD[0], STRANGER, OLD[2]) == ["delete x-2"]
    assert actions(milvus(3), OLD[0], READY[2], held={"x-1"}) == ["delete x-0"]


ANOTHER = pod("x-1", "ready", owner="uid-of-y")
ANOTHER["metadata"]["ownerReferences"][0]["name"] = "y"


@pytest.mark.parametrize(
    ("what", "replicas", "there", "whose"),
    [
        ("another owner's", 3, STRANGER, "belongs to ReplicaSet web"),
        ("another Milvus's", 3, ANOTHER, "belongs to Milvus y"),
        (
            "one without an owner",
            3,
            pod("x-1", "unlabelled", owner=None),
            "belongs to somebody else",
        ),
        (
            "one without an owner and labels",
            3,
            {"metadata": {"name": "x-1"}},
            "belongs to somebody else",
        ),
        ("one with an unwanted ordinal", 1, STRANGER, None),
        ("one of an earlier x, which will be gone soon", 3, LEAVING, None),
        ("one that is ending", 3, pod("x-1", "ending", "unlabelled", owner=None), None),
        ("an orphan, which is adopted", 3, ORPHAN, None),
    ],
)
def test_a_stranger_under_a_wanted_name_is_a_conflict(
    what: str, replicas: int, there: Obj, whose: str | None
) -> None:
    advice = "delete that pod (this is noticed within 5 minutes) or use another name for the Milvus"
    told = (
        {"x-1": mo.Words("NameConflict", f"pod x-1 {whose} and is left alone: {advice}")}
        if whose
        else {}
    )
    assert mo.strangers(milvus(replicas), [there]) == told, what


def test_only_the_delete_of_a_ready_pod_disrupts() -> None:
    assert mo.Action("delete", READY[0], "").disrupts
    assert not mo.Action("delete", pod("x-0"), "").disrupts
    assert not mo.Action("vet", READY[0], "").disrupts


def test_no_pod_is_deleted_for_a_template_that_was_not_vetted() -> None:
    assert actions(milvus(3), *OLD, vetted=False) == ["vet x-2"]
    assert actions(milvus(2), pod("x-0", "failed", image="milvus:0"), vetted=False) == [
        "vet x-0",
        "create x-1",
    ]
    assert actions(milvus(3), *READY, vetted=False) == []
    assert actions(milvus(1), pod("x-0", "failed"), vetted=False) == ["delete x-0"], (
        "it has the current template"
    )


@pytest.mark.parametrize(
    ("what", "pods", "skip", "expected"),
    [
        ("a missing pod", [], {"x-1"}, ["create x-0", "create x-2"]),
        ("a failed pod", [*READY[:2], pod("x-2", "failed")], {"x-2"}, []),
        ("a failed pod of an earlier template", [*READY[:2], pod("x-2", "failed", image="milvus:0")], {"x-2"}, []),
        ("a pod without labels", [*READY[:2], pod("x-2", "ready", "unlabelled")], {"x-2"}, []),
        ("an orphan", [READY[0], ORPHAN], {"x-1"}, ["create x-2"]),
        ("a roll goes to the next", OLD, {"x-2"}, ["delete x-1"]),
        ("the other broken ones are deleted", [OLD[0], pod("x-1", image="milvus:0"), pod("x-2", image="milvus:0")],
         {"x-2"}, ["delete x-1"]),
        ("no Ready one is deleted instead of a broken one", [*OLD[:2], pod("x-2", image="milvus:0")], {"x-2"}, []),
        ("a surplus one does not hold up a roll", [*OLD, pod("x-3", "ready")], {"x-3"}, ["delete x-2"]),
    ],
)  # fmt: skip
def test_a_pod_that_must_be_left_alone_does_not_delay_others(
    what: str, pods: list[Obj], skip: set[str], expected: list[str]
) -> None:
    assert actions(milvus(3), *pods, skip=skip) == expected, what


@pytest.mark.parametrize(
    ("what", "pods", "may", "expected"),
    [
        ("no step of a roll", OLD, set(), []),
        ("the one step that is allowed", OLD, {"uid-of-x-2"}, ["delete x-2"]),
        ("the one that was announced, instead of the next", OLD, {"uid-of-x-1"}, ["delete x-1"]),
        ("no Ready surplus pod", [*READY, pod("x-3"), pod("x-4", "ready")], set(), ["delete x-3"]),
        ("one Ready surplus pod", [*READY, pod("x-3", "ready"), pod("x-4", "ready")],
         {"uid-of-x-3"}, ["delete x-3"]),
        ("a broken pod in any case", [*OLD[:2], pod("x-2", image="milvus:0")], set(), ["delete x-2"]),
        ("a failed pod in any case", [*READY[:2], pod("x-2", "failed")], set(), ["delete x-2"]),
        ("a missing pod is created in any case", READY[:2], set(), ["create x-2"]),
    ],
)  # fmt: skip
def test_a_ready_pod_that_may_not_be_disrupted_is_not_deleted(
    what: str, pods: list[Obj], may: set[str], expected: list[str]
) -> None:
    assert actions(milvus(3), *pods, disruptable=may) == expected, what


@pytest.mark.parametrize(
    ("what", "announced", "newer", "expected"),
    [
        ("all, if none was announced", "", True, {"uid-of-x-0", "uid-of-x-1"}),
        ("all, if the announced one is gone", "uid-of-x-9", True, {"uid-of-x-0", "uid-of-x-1"}),
        ("all, if the announced one is ending", "uid-of-x-2", True, {"uid-of-x-0", "uid-of-x-1"}),
        ("only the announced one while it exists", "uid-of-x-0", True, {"uid-of-x-0"}),
        ("none from a list that is older than the Milvus", "", False, set()),
        ("none from an old list without the announced one", "uid-of-x-9", False, set()),
        (
            "none from an old list, which may hide more than the announced one",
            "uid-of-x-0",
            False,
            set(),
        ),
    ],
)
def test_which_pods_may_be_disrupted(
    what: str, announced: str, newer: bool, expected: set[str]
) -> None:
    assert mo.disruptable([*OLD[:2], pod("x-2", "ending")], announced, newer) == expected, what


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        ([], ["missing"]),
        ([READY[0], READY[1]], ["surplus: 1 wanted"]),
        ([pod("x-0", "failed")], ["Failed"]),
        ([pod("x-0", "failed", reason="Evicted")], ["Failed: Evicted"]),
        ([OLD[0]], ["earlier template"]),
        ([pod("x-0", image="milvus:0")], ["earlier template, not Ready"]),
        ([pod("x-0", "ready", owner=None)], ["orphan with our labels"]),
        ([pod("x-0", "ready", "unlabelled")], ["lost its labels"]),
    ],
)
def test_each_action_has_its_reason(pods: list[Obj], expected: list[str]) -> None:
    assert [action.reason for action in mo.decide(milvus(1), pods)] == expected


def test_text_that_is_not_a_mapping_is_reported() -> None:
    conditions = said(milvus(1, milvusSpec="this is milvus spec"), READY[:1])
    status, reason, message = conditions["Reconciled"]
    assert (status, reason) == ("True", "SpecIsText")
    assert message == (
        "spec.milvusSpec is not a YAML mapping: "
        "it is kept in the pods' annotation zilliz.com/milvus-spec and changes no settings"
    )
    assert "Stalled" not in conditions


def test_a_failed_pod_waits_for_the_back_off() -> None:
    assert actions(milvus(1), pod("x-0", "failed"), replace=False) == []
    assert actions(milvus(1), pod("x-0", "failed", image="milvus:0"), replace=False) == [
        "delete x-0"
    ]


def test_the_fingerprint_covers_the_users_fields_and_no_others() -> None:
    assert mo.template_hash(milvus()) == "b6a521d9532c84ad"  # a new version must not restart pods
    assert mo.template_hash(milvus(replicas=9)) == mo.template_hash(milvus())
    assert mo.template_hash(milvus(milvusSpec=None)) == mo.template_hash(milvus())
    assert mo.template_hash(milvus(image="milvus:2")) != mo.template_hash(milvus())
    assert mo.template_hash(milvus(milvusSpec="a: b")) != mo.template_hash(milvus())
    assert mo.template_hash(milvus(pod={"spec": {}})) != mo.template_hash(milvus())
    assert mo.template_hash(milvus(storage={"size": "1Gi"})) == mo.template_hash(milvus())
    there, back = (
        {"metadata": {}, "spec": {"a": 1, "b": 2}},
        {"spec": {"b": 2, "a": 1}, "metadata": {}},
    )
    assert mo.template_hash(milvus(pod=there)) == mo.template_hash(milvus(pod=back)), (
        "keys in any order"
    )


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (milvus(image=None), "spec.image must be the name of an image"),
        (milvus(image=""), "spec.image must be the name of an image"),
        (milvus(image=3.14), "spec.image must be a string"),
        (milvus(replicas=-1), "spec.replicas must be a whole number from 0 to 1000"),
        (milvus(replicas=2**31), "spec.replicas must be a whole number from 0 to 1000"),
        (milvus(replicas=True), "spec.replicas must be a whole number from 0 to 1000"),
        (milvus(replicas="3"), "spec.replicas must be a whole number from 0 to 1000"),
        (milvus(milvusSpec={"a": 1}), "spec.milvusSpec must be a string"),
        (milvus(milvusSpec=["a"]), "spec.milvusSpec must be a string"),
        (milvus(milvusSpec="a: [b"), "spec.milvusSpec, line 1: not valid YAML"),
        (
            milvus(milvusSpec="a: 1\n\0: 2"),
            "spec.milvusSpec, line 2: a character that YAML does not allow",
        ),
        (
            milvus(milvusSpec="a: [{b: c}]"),
            "spec.milvusSpec, line 1: a list may hold only scalars, not mappings or lists",
        ),
        (milvus(pod="text"), "spec.pod must be a mapping"),
        (milvus(pod=deep(101)), "spec.pod is nested more than 100 levels deep"),
        (milvus(pod={"spec": deep_lists(100)}), "spec.pod is nested more than 100 levels deep"),
        (milvus(pod=deep(100_000)), "spec.pod is nested more than 100 levels deep"),
        (milvus(storage=5), "spec.storage must be a mapping"),
        (
            milvus(name="a.b"),
            "the name must be a DNS label of at most 52 characters: pod names are made from it",
        ),
        (
            milvus(name="a" * 53),
            "the name must be a DNS label of at most 52 characters: pod names are made from it",
        ),
        (milvus() | {"spec": "text"}, "spec.image must be the name of an image"),
        ({"metadata": milvus()["metadata"]}, "spec.image must be the name of an image"),
    ],
)
def test_a_spec_that_cannot_be_served_says_why(broken: Obj, message: str) -> None:
    """And no pod is created or replaced."""
    for decision in (mo.decide, mo.strangers):
        with pytest.raises(mo.Invalid) as error:
            decision(broken, READY)
        assert str(error.value) == message
    no = ("False", "Invalid", message)
    assert said(broken, READY) == {
        "Ready": no,
        "Reconciled": no,
        "Stalled": ("True", "Invalid", message),
    }


@pytest.mark.parametrize(
    ("what", "served", "pods"),
    [
        ("no replicas", {"metadata": milvus()["metadata"], "spec": {"image": "milvus:1"}}, 1),
        ("the most replicas", milvus(1000), 1000),
        ("the longest name", milvus(1, name="a" * 52), 1),
        ("the deepest pod", milvus(1, pod=deep(100)), 1),
        ("a pod with lists", milvus(1, pod={"spec": deep_lists(99)}), 1),
    ],
)
def test_a_spec_at_its_limits_is_served(what: str, served: Obj, pods: int) -> None:
    assert [action.verb for action in mo.decide(served, [])] == ["create"] * pods, what


def test_the_status_of_an_invalid_milvus_still_lists_its_pods() -> None:
    status = mo.status_of(milvus(image=None), READY, {}, NOW)
    assert (status["replicas"], status["readyReplicas"], status["pods"]) == (
        3,
        3,
        ["x-0", "x-1", "x-2"],
    )


def test_the_status_of_a_served_milvus() -> None:
    conditions = [{"type": "Ready", "status": "True"}, {"type": "Reconciled", "status": "False"}]
    before = milvus(2) | {
        "status": {"conditions": [one | {"lastTransitionTime": "then"} for one in conditions]}
    }
    assert mo.status_of(before, [READY[1], READY[0]], {}, NOW) == {
        "observedGeneration": 1,
        "replicas": 2,
        "readyReplicas": 2,
        "updatedReplicas": 2,
        "pods": ["x-0", "x-1"],
        "selector": "app.kubernetes.io/instance=x,app.kubernetes.io/managed-by=milvus-operator,"
        "app.kubernetes.io/name=milvus",
        "conditions": [
            {"type": "Ready", "status": "True", "observedGeneration": 1, "lastTransitionTime": "then",
             "reason": "Ready", "message": "2 of 2 pods are ready and up to date"},
            {"type": "Reconciled", "status": "True", "observedGeneration": 1, "lastTransitionTime": NOW,
             "reason": "Reconciled", "message": "the pods match the spec or are being brought in line with it"},
        ],
    }  # fmt: skip


def waiting(reason: str, message: str = "") -> Obj:
    return pod(
        "x-1", containerStatuses=[{"state": {"waiting": {"reason": reason, "message": message}}}]
    )


def starting(init: Obj, reason: str) -> Obj:
    return pod(
        "x-1",
        initContainerStatuses=[{"state": init}],
        containerStatuses=[{"state": {"waiting": {"reason": reason}}}],
    )


@pytest.mark.parametrize(
    ("there", "reason", "message"),
    [
        (None, "Creating", "x-1: Creating"),
        (pod("x-1", "ending"), "Terminating", "x-1: Terminating"),
        (pod("x-1", "ready", image="milvus:0"), "Updating", "x-1: made from an earlier template"),
        (pod("x-1", "failed", reason="Evicted", message="low on disk"), "Evicted", "x-1: low on disk"),
        (pod("x-1", "failed"), "Failed", "x-1: Failed"),
        (waiting("ImagePullBackOff", "Back-off pulling"), "ImagePullBackOff", "x-1: Back-off pulling"),
        (waiting("CrashLoopBackOff"), "CrashLoopBackOff", "x-1: CrashLoopBackOff"),
        (pod("x-1", containerStatuses=[{"state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}]),
         "OOMKilled", "x-1: exit code 137"),
        (pod("x-1", conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                                 "message": "0/3 nodes are available"}]),
         "Unschedulable", "x-1: 0/3 nodes are available"),
        (pod("x-1", conditions=[]), "Pending", "x-1: Pending"),
        (pod("x-1"), "Pending", "x-1: Pending"),
        (pod("x-1") | {"status": {}}, "Pending", "x-1: Pending"),
        ({"metadata": pod("x-1")["metadata"]}, "Pending", "x-1: Pending"),
        (pod("x-1", containerStatuses=[{}]), "Pending", "x-1: Pending"),
        (pod("x-1", containerStatuses=[{"state": {"waiting": {"message": "soon"}}}]), "Waiting", "x-1: soon"),
        (pod("x-1", containerStatuses=[{"state": {"terminated": {"exitCode": 1}}}]), "Error", "x-1: exit code 1"),
        (pod("x-1", conditions=[{"type": "PodScheduled", "status": "True", "reason": "no matter"},
                                {"type": "Ready", "status": "False", "reason": "ReadinessGatesNotReady",
                                 "message": "a gate is closed"}]),
         "ReadinessGatesNotReady", "x-1: a gate is closed"),
        (pod("x-1", "failed", reason="no space"), "nospace", "x-1: no space"),
        (pod("x-1", "failed", reason="?"), "Unknown", "x-1: ?"),
        (starting({"waiting": {"reason": "ErrImagePull", "message": "no such image"}}, "PodInitializing"),
         "ErrImagePull", "x-1: no such image"),
        (starting({"terminated": {"reason": "Completed", "exitCode": 0}}, "CrashLoopBackOff"),
         "CrashLoopBackOff", "x-1: CrashLoopBackOff"),
    ],
)  # fmt: skip
def test_ready_uses_the_pods_own_words(there: Obj | None, reason: str, message: str) -> None:
    pods = [READY[0], *([there] if there else [])]
    assert said(milvus(2), pods)["Ready"] == (
        "False",
        reason,
        f"1 of 2 pods are ready and up to date; {message}",
    )


def test_a_real_problem_is_shown_before_one_that_will_pass() -> None:
    pods = [pod("x-0", "ending"), waiting("ImagePullBackOff")]
    assert said(milvus(3), pods)["Ready"][1] == "ImagePullBackOff"


@pytest.mark.parametrize("key", ["create", "x_1"])
def test_a_refusal_is_reported_in_both_conditions(key: str) -> None:
    conditions = said(
        milvus(2),
        [READY[0]],
        **{key: mo.Words("QuotaExceeded", "pods is forbidden: exceeded quota")},
    )
    assert conditions["Reconciled"] == (
        "False",
        "QuotaExceeded",
        "pods is forbidden: exceeded quota",
    )
    assert conditions["Ready"][:2] == ("False", "QuotaExceeded")
    assert conditions["Ready"][2].endswith("x-1: QuotaExceeded"), (
        "two copies may have different messages"
    )


@pytest.mark.parametrize("key", ["vet", "x_2"])
def test_a_refused_template_is_not_reported_as_updating(key: str) -> None:
    conditions = said(
        milvus(3), OLD, **{key: mo.Words("Invalid", "cpu: must be less than the limit")}
    )
    message = "0 of 3 pods are ready and up to date; x-2: Invalid"
    assert conditions["Ready"] == (
        "False",
        "Invalid",
        message.replace("x-2", "x-0" if key == "vet" else "x-2"),
    )
    assert conditions["Reconciled"] == ("False", "Invalid", "cpu: must be less than the limit")


@pytest.mark.parametrize(
    ("reason", "stalled"),
    [
        ("Invalid", True),
        ("NameConflict", True),
        ("Forbidden", True),
        ("QuotaExceeded", True),
        ("APIError", False),
    ],
)
def test_stalled_is_present_while_somebody_has_to_act(reason: str, stalled: bool) -> None:
    conditions = said(milvus(2), [READY[0]], x_1=mo.Words(reason, "why"))
    assert conditions["Reconciled"] == ("False", reason, "why")
    assert conditions.get("Stalled") == (("True", reason, "why") if stalled else None)
    before = milvus(2) | {
        "status": mo.status_of(milvus(2), [READY[0]], {"x-1": mo.Words(reason, "why")}, NOW)
    }
    assert said(before, READY[:2]).keys() == {"Ready", "Reconciled"}, (
        "absent as soon as the problem is resolved"
    )


def test_a_claim_that_is_ending_is_waited_for_and_is_not_a_refusal() -> None:
    conditions = said(
        milvus(1), [], x_0=mo.Words("ClaimTerminating", "claim data-x-0 is being deleted")
    )
    assert conditions["Ready"][:2] == ("False", "ClaimTerminating")
    assert conditions["Ready"][2].endswith("x-0: claim data-x-0 is being deleted")
    assert conditions["Reconciled"][:2] == ("True", "Reconciled")
    assert "Stalled" not in conditions


@pytest.mark.parametrize(
    ("before", "reason", "generation", "expected"),
    [
        ("QuotaExceeded", "QuotaExceeded", 1, "used: 3"),
        ("Forbidden", "Forbidden", 1, "used: 3"),
        ("APIError", "APIError", 1, "used: 3"),
        ("QuotaExceeded", "QuotaExceeded", 2, "used: 4"),
        ("QuotaExceeded", "Forbidden", 1, "used: 4"),
        ("Invalid", "Invalid", 1, "used: 4"),
        ("NameConflict", "NameConflict", 1, "used: 4"),
    ],
)
def test_the_message_of_a_refusal_stays_while_its_reason_does(
    before: str, reason: str, generation: int, expected: str
) -> None:
    """Messages vary, and two copies must not overwrite each other's. The number of Ready pods is always current."""
    status = mo.status_of(milvus(2), [], {"x-0": mo.Words(before, "used: 3")}, NOW)
    now = milvus(2) | {"status": status}
    now["metadata"]["generation"] = generation
    conditions = mo.status_of(now, [READY[1]], {"x-0": mo.Words(reason, "used: 4")}, NOW)[
        "conditions"
    ]
    assert conditions[0]["message"] == f"1 of 2 pods are ready and up to date; x-0: {reason}"
    assert conditions[1]["message"] == expected


def test_a_long_message_is_cut() -> None:
    assert said(milvus(1), [], x_0=mo.Words("APIError", "a" * 2000))["Reconciled"][2] == "a" * 1024


@pytest.mark.parametrize("order", [("x-0", "x-1"), ("x-1", "x-0")])
def test_of_several_refusals_the_same_one_is_reported_in_any_order(order: tuple[str, ...]) -> None:
    problems = {name: mo.Words("Forbidden", f"not {name}") for name in order}
    assert mo.status_of(milvus(2), [], problems, NOW)["conditions"][1]["message"] == "not x-0"


def test_status_counts_pods_that_exist_and_are_not_ending() -> None:
    status = mo.status_of(
        milvus(3), [READY[0], pod("x-1", "failed", "ready"), pod("x-2", "ending")], {}, NOW
    )
    assert (status["replicas"], status["readyReplicas"], status["pods"]) == (2, 1, ["x-0", "x-1"])


@pytest.mark.parametrize(
    "strange",
    ["text", [1], {"conditions": "none"}, {"conditions": [1, {"type": 3}, {"type": {}}]},
     {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Ready", "lastTransitionTime": 3}]}],
)  # fmt: skip
def test_a_status_of_any_shape_is_replaced(strange: Any) -> None:
    there = milvus(1) | {"status": strange}
    assert mo.status_of(there, READY[:1], {}, NOW)["readyReplicas"] == 1
    assert mo.announced_of(there) == ""


def test_what_was_announced_is_in_the_status() -> None:
    assert mo.announced_of(milvus() | {"status": {"disruptedPod": "uid then"}}) == "uid then"
    assert mo.announced_of(milvus()) == ""


def event(names: list[str], message: str = "missing", warning: bool = False) -> Obj:
    return mo.new_event(milvus(), "Created", message, warning, names, NOW)


def test_an_event_is_about_its_milvus() -> None:
    assert event(["x-0"]) == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": "x-", "namespace": "ns"},
        "regarding": {
            "apiVersion": "zilliz.com/v1", "kind": "Milvus", "name": "x", "uid": "uid-of-x", "namespace": "ns"
        },
        "type": "Normal",
        "reason": "Created",
        "action": "Reconcile",
        "note": "x-0: missing",
        "eventTime": NOW,
        "reportingController": "zilliz.com/milvus-operator",
        "reportingInstance": socket.gethostname(),
    }  # fmt: skip
    assert event([], warning=True)["type"] == "Warning"


@pytest.mark.parametrize(
    ("pods", "message", "note"),
    [
        (0, "no longer Invalid", "no longer Invalid"),
        (2, "missing", "x-0, x-1: missing"),
        (10, "missing", "x-0, x-1, x-2, x-3, x-4, x-5, x-6, x-7, x-8, x-9: missing"),
        (11, "missing", "x-0, x-1, x-2, x-3, x-4, x-5, x-6, x-7, x-8, x-9 and 1 more: missing"),
        (0, "a" + "é" * 1000, "a" + "é" * 511),
        (0, "a lone \ud800", "a lone ?"),
    ],
)
def test_the_note_of_an_event_names_ten_pods_and_has_1024_bytes(
    pods: int, message: str, note: str
) -> None:
    assert event([f"x-{number}" for number in range(pods)], message)["note"] == note


@pytest.mark.platform
def test_json_is_cut_where_it_is_nested_too_deeply() -> None:
    deep = (
        b'{"items":[{"a":'
        + b'{"b":[' * 5000
        + b"1"
        + b"]}" * 5000
        + b',"c":"]}\\"{"},{"d":[1,{"e":null}]}]}'
    )
    first, second = mo.parse(mo.shallow(deep))["items"]
    assert (first["c"], second) == (']}"{', {"d": [1, {"e": None}]})
    assert mo.parse(deep)["items"][1] == second
