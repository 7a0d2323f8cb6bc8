"""Several replicas of the operator by mistake, and faults, in an order that a seed chooses.

The seeds are new in each test run, and part of the tests' names. `SEED=… RUNS=1` repeats a run.
"""

import os
import random
from typing import Any

import pytest

import milvus_operator as mo
from tests.lib.front import ERRORS, Request, answer
from tests.lib.judge import STRANGER
from tests.lib.world import World, at_rest, milvus, pod

TOGETHER = os.environ.get("PYTEST_XDIST_TESTRUNUID")  # the same for all processes of a test run
BASE = int(os.environ.get("SEED") or random.Random(TOGETHER).randrange(1_000_000))
RUNS = int(os.environ.get("RUNS") or 8)


class Run:
    """Some passes of the replicas, while specs, pods and nodes change and requests fail.

    A replica has one worker, so one request at a time. During any of them, another replica may make
    a whole pass: then the first one goes on with lists that are out of date.
    """

    def __init__(self, seed: int, replicas: int) -> None:
        self.dice = random.Random(seed)
        stored = milvus("y", storage={"size": "1Gi"})
        self.world = World(milvus(replicas=3), stored, workers=1)
        self.others_uid = mo.uid_of(self.world.add(pod("x-3")))
        self.operators = [self.world.new_operator() for _ in range(replicas)]
        self.idle = [*self.operators]  # those that make no pass now
        self.desired = set[str]()  # the pods of x, as it was last listed
        self.down = set[str]()  # those deleted while Ready, and not seen Ready since
        self.harm = list[str]()
        server = self.world.server
        self.rules = [server.when("*", "*", self.interrupt)]
        for after in (False, True):
            self.rules.append(server.when("*", "*", self.fault, after=after))
        server.when("list", "*", self.look)
        server.when("delete", "pods", self.judge)

    def make_pass(self) -> None:
        operator = self.dice.choice(self.idle)
        self.idle.remove(operator)
        operator.run_pass()
        self.idle.append(operator)

    def interrupt(self, _: object) -> None:
        self.change()
        if self.idle and self.dice.randrange(4) == 0:
            self.make_pass()

    def change(self) -> None:
        world = self.world
        happened = self.dice.randrange(60)
        if happened == 0:
            world.change("x", replicas=self.dice.randrange(6))
        elif happened == 1:
            world.change("x", image=f"milvus:{self.dice.randrange(3)}")
        elif happened == 2:
            name = self.dice.choice(world.pods())
            if name != "x-3":
                world.server.fail(name)
        elif happened == 3:
            world.change("y", replicas=self.dice.randrange(3))
        elif happened < 12:
            world.server.finish_deletions()
            world.server.run_pods()

    def fault(self, _: object) -> Any:
        """One request in forty gets no response or an error, before or after it is carried out."""
        happened = self.dice.randrange(80)
        if happened == 0:
            raise self.dice.choice([*ERRORS.values()])()
        return answer(500, {"kind": "Status", "message": "not now"}) if happened == 1 else None

    def ready(self) -> set[str]:
        return {mo.name_of(pod) for pod in self.world.server.all_of("pods") if mo.is_ready(pod)}

    def look(self, _: object) -> None:
        self.down -= self.ready()
        replicas = self.world.server.ask("get", "milvuses", "x")["spec"]["replicas"]
        self.desired = {f"x-{ordinal}" for ordinal in range(replicas)} - {"x-3"}

    def judge(self, request: Request) -> None:
        """What must never be, judged when a delete arrives."""
        preconditions = request.body.get("preconditions") or {}
        if "uid" not in preconditions:
            self.harm.append(f"delete of {request.name} without a UID")
        if "resourceVersion" in preconditions:
            return  # it was not Ready in the lists; if it is by now, the server rejects
        ready = self.ready()
        self.down -= ready
        if request.name in self.desired & ready:
            missing = self.down & self.desired - {request.name}
            if missing and len(self.operators) == 1:
                self.harm.append(f"{request.name} was deleted while {missing} are down")
            self.down.add(request.name)

    def make(self) -> None:
        for _ in range(10 * len(self.operators)):
            self.make_pass()
            self.world.clock.advance(self.dice.choice([0.5, 5, 40]))
        for rule in self.rules:
            rule.times = 0
        self.world.change("x", replicas=3, image="milvus:1")
        self.world.change("y", replicas=2)
        for operator in 4 * self.operators:
            self.world.clock.advance(600)
            self.world.operator = operator
            self.world.settle()


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("seed", range(BASE, BASE + RUNS))
def test_replicas_come_to_the_same_end_and_touch_nothing_of_others(
    seed: int, replicas: int
) -> None:
    run = Run(seed, replicas)
    run.make()
    world = run.world
    assert run.harm == []
    assert world.pods() == ["x-0", "x-1", "x-2", "x-3", "y-0", "y-1"]
    assert {*world.images()} == {"milvus:1", STRANGER}
    assert world.reason("x", "Ready") == world.reason("y", "Ready") == "Ready"
    assert world.uid("x-3") == run.others_uid
    done = [one for one in world.writes() if one.code < 300]
    assert {one.verb for one in done if one.name == "x-3"} <= {"create"}
    assert {one.plural for one in done if one.verb == "delete"} <= {"pods"}
    world.forget()
    for operator in run.operators:
        operator.run_pass()
    assert world.writes() == [], "the replicas agree"


def test_in_a_roll_all_replicas_choose_the_same_pod() -> None:
    world = at_rest(milvus(replicas=4), workers=1)
    other = world.new_operator()
    for verb in ("list", "delete"):
        world.change("x", image=f"milvus:{verb}")
        world.forget()
        world.server.when(verb, "*", lambda _: other.run_pass(), times=1)
        world.passes()
        assert {*world.names("delete", "pods")} == {"x-3"}
        world.settle()
