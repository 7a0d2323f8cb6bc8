"""Whose pod it is: ownership is a UID, and nothing of others is touched."""

import pytest

import milvus_operator as mo
from tests.lib.front import Request
from tests.lib.server import merge
from tests.lib.world import World, at_rest, milvus, pod

LABELS = mo.our_label(milvus())
OTHER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "c", "controller": True}


def test_a_pod_of_another_owner_is_left_alone_and_the_other_pods_go_on() -> None:
    others = pod("x-1", labels=LABELS, ownerReferences=[OTHER])
    world = World(milvus(replicas=3), others, interval=10)
    before = world.uid("x-1")
    world.settle()
    assert world.pods() == ["x-0", "x-1", "x-2"]
    assert world.reason(kind="Stalled") == "NameConflict"
    world.forget()
    world.remove("pods", "x-2")
    world.passes()
    assert "x-2" in world.pods(), "while the conflict lasts"
    world.passes(150)
    assert world.times("create", "pods")[-1] == 60
    assert world.uid("x-1") == before
    world.remove("pods", "x-1")
    world.clock.advance(60)
    world.settle()
    assert "x-1" in world.pods()
    assert world.reason() == "Reconciled"


def test_orphans_are_adopted_and_then_treated_as_any_pod() -> None:
    world = at_rest(milvus(replicas=4))
    before = world.uids()
    for name in before:
        world.patch("pods", name, ownerReferences=None)
    world.patch("pods", "x-1", annotations=None)
    world.remove("milvuses", "x")
    world.forget()
    world.passes(2)
    assert world.writes() == [], "without a Milvus, they are nobody's"
    new = world.add(milvus(replicas=3))
    world.settle()
    owners = {mo.controller_of(pod)["uid"] for pod in world.server.all_of("pods")}
    assert owners == {mo.uid_of(new)}
    after = world.uids()
    assert after == {name: before[name] for name in ("x-0", "x-1", "x-2")}
    assert world.reason() == "TemplateUnknown", "nobody knows of what template x-1 is"
    why = "found without a controller, but with the label of this Milvus"
    note = f"adopted pods x-0, x-1, x-2, x-3: {why}"
    assert f"Adopted: {note}" in world.events()


@pytest.mark.parametrize("label", [None, "y"])
def test_a_pod_of_ours_that_lost_its_label_is_told_with_the_cure(label: str | None) -> None:
    world = at_rest(milvus(replicas=3))
    before = world.uids()
    world.patch("pods", "x-1", labels={mo.MILVUS_LABEL: label})
    world.live(5)
    assert world.uids() == before
    assert world.reason() == world.reason(kind="Ready") == "NameConflict"
    cure = "has lost its label, so the operator does not find it: give it the label"
    assert f"pod x-1 of this Milvus {cure} zilliz.com/milvus=x" in world.message()
    world.patch("pods", "x-1", labels={mo.MILVUS_LABEL: "x"})
    world.settle()
    assert world.uids() == before
    assert world.reason() == "Reconciled"


def test_a_roll_waits_for_a_pod_that_lost_its_label() -> None:
    world = at_rest(milvus(replicas=2))
    world.patch("pods", "x-0", labels={mo.MILVUS_LABEL: None})
    world.change("x", image="milvus:2")
    world.live(20)
    assert world.names("delete", "pods") == []


def test_a_policy_that_rewrites_well_known_labels_changes_nothing() -> None:
    world = World(milvus(replicas=3))

    def rewrite(request: Request) -> None:
        names = (mo.MANAGED_BY_LABEL, mo.INSTANCE_LABEL, mo.NAME_LABEL, mo.POD_INDEX_LABEL)
        metadata = {"labels": dict.fromkeys(names, "platform")}
        request.body = merge(request.body, {"metadata": metadata})

    world.server.when("create", "pods", rewrite)
    world.settle()
    world.change("x", image="broken")
    for _ in range(10):
        world.passes()
        world.server.finish_deletions()
    ready = [pod for pod in world.server.all_of("pods") if mo.is_ready(pod)]
    assert len(ready) == 2
    world.change("x", replicas=0)
    world.settle()
    assert world.pods() == []


def test_an_adopted_pod_that_is_gone_is_created_at_once() -> None:
    world = World(milvus())
    world.add(pod("x-0", labels=LABELS))
    world.passes()
    world.remove("pods", "x-0")
    world.forget()
    world.passes()
    assert world.names("create", "pods") == ["x-0"]


