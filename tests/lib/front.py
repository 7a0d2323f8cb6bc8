"""The front of a server in memory: it takes the requests of real clients, and responds.

A client is the real one down to its pool of connections, which the front replaces. A request is
noted in the `journal`, and meets the rules (`reject`, `fault`, `delay`, `when`), which may respond
to it, or lose the response. `serve` does what it asks for.
"""

import io
import json
import math
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from kubernetes.client import ApiClient, Configuration
from urllib3 import HTTPResponse
from urllib3.exceptions import NewConnectionError, ProtocolError, ReadTimeoutError

Obj = dict[str, Any]

PATH = re.compile(r"/(?:api|apis/([^/]+))/v1(?:/namespaces/([^/]+))?/([^/]+)/?([^/]*)/?(.*)")
ERRORS: dict[str, Callable[[], Exception]] = {
    "unreachable": lambda: NewConnectionError(None, "Connection refused"),  # type: ignore[arg-type]
    "reset": lambda: ProtocolError("Connection aborted.", ConnectionResetError(104, "reset")),
    "timeout": lambda: ReadTimeoutError(None, "/", "Read timed out."),  # type: ignore[arg-type]
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
    time: float = 0.0

    @property
    def dry_run(self) -> bool:
        # With a body, the API server ignores the query of a delete.
        if self.verb == "delete" and self.body:
            return "dryRun" in self.body
        return "dryRun" in self.query

    @property
    def plural(self) -> str:
        return self.resource.partition("/")[0]

    @property
    def key(self) -> tuple[str, str, str]:
        return self.plural, self.namespace, self.name


class Rejected(Exception):
    """The server rejects a request."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.status = {"kind": "Status", "message": message, "reason": reason, "code": code}


@dataclass
class Rule:
    """What happens to requests with these attributes. `do` may raise, or return a response."""

    only: dict[str, str]  # "*": any
    do: Callable[[Request], HTTPResponse | None]
    after: bool  # once the server has carried out the request
    times: float
    hits: int = 0

    def fits(self, request: Request) -> bool:
        asked = vars(request)
        fits = all(value in ("*", asked[key]) for key, value in self.only.items())
        return fits and self.hits < self.times


class Clock:
    """Time that passes only when a test says so."""

    time = 1000.0

    def now(self) -> float:
        return self.time

    def advance(self, seconds: float) -> None:
        self.time += seconds


class Front:
    serve: Callable[[Request], Obj]  # what the request asks for; it raises Rejected

    def __init__(self) -> None:
        self.clock = Clock()
        self.lock = threading.RLock()
        self.rules = list[Rule]()
        self.journal = list[Request]()  # in the order of arrival

    def client(self) -> ApiClient:
        api = ApiClient(Configuration(host="http://memory"))
        api.rest_client.pool_manager = self  # type: ignore[assignment]
        return api

    # --- Rules, for requests of this `name` or `namespace`, the first `times`, or `after` them ---
    def when(
        self,
        verb: str,
        resource: str,
        do: Callable[[Request], Any],
        after: bool = False,
        times: float = math.inf,
        **only: str,
    ) -> Rule:
        rule = Rule({"verb": verb, "resource": resource} | only, do, after, times)
        self.rules.append(rule)
        return rule

    def reject(
        self, verb: str, resource: str, code: int, message: str = "", reason: str = "", **fits: Any
    ) -> Rule:
        status = Rejected(code, reason, message).status
        return self.when(verb, resource, lambda request: http_response(code, status), **fits)

    def fault(self, verb: str, resource: str, error: str, **fits: Any) -> Rule:
        """No response: "unreachable", "reset" or "timeout"."""

        def do(request: Request) -> None:
            raise ERRORS[error]()

        return self.when(verb, resource, do, **fits)

    def delay(self, verb: str, resource: str, seconds: float, **fits: Any) -> Rule:
        return self.when(verb, resource, lambda request: self.clock.advance(seconds), **fits)

    # --- A request ---
    def request(
        self, method: str, url: str, headers: dict[str, str], body: str = "", **options: Any
    ) -> HTTPResponse:
        """As of the pool of connections."""
        parts = urlsplit(url)
        verb, resource, _, namespace, name = target_of(method, parts.path)
        content = json.loads(body) if body else {}
        name = name or (content.get("metadata") or {}).get("name", "")
        query = dict(parse_qsl(parts.query))
        request = Request(verb, resource, namespace, name, content, query)
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
        response = response or self.served(request)
        for rule in rules:
            if rule.after:
                response = rule.do(request) or response
        return response

    def served(self, request: Request) -> HTTPResponse:
        with self.lock:
            try:
                return http_response(201 if request.verb == "create" else 200, self.serve(request))
            except Rejected as error:
                return http_response(error.code, error.status)


def target_of(method: str, path: str) -> tuple[str, str, str, str, str]:
    """The verb, the resource and its group, as RBAC names them; the namespace and the name."""
    match = PATH.fullmatch(path)
    assert match, path
    group, namespace, resource, name, sub = match.groups("")
    verbs = {"GET": "get" if name else "list", "POST": "create"}
    resource = f"{resource}/{sub}".rstrip("/")
    return verbs.get(method, method.lower()), resource, group, namespace, name


def http_response(code: int, body: Obj | bytes) -> HTTPResponse:
    """A response: an object as JSON, or bytes as they are."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return HTTPResponse(io.BytesIO(content), status=code, preload_content=False)
