"""The benchmark's own client. `python -m benchmarks.bare NAMESPACE` sends all that the operator
writes for the new Milvus resources there, and nothing else; it is made before the first request."""

import json
import os
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import urllib3
import yaml

import milvus_operator as mo

Obj = dict[str, Any]
Write = tuple[str, str, Obj]  # method, path and body
CONNECTIONS = 16
# Paths; {} is the namespace.
CORE = "api/v1/namespaces/{}"
PODS = f"{CORE}/pods"
MILVUSES = "apis/zilliz.com/v1/namespaces/{}/milvuses"
EVENTS = "apis/events.k8s.io/v1/namespaces/{}/events"


class Space:
    """Requests about a namespace, as an administrator, over CONNECTIONS persistent connections."""

    def __init__(self, kubeconfig: Path, name: str) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        self.kubeconfig = kubeconfig
        self.name = name
        self.server = cluster["server"]
        self.headers = {"Authorization": f"Bearer {config['users'][0]['user']['token']}"}
        authority = cluster["certificate-authority"]
        self.http = urllib3.PoolManager(maxsize=CONNECTIONS, retries=False, ca_certs=authority)
        self.threads = ThreadPoolExecutor(CONNECTIONS)

    def request(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        url = f"{self.server}/{path.replace('{}', self.name)}"
        headers = self.headers
        if method == "PATCH":
            headers = headers | {"Content-Type": "application/merge-patch+json"}
        options |= {"json": body, "headers": headers}
        response = self.http.request(method, url, timeout=120, **options)
        if response.status >= 400:
            raise RuntimeError(f"{method} {path}: {response.status} {response.data[:300]!r}")
        return response

    def get(self, path: str) -> Obj:
        return dict(self.request("GET", path).json())

    def send_all(self, writes: Iterable[Write]) -> None:
        list(self.threads.map(lambda write: self.request(*write), writes))

    def watch(self, path: str, version: str = "") -> Iterator[tuple[str, Obj]]:
        """Each event of a list after a version of it; without one, first of all that is there."""
        path = f"{path}?watch=1&resourceVersion={version}"
        with self.request("GET", path, preload_content=False) as response:
            for line in response:
                event = json.loads(line)
                yield event["type"], event["object"]


def new_pods(milvus: Obj) -> list[Obj]:
    spec = mo.spec_of(milvus)
    return [mo.new_pod(milvus, spec, ordinal) for ordinal in range(spec.replicas)]


def status_of(milvus: Obj) -> Obj:
    """The status that the operator writes when it has made everything."""
    pods = {ordinal: pod | {"status": {}} for ordinal, pod in enumerate(new_pods(milvus))}
    seen = mo.Observed(milvus, mo.spec_of(milvus), pods, claims=pods, has_service=True)
    return mo.status_of(seen, "", {})


def writes_of(milvus: Obj) -> Iterator[Write]:
    """All that the operator writes for a new Milvus, in its order."""
    for ordinal, pod in enumerate(new_pods(milvus)):
        yield "POST", PODS, pod
        claim = mo.new_claim(milvus, mo.spec_of(milvus), ordinal)
        yield "POST", f"{CORE}/persistentvolumeclaims", claim
    yield "POST", f"{CORE}/services", mo.new_service(milvus)
    yield "POST", EVENTS, mo.new_event(milvus, "Created", "created all", is_warning=False)
    yield "PATCH", f"{MILVUSES}/{mo.name_of(milvus)}/status", {"status": status_of(milvus)}


if __name__ == "__main__":
    space = Space(Path(os.environ["KUBECONFIG"]), sys.argv[1])
    writes = [write for milvus in space.get(MILVUSES)["items"] for write in writes_of(milvus)]
    space.send_all(writes)
