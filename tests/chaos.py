"""What breaks in a cluster, by seed: faults on the wire, and users who change their minds; and a
recorder that follows the API server all the while and judges what was done there."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import urllib3
from kubernetes.client.exceptions import ApiException

import milvus_operator as mo
from local.controlplane import ControlPlane
from tests.kit import Kube, Obj, eventually
from tests.wire import Handler

WINDOW = 20  # seconds: a write is harm when it was right at no moment of what was asked in the time before it
STRANGER = "stranger:1"


# --------------------------------------------------------------------------------------
# Faults on the wire
# --------------------------------------------------------------------------------------

HTML = b"<!DOCTYPE html><html><body><h1>It works!</h1></body></html>"
STATUSES = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired", 422: "Invalid",
            429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout"}  # fmt: skip


def status(code: int) -> Callable[[Handler], None]:
    """An error of the API server, in its own form."""
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": STATUSES[code],
            "message": f"injected {STATUSES[code]}"}  # fmt: skip
    headers = {"Retry-After": "1"} if code == 429 else {}
    return lambda handler: handler.answer(code, json.dumps(body).encode(), headers=headers)


def cut(handler: Handler) -> None:
    """A reset in the middle of the body."""
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
    """The request succeeds, and its answer is lost."""
    handler.forward()
    handler.reset()


FAULTS: dict[str, Callable[[Handler], None]] = {
    "reset": lambda handler: handler.reset(),
    "reset in the body": cut,
    "truncated JSON": truncated,
    "no JSON": lambda handler: handler.answer(200, b'{"items": [}'),
    "HTML with 200": lambda handler: handler.answer(200, HTML, "text/html"),
    "HTML with 502": lambda handler: handler.answer(502, HTML, "text/html"),
    "no list": lambda handler: handler.answer(200, b"{}"),
    "answer lost": lost,
    "hang": hang,
    "a byte at a time": lambda handler: handler.drip(3),
    **{f"{code}": status(code) for code in STATUSES},
}
SLOW = {"hang", "a byte at a time"}


class Faults:
    """Spoils a share of the requests on a wire; set as its `fault`."""

    def __init__(self, seed: int, share: float) -> None:
        self.random, self.share, self.lock = random.Random(seed), share, threading.Lock()
        self.done: Counter[str] = Counter()

    def __call__(self, handler: Handler, verb: str, path: str) -> bool:
        with self.lock:
            if self.random.random() >= self.share:
                return False
            listing = verb == "GET" and "limit=" in path
            unfit = {"410": "continue=" not in path, "no list": not listing}
            kinds = [kind for kind in FAULTS if not unfit.get(kind)]
            kind = self.random.choices(kinds, [0.1 if kind in SLOW else 1 for kind in kinds])[0]
            self.done[kind] += 1
        with contextlib.suppress(OSError):  # who asked has gone already
            FAULTS[kind](handler)
        return True


# --------------------------------------------------------------------------------------
# Users
# --------------------------------------------------------------------------------------


class Users:
    """They create, scale, roll and delete Milvus resources, and now and then delete a pod, by seed."""

    def __init__(self, kube: Kube, seed: int, names: int = 8) -> None:
        self.kube, self.random, self.changes = kube, random.Random(seed), 0
        self.names = [f"m{number}" for number in range(names)]
        self.deleted: set[str] = set()  # the UIDs of pods that they deleted
        for name in self.names[:3]:  # some ordinals are taken, by pods of other people
            kube.create_pod(f"{name}-2")
        labels = mo.pod_labels({"metadata": {"name": "m0", "namespace": kube.ns}}, 7)
        kube.create_pod("decoy", labels=labels)

    def change(self) -> None:
        """One change; what the API server does not take is left."""
        name, kube, dice = self.random.choice(self.names), self.kube, self.random
        with contextlib.suppress(ApiException, urllib3.exceptions.HTTPError, OSError):
            there = name in self.present()
            self.changes += 1
            if not there:
                kube.create(name, replicas=dice.randint(0, 4), image=self.image())
                return
            action = dice.choice(["scale", "scale", "roll", "roll", "settings", "delete", "orphan", "pod", "labels"])
            if action == "scale":
                kube.change(name, replicas=dice.randint(0, 4))
            elif action == "roll":
                kube.change(name, image=self.image())
            elif action == "settings":
                kube.change(name, milvusSpec=f"log: {{level: '{dice.randint(0, 9)}'}}")
            elif action in ("pod", "labels"):
                pods = [pod for pod in kube.all_pods().values() if mo.owner_uid(pod)]
                for pod in dice.sample(pods, min(1, len(pods))):
                    if action == "labels":
                        kube.patch_pod(mo.name_of(pod), labels={mo.POD_INDEX_LABEL: None})
                        continue
                    self.deleted.add(mo.uid_of(pod))
                    kube.delete_pod(mo.name_of(pod))
            else:
                kube.delete(name, propagationPolicy="Background" if action == "delete" else "Orphan")

    def image(self) -> str:
        return f"milvus:{self.random.choice(['1', '2', '3', '4', 'broken', 'dies'])}"

    def present(self) -> dict[str, Obj]:
        items = self.kube.milvuses.get(namespace=self.kube.ns, serializer=lambda _, obj: obj)["items"]
        return {mo.name_of(milvus): milvus for milvus in items}

    def settle_down(self) -> bool:
        """They want each of them with three or four good pods now; so what was refused is tried again at once."""
        for name in self.names:
            if name not in self.present():
                self.kube.create(name, image="milvus:1")
            self.kube.change(name, replicas=self.random.randint(3, 4), image=f"milvus:last-{self.changes}")
        return True

    def are_served(self) -> bool:
        """Raises AssertionError with what is not yet as it was asked for."""
        wrong = self.wrong()
        assert not wrong, wrong
        return True

    def pods(self) -> dict[str, tuple[Obj, set[str], dict[str, Obj]]]:
        """By the name of a Milvus: itself, the names of the pods that it should have, and the pods that it has."""
        milvuses, found, taken = self.present(), self.kube.all_pods(), {f"{name}-2" for name in self.names[:3]}
        return {
            name: (
                milvus,
                {f"{name}-{ordinal}" for ordinal in range(milvus["spec"]["replicas"])} - taken,
                {pod: obj for pod, obj in found.items() if mo.owner_uid(obj) == mo.uid_of(milvus)},
            )
            for name, milvus in milvuses.items()
        }

    def wrong(self) -> dict[str, str]:
        """By the name of a Milvus, what is not yet as it was asked for."""
        wrong = {}
        for name, (milvus, wanted, mine) in self.pods().items():
            status = milvus.get("status") or {}
            conditions = {c["type"]: c["status"] for c in status.get("conditions") or []}
            good = name not in self.names[:3]
            expected = {"Ready": str(good), "Reconciled": str(good)} | ({} if good else {"Stalled": "True"})
            if mine.keys() != wanted:
                wrong[name] = f"its pods are {sorted(mine)}"
            elif any(mo.template_hash_of(pod) != mo.template_hash(milvus) for pod in mine.values()):
                wrong[name] = "a pod has an earlier template"
            elif not all(map(mo.is_ready, mine.values())):
                wrong[name] = "a pod is not Ready"
            elif conditions != expected or status.get("pods") != sorted(mine, key=ordinal):
                wrong[name] = f"its status is {conditions}, {status.get('pods')}"
        return wrong


# --------------------------------------------------------------------------------------
# The recorder
# --------------------------------------------------------------------------------------


class Recorder:
    """Follows all pods and Milvus resources of a namespace, each change in the order of etcd's revisions."""

    def __init__(self, kube: Kube) -> None:
        self.kube, self.running = kube, True
        self.history: list[tuple[int, float, str, Obj]] = []  # revision, time, ADDED … and the object
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
            except Exception as error:  # a recorder that has stopped would accuse nobody
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
        obj["metadata"].pop("managedFields", None)  # half of it
        self.history.append((int(obj["metadata"]["resourceVersion"]), time.monotonic(), kind, obj))

    def judge(self, deleted_by_users: set[str]) -> Counter[str]:
        """Replay it all and fail on the first harm; returns what happened how often."""
        self.kube.create("marker", replicas=0)
        self.kube.create_pod("marker")
        eventually(lambda: self.errors or sum(mo.name_of(obj) == "marker" for *_, obj in [*self.history]) >= 2)
        self.running = False
        assert not self.errors, self.errors
        deletes = deletes_of_operators(self.kube.plane, self.kube.ns)
        assert all(uid for uid, _ in deletes), "a delete without a UID"
        judge = Judge({uid for uid, code in deletes if code < 300} - deleted_by_users)
        judge.seen["deletes asked for, each with a UID"] = len(deletes)
        for _, now, kind, obj in sorted(self.history, key=lambda one: one[0]):
            if obj["kind"] == mo.KIND:
                judge.milvus(now, kind, obj)
            else:
                judge.pod(now, kind, obj)
        return judge.seen


