"""The life of a Milvus, on a real control plane on this machine: `make demo`.

Each step says what it does, shows the commands and what they print, and waits for the result. The
lines that begin with `operator |` are the operator's log. The exit code is 1 if a step fails.
"""

import argparse
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

from local.controlplane import ControlPlane, Unavailable
from local.tour import TOP, Missed, Tour, show

NAME = "milvus-crd-test"  # in sample.yaml
IMAGE = "milvusdb/milvus:v2.6.24"
SETTINGS = "proxy: {maxNameLength: 300}"
TYPING_ERROR = "proxy: {maxNameLength: 300]"
USER_FILE = r"{.metadata.annotations.zilliz\.com/user\.yaml}"
MESSAGE = '{.status.conditions[?(@.type=="Reconciled")].message}'
ADVICE = """\
What to do: read the lines above that begin with 'operator |', which are the operator's log. If this
machine was busy, run the demo again."""


class Demo(Tour):
    def start_operator(self) -> None:
        self.step("The operator starts; the cluster knows the kind Milvus already, from crd.yaml")
        show("$ python milvus_operator.py --interval 1", "command")
        command = [sys.executable, "milvus_operator.py", "--interval", "1"]
        self.operator = subprocess.Popen(command, cwd=TOP, stderr=subprocess.PIPE, text=True)
        threading.Thread(target=self.show_log, daemon=True).start()

    def show_log(self) -> None:
        assert self.operator.stderr
        for line in self.operator.stderr:
            show(f"    operator | {line.rstrip()}", "detail")

    def wait(self, what: str, check: Callable[[], bool], seconds: float = 60) -> None:
        """The same, but no longer than the operator runs."""
        super().wait(what, lambda: self.runs() and check(), seconds)

    def runs(self) -> bool:
        if self.operator.poll() is not None:
            raise Missed(f"the operator ended with exit code {self.operator.returncode}")
        return True

    def tour(self) -> None:
        self.kubectl("api-resources", "--api-group=zilliz.com")

        self.step("A Milvus is applied: its pod is created and becomes Ready")
        self.kubectl("apply", "-f", "sample.yaml")
        self.wait_for_pods(NAME, 1)

        self.step("The pod is lost: the operator creates it again")
        self.kubectl("delete", "pod", f"{NAME}-0")
        self.wait_for_pods(NAME, 1)

        self.step("The Milvus is scaled up to 3 pods, and down to 2")
        for replicas in (3, 2):
            self.kubectl("scale", f"milvus/{NAME}", f"--replicas={replicas}")
            self.wait_for_pods(NAME, replicas)

        self.step("The image changes: the pods are replaced one by one, the last one first")
        show("Before the next pod is replaced, the new one must have been Ready for 10 seconds.")
        self.patch(NAME, image=IMAGE)
        self.wait_for_pods(NAME, 2)

        self.step("The configuration changes: milvusSpec becomes the file user.yaml of each pod")
        self.patch(NAME, milvusSpec=SETTINGS)
        self.wait_for_pods(NAME, 2)
        self.kubectl("get", "pod", f"{NAME}-0", "-o", f"jsonpath={USER_FILE}")

        self.step("A typing error: the Milvus says what is wrong, and its pods stay as they are")
        before = self.uids(NAME)
        self.patch(NAME, milvusSpec=TYPING_ERROR)
        self.wait("a refusal", lambda: self.condition(NAME, "Reconciled").get("status") == "False")
        self.kubectl("get", "milvus", NAME, "-o", f"jsonpath={MESSAGE}")
        self.patch(NAME, milvusSpec=SETTINGS)
        self.wait_for_pods(NAME, 2)
        if self.uids(NAME) != before:
            raise Missed("the typing error has cost a pod")

        self.step("Another Milvus has a volume. Both are deleted: the pods go, the claim stays")
        self.kubectl("apply", "-f", "local/volume.yaml")
        self.wait_for_pods("kept", 1)
        self.kubectl("delete", "milvus", "--all")
        self.wait("no pods", lambda: not self.json("pods")["items"])
        self.kubectl("get", "pvc", "data-kept-0")


def run(plane: ControlPlane, stays: bool) -> int:
    os.environ["KUBECONFIG"] = str(plane.kubeconfig())
    os.environ["KUBECACHEDIR"] = f"{plane.folder}/kubectl"
    demo = Demo(str(plane.kubectl))
    demo.start_operator()
    try:
        demo.tour()
        show("\nThat was the life of a Milvus.", "step")
        if stays:
            show("The cluster and the operator run until Ctrl-C. In another terminal, try:\n")
            show(f"  export KUBECONFIG={plane.kubeconfig()}")
            show(f"  {plane.kubectl} apply -f sample.yaml")
            signal.pause()
        return 0
    except Missed as error:
        show(f"\nThe demo failed in step {demo.number}: {error}", "failure")
        show(ADVICE)
        return 1
    finally:
        demo.operator.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wait", choices=["auto", "yes", "no"], default="auto")
    wait = parser.parse_args().wait
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    stays = wait == "yes" or (wait == "auto" and is_terminal)
    # A shell's background job starts with SIGINT ignored.
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, signal.default_int_handler)
    show("Starting a Kubernetes control plane with a simulated node on 127.0.0.1")
    try:
        with ControlPlane() as plane:
            return run(plane, stays)
    except Unavailable as error:
        show(f"The control plane can't be started: {error}", "failure")
        return 1
    except KeyboardInterrupt:
        return 0 if stays else 130


if __name__ == "__main__":
    sys.exit(main())
