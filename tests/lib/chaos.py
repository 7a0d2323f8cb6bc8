"""What goes wrong in a cluster, drawn from seeds: faults on the wire, kills, and users who change
their minds. Meanwhile, a recorder follows the API server."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import urllib3
from kubernetes.client.exceptions import ApiException

from local.controlplane import ControlPlane
from tests.lib.front import Rejected
from tests.lib.judge import (
    ROLLED,
    Change,
    Judge,
    Obj,
    image_of,
    is_ready,
    name_of,
    owner_of,
    uid_of,
)
from tests.lib.kit import Command, Kube, eventually, new_operator, rest
from tests.lib.wire import Handler, Wire

HTML = b"<!DOCTYPE html><html><body><h1>It works!</h1></body></html>"
ERRORS = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


def error(code: int) -> Callable[[Handler], None]:
    """A fault that responds with an error in the API server's own format."""
    status = Rejected(code, ERRORS[code], f"injected {ERRORS[code]}").status
    body = json.dumps(status).encode()
    return lambda handler: handler.respond(code, body, **{"Retry-After": "1"})


def cut(handler: Handler) -> None:
    """Reset the connection in the middle of the body."""
    data = handler.forward().data
    half = data[: len(data) // 2]
    handler.respond(200, half, **{"Content-Length": str(len(data))})
    handler.reset()


def truncated(handler: Handler) -> None:
    response = handler.forward()
    half = response.data[: len(response.data) // 2]
    handler.respond(response.status, half)


def hang(handler: Handler) -> None:
    time.sleep(3)
    handler.reset()


def lost(handler: Handler) -> None:
    """Let the request succeed, and lose the response."""
    handler.forward()
    handler.reset()


FAULTS: dict[str, Callable[[Handler], None]] = {
    "reset": Handler.reset,
    "reset in the body": cut,
    "truncated JSON": truncated,
    "HTML with 200": lambda handler: handler.respond(200, HTML, "text/html"),
    "HTML with 502": lambda handler: handler.respond(502, HTML, "text/html"),
    "not a list": lambda handler: handler.respond(200, b"{}"),
    "response lost": lost,
    "hang": hang,
    **{f"{code}": error(code) for code in ERRORS},
}
NEEDS = {"410": "continue=", "not a list": "limit="}  # in the path


class Faults:
    """The `fault` of one or more wires: breaks a share of the reads and a share of the writes."""

    def __init__(self, seed: int, reads: float, writes: float) -> None:
        self.random = random.Random(seed)
        self.lock = threading.Lock()
        self.reads = reads
        self.writes = writes
        self.done = Counter[str]()
        self.done_to_writes = Counter[str]()

    def __call__(self, handler: Handler, verb: str, path: str) -> bool:
        is_read = verb == "GET" or "dryRun" in path
        share = self.reads if is_read else self.writes
        with self.lock:
            if self.random.random() >= share:
                return False
            kinds = [kind for kind in FAULTS if NEEDS.get(kind, "") in path]
            weights = [0.2 if kind == "hang" else 1 for kind in kinds]
            (kind,) = self.random.choices(kinds, weights)
            self.done[kind] += 1
            if not is_read:
                self.done_to_writes[kind] += 1
        with contextlib.suppress(OSError):  # the client has already gone
            FAULTS[kind](handler)
        return True


class Kills:
    """The `fault` of several wires: kills something during a write. A replica of the operator is
    killed before its write is forwarded ("before") or before it can read the response ("after"),
    etcd or kube-apiserver during the write."""

    def __init__(self, plane: ControlPlane, seed: int, *todo: str) -> None:
        self.plane = plane
        self.random = random.Random(seed)
        self.todo = self.random.sample(todo, len(todo))
        self.processes: dict[Wire, Command] = {}  # those that are running
        self.lock = threading.Lock()
        self.server = threading.Thread()

    def __call__(self, handler: Handler, verb: str, path: str) -> bool:
        with self.lock:
            if verb == "GET" or handler.wire not in self.processes:
                return False
            if self.server.is_alive() or not self.todo or self.random.random() > 0.4:
                return False
            how = self.todo.pop()
            if how not in ("before", "after"):
                self.server = threading.Thread(target=self.plane.kill, args=[how])
                self.server.start()
                return False
            process = self.processes.pop(handler.wire)
        if how == "after":
            with contextlib.suppress(urllib3.exceptions.HTTPError):
                handler.forward()
        process.kill()
        handler.reset()
        handler.wire.close()
        return True


FAILURES = ApiException, urllib3.exceptions.HTTPError, OSError  # or the API server is down


class Users:
    """They create, scale, roll and delete Milvus resources, and sometimes delete a pod, at random.
    Pods of other owners have the names of some pods."""

    def __init__(self, kube: Kube, seed: int) -> None:
        self.kube = kube
        self.random = random.Random(seed)
        self.changes = 0
        self.names = [f"m{number}" for number in range(8)]
        self.taken = {name: f"{name}-2" for name in self.names[:3]}
        self.deleted: set[str] = set()  # the UIDs of pods that they have asked to delete
        self.storage = {"size": "1Gi", "storageClassName": kube.ns}
        for number in range(8):
            kube.create_volume(f"{kube.ns}-{number}", storageClassName=kube.ns)
        kube.create("still", replicas=2)  # from now on no user touches these two
        kube.create("stored", replicas=2, storage=self.storage)
        kube.create("rolled", replicas=3)  # and of this one they only change the image
        others = ("still-0", "still-1", "stored-0", "stored-1")
        rest(new_operator(kube), kube, *others, *ROLLED)
        for name in self.taken.values():
            kube.create_pod(name)

    def change(self) -> None:
        """Make one change; if the API server rejects it, so be it."""
        with contextlib.suppress(*FAILURES):
            name = self.random.choice(self.names)
            self.changes += 1
            if self.changes % 10 == 0:
                self.kube.change("rolled", image=f"milvus:{self.changes}")
            elif milvus := self.present().get(name):
                self.change_milvus(name, milvus)
            else:
                spec: Obj = {"replicas": self.random.randint(0, 4), "image": self.image()}
                if name == self.names[-1]:
                    spec["storage"] = self.storage
                self.kube.create(name, **spec)

    def change_milvus(self, name: str, milvus: Obj) -> None:
        actions = ["replicas", "image", "pod", "Background", "Orphan"]
        match self.random.choice(actions):
            case "replicas":
                self.kube.change(name, replicas=self.random.randint(0, 4))
            case "image":
                self.kube.change(name, image=self.image())
            case "pod":
                mine = [pod for pod in self.kube.all_pods().values() if is_of(milvus, pod)]
                if mine:
                    pod = self.random.choice(mine)
                    self.deleted.add(uid_of(pod))
                    self.delete(self.kube.pods, pod)
            case how:
                self.delete(self.kube.milvuses, milvus, propagationPolicy=how)

    def delete(self, resource: Any, obj: Obj, **options: Any) -> None:
        body = options | {"preconditions": {"uid": uid_of(obj)}}
        resource.delete(name=name_of(obj), namespace=self.kube.ns, body=body)

    def image(self) -> str:
        return f"milvus:{self.random.choice(['1', '2', '3', '4', 'broken', 'dies'])}"

    def present(self) -> dict[str, Obj]:
        items = self.kube.milvuses.get(namespace=self.kube.ns).to_dict()["items"]
        return {name_of(milvus): milvus for milvus in items}

    def settle_down(self) -> None:
        """Ask for good pods, and wait until there are."""
        eventually(self.ask_for_good_pods, 30, ignoring=FAILURES)
        eventually(self.are_served, 120, ignoring=(AssertionError,))

    def ask_for_good_pods(self) -> bool:
        """Three or four of each; a new spec waits for no back-off."""
        for name in self.names:
            if name not in self.present():
                self.kube.create(name, image="milvus:1")
            replicas = self.random.randint(3, 4)
            self.kube.change(name, replicas=replicas, image=f"milvus:last-{self.changes}")
        return True

    def are_served(self) -> bool:
        """Whether every Milvus has what its spec asks for. Raises AssertionError with what not."""
        pods = self.kube.all_pods().values()
        for pod in pods:
            # The API server was killed between the two writes of a delete.
            if pod["metadata"].get("deletionGracePeriodSeconds") == 0:
                with contextlib.suppress(ApiException):
                    self.delete(self.kube.pods, pod, gracePeriodSeconds=0)
        for name, milvus in self.present().items():
            image = milvus["spec"]["image"]
            desired = {f"{name}-{i}" for i in range(milvus["spec"]["replicas"])}
            expected = {"Ready": "True", "Reconciled": "True"}
            if name in self.taken:
                desired.remove(self.taken[name])
                expected = {"Ready": "False", "Reconciled": "False", "Stalled": "True"}
            ready = [pod for pod in pods if is_of(milvus, pod) and is_ready(pod)]
            images = {name_of(pod): image_of(pod) for pod in ready}
            assert images == dict.fromkeys(desired, image), name
            conditions = milvus["status"].get("conditions", ())
            said = {one["type"]: one["status"] for one in conditions}
            assert said == expected, name
        return True

    def check_harm(self, by: Judge, recorder: Recorder) -> None:
        """Let the judge see all that has happened. Raises AssertionError with the harm."""
        harm = by.harm(recorder.history(), self.deleted)
        print(f"{self.changes} changes by users, {dict(by.seen)}")
        assert not harm, "\n".join(harm)
        assert by.seen["Ready pods rolled"] > 0, "the judge has seen too little"


def is_of(milvus: Obj, pod: Obj) -> bool:
    return owner_of(pod).get("uid") == uid_of(milvus)


class Recorder:
    """Records each change of the pods, Milvus resources and claims of a namespace: every other
    second, it asks for those since the last ones."""

    def __init__(self, kube: Kube) -> None:
        self.kube = kube
        self.changes: list[Change] = []
        core = f"/api/v1/namespaces/{kube.ns}"
        paths = (f"{core}/pods", f"{core}/persistentvolumeclaims", kube.milvuses_path)
        self.revisions = dict.fromkeys(paths, 0)  # of the last change
        self.over = threading.Event()
        self.look()
        self.thread = threading.Thread(target=self.follow, daemon=True)
        self.thread.start()

    def follow(self) -> None:
        """A response that is not understood ends the thread."""
        while not self.over.wait(1):
            with contextlib.suppress(urllib3.exceptions.HTTPError):  # the API server is down
                self.look()

    def look(self) -> None:
        """Without a revision, what there is counts as added."""
        for path, last in self.revisions.items():
            since = f"watch=1&timeoutSeconds=1&resourceVersion={last or ''}"
            response = self.kube.request("GET", f"{path}?{since}")
            if response.status >= 500:
                continue  # it is starting
            for line in response.data.splitlines():
                event = json.loads(line)
                obj = event["object"]
                revision = int(obj["metadata"]["resourceVersion"])
                del obj["metadata"]["managedFields"]  # half of the object
                self.changes.append((revision, event["type"], obj))
                self.revisions[path] = max(revision, self.revisions[path])

    def history(self) -> list[Change]:
        """All changes so far."""
        assert self.thread.is_alive(), "not all has been recorded"
        self.over.set()
        self.thread.join()
        self.look()
        return self.changes
