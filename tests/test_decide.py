"""What is to be done: each row is a situation, and the actions in their order."""

from typing import Any

import pytest

import milvus_operator as mo
from tests.server import Obj
from tests.world import claim, milvus, observed, pod, pods

STORAGE = {"storage": {"size": "2Gi"}}


def decided(replicas: int, there: str, claims: list[Obj] | None = None, **spec: Any) -> str:
    """The actions, such as `create 0, replace 2`."""
    seen = observed(milvus(replicas=replicas, **spec), pods(there), claims)
    return ", ".join(f"{action.verb} {action.ordinal}" for action in mo.decide(seen))


COMPLETE = [
    (2, "", "create 0, create 1"),
    (2, "x-0, x-1", ""),
    (3, "x-0, x-2", "create 1"),
    (0, "", ""),
    (1, "x-0, x-1, x-2", "delete 1, delete 2"),
    (1, "x-0, x-1 ending", ""),
    (1, "x-0 failed", "delete 0"),
    (1, "x-0 succeeded", "delete 0"),
    (2, "x-0 ending", "create 1"),
    (3, "x-0 failed, x-3", "delete 0, delete 3, create 1, create 2"),
    # Names that only look like ours.
    (1, "x-0, x-00 strange, x-1a, x--1, y-0, xy-0", ""),
]
OWNERSHIP = [
    (1, "x-0 orphan", "adopt 0"),
    (0, "x-0 orphan", "adopt 0"),
    (1, "x-0 orphan ending", ""),
    (1, "x-0 orphan unlabelled", "create 0"),  # which fails, and that is told
    (2, "x-0 strange", "create 0, create 1"),
    (0, "x-0 strange, x-1 earlier, x-2 unlabelled", ""),
    (1, "x-0 strange failed", "create 0"),
    (1, "x-0 old strange", "create 0"),
]
ROLL = [
    (3, "x-0 old, x-1 old, x-2 old", "replace 2"),
    (3, "x-0 old, x-1 old, x-2", "replace 1"),
    (3, "x-0 old, x-1 old", "create 2"),
    (3, "x-0 old, x-1 old, x-2 starting", ""),
    (3, "x-0 old, x-1 old, x-2 ending", ""),
    (3, "x-0 old, x-1 old, x-2 young", ""),  # of minReadySeconds
    (3, "x-0 old, x-1 old young, x-2 old young", "replace 2"),
    (3, "x-0 old, x-1 old starting, x-2", "replace 1"),
    (3, "x-0 old, x-1 old starting, x-2 old starting", "replace 1, replace 2"),
    (2, "x-0 old, x-1 old unready", "replace 1"),
    (2, "x-0 old, x-1 old silent", ""),
    (2, "x-0 old, x-1 old failed", "delete 1"),
    (1, "x-0 bare", ""),
    (1, "x-0 old, x-1 old", "delete 1, replace 0"),
]


@pytest.mark.parametrize(("replicas", "there", "actions"), COMPLETE + OWNERSHIP + ROLL)
def test_the_actions_for_the_pods_that_are_there(replicas: int, there: str, actions: str) -> None:
    assert decided(replicas, there) == actions


def test_with_on_delete_outdated_pods_stay() -> None:
    strategy = {"type": "OnDelete"}
    assert decided(2, "x-0 old, x-1 old starting", updateStrategy=strategy) == ""


def test_min_ready_seconds_can_be_chosen() -> None:
    strategy = {"minReadySeconds": 0}
    assert decided(2, "x-0 old, x-1 young", updateStrategy=strategy) == "replace 0"


def test_a_pod_that_may_still_become_ready_is_not_broken_for_five_minutes() -> None:
    old = pod("x-0", "old", "unready")
    assert mo.is_broken(old)
    old["status"]["conditions"][0]["lastTransitionTime"] = mo.timestamp()
    assert not mo.is_broken(old)


def test_a_pod_whose_container_crashes_is_broken_at_once() -> None:
    state = {"waiting": {"reason": "CrashLoopBackOff"}}
    condition = {"type": "Ready", "status": "False", "lastTransitionTime": mo.timestamp()}
    statuses = [{"ready": False, "state": state}]
    assert mo.is_broken(pod("x-0", conditions=[condition], containerStatuses=statuses))


# --- Claims ---

BOUND = claim("data-x-0", size="2Gi")
CLAIMS = [
    ("x-0", [BOUND], ""),
    ("x-0", [claim("data-x-0")], "grow 0"),
    ("x-0", [claim("data-x-0", size="2048Mi")], ""),
    ("x-0", [claim("data-x-0", size="3Gi")], ""),
    ("x-0", [claim("data-x-0", phase="Pending")], ""),
    ("x-0", [claim("data-x-0", "unlabelled")], ""),
    ("x-0", [BOUND, claim("data-x-1")], ""),
    ("x-0 starting", [], "claim 0"),
    ("x-0 ending", [], ""),
    ("", [], "create 0"),
    ("", [BOUND], "create 0"),
    # A pod is not made for a claim that ends, and one that is there is not given up.
    ("", [claim("data-x-0", "ending")], ""),
    ("", [claim("data-x-0", phase="Lost")], ""),
    ("x-0 failed", [claim("data-x-0", "ending")], ""),
    ("x-0 old", [claim("data-x-0", "ending")], ""),
    ("x-0 old", [claim("data-x-0", phase="Lost")], ""),
    ("x-0 old starting", [claim("data-x-0", phase="Lost")], ""),
    ("x-0 old", [], ""),
    ("x-0 failed", [], ""),
    ("x-0, x-1", [BOUND, claim("data-x-1", "ending")], "delete 1"),
]


@pytest.mark.parametrize(("there", "claims", "actions"), CLAIMS)
def test_the_actions_for_the_claims_that_are_there(
    there: str, claims: list[Obj], actions: str
) -> None:
    assert decided(1, there, claims, **STORAGE) == actions


def test_without_storage_claims_are_nobody_s_concern() -> None:
    assert decided(1, "x-0 old", [claim("data-x-0", "ending")]) == "replace 0"


def test_a_missing_service_is_made() -> None:
    seen = mo.Observed(milvus(), mo.spec_of(milvus()), {0: pod("x-0")}, {}, has_service=False)
    assert [action.verb for action in mo.decide(seen)] == ["expose"]
