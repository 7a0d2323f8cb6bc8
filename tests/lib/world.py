"""A world for scenarios: the real operator, and a server in memory with a clock of its own.

world = World(milvus("x", replicas=3))
world.settle()
assert world.pods() == ["x-0", "x-1", "x-2"]
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import milvus_operator as mo
from tests.lib.front import Clock, Obj, Request
from tests.lib.server import NAMESPACE, MemoryServer


def milvus(name: str, namespace: str = NAMESPACE, **spec: Any) -> Obj:
    metadata = {"name": name, "namespace": namespace}
    return {"kind": "Milvus", "metadata": metadata, "spec": {"image": "milvus:1"} | spec}


class Lines(logging.Handler):
    """Keeps what is logged as a list of texts."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


class World:
    """Some Milvus, and an operator that has not made a pass yet."""

    def __init__(
        self,
        *objects: Obj,
        namespaces: Sequence[str | None] = (NAMESPACE,),
        interval: float = 5,
        workers: int = 4,
        dry_run: bool = False,
        pods_apart: bool = False,
    ) -> None:
        self.clock = Clock()
        self.server = MemoryServer(self.clock, pods_apart)
        self.namespaces, self.interval, self.workers = namespaces, interval, workers
        self.log = capture_log()
        for obj in objects:
            self.add(obj)
        self.operator = self.new_operator(dry_run)

    def new_operator(self, dry_run: bool = False, user: str = "operator") -> mo.Operator:
        """Another copy, or the same after a restart: it remembers nothing."""
        api = self.server.client(user)
        connection = mo.Connection(api, NAMESPACE, None, {})
        cluster = mo.Cluster(lambda _: connection, None, 10, dry_run, self.clock.now)
        return mo.Operator(cluster, self.namespaces, self.interval, self.workers)

    # --- What happens ---
    def passes(self, count: int = 1) -> None:
        """Make passes, each an interval after the one before."""
        for _ in range(count):
            self.operator.run_pass()
            self.clock.advance(self.interval)

    def settle(self) -> None:
        """Make passes, with pods that run and end in between, until two write nothing."""
        quiet = 0
        for _ in range(100):
            before = len(self.writes())
            self.passes()
            quiet = quiet + 1 if len(self.writes()) == before else 0
            if quiet == 2:
                return
            self.server.finish_deletions()
            self.server.run_pods()
        raise AssertionError("there is always more to write")

    def add(self, obj: Obj) -> Obj:
        """Create a Milvus, or a pod of somebody else."""
        plural = "milvuses" if obj["kind"] == "Milvus" else "pods"
        metadata = obj["metadata"]
        namespace = metadata.get("namespace", NAMESPACE)
        return self.server.ask("create", plural, metadata["name"], obj, namespace)

    def change(self, name: str, **spec: Any) -> None:
        self.server.ask("patch", "milvuses", name, {"spec": spec})

    # --- What there is ---
    def pods(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.server.all_of("pods")]

    def images(self) -> list[str]:
        return [pod["spec"]["containers"][0]["image"] for pod in self.server.all_of("pods")]

    def uid(self, pod: str) -> str:
        return str(self.server.ask("get", "pods", pod)["metadata"]["uid"])

    def status(self, name: str) -> Obj:
        return dict(self.server.ask("get", "milvuses", name).get("status") or {})

    def condition(self, name: str, kind: str) -> Obj:
        conditions = self.status(name).get("conditions") or []
        return next((one for one in conditions if one["type"] == kind), {})

    def events(self) -> list[str]:
        """The events, oldest first, as `reason: note`."""
        events = self.server.all_of("events")
        events.sort(key=lambda event: int(event["metadata"]["resourceVersion"]))
        return [f"{event['reason']}: {event['note']}" for event in events]

    def requests(self, verb: str, resource: str) -> list[Request]:
        """The requests so far: the status of a Milvus is `milvuses/status`."""
        return [one for one in self.server.journal if (one.verb, one.resource) == (verb, resource)]

    def writes(self) -> list[Request]:
        return [one for one in self.server.journal if one.verb not in ("get", "list")]


def capture_log() -> list[str]:
    """What the operator logs from now on; the worlds of earlier tests no longer listen."""
    for handler in list(mo.log.handlers):
        if isinstance(handler, Lines):
            mo.log.removeHandler(handler)
    lines = Lines()
    mo.log.addHandler(lines)
    mo.log.setLevel(logging.DEBUG)
    return lines.texts
