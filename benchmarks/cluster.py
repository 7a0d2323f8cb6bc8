"""The benchmark's own client of the cluster: plain urllib3, many writes at a time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import urllib3

import milvus_operator as mo

Obj = dict[str, Any]
THREADS = 16
PAGE = 500
IMAGE = "milvusdb/milvus:v2.6.4"
MERGE = "application/merge-patch+json"
SETTINGS = "proxy:\n  maxNameLength: 255\ncommon:\n  storageType: local\nlog: {level: info}\n"


def milvus(name: str, replicas: int = 3, **spec: Any) -> Obj:
    """A Milvus such as people write."""
    wanted = {"image": IMAGE, "replicas": replicas, "milvusSpec": SETTINGS} | spec
    return {
        "apiVersion": mo.API_VERSION,
        "kind": mo.KIND,
        "metadata": {"name": name},
        "spec": wanted,
    }


class Hands:
    """Requests as an administrator, over THREADS persistent connections."""

    def __init__(self, server: str, authority: str, token: str) -> None:
        self.server, self.authority, self.token = server, authority, token
        self.http = urllib3.PoolManager(ca_certs=authority, maxsize=THREADS, retries=False)
        self.headers = {"Authorization": f"Bearer {token}", "User-Agent": "bench"}
        self.threads = ThreadPoolExecutor(THREADS)

    def send(
        self, method: str, path: str, body: Obj | None = None, kind: str = "application/json"
    ) -> Obj:
        headers = self.headers | {"Content-Type": kind}
        content = json.dumps(body).encode() if body is not None else None
        answer = self.http.request(method, self.server + path, body=content, headers=headers)
        if answer.status >= 400 and answer.status not in (404, 409):
            raise RuntimeError(f"{method} {path}: {answer.status} {answer.data[:300]!r}")
        return json.loads(answer.data)

    def patch(self, path: str, body: Obj) -> None:
        self.send("PATCH", path, body, MERGE)

    def follow(self, path: str) -> Iterator[Obj]:
        """The changes below this path from now on, as the API server reports them."""
        version = self.send("GET", f"{path}?limit=1")["metadata"]["resourceVersion"]
        url = f"{self.server}{path}?watch=1&timeoutSeconds=600&resourceVersion={version}"
        answer = self.http.request("GET", url, headers=self.headers, preload_content=False)

        def events() -> Iterator[Obj]:
            with answer:
                yield from map(json.loads, answer)
            raise RuntimeError(f"what was waited for has not happened in {path} in ten minutes")

        return events()

    def each(self, call: Callable[[Any], Any], things: Iterable[Any]) -> list[Any]:
        """The answers of call(thing) for all things, THREADS at a time."""
        return list(self.threads.map(call, things))

    def pages(self, path: str) -> Iterator[Obj]:
        token = ""
        while True:
            page = self.send(
                "GET", f"{path}{'&' if '?' in path else '?'}limit={PAGE}&continue={token}"
            )
            yield page
            token = page["metadata"].get("continue", "")
            if not token:
                return

    def items(self, path: str) -> list[Obj]:
        return [item for page in self.pages(path) for item in page["items"]]

    def namespace(self, name: str) -> None:
        """A new namespace, with the service account that kube-controller-manager would create."""
        self.send("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        self.send(
            "POST", f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}}
        )

    def create_milvuses(self, namespace: str, count: int, **spec: Any) -> list[Obj]:
        bodies = [milvus(f"mv{number:05}", **spec) for number in range(count)]
        return self.each(lambda body: self.send("POST", milvuses_path(namespace), body), bodies)

    def pod_bodies(self, milvuses: list[Obj]) -> list[Obj]:
        return [
            mo.new_pod(one, spec, ordinal)
            for one in milvuses
            for spec in [mo.spec_of(one)]
            for ordinal in range(spec.replicas)
        ]

    def create_pods(self, pods: list[Obj]) -> None:
        self.each(
            lambda body: self.send("POST", pods_path(body["metadata"]["namespace"]), body), pods
        )

    def delete_pods(self, namespace: str, names: Iterable[str]) -> None:
        self.each(lambda name: self.send("DELETE", f"{pods_path(namespace)}/{name}"), names)

    def annotate_pods(self, namespace: str, names: Iterable[str]) -> None:
        """Change these pods in a way that gives the operator nothing to do."""
        body = {"metadata": {"annotations": {"bench": str(time.monotonic_ns())}}}
        self.each(lambda name: self.patch(f"{pods_path(namespace)}/{name}", body), names)

    def make_ready(self, namespace: str) -> None:
        """Act as the kubelets: write the status of each pod as kwok does."""
        now = mo.timestamp()
        kinds = ("PodScheduled", "Initialized", "Ready", "ContainersReady")
        container = {"name": mo.CONTAINER, "image": IMAGE, "imageID": "", "restartCount": 0}
        container |= {"ready": True, "started": True, "state": {"running": {"startedAt": now}}}
        status = {
            "phase": "Running",
            "startTime": now,
            "podIP": "10.0.0.1",
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": now} for kind in kinds
            ],
            "containerStatuses": [container],
        }

        def write(pod: Obj) -> None:
            path = f"{pods_path(namespace)}/{mo.name_of(pod)}/status"
            self.patch(path, {"status": status})

        self.each(write, self.items(pods_path(namespace)))

    def clear(self, namespace: str) -> None:
        """Delete all pods and Milvus resources of a namespace, without a grace period."""
        for path in (milvuses_path(namespace), pods_path(namespace)):
            self.send("DELETE", path, {"gracePeriodSeconds": 0, "propagationPolicy": "Background"})


def pods_path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def milvuses_path(namespace: str) -> str:
    return f"/apis/{mo.API_VERSION}/namespaces/{namespace}/{mo.PLURAL}"
