"""What the status says."""

from typing import Any

import pytest

import milvus_operator as mo
from tests.server import Obj
from tests.world import claim, milvus, observed, pod, pods

WAITING = {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]}
CRASHED = {
    "containerStatuses": [
        {
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
            "lastState": {"terminated": {"reason": "OOMKilled"}},
        }
    ]
}
UNSCHEDULABLE = {
    "conditions": [
        {"type": "Ready", "status": "False"},
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1"},
    ]
}
INIT = {
    "initContainerStatuses": [
        {"state": {"terminated": {"reason": "Completed"}}},
        {"state": {"terminated": {"reason": "Error"}}},
    ]
}


def status_of(
    there: list[Obj], problems: mo.Problems | None = None, why_invalid: str = "", **spec: Any
) -> Obj:
    claims = [claim("data-x-1", "ending")]
    return mo.status_of(observed(milvus(**spec), there, claims), why_invalid, problems or {})


def said(status: Obj, kind: str) -> str:
    found = mo.condition_of({"status": status}, kind)
    return f"{found['status']} {found['reason']}: {found['message']}" if found else ""


READY = [
    ("x-0, x-1", "True Ready: 2 of 2 pods are ready"),
    ("x-0", "False Creating: 1 of 2 pods are ready; x-1: it does not exist yet"),
    ("x-0 starting, x-1", "False Pending: 1 of 2 pods are ready; x-0: Pending"),
    ("x-0, x-1 ending", "False Terminating: 1 of 2 pods are ready; x-1: Terminating"),
    ("x-0 failed, x-1", "False Evicted: 1 of 2 pods are ready; x-0: Evicted"),
    ("x-0 old, x-1", "False Updating: 2 of 2 pods are ready, 1 outdated; x-0: its template has"),
    ("x-0 old, x-1 starting", "False Pending: 1 of 2 pods are ready, 1 outdated; x-1: Pending"),
    ("x-0, x-1, x-2", "True Ready: 2 of 2 pods are ready"),
    ("x-0, x-1 strange", "False Creating: 1 of 2 pods are ready; x-1: it does not exist yet"),
]


@pytest.mark.parametrize(("there", "text"), READY)
def test_ready_names_the_first_pod_that_is_not(there: str, text: str) -> None:
    assert said(status_of(pods(there), replicas=2), "Ready").startswith(text)


PODS_WORDS = [
    (WAITING, "ImagePullBackOff: 0 of 1 pods are ready; x-0: ImagePullBackOff"),
    (CRASHED, "CrashLoopBackOff: 0 of 1 pods are ready; x-0: back-off 10s (last exit: OOMK"),
    (UNSCHEDULABLE, "Unschedulable: 0 of 1 pods are ready; x-0: 0/1"),
    (INIT, "Error: 0 of 1 pods are ready; x-0: Error"),
]


@pytest.mark.parametrize(("fields", "text"), PODS_WORDS)
def test_ready_speaks_in_the_words_of_the_pod(fields: Obj, text: str) -> None:
    there = pod("x-0", "starting", **fields)
    assert said(status_of([there]), "Ready").startswith(f"False {text}")


def test_with_on_delete_outdated_pods_are_ready_and_counted() -> None:
    status = status_of(pods("x-0 old"), updateStrategy={"type": "OnDelete"})
    assert said(status, "Ready") == "True Ready: 1 of 1 pods are ready, 1 outdated"
    assert status["updatedReplicas"] == 0


def test_numbers_and_names() -> None:
    status = status_of(pods("x-0, x-1 old, x-2 starting, x-3 ending, x-4 strange"), replicas=4)
    assert status["pods"] == ["x-0", "x-1", "x-2"]
    counts = ("replicas", "readyReplicas", "updatedReplicas", "observedGeneration")
    assert [status[count] for count in counts] == [3, 2, 2, 1]
    assert status["selector"] == "zilliz.com/milvus=x"


def test_a_problem_is_told_by_both_conditions() -> None:
    problems = {1: mo.Why("QuotaExceeded", "exceeded quota")}
    status = status_of(pods("x-0"), problems, replicas=2)
    assert said(status, "Reconciled") == "False QuotaExceeded: exceeded quota"
    assert said(status, "Ready").startswith("False QuotaExceeded: 1 of 2 pods are ready; x-1: exc")
    assert mo.state_of(status) == "failed"


def test_a_long_note_is_cut_to_what_an_event_may_have() -> None:
    note = mo.new_event(milvus(), "Created", "é" * 2000, is_warning=False)["note"]
    assert 1000 < len(note.encode()) <= 1024


def test_a_claim_that_ends_is_told() -> None:
    status = status_of(pods("x-0, x-1"), replicas=2, storage={"size": "1Gi"})
    assert said(status, "Reconciled").startswith("False ClaimLost: claim data-x-0 is gone: no pod")
    status = status_of(pods("x-1"), replicas=2, storage={"size": "1Gi"})
    assert "claim data-x-1 is being deleted" in said(status, "Reconciled")


def test_an_invalid_spec_is_told_and_stalls() -> None:
    status = status_of(pods("x-0"), why_invalid="spec.a: wrong")
    text = "Invalid: spec.a: wrong; until this is corrected, its pods are left as they are"
    assert said(status, "Ready") == said(status, "Reconciled") == f"False {text}"
    assert said(status, "Stalled") == f"True {text}"
    assert status["readyReplicas"] == 1
    assert said(status_of(pods("x-0")), "Stalled") == ""


def test_conditions_of_others_and_times_are_kept() -> None:
    theirs = {"type": "Backup", "status": "True", "reason": "Done", "message": ""}
    ours = {"type": "Ready", "status": "True", "lastTransitionTime": "then"}
    there = milvus() | {"status": {"conditions": [theirs, ours, {"odd": "one"}]}}
    status = mo.status_of(observed(there, pods("x-0")), "", {})
    assert theirs in status["conditions"]
    assert mo.condition_of({"status": status}, "Ready")["lastTransitionTime"] == "then"
    status = mo.status_of(observed(there, pods("x-0 starting")), "", {})
    assert mo.condition_of({"status": status}, "Ready")["lastTransitionTime"] > "2026"
