"""An API server in memory. The real client runs against it, down to its pool of connections.

`MemoryServer.client()` gives an ApiClient whose requests are answered here. Objects have UIDs,
versions, finalizers and grace periods; requests have preconditions, dry runs, pages and quotas, as
at the real server, with which `tests/test_server.py` compares this one. No spec is validated.

What a cluster does on its own happens only when a test says so: pods run, fail and end by
`run_pods`, `fail` and `finish_deletions`; `collect` deletes what has lost its owner. Rules
(`refuse`, `fault`, `when`) make requests fail, and the journal holds every request.
"""

from __future__ import annotations

import http.client
import itertools
import json
import math
import random
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from kubernetes.client import ApiClient, Configuration
from urllib3 import HTTPResponse
from urllib3.exceptions import NewConnectionError, ProtocolError, ReadTimeoutError

Obj = dict[str, Any]

NAMESPACE = "test"  # where objects are, unless a test says otherwise
MERGE_KEYS = {"ownerReferences": "uid", "conditions": "type"}  # of a strategic merge patch
STATUS: Obj = {"kind": "Status", "apiVersion": "v1", "metadata": {}}
QUERY = {"dryRun", "limit", "continue", "labelSelector", "fieldValidation", "fieldManager"}
ERRORS: dict[str, Callable[[], Exception]] = {
    "unreachable": lambda: NewConnectionError(None, "Connection refused"),  # type: ignore[arg-type]
    "reset": lambda: ProtocolError("Connection aborted.", ConnectionResetError(104, "reset")),
    "timeout": lambda: ReadTimeoutError(None, "/", "Read timed out."),  # type: ignore[arg-type]
}


class Kind(NamedTuple):
    """A kind of object; `new` is what the server adds to one that is created."""

    version: str
    name: str
    title: str  # in messages
    new: Obj


PENDING = {"phase": "Pending"}
COUNTED = {"generation": 1}
KINDS = {
    "milvuses": Kind(
        version="zilliz.com/v1",
        name="Milvus",
        title="milvuses.zilliz.com",
        new={"metadata": COUNTED, "spec": {"replicas": 1}, "status": {"observedGeneration": -1}},
    ),
    "pods": Kind("v1", "Pod", "pods", {"metadata": COUNTED, "status": PENDING}),
    "persistentvolumeclaims": Kind(
        "v1", "PersistentVolumeClaim", "persistentvolumeclaims", {"status": PENDING}
    ),
    "events": Kind("events.k8s.io/v1", "Event", "events.events.k8s.io", {}),
}


@dataclass
class Request:
    """A request, as in the journal. The resource is as in a role: a status is `milvuses/status`."""

    verb: str
    resource: str
    namespace: str
    name: str
    body: Obj = field(default_factory=dict)
    query: dict[str, str] = field(default_factory=dict)
    content_type: str = "application/merge-patch+json"
    user: str = ""
    time: float = 0.0
    code: int = 0  # of the answer; 0 if there was none

    @property
    def dry_run(self) -> bool:
        return "dryRun" in self.query or bool(self.body.get("dryRun"))

    @property
    def plural(self) -> str:
        return self.resource.partition("/")[0]

    @property
    def key(self) -> tuple[str, str, str]:
        return self.plural, self.namespace, self.name

    @property
    def title(self) -> str:
        return f'{KINDS[self.plural].title} "{self.name}"'


