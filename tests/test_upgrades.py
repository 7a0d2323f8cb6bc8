"""A version of the operator starts on what an earlier one has left.

`tests/upgrades/` has, for some versions, what each left on a real control plane: its CRD, its role,
and the objects of two Milvus resources. To keep those of the version in a folder:

    .venv/bin/python -m tests.test_upgrades FOLDER >tests/upgrades/VERSION.yaml
"""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import milvus_operator as mo
from local.controlplane import ControlPlane
from tests.lib.kit import (
    TOP,
    Kube,
    Obj,
    eventually,
    kubeconfig,
    new_operator,
    settle,
)
from tests.lib.objects import by_kind

pytestmark = pytest.mark.cluster
KEPT = TOP / "tests/upgrades"
VERSIONS = sorted(path.stem for path in KEPT.glob("*.*.*.yaml"))
EARLIER = "e3470c4"  # its pods lack our label, and it hashes the text of a spec, not its meaning
NAMES = ("kept-0", "plain-0", "plain-1")
MILVUSES = """
apiVersion: zilliz.com/v1
kind: Milvus
metadata: {name: plain}
spec: {image: "milvusdb/milvus:v2.6.25", replicas: 2}
---
apiVersion: zilliz.com/v1
kind: Milvus
metadata: {name: kept}
spec:
  image: milvusdb/milvus:v2.6.25
  storage: {size: 1Gi, storageClassName: kept}
  milvusSpec: "rocksmq: {retentionTimeInMinutes: 1440}"
  pod: {metadata: {labels: {team: search}}, spec: {containers: [{name: milvus, env: [{name: A, value: b}]}]}}
"""


@pytest.fixture
def kube() -> Iterator[Kube]:
    """A control plane of its own, because a CRD is for all of it, with a volume."""
    with ControlPlane() as plane:
        yield with_volume(Kube(plane, "default"))


def with_volume(kube: Kube) -> Kube:
    kube.create_storage_class("kept", allowVolumeExpansion=True)
    kube.create_volume("kept", storageClassName="kept")
    return kube


def install(kube: Kube, crd: Obj, role: Obj) -> None:
    """As `make install deploy`, but without the Deployment."""
    for obj in (crd, role):
        kube.kubectl("apply", "--server-side", "--force-conflicts", "-f-", stdin=yaml.dump(obj))


def bring_back(kube: Kube, file: Path) -> None:
    """Create what was kept. The API server gives each Milvus a new UID, which its pods then name."""
    text = file.read_text()
    first = [*yaml.safe_load_all(text)]
    crd, role, *_ = first
    install(kube, crd, role)
    binding = ("clusterrolebinding", mo.MANAGER, f"--clusterrole={mo.MANAGER}")
    kube.kubectl("create", "serviceaccount", mo.MANAGER)
    kube.kubectl("create", *binding, f"--serviceaccount=default:{mo.MANAGER}")
    for milvus in [obj for obj in first if obj["kind"] == "Milvus"]:
        kube.kubectl("create", "-f-", stdin=yaml.dump(milvus))
        patch = yaml.dump({"status": milvus["status"]})
        name = mo.name_of(milvus)
        kube.kubectl("patch", "milvus", name, "--subresource=status", "--type=merge", "-p", patch)
        text = text.replace(mo.uid_of(milvus), mo.uid_of(kube.get(name)))
    others = [obj for obj in yaml.safe_load_all(text) if obj["kind"] != "Milvus"][2:]
    kube.kubectl("create", "-f-", stdin=yaml.dump_all(others))
    kube.ready(*NAMES)


def operator_of(kube: Kube) -> mo.Operator:
    """The operator, with the rights of its service account."""
    token = kube.kubectl("create", "token", mo.MANAGER).strip()
    return new_operator(kube, token=token)


def install_this(kube: Kube) -> None:
    new = by_kind((TOP / "crd.yaml").read_text()) | by_kind((TOP / "deploy.yaml").read_text())
    install(kube, new["CustomResourceDefinition"], new["ClusterRole"])


@pytest.mark.parametrize("version", VERSIONS)
def test_on_what_a_version_has_left_nothing_but_a_status_is_written(
    kube: Kube, version: str, caplog: pytest.LogCaptureFixture
) -> None:
    bring_back(kube, KEPT / f"{version}.yaml")
    settle(operator_of(kube))
    install_this(kube)
    settle(operator_of(kube))
    kube.ready(*NAMES)
    lines = [record.getMessage() for record in caplog.records]
    assert all(re.search(": (nothing to do|updated status: [0-9]+)$", line) for line in lines), (
        lines
    )


