"""What the tests are made of: resources as plain dicts, and a world in which the real operator meets
an API server in memory.

A pod is Ready, of the current template and owned by the Milvus `x`, unless words say otherwise:
pods("x-0, x-1 old, x-2 old starting").
"""

import itertools
import logging
import time
from collections.abc import Callable
from typing import Any

from kubernetes.client import ApiClient, Configuration

import milvus_operator as mo
from tests.server import NAMESPACE, Obj, Request, Server, merge

LONG_AGO = "2026-01-01T00:00:00Z"
mo.log.setLevel(logging.DEBUG)


def milvus(name: str = "x", **spec: Any) -> Obj:
    """A Milvus as it is listed, of one replica unless the spec says otherwise."""
    return {
        "apiVersion": mo.API_VERSION,
        "kind": "Milvus",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"uid-of-{name}",
            "generation": 1,
        },
        "spec": {"image": "milvus:1", "replicas": 1} | spec,
        "status": {},
    }


# --- Pods and claims, for the pure functions ---

OURS = mo.owner_reference(milvus())
CURRENT = mo.spec_of(milvus()).template_hash
STATEFUL_SET = {"kind": "StatefulSet", "name": "x", "uid": "uid-of-set", "controller": True}
RUNNING = [{"ready": False, "state": {"running": {}}}]
WORDS: dict[str, Obj] = {
    "orphan": {"metadata": {"ownerReferences": None}},
    "strange": {"metadata": {"ownerReferences": [STATEFUL_SET]}},
    "earlier": {"metadata": {"ownerReferences": [OURS | {"uid": "uid-of-an-earlier-x"}]}},
    "unlabelled": {"metadata": {"labels": None}},
    "bare": {"metadata": {"annotations": None}},
    "old": {"metadata": {"annotations": {mo.TEMPLATE_HASH: "another"}}},
    "ending": {"metadata": {"deletionTimestamp": LONG_AGO}},
    "starting": {"status": {"phase": "Pending", "conditions": []}},
    "failed": {"status": {"phase": "Failed", "reason": "Evicted"}},
    "succeeded": {"status": {"phase": "Succeeded"}},
    "young": {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
    "unready": {"status": {"containerStatuses": RUNNING, "conditions": [{"type": "Ready"}]}},
    "silent": {"status": {"containerStatuses": [RUNNING[0] | {"ready": True}], "conditions": []}},
}


def pod(name: str, *words: str, **status: Any) -> Obj:
    """A pod that these words describe; `status` replaces parts of its status."""
    start = name.removeprefix("data-").rpartition("-")[0]
    metadata: Obj = {"name": name, "namespace": NAMESPACE, "uid": f"uid-of-{name}"}
    metadata |= {"resourceVersion": "1", "ownerReferences": [OURS]}
    metadata["labels"] = mo.our_label(milvus(start))
    metadata["annotations"] = {mo.TEMPLATE_HASH: CURRENT}
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": LONG_AGO}
    found: Obj = {"metadata": metadata, "status": {"phase": "Running", "conditions": [ready]}}
    for word in words:
        found = merge(found, WORDS[word])
    for condition in found["status"]["conditions"]:
        since = mo.timestamp() if "young" in words else LONG_AGO
        condition |= {"lastTransitionTime": since}
    return found | {"status": found["status"] | status}


def pods(text: str) -> list[Obj]:
    return [pod(*words.split()) for words in text.split(",") if words]


def claim(name: str, *words: str, size: str = "1Gi", phase: str = "Bound") -> Obj:
    spec = {"resources": {"requests": {"storage": size}}}
    return pod(name, *words) | {"spec": spec, "status": {"phase": phase}}


def observed(milvus: Obj, pods: list[Obj], claims: list[Obj] | None = None) -> mo.Observed:
    """What a visit sees: the Service is there."""
    by_name = mo.by_ordinal(pods)[mo.full_name(milvus)]
    by_data_name = mo.by_ordinal(claims or [])[mo.full_data_name(milvus)]
    return mo.Observed(milvus, mo.spec_of(milvus), by_name, by_data_name, has_service=True)


# --- The loop ---


class World(logging.Handler):
    """Some Milvus, an API server in memory, and an operator, which has made no pass yet. It handles
    what is logged."""

    def __init__(self, *objects: Obj, **settings: Any) -> None:
        super().__init__()
        self.server = Server()
        self.lines: list[str] = []
        mo.log.handlers = [self]
        for obj in objects:
            self.add(obj)
        self.settings: Obj = {"namespaces": [NAMESPACE], "interval": 5.0, "workers": 1} | settings
        self.operator = self.new_operator()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")

    def client(self) -> ApiClient:
        client = ApiClient(Configuration(host="http://memory"))
        client.rest_client.pool_manager = self.server  # type: ignore[assignment]
        return client

    def new_operator(self, dry_run: bool = False) -> mo.Operator:
        """Another copy, or the same one after a restart: it remembers nothing."""
        api = mo.Api(self.client(), dry_run=dry_run, clock=lambda: self.server.now)
        return mo.Operator(api, self.client, **self.settings)

    def add(self, obj: Obj) -> Obj:
        plural = "milvuses" if obj.get("kind") == "Milvus" else "pods"
        return self.server.ask("create", plural, mo.name_of(obj), obj)

    def change(self, name: str = "x", **spec: Any) -> None:
        self.server.ask("patch", "milvuses", name, {"spec": spec})

    def remove(self, plural: str, name: str) -> None:
        self.server.ask("delete", plural, name, {"gracePeriodSeconds": 0})

    # --- What happens ---

    def passes(self, count: int = 1, seconds: float = 1) -> None:
        """Make passes, and let so many seconds go by after each."""
        for _ in range(count):
            self.operator.run_pass()
            self.server.now += seconds

    def live(self, count: int = 1) -> None:
        """Make passes, with pods that end and run after each."""
        for _ in range(count):
            self.passes()
            self.server.end_pods()
            self.server.run_pods()

    def settle(self) -> None:
        """Let pods live until there is nothing to write, and forget how it came to that."""
        for _ in range(50):
            before = len(self.writes())
            self.live(2)
            if len(self.writes()) == before:
                self.forget()
                return
        raise AssertionError(f"there is always more to write: {self.writes()[-5:]}")

    def forget(self) -> None:
        self.server.journal.clear()
        self.lines.clear()

    # --- What there is ---

    def names(self, plural: str = "pods") -> list[str]:
        return [mo.name_of(obj) for obj in self.server.all_of(plural)]

    def uids(self) -> dict[str, str]:
        return {mo.name_of(pod): mo.uid_of(pod) for pod in self.server.all_of("pods")}

    def get(self, plural: str, name: str) -> Obj:
        return self.server.objects[plural, NAMESPACE, name]

    def condition(self, kind: str, name: str = "x") -> str:
        """As `False QuotaExceeded: exceeded quota …`."""
        found = mo.condition_of(self.get("milvuses", name), kind)
        return f"{found['status']} {found['reason']}: {found['message']}" if found else ""

    def writes(self, *, events: bool = False) -> list[str]:
        """The writes so far, such as `create pods x-0`, without events."""
        seen = [one for one in self.server.journal if one.verb not in ("get", "list")]
        return [str(one) for one in seen if events or one.plural != "events"]

    def times(self, what: str) -> list[float]:
        """The seconds between such requests."""
        times = [one.time for one in self.server.journal if str(one).startswith(what)]
        return [after - before for before, after in itertools.pairwise(times)]


def at_rest(*objects: Obj, **settings: Any) -> World:
    """A world in which the pods of every Milvus run."""
    world = World(*objects, **settings)
    world.settle()
    return world


def eventually(check: Callable[[], Any], seconds: float = 20, show: Callable[[], str] = str) -> Any:
    """Wait until check() is true, and return what it returned; if it is not, fail with show()."""
    end = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < end, f"not within {seconds} s: {show()}"
        time.sleep(0.05)
    return found


def lost(server: Server) -> Callable[[Request], None]:
    """The request is carried out, and its answer is lost."""

    def do(request: Request) -> None:
        server.serve(request)
        raise ConnectionResetError("the answer was lost")

    return do
