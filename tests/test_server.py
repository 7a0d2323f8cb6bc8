"""The server in memory responds as a real API server does: both get the same requests, and their
responses may differ only in UIDs, versions and times."""

import json
import re
from typing import Any

import pytest
import yaml
from kubernetes.client import ApiClient

import milvus_operator as mo
from tests.lib.kit import Kube, Obj
from tests.lib.server import MemoryServer

# What is created, unless a body says otherwise. No scheduler sees the pod, so it stays as it is.
NEW = """
milvuses: {apiVersion: zilliz.com/v1, kind: Milvus, metadata: {name: x}, spec: {image: "a:1"}}
pods:
  apiVersion: v1
  kind: Pod
  metadata: {name: x}
  spec: {schedulerName: nobody, containers: [{name: c, image: "a:1"}]}
persistentvolumeclaims:
  apiVersion: v1
  kind: PersistentVolumeClaim
  metadata: {name: x}
  spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
"""

# UID and VERSION are those of the last object that was created; TOKEN leads to the next page.
REQUESTS = {
    "a Milvus is created once, and deleted if it is the one that is meant": """
    POST milvuses?dryRun=All
    GET milvuses/x
    POST milvuses {spec: {replicas: 2}, status: {replicas: 3}}
    POST milvuses
    POST milvuses?dryRun=All
    DELETE milvuses/x {preconditions: {uid: OTHER}}
    DELETE milvuses/x {preconditions: {uid: UID, resourceVersion: "999999999"}}
    DELETE milvuses/x {preconditions: {uid: UID, resourceVersion: "VERSION"}}
    GET milvuses/x
    DELETE milvuses/x
    """,
    "so is a pod, whose name is taken until it is gone, and a claim": """
    POST pods?dryRun=All&fieldValidation=Strict
    POST pods {metadata: {finalizers: [test/hold]}}
    POST pods
    DELETE pods/x {preconditions: {uid: OTHER}}
    DELETE pods/x {preconditions: {uid: UID}, dryRun: [All]}
    GET pods/x
    DELETE pods/x {preconditions: {uid: UID, resourceVersion: "VERSION"}}
    POST pods
    PATCH pods/x {metadata: {finalizers: null}}
    DELETE pods/x
    POST pods {metadata: {name: null, generateName: made-}}
    POST persistentvolumeclaims
    POST persistentvolumeclaims
    """,
    "only a change makes a new version, and only one of the spec a new generation": """
    POST milvuses
    PATCH milvuses/x {spec: {replicas: 2}}
    PATCH milvuses/x {spec: {replicas: 2}}
    PATCH milvuses/x {metadata: {labels: {a: b}}}
    PATCH milvuses/x {spec: {milvusSpec: "a: b"}}
    PATCH milvuses/x {spec: {milvusSpec: null}}
    PATCH milvuses/x?dryRun=All {spec: {replicas: 3}}
    GET milvuses/x
    """,
    "status and spec are apart, and a patch of an earlier version is a conflict": """
    POST milvuses
    PATCH milvuses/x {spec: {replicas: 7}, status: {replicas: 5}}
    PATCH milvuses/x/status {spec: {replicas: 8}, status: {replicas: 5}}
    GET milvuses/x
    PATCH milvuses/x/status {metadata: {resourceVersion: "VERSION"}, status: {}}
    PATCH milvuses/x {metadata: {resourceVersion: "VERSION"}}
    """,
    "a strategic patch adds an owner, and a patch of another pod is a conflict": """
    POST pods {metadata: {labels: {a: b, c: d}}}
    STRATEGIC pods/x {metadata: {ownerReferences: [{apiVersion: v1, kind: A, name: a, uid: UID}]}}
    STRATEGIC pods/x {metadata: {ownerReferences: [{apiVersion: v1, kind: B, name: b, uid: OTHER}]}}
    STRATEGIC pods/x {metadata: {ownerReferences: [{apiVersion: v1, kind: A, name: a, uid: UID}]}}
    PATCH pods/x {metadata: {ownerReferences: [], labels: {a: null, e: f}}}
    PATCH pods/x {metadata: {uid: OTHER, labels: {a: b}}}
    """,
    "what is being deleted ends when its finalizers are gone": """
    POST milvuses {metadata: {finalizers: [test/hold]}}
    DELETE milvuses/x
    DELETE milvuses/x
    PATCH milvuses/x {metadata: {finalizers: null}}
    GET milvuses/x
    """,
    "... and a pod that runs, after its grace period": """
    POST pods {spec: {nodeName: nowhere}}
    DELETE pods/x
    DELETE pods/x
    DELETE pods/x {gracePeriodSeconds: 0}
    GET pods/x
    """,
    "lists are filtered by labels, and their pages show what there was at the first": """
    POST pods {metadata: {name: a, labels: {a: "1"}}}
    POST pods {metadata: {name: b, labels: {a: "1", b: "2"}}}
    POST pods {metadata: {name: c, labels: {a: "2"}}}
    GET pods?labelSelector=a=1
    GET pods?labelSelector=a=1,b=2
    GET pods?labelSelector=b
    POST milvuses {metadata: {name: a}}
    POST milvuses {metadata: {name: b}}
    POST milvuses {metadata: {name: d}}
    GET milvuses?limit=1
    DELETE milvuses/b
    POST milvuses {metadata: {name: c}}
    GET milvuses?limit=1&continue=TOKEN
    GET milvuses?limit=1&continue=TOKEN
    GET milvuses?limit=3
    """,
}
COMPARED = {
    "metadata": ("name", "generation", "labels", "finalizers", "deletionGracePeriodSeconds"),
    "spec": ("replicas", "milvusSpec"),
    "status": ("phase", "observedGeneration", "replicas"),
}
GENERATED = ("uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "continue")


def comparable(obj: Obj) -> Any:
    """What the operator reads of an object, or of a list and its items."""
    seen = mo.pick(obj, ("kind", "reason", "message"))
    for part, keys in COMPARED.items():
        found = obj.get(part)
        if isinstance(found, dict):  # the status of an error is text
            seen[part] = mo.pick(found, keys)
    metadata = obj["metadata"]
    seen["generated"] = [key for key in GENERATED if metadata.get(key)]
    seen["owners"] = [owner["kind"] for owner in metadata.get("ownerReferences") or []]
    return [seen, *map(comparable, obj.get("items", []))]


class Side:
    """One of the two servers."""

    def __init__(self, api: ApiClient, namespace: str) -> None:
        self.pool = api.rest_client.pool_manager
        self.url = api.configuration.host
        self.token = api.configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        self.namespace = namespace
        self.words = {"OTHER": "00000000-0000-0000-0000-00000000abcd"}
        self.version = ""  # in the last response

    def ask(self, line: str) -> str:
        """Send a request; returns what can be compared of the response, as text."""
        for word, value in self.words.items():
            line = line.replace(word, value)
        verb, target, *rest = line.split(maxsplit=2)
        body = yaml.safe_load(rest[0]) if rest else {}
        new = yaml.safe_load(NEW)[re.split("[/?]", target)[0]]
        if verb == "POST":
            body = mo.overlay(new, body)
        root = "api/v1" if new["apiVersion"] == "v1" else f"apis/{new['apiVersion']}"
        patch = "strategic-merge-patch" if verb == "STRATEGIC" else "merge-patch"
        kind = "application/json" if verb in ("POST", "DELETE") else f"application/{patch}+json"
        response = self.pool.request(
            verb.replace("STRATEGIC", "PATCH"),
            f"{self.url}/{root}/namespaces/{self.namespace}/{target}",
            headers={"Authorization": str(self.token), "Content-Type": kind},
            body=json.dumps(body),
        )
        found = json.loads(response.data)
        metadata = found["metadata"]
        version = metadata.get("resourceVersion", "")
        is_changed = "PATCH" in verb and not mo.is_ending(found) and version != self.version
        self.version = version
        if "items" in found:
            self.words["TOKEN"] = metadata.get("continue", "")
        if verb == "POST" and "uid" in metadata:
            self.words |= {"UID": metadata["uid"], "VERSION": version}
        seen = json.dumps([response.status, is_changed, comparable(found)], sort_keys=True)
        seen = seen.replace(self.namespace, "NAMESPACE")
        return re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-\w{12}|\(\d+\)|\bmade-\w{5}\b", "", seen)


@pytest.mark.parametrize("case", REQUESTS)
def test_both_servers_respond_alike(case: str, kube: Kube) -> None:
    memory = Side(MemoryServer().client(), "in-memory")
    real = Side(kube.api, kube.ns)
    for line in REQUESTS[case].strip().splitlines():
        assert memory.ask(line) == real.ask(line), line
