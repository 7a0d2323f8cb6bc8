"""Copies of the operator, one request at a time, in an order that a seed chooses."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from tests.lib.front import Front, Request


class Turns:
    """The gate of a server: each user's next request waits until it is its turn.

    A user has one request at a time, so a copy of the operator must have one worker. Then the same
    seed gives the same run, and a run that fails can be repeated.
    """

    def __init__(self, front: Front, seed: int) -> None:
        self.random = random.Random(seed)
        self.changed = threading.Condition()
        self.waiting: dict[str, threading.Event] = {}  # by user
        self.running: set[str] = set()
        self.errors: list[BaseException] = []
        front.gate = self.gate

    def gate(self, request: Request) -> None:
        turn = threading.Event()
        with self.changed:
            if request.user not in self.running:
                return
            self.waiting[request.user] = turn
            self.changed.notify_all()
        turn.wait()

    def run(self, jobs: dict[str, Callable[[], object]], between: Callable[[], object]) -> None:
        """Run a job for each user, side by side. `between` is called before each turn."""
        self.running = set(jobs)
        for user, job in jobs.items():
            threading.Thread(target=self.run_one, args=(user, job), daemon=True).start()
        while True:
            with self.changed:
                everybody = self.changed.wait_for(
                    lambda: self.running <= self.waiting.keys(), timeout=30
                )
                assert everybody, f"still busy: {self.running - self.waiting.keys()}"
                if not self.running:
                    break
                turn = self.waiting.pop(self.random.choice(sorted(self.running)))
            between()
            turn.set()
        if self.errors:
            raise self.errors[0]

    def run_one(self, user: str, job: Callable[[], object]) -> None:
        try:
            job()
        except BaseException as error:
            self.errors.append(error)
        with self.changed:
            self.running.discard(user)
            self.changed.notify_all()
