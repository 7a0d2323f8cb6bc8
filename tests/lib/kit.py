"""Helpers of the tests: clients of a control plane, a namespace, operators, commands."""

import contextlib
import json
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import urllib3
import yaml

import milvus_operator as mo
from local.controlplane import ControlPlane
from tests.lib.wire import Wire, connected
from tests.lib.world import milvus, pod

TOP = Path(__file__).resolve().parent.parent.parent
Obj = dict[str, Any]
MERGE = "application/merge-patch+json"


def eventually(
    check: Callable[[], Any], seconds: float = 20, ignoring: tuple[type[Exception], ...] = ()
) -> Any:
    """Wait until check() is true, and return what it returned; a failure shows its last result."""
    end = time.monotonic() + seconds
    while True:
        try:
            if last := check():
                return last
        except ignoring as error:
            last = error
        assert time.monotonic() < end, f"not within {seconds} s: {last!r}"
        time.sleep(0.05)


def output_of(*command: str, code: int | None = 0, **options: Any) -> str:
    """What a command prints, in the top folder; it must end with this code, unless that is None."""
    options.setdefault("cwd", TOP)
    done = subprocess.run(command, capture_output=True, text=True, **options)
    said = done.stdout + done.stderr
    assert code in (None, done.returncode), f"{command}: {done.returncode}: {said}"
    return said


def for_one_namespace(plane: ControlPlane, namespace: str = "milvus") -> str:
    """The manifest that kustomize makes of samples/one-namespace, in that namespace."""
    options = ("--load-restrictor=LoadRestrictionsNone", "samples/one-namespace")
    text = output_of(str(plane.kubectl), "kustomize", *options)
    return text.replace("namespace: milvus\n", f"namespace: {namespace}\n")


class Kube:
    """The test's own client, as an administrator."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane = plane
        self.ns = namespace
        file = str(plane.kubeconfig())
        self.api, *_ = mo.connect(file, None, 32)
        self.milvuses = mo.milvuses(self.api)
        self.pods = mo.pods(self.api)

    def request(self, method: str, path: str, headers: Obj, body: str) -> urllib3.BaseHTTPResponse:
        """A bare request over the connections of the client."""
        settings = self.api.configuration
        token = settings.auth_settings()["BearerToken"]["value"]
        headers = headers | {"Authorization": token}
        pool = self.api.rest_client.pool_manager
        url = settings.host + path
        return pool.request(method, url, headers=headers, body=body)

    def kubectl(self, *arguments: str, stdin: str | None = None, code: int | None = 0) -> str:
        command = [
            str(self.plane.kubectl),
            f"--kubeconfig={self.plane.kubeconfig()}",
            f"--cache-dir={self.plane.folder}/kubectl",
            f"--namespace={self.ns}",
        ]
        return output_of(*command, *arguments, input=stdin, code=code)

    def create(self, name: str = "x", **spec: Any) -> Obj:
        return self.milvuses.create(body=milvus(name, **spec), namespace=self.ns).to_dict()

    def change(self, name: str = "x", **spec: Any) -> None:
        self.milvuses.patch(
            name=name,
            namespace=self.ns,
            body={"spec": spec},
            content_type=MERGE,
        )

    def get(self, name: str = "x") -> Obj:
        return self.milvuses.get(name=name, namespace=self.ns).to_dict()

    def condition(self, kind: str, name: str = "x") -> Obj:
        return mo.condition_of(self.get(name), kind)

    def all_pods(self) -> dict[str, Obj]:
        items = self.pods.get(namespace=self.ns).to_dict()["items"]
        return {mo.name_of(pod): pod for pod in items}

    def names(self) -> list[str]:
        return sorted(self.all_pods())

    def uids(self) -> dict[str, str]:
        return {name: mo.uid_of(pod) for name, pod in self.all_pods().items()}

    def create_pod(self, name: str, **metadata: Any) -> None:
        self.pods.create(body=pod(name, **metadata), namespace=self.ns)

    def patch_pod(self, name: str, **metadata: Any) -> None:
        self.pods.patch(
            name=name,
            namespace=self.ns,
            body={"metadata": metadata},
            content_type=MERGE,
        )

    def create_from(self, version: str, kind: str, name: str, **fields: Any) -> None:
        fields |= {"apiVersion": version, "kind": kind, "metadata": {"name": name}}
        self.kubectl("create", "-f", "-", stdin=json.dumps(fields))

    def create_volume(self, name: str, size: str = "1Gi", **spec: Any) -> None:
        spec |= {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": size},
            "hostPath": {"path": "/nowhere"},
        }
        self.create_from("v1", "PersistentVolume", name, spec=spec)

    def create_storage_class(self, name: str, **fields: Any) -> None:
        """A class of volumes that nothing provisions."""
        fields["provisioner"] = "kubernetes.io/no-provisioner"
        self.create_from("storage.k8s.io/v1", "StorageClass", name, **fields)

    def ready(self, *names: str) -> None:
        """Wait until these pods, and no others, exist and are Ready."""

        def are_ready() -> bool:
            pods = self.all_pods()
            is_ready = all(map(mo.is_ready, pods.values()))
            return is_ready and pods.keys() == {*names}

        eventually(are_ready)


def scripts(kube: Kube, folder: Path) -> Callable[[str], str]:
    """Runs a user's script in a folder, with a kubeconfig whose namespace is the test's; returns what
    it prints. It ends at the first command that fails."""
    config = folder / "config"
    config.write_text(kube.plane.kubeconfig().read_text())
    (folder / "kubectl").symlink_to(kube.plane.kubectl)
    env = os.environ | {"KUBECONFIG": str(config), "PATH": f"{folder}:{os.environ['PATH']}"}

    def run(script: str) -> str:
        return output_of("sh", "-e", "-c", script, cwd=folder, env=env, timeout=180)

    run(f"kubectl config set-context --current --namespace={kube.ns}")
    return run


def kubeconfig(path: Path, plane: ControlPlane, token: str = "", **cluster: str) -> str:
    """The administrator's kubeconfig with another token, or with these fields of the cluster."""
    content = yaml.safe_load(plane.kubeconfig().read_text())
    content["clusters"][0]["cluster"] |= cluster
    if token:
        content["users"][0]["user"]["token"] = token
    path.write_text(yaml.safe_dump(content))
    return str(path)


