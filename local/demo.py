"""The life of a Milvus, on a real control plane on this machine: `make demo`.

Each step says what it does, does it, waits for the result, and shows the output of kubectl; on a
terminal, the table is updated while it waits. The exit code is 1 if a step fails.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from local.controlplane import ControlPlane, Unavailable, commands

TOP = Path(__file__).resolve().parent.parent
NAME = "milvus-crd-test"
TERMINAL = sys.stdout.isatty()
BOLD, DIM, GREEN, YELLOW, RED, PLAIN = (
    f"\x1b[{code}m" if TERMINAL else "" for code in (1, 2, 32, 33, 31, 0)
)
TABLE = ("get", "mi,pods")
GOOD = r"\b(Ready|Running)\b"
PASSING = r"\b(Creating|ContainerCreating|Pending|Updating|Terminating)\b"
IMAGE = "milvusdb/milvus:v2.6.25"
SETTING = {"name": "proxy.maxnamelength", "value": "300"}


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


class Missed(Exception):
    """A step failed."""


class Screen:
    """Prints lines and, on a terminal, redraws a live table below them. Two threads write: the tour
    and the log."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.table = list[str]()

    def show(self, text: str = "", style: str = "") -> None:
        with self.lock:
            self.erase()
            print(f"{style}{text}{PLAIN if style else ''}")
            self.draw()

    def watch(self, table: str) -> None:
        """From now on, show this live table, or as much of it as fits; an empty one removes it."""
        size = shutil.get_terminal_size()
        with self.lock:
            self.erase()
            self.table = [line[: size.columns - 1] for line in table.splitlines()[: size.lines - 2]]
            self.draw()

    def erase(self) -> None:
        if self.table:
            # Move up to its first line, and clear everything below.
            print(f"\x1b[{len(self.table)}A\x1b[J", end="")

    def draw(self) -> None:
        print("".join(f"{colour(line)}\n" for line in self.table), end="", flush=True)


def colour(line: str) -> str:
    return re.sub(PASSING, rf"{YELLOW}\1{PLAIN}", re.sub(GOOD, rf"{GREEN}\1{PLAIN}", line))


screen = Screen()
show = screen.show