class Refused(Exception):
    """An answer that refuses a request."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.status = STATUS | {
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": code,
        }


@dataclass
class Rule:
    """What happens to requests that fit. `do` may raise, or return an answer instead of ours."""

    verb: str
    resource: str
    do: Callable[[Request], HTTPResponse | None]
    name: str | None = None
    namespace: str | None = None
    times: float = math.inf
    after: bool = False  # once the server has carried out the request
    hits: int = 0

    def fits(self, request: Request) -> bool:
        return (
            self.hits < self.times
            and self.verb in ("*", request.verb)
            and self.resource in ("*", request.resource)
            and self.name in (None, request.name)
            and self.namespace in (None, request.namespace)
        )


class Clock:
    """Time that passes only when a test says so."""

    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time

    def advance(self, seconds: float) -> None:
        self.time += seconds


class MemoryServer:
    """The server. With `pods_apart`, pods have versions of their own, as in an etcd of theirs."""

    def __init__(self, clock: Clock | None = None, pods_apart: bool = False) -> None:
        self.clock = clock or Clock()
        self.pods_apart = pods_apart
        self.original_crd = False  # True: a CRD without defaults and without a status subresource
        self.versions = {"pods": 0, "": 0}  # the last of the pods, if apart, and of all others
        self.objects: dict[tuple[str, str, str], Obj] = {}  # by plural, namespace and name
        self.pages: dict[str, tuple[str, list[Obj]]] = {}  # the rest of a list, by its token
        self.quota: dict[str, int] = {}  # for each namespace, by plural
        self.admission: dict[str, Callable[[Obj], Obj]] = {}  # changes what is created, by plural
        self.gate: Callable[[Request], None] = lambda request: None  # called before each request
        self.rules: list[Rule] = []
        self.journal: list[Request] = []  # in the order of arrival
        self.lock = threading.RLock()
        self.random = random.Random(0)
        self.numbers = itertools.count(1)

    # --- For the tests: clients, rules, and what else happens in a cluster ---
    def client(self, user: str = "") -> ApiClient:
        """A real client. The journal notes the user."""
        api = ApiClient(Configuration(host="http://memory"))
        api.rest_client.pool_manager = Pool(self, user)  # type: ignore[assignment]
        return api

    def when(self, verb: str, resource: str, do: Callable[[Request], Any], **fits: Any) -> Rule:
        """Do this at requests that fit: of this `name` or `namespace`, the first `times`."""
        self.rules.append(Rule(verb, resource, do, **fits))
        return self.rules[-1]

    def refuse(self, verb: str, resource: str, code: int, message: str = "", reason: str = "",
               **fits: Any) -> Rule:  # fmt: skip
        status = Refused(code, reason, message).status
        return self.when(verb, resource, lambda request: answer(code, status), **fits)

    def fault(self, verb: str, resource: str, error: str, **fits: Any) -> Rule:
        """No answer: "unreachable", "reset" or "timeout". With `after`, only the answer is lost."""

        def do(request: Request) -> None:
            raise ERRORS[error]()

        return self.when(verb, resource, do, **fits)

    def delay(self, verb: str, resource: str, seconds: float, **fits: Any) -> Rule:
        return self.when(verb, resource, lambda request: self.clock.advance(seconds), **fits)

    def ask(self, verb: str, resource: str, name: str = "", body: Obj | None = None,
            namespace: str = NAMESPACE) -> Obj:  # fmt: skip
        """A request of the test itself, past gate, rules and journal. Raises Refused."""
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
            pod = self.objects["pods", namespace, name]
            self.put("pods", merge(pod, {"spec": {"nodeName": "node-0"}, "status": status}))

    def run_pods(self) -> None:
        """Every pod that is Pending runs and is Ready."""
        for pod in self.all_of("pods"):
            if pod["status"]["phase"] == "Pending" and not is_ending(pod):
                self.set_pod(pod["metadata"]["name"], True, pod["metadata"]["namespace"])

    def fail(self, name: str, reason: str = "Evicted") -> None:
        self.set_pod(name, phase="Failed", reason=reason)

    def finish_deletions(self) -> None:
        """The grace periods are over: what is ending goes, unless a finalizer keeps it."""
        with self.lock:
            for (plural, _, _), obj in list(self.objects.items()):
                if is_ending(obj):
                    self.put(plural, merge(obj, {"metadata": {"deletionGracePeriodSeconds": 0}}))

    def collect(self) -> None:
        """The garbage collector: delete what has owners of which none exists."""
        with self.lock:
            uids = {obj["metadata"]["uid"] for obj in self.objects.values()}
            for (plural, namespace, name), obj in list(self.objects.items()):
                owners = {owner["uid"] for owner in obj["metadata"].get("ownerReferences") or []}
                if owners and not owners & uids:
                    self.ask("delete", plural, name, namespace=namespace)

    # --- A request, from the wire to the answer ---
    def handle(self, request: Request) -> HTTPResponse:
        self.gate(request)
        with self.lock:
            request.time = self.clock.now()
            self.journal.append(request)
            rules = [rule for rule in self.rules if rule.fits(request)]
            for rule in rules:
                rule.hits += 1
        response = None
        for rule in rules:
            if not rule.after:
                response = response or rule.do(request)
        response = response or self.answer(request)
        for rule in rules:
            if rule.after:
                response = rule.do(request) or response
        request.code = response.status
        return response

    def answer(self, request: Request) -> HTTPResponse:
        with self.lock:
            try:
                return answer(201 if request.verb == "create" else 200, self.serve(request))
            except Refused as error:
                return answer(error.code, error.status)

    def serve(self, request: Request) -> Obj:
        if request.plural not in KINDS:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        if request.query.keys() - QUERY:
            raise Refused(400, "BadRequest", f"not known in memory: {request.query}")
        match request.verb:
            case "list":
                return self.page(request)
            case "create":
                return self.create(request)
            case "patch":
                return self.patch(request)
            case "delete":
                return self.delete(request)
        return self.find(request)

    def find(self, request: Request) -> Obj:
        without_status = self.original_crd and request.resource == "milvuses/status"
        if without_status or request.key not in self.objects:
            raise Refused(404, "NotFound", f"{request.title} not found")
        return self.objects[request.key]

    def page(self, request: Request) -> Obj:
        """A page of a list; those that follow show what was there at the first."""
        kind = KINDS[request.plural]
        token = request.query.get("continue")
        if not token:
            version = str(self.versions[self.counter(request.plural)])
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
        given = request.body.get("metadata") or {}
        if given.get("namespace", request.namespace) != request.namespace:
            text = "the namespace of the provided object does not match the namespace sent on"
            raise Refused(400, "BadRequest", f"{text} the request")
        if not request.name:
            letters = self.random.choices("bcdfghjklmnpqrstvwxz2456789", k=5)
            request.name = given["generateName"] + "".join(letters)
        metadata = {
            "name": request.name,
            "namespace": request.namespace,
            "uid": str(uuid.UUID(int=next(self.numbers))),
            "creationTimestamp": self.timestamp(),
        }
        if self.original_crd and request.plural == "milvuses":
            obj = merge({"metadata": COUNTED}, request.body)
        else:
            obj = merge(kind.new, without(request.body, "status"))
        obj = {"kind": kind.name, "apiVersion": kind.version} | merge(obj, {"metadata": metadata})
        if request.plural in self.admission:
            obj = self.admission[request.plural](obj)
        self.check_quota(request)
        if request.key in self.objects:
            ending = "object is being deleted: " if is_ending(self.objects[request.key]) else ""
            raise Refused(409, "AlreadyExists", f"{ending}{request.title} already exists")
        return obj if request.dry_run else self.put(request.plural, obj)

    def check_quota(self, request: Request) -> None:
        plural, most = request.plural, self.quota.get(request.plural)
        if most is None:
            return
        there = [obj for obj in self.all_of(plural) if is_listed(request, obj)]
        used = sum(not is_finished(obj) for obj in there)
        if used >= most:
            counts = f"requested: {plural}=1, used: {plural}={used}, limited: {plural}={most}"
            text = f"{request.title} is forbidden: exceeded quota: quota, {counts}"
            raise Refused(403, "Forbidden", text)

    def patch(self, request: Request) -> Obj:
        old = self.find(request)
        strategic = "strategic" in request.content_type
        if strategic and request.plural == "milvuses":
            text = "the body of the request was in an unknown format"
            raise Refused(415, "UnsupportedMediaType", text)
        new = merge(old, request.body, MERGE_KEYS if strategic else {})
        if new["metadata"]["resourceVersion"] != old["metadata"]["resourceVersion"]:
            text = "the object has been modified; please apply your changes to the latest version"
            raise conflict(request, f"{text} and try again")
        if new["metadata"]["uid"] != old["metadata"]["uid"]:
            text = f"{KINDS[request.plural].name} is invalid: metadata.uid: field is immutable"
            raise Refused(422, "Invalid", text)
        status = {key: value for key, value in old.items() if key == "status"}
        if request.resource.endswith("/status"):
            new = old | {"status": new.get("status")}
        elif not (self.original_crd and request.plural == "milvuses"):
            new = without(new, "status") | status
        if new == old:
            return old
        if without(new, "metadata", "status") != without(old, "metadata", "status"):
            if request.plural == "pods":
                raise Refused(422, "Invalid", "Pod is invalid: spec: Forbidden: pod updates")
            new = counted_on(new)
        return new if request.dry_run else self.put(request.plural, new)

    def delete(self, request: Request) -> Obj:
        obj = self.find(request)
        metadata = obj["metadata"]
        for key, word in {"uid": "UID", "resourceVersion": "ResourceVersion"}.items():
            asked = (request.body.get("preconditions") or {}).get(key, metadata[key])
            if asked != metadata[key]:
                text = f"the {word} in the precondition ({asked}) does not match the {word}"
                raise conflict(request, f"{text} in record ({metadata[key]})")
        grace = request.body.get("gracePeriodSeconds")
        if is_ending(obj) and (grace is None or grace >= metadata["deletionGracePeriodSeconds"]):
            return obj
        if request.plural != "pods" or not obj["spec"].get("nodeName") or is_finished(obj):
            grace = 0
        elif grace is None:
            grace = obj["spec"].get("terminationGracePeriodSeconds", 30)
        end = {"deletionTimestamp": self.timestamp(grace), "deletionGracePeriodSeconds": grace}
        ending = counted_on(merge(obj, {"metadata": end}))
        if not request.dry_run:
            ending = self.put(request.plural, ending)
        if request.plural == "milvuses" and request.key not in self.objects:
            return STATUS | {"status": "Success"}
        return ending

    # --- What is stored ---
    def put(self, plural: str, obj: Obj) -> Obj:
        """Store an object with its next version; one that has ended is gone."""
        counter = self.counter(plural)
        self.versions[counter] += 1
        obj = merge(obj, {"metadata": {"resourceVersion": str(self.versions[counter])}})
        metadata = obj["metadata"]
        key = plural, metadata["namespace"], metadata["name"]
        has_ended = metadata.get("deletionGracePeriodSeconds") == 0
        if has_ended and not metadata.get("finalizers"):
            self.objects.pop(key, None)
        else:
            self.objects[key] = obj
        return obj

    def counter(self, plural: str) -> str:
        return "pods" if self.pods_apart and plural == "pods" else ""

    def timestamp(self, later: float = 0) -> str:
        time = datetime(2026, 1, 1) + timedelta(seconds=self.clock.now() + later)
        return time.isoformat(timespec="seconds") + "Z"


class Pool:
    """Stands where the client has urllib3's pool of connections."""

    def __init__(self, server: MemoryServer, user: str) -> None:
        self.server = server
        self.user = user

    def request(self, method: str, url: str, body: str = "", headers: dict[str, str] | None = None,
                **options: Any) -> HTTPResponse:  # fmt: skip
        parts = urlsplit(url)
        words = parts.path.strip("/").split("/")
        words = words[2:] if words[0] == "api" else words[3:]  # /api/v1/… or /apis/group/v1/…
        namespace = ""
        if words[0] == "namespaces":
            namespace, words = words[1], words[2:]
        content = json.loads(body) if body else {}
        name = words[1] if words[1:] else (content.get("metadata") or {}).get("name", "")
        verbs = {"GET": "get" if words[1:] else "list", "POST": "create"}
        request = Request(
            verb=verbs.get(method, method.lower()),
            resource="/".join([words[0], *words[2:]]),
            namespace=namespace,
            name=name,
            body=content,
            query=dict(parse_qsl(parts.query)),
            content_type=(headers or {}).get("Content-Type", ""),
            user=self.user,
        )
        return self.server.handle(request)


def answer(code: int, body: Obj | bytes) -> HTTPResponse:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    kind = "text/plain" if isinstance(body, bytes) else "application/json"
    return HTTPResponse(
        body=content,
        status=code,
        reason=http.client.responses.get(code),
        headers={"Content-Type": kind},
        preload_content=False,
    )


def conflict(request: Request, text: str) -> Refused:
    return Refused(409, "Conflict", f"Operation cannot be fulfilled on {request.title}: {text}")


def is_ending(obj: Obj) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def is_finished(obj: Obj) -> bool:
    return obj.get("status", {}).get("phase") in ("Failed", "Succeeded")


def is_listed(request: Request, obj: Obj) -> bool:
    labels = obj["metadata"].get("labels") or {}
    for term in filter(None, request.query.get("labelSelector", "").split(",")):
        key, sign, value = term.partition("=")
        if set("!( ") & set(term):
            raise Refused(400, "BadRequest", f"not known in memory: {term}")
        if key not in labels or (sign and labels[key] != value.removeprefix("=")):
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
            items = {item[by]: item for item in before}
            items |= {item[by]: items.get(item[by], {}) | item for item in value}
            new[key] = list(items.values())
        else:
            new[key] = value
    return new