# What a policy drops from each new pod, because it does not know it; and what is told.
DROPPED = {
    "annotations": (
        "TemplateUnknown",
        "TemplateUnknown",
        "pod x-0 has no annotation zilliz.com/template-hash",
    ),
    "annotations labels": (
        "NameConflict",
        "NameConflict",
        "pod x-0 of this Milvus has lost its label",
    ),
}


@pytest.mark.parametrize("dropped", DROPPED)
def test_what_removes_the_fingerprint_of_each_pod_restarts_no_database(dropped: str) -> None:
    world = World(milvus(replicas=2))

    def strip(request: Request) -> None:
        for each in dropped.split():
            del request.body["metadata"][each]

    world.server.when("create", "pods", strip)
    world.live(100)
    assert world.names("delete", "pods") == []
    ready, reason, words = DROPPED[dropped]
    assert (world.reason(kind="Ready"), world.reason()) == (ready, reason)
    assert words in world.message()


@pytest.mark.parametrize("strategy", ["RollingUpdate", "OnDelete"])
def test_a_pod_without_a_fingerprint_does_not_count_as_up_to_date(strategy: str) -> None:
    """One that another owner left, for example: after a new image, it still runs the old one."""
    world = at_rest(milvus(replicas=2, updateStrategy={"type": strategy}))
    world.patch("pods", "x-1", annotations=None)
    world.change("x", image="milvus:2")
    world.settle()
    assert world.images()[1] == "milvus:1"
    ready = world.condition("x", "Ready")
    is_rolling = strategy == "RollingUpdate"
    text = "2 of 2 pods are ready, 1 of them outdated; x-1: pod x-1 has no annotation"
    if not is_rolling:
        text = "2 of 2 pods are ready; outdated until somebody deletes them: 2"
    assert ready["message"].startswith(text)
    assert ready["status"] == str(not is_rolling), "nobody waits for outdated pods, either"
    assert world.status("x")["updatedReplicas"] == (1 if is_rolling else 0)
    world.server.set_pod("x-1", ready=False)
    world.passes(3)
    assert world.reason("x", "Ready") != "TemplateUnknown", "what the pod says is more urgent"


def test_that_a_fingerprint_is_gone_is_not_told_as_an_outdated_pod() -> None:
    world = at_rest(milvus(replicas=2, updateStrategy={"type": "OnDelete"}))
    world.patch("pods", "x-1", annotations=None)
    world.settle()
    assert world.reason() == "TemplateUnknown"
    assert not any("outdated" in event for event in world.events())


def test_an_orphan_is_not_adopted_for_a_milvus_that_is_being_deleted() -> None:
    """`kubectl delete --cascade=orphan` takes the owner from the pods of a Milvus that ends, also
    between two lists; the garbage collector would delete what is adopted."""
    world = at_rest(milvus())
    world.patch("milvuses", "x", finalizers=["orphan"])

    def delete(_: object) -> None:
        world.patch("pods", "x-0", ownerReferences=None)
        world.remove("milvuses", "x")

    world.server.when("list", "milvuses", delete, times=1)
    world.passes(3)
    assert world.writes() == []


def test_an_orphan_is_not_adopted_for_a_milvus_that_is_gone_since_it_was_listed() -> None:
    """The garbage collector would delete the pod, and with an emptyDir its data."""
    world = World(milvus())
    orphan = world.add(pod("x-0", labels=LABELS))
    world.server.when("get", "milvuses", lambda _: world.remove("milvuses", "x"), times=1)
    world.passes(3)
    assert world.server.all_of("pods") == [orphan]


def test_an_orphan_that_changes_before_it_is_adopted_is_looked_at_anew() -> None:
    world = World(milvus())
    world.add(pod("x-0", labels=LABELS))

    def change(request: Request) -> None:
        world.patch("pods", request.name, ownerReferences=[OTHER])

    world.server.when("patch", "pods", change, times=1)
    world.passes(3)
    assert world.reason() == "NameConflict"
    (left,) = world.server.all_of("pods")
    assert mo.controller_of(left)["uid"] == "c"


def test_an_adoption_that_something_undoes_is_repeated_ever_more_rarely() -> None:
    world = at_rest(milvus())
    for _ in range(30):
        world.patch("pods", "x-0", ownerReferences=None)
        world.passes()
    assert world.times("patch", "pods") == [10, 20, 40, 60]