@contextlib.contextmanager
def new_namespace(plane: ControlPlane) -> Iterator[Kube]:
    api = Kube(plane, "default").api
    admin = mo.by_gvr(api, "", "v1", "Namespace", "namespaces")
    admin.namespaced = False
    body = {"metadata": {"generateName": "test-"}}
    namespace = admin.create(body=body).metadata.name
    accounts = mo.by_gvr(api, "", "v1", "ServiceAccount", "serviceaccounts")
    eventually(lambda: accounts.get(namespace=namespace).items)
    yield Kube(plane, namespace)
    admin.delete(name=namespace)


def new_operator(kube: Kube, **changes: str) -> mo.Operator:
    """An operator with the administrator's kubeconfig, or with these changes in it."""
    file = kubeconfig(kube.plane.folder / f"{kube.ns}.kubeconfig", kube.plane, **changes)
    return connected(file, [kube.ns], workers=16)


def make_pass(operator: mo.Operator) -> bool:
    """Make one pass; returns whether no list failed and no outage stands."""
    operator.run_pass()
    return not operator.outages


def settle(operator: mo.Operator) -> None:
    """Make passes until two in a row find nothing to write: one may only have met a conflict."""
    idle = 0
    for _ in range(40):
        idle = 0 if operator.run_pass() else idle + 1
        if idle == 2:
            return
        time.sleep(0.1)  # for the kubelets
    raise AssertionError("there is always more to write")


def rest(operator: mo.Operator, kube: Kube, *names: str) -> None:
    """Make passes until these pods, and no others, are Ready, and nothing is left to write."""
    settle(operator)
    kube.ready(*names)
    settle(operator)


def new_wire(plane: ControlPlane, tls: ssl.SSLContext | None = None) -> Wire:
    server = Kube(plane, "default").api.configuration.host
    return Wire(server, str(plane.folder / "pki" / "apiserver.crt"), tls)


class Command:
    """`python milvus_operator.py` as a process."""

    def __init__(self, *arguments: str, env: Obj | None = None, stderr: Any = PIPE) -> None:
        clean = {"HOME": "/nonexistent", "PATH": os.environ["PATH"]}
        clean |= env or {}
        self.process: Any = subprocess.Popen(
            [sys.executable, f"{TOP}/milvus_operator.py", *arguments],
            stdout=PIPE,
            stderr=stderr,
            text=True,
            env=clean,
        )
        self.log = ""

    def end(self) -> int:
        out, err = self.process.communicate(timeout=30)
        self.log += out + err
        return self.process.returncode

    def says(self, text: str) -> None:
        """Read the log up to the line that contains the text."""
        while text not in (line := self.process.stderr.readline()):
            assert line, f"it never said {text!r}: {self.log}"
            self.log += line
        self.log += line

    def stop(self) -> int:
        self.process.terminate()
        return self.end()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


Start = Callable[..., Command]  # the fixtures that start a command


def http_get(port: int, path: str) -> tuple[int, str]:
    url = f"http://127.0.0.1:{port}{path}"
    response = urllib3.request("GET", url, timeout=10, retries=False)
    return response.status, response.data.decode()
