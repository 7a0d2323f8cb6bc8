"""Whose pod it is: ownership is a UID, and nothing of others is touched."""

import itertools

import milvus_operator as mo
from tests.lib.front import Request
from tests.lib.world import World, at_rest, milvus, pod

LABELS = mo.selector_of(milvus("x"))


def touched(world: World, name: str) -> list[Request]:
    """The writes to a pod that were carried out."""
    writes = [one for one in world.writes() if one.plural == "pods" and one.name == name]
    return [one for one in writes if one.code < 300 and not one.dry_run]


# --- Pods of others ---
def test_a_stranger_with_our_name_is_left_alone_and_the_others_go_on() -> None:
    """Also while the operator may not see who it is."""
    world = World(milvus("x", replicas=3), milvus("y"), interval=10)
    world.add(pod("x-1"))
    words = 'pods "x-1" is forbidden: User "u" cannot get resource "pods" in API group ""'
    world.server.refuse("get", "pods", 403, words, times=2)
    world.passes(3)
    assert world.pods() == ["x-0", "x-1", "x-2", "y-0"]
    assert world.reason() == "Forbidden"
    assert any("not allowed to get pods in namespace test" in line for line in world.troubles)
    world.settle()
    assert touched(world, "x-1") == []
    assert world.reason() == world.reason(kind="Stalled") == "NameConflict"
    world.remove("pods", "x-2")
    world.passes()
    assert "x-2" in world.pods(), "while the conflict lasts"
    world.passes(60)
    tries = [one.time for one in world.requests("create", "pods") if one.name == "x-1"]
    gaps = [after - before for before, after in itertools.pairwise(tries)]
    assert gaps == sorted(gaps)
    assert max(gaps) == 300
    world.remove("pods", "x-1")
    world.clock.advance(300)
    world.settle()
    assert touched(world, "x-1") != []
    assert world.reason() == "Reconciled"


# --- Orphans ---
def test_orphans_are_adopted_and_then_treated_as_any_pod() -> None:
    world = at_rest(milvus("x", replicas=4))
    before = world.uids()
    for name in before:
        world.patch("pods", name, ownerReferences=None)
    world.patch("pods", "x-1", annotations={mo.TEMPLATE_HASH: "old"})
    world.remove("milvuses", "x")
    world.forget()
    world.passes(2)
    assert world.writes() == [], "without a Milvus, they are nobody's"
    new = world.add(milvus("x", replicas=3))
    world.settle()
    same = {name for name, uid in world.uids().items() if uid == before[name]}
    assert (world.pods(), same) == (["x-0", "x-1", "x-2"], {"x-0", "x-2"})
    owners = {mo.owner_uid(pod) for pod in world.server.all_of("pods")}
    assert owners == {new["metadata"]["uid"]}
    (line,) = [line for line in world.log if "x: adopted pod" in line]
    note = line.removeprefix("milvus test/x: ")
    assert note.startswith("adopted pods x-0, x-1, x-2, x-3: ")
    assert f"Adopted: {note}" in world.events()


def test_an_orphan_is_not_adopted_for_a_milvus_that_is_being_deleted() -> None:
    """`kubectl delete --cascade=orphan` takes the owner from the pods of a Milvus that ends, also
    between two lists; the garbage collector would delete what is adopted."""
    world = at_rest(milvus("x"))
    world.patch("milvuses", "x", finalizers=["orphan"])

    def delete(request: Request) -> None:
        world.patch("pods", "x-0", ownerReferences=None)
        world.remove("milvuses", "x")

    world.server.when("list", "milvuses", delete, times=1)
    world.passes(3)
    assert touched(world, "x-0") == []
    assert world.troubles == []


def test_an_orphan_that_changes_before_it_is_adopted_is_looked_at_anew() -> None:
    world = World(milvus("x"))
    world.add(pod("x-0", labels=LABELS))
    other = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "c", "controller": True}
    change = {"ownerReferences": [other]}
    world.server.when("patch", "pods", lambda _: world.patch("pods", "x-0", **change), times=1)
    world.passes(3)
    assert touched(world, "x-0") == []
    assert world.reason() == "NameConflict"


# --- Labels ---
def test_a_pod_of_ours_that_lost_its_labels_is_a_conflict_that_says_what_to_restore() -> None:
    world = at_rest(milvus("x", replicas=2))
    before = world.uids()
    world.patch("pods", "x-0", labels={mo.MANAGED_BY_LABEL: "somebody"})
    world.settle()
    assert world.uids() == before
    assert world.reason() == "NameConflict"
    assert ",".join(f"{key}={value}" for key, value in sorted(LABELS.items())) in world.message()
    world.patch("pods", "x-0", labels=LABELS)
    world.settle()
    assert world.uids() == before
    assert world.reason() == "Reconciled"
