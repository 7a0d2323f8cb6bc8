"""A claim for each pod, made before it, kept, and grown."""

import itertools

import milvus_operator as mo
from tests.lib.front import Obj
from tests.lib.kit import Kube, settle
from tests.lib.world import World, at_rest, milvus

CLAIMS = "persistentvolumeclaims"
STORED: Obj = {"storage": {"size": "1Gi", "storageClassName": "fast"}}
UNSCHEDULED: Obj = {"conditions": [{"type": "PodScheduled", "status": "False"}]}


def claims(world: World) -> dict[str, str]:
    return {obj["metadata"]["name"]: obj["metadata"]["uid"] for obj in world.server.all_of(CLAIMS)}


def written(world: World) -> list[str]:
    """The writes to pods and claims, such as `create x-0`."""
    return [f"{one.verb} {one.name}" for one in world.writes() if one.plural in ("pods", CLAIMS)]


def test_a_claim_is_made_before_its_pod_and_kept_when_pod_replica_or_milvus_goes() -> None:
    world = World(milvus("x", replicas=2, **STORED), workers=1)
    world.settle()
    made = [f"create {name}" for name in ("data-x-0", "x-0", "data-x-1", "x-1")]
    assert written(world) == made
    volumes = [pod["spec"]["volumes"][0] for pod in world.server.all_of("pods")]
    assert [one["persistentVolumeClaim"]["claimName"] for one in volumes] == [*claims(world)]
    assert "milvus test/x: created claims data-x-0, data-x-1" in world.log
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
    world = World(milvus("x", replicas=3, **STORED))
    world.server.quota = {CLAIMS: 1}
    world.server.refuse("create", "pods", 500, "not now", times=1)
    world.passes(5)
    assert world.pods() == ["x-0"]
    assert world.reason() == "QuotaExceeded"
    world.remove("pods", "x-0")
    world.passes()
    assert world.pods() == ["x-0"]


def test_a_claim_without_our_label_is_used() -> None:
    """Such as one that was restored from a backup."""
    world = World(milvus("x", **STORED))
    world.server.ask("create", CLAIMS, "data-x-0", {"metadata": {"name": "data-x-0"}})
    world.settle()
    world.server.set_pod("x-0", phase="Pending", **UNSCHEDULED)
    world.live(3)
    assert (world.pods(), world.troubles) == (["x-0"], [])
    assert "delete x-0" not in written(world)
    (claim,) = world.server.all_of(CLAIMS)
    assert not claim["metadata"].get("labels")


def test_a_claim_that_is_being_deleted_is_waited_for() -> None:
    world = at_rest(milvus("x", **STORED))
    before = claims(world)
    world.remove(CLAIMS, "data-x-0")
    world.remove("pods", "x-0")
    world.passes(10)
    assert (world.pods(), written(world)) == ([], [])
    assert (world.troubles, world.reason()) == ([], "Reconciled")
    world.server.finish_deletions()
    world.passes(6)
    assert world.pods() == ["x-0"]
    assert claims(world).keys() == before.keys()
    assert claims(world) != before


def test_an_unscheduled_pod_whose_claim_is_gone_is_replaced_claim_first() -> None:
    world = at_rest(milvus("x", replicas=2, **STORED))
    for name in ("x-0", "x-1"):
        world.remove(CLAIMS, f"data-{name}")
    world.server.finish_deletions()
    world.server.set_pod("x-0", phase="Pending", **UNSCHEDULED)
    world.settle()
    assert written(world) == ["create data-x-0", "delete x-0", "create x-0"]
    assert (world.pods(), [*claims(world)]) == (["x-0", "x-1"], ["data-x-0"])


def test_pods_are_made_while_claims_cannot_be_listed() -> None:
    world = World(milvus("x", **STORED))
    world.server.refuse("list", CLAIMS, 403, "no")
    world.passes(5)
    world.server.set_pod("x-0", phase="Pending", **UNSCHEDULED)
    world.run(60)
    assert "delete x-0" not in written(world), "its claim is not gone"
    world.server.run_pods()
    world.run(60)
    assert (world.pods(), [*claims(world)]) == (["x-0"], ["data-x-0"])
    assert world.reason(kind="Ready") == "Ready"
    (line,) = world.troubles
    assert line.startswith(f"cannot list {CLAIMS} in namespace test: ")


