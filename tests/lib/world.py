"""A world for scenarios: the real operator, and a server in memory with a clock of its own.

world = World(milvus("x", replicas=3))
world.settle()
assert world.pods() == ["x-0", "x-1", "x-2"]
"""

import itertools
import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from prometheus_client import REGISTRY

import milvus_operator as mo
from tests.lib.front import ERRORS, Clock, Obj, Request, Rule
from tests.lib.judge import OTHERS_IMAGE, image_of
from tests.lib.server import NAMESPACE, MemoryServer

mo.log.setLevel(logging.DEBUG)


class InOrder(Executor):
    """A pool of one worker: it carries out each task when it is handed in."""

    def submit(self, task: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        future = Future[Any]()
        future.set_result(task(*arguments, **options))
        return future


class Later(InOrder):
    """A pool whose tasks begin only when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks = list[tuple[Any, ...]]()
        self.futures = list[Future[Any]]()

    def submit(self, task: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        self.tasks.append((task, *arguments))
        self.futures.append(Future())
        return self.futures[-1]


class Stopping:
    """The event that the loop waits on, with the clock of the world: it is set at some time."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.end = float("inf")

    def is_set(self) -> bool:
        return self.clock.now() >= self.end

    def set(self) -> None:
        self.end = self.clock.now()

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)


def milvus(name: str = "x", namespace: str | None = None, **spec: Any) -> Obj:
    return {
        "apiVersion": mo.API_VERSION,
        "kind": "Milvus",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"image": "milvus:1"} | spec,
    }


def pod(name: str, **metadata: Any) -> Obj:
    """A pod that is not made by the operator."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata | {"name": name},
        "spec": {"containers": [{"name": "c", "image": OTHERS_IMAGE}]},
    }


class World(logging.Handler):
    """Some Milvus, and an operator that has not made a pass yet. It handles what is logged."""

    def __init__(self, *objects: Obj, **settings: Any) -> None:
        super().__init__()
        defaults: Obj = {"namespaces": [NAMESPACE], "interval": 5}
        defaults |= {"pool": InOrder(), "sender": InOrder()}
        self.settings = defaults | settings
        self.server = MemoryServer()
        self.clock = self.server.clock
        self.log = list[str]()
        self.warnings = list[str]()  # once more
        mo.log.handlers = [self]
        for obj in objects:
            self.add(obj)
        self.operator = self.new_operator()

    def new_operator(self, dry_run: bool = False) -> mo.Operator:
        """Another replica, or the same after a restart: it remembers nothing."""
        client = self.server.client()
        api = mo.Api(
            client,
            reload=lambda: client,
            renew=lambda client: None,
            timeout=30,
            dry_run=dry_run,
            clock=self.clock.now,
            stopping=Stopping(self.clock),  # type: ignore[arg-type]
        )
        return mo.Operator(api, **self.settings)

    def emit(self, record: logging.LogRecord) -> None:
        self.log.append(record.getMessage())
        if record.levelno >= logging.WARNING:
            self.warnings.append(record.getMessage())

    # --- What happens ---
    def passes(self, count: int = 1) -> None:
        """Make passes, each an interval after the one before."""
        for _ in range(count):
            self.operator.run_pass()
            self.clock.advance(self.operator.interval)

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
        before = len(self.requests("list", "milvuses"))
        stopping: Any = self.operator.api.stopping
        stopping.end = start + seconds
        self.operator.run()
        stopping.end = float("inf")
        times = {one.time - start for one in self.requests("list", "milvuses")[before:]}
        return [round(time, 3) for time in sorted(times)]

    def hang(self, verb: str, resource: str, **fits: Any) -> Rule:
        """Requests that hang get no answer: they time out, after what the operator grants them."""

        def hang(request: Request) -> None:
            self.clock.advance(10)
            raise ERRORS["timeout"]()

        return self.server.when(verb, resource, hang, **fits)

    def add(self, obj: Obj) -> Obj:
        """Create a Milvus, or a pod of another owner."""
        plural = "milvuses" if obj["kind"] == "Milvus" else "pods"
        return self.server.ask("create", plural, mo.name_of(obj), obj)

    def change(self, name: str, **spec: Any) -> None:
        self.server.ask("patch", "milvuses", name, {"spec": spec})

    def patch(self, plural: str, name: str, **metadata: Any) -> None:
        self.server.ask("patch", plural, name, {"metadata": metadata})

    def remove(self, plural: str, name: str) -> None:
        """Delete something, a pod without its grace period."""
        self.server.ask("delete", plural, name, {"gracePeriodSeconds": 0})

    # --- What there is ---
    def pods(self) -> list[str]:
        return [mo.name_of(pod) for pod in self.server.all_of("pods")]

    def images(self) -> list[str]:
        return [image_of(pod) for pod in self.server.all_of("pods")]

    def uids(self) -> dict[str, str]:
        return {mo.name_of(pod): mo.uid_of(pod) for pod in self.server.all_of("pods")}

    def uid(self, pod: str) -> str:
        return self.uids()[pod]

    def status(self, name: str) -> Obj:
        milvus = self.server.objects["milvuses", NAMESPACE, name]
        return milvus.get("status") or {}

    def condition(self, name: str, kind: str) -> Obj:
        milvus = self.server.objects["milvuses", NAMESPACE, name]
        return mo.condition_of(milvus, kind)

    def reason(self, name: str = "x", kind: str = "Reconciled") -> str:
        """The reason of a condition; empty if there is none."""
        return self.condition(name, kind).get("reason", "")

    def message(self) -> str:
        return self.condition("x", "Reconciled").get("message", "")

    def events(self) -> list[str]:
        """The events of each Milvus, oldest first, as `reason: note`."""
        events = self.server.all_of("events")
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

    def writes(self) -> list[Request]:
        return [one for one in self.server.journal if one.verb not in ("get", "list")]

    def forget(self) -> None:
        """From now on, look only at what is new in the journal and the log."""
        for seen in (self.server.journal, self.log, self.warnings):
            seen.clear()


def at_rest(*objects: Obj, **options: Any) -> World:
    """A world in which the pods of all Milvus run, with nothing in the journal and the log yet."""
    world = World(*objects, **options)
    world.settle()
    world.forget()
    return world


def metric(name: str, **by: str) -> float:
    """The value of a metric of the operator, or 0."""
    return REGISTRY.get_sample_value(f"milvus_operator_{name}", by) or 0
