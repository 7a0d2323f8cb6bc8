"""The server in memory answers as a real API server does; and its own switches for tests.

Each case is a few requests. They are sent to both servers, and the answers must be the same but
for UIDs, versions and times.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from kubernetes.client import ApiClient, ApiException
from urllib3.exceptions import HTTPError

import milvus_operator as mo
from tests.lib.front import Obj, Refused, answer
from tests.lib.kit import Kube, eventually
from tests.lib.server import MemoryServer, merge

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
OTHER_UID, OTHER_VERSION = "00000000-0000-0000-0000-00000000abcd", "999999999"
METADATA = ("name", "generation", "labels", "finalizers", "deletionGracePeriodSeconds")


class Side:
    """One of the two servers: sends requests, and keeps what can be compared of the answers."""

    def __init__(self, api: ApiClient, namespace: str) -> None:
        self.namespace = namespace
        self.resources = {
            "milvuses": mo.milvuses(api),
            "milvuses/status": mo.milvuses(api).status,
            "pods": mo.pods(api),
            "claims": mo.by_gvr(api, "", "v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
        }
        self.answers: list[Any] = []

    def ask(self, verb: str, resource: str, name: str | None = None, **arguments: Any) -> Obj:
        """Send a request; an answer that refuses it is returned like any other."""
        if name:
            arguments["name"] = name
        call = getattr(self.resources[resource], verb)
        try:
            response = call(namespace=self.namespace, serialize=False, **arguments)
            code, text = response.status, response.data
        except ApiException as error:
            code, text = error.status, error.body
        body: Obj = json.loads(text)
        self.answers.append((verb, resource, name, code, self.comparable(body)))
        return body

    def comparable(self, body: Obj) -> Any:
        """What the operator reads of an answer, without what is different each time."""
        if body["kind"] == "Status":
            message = str(body.get("message")).partition(" other than")[0]  # a long list follows
            return self.plain([body["status"], body.get("reason"), message])
        if body["kind"].endswith("List"):
            items = [self.comparable({"kind": "item"} | item) for item in body["items"]]
            kinds = ["kind" in item for item in body["items"]]
            return body["kind"], items, kinds, bool(body["metadata"].get("continue"))
        metadata = body["metadata"]
        seen = {key: metadata.get(key) for key in METADATA}
        seen["ending"] = "deletionTimestamp" in metadata
        seen["has"] = ["uid" in metadata, "resourceVersion" in metadata]
        seen["created"] = "creationTimestamp" in metadata
        seen["owners"] = [owner["name"] for owner in metadata.get("ownerReferences") or []]
        if metadata.get("namespace") != self.namespace:
            seen["namespace"] = metadata.get("namespace")
        if body.get("apiVersion") == mo.API_VERSION:
            seen |= {"spec": body.get("spec"), "status": body.get("status")}
        else:
            seen["phase"] = (body.get("status") or {}).get("phase")
        return self.plain(seen)

    def plain(self, part: Any) -> Any:
        text = json.dumps(part).replace(self.namespace, "NAMESPACE")
        text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UID", text)
        text = re.sub(r"\(\d+\)", "(VERSION)", text)
        return json.loads(re.sub(r"\bmade-[a-z0-9]{5}\b", "made-SUFFIX", text))

    def quota(self, **most: int) -> None:
        raise NotImplementedError


class InMemory(Side):
    def __init__(self) -> None:
        self.server = MemoryServer()
        super().__init__(self.server.client(), "in-memory")

    def quota(self, **most: int) -> None:
        self.server.quota = most


class Real(Side):
    def __init__(self, kube: Kube) -> None:
        self.kube = kube
        super().__init__(kube.api, kube.ns)

    def quota(self, **most: int) -> None:
        quotas = mo.by_gvr(self.kube.api, "", "v1", "ResourceQuota", "resourcequotas")
        hard = {plural: str(count) for plural, count in most.items()}
        body = {"metadata": {"name": "quota"}, "spec": {"hard": hard}}
        quotas.create(namespace=self.namespace, body=body)

        def is_known() -> bool:
            return bool(quotas.get(namespace=self.namespace, name="quota").status.used)

        eventually(is_known)


def milvus(name: str = "x", **spec: Any) -> Obj:
    head = {"apiVersion": mo.API_VERSION, "kind": "Milvus", "metadata": {"name": name}}
    return head | {"spec": {"image": "milvus:1"} | spec}


def pod(name: str = "x-0", spec: Obj | None = None, **metadata: Any) -> Obj:
    """A pod that no scheduler sees, so that it stays as it is."""
    metadata = {"name": name} | metadata
    container = {"name": "c", "image": "milvus:1"}
    whole = {"schedulerName": "nobody", "containers": [container]} | (spec or {})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": whole}


def claim(name: str = "data-x-0") -> Obj:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    head = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}}
    return head | {"spec": spec}


def uid(obj: Obj) -> str:
    return str(obj["metadata"]["uid"])


def version(obj: Obj) -> str:
    return str(obj["metadata"]["resourceVersion"])


def name_of(obj: Obj) -> str:
    return str(obj["metadata"]["name"])


def owner(name: str, uid: str) -> Obj:
    reference = {"apiVersion": mo.API_VERSION, "kind": "Milvus", "name": name, "uid": uid}
    return reference | {"controller": True, "blockOwnerDeletion": True}


# ---------- The cases ----------


def create_and_again(side: Side) -> None:
    side.ask("create", "milvuses", body=milvus(replicas=2))
    side.ask("create", "milvuses", body=milvus())
    side.ask("create", "pods", body=pod(), query_params=[("fieldValidation", "Strict")])
    side.ask("create", "pods", body=pod())
    side.ask("create", "claims", body=claim())
    side.ask("create", "claims", body=claim())


def create_with_a_status(side: Side) -> None:
    side.ask("create", "milvuses", body=milvus() | {"status": {"replicas": 3}})
    side.ask("create", "pods", body=pod() | {"status": {"phase": "Running"}})


def create_in_another_namespace_than_the_path(side: Side) -> None:
    side.ask("create", "pods", body=pod(namespace="other"))


def create_with_a_generated_name(side: Side) -> None:
    body = pod()
    body["metadata"] = {"generateName": "made-"}
    side.ask("create", "pods", body=body)


def create_while_the_old_one_is_ending(side: Side) -> None:
    side.ask("create", "pods", body=pod(finalizers=["test/hold"]))
    side.ask("delete", "pods", "x-0")
    side.ask("create", "pods", body=pod())


def dry_runs_change_nothing(side: Side) -> None:
    side.ask("create", "milvuses", body=milvus(), dry_run="All")
    side.ask("get", "milvuses", "x")
    side.ask("create", "milvuses", body=milvus())
    side.ask("create", "milvuses", body=milvus(), dry_run="All")
    change = {"body": {"spec": {"replicas": 3}}, "content_type": MERGE}
    side.ask("patch", "milvuses", "x", **change, dry_run="All")
    status = {"body": {"status": {"replicas": 1}}, "content_type": MERGE}
    side.ask("patch", "milvuses/status", "x", **status, dry_run="All")
    side.ask("get", "milvuses", "x")


def dry_runs_of_pods_change_nothing(side: Side) -> None:
    side.ask("create", "pods", body=pod(), dry_run="All")
    side.ask("get", "pods", "x-0")
    made = side.ask("create", "pods", body=pod())
    side.ask("create", "pods", body=pod(), dry_run="All")
    conditions = {"preconditions": {"uid": uid(made)}, "dryRun": ["All"]}
    side.ask("delete", "pods", "x-0", body=conditions)
    side.ask("get", "pods", "x-0")


def what_is_not_there(side: Side) -> None:
    for resource in ("milvuses", "pods", "claims"):
        side.ask("get", resource, "nobody")
        side.ask("delete", resource, "nobody")
    side.ask("patch", "milvuses", "nobody", body={"spec": {}}, content_type=MERGE)
    side.ask("patch", "milvuses/status", "nobody", body={"status": {}}, content_type=MERGE)
    side.ask("patch", "pods", "nobody", body={"metadata": {"labels": {"a": "b"}}})


def only_a_change_of_the_spec_counts_a_generation(side: Side) -> None:
    side.ask("create", "milvuses", body=milvus())
    for body in ({"spec": {"replicas": 2}}, {"spec": {"replicas": 2}},
                 {"metadata": {"labels": {"a": "b"}}}, {"spec": {"milvusSpec": "a: b"}},
                 {"spec": {"milvusSpec": None}}):  # fmt: skip
        side.ask("patch", "milvuses", "x", body=body, content_type=MERGE)


def what_changes_nothing_keeps_the_version(side: Side) -> None:
    side.ask("create", "milvuses", body=milvus())
    versions = []
    for replicas in (2, 2, 3):
        body = {"spec": {"replicas": replicas}}
        made = side.ask("patch", "milvuses", "x", body=body, content_type=MERGE)
        versions.append(int(version(made)))
    side.answers.append([versions[0] == versions[1], versions[1] < versions[2]])


def status_and_the_rest_are_apart(side: Side) -> None:
    side.ask("create", "milvuses", body=milvus())
    both = {"spec": {"replicas": 7}, "status": {"replicas": 5}}
    side.ask("patch", "milvuses", "x", body=both, content_type=MERGE)
    both = {"spec": {"replicas": 8}, "status": {"replicas": 6}}
    side.ask("patch", "milvuses/status", "x", body=both, content_type=MERGE)
    labels = {"metadata": {"labels": {"a": "b"}}, "status": {"readyReplicas": 1}}
    side.ask("patch", "milvuses/status", "x", body=labels, content_type=MERGE)
    side.ask("get", "milvuses", "x")


def a_patch_of_an_earlier_version(side: Side) -> None:
    first = side.ask("create", "milvuses", body=milvus())
    body = {"metadata": {"resourceVersion": version(first)}, "status": {"replicas": 1}}
    side.ask("patch", "milvuses/status", "x", body=body, content_type=MERGE)
    body["status"] = {"replicas": 2}
    side.ask("patch", "milvuses/status", "x", body=body, content_type=MERGE)
    body = {"metadata": {"resourceVersion": version(first)}, "spec": {"replicas": 2}}
    side.ask("patch", "milvuses", "x", body=body, content_type=MERGE)


def a_patch_of_another_uid(side: Side) -> None:
    side.ask("create", "pods", body=pod())
    metadata = {"uid": OTHER_UID, "labels": {"a": "b"}}
    side.ask("patch", "pods", "x-0", body={"metadata": metadata})
    metadata["resourceVersion"] = OTHER_VERSION
    side.ask("patch", "pods", "x-0", body={"metadata": metadata})


def a_strategic_patch_merges_owners_by_uid(side: Side) -> None:
    made = side.ask("create", "milvuses", body=milvus())
    side.ask("create", "pods", body=pod(labels={"a": "b", "c": "d"}))
    other = owner("other", OTHER_UID)
    other |= {"controller": False, "kind": "Other"}
    for reference in (owner("x", uid(made)), other, owner("x", uid(made))):
        body = {"metadata": {"ownerReferences": [reference], "labels": {"a": None, "e": "f"}}}
        side.ask("patch", "pods", "x-0", body=body, content_type=STRATEGIC)
    side.ask("patch", "pods", "x-0", body={"metadata": {"ownerReferences": []}}, content_type=MERGE)


def a_strategic_patch_of_a_milvus(side: Side) -> None:
    side.ask("create", "milvuses", body=milvus())
    side.ask("patch", "milvuses", "x", body={"spec": {}}, content_type=STRATEGIC)


def a_patch_of_a_pods_spec(side: Side) -> None:
    side.ask("create", "pods", body=pod())
    side.ask("patch", "pods", "x-0", body={"spec": {"hostname": "other"}}, content_type=MERGE)


def deletes_with_preconditions(side: Side) -> None:
    for resource, name, body in (("pods", "x-0", pod()), ("milvuses", "x", milvus()),
                                 ("claims", "data-x-0", claim())):  # fmt: skip
        made = side.ask("create", resource, body=body)
        conditions = {"uid": OTHER_UID}
        side.ask("delete", resource, name, body={"preconditions": conditions})
        conditions = {"uid": uid(made), "resourceVersion": OTHER_VERSION}
        side.ask("delete", resource, name, body={"preconditions": conditions})
        if resource != "claims":  # a controller and a finalizer have their say there
            conditions = {"uid": uid(made), "resourceVersion": version(made)}
            side.ask("delete", resource, name, body={"preconditions": conditions})
            side.ask("get", resource, name)


def a_pod_on_a_node_ends_in_its_own_time(side: Side) -> None:
    made = side.ask("create", "pods", body=pod(spec={"nodeName": "nowhere"}))
    side.ask("delete", "pods", "x-0", body={"preconditions": {"uid": uid(made)}, "dryRun": ["All"]})
    side.ask("get", "pods", "x-0")
    side.ask("delete", "pods", "x-0", body={"preconditions": {"uid": uid(made)}})
    side.ask("delete", "pods", "x-0", body={"preconditions": {"uid": uid(made)}})
    side.ask("create", "pods", body=pod())
    side.ask("patch", "pods", "x-0", body={"metadata": {"labels": {"a": "b"}}})
    side.ask("delete", "pods", "x-0", body={"gracePeriodSeconds": 0})
    side.ask("get", "pods", "x-0")


def a_pod_has_the_grace_period_of_its_spec(side: Side) -> None:
    spec = {"nodeName": "nowhere", "terminationGracePeriodSeconds": 7}
    side.ask("create", "pods", body=pod(spec=spec))
    side.ask("delete", "pods", "x-0")


def a_finalizer_keeps_what_is_deleted(side: Side) -> None:
    side.ask("create", "pods", body=pod(finalizers=["test/hold"]))
    side.ask("create", "milvuses", body=milvus())
    held = {"body": {"metadata": {"finalizers": ["test/hold"]}}, "content_type": MERGE}
    free = {"body": {"metadata": {"finalizers": None}}, "content_type": MERGE}
    side.ask("patch", "milvuses", "x", **held)
    for resource, name in (("pods", "x-0"), ("milvuses", "x")):
        side.ask("delete", resource, name)
        side.ask("delete", resource, name)
        side.ask("get", resource, name)
        side.ask("patch", resource, name, **free)
        side.ask("get", resource, name)


def lists_with_labels(side: Side) -> None:
    for number, labels in enumerate(
        ({"a": "1"}, {"a": "1", "b": ""}, {"a": "2", "b": "1"}, {"c": ""})
    ):
        side.ask("create", "pods", body=pod(f"p-{number}", labels=labels))
    for selector in ("a=1", "a", "a=1,b", "b=", "a==2"):
        side.ask("get", "pods", label_selector=selector)
    side.ask("get", "pods")


def lists_in_pages(side: Side) -> None:
    for number in range(5):
        side.ask("create", "milvuses", body=milvus(f"m-{number}"))
    page = side.ask("get", "milvuses", limit=2)
    side.ask("delete", "milvuses", "m-3")
    side.ask("create", "milvuses", body=milvus("m-9"))
    versions = [version(page)]
    while token := page["metadata"].get("continue"):
        page = side.ask("get", "milvuses", limit=2, _continue=token)
        versions.append(version(page))
    side.answers.append(len(set(versions)))
    side.ask("get", "milvuses", limit=5)


def a_quota_comes_before_the_name(side: Side) -> None:
    side.quota(pods=1, persistentvolumeclaims=1)
    for name in ("x-0", "x-1", "x-0"):
        side.ask("create", "pods", body=pod(name))
    side.ask("create", "pods", body=pod("x-2"), dry_run="All")
    for name in ("data-x-0", "data-x-1", "data-x-0"):
        side.ask("create", "claims", body=claim(name))


CASES: list[Callable[[Side], None]] = [
    create_and_again,
    create_with_a_status,
    create_in_another_namespace_than_the_path,
    create_with_a_generated_name,
    create_while_the_old_one_is_ending,
    dry_runs_change_nothing,
    dry_runs_of_pods_change_nothing,
    what_is_not_there,
    only_a_change_of_the_spec_counts_a_generation,
    what_changes_nothing_keeps_the_version,
    status_and_the_rest_are_apart,
    a_patch_of_an_earlier_version,
    a_patch_of_another_uid,
    a_strategic_patch_merges_owners_by_uid,
    a_strategic_patch_of_a_milvus,
    a_patch_of_a_pods_spec,
    deletes_with_preconditions,
    a_pod_on_a_node_ends_in_its_own_time,
    a_pod_has_the_grace_period_of_its_spec,
    a_finalizer_keeps_what_is_deleted,
    lists_with_labels,
    lists_in_pages,
    a_quota_comes_before_the_name,
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__.replace("_", " "))
def test_both_servers_give_the_same_answers(case: Callable[[Side], None], kube: Kube) -> None:
    memory, real = InMemory(), Real(kube)
    case(memory)
    case(real)
    assert memory.answers == real.answers


# ---------- What only the server in memory has ----------


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer()


def make(server: MemoryServer, name: str, **metadata: Any) -> Obj:
    return server.ask("create", "pods", name, pod(name, **metadata))


def read(server: MemoryServer, name: str) -> int:
    """The code of the answer to the real client; 0 if there is none."""
    try:
        response = mo.pods(server.client()).get(namespace="test", name=name, serialize=False)
    except ApiException as error:
        return int(error.status)
    except HTTPError:
        return 0
    return int(response.status)


def test_a_rule_holds_for_the_requests_that_fit_and_as_often_as_it_says(
    server: MemoryServer,
) -> None:
    make(server, "a")
    make(server, "b")
    rule = server.refuse("get", "pods", 503, "not now", name="a", times=2)
    assert [read(server, name) for name in "abaa"] == [503, 200, 503, 200]
    assert rule.hits == 2


@pytest.mark.parametrize("error", ["unreachable", "reset", "timeout"])
def test_a_fault_gives_no_answer(server: MemoryServer, error: str) -> None:
    make(server, "a")
    server.fault("*", "*", error, times=1)
    assert [read(server, "a"), read(server, "a")] == [0, 200]
    assert [request.code for request in server.journal] == [0, 200]


def test_a_lost_answer_is_lost_after_the_write(server: MemoryServer) -> None:
    server.fault("create", "pods", "reset", after=True)
    with pytest.raises(HTTPError):
        mo.pods(server.client()).create(namespace="test", body=pod("a"))
    assert read(server, "a") == 200


def test_an_answer_may_be_anything(server: MemoryServer) -> None:
    server.when("get", "pods", lambda request: answer(200, b"<html>"))
    response = mo.pods(server.client()).get(namespace="test", name="a", serialize=False)
    assert response.data == b"<html>"


def test_the_rest_of_a_list_can_be_too_old(server: MemoryServer) -> None:
    make(server, "a")
    make(server, "b")
    pods = mo.pods(server.client())
    token = pods.get(namespace="test", limit=1).metadata["continue"]
    server.pages.clear()
    with pytest.raises(ApiException, match="Expired"):
        pods.get(namespace="test", limit=1, _continue=token)


def test_the_journal_says_who_asked_for_what_and_when(server: MemoryServer) -> None:
    pods = mo.pods(server.client("one"))
    server.clock.advance(5)
    pods.create(namespace="test", body=pod("a"), dry_run="All")
    pods.get()
    first, second = server.journal
    assert (first.user, first.verb, first.resource, first.name) == ("one", "create", "pods", "a")
    assert (first.namespace, first.code, first.time, first.dry_run) == ("test", 201, 1005, True)
    assert (second.verb, second.namespace, second.name, second.dry_run) == ("list", "", "", False)


def test_the_gate_is_asked_before_the_server_does_anything(server: MemoryServer) -> None:
    seen: list[int] = []
    server.gate = lambda request: seen.append(len(server.all_of("pods")))
    mo.pods(server.client()).create(namespace="test", body=pod("a"))
    assert seen == [0]


def test_admission_changes_what_is_created(server: MemoryServer) -> None:
    server.admission["pods"] = lambda made: merge(made, {"metadata": {"labels": None}})
    assert "labels" not in make(server, "a", labels={"a": "b"})["metadata"]


def test_pods_apart_have_versions_of_their_own() -> None:
    server = MemoryServer(pods_apart=True)
    server.ask("create", "milvuses", "x", milvus())
    assert version(make(server, "a")) == "1"
    assert server.ask("list", "milvuses")["metadata"]["resourceVersion"] == "1"


def test_pods_run_fail_and_end_when_the_test_says_so(server: MemoryServer) -> None:
    make(server, "a")
    make(server, "b")
    server.run_pods()
    assert all(map(mo.is_ready, server.all_of("pods")))
    server.fail("b")
    server.ask("delete", "pods", "a")
    server.ask("delete", "pods", "b")
    assert [name_of(one) for one in server.all_of("pods")] == ["a"]
    server.finish_deletions()
    assert server.all_of("pods") == []


def test_the_garbage_collector_takes_what_has_lost_its_owner(server: MemoryServer) -> None:
    made = server.ask("create", "milvuses", "x", milvus())
    make(server, "a", ownerReferences=[owner("x", uid(made))])
    make(server, "b")
    server.collect()
    assert len(server.all_of("pods")) == 2
    server.ask("delete", "milvuses", "x")
    server.collect()
    assert [name_of(one) for one in server.all_of("pods")] == ["b"]


def test_the_original_crd_has_no_status(server: MemoryServer) -> None:
    server.original_crd = True
    assert "status" not in server.ask("create", "milvuses", "x", milvus())
    with pytest.raises(Refused, match="not found"):
        server.ask("patch", "milvuses/status", "x", {"status": {}})


def test_what_is_not_known_in_memory_is_refused(server: MemoryServer) -> None:
    pods = mo.pods(server.client())
    with pytest.raises(ApiException, match="not known in memory"):
        pods.get(field_selector="spec.nodeName=a")
    make(server, "a")
    with pytest.raises(ApiException, match="not known in memory"):
        pods.get(label_selector="a in (b)")
