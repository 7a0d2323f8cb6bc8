"""What the demo and the end-to-end test share: steps that say what they do and show what is seen."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

TOP = Path(__file__).resolve().parent.parent
TABLE = ("get", "mi,pods")
GOOD = r"\b(Ready|Running|Bound)\b"
PASSING = r"\b(Creating|ContainerCreating|Pending|Updating|Terminating)\b"

Obj = dict[str, Any]


class Missed(Exception):
    """A step failed; the message says what was not seen."""


def is_ready(pod: Obj) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def container_of(pod: Obj) -> Obj:
    return pod["spec"]["containers"][0]


def coloured(output: str) -> Text:
    text = Text(output.rstrip())
    text.highlight_regex(GOOD, "green")
    text.highlight_regex(PASSING, "yellow")
    return text


class Tour:
    """Steps on one cluster, with kubectl. `kubectl` is the command and its common options."""

    def __init__(self, console: Console, kubectl: Sequence[str], env: Mapping[str, str]) -> None:
        self.console = console
        self.command = kubectl
        self.env = env
        self.number = 0
        self.started = time.monotonic()

    def show(self, text: str | Text = "", style: str = "") -> None:
        self.console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def step(self, title: str) -> None:
        self.number += 1
        self.show(f"\n{self.number}. {title}", "bold green")

    def get(self, *arguments: str, text: str | None = None) -> str:
        """What kubectl prints. Raises Missed with its error."""
        command = [*self.command, *arguments]
        options = {"env": self.env, "cwd": TOP, "capture_output": True, "text": True}
        done = subprocess.run(command, input=text, **options)  # type: ignore[call-overload]
        if done.returncode:
            raise Missed(f"`kubectl {shlex.join(arguments)}`: {done.stderr.strip()}")
        return done.stdout or done.stderr

    def kubectl(self, *arguments: str) -> str:
        """The same, with the command and its output on the screen."""
        self.show(f"$ {shlex.join(['kubectl', *arguments])}", "bold")
        output = self.get(*arguments)
        self.show(coloured(output))
        return output

    def json(self, *arguments: str) -> Any:
        return json.loads(self.get("get", *arguments, "-o", "json"))

    def value(self, target: str, field: str) -> str:
        return self.get("get", target, "-o", f"jsonpath={{.{field}}}")

    def patch(self, name: str, **spec: Any) -> None:
        body = json.dumps({"spec": spec})
        self.kubectl("patch", "milvus", name, "--type=merge", "-p", body)

    def pods(self, milvus: str) -> dict[str, Obj]:
        """The pods of a Milvus by name."""
        listed = self.json("pods", "-l", f"zilliz.com/milvus={milvus}")["items"]
        return {pod["metadata"]["name"]: pod for pod in listed}

    def uids(self, milvus: str) -> dict[str, str]:
        return {name: pod["metadata"]["uid"] for name, pod in self.pods(milvus).items()}

    def condition(self, milvus: str, kind: str) -> Obj:
        """A condition of a Milvus; empty if there is none yet."""
        conditions = self.json("milvus", milvus).get("status", {}).get("conditions", [])
        return next((one for one in conditions if one["type"] == kind), {})

    def ready(self, name: str, replicas: int) -> bool:
        """Whether exactly this many pods exist and are Ready, and the status says so."""
        milvus = self.json("milvus", name)
        status = milvus.get("status", {})
        pods = self.pods(name)
        return (
            sorted(pods) == [f"{name}-{ordinal}" for ordinal in range(replicas)]
            and all(map(is_ready, pods.values()))
            and status.get("observedGeneration") == milvus["metadata"]["generation"]
            and status.get("readyReplicas") == replicas
            and self.condition(name, "Ready").get("status") == "True"
        )

    def wait(self, what: str, check: Callable[[], Any], seconds: float = 60) -> None:
        """Wait until the check is true; on a terminal, with a live table. Raises Missed."""
        start = time.monotonic()
        with Live(console=self.console, auto_refresh=False, transient=True) as live:
            while not check():
                if time.monotonic() > start + seconds:
                    raise Missed(f"waited {seconds:.0f} s for {what}")
                if self.console.is_terminal:
                    live.update(coloured(self.get(*TABLE)), refresh=True)
                time.sleep(0.2)
        self.show(f"{what}: after {time.monotonic() - start:.1f} s", "dim")

    def seconds(self) -> float:
        return time.monotonic() - self.started


def cause_of(error: Exception) -> str:
    """An error on one line."""
    return re.sub(r"\s*\n\s*", "; ", str(error).strip())
