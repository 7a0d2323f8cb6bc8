"""Bare requests: the benchmark's own client and, as a command, what the operator is compared with.

    python -m benchmarks.bare NAMESPACE create_pods         # those that are desired
    python -m benchmarks.bare NAMESPACE delete_pods         # all but the first of each Milvus
    python -m benchmarks.bare NAMESPACE list_all            # what the operator lists, forever
    python -m benchmarks.bare NAMESPACE watch_all           # the same, as an idle controller does it
    python -m benchmarks.bare NAMESPACE run_replica_sets    # with the same pods
    python -m benchmarks.bare NAMESPACE run_stateful_sets   # also with the same pods

The cluster is that of the file in KUBECONFIG.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import urllib3
import yaml

import milvus_operator as mo
from local.controlplane import commands

Obj = dict[str, Any]
THREADS = 16
AT_REST = "nothing to do"  # what the operator's log says of a pass in which nothing was to do
IMAGE = "milvusdb/milvus:v2.6.4"
SETTINGS = "proxy:\n  maxNameLength: 255\ncommon:\n  storageType: local\nlog: {level: info}\n"
# Paths; {} is the namespace.
MILVUSES = "apis/zilliz.com/v1/namespaces/{}/milvuses"
REPLICA_SETS = "apis/apps/v1/namespaces/{}/replicasets"
STATEFUL_SETS = "apis/apps/v1/namespaces/{}/statefulsets"
PODS = "api/v1/namespaces/{}/pods"
LISTED = (
    f"{PODS}?labelSelector={mo.MILVUS_LABEL}&",
    f"api/v1/namespaces/{{}}/persistentvolumeclaims?labelSelector={mo.MILVUS_LABEL}&",
    f"api/v1/namespaces/{{}}/services?labelSelector={mo.MILVUS_LABEL}&",
    f"{MILVUSES}?",
)
WITHOUT_LIMITS = f"""
    --concurrent-replicaset-syncs={THREADS} --concurrent-statefulset-syncs={THREADS}
    --kube-api-qps=100000 --kube-api-burst=100000 --leader-elect=false --secure-port=0
"""


def milvus(name: str, **spec: Any) -> Obj:
    """A Milvus such as people write."""
    return {
        "apiVersion": mo.API_VERSION,
        "kind": mo.KIND,
        "metadata": {"name": name},
        "spec": {"image": IMAGE, "replicas": 3, "milvusSpec": SETTINGS, **spec},
    }


def desired_pods(milvus: Obj) -> list[Obj]:
    spec = mo.spec_of(milvus)
    return [mo.new_pod(milvus, spec, ordinal) for ordinal in range(spec.replicas)]


def workload(milvus: Obj, **more: Any) -> Obj:
    """A ReplicaSet or a StatefulSet of the same pods, and of the same name."""
    name = mo.name_of(milvus)
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": desired_pods(milvus)[0]["spec"]}
    spec = {"replicas": milvus["spec"]["replicas"], "selector": {"matchLabels": labels}}
    return {"metadata": {"name": name}, "spec": spec | {"template": template} | more}


class Namespace:
    """Requests as an administrator, over THREADS persistent connections."""

    def __init__(self, kubeconfig: Path, name: str) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        token = config["users"][0]["user"]["token"]
        authority = str(kubeconfig.parent / "pki" / "apiserver.crt")
        self.kubeconfig = kubeconfig
        self.name = name
        self.server = config["clusters"][0]["cluster"]["server"]
        self.headers = {"Authorization": f"Bearer {token}"}
        self.http = urllib3.PoolManager(ca_certs=authority, maxsize=THREADS, retries=False)
        self.threads = ThreadPoolExecutor(THREADS)

    def send(self, method: str, path: str, body: Obj | None = None) -> Obj:
        url = f"{self.server}/{path.replace('{}', self.name)}"
        headers = self.headers
        if method == "PATCH":
            headers = {**headers, "Content-Type": "application/merge-patch+json"}
        response = self.http.request(method, url, json=body, headers=headers)
        if response.status >= 400 and response.status != 404:
            raise RuntimeError(f"{method} {path}: {response.status} {response.data[:300]!r}")
        return response.json()

    def metrics(self) -> str:
        response = self.http.request("GET", f"{self.server}/metrics", headers=self.headers)
        return response.data.decode()

    def create(self, path: str, objects: Iterable[Obj]) -> None:
        list(self.threads.map(lambda body: self.send("POST", path, body), objects))

    def each(self, method: str, paths: Iterable[str], body: Obj | None = None) -> None:
        list(self.threads.map(lambda path: self.send(method, path, body), paths))

    def items(self, path: str) -> Iterator[Obj]:
        """The objects of a list, which is read page by page. The path ends with `?` or `&`."""
        more = ""
        while True:
            page = self.send("GET", f"{path}limit=500&continue={more}")
            yield from page["items"]
            more = page["metadata"].get("continue")
            if not more:
                return

    def count_pods(self) -> int:
        page = self.send("GET", f"{PODS}?limit=1")
        return len(page["items"]) + page["metadata"].get("remainingItemCount", 0)

    # --- The command ---
    def create_pods(self) -> None:
        milvuses = list(self.items(f"{MILVUSES}?"))
        self.create(PODS, [pod for milvus in milvuses for pod in desired_pods(milvus)])

    def delete_pods(self) -> None:
        names = [mo.name_of(pod) for pod in self.items(f"{PODS}?")]
        surplus = [name for name in names if not name.endswith("-0")]
        self.each("DELETE", [f"{PODS}/{name}" for name in surplus])

    def list_all(self) -> None:
        while True:
            for path in LISTED:
                for _ in self.items(path):
                    pass
            print(AT_REST, flush=True)

    def watch_all(self) -> None:
        for path in LISTED:
            page = self.send("GET", f"{path}limit=1")
            version = page["metadata"]["resourceVersion"]
            self.threads.submit(self.watch, f"{path}watch=1&resourceVersion={version}")
        while True:
            print(AT_REST, flush=True)
            time.sleep(5)

    def watch(self, path: str) -> None:
        url = f"{self.server}/{path.replace('{}', self.name)}"
        for _ in self.http.request(
            "GET", url, headers=self.headers, preload_content=False
        ).stream():
            pass

    def run_replica_sets(self) -> None:
        sets = [workload(milvus) for milvus in self.items(f"{MILVUSES}?")]
        self.create(REPLICA_SETS, sets)
        self.run_controller("replicaset-controller")

    def run_stateful_sets(self) -> None:
        parallel = {"serviceName": "x", "podManagementPolicy": "Parallel"}
        sets = [workload(milvus, **parallel) for milvus in self.items(f"{MILVUSES}?")]
        self.create(STATEFUL_SETS, sets)
        self.run_controller("statefulset-controller")

    def run_controller(self, name: str) -> None:
        manager = str(commands()["kube-controller-manager"])
        flags = [f"--kubeconfig={self.kubeconfig}", f"--controllers={name}"]
        os.execl(manager, manager, *flags, *WITHOUT_LIMITS.split())


if __name__ == "__main__":
    _, name, what = sys.argv
    getattr(Namespace(Path(os.environ["KUBECONFIG"]), name), what)()