class Wish(list[tuple[float, int, str]]):
    """What was asked of one Milvus over time: since when, how many pods, of which template; none after its end."""

    def lately(self, now: float) -> list[tuple[int, str]]:
        """What was asked at any moment of the last WINDOW seconds."""
        ends = [*(start for start, _, _ in self[1:]), now]
        return [
            (replicas, template) for (_, replicas, template), end in zip(self, ends, strict=True) if end >= now - WINDOW
        ]


class Judge:
    """Replays what happened. `deletes` are the UIDs of the pods that operators deleted; others may do as they like."""

    def __init__(self, deletes: set[str]) -> None:
        self.deletes = deletes
        self.wishes: dict[str, Wish] = defaultdict(Wish)  # by the UID of the Milvus
        self.pods: dict[str, Obj] = {}  # by UID
        self.owners: dict[str, str] = {}  # the last owner of each pod: users may orphan it under the operator's hands
        # By the UID of the Milvus, the ordinals whose Ready pod went and that are not Ready again.
        self.rolling: dict[str, set[int]] = defaultdict(set)
        self.seen: Counter[str] = Counter()

    def milvus(self, now: float, kind: str, milvus: Obj) -> None:
        uid = mo.uid_of(milvus)
        if kind == "DELETED" or mo.is_ending(milvus):
            wish = (now, 0, "")
        else:
            wish = (now, milvus["spec"].get("replicas", 1), mo.template_hash(milvus))
        if not self.wishes[uid] or self.wishes[uid][-1][1:] != wish[1:]:
            self.wishes[uid].append(wish)
            self.rolling[uid] = {ordinal for ordinal in self.rolling[uid] if ordinal < wish[1]}
            self.seen["wishes"] += 1

    def pod(self, now: float, kind: str, pod: Obj) -> None:
        before = self.pods.get(mo.uid_of(pod))
        self.pods[mo.uid_of(pod)] = pod
        self.owners[mo.uid_of(pod)] = mo.owner_uid(pod) or self.owners.get(mo.uid_of(pod), "")
        if pod["spec"]["containers"][0]["image"] == STRANGER:
            kept = ("labels", "annotations", "ownerReferences", "deletionTimestamp")
            was = (before or pod)["metadata"]
            for key in kept:
                assert pod["metadata"].get(key) == was.get(key), f"a stranger's {key} changed: {pod}"
            assert kind != "DELETED", f"a stranger was deleted: {pod}"
            return
        if not before:
            self.created(now, pod)
        elif (mo.is_ending(pod) or kind == "DELETED") and not mo.is_ending(before):
            self.deleted(now, before)
        if mo.is_ready(pod) and kind != "DELETED":
            self.rolling[mo.owner_uid(pod) or ""].discard(ordinal(mo.name_of(pod)))
        if kind == "DELETED":
            del self.pods[mo.uid_of(pod)]

    def created(self, now: float, pod: Obj) -> None:
        owner = mo.owner_uid(pod) or ""
        self.seen["created"] += 1
        wishes = self.wishes[owner].lately(now)
        assert any(ordinal(mo.name_of(pod)) < replicas for replicas, _ in wishes), (
            f"never asked for lately: {short(pod)}, {wishes}"
        )
        template = mo.template_hash_of(pod)
        assert any(template == asked for _, asked in wishes), f"no such template lately: {short(pod)}, {wishes}"

    def deleted(self, now: float, pod: Obj) -> None:
        owner = self.owners[mo.uid_of(pod)]
        if mo.uid_of(pod) not in self.deletes:
            self.seen["deleted by users, or as garbage"] += 1
            return
        self.seen["deleted"] += 1
        wishes = self.wishes[owner].lately(now)
        if any(replicas <= ordinal(mo.name_of(pod)) for replicas, _ in wishes):
            self.seen["surplus"] += 1
        elif mo.is_finished(pod):
            self.seen["finished"] += 1
        else:
            stale = any(mo.template_hash_of(pod) != template for _, template in wishes)
            assert stale, f"a healthy wanted pod was deleted: {short(pod)}, {wishes}"
            self.seen["rolled"] += 1
            if mo.is_ready(pod):
                self.seen["rolled while Ready"] += 1
                assert not self.rolling[owner], f"{short(pod)} went while {self.rolling[owner]} were not Ready again"
                self.rolling[owner].add(ordinal(mo.name_of(pod)))


def ordinal(name: str) -> int:
    return int(name.rpartition("-")[2])


def short(pod: Obj) -> str:
    return f"{mo.name_of(pod)} {mo.uid_of(pod)} of {mo.owner_uid(pod)}, template {mo.template_hash_of(pod)}, {mo.phase_of(pod)}"


def deletes_of_operators(plane: ControlPlane, namespace: str) -> list[tuple[str, int]]:
    """From the audit log of the API server: the UID that each of their deletes of a pod carried, and the answer's code."""
    asked = [json.loads(line) for line in Path(plane.folder / "audit.log").read_text().splitlines()]
    ours = [
        one for one in asked if one["userAgent"].startswith(mo.MANAGER) and one["objectRef"]["namespace"] == namespace
    ]
    return [
        (
            str(((one.get("requestObject") or {}).get("preconditions") or {}).get("uid", "")),
            one["responseStatus"]["code"],
        )
        for one in ours
        if "requestObject" in one or one["responseStatus"]["code"] < 300  # not cut off by a kill
    ]


def gone(kube: Kube) -> None:
    """Wait until no pod is ending."""
    eventually(lambda: not any(map(mo.is_ending, kube.all_pods().values())), 30)
