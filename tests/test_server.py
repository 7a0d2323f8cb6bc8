"""The server in memory answers as a real API server does: each case is a few requests, to which the
answers of both must be the same but for UIDs, versions and times."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from kubernetes.client import ApiClient, ApiException

import milvus_operator as mo
from tests.lib.front import Obj
from tests.lib.kit import MERGE, Kube
from tests.lib.server import MemoryServer
from tests.lib.world import milvus

STRATEGIC = "application/strategic-merge-patch+json"
OTHER_UID, OTHER_VERSION = "00000000-0000-0000-0000-00000000abcd", "999999999"
METADATA = ("name", "generation", "labels", "finalizers", "deletionGracePeriodSeconds")
CLAIM: Obj = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "data-x-0"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}


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
        if verb == "patch":
            arguments.setdefault("content_type", MERGE)
        call = getattr(self.resources[resource], verb)
        try:
            response = call(namespace=self.namespace, name=name, serialize=False, **arguments)
            code, text = response.status, response.data
        except ApiException as error:
            code, text = error.status, error.body
        body: Obj = json.loads(text)
        self.answers.append((verb, resource, name, code, self.comparable(body)))
        return body

    def comparable(self, body: Obj) -> Any:
        """What the operator reads of an answer, without what is different each time."""
        if body["kind"] == "Status":
            return self.plain([body["status"], body.get("reason"), body.get("message")])
        if body["kind"].endswith("List"):
            items = [self.comparable({"kind": "item"} | item) for item in body["items"]]
            kinds = ["kind" in item for item in body["items"]]
            return body["kind"], items, kinds, bool(body["metadata"].get("continue"))
        metadata = body["metadata"]
        seen = {key: metadata.get(key) for key in METADATA}
        for key in ("uid", "resourceVersion", "creationTimestamp", "deletionTimestamp"):
            seen[f"has {key}"] = key in metadata
        seen["owners"] = [owner["name"] for owner in metadata.get("ownerReferences") or []]
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


def pod(name: str = "x-0", node: str | None = None, **metadata: Any) -> Obj:
    """A pod that no scheduler sees, so that it stays as it is."""
    spec: Obj = {"schedulerName": "nobody", "containers": [{"name": "c", "image": "milvus:1"}]}
    if node:
        spec["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name} | metadata, "spec": spec}


def creates(side: Side) -> None:
    side.ask("create", "milvuses", body=milvus(replicas=2))
    side.ask("create", "milvuses", body=milvus())
    side.ask("create", "pods", body=pod(), query_params=[("fieldValidation", "Strict")])
    side.ask("create", "pods", body=pod())
    side.ask("create", "claims", body=CLAIM)
    side.ask("create", "claims", body=CLAIM)
    side.ask("create", "pods", body=pod() | {"metadata": {"generateName": "made-"}})
    side.ask("create", "pods", body=pod("x-1", finalizers=["test/hold"]))
    side.ask("delete", "pods", "x-1")
    side.ask("create", "pods", body=pod("x-1"))


def dry_runs_change_nothing(side: Side) -> None:
    for resource, name, body in (("milvuses", "x", milvus()), ("pods", "x-0", pod())):
        side.ask("create", resource, body=body, dry_run="All")
        side.ask("get", resource, name)
        made = side.ask("create", resource, body=body)
        side.ask("create", resource, body=body, dry_run="All")
        if resource == "pods":
            conditions = {"preconditions": {"uid": mo.uid_of(made)}, "dryRun": ["All"]}
            side.ask("delete", resource, name, body=conditions)
        side.ask("get", resource, name)
    side.ask("patch", "milvuses", "x", body={"spec": {"replicas": 3}}, dry_run="All")
    side.ask("patch", "milvuses/status", "x", body={"status": {"replicas": 1}}, dry_run="All")
    side.ask("get", "milvuses", "x")


def what_is_not_there(side: Side) -> None:
    for resource in ("milvuses", "pods", "claims"):
        side.ask("get", resource, "nobody")
        side.ask("delete", resource, "nobody")
    side.ask("patch", "milvuses", "nobody", body={"spec": {}})
    side.ask("patch", "milvuses/status", "nobody", body={"status": {}})
    side.ask("patch", "pods", "nobody", body={"metadata": {"labels": {"a": "b"}}})


def only_a_change_counts_and_of_the_generation_only_one_of_the_spec(side: Side) -> None:
    side.ask("create", "milvuses", body=milvus())
    versions = []
    for body in ({"spec": {"replicas": 2}}, {"spec": {"replicas": 2}},
                 {"metadata": {"labels": {"a": "b"}}}, {"spec": {"milvusSpec": "a: b"}},
                 {"spec": {"milvusSpec": None}}):  # fmt: skip
        versions.append(mo.version_of(side.ask("patch", "milvuses", "x", body=body)))
    side.answers.append([versions.index(one) for one in versions])


def status_and_the_rest_are_apart(side: Side) -> None:
    first = side.ask("create", "milvuses", body=milvus() | {"status": {"replicas": 3}})
    both = {"spec": {"replicas": 7}, "status": {"replicas": 5}}
    side.ask("patch", "milvuses", "x", body=both)
    side.ask("patch", "milvuses/status", "x", body=both)
    labels = {"metadata": {"labels": {"a": "b"}}, "status": {"readyReplicas": 1}}
    side.ask("patch", "milvuses/status", "x", body=labels)
    side.ask("get", "milvuses", "x")
    earlier = {"metadata": {"resourceVersion": mo.version_of(first)}}
    side.ask("patch", "milvuses/status", "x", body=earlier | {"status": {"replicas": 1}})
    side.ask("patch", "milvuses", "x", body=earlier | {"spec": {"replicas": 2}})


def a_pod_is_adopted_by_its_uid(side: Side) -> None:
    made = side.ask("create", "milvuses", body=milvus())
    side.ask("create", "pods", body=pod(labels={"a": "b", "c": "d"}))
    owner = mo.owner_reference(made)
    other = owner | {"name": "other", "uid": OTHER_UID, "controller": False, "kind": "Other"}
    for reference in (owner, other, owner):
        body = {"metadata": {"ownerReferences": [reference], "labels": {"a": None, "e": "f"}}}
        side.ask("patch", "pods", "x-0", body=body, content_type=STRATEGIC)
    side.ask("patch", "pods", "x-0", body={"metadata": {"ownerReferences": []}})
    metadata = {"uid": OTHER_UID, "labels": {"a": "b"}}
    side.ask("patch", "pods", "x-0", body={"metadata": metadata})
    metadata["resourceVersion"] = OTHER_VERSION
    side.ask("patch", "pods", "x-0", body={"metadata": metadata})


def deletes_with_preconditions(side: Side) -> None:
    for resource, name, body in (("pods", "x-0", pod()), ("milvuses", "x", milvus()),
                                 ("claims", "data-x-0", CLAIM)):  # fmt: skip
        made = side.ask("create", resource, body=body)
        side.ask("delete", resource, name, body={"preconditions": {"uid": OTHER_UID}})
        conditions = {"uid": mo.uid_of(made), "resourceVersion": OTHER_VERSION}
        side.ask("delete", resource, name, body={"preconditions": conditions})
        if resource != "claims":  # a controller and a finalizer have their say there
            conditions = {"uid": mo.uid_of(made), "resourceVersion": mo.version_of(made)}
            side.ask("delete", resource, name, body={"preconditions": conditions})
            side.ask("get", resource, name)


def what_is_deleted_ends_in_its_own_time(side: Side) -> None:
    side.ask("create", "pods", body=pod(finalizers=["test/hold"]))
    side.ask("create", "milvuses", body=milvus())
    side.ask("patch", "milvuses", "x", body={"metadata": {"finalizers": ["test/hold"]}})
    for resource, name in (("pods", "x-0"), ("milvuses", "x")):
        side.ask("delete", resource, name)
        side.ask("delete", resource, name)
        side.ask("get", resource, name)
        side.ask("patch", resource, name, body={"metadata": {"finalizers": None}})
        side.ask("get", resource, name)
    made = side.ask("create", "pods", body=pod(node="nowhere"))
    for _ in range(2):
        side.ask("delete", "pods", "x-0", body={"preconditions": {"uid": mo.uid_of(made)}})
    side.ask("patch", "pods", "x-0", body={"metadata": {"labels": {"a": "b"}}})
    side.ask("delete", "pods", "x-0", body={"gracePeriodSeconds": 0})
    side.ask("get", "pods", "x-0")


def lists_by_label_and_in_pages(side: Side) -> None:
    for number, labels in enumerate(({"a": "1"}, {"a": "1", "b": "2"}, {"a": "2"}, {"c": ""})):
        side.ask("create", "pods", body=pod(f"p-{number}", labels=labels))
    for selector in ("a=1", "a=1,b=2", "b", ""):
        side.ask("get", "pods", label_selector=selector)
    for number in range(5):
        side.ask("create", "milvuses", body=milvus(f"m-{number}"))
    page = side.ask("get", "milvuses", limit=2)
    side.ask("delete", "milvuses", "m-3")
    side.ask("create", "milvuses", body=milvus("m-9"))
    while token := page["metadata"].get("continue"):
        page = side.ask("get", "milvuses", limit=2, _continue=token)
    side.ask("get", "milvuses", limit=5)


@pytest.mark.parametrize("case", [
    creates, dry_runs_change_nothing, what_is_not_there, status_and_the_rest_are_apart,
    only_a_change_counts_and_of_the_generation_only_one_of_the_spec, a_pod_is_adopted_by_its_uid,
    deletes_with_preconditions, what_is_deleted_ends_in_its_own_time, lists_by_label_and_in_pages,
])  # fmt: skip
def test_both_servers_give_the_same_answers(case: Callable[[Side], None], kube: Kube) -> None:
    memory, real = Side(MemoryServer().client(), "in-memory"), Side(kube.api, kube.ns)
    case(memory)
    case(real)
    assert memory.answers == real.answers
