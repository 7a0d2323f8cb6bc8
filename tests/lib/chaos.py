"""What goes wrong in a cluster, drawn from seeds: faults on the wire, and users who change their
minds."""

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

import milvus_operator as mo
from tests.lib.front import Rejected
from tests.lib.judge import ROLLED, Judge, Obj, image_of, is_ready
from tests.lib.kit import Kube, eventually, new_operator, rest
from tests.lib.wire import Handler

HTML = b"<!DOCTYPE html><html><body><h1>It works!</h1></body></html>"
REASONS = {
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


def error(code: int, reason: str) -> Callable[[Handler], None]:
    """A fault that responds with an error in the API server's own format."""
    body = json.dumps(Rejected(code, reason, f"injected {reason}").status).encode()
    return lambda handler: handler.respond(code, body)


def cut(handler: Handler) -> None:
    """Reset the connection in the middle of the body."""
    data = handler.forward().data
    half = data[: len(data) // 2]
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(data), half))
    handler.reset()


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
    "HTML with 200": lambda handler: handler.respond(200, HTML),
    "response lost": lost,
    "hang": hang,
    **{reason: error(code, reason) for code, reason in REASONS.items()},
}


class Faults:
    """The `fault` of a wire: breaks a share of the requests."""

    def __init__(self, share: float) -> None:
        self.random = random.Random(8)
        self.lock = threading.Lock()
        self.share = share
        self.done = Counter[str]()

    def __call__(self, handler: Handler, verb: str, path: str) -> bool:
        with self.lock:
            if self.random.random() >= self.share:
                return False
            weights = [0.2 if kind == "hang" else 1 for kind in FAULTS]
            (kind,) = self.random.choices([*FAULTS], weights)
            self.done[kind] += 1
        with contextlib.suppress(OSError):  # the client has already gone
            FAULTS[kind](handler)
        return True


FAILURES = ApiException, urllib3.exceptions.HTTPError, OSError  # or the API server is down


AT_ONCE = {"minReadySeconds": 0}  # so that a minute has many rolls


class Users:
    """They create, scale, roll and delete Milvus resources at random. Pods of other owners have the
    names of some pods."""

    def __init__(self, kube: Kube) -> None:
        self.kube = kube
        self.random = random.Random(9)
        self.changes = 0
        self.names = [f"m{number}" for number in range(8)]
        self.taken = {name: f"{name}-2" for name in self.names[:3]}
        self.storage = {"size": "1Gi", "storageClassName": kube.ns}
        for number in range(8):
            kube.create_volume(f"{kube.ns}-{number}", storageClassName=kube.ns)
        kube.create("still", replicas=2)  # from now on no user touches these two
        kube.create("stored", replicas=2, storage=self.storage)
        # And of this one they only change the image.
        kube.create("rolled", replicas=3, updateStrategy=AT_ONCE)
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
                spec["updateStrategy"] = AT_ONCE
                if name == self.names[-1]:
                    spec["storage"] = self.storage
                self.kube.create(name, **spec)

    def change_milvus(self, name: str, milvus: Obj) -> None:
        match self.random.choice(["replicas", "image", "Background", "Orphan"]):
            case "replicas":
                self.kube.change(name, replicas=self.random.randint(0, 4))
            case "image":
                self.kube.change(name, image=self.image())
            case how:
                self.delete(self.kube.milvuses, milvus, propagationPolicy=how)

    def delete(self, resource: Any, obj: Obj, **options: Any) -> None:
        body = options | {"preconditions": {"uid": mo.uid_of(obj)}}
        resource.delete(name=mo.name_of(obj), namespace=self.kube.ns, body=body)

    def image(self) -> str:
        return f"milvus:{self.random.choice(['1', '2', '3', '4', 'broken', 'dies'])}"

    def present(self) -> dict[str, Obj]:
        items = self.kube.milvuses.get(namespace=self.kube.ns).to_dict()["items"]
        return {mo.name_of(milvus): milvus for milvus in items}

    def settle_down(self) -> None:
        """Ask for good pods, and wait until there are."""
        eventually(self.ask_for_good_pods, 30, ignoring=FAILURES)
        started = time.monotonic()
        eventually(self.are_served, 120, ignoring=(AssertionError,))
        print(f"as asked {time.monotonic() - started:.0f} s after the last change and fault")

    def ask_for_good_pods(self) -> bool:
        """Three or four of each; a new spec waits for no back-off. A roll waits for names that pods
        of other owners hold, so these go."""
        pods = self.kube.all_pods()
        for name in {*self.taken.values()} & {*pods}:
            if not mo.controller_of(pods[name]):
                self.delete(self.kube.pods, pods[name], gracePeriodSeconds=0)
        for name in self.names:
            if name not in self.present():
                self.kube.create(name, image="milvus:1", updateStrategy=AT_ONCE)
            replicas = self.random.randint(3, 4)
            self.kube.change(name, replicas=replicas, image=f"milvus:last-{self.changes}")
        return True

    def are_served(self) -> bool:
        """Whether every Milvus has what its spec asks for. Raises AssertionError with what not."""
        pods = self.kube.all_pods().values()
        present = self.present()
        owners = {None, *map(mo.uid_of, present.values())}
        for pod in pods:
            # The API server was killed between the two writes of a delete, or the garbage collector
            # has missed that the owner is gone: the operator is right to wait for either.
            is_left = mo.controller_of(pod).get("uid") not in owners
            if is_left or pod["metadata"].get("deletionGracePeriodSeconds") == 0:
                with contextlib.suppress(ApiException):
                    self.delete(self.kube.pods, pod, gracePeriodSeconds=0)
        for name, milvus in present.items():
            image = milvus["spec"]["image"]
            desired = {f"{name}-{i}" for i in range(milvus["spec"]["replicas"])}
            expected = {"Ready": "True", "Reconciled": "True"}
            mine = [pod for pod in pods if mo.controller_of(pod).get("uid") == mo.uid_of(milvus)]
            images = {mo.name_of(pod): image_of(pod) for pod in mine if is_ready(pod)}
            assert images == dict.fromkeys(desired, image), name
            conditions = milvus["status"].get("conditions", ())
            said = {one["type"]: one["status"] for one in conditions}
            assert said == expected, name
        return True

    def check_harm(self, by: Judge) -> None:
        """Raises AssertionError with the harm that a judge has seen."""
        print(f"{self.changes} changes by users, {dict(by.seen)}")
        assert not by.harm, "\n".join(by.harm)
        assert by.seen["Ready pods rolled"] > 0, "the judge has seen too little"
