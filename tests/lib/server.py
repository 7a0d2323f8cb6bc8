"""An API server in memory: objects with UIDs, versions, finalizers and grace periods; requests with
preconditions, dry runs and pages. `tests/test_server.py` compares it with a real one.

No spec is validated, and each patch is a merge patch. What a cluster does on its own happens only
when a test says so: pods run, fail and end by `run_pods`, `fail` and `finish_deletions`.
"""

import itertools
from collections import Counter
from typing import Any

import milvus_operator as mo
from tests.lib.front import Front, Obj, Rejected, Request

NAMESPACE = "test"  # where objects are, unless a test says otherwise
TIME = "2026-01-01T00:00:00Z"  # when all is created and deleted
QUERY = {"dryRun", "limit", "continue", "labelSelector", "fieldValidation", "fieldManager"}
# What the server adds to a new object.
ADDED: dict[str, Obj] = {
    "milvuses": {"spec": {"replicas": 1}, "status": {"observedGeneration": -1}},
    "pods": {"status": {"phase": "Pending"}},
    "persistentvolumeclaims": {"status": {"phase": "Pending"}},
    "services": {},
    "events": {},
}


class MemoryServer(Front):
    """The server. Each resource has versions of its own, as in an etcd of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.versions = Counter[str]()  # the last one, by plural
        self.objects = dict[tuple[str, str, str], Obj]()  # by plural, namespace and name
        self.numbers = itertools.count(1)

    # --- For the tests, and what happens in a cluster ---
    def ask(self, verb: str, resource: str, name: str, body: Obj) -> Obj:
        """A request of the test itself, past journal and rules. Raises Rejected."""
        metadata = body.get("metadata", {})
        namespace = metadata.get("namespace") or NAMESPACE
        with self.lock:
            return self.serve(Request(verb, resource, namespace, name, body))

    def all_of(self, plural: str) -> list[Obj]:
        with self.lock:
            return [self.objects[key] for key in sorted(self.objects) if key[0] == plural]

    def set_pod(self, name: str, ready: bool = False, **status: Any) -> None:
        """Put a pod on a node, with this status: phase, reason, message …"""
        conditions = [{"type": "Ready", "status": str(ready)}]
        status = {"phase": "Running", "conditions": conditions} | status
        with self.lock:
            old = self.objects["pods", NAMESPACE, name]
            new = merge(old, {"spec": {"nodeName": "node-0"}, "status": status})
            self.put("pods", new)

    def run_pods(self) -> None:
        """Every pod that is Pending runs and is Ready, if its claims are there."""
        for pod in self.all_of("pods"):
            sources = [
                volume.get("persistentVolumeClaim") for volume in pod["spec"].get("volumes", [])
            ]
            claims = [source["claimName"] for source in sources if source]
            keys = [("persistentvolumeclaims", mo.namespace_of(pod), claim) for claim in claims]
            is_waiting = pod["status"]["phase"] == "Pending" and not mo.is_ending(pod)
            if is_waiting and all(key in self.objects for key in keys):
                self.set_pod(mo.name_of(pod), ready=True)

    def fail(self, name: str) -> None:
        self.set_pod(name, phase="Failed", reason="Evicted")

    def finish_deletions(self) -> None:
        """The grace periods are over: what is ending goes, unless a finalizer keeps it."""
        with self.lock:
            for key, obj in [*self.objects.items()]:
                if mo.is_ending(obj):
                    end = {"deletionGracePeriodSeconds": 0}
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
        """A page of a list."""
        plural = request.plural
        found = [obj for obj in self.all_of(plural) if is_listed(request, obj)]
        start = int(request.query.get("continue", 0))
        end = start + int(request.query.get("limit", len(found)))
        metadata = {"resourceVersion": str(self.versions[plural])}
        if found[end:]:
            metadata["continue"] = str(end)
        items = found[start:end]
        if plural != "milvuses":  # built-in kinds are listed without their kind
            items = [without(obj, "kind", "apiVersion") for obj in items]
        return {"metadata": metadata, "items": items}

    def create(self, request: Request) -> Obj:
        if not request.name:
            start = request.body["metadata"]["generateName"]
            request.name = f"{start}{next(self.numbers):05}"
        metadata = {
            "name": request.name,
            "namespace": request.namespace,
            "uid": f"uid-{next(self.numbers)}",
            "generation": 1,
            "creationTimestamp": TIME,
        }
        if request.key in self.objects:
            title = f'{request.plural} "{request.name}"'
            raise Rejected(409, "AlreadyExists", f"{title} already exists")
        obj = merge(ADDED[request.plural], without(request.body, "status"))
        return self.store(request, merge(obj, {"metadata": metadata}))

    def patch(self, request: Request) -> Obj:
        old = self.find(request)
        new = merge(old, request.body)
        if new["metadata"]["resourceVersion"] != old["metadata"]["resourceVersion"]:
            raise Rejected(409, "Conflict", "the object has been modified")
        if request.resource.endswith("/status"):
            new = old | {"status": new.get("status")}
        else:
            new["status"] = old["status"]
        if new == old:
            return old
        if new.get("spec") != old.get("spec"):
            generation = old["metadata"]["generation"] + 1
            new = merge(new, {"metadata": {"generation": generation}})
        return self.store(request, new)

    def delete(self, request: Request) -> Obj:
        obj = self.find(request)
        metadata = obj["metadata"]
        asked = request.body.get("preconditions") or {}
        if metadata | asked != metadata:
            raise Rejected(409, "Conflict", f"not what the preconditions say: {asked}")
        grace = request.body.get("gracePeriodSeconds", 30)
        if mo.is_ending(obj) and grace:
            return obj
        is_on_node = request.plural == "pods" and "nodeName" in obj["spec"]
        if not is_on_node or obj["status"]["phase"] in ("Failed", "Succeeded"):
            grace = 0
        end = {
            "generation": metadata["generation"] + 1,
            "deletionTimestamp": TIME,
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


def is_listed(request: Request, obj: Obj) -> bool:
    """Whether it is in the namespace and has the label that the request asks for."""
    labels = obj["metadata"].get("labels") or {}
    there = ["", *labels, *(f"{key}={value}" for key, value in labels.items())]
    is_selected = request.query.get("labelSelector", "") in there
    return is_selected and request.namespace in ("", obj["metadata"]["namespace"])


def without(obj: Obj, *keys: str) -> Obj:
    return {key: value for key, value in obj.items() if key not in keys}


def merge(old: Obj, patch: Obj) -> Obj:
    """The object as a merge patch leaves it."""
    new = dict(old)
    for key, value in patch.items():
        before = old.get(key)
        if value is None:
            new.pop(key, None)
        elif isinstance(value, dict):
            new[key] = merge(before if isinstance(before, dict) else {}, value)
        else:
            new[key] = value
    return new
