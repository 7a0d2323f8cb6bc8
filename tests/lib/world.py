"""A world for scenarios: the real operator, and a server in memory with a clock of its own.

world = World(milvus("x", replicas=3))
world.settle()
assert world.pods() == ["x-0", "x-1", "x-2"]
"""

import concurrent.futures
import contextlib
import gc
import itertools
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any
from unittest.mock import patch

from prometheus_client import REGISTRY

import milvus_operator as mo
from tests.lib.front import Obj, Request
from tests.lib.judge import STRANGER
from tests.lib.server import NAMESPACE, MemoryServer

gc.freeze()  # as the command does: passes collect garbage


def milvus(name: str = "x", namespace: str = "", **spec: Any) -> Obj:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    head = {"apiVersion": mo.API_VERSION, "kind": "Milvus", "metadata": metadata}
    return head | {"spec": {"image": "milvus:1"} | spec}


def pod(name: str, **metadata: Any) -> Obj:
    """A pod that is not made by the operator."""
    spec = {"containers": [{"name": "c", "image": STRANGER}]}
    head = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata | {"name": name}}
    return head | {"spec": spec}


class Lines(logging.Handler):
    """Keeps what is logged as a list of texts, and what is wrong once more, for the last world."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.troubles: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
        if record.levelno >= logging.WARNING:
            self.troubles.append(record.getMessage())


LINES = Lines()
mo.log.addHandler(LINES)
mo.log.setLevel(logging.DEBUG)


class Hung:
    """Tasks that hang until they are released. Who waits for them waits by the clock."""

    def __init__(self, server: MemoryServer) -> None:
        self.clock, self.journal = server.clock, server.journal
        self.lock = threading.Lock()
        self.released = threading.Event()
        self.count = 0  # how many hang
        self.waited_for: set[Future[Any]] = set()
        self.really_wait = concurrent.futures.wait

    def hang(self, _: object = None) -> None:
        with self.lock:
            self.count += 1
        self.released.wait(60)
        with self.lock:
            self.count -= 1

    def wait(self, futures: Iterable[Future[Any]], timeout: float | None = None) -> Any:
        """Wait until all are done, or all that are left hang or wait: then the time is over."""
        waiting, quiet, before = {*futures}, 0, (-1, 0)
        self.waited_for |= waiting  # also what hangs since an earlier pass
        while True:
            answer = self.really_wait(waiting, timeout=0.002)
            running = sum(future.running() for future in self.waited_for)
            state = len(self.journal), len(answer.not_done)
            quiet = quiet + 1 if state == before else 0
            before = state
            queued = not all(future.running() for future in answer.not_done)
            patience = 300 if running > self.count else 50 if queued else 1
            if not answer.not_done or quiet >= patience:
                break
        if answer.not_done:
            self.clock.advance(timeout or 0)
        return answer

    def release(self) -> None:
        self.released.set()
        self.really_wait(self.waited_for)


class World:
    """Some Milvus, and an operator that has not made a pass yet."""

    def __init__(
        self,
        *objects: Obj,
        namespaces: Sequence[str | None] = (NAMESPACE,),
        interval: float = 5,
        workers: int = 4,
        dry_run: bool = False,
    ) -> None:
        self.server = MemoryServer()
        self.clock = self.server.clock
        self.namespaces, self.interval, self.workers = namespaces, interval, workers
        self.log, self.troubles = LINES.texts, LINES.troubles = list[str](), list[str]()
        for obj in objects:
            self.add(obj)
        self.operator = self.new_operator(dry_run)

    def new_operator(self, dry_run: bool = False, user: str = "operator") -> mo.Operator:
        """Another copy, or the same after a restart: it remembers nothing."""
        api = self.server.client(user)
        connection = mo.Connection(api, NAMESPACE, None)
        cluster = mo.Cluster(lambda _: connection, None, 10, dry_run, self.clock.now)
        return mo.Operator(cluster, self.namespaces, self.interval, self.workers)

    # --- What happens ---
    def passes(self, count: int = 1) -> None:
        """Make passes, each an interval after the one before."""
        for _ in range(count):
            self.operator.run_pass()
            self.clock.advance(self.interval)

    def live(self, passes: int = 1) -> None:
        """Make passes, with pods that end and run after each."""
        for _ in range(passes):
            self.passes()
            self.server.finish_deletions()
            self.server.run_pods()

    def settle(self) -> None:
        """Let pods run and end until two passes write nothing."""
        for _ in range(50):
            before = len(self.writes())
            self.live(2)
            if len(self.writes()) == before:
                return
        raise AssertionError("there is always more to write")

    def run(self, seconds: float) -> list[float]:
        """Let the loop run for so long; returns when its passes began, from now."""
        start = self.clock.now()
        before = len(self.requests("list", "pods"))

        def sleep(wait: float) -> None:
            self.clock.advance(wait)
            self.operator.cluster.stopping = self.clock.now() >= start + seconds

        with patch.object(time, "sleep", sleep):
            self.operator.run()
        self.operator.cluster.stopping = False
        times = {one.time - start for one in self.requests("list", "pods")[before:]}
        return [round(time, 3) for time in sorted(times)]

    @contextlib.contextmanager
    def hanging(self, verb: str, resource: str, **fits: Any) -> Iterator[Hung]:
        """Requests that hang, before the server sees them, until the end of the block."""
        hung = Hung(self.server)
        rule = self.server.when(verb, resource, hung.hang, **fits)
        with patch.object(concurrent.futures, "wait", hung.wait):
            try:
                yield hung
                self.server.rules.remove(rule)
            finally:
                hung.release()

    def add(self, obj: Obj) -> Obj:
        """Create a Milvus, or a pod of somebody else."""
        plural = "milvuses" if obj["kind"] == "Milvus" else "pods"
        metadata = obj["metadata"]
        namespace = metadata.get("namespace", NAMESPACE)
        return self.server.ask("create", plural, metadata["name"], obj, namespace)

    def change(self, name: str, **spec: Any) -> None:
        self.server.ask("patch", "milvuses", name, {"spec": spec})

    def patch(self, plural: str, name: str, **metadata: Any) -> None:
        self.server.ask("patch", plural, name, {"metadata": metadata})

    def remove(self, plural: str, name: str, grace: int | None = 0) -> None:
        """Delete something; a pod without its grace period, unless a test wants to see it end."""
        body = {} if grace is None else {"gracePeriodSeconds": grace}
        self.server.ask("delete", plural, name, body)

    # --- What there is ---
    def pods(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.server.all_of("pods")]

    def images(self) -> list[str]:
        return [pod["spec"]["containers"][0]["image"] for pod in self.server.all_of("pods")]

    def uid(self, pod: str) -> str:
        return str(self.server.ask("get", "pods", pod)["metadata"]["uid"])

    def uids(self) -> dict[str, str]:
        return {name: self.uid(name) for name in self.pods()}

    def status(self, name: str) -> Obj:
        return dict(self.server.ask("get", "milvuses", name).get("status") or {})

    def condition(self, name: str, kind: str) -> Obj:
        return mo.condition_of(self.server.ask("get", "milvuses", name), kind)

    def reason(self, name: str = "x", kind: str = "Reconciled") -> str:
        """The reason of a condition; empty if there is none."""
        return str(self.condition(name, kind).get("reason", ""))

    def message(self, name: str = "x", kind: str = "Reconciled") -> str:
        return str(self.condition(name, kind).get("message", ""))

    def events(self) -> list[str]:
        """The events, oldest first, as `reason: note`."""
        events = self.server.all_of("events")
        events.sort(key=lambda event: int(event["metadata"]["resourceVersion"]))
        return [f"{event['reason']}: {event['note']}" for event in events]

    def requests(self, verb: str, resource: str) -> list[Request]:
        """The requests so far: the status of a Milvus is `milvuses/status`."""
        return [one for one in self.server.journal if (one.verb, one.resource) == (verb, resource)]

    def names(self, verb: str, resource: str) -> list[str]:
        """What was asked for in these requests, in their order."""
        return [request.name for request in self.requests(verb, resource)]

    def times(self, verb: str, resource: str) -> list[float]:
        """The seconds between these requests."""
        times = [request.time for request in self.requests(verb, resource)]
        return [after - before for before, after in itertools.pairwise(times)]

    def forget(self) -> None:
        """From now on, look only at what is new in the journal and the log."""
        del self.server.journal[:]
        self.log.clear()
        self.troubles.clear()

    def writes(self) -> list[Request]:
        return [one for one in self.server.journal if one.verb not in ("get", "list")]


def at_rest(*objects: Obj, **options: Any) -> World:
    """A world in which the pods of all Milvus run, with nothing in the journal and the log yet."""
    world = World(*objects, **options)
    world.settle()
    world.forget()
    return world


def metric(name: str, **by: str) -> float:
    """The value of a metric of the operator, or 0."""
    return REGISTRY.get_sample_value(f"milvus_operator_{name}", by) or 0
