"""An API server in memory: objects with UIDs, versions, finalizers and grace periods; requests with
preconditions, dry runs, pages and quotas. `tests/test_server.py` compares it with a real one.

No spec is validated. What a cluster does on its own happens only when a test says so: pods run,
fail and end by `run_pods`, `fail` and `finish_deletions`.
"""

import itertools
import uuid
from collections import Counter
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from tests.lib.front import STATUS, Front, Obj, Refused, Request
from tests.lib.judge import is_ending

NAMESPACE = "test"  # where objects are, unless a test says otherwise
MERGE_KEYS = {"ownerReferences": "uid", "conditions": "type"}  # of a strategic merge patch
PROTECTION = "kubernetes.io/pvc-protection"  # a finalizer that every claim gets
QUERY = {"dryRun", "limit", "continue", "labelSelector", "fieldValidation", "fieldManager"}
PRECONDITIONS = {
    "uid": ("UID", "deleted and then recreated"),
    "resourceVersion": ("ResourceVersion", "modified"),
}
CONFLICT = "Operation cannot be fulfilled on"


class Kind(NamedTuple):
    """A kind of object; `new` is what the server adds to one that is created."""

    version: str
    name: str
    new: Obj


COUNTED = {"generation": 1}
PENDING = {"phase": "Pending"}
NEW_MILVUS = {"spec": {"replicas": 1}, "status": {"observedGeneration": -1}, "metadata": COUNTED}
NEW_CLAIM = {"status": PENDING, "metadata": {"finalizers": [PROTECTION]}}
KINDS = {
    "milvuses": Kind("zilliz.com/v1", "Milvus", NEW_MILVUS),
    "pods": Kind("v1", "Pod", {"status": PENDING, "metadata": COUNTED}),
    "persistentvolumeclaims": Kind("v1", "PersistentVolumeClaim", NEW_CLAIM),
    "events": Kind("events.k8s.io/v1", "Event", {}),
}


