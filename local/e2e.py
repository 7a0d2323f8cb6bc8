"""The whole product on a real cluster, from `kubectl apply -k .` to a clean end: `make e2e`.

    python -m local.e2e IMAGE [--milvus IMAGE]

The cluster is that of the current kubeconfig context. IMAGE is the operator's, which the nodes have
or can pull. The cluster must not have the operator or its CRD yet, because the test deletes both
at the end. The exit code is 1 at the first thing that is not as it should be.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from pymilvus import MilvusClient, MilvusException
from rich.console import Console

from local.tour import TOP, Missed, Tour, cause_of, is_ready

SYSTEM = "milvus-polling-operator-system"
OPERATOR = "milvus-polling-operator"
SPACE = "milvus-e2e"
NAME = "vectors"
CRD = "crd/milvuses.zilliz.com"
DEFAULT = "storageclass.kubernetes.io/is-default-class"
USER_FILE = "zilliz.com/user.yaml"  # the annotation
SETTINGS = "proxy:\n  maxNameLength: 20\n"
ROWS = [{"id": number, "vector": [number, number, number, 1.0]} for number in range(100)]


class EndToEnd(Tour):
    def __init__(self, image: str, milvus: str) -> None:
        kubectl = [os.environ.get("KUBECTL", "kubectl")]
        super().__init__(Console(), kubectl, os.environ)
        self.image = image
        self.milvus = milvus
        self.has_storage = False

    @contextlib.contextmanager
    def in_space(self) -> Iterator[None]:
        """Commands are for the namespace of the test."""
        before = self.command
        self.command = [*before, "--namespace", SPACE]
        try:
            yield
        finally:
            self.command = before

    # --- What is seen ---
    def wait_for_pods(self, replicas: int, seconds: float = 300) -> None:
        what = "a Ready pod" if replicas == 1 else f"{replicas} Ready pods"
        self.wait(what, partial(self.ready, NAME, replicas), seconds)

    def roll(self, what: str, is_done: Callable[[], bool], replicas: int) -> None:
        """Wait for a rolling update, and see that at most one pod at a time is not Ready."""
        fewest = replicas

        def check() -> bool:
            nonlocal fewest
            ready = sum(map(is_ready, self.pods(NAME).values()))
            fewest = min(fewest, ready)
            if ready < replicas - 1:
                raise Missed(f"only {ready} of {replicas} pods are Ready in a rolling update")
            return is_done() and self.ready(NAME, replicas)

        self.wait(what, check, 300)
        if fewest == replicas:
            raise Missed("no pod was replaced")
        self.show(f"There were always {fewest} or more Ready pods.")

    def has_settings(self, text: str) -> bool:
        files = [pod["metadata"]["annotations"][USER_FILE] for pod in self.pods(NAME).values()]
        return all(file == text for file in files)

    # --- The database ---
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
        self.show(f"{len(ROWS)} vectors were written to {pod}.")

    def find(self, pod: str) -> None:
        """A Milvus is Ready some time before its collections are loaded, so this is retried."""
        start = time.monotonic()
        while True:
            try:
                with self.client(pod) as client:
                    (found,) = client.search("e2e", [[42, 42, 42, 1.0]], limit=1)
                break
            except Exception as error:  # of pymilvus, of gRPC, and in an old server of others
                if time.monotonic() > start + 120:
                    raise Missed(f"no search in {pod}: {cause_of(error)}") from error
                time.sleep(1)
        if [one["id"] for one in found] != [42]:
            raise Missed(f"a search in {pod} found {found}")
        self.show(f"A search in {pod} found the right vector.")

    def limit_names(self, pod: str) -> None:
        """See that a setting is in force: names of collections have at most 20 characters."""
        logging.disable()  # pymilvus would show a traceback of what is meant to fail
        with self.client(pod) as client:
            client.create_collection("n" * 20, dimension=4)
            client.drop_collection("n" * 20)
            try:
                client.create_collection("n" * 21, dimension=4)
            except MilvusException as error:
                self.show(f"{pod} refuses a longer name: {error.message}")
            else:
                raise Missed(f"{pod} took a name of 21 characters: it does not read user.yaml")

    # --- The steps ---
    def tour(self) -> None:
        self.step("The cluster has room for the test")
        versions = json.loads(self.get("version", "-o", "json"))
        node = self.json("nodes")["items"][0]["status"]["nodeInfo"]
        runtime = node["containerRuntimeVersion"]
        self.show(f"Date:       {datetime.now(UTC):%Y-%m-%d}")
        self.show(f"Kubernetes: {versions['serverVersion']['gitVersion']}, {runtime}")
        self.show(f"Operator:   {self.image}\nMilvus:     {self.milvus}")
        for target in (CRD, f"namespace/{SYSTEM}", f"namespace/{SPACE}"):
            if self.get("get", target, "--ignore-not-found", "-o", "name"):
                raise Missed(f"{target} exists; the test would delete it at its end")

        self.step("The CRD and the operator are installed")
        with self.removing_all():
            self.install()
            with self.in_space():
                self.live()

    def install(self) -> None:
        self.apply_kustomization("apply")
        deployment = f"deployment/{OPERATOR}"
        self.kubectl("-n", SYSTEM, "rollout", "status", deployment, "--timeout=120s")
        self.kubectl("create", "namespace", SPACE)

    def apply_kustomization(self, *verb: str) -> None:
        """kubectl, with kustomization.yaml and this image."""
        with tempfile.TemporaryDirectory() as folder:
            top = os.path.relpath(TOP, Path(folder).resolve())
            image = {"op": "replace", "path": "/spec/template/spec/containers/0/image"}
            patch = json.dumps([image | {"value": self.image}])
            overlay = {
                "resources": [top],
                "patches": [{"target": {"kind": "Deployment"}, "patch": patch}],
            }
            Path(folder, "kustomization.yaml").write_text(json.dumps(overlay))
            self.show(f"$ kubectl {' '.join(verb)} -k .    # with {self.image}", "bold")
            self.show(self.get(*verb, "-k", folder).rstrip())

    def live(self) -> None:
        self.step("A Milvus with two replicas is created")
        classes = self.json("storageclass")["items"]
        annotations = [one["metadata"].get("annotations", {}) for one in classes]
        self.has_storage = any(one.get(DEFAULT) == "true" for one in annotations)
        spec = {"image": self.milvus, "replicas": 2}
        if self.has_storage:
            spec["storage"] = {"size": "2Gi"}
        else:
            self.show("The cluster has no default storage class, so this Milvus keeps no data.")
        milvus = {
            "apiVersion": "zilliz.com/v1",
            "kind": "Milvus",
            "metadata": {"name": NAME},
            "spec": spec,
        }
        self.show(self.get("apply", "-f", "-", text=json.dumps(milvus)).rstrip())
        self.wait_for_pods(2, 600)  # the image may have to be pulled
        self.kubectl("get", "mi,pods,pvc")

        self.step("The databases are used")
        for pod in (f"{NAME}-0", f"{NAME}-1"):
            self.write(pod)
            self.find(pod)

        self.step("A setting changes: one Ready pod at a time is replaced")
        self.patch(NAME, milvusSpec=SETTINGS)
        self.roll("the setting in both pods", partial(self.has_settings, SETTINGS), 2)
        self.find_again(f"{NAME}-0", f"{NAME}-1")
        self.limit_names(f"{NAME}-0")

        self.step("The operator's pod is deleted by force in the middle of a rolling update")
        self.patch(NAME, milvusSpec=f"{SETTINGS}# more\nlog.level: warn")
        before = self.uids(NAME)
        self.wait("the first pod is replaced", lambda: self.uids(NAME) != before)
        selector = f"app.kubernetes.io/name={OPERATOR}"
        self.kubectl("-n", SYSTEM, "delete", "pod", "-l", selector, "--grace-period=0", "--force")
        changed = partial(self.has_settings, f"{SETTINGS}# more\nlog.level: warn")
        self.roll("the setting in both pods", changed, 2)

        self.step("It is scaled to three pods, and then to one")
        for replicas in (3, 1):
            self.kubectl("scale", f"milvus/{NAME}", f"--replicas={replicas}")
            self.wait_for_pods(replicas)
        self.find_again(f"{NAME}-0")

        self.step("The operator loses the permission to create pods, and gets it back")
        self.lose_a_permission()
        self.find_again(f"{NAME}-0")
        self.kubectl(
            "get", "events", "--sort-by=.eventTime", "--field-selector=involvedObject.kind=Milvus"
        )

        self.step("The Milvus is deleted: its pods are deleted, its claims stay")
        self.kubectl("delete", "milvus", NAME)
        self.wait("no pods", lambda: not self.pods(NAME), 120)
        claims = self.json("pvc")["items"]
        if self.has_storage and len(claims) != 3:
            raise Missed(f"there are {len(claims)} claims, not 3")
        self.kubectl("get", "pvc")

    def find_again(self, *pods: str) -> None:
        """What was written before the pods were replaced is still there, if it was on a volume."""
        for pod in pods if self.has_storage else ():
            self.find(pod)

    def lose_a_permission(self) -> None:
        role = self.json("clusterrole", OPERATOR)
        rules = json.dumps(role["rules"])
        lesser = json.loads(rules)
        for rule in lesser:
            if "pods" in rule["resources"]:
                rule["verbs"].remove("create")
        self.set_rules(lesser)
        self.kubectl("delete", "pod", f"{NAME}-0")
        self.wait("the status names the permission", self.says_forbidden)
        self.show(f"Reconciled: {self.condition(NAME, 'Reconciled')['message']}")
        self.set_rules(json.loads(rules))
        self.wait_for_pods(1)

    def set_rules(self, rules: list[object]) -> None:
        patch = json.dumps([{"op": "replace", "path": "/rules", "value": rules}])
        self.get("patch", "clusterrole", OPERATOR, "--type=json", "-p", patch)
        self.show(f"clusterrole/{OPERATOR} has other rules now")

    def says_forbidden(self) -> bool:
        condition = self.condition(NAME, "Reconciled")
        return condition.get("status") == "False" and condition["reason"] == "Forbidden"

    @contextlib.contextmanager
    def removing_all(self) -> Iterator[None]:
        """In the end, whatever happened, nothing is left."""
        try:
            yield
        except Missed as error:
            self.show(f"Step {self.number} failed: {cause_of(error)}", "bold red")
            self.show_state()
            raise
        finally:
            self.step("Everything is removed")
            options = ("--ignore-not-found", "--timeout=180s")
            self.kubectl("delete", "namespace", SPACE, *options)
            self.apply_kustomization("delete", *options)
            for target in (
                CRD,
                f"namespace/{SYSTEM}",
                f"namespace/{SPACE}",
                f"clusterrole/{OPERATOR}",
            ):
                if self.get("get", target, "--ignore-not-found", "-o", "name"):
                    raise Missed(f"{target} is left")
            self.show("Nothing is left.")

    def show_state(self) -> None:
        """What helps to find out why a step failed."""
        for arguments in (
            ("get", "mi,pods,pvc", "-n", SPACE, "-o", "wide"),
            ("describe", "milvus", "-n", SPACE),
            ("get", "pods", "-n", SYSTEM),
            ("logs", f"deployment/{OPERATOR}", "-n", SYSTEM, "--tail=50"),
        ):
            with contextlib.suppress(Missed):
                self.kubectl(*arguments)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("image", help="the operator's image")
    parser.add_argument("--milvus", default="milvusdb/milvus:v2.6.25", help="the image of Milvus")
    arguments = parser.parse_args()
    test = EndToEnd(arguments.image, arguments.milvus)
    try:
        test.tour()
    except Missed as error:
        test.show(f"\nThe test failed: {cause_of(error)}", "bold red")
        return 1
    test.show(f"\nAll of it was seen, in {test.seconds():.0f} s.", "bold green")
    return 0


if __name__ == "__main__":
    sys.exit(main())
