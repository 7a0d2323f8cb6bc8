"""Users, pods and the network do what they like, in an order that a seed chooses.

The seeds are new in each test run, and part of the tests' names. `SEED=… RUNS=1` repeats a run.
"""

import os
import random

import pytest
from urllib3 import HTTPResponse

import milvus_operator as mo
from tests.lib.front import ERRORS, Rejected, Request, http_response
from tests.lib.judge import OTHERS_IMAGE, image_of, is_ready
from tests.lib.server import merge
from tests.lib.world import World, milvus, pod

TOGETHER = os.environ.get("PYTEST_XDIST_TESTRUNUID")  # the same for all processes of a test run
NEW = random.Random(TOGETHER).randrange(1_000_000)
BASE = int(os.environ.get("SEED") or NEW)
RUNS = int(os.environ.get("RUNS") or 8)
LONGEST_PAUSE = 60  # seconds until what failed is tried again
ROLL = 20  # seconds that a roll takes on its own: three pods, each in a few passes

REFUSED = {"Forbidden": 403, "denied": 500}
CODES = REFUSED | {"Conflict": 409, "TooManyRequests": 429, "odd": 500, "Timeout": 504}
CHANGES = [
    *["image", "image", "scale", "scale y", "fail", "crash", "end", "end", *["run"] * 4],
    *["relabel", "silence", "quota", "stranger", "doom", "doom", "lose"],
]
DIES = "milvus:3"  # an image whose pods are Ready for a while, and then crash
QUOTA = 'pods "x" is forbidden: exceeded quota: a'
WELL_KNOWN = (mo.MANAGED_BY_LABEL, mo.INSTANCE_LABEL, mo.NAME_LABEL, mo.POD_INDEX_LABEL)


