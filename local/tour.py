"""What the demo and the end-to-end test share: steps that show what they do, with kubectl."""

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parent.parent
COLOURS = {"step": "1;32", "command": "1", "detail": "2", "failure": "1;31"}

Obj = dict[str, Any]


class Missed(Exception):
    """A step failed; the message says what was not seen."""


def show(text: str, style: str = "") -> None:
    """Print a text; on a terminal, in the colour of its style."""
    if style and sys.stdout.isatty() and "NO_COLOR" not in os.environ:
        text = f"\x1b[{COLOURS[style]}m{text}\x1b[0m"
    print(text, flush=True)


def is_ready(pod: Obj) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


class Tour:
    """Steps on one cluster. `command` is kubectl with the options that all of its calls have."""

    def __init__(self, *command: str) -> None:
        self.command = command
        self.number = 0

    def step(self, title: str) -> None:
        self.number += 1
        show(f"\n{self.number}. {title}", "step")

    def get(self, *arguments: str, text: str = "") -> str:
        """What kubectl prints, with this text as its input. Raises Missed with its error."""
        command = [*self.command, *arguments]
        done = subprocess.run(command, input=text, cwd=TOP, capture_output=True, text=True)
        if done.returncode:
            raise Missed(f"`kubectl {shlex.join(arguments)}`: {done.stderr.strip()}")
        return done.stdout or done.stderr

    def kubectl(self, *arguments: str, text: str = "") -> None:
        """Run kubectl, and show the command and its output."""
        show(f"$ {shlex.join(['kubectl', *arguments])}", "command")
        show(self.get(*arguments, text=text).rstrip())

    def json(self, *arguments: str) -> Any:
        return json.loads(self.get("get", *arguments, "-o", "json"))

    def patch(self, milvus: str, **spec: Any) -> None:
        body = json.dumps({"spec": spec})
        self.kubectl("patch", "milvus", milvus, "--type=merge", "-p", body)

    def pods(self, milvus: str) -> list[Obj]:
        return self.json("pods", "-l", f"zilliz.com/milvus={milvus}")["items"]

    def uids(self, milvus: str) -> set[str]:
        """What tells a pod from another one of the same name."""
        return {pod["metadata"]["uid"] for pod in self.pods(milvus)}

    def condition(self, milvus: str, kind: str) -> Obj:
        """A condition of a Milvus; empty if its present spec has not been seen yet."""
        obj = self.json("milvus", milvus)
        conditions = obj["status"].get("conditions", [])
        found: Obj = next((one for one in conditions if one["type"] == kind), {})
        is_current = found.get("observedGeneration") == obj["metadata"]["generation"]
        return found if is_current else {}

    def ready(self, milvus: str, replicas: int) -> bool:
        """Whether there are so many pods, all of them Ready, and the status says so."""
        pods = self.pods(milvus)
        is_told = self.condition(milvus, "Ready").get("status") == "True"
        return is_told and len(pods) == replicas and all(map(is_ready, pods))

    def wait(self, what: str, check: Callable[[], bool], seconds: float = 60) -> None:
        """Wait until the check is true. Raises Missed."""
        start = time.monotonic()
        while not check():
            if time.monotonic() > start + seconds:
                raise Missed(f"waited {seconds:.0f} s for {what}")
            time.sleep(0.2)
        show(f"{what}: after {time.monotonic() - start:.1f} s", "detail")

    def wait_for_pods(self, milvus: str, replicas: int, seconds: float = 60) -> None:
        what = f"{replicas} pod(s) Ready and up to date"
        self.wait(what, lambda: self.ready(milvus, replicas), seconds)
        self.kubectl("get", "mi,pods")
