"""The server in memory responds as a real API server does: both get the same requests, and their
responses may differ only in UIDs, versions, times and words."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml

import milvus_operator as mo
from tests.lib.kit import MERGE, Kube, Obj
from tests.lib.server import MemoryServer

# What is created, unless a body says otherwise. No scheduler sees the pod, so it stays as it is.
NEW = """
milvuses: {apiVersion: zilliz.com/v1, kind: Milvus, metadata: {name: x}, spec: {image: "a:1"}}
pods: {apiVersion: v1, kind: Pod, metadata: {name: x}, spec: {schedulerName: nobody,
  containers: [{name: c, image: "a:1"}]}}
"""

# UID and VERSION are those of the last object that was created; TOKEN leads to the next page.
REQUESTS = {
    "a Milvus is created once, and deleted if it is the one that is meant": """
    POST milvuses {spec: {replicas: 2}, status: {replicas: 3}}
    POST milvuses
    DELETE milvuses/x {preconditions: {uid: UID, resourceVersion: "999999999"}}
    DELETE milvuses/x {preconditions: {uid: UID, resourceVersion: "VERSION"}}
    DELETE milvuses/x
    """,
    "so is a pod, whose name is taken until it is gone": """
    POST pods?dryRun=All&fieldValidation=Strict
    POST pods {metadata: {finalizers: [test/hold]}}
    POST pods
    DELETE pods/x {preconditions: {uid: OTHER}}
    DELETE pods/x {preconditions: {uid: UID}, dryRun: [All]}
    GET pods/x
    DELETE pods/x {preconditions: {uid: UID, resourceVersion: "VERSION"}}
    POST pods
    PATCH pods/x {metadata: {finalizers: null}}
    GET pods/x
    """,
    "only a change makes a new version, one of the spec a new generation; the status is apart": """
    POST milvuses
    PATCH milvuses/x {spec: {replicas: 2}}
    PATCH milvuses/x {spec: {replicas: 2}}
    PATCH milvuses/x {metadata: {labels: {a: b}}}
    PATCH milvuses/x?dryRun=All {spec: {replicas: 3}}
    GET milvuses/x
    PATCH milvuses/x {spec: {replicas: 7}, status: {replicas: 5}}
    PATCH milvuses/x/status {spec: {replicas: 8}, status: {replicas: 5}}
    GET milvuses/x
    PATCH milvuses/x/status {metadata: {resourceVersion: "VERSION"}, status: {}}
    """,
    "what is being deleted ends when its finalizers are gone, a pod after its grace period": """
    POST milvuses {metadata: {finalizers: [test/hold]}}
    DELETE milvuses/x
    PATCH milvuses/x {metadata: {finalizers: null}}
    GET milvuses/x
    POST pods {spec: {nodeName: nowhere}}
    DELETE pods/x
    GET pods/x
    DELETE pods/x {gracePeriodSeconds: 0}
    GET pods/x
    """,
    "lists are filtered by labels, and come in pages": """
    POST pods {metadata: {name: a, labels: {a: "2"}}}
    POST pods {metadata: {name: b, labels: {a: "1", b: "2"}}}
    GET pods?labelSelector=a=1
    GET pods?labelSelector=b
    POST milvuses {metadata: {name: a}}
    POST milvuses {metadata: {name: b}}
    GET milvuses?limit=1
    GET milvuses?limit=1&continue=TOKEN
    """,
}
METADATA = ("name", "generation", "labels", "finalizers", "deletionGracePeriodSeconds")
STATUS = ("phase", "observedGeneration", "replicas")
GENERATED = ("uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "continue")


def comparable(obj: Obj) -> Any:
    """What the operator reads of an object, or of a list and its items."""
    metadata = obj["metadata"]
    seen = mo.pick(metadata, METADATA) | mo.pick(obj.get("status", {}), STATUS)
    seen["desired"] = obj.get("spec", {}).get("replicas")
    seen["generated"] = [key for key in GENERATED if metadata.get(key)]
    seen["owners"] = [owner["kind"] for owner in metadata.get("ownerReferences") or []]
    return [seen, *map(comparable, obj.get("items", []))]


class Side:
    """One of the two servers."""

    def __init__(self, send: Callable[..., Any]) -> None:
        self.send = send
        self.words = dict[str, str]()
        self.version = ""  # in the last response

    def ask(self, namespace: str, line: str) -> Any:
        """Send a request; returns what can be compared of the response."""
        for word, value in self.words.items():
            line = line.replace(word, value)
        verb, target, *rest = line.split(maxsplit=2)
        body = yaml.safe_load(rest[0]) if rest else {}
        new = yaml.safe_load(NEW)[re.split("[/?]", target)[0]]
        if verb == "POST":
            body = mo.overlay(new, body)
        root = "api/v1" if new["kind"] == "Pod" else "apis/zilliz.com/v1"
        path = f"/{root}/namespaces/{namespace}/{target}"
        headers = {"Content-Type": MERGE if verb == "PATCH" else "application/json"}
        response = self.send(verb, path, headers, body=json.dumps(body))
        found = json.loads(response.data)
        if response.status >= 400 or verb == "DELETE":  # whose response the operator does not read
            return response.status, found.get("reason")
        version = found["metadata"].get("resourceVersion", "")
        is_changed = verb == "PATCH" and not mo.is_ending(found) and version != self.version
        self.version = version
        if "items" in found:
            self.words["TOKEN"] = found["metadata"].get("continue", "")
        if verb == "POST":
            self.words |= {"UID": mo.uid_of(found), "VERSION": version}
        return response.status, is_changed, comparable(found)


@pytest.mark.parametrize("case", REQUESTS)
def test_both_servers_respond_alike(case: str, kube: Kube) -> None:
    memory, real = Side(MemoryServer().request), Side(kube.request)
    for line in REQUESTS[case].strip().splitlines():
        assert memory.ask(kube.ns, line) == real.ask(kube.ns, line), line
