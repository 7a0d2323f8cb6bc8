"""An API server in memory, which stands in the place of the client's pool of connections.

It knows UIDs, versions, preconditions, finalizers, dry runs, selectors and pages; it validates
nothing. What a cluster does on its own happens only when a test says so: `run_pods`, `end_pods`.
"""

import io
import itertools
import json
import math
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from urllib3 import HTTPResponse

Obj = dict[str, Any]

NAMESPACE = "test"
PATH = re.compile(r"/(?:api|apis/[^/]+)/v1(?:/namespaces/([^/]+))?/([^/]+)/?([^/]*)/?(.*)")
KINDS = {"milvuses": "Milvus", "pods": "Pod", "services": "Service", "events": "Event"}
KINDS["persistentvolumeclaims"] = "PersistentVolumeClaim"


@dataclass
class Request:
    verb: str
    plural: str  # of a status: milvuses/status
    namespace: str
    name: str
    query: dict[str, str]
    body: Obj
    time: float = 0

    def __str__(self) -> str:
        return f"{self.verb} {self.plural} {self.name}".strip()


class Rejected(Exception):
    def __init__(self, code: int, reason: str, message: str) -> None:
        self.code = code
        self.status = {"kind": "Status", "reason": reason, "message": message}


class Server:
    def __init__(self) -> None:
        self.now = 1000.0  # the time, which passes only when a test says so
        self.lock = threading.RLock()
        self.objects: dict[tuple[str, str, str], Obj] = {}  # by plural, namespace and name
        self.journal: list[Request] = []
        self.rules: list[list[Any]] = []  # what they are for, what they do, how often
        self.numbers = itertools.count(1)

    def when(self, what: str, do: Callable[[Request], Any], times: float = math.inf) -> None:
        """A rule for requests such as `create pods`, or only `create pods x-0`: it may raise, or
        return a response."""
        self.rules.append([f"{what} ", do, times])

    def reject(self, what: str, code: int, message: str = "", times: float = math.inf) -> None:
        def do(request: Request) -> None:
            raise Rejected(code, "", message)

        self.when(what, do, times)

    def ask(self, verb: str, plural: str, name: str, body: Obj | None = None) -> Obj:
        """A request of the test itself, past journal and rules. Raises Rejected."""
        with self.lock:
            return self.serve(Request(verb, plural, NAMESPACE, name, {}, body or {}))

    def all_of(self, plural: str) -> list[Obj]:
        return [obj for key, obj in sorted(self.objects.items()) if key[0] == plural]

    def set_pod(self, name: str, **status: Any) -> None:
        """Put a pod on a node, with this status."""
        pod = self.objects["pods", NAMESPACE, name]
        self.store("pods", merge(pod, {"spec": {"nodeName": "node"}, "status": status}))

    def run_pods(self) -> None:
        """Every pod that is Pending runs, and is Ready."""
        ready = [{"type": "Ready", "status": "True"}]
        for pod in self.all_of("pods"):
            if pod["status"]["phase"] == "Pending":
                self.set_pod(pod["metadata"]["name"], phase="Running", conditions=ready)

    def end_pods(self) -> None:
        """The grace periods are over."""
        for (plural, *_), obj in [*self.objects.items()]:
            if "deletionTimestamp" in obj["metadata"]:
                self.store(plural, merge(obj, {"metadata": {"deletionGracePeriodSeconds": 0}}))

    def request(self, method: str, url: str, body: str = "", **_: Any) -> HTTPResponse:
        """As of the pool of connections."""
        match = PATH.fullmatch(urlsplit(url).path)
        assert match, url
        namespace, plural, name, sub = match.groups("")
        content = json.loads(body) if body else {}
        name = name or content.get("metadata", {}).get("name", "")
        verb = {"GET": "get" if name else "list", "POST": "create"}.get(method, method.lower())
        query = dict(parse_qsl(urlsplit(url).query))
        what = f"{plural}/{sub}".rstrip("/")
        request = Request(verb, what, namespace, name, query, content, self.now)
        with self.lock:
            self.journal.append(request)
            rules = [one for one in self.rules if f"{request} ".startswith(one[0]) and one[2]]
            for rule in rules:
                rule[2] -= 1
        code, answer = 200, None
        try:
            for _what, do, _times in rules:
                answer = answer or do(request)
            with self.lock:
                answer = answer or self.serve(request)
        except Rejected as error:
            code, answer = error.code, error.status
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        return HTTPResponse(io.BytesIO(content), status=code, preload_content=False)

    def serve(self, request: Request) -> Obj:
        plural, _, sub = request.plural.partition("/")
        if request.verb == "list":
            return self.page(request)
        if request.verb == "create":
            new = self.created(request)
        else:
            old = self.objects.get((plural, request.namespace, request.name))
            if old is None:
                raise Rejected(404, "NotFound", f'{plural} "{request.name}" not found')
            new = merge(old, changes_of(request, old, sub))
            if request.verb == "get" or new == old:
                return old
            if new.get("spec") != old.get("spec") or request.verb == "delete":
                generation = old["metadata"]["generation"] + 1
                new = merge(new, {"metadata": {"generation": generation}})
        # With a body, the API server ignores the query of a delete.
        is_dry = "dryRun" in (request.body if request.verb == "delete" else request.query)
        return new if is_dry else self.store(plural, new)

    def page(self, request: Request) -> Obj:
        wanted = request.query.get("labelSelector", "")
        found = []
        for obj in self.all_of(request.plural):
            labels = obj["metadata"].get("labels") or {}
            there = ("", *labels, *(f"{key}={labels[key]}" for key in labels))
            if wanted in there and request.namespace in ("", obj["metadata"]["namespace"]):
                found.append(obj)
        start = int(request.query.get("continue", 0))
        end = start + int(request.query.get("limit", 500))
        metadata = {"resourceVersion": str(next(self.numbers))}
        metadata |= {"continue": str(end)} if found[end:] else {}
        kind = f"{KINDS[request.plural]}List"
        return {"kind": kind, "metadata": metadata, "items": found[start:end]}

    def created(self, request: Request) -> Obj:
        name = request.name or f"generated-{next(self.numbers):05}"
        if (request.plural, request.namespace, name) in self.objects:
            raise Rejected(409, "AlreadyExists", f'{request.plural} "{name}" already exists')
        uid = f"uid-{next(self.numbers)}"
        added = {"name": name, "namespace": request.namespace, "uid": uid, "generation": 1}
        obj = {"status": {"phase": "Pending"}} | request.body | {"kind": KINDS[request.plural]}
        return merge(obj, {"metadata": added})

    def store(self, plural: str, obj: Obj) -> Obj:
        """Store an object with its next version; one that has ended is gone."""
        obj = merge(obj, {"metadata": {"resourceVersion": str(next(self.numbers))}})
        metadata = obj["metadata"]
        key = (plural, metadata["namespace"], metadata["name"])
        self.objects[key] = obj
        if metadata.get("deletionGracePeriodSeconds") == 0 and not metadata.get("finalizers"):
            del self.objects[key]
        return obj


def changes_of(request: Request, old: Obj, sub: str) -> Obj:
    """What a patch or a delete changes. Raises Rejected for a precondition that does not hold."""
    expected = request.body.get("preconditions") or {}
    if version := request.body.get("metadata", {}).get("resourceVersion"):
        expected = {"resourceVersion": version}
    if any(old["metadata"][key] != value for key, value in expected.items()):
        raise Rejected(409, "Conflict", f"the object is not as expected: {expected}")
    if request.verb == "delete":
        grace = request.body.get("gracePeriodSeconds", 30 if "nodeName" in old["spec"] else 0)
        ending = {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": grace}
        return {"metadata": ending}
    return {key: part for key, part in request.body.items() if (key == "status") == bool(sub)}


def merge(old: Obj, patch: Obj) -> Obj:
    """The object as a merge patch leaves it."""
    new = dict(old)
    for key, value in patch.items():
        if value is None:
            new.pop(key, None)
        elif isinstance(value, dict):
            new[key] = merge(old[key] if isinstance(old.get(key), dict) else {}, value)
        else:
            new[key] = value
    return new
