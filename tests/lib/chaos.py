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

import urllib3
from kubernetes.client.exceptions import ApiException

from local.controlplane import ControlPlane
from tests.lib import judge
from tests.lib.front import Refused
from tests.lib.kit import Command, Kube, Obj, eventually, new_operator, rest
from tests.lib.wire import Handler, Wire

HTML = b"<!DOCTYPE html><html><body><h1>It works!</h1></body></html>"
STATUSES = {
    401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired",
    422: "Invalid", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable",
    504: "Timeout",
}  # fmt: skip


def status(code: int) -> Callable[[Handler], None]:
    """A fault that answers with an error in the API server's own format."""
    body = Refused(code, STATUSES[code], f"injected {STATUSES[code]}").status
    headers = {"Retry-After": "1"} if code == 429 else {}
    return lambda handler: handler.answer(code, json.dumps(body).encode(), **headers)


def cut(handler: Handler) -> None:
    """Reset the connection in the middle of the body."""
    answer = handler.forward().data
    handler.answer(200, answer[: len(answer) // 2], **{"Content-Length": str(len(answer))})
    handler.reset()


def truncated(handler: Handler) -> None:
    answer = handler.forward()
    handler.answer(answer.status, answer.data[: len(answer.data) // 2])


def hang(handler: Handler) -> None:
    time.sleep(3)
    handler.reset()


def lost(handler: Handler) -> None:
    """Let the request succeed, and lose its answer."""
    handler.forward()
    handler.reset()


FAULTS: dict[str, Callable[[Handler], None]] = {
    "reset": lambda handler: handler.reset(),
    "reset in the body": cut,
    "truncated JSON": truncated,
    "not JSON": lambda handler: handler.answer(200, b'{"items": [}'),
    "HTML with 200": lambda handler: handler.answer(200, HTML, "text/html"),
    "HTML with 502": lambda handler: handler.answer(502, HTML, "text/html"),
    "not a list": lambda handler: handler.answer(200, b"{}"),
    "answer lost": lost,
    "hang": hang,
    **{f"{code}": status(code) for code in STATUSES},
}


class Faults:
    """The `fault` of one or more wires: breaks a share of the reads and a share of the writes."""

    def __init__(self, seed: int, reads: float, writes: float) -> None:
        self.random, self.lock = random.Random(seed), threading.Lock()
        self.reads, self.writes = reads, writes
        self.done, self.done_to_writes = Counter[str](), Counter[str]()

    def __call__(self, handler: Handler, verb: str, path: str) -> bool:
        reads = verb == "GET" or "dryRun" in path
        with self.lock:
            if self.random.random() >= (self.reads if reads else self.writes):
                return False
            unfit = {"410": "continue=" not in path, "not a list": "limit=" not in path}
            kinds = [kind for kind in FAULTS if not unfit.get(kind)]
            kind = self.random.choices(kinds, [0.2 if kind == "hang" else 1 for kind in kinds])[0]
            self.done[kind] += 1
            self.done_to_writes[kind] += not reads
        with contextlib.suppress(OSError):  # the client has already gone
            FAULTS[kind](handler)
        return True


class Kills:
    """The `fault` of several wires: kills something during a write. A copy of the operator is
    killed before its write is forwarded ("before") or before it can read the answer ("after"),
    etcd or kube-apiserver during the write."""

    def __init__(self, plane: ControlPlane, seed: int, *todo: str) -> None:
        self.plane, self.random, self.todo = plane, random.Random(seed), list(todo)
        self.random.shuffle(self.todo)
        self.processes: dict[Wire, Command] = {}  # those that are running
        self.lock, self.server = threading.Lock(), threading.Thread()

    def __call__(self, handler: Handler, verb: str, path: str) -> bool:
        with self.lock:
            alive, late = handler.wire in self.processes, self.server.is_alive()
            if verb == "GET" or not alive or late or not self.todo or self.random.random() > 0.4:
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


REFUSED = ApiException, urllib3.exceptions.HTTPError, OSError  # or the API server is down


class Users:
    """They create, scale, roll and delete Milvus resources, and sometimes delete a pod, at random.
    The names of some pods are those of strangers' pods."""

    def __init__(self, kube: Kube, seed: int) -> None:
        self.kube, self.random, self.changes = kube, random.Random(seed), 0
        self.names = [f"m{number}" for number in range(8)]
        self.taken = {name: f"{name}-2" for name in self.names[:3]}
        self.deleted: set[str] = set()  # the UIDs of pods that they have asked to delete
        self.storage = {"size": "1Gi", "storageClassName": kube.ns}
        for number in range(8):
            kube.create_volume(f"{kube.ns}-{number}", storageClassName=kube.ns)
        kube.create("still", replicas=2)  # from now on no user touches these two
        kube.create("stored", replicas=2, storage=self.storage)
        kube.create("rolled", replicas=3)  # and of this one they only change the image
        others = "still-0", "still-1", "stored-0", "stored-1"
        rest(new_operator(kube), kube, *others, *judge.ROLLED)
        for name in self.taken.values():
            kube.create_pod(name)

    def change(self) -> None:
        """Make one change; if the API server refuses it, so be it."""
        with contextlib.suppress(*REFUSED):
            name = self.random.choice(self.names)
            self.changes += 1
            if self.changes % 10 == 0:
                self.kube.change("rolled", image=f"milvus:{self.changes}")
            elif milvus := self.present().get(name):
                self.change_milvus(name, milvus)
            else:
                stored = {"storage": self.storage} if name == self.names[-1] else {}
                replicas = self.random.randint(0, 4)
                self.kube.create(name, replicas=replicas, image=self.image(), **stored)

    def change_milvus(self, name: str, milvus: Obj) -> None:
        kube, dice = self.kube, self.random
        action = dice.choice(["replicas", "image", "waver", "delete", "orphan", "pod"])
        if action == "replicas":
            kube.change(name, replicas=dice.randint(0, 4))
        elif action == "image":
            kube.change(name, image=self.image())
        elif action == "waver":  # a change that is reverted at once
            update: Obj = dice.choice([{"replicas": 0}, {"image": self.image()}])
            kube.change(name, **update)
            time.sleep(dice.uniform(0, 0.3))
            kube.change(name, **{key: milvus["spec"][key] for key in update})
        elif action == "pod":
            pods = [pod for pod in kube.all_pods().values() if self.is_of(milvus, pod)]
            for pod in dice.sample(pods, min(1, len(pods))):
                self.deleted.add(judge.uid_of(pod))
                self.delete_pod(pod)
        else:
            kube.delete(name, propagationPolicy="Background" if action == "delete" else "Orphan")

    def is_of(self, milvus: Obj, pod: Obj) -> bool:
        return bool(judge.owner_of(pod).get("uid") == judge.uid_of(milvus))

    def image(self) -> str:
        return f"milvus:{self.random.choice(['1', '2', '3', '4', 'broken', 'dies'])}"

    def present(self) -> dict[str, Obj]:
        items = self.kube.milvuses.get(namespace=self.kube.ns).to_dict()["items"]
        return {judge.name_of(milvus): milvus for milvus in items}

    def settle_down(self) -> None:
        """Ask for good pods, and wait until all is served."""
        eventually(self.ask_for_good_pods, 30, ignoring=REFUSED)
        eventually(self.are_served, 120, ignoring=(AssertionError,))

    def ask_for_good_pods(self) -> bool:
        """Three or four of each; a new spec waits for no back-off."""
        for name in self.names:
            if name not in self.present():
                self.kube.create(name, image="milvus:1")
            replicas = self.random.randint(3, 4)
            self.kube.change(name, replicas=replicas, image=f"milvus:last-{self.changes}")
        return True

    def delete_pod(self, pod: Obj, **options: int) -> None:
        body = {"preconditions": {"uid": judge.uid_of(pod)}} | options
        self.kube.pods.delete(name=judge.name_of(pod), namespace=self.kube.ns, body=body)

    def are_served(self) -> bool:
        """Whether every Milvus has what its spec asks for. Raises AssertionError with what not."""
        pods = self.kube.all_pods()
        for pod in pods.values():
            # The API server was killed between the two writes of a delete.
            if pod["metadata"].get("deletionGracePeriodSeconds") == 0:
                with contextlib.suppress(ApiException):
                    self.delete_pod(pod, gracePeriodSeconds=0)
        for name, milvus in self.present().items():
            spec, status = milvus["spec"], milvus.get("status") or {}
            wanted = {f"{name}-{i}" for i in range(spec["replicas"])} - {self.taken.get(name)}
            images = {
                judge.name_of(pod): pod["spec"]["containers"][0]["image"]
                for pod in pods.values()
                if self.is_of(milvus, pod) and judge.is_ready(pod)
            }
            assert images == dict.fromkeys(wanted, spec["image"]), name
            said = {c["type"]: c["status"] for c in status.get("conditions") or []}
            expected = {"Ready": "True", "Reconciled": "True"}
            if name in self.taken:
                expected = {"Ready": "False", "Reconciled": "False", "Stalled": "True"}
            assert (said, {*status.get("pods", ())}) == (expected, wanted), name
        return True

    def check_harm(self, by: judge.Judge, recorder: Recorder) -> None:
        """Let the judge see all that has happened. Raises AssertionError with the harm."""
        harm = by.harm(recorder.history(), self.deleted)
        print(f"{self.changes} changes by users, {dict(by.seen)}")
        assert not harm, "\n".join(harm)
        assert by.seen["Ready pods rolled"] > 0, "the judge has seen too little"


class Recorder:
    """Watches all pods, Milvus resources and claims of a namespace, and records each change."""

    def __init__(self, kube: Kube) -> None:
        self.kube, self.running = kube, True
        self.changes, self.threads = list[judge.Change](), list[threading.Thread]()
        core = f"/api/v1/namespaces/{kube.ns}"
        paths = {
            "Pod": f"{core}/pods",
            "Milvus": kube.milvuses_path,
            "PersistentVolumeClaim": f"{core}/persistentvolumeclaims",
        }
        for kind, path in paths.items():
            page = json.loads(kube.request("GET", path).data)
            for item in page["items"]:
                self.add("ADDED", item | {"kind": kind})
            arguments = [path, page["metadata"]["resourceVersion"]]
            self.threads.append(threading.Thread(target=self.follow, args=arguments, daemon=True))
            self.threads[-1].start()

    def follow(self, path: str, revision: str) -> None:
        """Watch from this revision on. An answer that is not understood ends the thread."""
        options = {"preload_content": False, "timeout": urllib3.Timeout(connect=2, read=None)}
        while self.running:
            try:
                changes = f"{path}?watch=1&resourceVersion={revision}"
                with self.kube.request("GET", changes, **options) as answer:
                    if answer.status >= 500:
                        raise OSError("it is starting")
                    for line in answer:
                        event = json.loads(line)
                        revision = event["object"]["metadata"]["resourceVersion"]
                        self.add(event["type"], event["object"])
            except (urllib3.exceptions.HTTPError, OSError):
                time.sleep(0.1)  # the API server is down: go on from the last revision

    def add(self, what: str, obj: Obj) -> None:
        obj["metadata"].pop("managedFields", None)  # half of the object
        self.changes.append((int(obj["metadata"]["resourceVersion"]), what, obj))

    def history(self) -> list[judge.Change]:
        """All changes so far."""
        self.kube.create("marker", replicas=0)
        self.kube.create_pod("marker")
        eventually(lambda: sum(judge.name_of(one[2]) == "marker" for one in [*self.changes]) >= 2)
        assert all(thread.is_alive() for thread in self.threads), "not all has been recorded"
        self.running = False
        return self.changes
