"""Several copies of the operator by mistake, and faults, in an order that a seed chooses.

The seeds are new in each test run, and part of the tests' names. `SEED=… RUNS=1` repeats a run.
"""

import os
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

import milvus_operator as mo
from tests.lib.front import ERRORS, Front, Request, answer
from tests.lib.judge import STRANGER
from tests.lib.world import World, milvus, pod

TOGETHER = os.environ.get("PYTEST_XDIST_TESTRUNUID")  # the same for all processes of a test run
BASE = int(os.environ.get("SEED") or random.Random(TOGETHER).randrange(1_000_000))
RUNS = int(os.environ.get("RUNS") or 8)


class Turns:
    """A rule of a server: each user's next request waits until it is its turn.

    A user has one request at a time, so a copy of the operator must have one worker. Then the same
    seed gives the same run, and a run that fails can be repeated.
    """

    def __init__(self, front: Front, seed: int) -> None:
        self.random = random.Random(seed)
        self.changed = threading.Condition()
        self.waiting: dict[str, threading.Event] = {}  # by user
        self.running: set[str] = set()
        front.when("*", "*", self.wait)

    def wait(self, request: Request) -> None:
        turn = threading.Event()
        with self.changed:
            if request.user not in self.running:
                return
            self.waiting[request.user] = turn
            self.changed.notify_all()
        turn.wait()

    def passes(self, operators: dict[str, mo.Operator], between: Callable[[], object]) -> None:
        """Let each user make a pass, side by side. `between` is called before each turn."""
        self.running = set(operators)
        for user, operator in operators.items():
            threading.Thread(target=self.make_pass, args=(user, operator), daemon=True).start()
        while True:
            with self.changed:
                arrived = self.changed.wait_for(lambda: self.running <= self.waiting.keys(), 30)
                assert arrived, f"still busy: {self.running - self.waiting.keys()}"
                if not self.running:
                    break
                turn = self.waiting.pop(self.random.choice(sorted(self.running)))
            between()
            turn.set()

    def make_pass(self, user: str, operator: mo.Operator) -> None:
        try:
            operator.run_pass()
        finally:
            with self.changed:
                self.running.discard(user)
                self.changed.notify_all()


def copies_of(world: World, count: int) -> dict[str, mo.Operator]:
    return {f"copy{number}": world.new_operator(user=f"copy{number}") for number in range(count)}


class Run:
    """Some passes of the copies, while specs, pods and nodes change and requests fail."""

    def __init__(self, seed: int, copies: int) -> None:
        stored = milvus("y", storage={"size": "1Gi"})
        self.world = World(milvus("x", replicas=3), stored, workers=1)
        self.stranger = self.world.add(pod("x-3"))
        self.operators = copies_of(self.world, copies)
        self.turns = Turns(self.world.server, seed)
        self.dice = self.turns.random
        self.wanted: set[str] = set()  # the pods of x, as it was last listed
        self.down: set[str] = set()  # those deleted while Ready, and not seen Ready since
        self.harm: list[str] = []
        server = self.world.server
        self.faults = [server.when("*", "*", self.fault, after=after) for after in (False, True)]
        server.when("list", "*", self.look)
        server.when("delete", "pods", self.judge)

    def fault(self, request: Request) -> Any:
        """One request in forty gets no answer or an error, before or after it is carried out."""
        happened = self.dice.randrange(80)
        if happened == 0:
            raise self.dice.choice([*ERRORS.values()])()
        return answer(500, {"kind": "Status", "message": "not now"}) if happened == 1 else None

    def ready(self) -> set[str]:
        return {mo.name_of(pod) for pod in self.world.server.all_of("pods") if mo.is_ready(pod)}

    def look(self, request: Request) -> None:
        self.down -= self.ready()
        replicas = self.world.server.ask("get", "milvuses", "x")["spec"]["replicas"]
        self.wanted = {f"x-{number}" for number in range(replicas)} - {"x-3"}

    def judge(self, request: Request) -> None:
        """What must never be, judged when a delete arrives."""
        preconditions = request.body.get("preconditions") or {}
        if "uid" not in preconditions:
            self.harm.append(f"delete of {request.name} without a UID")
        if "resourceVersion" in preconditions:
            return  # it was not Ready in the lists; if it is by now, the server refuses
        ready = self.ready()
        self.down -= ready
        if request.name in self.wanted & ready:
            if missing := self.down & self.wanted - {request.name}:
                self.harm.append(f"{request.name} was taken while {missing} are down")
            self.down.add(request.name)

    def change(self) -> None:
        world, happened = self.world, self.dice.randrange(60)
        if happened == 0:
            world.change("x", replicas=self.dice.randrange(6))
        elif happened == 1:
            world.change("x", image=f"milvus:{self.dice.randrange(3)}")
        elif happened == 2 and (names := [name for name in world.pods() if name != "x-3"]):
            world.server.fail(self.dice.choice(names))
        elif happened == 3:
            world.change("y", replicas=self.dice.randrange(3))
        elif happened < 12:
            world.server.finish_deletions()
            world.server.run_pods()

    def make(self) -> None:
        for _ in range(10):
            self.turns.passes(self.operators, self.change)
            self.world.clock.advance(self.dice.choice([0.5, 5, 40]))
        for rule in self.faults:
            rule.times = 0
        self.world.change("x", replicas=3, image="milvus:1")
        self.world.change("y", replicas=2)
        for _ in range(4):
            for operator in self.operators.values():
                self.world.clock.advance(600)
                self.world.operator = operator
                self.world.settle()

    def check(self) -> None:
        """It has converged, and no journal of any run may show this."""
        world = self.world
        assert world.pods() == ["x-0", "x-1", "x-2", "x-3", "y-0", "y-1"]
        assert set(world.images()) == {"milvus:1", STRANGER}
        for name in "xy":
            assert world.condition(name, "Ready")["status"] == "True"
        assert world.uid("x-3") == self.stranger["metadata"]["uid"]
        touched = [one for one in world.writes() if one.name == "x-3" and one.verb != "create"]
        assert [one for one in touched if one.code < 300] == []
        assert {one.plural for one in world.writes() if one.verb == "delete"} <= {"pods"}
        world.forget()
        for operator in self.operators.values():
            operator.run_pass()
        assert world.writes() == [], "the copies agree"


@pytest.mark.parametrize("copies", [1, 2, 3])
@pytest.mark.parametrize("seed", range(BASE, BASE + RUNS))
def test_copies_come_to_the_same_end_and_touch_nothing_of_others(seed: int, copies: int) -> None:
    run = Run(seed, copies)
    run.make()
    run.check()
    assert [text for text in run.harm if "UID" in text or copies == 1] == []


def test_in_a_roll_all_copies_choose_the_same_pod() -> None:
    world = World(milvus("x", replicas=4), workers=1)
    copies = copies_of(world, 3)
    world.settle()
    for seed in range(5):
        world.change("x", image=f"milvus:{seed + 2}")
        world.forget()
        Turns(world.server, seed).passes(copies, lambda: None)
        assert {*world.names("delete", "pods")} == {"x-3"}
        world.settle()
