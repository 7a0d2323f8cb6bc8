"""A claim for each pod, made before it, and kept."""

from tests.lib.front import Obj, Request
from tests.lib.world import World, at_rest, metric, milvus

CLAIMS = "persistentvolumeclaims"
STORED: Obj = {"storage": {"size": "1Gi", "storageClassName": "fast"}}


def claims(world: World) -> dict[str, str]:
    return {obj["metadata"]["name"]: obj["metadata"]["uid"] for obj in world.server.all_of(CLAIMS)}


def test_a_claim_is_made_before_its_pod_and_kept_when_pod_replica_or_milvus_goes() -> None:
    world = World(milvus("x", replicas=2, **STORED), workers=1)
    world.settle()
    made = [one.name for one in world.writes() if one.verb == "create" and one.name[-2] == "-"]
    assert made == ["data-x-0", "x-0", "data-x-1", "x-1"]
    volumes = [pod["spec"]["volumes"][0] for pod in world.server.all_of("pods")]
    assert [one["persistentVolumeClaim"]["claimName"] for one in volumes] == [*claims(world)]
    assert "created claim test/data-x-0" in world.log
    world.forget()
    before = claims(world)
    world.server.fail("x-0")
    world.settle()
    world.change("x", replicas=1)
    world.settle()
    world.remove("milvuses", "x")
    world.remove("pods", "x-0")
    world.settle()
    assert world.pods() == []
    world.add(milvus("x", replicas=2, **STORED))
    world.settle()
    assert world.pods() == ["x-0", "x-1"]
    assert claims(world) == before
    assert [one for one in world.writes() if one.plural == CLAIMS] == []


def test_without_a_claim_there_is_no_pod_and_with_one_there_is_whatever_a_quota_refuses() -> None:
    """The API server checks the quota before it checks whether the claim exists."""
    world = World(milvus("x", replicas=3, **STORED), interval=4)
    world.server.quota = {CLAIMS: 1}
    world.server.refuse("create", "pods", 500, "not now", times=1)
    world.passes(3)
    assert world.pods() == ["x-0"]
    assert any(": 1 claim(s) created" in line for line in world.log), "in a pass without a pod"
    assert world.reason() == "QuotaExceeded"
    assert len(world.requests("create", CLAIMS)) == 3, "they back off"
    world.remove("pods", "x-0")
    world.passes()
    assert world.pods() == ["x-0"]


def test_a_claim_that_another_copy_makes_meanwhile_is_not_taken_for_a_pod() -> None:
    world = World(milvus("x", **STORED))

    def create(request: Request) -> None:
        world.server.ask("create", CLAIMS, request.name, request.body)

    world.server.when("create", CLAIMS, create, times=1)
    world.passes(2)
    assert world.pods() == ["x-0"]
    assert world.requests("get", "pods") == []
    assert world.troubles == []


def test_a_claim_that_is_being_deleted_is_waited_for() -> None:
    world = at_rest(milvus("x", **STORED))
    before = claims(world)
    world.remove(CLAIMS, "data-x-0")
    world.remove("pods", "x-0")
    world.passes(10)
    assert world.pods() == []
    assert (world.troubles, world.reason()) == ([], "Reconciled")
    assert world.reason(kind="Ready") == "ClaimTerminating"
    assert "claim data-x-0 is being deleted" in world.message(kind="Ready")
    assert metric("milvuses", state="failed") == 0
    world.server.finish_deletions()
    world.passes(6)
    assert world.pods() == ["x-0"]
    assert claims(world).keys() == before.keys()
    assert claims(world) != before
