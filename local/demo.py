"""The life of a Milvus, on a real control plane on this machine: `make demo`.

Each step says what it does, does it, waits for the result, and shows the output of kubectl; on a
terminal, a table is updated while it waits. The exit code is 1 if a step fails.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

from rich.console import Console

from local.controlplane import ControlPlane, Unavailable, commands
from local.tour import TOP, Missed, Obj, Tour, container_of

NAME = "milvus-crd-test"
IMAGE = "milvusdb/milvus:v2.6.25"
USER_FILE = "zilliz.com/user.yaml"  # the annotation
SETTINGS = "proxy: {maxNameLength: 300}"
TABLE = ("get", "mi,pods")


class Demo(Tour):
    def __init__(self, console: Console, plane: ControlPlane) -> None:
        others = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("MILVUS_OPERATOR_")  # options for another operator
        }
        env = others | {"KUBECONFIG": str(plane.kubeconfig())}
        kubectl = [str(plane.kubectl), f"--cache-dir={plane.folder}/kubectl"]
        super().__init__(console, kubectl, env)
        self.operator = subprocess.Popen(
            [sys.executable, str(TOP / "milvus_operator.py"), "--interval", "1"],
            env=env,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=self.follow, daemon=True).start()

    def follow(self) -> None:
        """Show the operator's log."""
        assert self.operator.stderr
        for line in self.operator.stderr:
            self.show(f"    operator | {line.rstrip()}", "dim")

    def stop(self) -> None:
        if self.operator.poll() is None:
            self.operator.send_signal(signal.SIGTERM)
        self.operator.wait()

    def wait_for(self, what: str, check: Callable[[], bool]) -> None:
        self.wait(what, check)
        self.kubectl(*TABLE)

    def rolled(self, is_new: Callable[[Obj], bool]) -> Callable[[], bool]:
        def check() -> bool:
            return self.ready(NAME, 2) and all(map(is_new, self.pods(NAME).values()))

        return check

    def show_condition(self, kind: str) -> None:
        fields = "{.type}={.status} {.reason}: {.message}"
        condition = f'{{range .status.conditions[?(@.type=="{kind}")]}}{fields}{{end}}'
        self.kubectl("get", "milvus", NAME, "-o", f"jsonpath={condition}")

    def tour(self, picture: str) -> None:
        self.step("The CRD is installed, and the operator runs with an interval of 1 s")
        self.kubectl("apply", "-f", "crd.yaml")

        self.step("A Milvus is applied: its pod is created and becomes Ready")
        self.kubectl("apply", "-f", "sample.yaml")
        self.wait_for("a Ready pod", partial(self.ready, NAME, 1))

        self.step("The pod is deleted: the operator replaces it")
        before = self.uids(NAME)
        self.kubectl("delete", "pod", f"{NAME}-0", "--wait=false")
        self.wait_for("another pod", lambda: self.uids(NAME) != before and self.ready(NAME, 1))

        self.step("The Milvus is scaled: 1 → 3 → 5 → 2 pods")
        for replicas in (3, 5, 2):
            self.kubectl("scale", f"milvus/{NAME}", f"--replicas={replicas}")
            self.wait_for(f"{replicas} pods", partial(self.ready, NAME, replicas))

        if picture:
            self.console.export_text()  # which forgets what was recorded so far
        self.step("The image changes: the pods are replaced one at a time, highest ordinal first")
        self.patch(NAME, image=IMAGE)
        is_new = self.rolled(lambda pod: container_of(pod)["image"] == IMAGE)
        self.wait_for("the new image in all pods", is_new)
        if picture:
            self.console.save_svg(picture, title="make demo: a rolling update")

        self.step("The configuration changes: milvusSpec becomes the user.yaml of each pod")
        self.show_condition("Reconciled")
        self.patch(NAME, milvusSpec=SETTINGS)
        is_new = self.rolled(lambda pod: pod["metadata"]["annotations"][USER_FILE] == SETTINGS)
        self.wait_for("the settings in all pods", is_new)
        file = USER_FILE.replace(".", "\\.")
        self.kubectl("get", "pod", f"{NAME}-0", "-o", f"jsonpath={{.metadata.annotations.{file}}}")
        self.show_condition("Reconciled")

        self.step("The Milvus is deleted: its pods are deleted with it")
        self.kubectl("delete", "milvus", NAME)
        self.wait_for("no pods", lambda: not self.pods(NAME))

        self.step("Another Milvus has a volume, which grows: no pod is touched")
        self.show("Nothing provisions or enlarges volumes here: the demo itself makes the volume.")
        self.kubectl("apply", "-f", "local/volume.yaml")
        self.wait_for("a Ready pod", partial(self.ready, "kept", 1))
        before = self.uids("kept")
        self.patch("kept", storage={"size": "2Gi"})
        asked = "spec.resources.requests.storage"
        self.wait_for("a larger claim", lambda: self.value("pvc/data-kept-0", asked) == "2Gi")
        columns = f"custom-columns=NAME:.metadata.name,STATUS:.status.phase,ASKS FOR:.{asked}"
        self.kubectl("get", "pvc", "-o", columns)
        if self.uids("kept") != before:
            raise Missed("the pod was replaced")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    choices = ["auto", "yes", "no"]
    parser.add_argument("--wait", choices=choices, default="auto", help="stay up after the tour")
    parser.add_argument("--picture", default="", help="draw the rolling update into this SVG file")
    arguments = parser.parse_args()
    console = Console(record=bool(arguments.picture), width=132 if arguments.picture else None)
    stays = arguments.wait == "yes"
    if arguments.wait == "auto":
        stays = sys.stdin.isatty() and console.is_terminal
    # A shell's background job starts with SIGINT ignored.
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, signal.default_int_handler)
    demo = None
    try:
        commands()  # builds them the first time
        started = time.monotonic()
        with ControlPlane() as plane:
            seconds = time.monotonic() - started
            console.print(
                f"a Kubernetes control plane with a simulated node is up ({seconds:.1f} s)"
            )
            demo = Demo(console, plane)
            try:
                demo.tour(arguments.picture)
                seconds = demo.seconds()
                demo.show(f"\nThat was the life of a Milvus, in {seconds:.0f} s.", "bold green")
                if stays:
                    stay(demo, plane)
            finally:
                demo.stop()
        return 0
    except KeyboardInterrupt:
        return 0 if stays else 130
    except Unavailable as error:
        failure = f"the control plane can't be started: {error}"
    except (Missed, subprocess.SubprocessError) as error:
        failure = f"step {demo.number if demo else 0}: {error}"
    console.print(f"\nThe demo failed: {failure}", style="bold red", markup=False, soft_wrap=True)
    console.print(
        "The lines with 'operator |' are the operator's log. If the machine was busy, run it again."
    )
    return 1


def stay(demo: Demo, plane: ControlPlane) -> None:
    demo.show("The control plane and the operator stay up until Ctrl-C. In another terminal:\n")
    demo.show(f"  export KUBECONFIG={plane.kubeconfig()}\n  kubectl apply -f sample.yaml\n")
    if plane.kubectl.parent.name != "bin":
        demo.show(f"  (kubectl is at {plane.kubectl})\n")
    signal.pause()


if __name__ == "__main__":
    sys.exit(main())
