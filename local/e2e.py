"""The whole product on a real cluster, from the installation to a clean end: `make e2e`.

    python -m local.e2e IMAGE [--milvus IMAGE]

The cluster is that of the current kubeconfig context. IMAGE is the operator's, which the nodes have
or can pull. The cluster must not have the operator or its CRD yet, because the test deletes both
at the end. It needs a default storage class. The exit code is 1 at the first thing that is not as
it should be.
"""

import argparse
import contextlib
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator

from pymilvus import MilvusClient, MilvusException

from local.tour import TOP, Missed, Tour, is_ready, show

SPACE = "milvus-e2e"
SYSTEM = "milvus-polling-operator-system"
OPERATOR = "milvus-polling-operator"
INSTALLED = ("crd/milvuses.zilliz.com", f"namespace/{SYSTEM}", f"clusterrole/{OPERATOR}")
DEFAULT = '"storageclass.kubernetes.io/is-default-class": "true"'
NAME = "vectors"
BOTH = (f"{NAME}-0", f"{NAME}-1")
MILVUS = f"""
apiVersion: zilliz.com/v1
kind: Milvus
metadata: {{name: {NAME}}}
spec: {{image: IMAGE, replicas: 2, storage: {{size: 2Gi}}}}
"""
SETTINGS = "proxy:\n  maxNameLength: 20\n"
OTHER_SETTINGS = f"{SETTINGS}log.level: warn\n"
ROWS = [{"id": number, "vector": [number, number, number, 1.0]} for number in range(100)]


