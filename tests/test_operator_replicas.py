"""Several replicas of the operator by mistake, and faults, in an order that a seed chooses.

The seeds are new in each test run, and part of the tests' names. `SEED=… RUNS=1` repeats a run.
"""

import os
import random
from typing import Any

import pytest

import milvus_operator as mo
from tests.lib.front import ERRORS, Request, http_response
from tests.lib.judge import OTHERS_IMAGE
from tests.lib.world import World, milvus, pod

TOGETHER = os.environ.get("PYTEST_XDIST_TESTRUNUID")  # the same for all processes of a test run
NEW = random.Random(TOGETHER).randrange(1_000_000)
BASE = int(os.environ.get("SEED") or NEW)
RUNS = int(os.environ.get("RUNS") or 8)


class Run:
    """Some passes of the replicas, while specs, pods and nodes change and requests fail.

    A replica has one worker, so one request at a time. During any of them, another replica may make
    a whole pass: then the first one goes on with lists that are out of date.
    """

    def __init__(self, seed: int, replicas: int) -> None:
        self.dice = random.Random(seed)
        stored = milvus("y", storage={"size": "1Gi"})
        others = pod("y-2")
        self.world = World(milvus(replicas=3), stored, others, workers=1)
        self.operators = [self.world.new_operator() for _ in range(replicas)]
        self.idle = [*self.operators]  # those that make no pass now
        self.down = set[str]()  # pods of x deleted while Ready, and not seen Ready since
        self.harm = list[str]()
        server = self.world.server
        server.when("*", "*", self.interrupt)
        server.when("*", "*", self.fault)
        server.when("*", "*", self.fault, after=True)
        self.rules = [*server.rules]
        server.when("list", "pods", self.ready)
        server.when("delete", "pods", self.judge)

    def make_pass(self) -> None:
        operator = self.dice.choice(self.idle)
        self.idle.remove(operator)
        operator.run_pass()
        self.idle.append(operator)

    def interrupt(self, _: object) -> None:
        world = self.world
        happened = self.dice.randrange(60)
        number = self.dice.randrange(4)
        if happened == 0:
            world.change("x", image=f"milvus:{number}")
        elif happened == 1:
            world.change("y", replicas=number)
        elif happened == 2:
            name = self.dice.choice(world.pods())
            world.server.fail(name)
        elif happened < 12:
            world.server.finish_deletions()
            world.server.run_pods()
        elif happened < 25 and self.idle:
            self.make_pass()

    def fault(self, _: object) -> Any:
        """One request in forty gets no response or an error, before or after it is carried out."""
        happened = self.dice.randrange(80)
        if happened == 0:
            failure = self.dice.choice([*ERRORS.values()])
            raise failure()
        if happened == 1:
            return http_response(500, {"message": "not now"})
        return None

    def ready(self, _: object) -> None:
        pods = self.world.server.all_of("pods")
        self.down -= {mo.name_of(pod) for pod in pods if mo.is_ready(pod)}

    def judge(self, request: Request) -> None:
        """One operator never deletes a Ready pod of x while it has taken down another."""
        self.ready(request)
        name = request.name
        pod = self.world.server.objects["pods", request.namespace, name]
        # With a version, it was not Ready in the lists; if it is by now, the server rejects.
        is_checked = "resourceVersion" in request.body["preconditions"]
        if name.startswith("y") or is_checked or not mo.is_ready(pod):
            return
        if self.down and len(self.operators) == 1:
            text = f"{name} was deleted while {self.down} are down"
            self.harm.append(text)
        self.down.add(name)

    def make(self) -> None:
        for _ in range(10 * len(self.operators)):
            self.make_pass()
            seconds = self.dice.choice([0.5, 5, 40])
            self.world.clock.advance(seconds)
        for rule in self.rules:
            rule.times = 0
        self.world.change("x", image="milvus:1")
        self.world.change("y", replicas=2)
        for operator in 4 * self.operators:
            self.world.clock.advance(600)
            self.world.operator = operator
            self.world.settle()


@pytest.mark.parametrize("replicas", range(1, 4))
@pytest.mark.parametrize("seed", range(BASE, BASE + RUNS))
def test_replicas_come_to_the_same_end_and_touch_nothing_of_others(
    seed: int, replicas: int
) -> None:
    run = Run(seed, replicas)
    world = run.world
    run.make()
    assert run.harm == []
    assert world.pods() == ["x-0", "x-1", "x-2", "y-0", "y-1", "y-2"]
    assert world.images() == ["milvus:1"] * 5 + [OTHERS_IMAGE]
    for name in "xy":
        assert world.reason(name, "Ready") == "Ready"
    world.forget()
    for operator in run.operators:
        operator.run_pass()
    assert world.writes() == [], "the replicas agree"
