"""What goes wrong in a cluster, drawn from seeds: faults on the wire, kills, and users who change their minds. Meanwhile,
a recorder follows the API server."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import urllib3
from kubernetes.client.exceptions import ApiException

from local.controlplane import ControlPlane
from tests import judge
from tests.lib.kit import Command, Kube, Obj, eventually, new_operator, rest
from tests.lib.wire import Handler, Wire

# --------------------------------------------------------------------------------------
# Faults on the wire
# --------------------------------------------------------------------------------------

HTML = b"<!DOCTYPE html><html><body><h1>It works!</h1></body></html>"
STATUSES = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired", 422: "Invalid",
            429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout"}  # fmt: skip


def status(code: int) -> Callable[[Handler], None]:
    """A fault that answers with an error in the API server's own format."""
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": STATUSES[code],
            "message": f"injected {STATUSES[code]}"}  # fmt: skip
    headers = {"Retry-After": "1"} if code == 429 else {}
    return lambda handler: handler.answer(code, json.dumps(body).encode(), headers=headers)


def cut(handler: Handler) -> None:
    """Reset the connection in the middle of the body."""
    answer = handler.forward().data
    handler.answer(200, answer[: len(answer) // 2], length=len(answer))
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
    "a byte at a time": lambda handler: handler.drip(3),
    **{f"{code}": status(code) for code in STATUSES},
}
SLOW = {"hang", "a byte at a time"}


class Faults:
    """The `fault` of one or more wires: breaks a share of the reads and a share of the writes."""

    def __init__(self, seed: int, reads: float, writes: float) -> None:
        self.random, self.reads, self.writes, self.lock = (
            random.Random(seed),
            reads,
            writes,
            threading.Lock(),
        )
        self.done, self.done_to_writes = Counter[str](), Counter[str]()

    def __call__(self, handler: Handler, verb: str, path: str) -> bool:
        reads = verb == "GET" or "dryRun" in path
        with self.lock:
            if self.random.random() >= (self.reads if reads else self.writes):
                return False
            unfit = {
                "410": "continue=" not in path,
                "not a list": verb != "GET" or "limit=" not in path,
            }
            kinds = [kind for kind in FAULTS if not unfit.get(kind)]
            kind = self.random.choices(kinds, [0.2 if kind in SLOW else 1 for kind in kinds])[0]
            self.done[kind] += 1
            self.done_to_writes[kind] += not reads
        with contextlib.suppress(OSError):  # the client has already gone
            FAULTS[kind](handler)
        return True

    def stop(self) -> None:
        self.reads = self.writes = 0


# --------------------------------------------------------------------------------------
# Kills
# --------------------------------------------------------------------------------------


class Kills:
    """The `fault` of several wires: kills something during a write. A copy of the operator is killed before its write
    is forwarded ("before") or before it can read the answer ("after"), etcd or kube-apiserver during the write."""

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


# --------------------------------------------------------------------------------------
# Users
# --------------------------------------------------------------------------------------


class Users:
    """They create, scale, roll and delete Milvus resources, and sometimes delete a pod, at random."""

    def __init__(self, kube: Kube, seed: int) -> None:
        self.kube, self.random, self.changes = kube, random.Random(seed), 0
        self.names = [f"m{number}" for number in range(8)]
        self.deleted: set[str] = set()  # the UIDs of pods that they deleted
        self.storage = {"size": "1Gi", "storageClassName": kube.ns}
        kube.kubectl("create", "-f", "-", stdin="\n".join(map(self.volume, range(8))))
        kube.create("still", replicas=2)  # from now on no user touches these two
        kube.create("stored", replicas=2, storage=self.storage)
        rest(new_operator(kube), kube, "still-0", "still-1", "stored-0", "stored-1")
        for name in self.names[:3]:  # other people's pods have the names of some ordinals
            kube.create_pod(f"{name}-2")
        kube.create_pod("decoy", labels=judge.labels_for("m0-7"))

    def volume(self, number: int) -> str:
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": self.kube.ns,
        }
        name = f"{self.kube.ns}-{number}"
        return json.dumps({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
                           "spec": spec | {"hostPath": {"path": "/tmp"}}})  # fmt: skip

    def change(self) -> None:
        """Make one change; if the API server refuses it, so be it."""
        with contextlib.suppress(ApiException, urllib3.exceptions.HTTPError, OSError):
            name = self.random.choice(self.names)
            milvus = self.present().get(name)
            self.changes += 1
            if milvus:
                self.change_milvus(name, milvus)
            else:
                stored = {"storage": self.storage} if name == self.names[-1] else {}
                self.kube.create(
                    name, replicas=self.random.randint(0, 4), image=self.image(), **stored
                )

    def change_milvus(self, name: str, milvus: Obj) -> None:
        kube, dice = self.kube, self.random
        updates: dict[str, Obj] = {
            "replicas": {"replicas": dice.randint(0, 4)},
            "image": {"image": self.image()},
            "settings": {"milvusSpec": f"log: {{level: '{dice.randint(0, 9)}'}}"},
            "mark": {"pod": {"metadata": {"annotations": {"mark": str(dice.randint(0, 9))}}}},
        }
        action = dice.choice(
            [*updates, "replicas", "image", "waver", "waver", "delete", "orphan", "pod", "labels"]
        )
        if action in updates:
            kube.change(name, **updates[action])
        elif action == "waver":  # a change that is reverted at once
            update = dice.choice([{"replicas": 0}, updates["image"]])
            kube.change(name, **update)
            time.sleep(dice.uniform(0, 0.3))
            kube.change(name, **{key: milvus["spec"][key] for key in update})
        elif action in ("delete", "orphan"):
            kube.delete(name, propagationPolicy="Background" if action == "delete" else "Orphan")
        else:
            pods = [
                pod
                for pod in kube.all_pods().values()
                if judge.owner_of(pod) and not judge.QUIET.fullmatch(judge.name_of(pod))
            ]
            for pod in dice.sample(pods, min(1, len(pods))):
                self.change_pod(action, pod)

    def change_pod(self, action: str, pod: Obj) -> None:
        if action == "labels":
            self.kube.patch_pod(judge.name_of(pod), labels={"apps.kubernetes.io/pod-index": None})
            return
        self.deleted.add(judge.uid_of(pod))
        conditions = {"preconditions": {"uid": judge.uid_of(pod)}}
        try:
            self.kube.pods.delete(name=judge.name_of(pod), namespace=self.kube.ns, body=conditions)
        except ApiException as error:
            if error.status in (404, 409):  # it was gone, or had been replaced
                self.deleted.discard(judge.uid_of(pod))
            raise

    def image(self) -> str:
        return f"milvus:{self.random.choice(['1', '2', '3', '4', 'broken', 'dies'])}"

    def present(self) -> dict[str, Obj]:
        items = self.kube.milvuses.get(namespace=self.kube.ns, serializer=lambda _, obj: obj)[
            "items"
        ]
        return {judge.name_of(milvus): milvus for milvus in items}

    def settle_down(self) -> bool:
        """Ask for three or four good pods of each Milvus; because its spec changes, nothing waits for a back-off."""
        for name in self.names:
            if name not in self.present():
                self.kube.create(name, image="milvus:1")
            self.kube.change(
                name, replicas=self.random.randint(3, 4), image=f"milvus:last-{self.changes}"
            )
        return True

    def are_served(self) -> bool:
        """Whether every Milvus has what its spec asks for; if not, raises an AssertionError that says what is wrong."""
        wrong = self.wrong()
        assert not wrong, wrong
        return True

    def pods(self) -> dict[str, tuple[Obj, set[str], dict[str, Obj]]]:
        """By the name of a Milvus: itself, the names of the pods that it should have, and the pods that it has."""
        milvuses, found, taken = (
            self.present(),
            self.kube.all_pods(),
            {f"{name}-2" for name in self.names[:3]},
        )
        return {
            name: (
                milvus,
                {f"{name}-{number}" for number in range(milvus["spec"]["replicas"])} - taken,
                {
                    pod: obj
                    for pod, obj in found.items()
                    if judge.owner_of(obj).get("uid") == judge.uid_of(milvus)
                },
            )
            for name, milvus in milvuses.items()
        }

    def wrong(self) -> dict[str, str]:
        """By the name of a Milvus, what does not match its spec yet."""
        wrong = {}
        for name, (milvus, wanted, mine) in self.pods().items():
            status = milvus.get("status") or {}
            conditions = {c["type"]: c["status"] for c in status.get("conditions") or []}
            good = name not in self.names[:3]
            expected = {"Ready": str(good), "Reconciled": str(good)} | (
                {} if good else {"Stalled": "True"}
            )
            if mine.keys() != wanted:
                wrong[name] = f"its pods are {sorted(mine)}"
            elif any(judge.shown_by(pod) != judge.asked_for(milvus) for pod in mine.values()):
                wrong[name] = "a pod has an earlier template"
            elif not all(map(judge.is_ready, mine.values())):
                wrong[name] = "a pod is not Ready"
            elif conditions != expected or status.get("pods") != sorted(mine, key=judge.ordinal):
                wrong[name] = f"its status is {conditions}, {status.get('pods')}"
        return wrong


