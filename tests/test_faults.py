"""Whatever can break between operator and API server does; FAULTS=1000 makes it a thousand."""

import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import urllib3
from kubernetes.client import ApiException

import milvus_operator as mo
from tests.conftest import Handler, Proxy
from tests.kube import CLAIMS, Kube
from tests.world import eventually

FAULTS = int(os.environ.get("FAULTS") or 200)
DOWN = (ApiException, urllib3.exceptions.HTTPError, OSError)  # what users see of an outage
NAMES = [f"m{number}" for number in range(6)]
# What no operator has a reason to write to: pods and claims of others, and of a Milvus at rest.
STRANGERS = re.compile(r"/(pods|persistentvolumeclaims)/(data-)?(still|m\d-([4-9]|00))")
UID = re.compile(rb'"preconditions": *{"uid": *"[-\w]+"')


def cut_in_half(handler: Handler) -> None:
    code, body = handler.forward()
    handler.respond(code, body[: len(body) // 2], len(body))
    handler.close_connection = True


def say(code: int) -> Callable[[Handler], None]:
    body = json.dumps({"kind": "Status", "message": f"injected {code}"}).encode()
    return lambda handler: handler.respond(code, body)


# What can happen to a request; without an answer, its connection is reset.
BREAKS: list[Callable[[Handler], object]] = [
    lambda handler: None,
    lambda handler: time.sleep(100),  # the operator waits for one second
    Handler.forward,  # its answer is lost
    cut_in_half,
    lambda handler: handler.respond(200, b"<html>It works!</html>"),
    lambda handler: handler.respond(502, b"<html>Bad gateway</html>"),
    *(say(code) for code in (401, 403, 404, 409, 429, 500, 503)),
]


class Chaos:
    """Operators behind a proxy that breaks requests and judges them, and users."""

    def __init__(self, kube: Kube, proxy: Proxy, folder: Path) -> None:
        self.kube = kube
        self.log = folder / "log"
        self.dice = random.Random(7)
        self.breaks = BREAKS
        self.broken = 0
        self.deadline = time.monotonic() + 60 + FAULTS
        self.harm = list[str]()
        self.running = list[subprocess.Popen[bytes]]()
        storage = kube.make_class(volumes=6)  # for still, and for as many replicas as m5 may get
        kube.create("still", replicas=2, storage=storage)  # from now on, no user touches it
        still = mo.owner_reference(kube.get("still"))
        kube.make_pod("m0-7")
        kube.make_pod("m1-5", labels={mo.MILVUS_LABEL: "m1"}, ownerReferences=[still])
        kube.make_pod("m2-00", labels={mo.MILVUS_LABEL: "m2"})
        claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        kube.make("v1", "PersistentVolumeClaim", "data-m0-7", spec=claim)
        kube.rest("m0-7", "m1-5", "m2-00", "still-0", "still-1")
        self.images = kube.images()
        self.uids = kube.uids().items() | kube.uids(*CLAIMS).items()
        for name in NAMES:
            kube.create(name, replicas=2, **({"storage": storage} if name == "m5" else {}))
        proxy.fault = self.meet

    def meet(self, handler: Handler) -> bool:
        """Judge a request; perhaps break it."""
        verb, path = handler.command, handler.path
        is_safe = verb != "DELETE" or ("/pods/" in path and UID.search(handler.body))
        if not is_safe or (verb != "GET" and STRANGERS.search(path)):
            self.harm.append(f"{verb} {path} {handler.body!r}")
        share = 0.05 if "limit=" in path else 0.4  # a pass needs four lists that succeed
        if not self.breaks or self.dice.random() > share:
            return False
        self.broken += 1
        self.dice.choice(self.breaks)(handler)
        return True

    def start(self) -> None:
        options = ["-n", self.kube.ns, f"--kubeconfig={self.kube.config}", "--interval=0.2"]
        command = [sys.executable, mo.__file__, *options, "--timeout=1"]
        with self.log.open("a") as log:
            self.running.append(subprocess.Popen(command, stderr=log))

    def kill(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()

    def change(self) -> None:
        """A user's change; if the API server is down, so be it."""
        assert time.monotonic() < self.deadline, f"only {self.broken} requests met a fault"
        name = self.dice.choice(NAMES)
        image = self.dice.choice(["milvus:1", "milvus:2", "milvus:broken", "milvus:dies"])
        with suppress(*DOWN):
            match self.dice.randint(0, 2):
                case 0:
                    self.kube.change(name, image=image)
                case 1:
                    self.kube.change(name, replicas=self.dice.randint(0, 4))
                case _:
                    pod = f"{name}-{self.dice.randint(0, 3)}"
                    mo.pods(self.kube.api).delete(name=pod, namespace=self.kube.ns)
        time.sleep(0.05)

    def end(self) -> None:
        """Nothing breaks any more: everybody gets what they ask for, and nobody was harmed."""
        self.breaks = []
        wanted = self.images
        for number, name in enumerate(NAMES):
            self.kube.change(name, image="milvus:last", replicas=number % 4)
            wanted |= {f"{name}-{ordinal}": "milvus:last" for ordinal in range(number % 4)}
        eventually(lambda: self.kube.images() == wanted, 60, self.kube.show)
        for kind in ("Ready", "Reconciled"):
            self.kube.kubectl("wait", "mi", "--all", f"--for=condition={kind}", "--timeout=30s")
        assert {*self.kube.all_of()} == {*wanted}
        self.kill()
        assert {*self.kube.uids().items(), *self.kube.uids(*CLAIMS).items()} >= self.uids
        assert self.harm == []
        assert not re.search("Traceback|unexpected", self.log.read_text())


@pytest.fixture
def chaos(kube: Kube, proxy: Proxy, tmp_path: Path) -> Iterator[Chaos]:
    chaos = Chaos(kube, proxy, tmp_path)
    yield chaos
    chaos.kill()


@pytest.mark.parametrize(("copies", "faults"), [(1, FAULTS * 2 // 3), (2, FAULTS // 3)])
def test_nothing_is_lost_whatever_fails(chaos: Chaos, copies: int, faults: int) -> None:
    for _ in range(copies):
        chaos.start()
    while chaos.broken < faults:
        chaos.change()
    chaos.end()


@pytest.mark.slow
def test_kills_of_the_operator_and_the_control_plane_do_no_harm(chaos: Chaos) -> None:
    def kill(handler: Handler) -> None:
        if chaos.dice.random() < 0.5:  # before or after it is carried out
            handler.forward()
        chaos.kill()

    chaos.breaks = [kill]
    for number in range(30):
        chaos.start()
        if number % 5 == 4:
            chaos.kube.plane.kill(chaos.dice.choice(["etcd", "kube-apiserver"]))
        while chaos.running[-1].poll() is None:
            chaos.change()
    chaos.start()
    chaos.end()