class Demo:
    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.number = 0
        self.env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("MILVUS_OPERATOR_")  # options for another operator
        }
        self.env["KUBECONFIG"] = str(plane.kubeconfig())
        self.operator = subprocess.Popen(
            [sys.executable, str(TOP / "milvus_operator.py"), "--interval", "1"],
            env=self.env,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=self.follow, daemon=True).start()

    def follow(self) -> None:
        """Show the operator's log."""
        assert self.operator.stderr
        for line in self.operator.stderr:
            show(f"    operator | {line.rstrip()}", DIM)

    def kubectl(self, *arguments: str, quiet: bool = False) -> str:
        if not quiet:
            show(f"$ {shlex.join(['kubectl', *arguments])}", BOLD)
        command = [str(self.plane.kubectl), f"--cache-dir={self.plane.folder}/kubectl", *arguments]
        done = subprocess.run(command, env=self.env, cwd=TOP, capture_output=True, text=True)
        if done.returncode:
            raise Missed(done.stderr.strip())
        if not quiet:
            text = (done.stdout or done.stderr).rstrip()
            show(colour(text) if arguments == TABLE else text)
        return done.stdout

    def pods(self) -> dict[str, Any]:
        mine = ("-l", f"app.kubernetes.io/instance={NAME}")
        listed = json.loads(self.kubectl("get", "pods", *mine, "-o", "json", quiet=True))["items"]
        return {pod["metadata"]["name"]: pod for pod in listed}

    def containers(self) -> list[dict[str, Any]]:
        return [pod["spec"]["containers"][0] for pod in self.pods().values()]

    def uids(self) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.pods().values()}

    def patch(self, name: str, **spec: Any) -> None:
        body = json.dumps({"spec": spec})
        self.kubectl("patch", "milvus", name, "--type=merge", "-p", body)

    def ready(self, replicas: int) -> bool:
        """Whether exactly this many pods exist and are Ready, and the status says so."""
        milvus = json.loads(self.kubectl("get", "mi", NAME, "-o", "json", quiet=True))
        status = milvus.get("status", {})
        conditions = {c["type"]: c["status"] for c in status.get("conditions", [])}
        pods = self.pods()
        return (
            sorted(pods) == [f"{NAME}-{i}" for i in range(replicas)]
            and all(map(is_ready, pods.values()))
            and status.get("observedGeneration") == milvus["metadata"]["generation"]
            and status.get("readyReplicas") == replicas
            and conditions.get("Ready") == "True"
        )

    def step(self, title: str) -> None:
        self.number += 1
        show(f"\n{self.number}. {title}", BOLD + GREEN)

    def wait(self, what: str, check: Callable[[], bool], seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not check():
            if time.monotonic() > end:
                raise Missed(f"waited {seconds:.0f} s for {what}")
            if TERMINAL:
                screen.watch(self.kubectl(*TABLE, quiet=True))
            time.sleep(0.2)
        screen.watch("")
        self.kubectl(*TABLE)

    def tour(self) -> None:
        self.step("The CRD is installed, and the operator runs with an interval of 1 s")
        self.kubectl("apply", "-f", "crd.yaml")

        self.step("A Milvus is applied: its pod is created and becomes Ready")
        self.kubectl("apply", "-f", "sample.yaml")
        self.wait("a Ready pod", lambda: self.ready(1))

        self.step("The pod is deleted: the operator replaces it")
        before = self.uids()
        self.kubectl("delete", "pod", f"{NAME}-0", "--wait=false")
        self.wait("another pod", lambda: self.uids() != before and self.ready(1))

        self.step("The Milvus is scaled: 1 → 3 → 5 → 2 pods")
        for replicas in (3, 5, 2):
            self.kubectl("scale", f"milvus/{NAME}", f"--replicas={replicas}")
            self.wait(f"{replicas} pods", partial(self.ready, replicas))

        self.step("The image changes: the pods are replaced one at a time, highest ordinal first")
        self.patch(NAME, image=IMAGE)
        self.wait("the new image in all pods", self.rolled(lambda one: one["image"] == IMAGE))
        columns = "custom-columns=NAME:.metadata.name,IMAGE:.spec.containers[0].image"
        self.kubectl("get", "pods", "-o", columns)

        self.step("The configuration changes: milvusSpec becomes environment variables")
        self.show_condition("Reconciled")
        self.patch(NAME, milvusSpec="proxy: {maxNameLength: 300}")
        self.wait("the setting in all pods", self.rolled(lambda one: SETTING in one["env"]))
        environment = '{range .spec.containers[0].env[*]}{.name}={.value}{"\\n"}{end}'
        self.kubectl("get", "pod", f"{NAME}-0", "-o", f"jsonpath={environment}")
        self.show_condition("Reconciled")

        self.step("The Milvus is deleted: its pods are deleted with it")
        self.kubectl("delete", "milvus", NAME)
        self.wait("no pods", lambda: not self.pods())

        self.step("Another Milvus has a volume, which grows: no pod is touched")
        show("Nothing provisions or enlarges volumes here: the demo itself makes the volume.")
        self.kubectl("apply", "-f", "local/volume.yaml")
        self.wait("a Ready pod", lambda: self.value("mi/kept", "status.readyReplicas") == "1")
        uid = self.value("pod/kept-0", "metadata.uid")
        self.patch("kept", storage={"size": "2Gi"})
        asked = "spec.resources.requests.storage"
        self.wait("a larger claim", lambda: self.value("pvc/data-kept-0", asked) == "2Gi")
        columns = f"custom-columns=NAME:.metadata.name,STATUS:.status.phase,ASKS FOR:.{asked}"
        self.kubectl("get", "pvc", "-o", columns)
        if self.value("pod/kept-0", "metadata.uid") != uid:
            raise Missed("the pod was replaced")

    def value(self, target: str, field: str) -> str:
        return self.kubectl("get", target, "-o", f"jsonpath={{.{field}}}", quiet=True)

    def show_condition(self, kind: str) -> None:
        fields = "{.type}={.status} {.reason}: {.message}"
        condition = f'{{range .status.conditions[?(@.type=="{kind}")]}}{fields}{{end}}'
        self.kubectl("get", "milvus", NAME, "-o", f"jsonpath={condition}")

    def rolled(self, is_new: Callable[[dict[str, Any]], bool]) -> Callable[[], bool]:
        return lambda: self.ready(2) and all(map(is_new, self.containers()))

    def stop(self) -> None:
        if self.operator.poll() is None:
            self.operator.send_signal(signal.SIGTERM)
        self.operator.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    choices = ["auto", "yes", "no"]
    parser.add_argument("--wait", choices=choices, default="auto", help="stay up after the tour")
    wait = parser.parse_args().wait
    if wait == "auto":
        wait = "yes" if sys.stdin.isatty() and TERMINAL else "no"
    # A shell's background job starts with SIGINT ignored.
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, signal.default_int_handler)
    demo = None
    try:
        commands()  # builds them the first time
        started = time.monotonic()
        with ControlPlane() as plane:
            seconds = time.monotonic() - started
            show(f"a Kubernetes control plane with a simulated node is up ({seconds:.1f} s)")
            try:
                demo = Demo(plane)
                demo.tour()
                seconds = time.monotonic() - started
                show(f"\nThat was the life of a Milvus, in {seconds:.0f} s.", BOLD + GREEN)
                if wait == "yes":
                    stay(plane)
            finally:
                screen.watch("")
                if demo:
                    demo.stop()
        return 0
    except KeyboardInterrupt:
        return 0 if wait == "yes" else 130
    except Unavailable as error:
        show(f"\nThe demo failed: the control plane can't be started: {error}", BOLD + RED)
    except (Missed, subprocess.SubprocessError) as error:
        show(f"\nThe demo failed in step {demo.number if demo else 0}: {error}", BOLD + RED)
        advice = "If the machine was busy, run it again."
        show(f"The lines with 'operator |' are the operator's log. {advice}")
    return 1


def stay(plane: ControlPlane) -> None:
    show("The control plane and the operator stay up until Ctrl-C. In another terminal:\n")
    show(f"  export KUBECONFIG={plane.kubeconfig()}\n  kubectl apply -f sample.yaml\n")
    if plane.kubectl.parent.name != "bin":
        show(f"  (kubectl is at {plane.kubectl})\n")
    signal.pause()


if __name__ == "__main__":
    sys.exit(main())