# --------------------------------------------------------------------------------------
# The recorder
# --------------------------------------------------------------------------------------


class Recorder:
    """Watches all pods and Milvus resources of a namespace, and records each change with its revision."""

    def __init__(self, kube: Kube) -> None:
        self.kube, self.running = kube, True
        self.history: list[tuple[int, str, Obj]] = []  # revision, ADDED … and the object
        self.errors: list[str] = []
        paths = f"/api/v1/namespaces/{kube.ns}/pods", kube.milvuses_path
        self.started = {path: threading.Event() for path in paths}
        for path in paths:
            threading.Thread(target=self.follow, args=[path], daemon=True).start()
        for event in self.started.values():
            assert event.wait(20), "the recorder does not start"

    def follow(self, path: str) -> None:
        revision = ""
        while self.running:
            try:
                if not revision:
                    page = json.loads(self.kube.request("GET", path).data)
                    for item in page["items"]:
                        self.add("ADDED", item)
                    revision = page["metadata"]["resourceVersion"]
                    self.started[path].set()
                for line in self.watch(path, revision):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        self.errors.append(event["object"].get("message", ""))
                        return
                    revision = event["object"]["metadata"]["resourceVersion"]
                    self.add(event["type"], event["object"])
            except (urllib3.exceptions.HTTPError, OSError):
                time.sleep(0.1)  # the API server is down: go on from the last revision
            except Exception as error:  # otherwise a recorder that has stopped would hide all harm
                self.errors.append(f"{type(error).__name__}: {error}")
                return

    def watch(self, path: str, revision: str) -> Iterator[bytes]:
        changes = f"{path}?watch=1&resourceVersion={revision}"
        timeout = urllib3.Timeout(connect=2, read=None if self.running else 1)
        with self.kube.request("GET", changes, preload_content=False, timeout=timeout) as answer:
            if answer.status >= 500:
                raise OSError("it is starting")
            if answer.status != 200:
                raise RuntimeError(f"watch: {answer.status} {answer.data[:200]!r}")
            rest = b""
            for chunk in answer.stream(1 << 16):
                *lines, rest = (rest + chunk).split(b"\n")
                yield from lines

    def add(self, kind: str, obj: Obj) -> None:
        obj["metadata"].pop("managedFields", None)  # half of the object
        self.history.append((int(obj["metadata"]["resourceVersion"]), kind, obj))

    def judge(self, by_users: set[str]) -> Counter[str]:
        """Replay the history and fail at the first harm; returns how often each thing happened."""
        self.kube.create("marker", replicas=0)
        self.kube.create_pod("marker")
        eventually(
            lambda: (
                self.errors
                or sum(judge.name_of(obj) == "marker" for *_, obj in [*self.history]) >= 2
            )
        )
        self.running = False
        assert not self.errors, self.errors
        history = judge.History(by_users)
        for _, kind, obj in sorted(self.history, key=lambda one: one[0]):
            (history.pod if "containers" in obj["spec"] else history.milvus)(kind, obj)
        return history.seen
