"""Writes that are refused or fail: they back off, are reported once, and delay no other write."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

import milvus_operator as mo
from tests.lib.kit import (
    Clock,
    Command,
    Kube,
    Obj,
    StillClock,
    eventually,
    kubeconfig,
    make_pass,
    new_operator,
    refusing,
    rest,
    settle,
)
from tests.lib.wire import Handler, Wire


def fault_hang(handler: Handler, verb: str, path: str) -> bool:
    hit = verb == "DELETE" and "/pods/x-3" in path
    if hit:
        time.sleep(2)
        handler.reset()
    return hit


Start = Callable[..., Command]


def test_one_refused_write_does_not_starve_the_others(kube: Kube, operator: mo.Operator) -> None:
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": kube.ns},
        "spec": {
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": kube.ns}},
                "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            },
            "validations": [{"expression": "object.metadata.name != 'x-0'", "message": "not that one"}],
        },
    }  # fmt: skip
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": kube.ns},
        "spec": {"policyName": kube.ns, "validationActions": ["Deny"]},
    }  # fmt: skip
    for body in (policy, binding):
        kube.kubectl("create", "-f", "-", stdin=json.dumps(body))
    eventually(
        lambda: (
            "not that one"
            in kube.kubectl("run", "x-0", "--image=a", "--dry-run=server", check=False)
        )
    )
    kube.create(replicas=3)
    make_pass(operator)
    assert "not that one" in kube.condition("Reconciled")["message"]
    make_pass(operator)
    assert kube.names() == ["x-1", "x-2"], "in the next pass, not after a back-off"
    assert "not that one" in kube.condition("Reconciled")["message"]
    kube.kubectl("delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", kube.ns)


@pytest.mark.parametrize("code", [429, 500, 503])
def test_a_transient_error_is_reported_and_retried_soon(kube: Kube, wire: Wire, code: int) -> None:
    """After 1 s, 2 s, 4 s, up to 30 s; and only one pod is tried in each pass."""
    asked = 0

    def fault(handler: Any, verb: str, path: str) -> bool:
        nonlocal asked
        hit = verb == "POST" and "/pods" in path
        if hit:
            asked += 1
            handler.answer(code, b'{"kind": "Status", "message": "not now"}')
        return hit

    wire.fault = fault
    kube.create()
    clock = StillClock()
    operator = new_operator(kube, server=wire.url, clock=clock)
    for wait in (1, 2, 4, 8, 16, 30, 30):
        before = asked
        assert not make_pass(operator)
        assert asked == before + 1
        assert kube.condition("Reconciled")["message"] == "not now"
        clock.skip(wait * 0.7)
        assert not make_pass(operator)
        assert asked == before + 1
        clock.skip(wait * 0.3)
    wire.fault = None
    assert make_pass(operator)
    assert kube.names() == ["x-0"]
    assert kube.condition("Reconciled")["status"] == "True"


def test_a_create_that_gets_no_answer_does_not_mean_that_the_server_is_unreachable(
    kube: Kube, wire: Wire, caplog: Any
) -> None:
    """A webhook may be slow for a single Milvus, whose condition then says so."""
    wire.spoil("POST", "/pods", 500, b"{}", after=2)
    kube.create()
    assert not make_pass(new_operator(kube, server=wire.url, timeout=1), once=True)
    assert kube.condition("Reconciled")["message"] == "no answer within 1 s"
    assert "cannot reach" not in caplog.text


def test_a_create_that_is_answered_with_404_is_reported(kube: Kube, wire: Wire) -> None:
    """It is not the pod that was not found."""
    wire.spoil("POST", "/pods", 404, b'{"kind": "Status", "message": "no such runtime class"}')
    kube.create()
    assert not make_pass(new_operator(kube, server=wire.url))
    assert kube.condition("Reconciled")["message"] == "no such runtime class"


@pytest.mark.parametrize("by_another_copy", [True, False])
def test_what_has_been_done_is_no_longer_reported_as_refused(
    kube: Kube, operator: mo.Operator, clock: Clock, wire: Wire, by_another_copy: bool
) -> None:
    kube.kubectl("create", "quota", "q", "--hard=pods=0")
    eventually(
        lambda: kube.kubectl("get", "quota", "q", "-o", "jsonpath={.status.hard.pods}") == "0"
    )
    kube.create()
    assert not make_pass(operator)
    kube.kubectl("delete", "quota", "q")
    if by_another_copy:
        make_pass(new_operator(kube))
        kube.ready("x-0")
    else:
        clock.skip(10)
    assert make_pass(operator)
    assert kube.condition("Reconciled")["status"] == "True"


def test_a_refusal_that_another_copy_saw_resolved_is_not_written_again(
    kube: Kube, wire: Wire
) -> None:
    """Otherwise, each copy would overwrite the status of the other in every pass."""
    kube.kubectl("create", "quota", "q", "--hard=pods=0")
    eventually(
        lambda: kube.kubectl("get", "quota", "q", "-o", "jsonpath={.status.hard.pods}") == "0"
    )
    kube.create()
    one, other = new_operator(kube, server=wire.url), new_operator(kube, server=wire.url)
    assert not make_pass(one)
    kube.kubectl("delete", "quota", "q")
    assert make_pass(other)
    kube.ready("x-0")
    for copy in (other, one, other):
        make_pass(copy)
    wire.requests.clear()
    for copy in (one, other, one, other):
        assert make_pass(copy)
    assert {request.verb for request in wire.requests} == {"GET"}


def test_a_quota_of_two_for_twenty_pods_costs_few_requests(kube: Kube, wire: Wire) -> None:
    kube.kubectl("create", "quota", "q", "--hard=pods=2")
    eventually(
        lambda: kube.kubectl("get", "quota", "q", "-o", "jsonpath={.status.hard.pods}") == "2"
    )
    kube.create(replicas=20)
    clock = StillClock()
    operator = new_operator(kube, server=wire.url, clock=clock)
    assert not make_pass(operator, once=True)
    there = kube.names()
    assert len(there) == 2
    reconciled = kube.condition("Reconciled")
    assert (reconciled["status"], reconciled["reason"]) == ("False", "QuotaExceeded")
    assert "exceeded quota: q" in reconciled["message"]
    posts = [
        request
        for request in wire.requests
        if request.verb == "POST" and request.path.endswith("/pods")
    ]
    assert len(posts) <= 7, "batches of 1, 2 and 4: two pods, and the refusals of those batches"
    clock.skip(1)
    settle(operator)
    kube.delete_pod("x-0")
    kube.gone("x-0")
    eventually(
        lambda: kube.kubectl("get", "quota", "q", "-o", "jsonpath={.status.used.pods}") == "1"
    )
    make_pass(operator)
    assert kube.names() == there, "at once, because one pod fewer makes room for another"
    kube.kubectl("delete", "quota", "q")
    settle(operator)
    assert kube.names() == there, "refused pods wait for their back-off"
    kube.change(replicas=6)
    settle(operator)
    assert len(kube.names()) == 6, "a changed spec is tried at once"
    assert kube.condition("Reconciled")["status"] == "True"


def test_many_pods_under_a_quota_that_allows_them(kube: Kube, operator: mo.Operator) -> None:
    kube.kubectl("create", "quota", "q", "--hard=pods=100")
    eventually(
        lambda: kube.kubectl("get", "quota", "q", "-o", "jsonpath={.status.hard.pods}") == "100"
    )
    kube.create(replicas=60)
    assert make_pass(operator, once=True)
    assert len(kube.names()) == 60


@pytest.mark.parametrize("code", [0, 403, 422, 429, 500])
def test_a_delete_that_keeps_failing_delays_no_other_pod(
    kube: Kube, wire: Wire, clock: Clock, code: int
) -> None:
    kube.create(replicas=4)
    operator = new_operator(kube, server=wire.url, clock=clock, timeout=1)
    rest(operator, kube, *(f"x-{i}" for i in range(4)))
    kube.delete_pod("x-0")
    kube.gone("x-0")
    fault = refusing("DELETE", "/pods/x-3", code)
    wire.fault = (
        fault if code else lambda handler, verb, path: bool(fault_hang(handler, verb, path))
    )
    kube.change(replicas=2)
    for _ in range(2):
        make_pass(operator)
    assert "x-0" in kube.names()
    kube.delete_pod("x-1")
    kube.gone("x-1")
    clock.skip(400)
    make_pass(operator)
    assert "x-1" in kube.names(), "even when it is retried"
    if code:
        assert "x-2" not in kube.names(), "and other pods are deleted in the meantime"
    assert "x-3" in kube.names()


def test_a_conflict_about_a_quota_is_retried_at_once(kube: Kube, wire: Wire) -> None:
    message = 'Operation cannot be fulfilled on resourcequotas "q": the object has been modified'
    refused = refusing("POST", f"/{kube.ns}/pods", 409, message, "Conflict")

    def fault(handler: Handler, verb: str, path: str) -> bool:
        return refused.asked < 3 and bool(refused(handler, verb, path))

    wire.fault = fault
    kube.create(replicas=3)
    assert new_operator(kube, server=wire.url).run_once()
    assert kube.names() == ["x-0", "x-1", "x-2"]
    assert kube.condition("Reconciled")["status"] == "True"


def test_a_status_that_could_not_be_written_fails_once(kube: Kube, wire: Wire) -> None:
    wire.fault = refusing("PATCH", "/status", 500)
    kube.create()
    assert not new_operator(kube, server=wire.url).run_once()
    assert kube.names() == ["x-0"]


def test_passes_fail_as_long_as_a_right_is_missing_even_while_its_writes_rest(
    kube: Kube, wire: Wire, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    def count(result: str) -> float:
        return REGISTRY.get_sample_value("milvus_operator_passes_total", {"result": result}) or 0

    right = 'pods is forbidden: User "x" cannot create resource "pods" in API group "" in the namespace "y"'
    fault = refusing("POST", f"/{kube.ns}/pods", 403, right, "Forbidden")
    wire.fault = fault
    kube.create()
    operator = new_operator(kube, server=wire.url, clock=clock)
    good, bad = count("success"), count("failure")
    for _ in range(3):
        make_pass(operator)
    assert (count("success"), count("failure")) == (good, bad + 3)
    assert fault.asked == 1
    said = f"not allowed to create pods in namespace {kube.ns}: grant this right to the operator"
    assert caplog.text.count(said) == 1
    wire.fault = None
    clock.skip(30)
    make_pass(operator)
    assert count("success") == good + 1
    assert f"resolved: {said}" in caplog.text


def test_a_problem_whose_message_varies_is_logged_once(
    kube: Kube, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    lengths = iter(range(100, 200))

    def fault(handler: Handler, verb: str, path: str) -> bool:
        body = handler.forward().data
        handler.answer(200, body[: len(body) // 2], length=len(body) + next(lengths))
        handler.reset()
        return True

    operator = new_operator(kube, server=wire.url)
    wire.fault = fault
    for _ in range(5):
        assert not make_pass(operator)
    assert caplog.text.count("cannot reach") == 1
    wire.fault = None
    assert make_pass(operator)
    assert caplog.text.count("resolved: cannot reach") == 1


def test_a_right_that_many_need_is_reported_once(
    kube: Kube, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    right = 'pods is forbidden: User "x" cannot create resource "pods" in API group "" in the namespace "y"'
    wire.fault = refusing("POST", f"/{kube.ns}/pods", 403, right, "Forbidden")
    for name in "abcde":
        kube.create(name, replicas=3)
    operator = new_operator(kube, server=wire.url)
    for _ in range(3):
        make_pass(operator)
    assert [record.levelname for record in caplog.records if record.levelno > 20] == ["ERROR"]
    assert "cannot create resource" in kube.condition("Reconciled", "a")["message"], (
        "the server's own words"
    )
    assert (kube.condition("Stalled", "a")["status"], kube.condition("Stalled", "a")["reason"]) == (
        "True",
        "Forbidden",
    )


@pytest.mark.parametrize("change", [{"replicas": 1}, {"image": "milvus:2"}])
def test_a_delete_that_is_refused_fails_once_and_is_reported(
    kube: Kube, wire: Wire, change: Obj
) -> None:
    kube.create(replicas=2)
    operator = new_operator(kube, server=wire.url)
    rest(operator, kube, "x-0", "x-1")
    wire.fault = refusing("DELETE", "/pods/x-1", 500)
    kube.change(**change)
    assert not operator.run_once()
    assert kube.condition("Reconciled")["message"] == "not now"


def test_a_create_whose_connection_is_reset_delays_no_other(kube: Kube, wire: Wire) -> None:
    def fault(handler: Handler, verb: str, path: str) -> bool:
        hit = verb == "POST" and b'"name": "x-0"' in handler.seen
        if hit:
            handler.reset()
        return hit

    wire.fault = fault
    kube.create(replicas=3)
    operator = new_operator(kube, server=wire.url)
    make_pass(operator)
    make_pass(operator)
    assert kube.names() == ["x-1", "x-2"]


def test_a_refused_write_to_a_pod_does_not_delay_a_different_one(kube: Kube, wire: Wire) -> None:
    """Its delete was refused, then somebody else deleted it: it is created at once."""
    kube.create(replicas=2)
    operator = new_operator(kube, server=wire.url)
    rest(operator, kube, "x-0", "x-1")
    wire.fault = refusing("DELETE", "/pods/x-1", 403)
    kube.change(replicas=1)
    make_pass(operator)
    kube.delete_pod("x-1")
    kube.gone("x-1")
    kube.change(replicas=2)
    make_pass(operator)
    assert kube.names() == ["x-0", "x-1"]


def test_a_write_that_fails_after_the_end_of_its_pass_is_reported(
    kube: Kube, command: Start, wire: Wire, tmp_path: Path
) -> None:
    answer = b'{"kind": "Status", "reason": "InternalError", "message": "webhook timed out"}'
    wire.spoil("POST", "/pods", 500, answer, after=1)
    kube.create()
    command(
        "--kubeconfig",
        kubeconfig(tmp_path / "config", kube.plane, server=wire.url),
        "--interval",
        "0.3",
    )
    eventually(lambda: kube.condition("Reconciled").get("reason") == "APIError")
    assert kube.condition("Reconciled")["message"] == "webhook timed out"
    wire.fault = None
    kube.ready("x-0")
    eventually(lambda: kube.condition("Reconciled")["status"] == "True")


def test_a_status_that_is_refused_delays_no_other(
    kube: Kube, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    answer = b'{"kind": "Status", "reason": "Forbidden", "message": "denied by a webhook"}'
    wire.spoil("PATCH", "/a/status", 403, answer)
    operator = new_operator(kube, server=wire.url)
    kube.create("a")
    make_pass(operator)
    kube.create("b")
    for _ in range(3):
        make_pass(operator)
    assert kube.status("b")["replicas"] == 1
    assert (
        caplog.text.count(f"cannot write the status of milvus {kube.ns}/a: denied by a webhook")
        == 1
    )
    wire.fault = None
    make_pass(operator)
    assert kube.status("a") == {"observedGeneration": -1}, "it waits for its back-off"
    kube.change("a", replicas=2)
    make_pass(operator)
    assert kube.status("a")["replicas"] == 2, "a changed spec is tried at once"
