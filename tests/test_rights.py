"""Rights: the operator as its own service account, with the rules of the manifests and RBAC on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

import milvus_operator as mo
from tests.kit import TOP, Kube, client, eventually, make_pass, new_operator, settle
from tests.wire import Handler, Request, Wire

Obj = dict[str, Any]
Right = tuple[str, str]  # verb, resource with its group
IMPLIED = ("update", "zilliz.com/milvuses/finalizers")  # asked for by the API server when an owner reference blocks


def manifest(file: str, namespace: str) -> list[Obj]:
    text = (TOP / file).read_text()
    if file == "deploy-namespaced.yaml":
        text = text.replace(": milvus\n", f": {namespace}\n")
    return list(yaml.safe_load_all(text))


def rights(documents: list[Obj]) -> set[Right]:
    (role,) = (document for document in documents if document["kind"].endswith("Role"))
    return {
        (verb, f"{group}/{resource}".lstrip("/"))
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def group_of(resource: str) -> str:
    return resource.split("/")[0] if "." in resource else ""


def without_group(resource: str) -> str:
    return resource.removeprefix(f"{group_of(resource)}/")


def right_of(request: Request) -> Right:
    """The right that a request needs, as RBAC names it."""
    _, prefix, *parts = request.path.split("/")
    group = f"{parts[0]}/" if prefix == "apis" else ""
    parts = parts[2:] if prefix == "apis" else parts[1:]
    if parts[0] == "namespaces" and len(parts) > 2:
        parts = parts[2:]
    verb = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}.get(request.verb)
    return verb or ("get" if len(parts) > 1 else "list"), group + "/".join(parts[::2])


def token(kube: Kube, namespace: str) -> str:
    return kube.kubectl("create", "token", "milvus-operator", "-n", namespace).strip()


@pytest.fixture(params=["deploy.yaml", "deploy-namespaced.yaml"])
def installed(request: pytest.FixtureRequest, kube: Kube) -> Iterator[tuple[list[Obj], str]]:
    """The documents of an installation, applied, and its namespace."""
    documents = manifest(request.param, kube.ns)
    namespace = documents[1]["metadata"]["namespace"]
    kube.kubectl("apply", "-n", namespace, "-f", "-", stdin=yaml.safe_dump_all(documents))
    yield documents, namespace
    if namespace != kube.ns:
        kube.kubectl("delete", "-n", namespace, "-f", "-", "--wait=false", stdin=yaml.safe_dump_all(documents))


def live(kube: Kube, operator: mo.Operator) -> None:
    """All that the operator ever does; what it may not do is left undone."""

    def passes(count: int = 3) -> None:
        for _ in range(count):
            make_pass(operator, once=True)

    passes(1)  # nothing there yet
    kube.create(replicas=2)
    kube.create("kept", storage={"size": "1Gi", "storageClassName": "none"})
    kube.create_pod("taken-0")
    kube.create("taken")
    passes()
    for _ in range(2):
        if "x-0" in kube.names():
            kube.delete_pod("x-0")
            kube.gone("x-0")
        passes()
    if "kept-0" in kube.names():  # its claim is there already
        kube.delete_pod("kept-0")
        kube.gone("kept-0")
    passes()
    kube.change(replicas=1)
    passes()
    if "x-0" not in kube.names():
        kube.create_pod("x-0", labels=mo.pod_labels(kube.get(), 0))
    kube.patch_pod("x-0", ownerReferences=None)
    passes()


@pytest.mark.platform
def test_the_rules_are_what_the_operator_uses_no_more_and_no_less(
    kube: Kube, wire: Wire, installed: tuple[list[Obj], str], caplog: pytest.LogCaptureFixture
) -> None:
    documents, namespace = installed
    everywhere = namespace != kube.ns
    operator = new_operator(
        kube, wire.url, token(kube, namespace), namespaces=[None if everywhere else kube.ns]
    )  # fmt: skip
    live(kube, operator)
    assert "not allowed" not in caplog.text
    used = {right_of(request) for request in wire.requests if request.path != f"/apis/{mo.API_VERSION}"}
    assert used | {IMPLIED} == rights(documents)
    assert not [request for request in wire.requests if request.code == 403 and kube.ns in request.path]
    assert mo.owner_uid(kube.all_pods()["x-0"]) == kube.get()["metadata"]["uid"]


@pytest.mark.parametrize(
    "missing", sorted(rights(manifest("deploy-namespaced.yaml", ""))), ids=lambda right: " ".join(right)
)
@pytest.mark.platform
def test_a_missing_right_is_named_and_the_rest_goes_on(
    kube: Kube, missing: Right, caplog: pytest.LogCaptureFixture
) -> None:
    documents = manifest("deploy-namespaced.yaml", kube.ns)
    (role,) = (document for document in documents if document["kind"] == "Role")
    role["rules"] = [
        {"apiGroups": [group_of(resource)], "resources": [without_group(resource)], "verbs": [verb]}
        for verb, resource in rights(documents) - {missing}
    ]
    kube.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(documents))
    verb, resource = missing
    operator = new_operator(kube, token=token(kube, kube.ns))
    live(kube, operator)
    named = without_group(resource)
    assert f"not allowed to {verb} {named} in namespace {kube.ns}: grant this right to the operator" in caplog.text
    assert caplog.text.count(f"not allowed to {verb} {named} in") == 1, "said once"
    if verb == "list":
        assert "x-1" not in kube.names(), "nothing is decided without both lists"
    elif verb not in ("create", "update") and missing != ("get", "persistentvolumeclaims"):
        assert "kept-0" in kube.names()
    if verb != "list" and "status" not in resource:
        assert kube.status()["observedGeneration"] == kube.get()["metadata"]["generation"]


def test_an_account_without_any_right_is_told_so_and_tried_again(kube: Kube, caplog: pytest.LogCaptureFixture) -> None:
    kube.kubectl("create", "serviceaccount", "milvus-operator")
    operator = new_operator(kube, token=token(kube, kube.ns))
    for _ in range(3):
        assert not make_pass(operator)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        f"not allowed to list pods in namespace {kube.ns}: grant this right to the operator"
    ]


def test_pod_security_accepts_the_operators_pod(kube: Kube, installed: tuple[list[Obj], str]) -> None:
    documents, namespace = installed
    template = documents[-1]["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", **template}
    pod["metadata"] = {"name": "as-deployed", "namespace": namespace, **template["metadata"]}
    pods = mo.pods(client(kube.plane))
    pods.create(body=pod, namespace=namespace, dry_run="All")
    if namespace != kube.ns:
        del pod["spec"]["containers"][0]["securityContext"]["capabilities"]
        with pytest.raises(Exception, match="violates PodSecurity"):
            pods.create(body=pod, namespace=namespace, dry_run="All")


def test_one_image_line_is_all_that_an_installation_changes() -> None:
    for file in ("deploy.yaml", "deploy-namespaced.yaml"):
        lines = [line.strip() for line in (TOP / file).read_text().splitlines()]
        assert [line for line in lines if line.startswith("image:")] == [f"image: milvus-operator:{mo.__version__}"]


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
    assert told == [("Normal", "Created", "x-1, x-2: missing"), ("Normal", "Reconciled", "no longer NameConflict")]


def test_events_are_in_the_order_of_what_was_done(kube: Kube, operator: mo.Operator) -> None:
    """Also those of one pass."""
    kube.create(replicas=2, image="milvus:dies")
    make_pass(operator, once=True)
    for name in ("x-0", "x-1"):
        eventually(lambda name=name: mo.is_finished(kube.all_pods()[name]))  # type: ignore[misc]
    make_pass(operator, once=True)
    told = [event["reason"] for event in kube.events()]
    assert told == ["Created", "Replaced", "Created"]


def test_what_was_done_to_the_labels_and_the_owner_of_a_pod_is_told(kube: Kube, operator: mo.Operator) -> None:
    kube.create()
    settle(operator)
    kube.patch_pod("x-0", labels={mo.POD_INDEX_LABEL: None})
    settle(operator)
    kube.patch_pod("x-0", ownerReferences=None)
    settle(operator)
    assert [event["reason"] for event in kube.events()] == ["Created", "Labelled", "Adopted"]


def test_an_event_that_is_gone_is_made_again(kube: Kube, operator: mo.Operator) -> None:
    """The API server keeps events for an hour."""
    kube.create()
    make_pass(operator, once=True)
    (first,) = kube.events()
    kube.kubectl("delete", "events.v1.events.k8s.io", "--all")
    kube.delete_pod("x-0")
    kube.gone("x-0")
    make_pass(operator, once=True)
    (second,) = kube.events()
    assert (second["reason"], second["note"]) == ("Created", "x-0: missing") == (first["reason"], first["note"])


def test_events_that_hang_hold_up_no_pods(kube: Kube, wire: Wire) -> None:
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


def test_another_operator_does_not_tell_again_what_the_condition_says(
    kube: Kube, caplog: pytest.LogCaptureFixture
) -> None:
    kube.create(milvusSpec="this is milvus spec")
    kube.create("bad", milvusSpec="proxy.port: 1")
    for _ in range(3):
        make_pass(new_operator(kube), once=True)
    assert [event["reason"] for event in kube.events()] == ["Created", "SpecIsText"]
    assert [event["reason"] for event in kube.events("bad")] == ["Invalid"]
    assert caplog.text.count("/x: SpecIsText") == 1
    assert caplog.text.count("/bad: Invalid") == 3, "what is wrong is in the log of each"


def test_a_refused_create_is_an_event_and_so_is_its_end(kube: Kube, operator: mo.Operator) -> None:
    kube.kubectl("create", "quota", "none", "--hard=pods=0")
    kube.create()
    eventually(lambda: "0" in kube.kubectl("get", "quota", "none", "-o", "jsonpath={.status.hard.pods}"))
    for _ in range(3):
        make_pass(operator, once=True)
    assert [event["reason"] for event in kube.events()] == ["QuotaExceeded"]
    assert "exceeded quota" in kube.events()[0]["note"]
    kube.kubectl("delete", "quota", "none")
    kube.change(replicas=2)
    make_pass(operator, once=True)
    assert [event["reason"] for event in kube.events()] == ["QuotaExceeded", "Created", "Reconciled"]
    assert kube.events()[-1]["note"] == "no longer QuotaExceeded"
