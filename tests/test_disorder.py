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
from tests.lib.world import World, milvus, pod

TOGETHER = os.environ.get("PYTEST_XDIST_TESTRUNUID")  # the same for all processes of a test run
NEW = random.Random(TOGETHER).randrange(1_000_000)
BASE = int(os.environ.get("SEED") or NEW)
RUNS = int(os.environ.get("RUNS") or 8)

REFUSED = {"Forbidden": 403, "denied": 500}
CODES = REFUSED | {"Conflict": 409, "TooManyRequests": 429, "odd": 500, "Timeout": 504}
CHANGES = ["image", "image", "scale", "scale y", "fail", "crash", "end", "end", *["run"] * 4]


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
        self.faults = self.dice.sample([*CODES, *ERRORS], 2)
        self.refused = set[tuple[int, str]]()  # pods that could not be deleted, and the generation
        self.harm = list[str]()
        server = self.server = self.world.server
        server.when("*", "*", self.interrupt)
        server.when("*", "*", self.fail)
        server.when("*", "*", self.lose, after=True)
        server.when("delete", "pods", self.judge)

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

    def change(self) -> None:
        """Let one thing happen."""
        server = self.server
        pods = self.world.pods()
        ours = [name for name in pods if name.startswith("x")]
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
                server.finish_deletions()
            case "run":
                server.run_pods()
                for name in ours:
                    server.set_pod(name, ready=True)

    def fail(self, request: Request) -> HTTPResponse | None:
        """Some requests are refused, or get lost on their way."""
        share = self.share / 5 if request.verb == "list" else self.share
        if self.dice.random() > share:
            return None
        fault = self.dice.choice(self.faults)
        if fault in ERRORS:
            raise ERRORS[fault]()
        if fault in REFUSED and (request.verb == "delete" or request.dry_run):
            names = self.world.pods() if request.dry_run else [request.name]
            self.refused |= {(self.x["metadata"]["generation"], name) for name in names}
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
        """One operator replaces a Ready pod of x only if all others are, and no surplus one is."""
        spec = self.x["spec"]
        there = {mo.name_of(pod): pod for pod in self.server.all_of("pods")}
        desired = {f"x-{ordinal}" for ordinal in range(spec["replicas"])}
        ready = {name for name in there if name.startswith("x") and is_ready(there[name])}
        victim = there[request.name]
        metadata = victim["metadata"]
        is_meant = metadata | request.body["preconditions"] == metadata
        if len(self.operators) == 1 and is_meant and request.name in ready & desired:
            generation = self.x["metadata"]["generation"]
            wrong = {name for name in desired ^ ready if (generation, name) not in self.refused}
            if wrong or image_of(victim) == spec["image"]:
                self.harm.append(f"{request.name} was deleted in spite of {wrong}")

    def make(self) -> None:
        for _ in range(60 // len(self.operators)):
            self.change()
            self.make_pass()
            self.world.clock.advance(self.dice.choice([0.5, 1, 5, 40]))
        self.server.rules.clear()
        self.world.change("x", image="milvus:last", replicas=3)
        self.world.change("y", replicas=2)
        for operator in 4 * self.operators:
            self.world.clock.advance(600)
            self.world.operator = operator
            self.world.settle()


@pytest.mark.parametrize("replicas", range(1, 4))
@pytest.mark.parametrize("seed", range(BASE, BASE + RUNS))
def test_replicas_come_to_the_same_end_and_one_takes_down_one_ready_pod_at_a_time(
    seed: int, replicas: int
) -> None:
    run = Run(seed, replicas)
    world = run.world
    run.make()
    assert run.harm == []
    assert world.pods() == ["x-0", "x-1", "x-2", "y-0", "y-1", "y-2"]
    assert world.images() == ["milvus:last"] * 3 + ["milvus:1"] * 2 + [OTHERS_IMAGE]
    for name in "xy":
        assert world.reason(name, "Ready") == "Ready"
    world.forget()
    for operator in run.operators:
        operator.run_pass()
    assert world.writes() == [], "the replicas agree"