# --- Growth ---
def bind(world: World, *names: str) -> None:
    for name in names:
        world.server.ask("patch", f"{CLAIMS}/status", name, {"status": {"phase": "Bound"}})


def sizes(world: World) -> list[str]:
    requests = (claim["spec"]["resources"]["requests"] for claim in world.server.all_of(CLAIMS))
    return [request["storage"] for request in requests]


def bound(replicas: int = 2) -> World:
    """Pods that run, with claims that are Bound and ask for 1Gi."""
    world = at_rest(milvus("x", replicas=replicas, **STORED))
    bind(world, *claims(world))
    return world


def grow(world: World, size: str = "20Gi") -> None:
    world.change("x", storage=STORED["storage"] | {"size": size})


def test_a_larger_size_is_asked_of_the_claims_once_and_no_pod_is_touched() -> None:
    world = bound()
    before = world.uids()
    grow(world)
    world.settle()
    assert sizes(world) == ["20Gi", "20Gi"]
    patches = [one for one in world.writes() if one.plural == CLAIMS]
    assert sorted(one.name for one in patches) == [*claims(world)]
    assert all(one.body["metadata"].keys() == {"resourceVersion"} for one in patches)
    note = "grew claims data-x-0, data-x-1: spec.storage.size is 20Gi"
    assert f"milvus test/x: {note}" in world.log
    assert f"Grew: {note}" in world.events()
    assert (world.uids(), world.reason(), world.troubles) == (before, "Reconciled", [])
    world.change("x", replicas=3)
    world.settle()
    assert sizes(world) == ["20Gi"] * 3, "new replicas get the new size"


def test_a_claim_that_has_changed_since_it_was_listed_grows_in_a_later_pass() -> None:
    world = bound(1)
    world.server.when(
        "patch", CLAIMS, lambda _: world.patch(CLAIMS, "data-x-0", labels={"a": "b"}), times=1
    )
    grow(world)
    world.settle()
    assert (sizes(world), world.troubles) == (["20Gi"], [])
    assert "milvus test/x: grew claim data-x-0: spec.storage.size is 20Gi" in world.log


def test_a_claim_that_is_not_bound_yet_is_waited_for_without_complaint() -> None:
    world = at_rest(milvus("x", replicas=2, **STORED))
    bind(world, "data-x-1")
    grow(world)
    world.settle()
    assert sizes(world) == ["1Gi", "20Gi"]
    assert (world.reason(), world.troubles) == ("Reconciled", [])
    bind(world, "data-x-0")
    world.settle()
    assert sizes(world) == ["20Gi", "20Gi"]


def test_claims_that_are_larger_ending_surplus_or_without_our_label_are_left_alone() -> None:
    world = bound(5)
    changes: list[Obj] = [
        {"spec": {"resources": {"requests": {"storage": "21Gi"}}}},
        {"metadata": {"labels": {"zilliz.com/milvus": None}}},
        {"spec": {"resources": {"requests": {"storage": "20480Mi"}}}},
    ]
    for ordinal, change in enumerate(changes):
        world.server.ask("patch", CLAIMS, f"data-x-{ordinal}", change)
    world.remove(CLAIMS, "data-x-3")
    world.change("x", replicas=4)
    grow(world)
    world.passes(4)
    assert [name for name in written(world) if "data-" in name] == []
    assert sizes(world) == ["21Gi", "1Gi", "20480Mi", "1Gi", "1Gi"]
    assert (world.reason(), world.troubles) == ("Reconciled", [])


