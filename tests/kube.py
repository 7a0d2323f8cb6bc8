"""A namespace of a real API server, and what users and the operator do in it."""

import json
import subprocess
import time
from collections.abc import Callable
from typing import Any

import yaml
from kubernetes.client import ApiClient

import milvus_operator as mo
from local.controlplane import ControlPlane

Obj = dict[str, Any]
CLAIMS = ("persistentvolumeclaims", "PersistentVolumeClaim")


class Kube:
    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane = plane
        self.ns = namespace
        self.api = mo.connect(str(plane.kubeconfig()), None, 4).client  # an administrator's
        self.milvuses = mo.milvuses(self.api)
        self.config = str(plane.folder / f"{namespace}.kubeconfig")  # of the operators
        self.configure()
        self.operator = self.new_operator(namespace)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        files = (
            f"--kubeconfig={self.plane.kubeconfig()}",
            f"--cache-dir={self.plane.folder}/cache",
        )
        command = [str(self.plane.kubectl), *files, f"--namespace={self.ns}", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def make(self, version: str, kind: str, name: str, **fields: Any) -> None:
        obj = {"apiVersion": version, "kind": kind, "metadata": {"name": name}} | fields
        self.kubectl("create", "--filename=-", stdin=json.dumps(obj))

    def make_pod(self, name: str, **metadata: Any) -> None:
        spec = {"containers": [{"name": "web", "image": "web:1"}]}
        self.make("v1", "Pod", name, metadata={"name": name} | metadata, spec=spec)

    def make_class(self, volumes: int = 1, **fields: Any) -> Obj:
        """Create a class, and volumes for its claims. Returns a spec.storage of that class."""
        fields["provisioner"] = "kubernetes.io/no-provisioner"
        self.make("storage.k8s.io/v1", "StorageClass", self.ns, **fields)
        spec: Obj = {"storageClassName": self.ns, "capacity": {"storage": "1Gi"}}
        spec |= {"accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/nowhere"}}
        for number in range(volumes):
            self.make("v1", "PersistentVolume", f"{self.ns}-{number}", spec=spec)
        return {"size": "1Gi", "storageClassName": self.ns}

    def patch(self, what: str, change: Obj, *options: str) -> None:
        self.kubectl("patch", what, "--type=merge", f"--patch={json.dumps(change)}", *options)

    def create(self, name: str = "x", **spec: Any) -> None:
        spec = {"image": "milvus:1", "updateStrategy": {"minReadySeconds": 0}} | spec
        obj = {"apiVersion": mo.API_VERSION, "kind": mo.KIND, "metadata": {"name": name}}
        self.milvuses.create(body=obj | {"spec": spec}, namespace=self.ns)

    def change(self, name: str = "x", **spec: Any) -> None:
        options = {"name": name, "content_type": "application/merge-patch+json"}
        self.milvuses.patch(body={"spec": spec}, namespace=self.ns, **options)

    def get(self, name: str = "x") -> Obj:
        return self.milvuses.get(name=name, namespace=self.ns).to_dict()

    def condition(self, kind: str = "Reconciled", name: str = "x") -> str:
        """As `False QuotaExceeded: exceeded quota …`."""
        found = mo.condition_of(self.get(name), kind)
        return f"{found['status']} {found['reason']}: {found['message']}" if found else ""

    def all_of(self, plural: str = "pods", kind: str = "Pod") -> dict[str, Obj]:
        """Pods, or other objects of the core group, by name."""
        resource = mo.by_gvr(self.api, "", "v1", kind, plural)
        return {mo.name_of(obj): obj for obj in resource.get(namespace=self.ns).to_dict()["items"]}

    def uids(self, *kind: str) -> dict[str, str]:
        return {name: mo.uid_of(obj) for name, obj in self.all_of(*kind).items()}

    def images(self) -> dict[str, str]:
        """Those of the pods that are Ready."""
        ready = [pod for pod in self.all_of().values() if mo.is_ready(pod)]
        return {mo.name_of(pod): pod["spec"]["containers"][0]["image"] for pod in ready}

    def configure(self, token: str = "", server: str = "") -> None:
        """Write the kubeconfig for operators: the administrator's, with another token or server."""
        content = yaml.safe_load(self.plane.kubeconfig().read_text())
        content["users"][0]["user"] |= {"token": token} if token else {}
        content["clusters"][0]["cluster"] |= {"server": server} if server else {}
        with open(self.config, "w") as file:
            yaml.safe_dump(content, file)

    def new_operator(self, namespace: str | None, dry_run: bool = False) -> mo.Operator:
        def connect() -> ApiClient:
            return mo.connect(self.config, None, 8).client

        return mo.Operator(mo.Api(connect(), dry_run=dry_run), connect, [namespace], 5, 8)

    def show(self) -> str:
        """What there is, for the message of a test that waits in vain."""
        return self.kubectl("get", "mi,pods,pvc", "--output=wide")

    def live(self, until: Callable[[], Any], seconds: float = 30) -> None:
        """Make passes until that is true."""
        end = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < end, self.show()
            self.operator.run_pass()
            time.sleep(0.05)

    def rest(self, *names: str) -> None:
        """Make passes until these pods, and no others, are Ready, and nothing is left to write."""
        self.live(lambda: [*self.images()] == [*self.all_of()] == [*names])
        self.live(lambda: self.operator.run_pass() + self.operator.run_pass() == 0)
        assert self.operator.outages == {}

    def told(self, start: str, name: str = "x", kind: str = "Reconciled") -> str:
        """Make passes until this condition starts like that. Returns it."""
        self.live(lambda: self.condition(kind, name).startswith(start))
        return self.condition(kind, name)