class MemoryServer(Front):
    """The server. Each resource has versions of its own, as in an etcd of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.versions = Counter[str]()  # the last one, by plural
        self.objects: dict[tuple[str, str, str], Obj] = {}  # by plural, namespace and name
        self.pages: dict[str, tuple[str, list[Obj]]] = {}  # the rest of a list, by its token
        self.quota: dict[str, int] = {}  # for each namespace, by plural
        self.numbers = itertools.count(1)

    # --- For the tests, and what happens in a cluster ---
    def ask(self, verb: str, resource: str, name: str = "", body: Obj | None = None,
            namespace: str = NAMESPACE) -> Obj:  # fmt: skip
        """A request of the test itself, past journal and rules. Raises Refused."""
        with self.lock:
            return self.serve(Request(verb, resource, namespace, name, body or {}))

    def all_of(self, plural: str) -> list[Obj]:
        with self.lock:
            return [self.objects[key] for key in sorted(self.objects) if key[0] == plural]

    def set_pod(self, name: str, ready: bool = False, namespace: str = NAMESPACE,
                **status: Any) -> None:  # fmt: skip
        """Put a pod on a node, with this status: phase, reason, message …"""
        conditions = [{"type": "Ready", "status": str(ready)}]
        status = {"phase": "Running", "conditions": conditions} | status
        with self.lock:
            old = self.objects["pods", namespace, name]
            new = merge(old, {"spec": {"nodeName": "node-0"}, "status": status})
            if new != old:
                self.put("pods", new)

    def run_pods(self) -> None:
        """Every pod that is Pending runs and is Ready."""
        for pod in self.all_of("pods"):
            if pod["status"]["phase"] == "Pending" and not is_ending(pod):
                self.set_pod(pod["metadata"]["name"], True, pod["metadata"]["namespace"])

    def fail(self, name: str) -> None:
        self.set_pod(name, phase="Failed", reason="Evicted")

    def finish_deletions(self) -> None:
        """The grace periods are over: what is ending goes, unless a finalizer keeps it."""
        with self.lock:
            for (plural, _, _), obj in list(self.objects.items()):
                if is_ending(obj):
                    finalizers = obj["metadata"].get("finalizers") or []
                    left = [finalizer for finalizer in finalizers if finalizer != PROTECTION]
                    end = {"deletionGracePeriodSeconds": 0, "finalizers": left}
                    self.put(plural, merge(obj, {"metadata": end}))

    # --- Requests ---
    def serve(self, request: Request) -> Obj:
        if request.plural not in KINDS:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        if request.query.keys() - QUERY:
            raise Refused(400, "BadRequest", f"not known in memory: {request.query}")
        verbs = {"get": self.find, "list": self.page, "create": self.create}
        verbs |= {"patch": self.patch, "delete": self.delete}
        return verbs[request.verb](request)

    def find(self, request: Request) -> Obj:
        if request.key not in self.objects:
            raise Refused(404, "NotFound", f"{title(request)} not found")
        return self.objects[request.key]

    def page(self, request: Request) -> Obj:
        """A page of a list; those that follow show what was there at the first."""
        kind = KINDS[request.plural]
        token = request.query.get("continue")
        if not token:
            version = str(self.versions[request.plural])
            found = [obj for obj in self.all_of(request.plural) if is_listed(request, obj)]
        elif token in self.pages:
            version, found = self.pages[token]
        else:
            raise Refused(410, "Expired", "The provided continue parameter is too old")
        limit = int(request.query.get("limit") or 0) or len(found)
        metadata = {"resourceVersion": version}
        if found[limit:]:
            metadata["continue"] = f"page-{next(self.numbers)}"
            self.pages[metadata["continue"]] = version, found[limit:]
        items = found[:limit]
        if request.plural != "milvuses":  # built-in kinds are listed without their kind
            items = [without(obj, "kind", "apiVersion") for obj in items]
        head = {"kind": f"{kind.name}List", "apiVersion": kind.version}
        return head | {"metadata": metadata, "items": items}

    def create(self, request: Request) -> Obj:
        kind = KINDS[request.plural]
        if not request.name:
            request.name = f"{request.body['metadata']['generateName']}{next(self.numbers):05}"
        metadata = {"name": request.name, "namespace": request.namespace}
        metadata["uid"] = str(uuid.UUID(int=next(self.numbers)))
        metadata["creationTimestamp"] = self.timestamp()
        obj = merge(kind.new, without(request.body, "status"))
        obj = {"kind": kind.name, "apiVersion": kind.version} | merge(obj, {"metadata": metadata})
        self.check_quota(request)
        if request.key in self.objects:
            ending = "object is being deleted: " if is_ending(self.objects[request.key]) else ""
            raise Refused(409, "AlreadyExists", f"{ending}{title(request)} already exists")
        return obj if request.dry_run else self.put(request.plural, obj)

    def check_quota(self, request: Request) -> None:
        plural, most = request.plural, self.quota.get(request.plural)
        if most is None:
            return
        there = [obj for obj in self.all_of(plural) if is_listed(request, obj)]
        used = sum(not is_finished(obj) for obj in there)
        if used >= most:
            counts = f"requested: {plural}=1, used: {plural}={used}, limited: {plural}={most}"
            text = f"{title(request)} is forbidden: exceeded quota: quota, {counts}"
            raise Refused(403, "Forbidden", text)

    def patch(self, request: Request) -> Obj:
        old = self.find(request)
        strategic = "strategic" in request.content_type
        if strategic and request.plural == "milvuses":
            raise Refused(415, "UnsupportedMediaType", "not for custom resources")
        new = merge(old, request.body, MERGE_KEYS if strategic else {})
        if new["metadata"]["resourceVersion"] != old["metadata"]["resourceVersion"]:
            text = "the object has been modified; please apply your changes to the latest version"
            raise Refused(409, "Conflict", f"{CONFLICT} {title(request)}: {text} and try again")
        if new["metadata"]["uid"] != old["metadata"]["uid"]:
            value = new["metadata"]["uid"]
            text = f'metadata.uid: Invalid value: "{value}": field is immutable'
            raise Refused(422, "Invalid", f"{title(request, of_kind=True)} is invalid: {text}")
        if request.resource.endswith("/status"):
            new = old | {"status": new.get("status")}
        else:
            new |= {"status": old["status"]}
        if new == old:
            return old
        if without(new, "metadata", "status") != without(old, "metadata", "status"):
            new = counted_on(new)
        return new if request.dry_run else self.put(request.plural, new)

    def delete(self, request: Request) -> Obj:
        obj = self.find(request)
        metadata = obj["metadata"]
        for key, (word, hint) in PRECONDITIONS.items():
            asked = (request.body.get("preconditions") or {}).get(key, metadata[key])
            if asked != metadata[key]:
                text = f"the {word} in the precondition ({asked}) does not match the {word}"
                text = f"{text} in record ({metadata[key]}). The object might have been {hint}"
                raise Refused(409, "Conflict", f"{CONFLICT} {title(request, of_kind=True)}: {text}")
        grace = request.body.get("gracePeriodSeconds")
        if is_ending(obj) and (grace is None or grace >= metadata["deletionGracePeriodSeconds"]):
            return obj
        runs = request.plural == "pods" and obj["spec"].get("nodeName") and not is_finished(obj)
        grace = (30 if grace is None else grace) if runs else 0
        end = {"deletionTimestamp": self.timestamp(grace), "deletionGracePeriodSeconds": grace}
        ending = merge(obj if is_ending(obj) else counted_on(obj), {"metadata": end})
        if not request.dry_run:
            ending = self.put(request.plural, ending)
        if request.plural == "milvuses" and request.key not in self.objects:
            return STATUS | {"status": "Success"}
        return ending

    # --- What is stored ---
    def put(self, plural: str, obj: Obj) -> Obj:
        """Store an object with its next version; one that has ended is gone."""
        self.versions[plural] += 1
        obj = merge(obj, {"metadata": {"resourceVersion": str(self.versions[plural])}})
        metadata = obj["metadata"]
        key = plural, metadata["namespace"], metadata["name"]
        has_ended = metadata.get("deletionGracePeriodSeconds") == 0
        if has_ended and not metadata.get("finalizers"):
            self.objects.pop(key, None)
        else:
            self.objects[key] = obj
        return obj

    def timestamp(self, later: float = 0) -> str:
        time = datetime(2026, 1, 1) + timedelta(seconds=self.clock.now() + later)
        return time.isoformat(timespec="seconds") + "Z"


def title(request: Request, of_kind: bool = False) -> str:
    """What it is about, as messages name it: pods "x-0", or by its kind: Pod "x-0"."""
    kind = KINDS[request.plural]
    group = kind.version.rpartition("/")[0]
    what = kind.name if of_kind else request.plural
    return f'{what}{"." if group else ""}{group} "{request.name}"'


def is_finished(obj: Obj) -> bool:
    return obj.get("status", {}).get("phase") in ("Failed", "Succeeded")


def is_listed(request: Request, obj: Obj) -> bool:
    labels = obj["metadata"].get("labels") or {}
    for term in filter(None, request.query.get("labelSelector", "").split(",")):
        key, _, value = term.partition("=")
        if key not in labels or value not in ("", labels[key]):
            return False
    return request.namespace in ("", obj["metadata"]["namespace"])


def counted_on(obj: Obj) -> Obj:
    """With the next generation, if it has any."""
    generation = obj["metadata"].get("generation")
    return merge(obj, {"metadata": {"generation": generation + 1}}) if generation else obj


def without(obj: Obj, *keys: str) -> Obj:
    return {key: value for key, value in obj.items() if key not in keys}


def merge(old: Obj, patch: Obj, merge_keys: dict[str, str] | None = None) -> Obj:
    """The object as a merge patch leaves it; lists with a merge key are merged by that."""
    new = dict(old)
    for key, value in patch.items():
        before = old.get(key)
        by = (merge_keys or {}).get(key)
        if value is None:
            new.pop(key, None)
        elif isinstance(value, dict):
            new[key] = merge(before if isinstance(before, dict) else {}, value, merge_keys)
        elif by and isinstance(before, list):
            changed = {item[by]: item for item in value}
            kept = [item | changed.pop(item[by], {}) for item in before]
            new[key] = [*changed.values(), *kept]
        else:
            new[key] = value
    return new