def test_a_class_that_does_not_allow_it_is_told_backs_off_and_stops_nothing_else() -> None:
    words = 'persistentvolumeclaims "data-x-0" is forbidden: the storageclass must support resize'
    world = bound()
    refused = world.server.refuse("patch", CLAIMS, 403, words, name="data-x-0")
    grow(world)
    world.change("x", image="milvus:2")
    for _ in range(60):
        world.live()
    assert (sizes(world), world.images()) == (["1Gi", "20Gi"], ["milvus:2"] * 2)
    assert world.condition("x", "Stalled")["reason"] == world.reason() == "Forbidden"
    assert words in world.message()
    assert world.reason(kind="Ready") == "Ready"
    tries = [one.time for one in world.requests("patch", CLAIMS) if one.name == "data-x-0"]
    waits = [later - earlier for earlier, later in itertools.pairwise(tries)]
    assert waits == [10, 20, 40, 80]
    assert len(world.troubles) == 1
    world.server.rules.remove(refused)
    world.live(70)
    assert (sizes(world), world.reason()) == (["20Gi", "20Gi"], "Reconciled")


def test_without_the_permission_it_says_so_in_one_line_and_goes_on_with_the_pods() -> None:
    """As with the role of an earlier version."""
    words = f'{CLAIMS} "a" is forbidden: User "o" cannot patch resource "{CLAIMS}"'
    world = bound(3)
    world.server.refuse("patch", CLAIMS, 403, words)
    grow(world)
    world.change("x", image="milvus:2", replicas=4)
    world.live(30)
    assert world.images() == ["milvus:2"] * 4
    outages = [line for line in world.troubles if line.startswith("not allowed to patch")]
    assert outages == [
        f"not allowed to patch {CLAIMS} in namespace test: {words} (see the role in deploy.yaml)"
    ]


def test_a_dry_run_says_what_would_grow_and_writes_nothing() -> None:
    world = bound()
    world.operator = world.new_operator(dry_run=True)
    grow(world)
    world.passes(5)
    line = "grew claims data-x-0, data-x-1: spec.storage.size is 20Gi (dry run)"
    assert world.log.count(f"milvus test/x: {line}") == 1
    assert sizes(world) == ["1Gi", "1Gi"]


def test_a_size_that_cannot_be_read_is_told_and_harms_nobody() -> None:
    """The CRD accepts the last one, an older CRD anything."""
    for size in ([1], "lots", "9e99999999999999999999"):
        world = bound(1)
        world.server.objects["milvuses", "test", "x"]["spec"]["storage"]["size"] = size
        world.change("x", image="milvus:2")
        world.passes(3)
        assert world.troubles == [f"milvus test/x: {world.message()}"]
        assert world.reason() == "Invalid"


def test_volumes_grow_on_a_real_api_server_if_their_class_allows_it(
    kube: Kube, operator: mo.Operator
) -> None:
    for name, allowed in (("grows", True), ("stays", False)):
        kind = f"{kube.ns}-{name}"
        kube.create_storage_class(kind, allowVolumeExpansion=allowed)
        kube.create_volume(kind, storageClassName=kind)
        kube.create(name, storage={"size": "1Gi", "storageClassName": kind})
    settle(operator)
    kube.ready("grows-0", "stays-0")  # their claims are Bound
    before = kube.uids()
    for name in ("grows", "stays"):
        kube.change(name, storage={"size": "1025Mi"})
    settle(operator)
    size = ("-o", "jsonpath={.spec.resources.requests.storage}")
    assert kube.kubectl("get", "pvc", "data-grows-0", *size) == "1025Mi"
    assert kube.condition("Reconciled", "grows")["reason"] == "Reconciled"
    assert kube.kubectl("get", "pvc", "data-stays-0", *size) == "1Gi"
    refused = kube.condition("Stalled", "stays")
    assert refused["reason"] == "Forbidden"
    assert "only dynamically provisioned pvc can be resized" in refused["message"]
    assert kube.condition("Ready", "stays")["status"] == "True"
    assert kube.uids() == before
    kube.change("grows", replicas=2)
    settle(operator)
    assert kube.kubectl("get", "pvc", "data-grows-1", *size) == "1025Mi"
