"""An API server in memory: objects with UIDs, versions, finalizers and grace periods; requests with
preconditions, dry runs, pages and quotas. `tests/test_server.py` compares it with a real one.

No spec is validated. What a cluster does on its own happens only when a test says so: pods run,
fail and end by `run_pods`, `fail` and `finish_deletions`.
"""

import itertools
import math
import uuid
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import milvus_operator as mo
from tests.lib.front import Front, Obj, Rejected, Request

NAMESPACE = "test"  # where objects are, unless a test says otherwise
PROTECTION = "kubernetes.io/pvc-protection"  # a finalizer that every claim gets
QUERY = {"dryRun", "limit", "continue", "labelSelector", "fieldValidation", "fieldManager"}
# What the server adds to a new object.
ADDED: dict[str, Obj] = {
    "milvuses": {
        "metadata": {"generation": 1},
        "spec": {"replicas": 1},
        "status": {"observedGeneration": -1},
    },
    "pods": {"metadata": {"generation": 1}, "status": {"phase": "Pending"}},
    "persistentvolumeclaims": {
        "metadata": {"finalizers": [PROTECTION]},
        "status": {"phase": "Pending"},
    },
    "events": {"status": {}},
}


class MemoryServer(Front):
    """The server. Each resource has versions of its own, as in an etcd of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.versions = Counter[str]()  # the last one, by plural
        self.objects = dict[tuple[str, str, str], Obj]()  # by plural, namespace and name
        self.pages = dict[str, tuple[str, list[Obj]]]()  # the rest of a list, by its token
        self.quota = dict[str, int]()  # by plural
        self.numbers = itertools.count(1)

    # --- For the tests, and what happens in a cluster ---
    def ask(
        self,
        verb: str,
        resource: str,
        name: str = "",
        body: Obj | None = None,
        namespace: str = NAMESPACE,
    ) -> Obj:
        """A request of the test itself, past journal and rules. Raises Rejected."""
        with self.lock:
            return self.serve(Request(verb, resource, namespace, name, body or {}))

    def all_of(self, plural: str) -> list[Obj]:
        with self.lock:
            return [self.objects[key] for key in sorted(self.objects) if key[0] == plural]

    def set_pod(
        self, name: str, ready: bool = False, namespace: str = NAMESPACE, **status: Any
    ) -> None:
        """Put a pod on a node, with this status: phase, reason, message …"""
        conditions = [{"type": "Ready", "status": str(ready)}]
        status = {"phase": "Running", "conditions": conditions} | status
        with self.lock:
            old = self.objects["pods", namespace, name]
            new = merge(old, {"spec": {"nodeName": "node-0"}, "status": status})
            self.put("pods", new)

    def run_pods(self) -> None:
        """Every pod that is Pending runs and is Ready."""
        for pod in self.all_of("pods"):
            if pod["status"]["phase"] == "Pending" and not mo.is_ending(pod):
                self.set_pod(pod["metadata"]["name"], True, pod["metadata"]["namespace"])

    def fail(self, name: str) -> None:
        self.set_pod(name, phase="Failed", reason="Evicted")

    def finish_deletions(self) -> None:
        """The grace periods are over: what is ending goes, unless a finalizer keeps it."""
        with self.lock:
            for key, obj in [*self.objects.items()]:
                if mo.is_ending(obj):
                    finalizers = {*obj["metadata"].get("finalizers", ())} - {PROTECTION}
                    end = {"deletionGracePeriodSeconds": 0, "finalizers": [*finalizers]}
                    self.put(key[0], merge(obj, {"metadata": end}))

    # --- Requests ---
    def serve(self, request: Request) -> Obj:
        assert request.query.keys() <= QUERY, "not known in memory"
        verbs = {
            "get": self.find,
            "list": self.page,
            "create": self.create,
            "patch": self.patch,
            "delete": self.delete,
        }
        return verbs[request.verb](request)

    def find(self, request: Request) -> Obj:
        if request.key not in self.objects:
            raise Rejected(404, "NotFound", f'{request.plural} "{request.name}" not found')
        return self.objects[request.key]

    def page(self, request: Request) -> Obj:
        """A page of a list; those that follow show what was there at the first."""
        plural = request.plural
        if token := request.query.get("continue"):
            version, found = self.pages[token]
        else:
            version = str(self.versions[plural])
            found = [obj for obj in self.all_of(plural) if is_listed(request, obj)]
        limit = int(request.query.get("limit") or 0) or len(found)
        metadata = {"resourceVersion": version}
        if found[limit:]:
            metadata["continue"] = f"page-{next(self.numbers)}"
            self.pages[metadata["continue"]] = version, found[limit:]
        items = found[:limit]
        if plural != "milvuses":  # built-in kinds are listed without their kind
            items = [without(obj, "kind", "apiVersion") for obj in items]
        return {"metadata": metadata, "items": items}

    def create(self, request: Request) -> Obj:
        if not request.name:
            request.name = f"{request.body['metadata']['generateName']}{next(self.numbers):05}"
        metadata = {
            "name": request.name,
            "namespace": request.namespace,
            "uid": str(uuid.UUID(int=next(self.numbers))),
            "creationTimestamp": self.timestamp(),
        }
        title = f'{request.plural} "{request.name}"'
        used = sum(not is_finished(obj) for obj in self.all_of(request.plural))
        if used >= self.quota.get(request.plural, math.inf):
            text = f"{title} is forbidden: exceeded quota: there are {used}"
            raise Rejected(403, "Forbidden", text)
        if request.key in self.objects:
            raise Rejected(409, "AlreadyExists", f"{title} already exists")
        obj = merge(ADDED[request.plural], without(request.body, "status"))
        return self.store(request, merge(obj, {"metadata": metadata}))

    def patch(self, request: Request) -> Obj:
        old = self.find(request)
        new = merge(old, request.body, "strategic" in request.content_type)
        if new["metadata"]["resourceVersion"] != old["metadata"]["resourceVersion"]:
            raise Rejected(409, "Conflict", "the object has been modified")
        if new["metadata"]["uid"] != old["metadata"]["uid"]:
            raise Rejected(422, "Invalid", "metadata.uid: field is immutable")
        if request.resource.endswith("/status"):
            new = old | {"status": new.get("status")}
        else:
            new["status"] = old["status"]
        if new == old:
            return old
        if new.get("spec") != old.get("spec"):
            new = with_next_generation(new)
        return self.store(request, new)

    def delete(self, request: Request) -> Obj:
        obj = self.find(request)
        metadata = obj["metadata"]
        asked = request.body.get("preconditions") or {}
        if metadata | asked != metadata:
            raise Rejected(409, "Conflict", f"not what the preconditions say: {asked}")
        grace = request.body.get("gracePeriodSeconds")
        if not mo.is_ending(obj):
            obj = with_next_generation(obj)
        elif grace is None or grace >= metadata["deletionGracePeriodSeconds"]:
            return obj
        if request.plural != "pods" or "nodeName" not in obj["spec"] or is_finished(obj):
            grace = 0
        elif grace is None:
            grace = 30
        end = {
            "deletionTimestamp": self.timestamp(grace),
            "deletionGracePeriodSeconds": grace,
        }
        return self.store(request, merge(obj, {"metadata": end}))

    # --- What is stored ---
    def store(self, request: Request, obj: Obj) -> Obj:
        return obj if request.dry_run else self.put(request.plural, obj)

    def put(self, plural: str, obj: Obj) -> Obj:
        """Store an object with its next version; one that has ended is gone."""
        self.versions[plural] += 1
        version = {"resourceVersion": str(self.versions[plural])}
        obj = merge(obj, {"metadata": version})
        metadata = obj["metadata"]
        key = plural, metadata["namespace"], metadata["name"]
        self.objects[key] = obj
        if metadata.get("deletionGracePeriodSeconds") == 0 and not metadata.get("finalizers"):
            del self.objects[key]
        return obj

    def timestamp(self, later: float = 0) -> str:
        seconds = self.clock.now() + later
        time = datetime(2026, 1, 1) + timedelta(seconds=seconds)
        return time.isoformat(timespec="seconds") + "Z"


def is_finished(obj: Obj) -> bool:
    return obj["status"].get("phase") in ("Failed", "Succeeded")


def is_listed(request: Request, obj: Obj) -> bool:
    """Whether it is in the namespace and has the labels that the request asks for."""
    labels = obj["metadata"].get("labels") or {}
    there = {*labels, *(f"{key}={value}" for key, value in labels.items())}
    selector = request.query.get("labelSelector", "")
    is_selected = {*selector.split(",")} - {""} <= there
    return is_selected and request.namespace in ("", obj["metadata"]["namespace"])


def with_next_generation(obj: Obj) -> Obj:
    """If it has any."""
    generation = obj["metadata"].get("generation")
    return merge(obj, {"metadata": {"generation": generation + 1}}) if generation else obj


def without(obj: Obj, *keys: str) -> Obj:
    return {key: value for key, value in obj.items() if key not in keys}


def merge(old: Obj, patch: Obj, is_strategic: bool = False) -> Obj:
    """The object as a merge patch leaves it; a strategic one merges the owners by their UIDs."""
    new = dict(old)
    for key, value in patch.items():
        before = old.get(key)
        if value is None:
            new.pop(key, None)
        elif isinstance(value, dict):
            new[key] = merge(before if isinstance(before, dict) else {}, value, is_strategic)
        elif is_strategic and key == "ownerReferences":
            changed = {owner["uid"]: owner for owner in value}
            kept = [changed.pop(owner["uid"], owner) for owner in before or []]
            new[key] = [*changed.values(), *kept]
        else:
            new[key] = value
    return new
