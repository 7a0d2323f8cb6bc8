"""The events of a Milvus tell its story."""

from __future__ import annotations

import threading

import pytest

import milvus_operator as mo
from tests.lib.kit import Kube, eventually, make_pass, new_operator, settle
from tests.lib.wire import Handler, Wire


def test_events_tell_the_story(kube: Kube, operator: mo.Operator) -> None:
    kube.create(replicas=2)
    make_pass(operator, once=True)
    for _ in range(2):
        kube.delete_pod("x-0")
        kube.gone("x-0")
        make_pass(operator, once=True)
    kube.ready("x-0", "x-1")
    kube.change(replicas=1)
    make_pass(operator, once=True)
    kube.gone("x-1")
    kube.change(image="milvus:2")
    eventually(lambda: make_pass(operator, once=True) and kube.images() == ["milvus:2"])
    kube.create_pod("x-1")
    kube.change(replicas=2)
    make_pass(operator, once=True)
    for _ in range(3):
        make_pass(operator, once=True)
    assert [(event["type"], event["reason"], event["note"]) for event in kube.events()] == [
        ("Normal", "Created", "x-0, x-1: missing"),
        ("Normal", "Created", "x-0: missing"),
        ("Normal", "Created", "x-0: missing"),
        ("Normal", "Deleted", "x-1: surplus: 1 wanted"),
        ("Normal", "Replaced", "x-0: earlier template"),
        ("Normal", "Created", "x-0: missing"),
        ("Warning", "NameConflict", "pod x-1 belongs to somebody else and is left alone: delete that pod "
                                    "(this is noticed within 5 minutes) or use another name for the Milvus"),
    ]  # fmt: skip
    assert "NameConflict" in kube.kubectl("describe", "mi", "x")
    assert "NameConflict" in kube.kubectl("events", "--for", "milvus/x")
    kube.delete_pod("x-1")
    kube.gone("x-1")
    kube.change(replicas=3)
    make_pass(operator, once=True)
    make_pass(operator, once=True)
    told = [(event["type"], event["reason"], event["note"]) for event in kube.events()[7:]]
    assert told == [
        ("Normal", "Created", "x-1, x-2: missing"),
        ("Normal", "Reconciled", "no longer NameConflict"),
    ]


def test_events_are_in_the_order_of_the_actions(kube: Kube, operator: mo.Operator) -> None:
    """Even within one pass."""
    kube.create(replicas=2, image="milvus:dies")
    make_pass(operator, once=True)
    for name in ("x-0", "x-1"):
        eventually(lambda name=name: mo.is_finished(kube.all_pods()[name]))  # type: ignore[misc]
    make_pass(operator, once=True)
    told = [event["reason"] for event in kube.events()]
    assert told == ["Created", "Replaced", "Created"]


def test_changing_the_labels_or_the_owner_of_a_pod_makes_an_event(
    kube: Kube, operator: mo.Operator
) -> None:
    kube.create()
    settle(operator)
    kube.patch_pod("x-0", labels={mo.POD_INDEX_LABEL: None})
    settle(operator)
    kube.patch_pod("x-0", ownerReferences=None)
    settle(operator)
    assert [event["reason"] for event in kube.events()] == ["Created", "Labelled", "Adopted"]


def test_an_event_that_is_gone_is_created_again(kube: Kube, operator: mo.Operator) -> None:
    """The API server keeps events for an hour."""
    kube.create()
    make_pass(operator, once=True)
    (first,) = kube.events()
    kube.kubectl("delete", "events.v1.events.k8s.io", "--all")
    kube.delete_pod("x-0")
    kube.gone("x-0")
    make_pass(operator, once=True)
    (second,) = kube.events()
    assert (
        (second["reason"], second["note"])
        == ("Created", "x-0: missing")
        == (first["reason"], first["note"])
    )


def test_events_that_hang_delay_no_pods(kube: Kube, wire: Wire) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def fault(handler: Handler, verb: str, path: str) -> bool:
        if verb == "POST" and "/events" in path:
            asked.set()
            go_on.wait(60)
        return False

    wire.fault = fault
    operator = new_operator(kube, server=wire.url, timeout=60, interval=0.3)
    for number in range(20):
        kube.create(f"a{number}")
    eventually(lambda: make_pass(operator) and len(kube.names()) == 20)
    make_pass(operator)
    kube.create("late")
    eventually(lambda: make_pass(operator) is not None and "late-0" in kube.names())
    assert asked.is_set()
    go_on.set()


def test_another_operator_does_not_repeat_what_the_condition_says(
    kube: Kube, caplog: pytest.LogCaptureFixture
) -> None:
    kube.create(milvusSpec="this is milvus spec")
    kube.create("bad", milvusSpec="proxy.port: 1")
    for _ in range(3):
        make_pass(new_operator(kube), once=True)
    assert [event["reason"] for event in kube.events()] == ["Created", "SpecIsText"]
    assert [event["reason"] for event in kube.events("bad")] == ["Invalid"]
    assert caplog.text.count("/x: SpecIsText") == 1
    assert caplog.text.count("/bad: Invalid") == 3, "each logs what is wrong"


def test_a_refused_create_makes_an_event_and_so_does_its_resolution(
    kube: Kube, operator: mo.Operator
) -> None:
    kube.kubectl("create", "quota", "none", "--hard=pods=0")
    kube.create()
    eventually(
        lambda: "0" in kube.kubectl("get", "quota", "none", "-o", "jsonpath={.status.hard.pods}")
    )
    for _ in range(3):
        make_pass(operator, once=True)
    assert [event["reason"] for event in kube.events()] == ["QuotaExceeded"]
    assert "exceeded quota" in kube.events()[0]["note"]
    kube.kubectl("delete", "quota", "none")
    kube.change(replicas=2)
    make_pass(operator, once=True)
    assert [event["reason"] for event in kube.events()] == [
        "QuotaExceeded",
        "Created",
        "Reconciled",
    ]
    assert kube.events()[-1]["note"] == "no longer QuotaExceeded"
