"""A claim for each pod, made after it, kept, and grown."""

import pytest

import milvus_operator as mo
from tests.lib.front import Obj, Request, http_response
from tests.lib.world import World, at_rest, milvus, pod

CLAIMS = "persistentvolumeclaims"
STORED: Obj = {"storage": {"size": "1Gi"}}
CRASHES = {"state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}}


def claims(world: World) -> dict[str, str]:
    """The UIDs of the claims, by name."""
    found = world.server.all_of(CLAIMS)
    return {mo.name_of(claim): mo.uid_of(claim) for claim in found}


def written(world: World) -> str:
    """The writes to pods and claims, such as `create x-0, delete x-1`."""
    writes = [one for one in world.writes() if one.plural in ("pods", CLAIMS)]
    return ", ".join(f"{one.verb} {one.name}" for one in writes)


def test_a_claim_is_made_after_its_pod_and_kept_when_pod_replica_or_milvus_goes() -> None:
    stored = milvus(replicas=2, **STORED)
    world = World(stored)
    world.settle()
    assert written(world) == "create x-0, create data-x-0, create x-1, create data-x-1"
    assert "milvus test/x: created claims data-x-0, data-x-1" in world.log
    before = claims(world)
    world.server.fail("x-0")
    world.settle()
    world.change("x", replicas=1)
    world.settle()
    world.remove("milvuses", "x")
    world.remove("pods", "x-0")
    world.settle()
    world.forget()
    world.add(stored)
    world.settle()
    assert written(world) == "create x-0, create x-1"
    assert claims(world) == before


def test_a_pod_that_is_refused_costs_no_volume() -> None:
    """By a quota of one pod, for its template, or because somebody else has its name."""
    words = 'pods "x" is forbidden: exceeded quota: a'
    world = World(milvus(replicas=200, **STORED), milvus("y", **STORED), milvus("z", **STORED))
    world.add(pod("z-0"))
    world.server.reject("create", "pods", 422, "unknown field", name="y-0")
    for number in range(1, 200):
        world.server.reject("create", "pods", 403, words, name=f"x-{number}")
    world.run(60)
    assert [*claims(world)] == ["data-x-0"]


def test_a_pod_without_a_claim_gets_one_whatever_became_of_it() -> None:
    """It was refused, it was deleted, or the operator was killed between the two."""
    words = 'persistentvolumeclaims "data-x-0" is forbidden: exceeded quota: a'
    world = World(milvus(replicas=2, **STORED))
    rule = world.server.reject("create", CLAIMS, 403, words, name="data-x-0")
    world.live(5)
    assert world.pods() == ["x-0", "x-1"]
    assert [*claims(world)] == ["data-x-1"]
    assert world.reason() == "QuotaExceeded"
    rule.times = 0
    world.clock.advance(300)
    world.settle()
    assert [*claims(world)] == ["data-x-0", "data-x-1"]
    assert world.reason() == "Reconciled"


def test_a_claim_without_our_label_is_used_and_left_as_it_is() -> None:
    """Such as one that was restored from a backup; it is not listed."""
    world = at_rest(milvus(**STORED))
    before = claims(world)
    world.patch(CLAIMS, "data-x-0", labels={mo.MILVUS_LABEL: None})
    world.forget()
    world.passes(200)
    assert len(world.requests("create", CLAIMS)) < 20, "ever more rarely"
    assert claims(world) == before
    assert world.warnings == []
    assert world.reason() == "Reconciled"


def hold(world: World, name: str) -> None:
    """Let a claim be deleted that something still uses."""
    world.patch(CLAIMS, name, finalizers=["kubernetes.io/pvc-protection"])
    world.remove(CLAIMS, name)


def test_a_claim_that_is_being_deleted_is_waited_for_and_named_and_takes_no_data_with_it() -> None:
    world = at_rest(milvus(replicas=3, **STORED))
    before = world.uids()
    for name in ("data-x-0", "data-x-1", "data-x-2"):
        hold(world, name)
    world.server.fail("x-0")
    world.live(3)
    assert world.reason() == "ClaimTerminating"
    assert world.message() == (
        "claim data-x-0 is Terminating, and its pod is not running: if nobody needs that data, delete the "
        "pod; the next pod starts empty, and deletes the vectors if they are in a bucket"
    )
    assert world.warnings == [f"milvus test/x: {world.message()}"]
    ready = world.condition("x", "Ready")
    assert ready["reason"] == "ClaimTerminating"
    assert ready["message"].endswith(f"x-0: {world.message()}")
    world.server.set_pod("x-1", ready=False)
    world.change("x", image="milvus:2")
    world.live(10)
    assert world.uids() == before
    for name in ("x-0", "x-1"):
        world.server.set_pod(name, ready=True)
    world.live(3)
    rescue = (
        "claim data-x-0 is Terminating, and only its pod still reaches the data: back it up, or set "
        "the volume's reclaim policy to Retain, before the pod ends"
    )
    assert world.message() == rescue
    ready = world.condition("x", "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "ClaimTerminating")
    assert ready["message"].endswith(f"x-0: {rescue}")
    world.server.set_pod("x-0", phase="Running", containerStatuses=[CRASHES])
    world.live(3)
    assert world.reason(kind="Ready") == "CrashLoopBackOff"
    assert world.condition("x", "Ready")["message"].endswith("x-0: back-off"), "its own words"
    world.remove("pods", "x-0")
    world.live(3)
    assert "x-0" not in world.pods()
    world.patch(CLAIMS, "data-x-0", finalizers=None)
    world.live(3)
    assert "x-0" in world.pods()
    world.change("x", replicas=1)
    world.settle()
    assert world.reason() == "Reconciled", "of surplus pods, nothing is said"


def test_a_pod_whose_claim_has_lost_its_volume_keeps_the_last_access_to_the_data() -> None:
    world = at_rest(milvus(replicas=2, **STORED))
    set_phase(world, "data-x-1", "Lost")
    world.change("x", image="milvus:2")
    world.live(20)
    assert world.names("delete", "pods") == ["x-0"], "it has a claim of its own"
    assert world.reason() == "ClaimLost"
    assert "claim data-x-1 is Lost, and only its pod still reaches the data" in world.message()
    assert world.reason(kind="Ready") == "ClaimLost"
    for image, status in (
        ("milvus:3", {"containerStatuses": [CRASHES]}),
        ("milvus:4", {"phase": "Failed"}),
    ):
        world.server.set_pod("x-1", **status)
        world.change("x", image=image)
        world.live(20)
        assert world.images() == [image, "milvus:1"], "what can't be replaced is not waited for"
    world.server.set_pod("x-1", containerStatuses=[CRASHES])
    world.change("x", replicas=1)
    world.passes(2)
    assert "x-1" in world.pods()
    assert world.reason() == "Reconciled", "a surplus pod may go"
    world.change("x", replicas=2)
    world.server.finish_deletions()
    world.passes(20)
    assert world.pods() == ["x-0"], "it would write into nothing"
    assert world.reason() == world.reason(kind="Ready") == "ClaimLost"
    advice = "if nobody needs that data, delete the claim; the next pod starts empty, "
    advice += "and deletes the vectors if they are in a bucket"
    assert world.message() == f"claim data-x-1 is Lost, and its pod is not running: {advice}"
    world.remove(CLAIMS, "data-x-1")
    world.settle()
    assert world.reason() == "Reconciled"
    assert world.images() == ["milvus:4"] * 2


@pytest.mark.parametrize("unlabelled", [False, True])
def test_a_claim_that_is_gone_under_a_pod_that_has_run_is_never_made_anew(unlabelled: bool) -> None:
    """Somebody has removed the finalizer of a claim that was being deleted. Only the pod still has
    the old volume: a new claim of that name would be another one."""
    world = at_rest(milvus(replicas=2, **STORED))
    before = world.uids()
    if unlabelled:  # it is not listed, and only found by its name
        world.patch(CLAIMS, "data-x-1", labels={mo.MILVUS_LABEL: None})
        world.live(3)
    hold(world, "data-x-1")
    if unlabelled:
        world.clock.advance(60)
        world.live(3)
        assert world.reason() == "ClaimTerminating"
    world.patch(CLAIMS, "data-x-1", finalizers=None)
    world.clock.advance(60)
    world.live(40)
    assert [*claims(world)] == ["data-x-0"]
    assert world.reason() == "ClaimLost"
    assert world.message().startswith(
        "claim data-x-1 is gone, and only its pod still reaches the data: back it up"
    )
    assert len(world.requests("get", CLAIMS)) < 20, "ever more rarely"
    world.change("x", image="milvus:2")
    world.live(30)
    assert world.uid("x-1") == before["x-1"], "nothing deletes it but its owner"
    assert world.uid("x-0") != before["x-0"]
    ready = world.condition("x", "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "ClaimLost")
    world.server.fail("x-1")
    world.live(30)
    assert world.uid("x-1") == before["x-1"]
    assert world.reason(kind="Ready") == "ClaimLost"
    assert "its pod is not running: if nobody needs that data, delete the pod" in world.message()
    world.remove("pods", "x-1")
    world.settle()
    assert [*claims(world)] == ["data-x-0", "data-x-1"]
    assert world.reason(kind="Ready") == "Ready"
    assert world.reason() == "Reconciled"


@pytest.mark.parametrize("what", ["image", "end"])
def test_the_claim_is_looked_at_once_more_before_its_pod_is_deleted(what: str) -> None:
    """It began to end after it had been listed."""
    world = at_rest(milvus(**STORED))
    before = world.uids()

    def begin_to_end(_: object) -> None:
        hold(world, "data-x-0")

    world.server.when("list", "milvuses", begin_to_end, times=1)
    if what == "image":
        world.change("x", image="milvus:2")
    else:
        world.server.fail("x-0")
    world.live(20)
    assert world.uids() == before
    assert world.names("delete", "pods") == []
    assert world.reason() == "ClaimTerminating"


@pytest.mark.parametrize("body", [b"{}", b"[]", b'{"kind": "Status", "status": "Success"}'])
def test_a_claim_that_a_proxy_answers_for_is_not_taken_for_gone(body: bytes) -> None:
    world = at_rest(milvus(**STORED))
    world.server.when("get", "persistentvolumeclaims", lambda _: http_response(200, body))
    world.change("x", image="milvus:2")
    world.live(20)
    assert world.names("delete", "pods") == []
    assert world.reason() == "APIError"
    assert "the response did not come from a Kubernetes API server" in world.message()


NEVER = {"state": {"waiting": {"reason": "ImagePullBackOff"}}}
FAILED = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": {}}}
PENDING: list[Obj] = [
    {"initContainerStatuses": [{"state": {"running": {}}}]},
    {"initContainerStatuses": [{"state": {"terminated": {"exitCode": 0}}}]},
    {"initContainerStatuses": [FAILED]},
    {"containerStatuses": [{"state": {"running": {}}}, NEVER]},
]


@pytest.mark.parametrize("status", PENDING)
def test_a_pending_pod_of_which_any_container_has_begun_has_data_already(status: Obj) -> None:
    """Such as a restore; or Milvus, beside a sidecar that can't be pulled."""
    world = World(milvus(**STORED))
    world.passes(2)
    world.server.set_pod("x-0", phase="Pending", **status)
    world.remove(CLAIMS, "data-x-0")
    world.live(5)
    assert [*claims(world)] == []
    assert world.reason() == "ClaimLost"


def test_the_claim_of_a_pod_that_never_ran_holds_nothing_to_back_up() -> None:
    world = World(milvus(**STORED))
    world.passes(2)
    hold(world, "data-x-0")
    world.passes(2)
    assert world.reason() == "ClaimTerminating"
    assert "its pod is not running: if nobody needs that data, delete the pod" in world.message()


def test_a_lost_claim_without_our_label_keeps_its_pod_too() -> None:
    world = at_rest(milvus(**STORED))
    before = world.uids()
    world.patch(CLAIMS, "data-x-0", labels={mo.MILVUS_LABEL: None})
    set_phase(world, "data-x-0", "Lost")
    world.change("x", image="milvus:2")
    world.live(20)
    assert world.uids() == before
    assert world.reason() == "ClaimLost"


def test_a_claim_that_a_new_pod_waits_for_is_named() -> None:
    world = at_rest(milvus(**STORED))
    hold(world, "data-x-0")
    world.remove("pods", "x-0")
    world.live(3)
    assert world.pods() == []
    waits = "claim data-x-0 is being deleted; a new pod waits until it is gone"
    assert world.condition("x", "Ready")["message"].endswith(f"; x-0: {waits}")
    world.live(12)
    assert world.reason() == "Reconciled"
    world.patch(CLAIMS, "data-x-0", finalizers=None)
    world.passes()
    assert world.pods() == ["x-0"], "without a delay"
    world.settle()
    assert world.reason() == "Reconciled"


def test_a_claim_that_ends_with_its_pod_is_no_problem() -> None:
    world = at_rest(milvus(**STORED))
    hold(world, "data-x-0")
    world.server.ask("delete", "pods", "x-0", {})
    world.passes(5)
    assert world.reason(kind="Ready") == "Terminating"
    assert world.reason() == "Reconciled"


def test_a_claim_that_its_driver_cannot_grow_is_told_until_it_can() -> None:
    world = bound(2)
    grow(world)
    world.settle()
    said = "requested volume size is larger than the allowed limit"
    status = {
        "allocatedResourceStatuses": {"storage": "ControllerResizeInfeasible"},
        "conditions": [{"type": "ControllerResizeError", "status": "True", "message": said}],
    }
    world.server.ask("patch", f"{CLAIMS}/status", "data-x-1", {"status": status})
    world.settle()
    assert world.reason() == "ControllerResizeInfeasible"
    assert world.message() == f"claim data-x-1 cannot grow: {said}"
    assert world.reason(kind="Ready") == "Ready", "no pod is touched"
    status |= {"conditions": []}
    world.server.ask("patch", f"{CLAIMS}/status", "data-x-1", {"status": status})
    world.settle()
    assert world.message() == "claim data-x-1 cannot grow: ControllerResizeInfeasible"
    status |= {"allocatedResourceStatuses": {"storage": "NodeResizePending"}}
    world.server.ask("patch", f"{CLAIMS}/status", "data-x-1", {"status": status})
    world.settle()
    assert world.reason() == "Reconciled"


def test_claims_stay_when_their_pods_go() -> None:
    world = at_rest(milvus(replicas=3, **STORED))
    world.change("x", replicas=1)
    world.settle()
    assert world.pods() == ["x-0"]
    assert len(claims(world)) == 3


def test_a_milvus_without_storage_waits_for_no_claim() -> None:
    """Of an earlier Milvus of its name, for example."""
    world = at_rest(milvus(**STORED))
    hold(world, "data-x-0")
    world.remove("milvuses", "x")
    world.remove("pods", "x-0")
    world.add(milvus("x"))
    world.settle()
    assert world.reason(kind="Ready") == "Ready"


# --- Growth ---
def set_phase(world: World, name: str, phase: str) -> None:
    status = {"status": {"phase": phase}}
    world.server.ask("patch", f"{CLAIMS}/status", name, status)


def sizes(world: World) -> str:
    """What the claims ask for."""
    specs = [claim["spec"] for claim in world.server.all_of(CLAIMS)]
    return ", ".join(spec["resources"]["requests"]["storage"] for spec in specs)


def bound(replicas: int) -> World:
    """Pods that run, with claims that are Bound and ask for 1Gi."""
    world = at_rest(milvus(replicas=replicas, **STORED))
    for name in claims(world):
        set_phase(world, name, "Bound")
    return world


def grow(world: World) -> None:
    world.change("x", storage={"size": "20Gi"})


def test_claims_that_change_grow_in_a_later_pass_and_those_without_our_label_never() -> None:
    world = bound(3)
    set_phase(world, "data-x-0", "Pending")
    unlabelled = {mo.MILVUS_LABEL: None}
    world.patch(CLAIMS, "data-x-1", labels=unlabelled)

    def touch(request: Request) -> None:
        world.patch(CLAIMS, request.name, labels={"a": "b"})

    world.server.when("patch", CLAIMS, touch, times=1)
    grow(world)
    world.passes(5)
    assert world.names("patch", CLAIMS) == ["data-x-2", "data-x-2"]
    set_phase(world, "data-x-0", "Bound")
    world.passes(5)
    assert sizes(world) == "20Gi, 1Gi, 20Gi"
    assert world.warnings == []


def test_a_claim_with_the_label_of_another_milvus_is_not_grown() -> None:
    world = bound(1)
    world.patch(CLAIMS, "data-x-0", labels={mo.MILVUS_LABEL: "y"})
    grow(world)
    world.passes(5)
    assert sizes(world) == "1Gi"
    assert world.pods() == ["x-0"]


def test_a_claim_with_a_very_long_spec_grows_as_any_other() -> None:
    """One that a user made for a volume that is chosen by its labels."""
    world = bound(1)
    selector = {"matchLabels": {f"a{number}": "b" * 60 for number in range(3000)}}
    world.server.ask("patch", CLAIMS, "data-x-0", {"spec": {"selector": selector}})
    grow(world)
    world.passes(3)
    assert sizes(world) == "20Gi"


def test_a_class_that_does_not_allow_it_is_told_backs_off_and_stops_nothing_else() -> None:
    words = 'persistentvolumeclaims "data-x-0" is forbidden: the storageclass must support resize'
    world = bound(3)
    rule = world.server.reject("patch", CLAIMS, 403, words, name="data-x-0")
    grow(world)
    world.change("x", image="milvus:2")
    world.live(60)
    assert sizes(world) == "1Gi, 20Gi, 20Gi"
    note = "expanding claims data-x-1, data-x-2: spec.storage.size is 20Gi"
    assert f"Expanding: {note}" in world.events()
    assert world.images() == ["milvus:2"] * 3
    assert world.reason(kind="Stalled") == "Forbidden"
    assert world.warnings == [f"milvus test/x: {words}"]
    assert rule.hits <= 11, "ever more rarely"
    rule.times = 0
    world.change("x", replicas=4)
    world.settle()
    assert sizes(world) == "20Gi, 20Gi, 20Gi, 20Gi"
    assert world.reason() == "Reconciled"