class EndToEnd(Tour):
    def __init__(self, image: str, milvus: str) -> None:
        super().__init__(os.environ.get("KUBECTL", "kubectl"), f"--namespace={SPACE}")
        self.milvus = milvus
        self.image = image
        deployment = (TOP / "deploy.yaml").read_text()
        self.operator = re.sub(r"(?m)^( *image:) .*", rf"\1 {image}", deployment)

    @contextlib.contextmanager
    def client(self, pod: str) -> Iterator[MilvusClient]:
        """A client of one pod, through a port-forward."""
        command = [*self.command, "port-forward", f"pod/{pod}", ":19530"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as forward:
            try:
                assert forward.stdout
                port = re.search(r"127\.0\.0\.1:(\d+) ->", forward.stdout.readline())
                if not port:
                    raise Missed(f"kubectl port-forward to {pod} failed")
                yield MilvusClient(f"http://127.0.0.1:{port[1]}", timeout=60)
            finally:
                forward.terminate()

    def write(self, pod: str) -> None:
        with self.client(pod) as client:
            client.create_collection("e2e", dimension=4, consistency_level="Strong")
            client.insert("e2e", ROWS)
        show(f"{len(ROWS)} vectors were written to {pod}.")

    def search(self, pod: str) -> None:
        def found() -> bool:
            try:
                with self.client(pod) as client:
                    (hits,) = client.search("e2e", [[42, 42, 42, 1.0]], limit=1)
            except Exception as error:  # a Milvus is Ready some time before it can search
                show(f"not yet: {error}", "detail")
                return False
            return [one["id"] for one in hits] == [42]

        self.wait(f"the right vector in a search in {pod}", found, 120)

    def limit_names(self, pod: str) -> None:
        """See that a setting is in force: names of collections have at most 20 characters."""
        with self.client(pod) as client:
            client.create_collection("n" * 20, dimension=4)
            client.drop_collection("n" * 20)
            try:
                client.create_collection("n" * 21, dimension=4)
            except MilvusException as error:
                show(f"{pod} refuses a longer name: {error.message}")
            else:
                raise Missed(f"{pod} took a name of 21 characters: it does not read user.yaml")

    def watch_roll(self, settings: str) -> None:
        """Wait until both pods have these settings, and see that one of them is always Ready."""

        def check() -> bool:
            pods = self.pods(NAME)
            if not any(map(is_ready, pods)):
                raise Missed("no pod is Ready in a rolling update of two")
            texts = [pod["metadata"]["annotations"]["zilliz.com/user.yaml"] for pod in pods]
            return texts == [settings, settings] and self.ready(NAME, 2)

        self.wait("the settings in both pods, one of which was always Ready", check, 300)

    def tour(self) -> None:
        self.step("The cluster has room for the test")
        self.kubectl("get", "nodes", "-o", "wide")
        self.see_nothing("the test would delete it at its end")
        if DEFAULT not in self.get("get", "storageclass", "-o", "json"):
            raise Missed("the cluster has no default storage class, which this test needs")
        try:
            self.install()
            self.live()
        except Missed:
            with contextlib.suppress(Missed):  # what helps to find out why
                self.kubectl("describe", "milvus,pods,pvc")
                self.kubectl("-n", SYSTEM, "logs", f"deployment/{OPERATOR}", "--tail=50")
            raise
        finally:
            self.remove()

    def install(self) -> None:
        self.step("The CRD and the operator are installed")
        self.kubectl("apply", "-f", "crd.yaml")
        show(f"The next command applies deploy.yaml with the image {self.image}.")
        self.kubectl("-n", SYSTEM, "apply", "-f", "-", text=self.operator)
        rollout = ("rollout", "status", f"deployment/{OPERATOR}", "--timeout=120s")
        self.kubectl("-n", SYSTEM, *rollout)
        self.kubectl("create", "namespace", SPACE)

    def live(self) -> None:
        self.step(f"A Milvus with two replicas is created in the namespace {SPACE}")
        self.kubectl("apply", "-f", "-", text=MILVUS.replace("IMAGE", self.milvus))
        self.wait_for_pods(NAME, 2, 600)  # the image may have to be pulled

        self.step("The databases are used")
        for pod in BOTH:
            self.write(pod)
            self.search(pod)

        self.step("A setting changes: one Ready pod at a time is replaced")
        self.patch(NAME, milvusSpec=SETTINGS)
        self.watch_roll(SETTINGS)
        for pod in BOTH:
            self.search(pod)
        self.limit_names(BOTH[0])

        self.step("The operator's pod is deleted by force in the middle of a rolling update")
        before = self.uids(NAME)
        self.patch(NAME, milvusSpec=OTHER_SETTINGS)
        self.wait("the first pod is replaced", lambda: self.uids(NAME) != before)
        selector = f"--selector=app.kubernetes.io/name={OPERATOR}"
        self.kubectl("-n", SYSTEM, "delete", "pod", selector, "--grace-period=0", "--force")
        self.watch_roll(OTHER_SETTINGS)

        self.step("It is scaled to three pods, and then to one")
        for replicas in (3, 1):
            self.kubectl("scale", f"milvus/{NAME}", f"--replicas={replicas}")
            self.wait_for_pods(NAME, replicas, 300)
        self.search(BOTH[0])

        self.kubectl("events", f"--for=milvus/{NAME}")

        self.step("The Milvus is deleted: its pods are deleted, its claims stay")
        self.kubectl("delete", "milvus", NAME)
        self.wait("no pods", lambda: not self.pods(NAME), 120)
        self.kubectl("get", "pvc")
        if len(self.json("pvc")["items"]) != 3:
            raise Missed("the claims of three pods should have stayed")

    def remove(self) -> None:
        """In the end, whatever happened, nothing is left."""
        self.step("Everything is removed")
        options = ("--ignore-not-found", "--timeout=180s")
        self.kubectl("delete", "namespace", SPACE, *options)
        self.kubectl("-n", SYSTEM, "delete", "-f", "-", *options, text=self.operator)
        self.kubectl("delete", "-f", "crd.yaml", *options)
        self.see_nothing("it should be gone")
        show("Nothing is left.")

    def see_nothing(self, why: str) -> None:
        for target in (f"namespace/{SPACE}", *INSTALLED):
            if self.get("get", target, "--ignore-not-found", "-o", "name"):
                raise Missed(f"{target} exists: {why}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("image", help="the operator's image")
    parser.add_argument("--milvus", default="milvusdb/milvus:v2.6.25", help="the image of Milvus")
    arguments = parser.parse_args()
    logging.disable()  # pymilvus would show a traceback of what is meant to fail
    test = EndToEnd(arguments.image, arguments.milvus)
    try:
        test.tour()
    except Missed as error:
        show(f"\nThe test failed: {error}", "failure")
        return 1
    show("\nAll of it was seen.", "step")
    return 0


if __name__ == "__main__":
    sys.exit(main())