class Run:
    """Some passes of one operator or, by mistake, several, while specs and pods change and requests
    fail. An operator has one worker, so one request at a time. Of several, another may make a whole
    pass meanwhile: then the first one goes on with lists that are out of date."""

    def __init__(self, seed: int, replicas: int) -> None:
        self.dice = random.Random(seed)
        stored = milvus("y", storage={"size": "1Gi"})
        self.world = World(milvus(replicas=3), stored, pod("y-2"))
        self.operators = [self.world.new_operator() for _ in range(replicas)]
        self.idle = [*self.operators]  # those that make no pass now
        self.share = 0.3 if replicas == 1 else 0.03  # of the requests that fail
        self.faults = self.dice.sample([*CODES, *ERRORS, "page"], 2)
        self.refused = set[tuple[int, str]]()  # pods that could not be deleted, and the generation
        self.late = dict[str, float]()  # when a delete that got no answer takes effect, by UID
        self.harm = list[str]()
        server = self.server = self.world.server
        server.when("*", "*", self.interrupt)
        server.when("list", "*", self.slow)
        server.when("*", "*", self.fail)
        server.when("*", "*", self.lose, after=True)
        server.when("create", "pods", self.admit)
        server.when("delete", "pods", self.judge)
        server.when("delete", "pods", self.guard)
        server.when("patch", "pods", self.judge)
        self.quota = 99
        self.alive = 0.5  # the share of the pods of a dying image that are Ready

    def make_pass(self) -> None:
        operator = self.dice.choice(self.idle)
        self.idle.remove(operator)
        operator.run_pass()
        self.idle.append(operator)

    def interrupt(self, _: object) -> None:
        if len(self.operators) > 1 and self.dice.random() < 0.2:
            self.change()
            if self.idle:
                self.make_pass()

    def slow(self, request: Request) -> None:
        """Some lists of a pass take long, and meanwhile something happens."""
        is_of_pass = "=" not in request.query.get("labelSelector", "")
        if is_of_pass and self.dice.random() < 0.1:
            self.world.clock.advance(self.dice.choice([1, 20]))
            self.change()

    def change(self) -> None:  # noqa: C901
        """Let one thing happen."""
        server = self.server
        pods = self.world.pods()
        ours = [*self.pods_of_x()]
        number = self.dice.randrange(4)
        match self.dice.choice(CHANGES):
            case "image":
                self.world.change("x", image=f"milvus:{number}")
            case "scale":
                self.world.change("x", replicas=number + 1)
            case "scale y":
                self.world.change("y", replicas=number)
            case "fail":
                server.fail(self.dice.choice(pods))
            case "crash" if ours:
                server.set_pod(self.dice.choice(ours))
            case "end":
                self.end()
            case "run":
                self.run()
            case "relabel" if ours:
                self.world.patch("pods", self.dice.choice(ours), labels={mo.MILVUS_LABEL: None})
            case "silence" if ours:
                is_there = {"containerStatuses": [{"ready": True}]}
                server.set_pod(self.dice.choice(ours), ready=False, **is_there)
            case "quota":
                self.quota = self.dice.choice([3, 99])
            case "stranger" if f"x-{number}" not in pods:
                self.world.add(pod(f"x-{number}"))
            case "stranger" if image_of(self.pod(f"x-{number}")) == OTHERS_IMAGE:
                self.world.remove("pods", f"x-{number}")
            case "doom" if self.claims():
                name = self.dice.choice(self.claims())
                finalizers = ["kubernetes.io/pvc-protection"]
                self.world.patch("persistentvolumeclaims", name, finalizers=finalizers)
                self.world.remove("persistentvolumeclaims", name)
            case "lose" if self.doomed():
                name = self.dice.choice(self.doomed())
                self.world.patch("persistentvolumeclaims", name, finalizers=None)

    def run(self) -> None:
        """All pods run, and nodes that fell silent are back."""
        self.server.run_pods()
        for name, one in self.pods_of_x().items():
            if one["status"]["phase"] == "Running" and not mo.is_ending(one):
                is_alive = image_of(one) != DIES or self.dice.random() < self.alive
                self.server.set_pod(name, ready=is_alive)

    def end(self) -> None:
        """What is being deleted ends; a claim only when no pod uses it any more."""
        self.server.finish_deletions()
        for name in self.claims():
            if name.removeprefix("data-") not in self.world.pods():
                self.world.patch("persistentvolumeclaims", name, finalizers=None)
        self.server.finish_deletions()

    def admit(self, request: Request) -> HTTPResponse | None:
        """A policy writes labels that others know, and a quota counts pods, before the API server
        looks whether the name is taken."""
        metadata = {"labels": dict.fromkeys(WELL_KNOWN, "platform")}
        request.body = merge(request.body, {"metadata": metadata})
        if len(self.world.pods()) < self.quota or request.dry_run:
            return None
        return http_response(403, Rejected(403, "Forbidden", QUOTA).status)

    def doomed(self) -> list[str]:
        """The claims that are being deleted."""
        claims = self.server.all_of("persistentvolumeclaims")
        return [mo.name_of(one) for one in claims if mo.is_ending(one)]

    def claims(self) -> list[str]:
        return [mo.name_of(one) for one in self.server.all_of("persistentvolumeclaims")]

    def pod(self, name: str) -> mo.Obj:
        return self.server.objects["pods", "test", name]

    def pods_of_x(self) -> dict[str, mo.Obj]:
        """The pods that x owns, by name; without those that are surplus and have lost our label, which
        no operator can find."""
        found = {mo.name_of(pod): pod for pod in self.server.all_of("pods")}
        return {
            name: pod
            for name, pod in found.items()
            if mo.owns(self.x, pod) and (name in self.desired() or mo.has_our_label(self.x, pod))
        }

    def desired(self) -> set[str]:
        return {f"x-{ordinal}" for ordinal in range(self.x["spec"]["replicas"])}

    def fail(self, request: Request) -> HTTPResponse | None:
        """Some requests are refused, or get lost on their way."""
        share = self.share / 5 if request.verb == "list" else self.share
        if self.dice.random() > share:
            return None
        fault = self.dice.choice(self.faults)
        is_lost = fault in ("timeout", "Timeout", "odd")
        if is_lost and request.verb == "delete" and request.key in self.server.objects:
            seconds = self.dice.randrange(mo.SERVER_TIMEOUT)
            uid = mo.uid_of(self.server.objects[request.key])
            self.late[uid] = self.world.clock.now() + seconds
        if fault in ERRORS:
            raise ERRORS[fault]()
        if fault == "page":
            return http_response(200, b"<html>something that is no API server</html>")
        if fault in REFUSED and request.verb == "delete":
            self.refused.add((self.x["metadata"]["generation"], request.name))
        message = "a webhook denied the request" if fault == "denied" else "not now"
        return http_response(CODES[fault], Rejected(CODES[fault], fault, message).status)

    def lose(self, _: object) -> None:
        """The responses to some others get lost."""
        if self.dice.random() < self.share / 5:
            raise ERRORS["reset"]()

    @property
    def x(self) -> mo.Obj:
        return self.server.objects["milvuses", "test", "x"]

    def judge(self, request: Request) -> None:
        """Nobody touches the pods of others. One operator replaces a Ready pod of x only if all
        others are, and no surplus one is."""
        spec = self.x["spec"]
        desired = self.desired()
        ready = {name for name, pod in self.pods_of_x().items() if is_ready(pod)}
        doomed = {name for name, uid in self.world.uids().items() if uid in self.late}
        if request.key not in self.server.objects:
            return
        victim = self.pod(request.name)
        metadata = victim["metadata"]
        meant = request.body.get("preconditions") or {}
        if request.verb == "patch":
            meant = mo.pick(request.body["metadata"], ("uid", "resourceVersion"))
        is_meant = metadata | meant == metadata
        if is_meant and image_of(victim) == OTHERS_IMAGE:
            self.harm.append(f"{request.verb} {request.name}, which is somebody else's")
        if request.verb == "patch":
            return
        if len(self.operators) == 1 and is_meant and request.name in ready & desired:
            generation = self.x["metadata"]["generation"]
            wrong = {name for name in desired ^ ready if (generation, name) not in self.refused}
            wrong |= (doomed & ready) - {request.name}
            if wrong or image_of(victim) == spec["image"]:
                self.harm.append(f"{request.name} was deleted in spite of {wrong}")

    def guard(self, request: Request) -> None:
        """One operator never deletes the last access to data: a desired pod of y that has run, and
        whose claim is being deleted or gone."""
        desired = {f"y-{ordinal}" for ordinal in range(self.y["spec"]["replicas"])}
        if len(self.operators) > 1 or request.name not in desired & {*self.world.pods()}:
            return
        claim = f"data-{request.name}"
        is_safe = claim in self.claims() and claim not in self.doomed()
        meant = (request.body.get("preconditions") or {}).get("uid")
        victim = self.pod(request.name)
        has_run = victim["status"]["phase"] != "Pending" and mo.owns(self.y, victim)
        if has_run and not is_safe and meant == mo.uid_of(victim):
            self.harm.append(f"{request.name} was the last access to {claim}")

    @property
    def y(self) -> mo.Obj:
        return self.server.objects["milvuses", "test", "y"]

    def make(self) -> None:
        for _ in range(60 // len(self.operators)):
            self.change()
            self.make_pass()
            self.world.clock.advance(self.dice.choice([0.5, 1, 5, 40]))
            self.end_late()
        self.end_trouble()
        end = self.world.clock.now() + LONGEST_PAUSE + ROLL
        while self.world.clock.now() < end:
            before = len(self.world.writes())
            for operator in self.operators:
                operator.run_pass()
            self.end()
            self.run()
            is_quiet = len(self.world.writes()) == before
            self.world.clock.advance(4 if is_quiet else 1)

    def end_late(self) -> None:
        """What got no answer takes effect, up to a minute later."""
        now = self.world.clock.now()
        for name, uid in self.world.uids().items():
            if self.late.get(uid, now) < now:
                preconditions = {"preconditions": {"uid": uid}}
                self.server.ask("delete", "pods", name, preconditions)
        self.late = {uid: time for uid, time in self.late.items() if time >= now}

    def end_trouble(self) -> None:
        """Requests succeed, strangers and the quota are gone, no pod dies, no claim is being deleted,
        and who took our label from a pod has given it back: from now on, only the operators act."""
        self.server.rules.clear()
        self.alive = 1
        names = self.world.pods()
        strangers = [name for name in names if image_of(self.pod(name)) == OTHERS_IMAGE]
        claims = self.claims()
        lost = [name for name in names if name[0] == "y" and f"data-{name}" not in claims]
        for name in [*strangers, *lost, *(name.removeprefix("data-") for name in self.doomed())]:
            if name in names and name != "y-2":
                self.world.remove("pods", name)
        self.end()
        self.world.change("x", image="milvus:last", replicas=3)
        self.world.change("y", replicas=2)
        for name, one in self.pods_of_x().items():
            if not mo.has_our_label(self.x, one):
                self.world.patch("pods", name, labels=mo.our_label(self.x))


@pytest.mark.parametrize("replicas", range(1, 4))
@pytest.mark.parametrize("seed", range(BASE, BASE + RUNS))
def test_replicas_come_to_the_same_end_and_one_takes_down_one_ready_pod_at_a_time(
    seed: int, replicas: int
) -> None:
    run = Run(seed, replicas)
    world = run.world
    run.make()
    assert run.harm == []
    found = {name: image_of(pod) for name, pod in run.pods_of_x().items()}
    assert found == dict.fromkeys(["x-0", "x-1", "x-2"], "milvus:last")
    assert world.pods()[-3:] == ["y-0", "y-1", "y-2"]
    assert world.images()[-3:] == ["milvus:1", "milvus:1", OTHERS_IMAGE]
    for name in "xy":
        assert world.reason(name, "Ready") == "Ready"
    world.forget()
    for operator in run.operators:
        operator.run_pass()
    assert world.writes() == [], "the replicas agree"