def test_what_this_version_leaves_is_kept() -> None:
    """Otherwise, the next one would not be tested on it: see the first lines of this file."""
    assert mo.__version__ in VERSIONS


def test_pods_without_our_label_are_found_and_replaced_once_one_of_a_milvus_at_a_time(
    kube: Kube, caplog: pytest.LogCaptureFixture
) -> None:
    """The old role lacks the rights for Services: that is one line, and stops nothing."""
    bring_back(kube, KEPT / f"{EARLIER}.yaml")
    before = kube.uids()
    claims = ("get", "pvc", "-o", "jsonpath={.items[*].metadata.uid}")
    claim = kube.kubectl(*claims)
    operator = operator_of(kube)
    end = time.monotonic() + 60
    while not all(is_new(kube, before)) and time.monotonic() < end:
        operator.run_pass()
        plain = [pod for name, pod in kube.all_pods().items() if name.startswith("plain")]
        assert sum(map(mo.is_ready, plain)) >= 1
    settle(operator)
    kube.ready(*NAMES)
    lines = [record.getMessage() for record in caplog.records]
    (lacking,) = [line for line in lines if "forbidden" in line]
    assert lacking.startswith("cannot list services in namespace default: ")
    assert "(see the role in deploy.yaml)" in lacking
    for name in NAMES:
        said = [line for line in lines if line.startswith("milvus ") and name in line]
        assert sum("created pod" in line for line in said) == 1, said
        assert sum("adopted pod" in line for line in said) == 1, said
    assert kube.kubectl(*claims) == claim
    for pod in kube.all_pods().values():
        assert pod["metadata"]["labels"]["zilliz.com/milvus"] in ("plain", "kept")

    after = kube.uids()
    install_this(kube)
    settle(operator_of(kube))
    assert kube.uids() == after
    assert "service/kept" in kube.kubectl("get", "services", "-o", "name")


def is_new(kube: Kube, before: dict[str, str]) -> list[bool]:
    now = kube.uids()
    return [now.get(name) not in (None, before[name]) for name in NAMES]


@pytest.mark.slow
def test_the_way_back_replaces_each_pod_once_and_then_nothing(kube: Kube, tmp_path: Path) -> None:
    """The earlier version, on what this one has left. CRD and role stay, because an older CRD would
    remove fields."""
    shown = subprocess.run(
        ["git", "show", f"{EARLIER}:milvus_operator.py"], cwd=TOP, capture_output=True
    )
    if shown.returncode:
        pytest.skip(f"this clone has no commit {EARLIER}")
    old = tmp_path / "milvus_operator.py"
    old.write_bytes(shown.stdout)
    bring_back(kube, KEPT / f"{mo.__version__}.yaml")
    before = kube.uids()
    log = tmp_path / "log"
    file = kubeconfig(tmp_path / "config", kube.plane)
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, str(old), "--kubeconfig", file, "--interval=1"], stderr=stderr
        )
    try:
        eventually(lambda: all(is_new(kube, before)))
        kube.ready(*NAMES)
        after = kube.uids()
        time.sleep(10)
        assert kube.uids() == after, log.read_text()
    finally:
        process.kill()
        process.wait()


# --- To keep what a version leaves ---
def leave(folder: Path, kube: Kube) -> list[Obj]:
    """What the version in a folder leaves on a control plane."""
    crd = by_kind((folder / "crd.yaml").read_text())["CustomResourceDefinition"]
    role = by_kind((folder / "deploy.yaml").read_text())["ClusterRole"]
    install(kube, crd, role)
    kube.kubectl("create", "-f-", stdin=MILVUSES)
    file = kubeconfig(kube.plane.folder / "config", kube.plane)
    process = subprocess.Popen(
        [sys.executable, "milvus_operator.py", "--kubeconfig", file], cwd=folder
    )
    kube.kubectl("wait", "--for=condition=Ready", "milvus/plain", "milvus/kept", "--timeout=1m")
    time.sleep(10)  # until nothing is left to do
    process.terminate()
    process.wait()
    listed = kube.kubectl("get", "milvuses,pods,persistentvolumeclaims,services", "-o", "yaml")
    objects: list[Obj] = yaml.safe_load(listed)["items"]
    for obj in objects:
        for name in ("managedFields", "resourceVersion"):
            obj["metadata"].pop(name, None)
        if obj["kind"] == "PersistentVolumeClaim":  # it is bound anew
            del obj["metadata"]["annotations"], obj["spec"]["volumeName"]
    return [crd, role, *(obj for obj in objects if mo.name_of(obj) != "kubernetes")]


if __name__ == "__main__":
    with ControlPlane() as plane:
        print(yaml.safe_dump_all(leave(Path(sys.argv[1]), with_volume(Kube(plane, "default")))))
