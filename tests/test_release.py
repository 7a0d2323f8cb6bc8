"""A release: the bundle for OLM, dist/, upgrading and uninstalling."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import milvus_operator as mo
from benchmarks import fingerprint
from tests.lib.kit import TOP, Kube, Obj, settle, until_gone

SYSTEM = "milvus-polling-operator-system"
NAME = f"milvus-polling-operator-{mo.__version__}"
IMAGE = "example/milvus-polling-operator:test"


def make(*arguments: str, folder: Path = TOP, **options: str) -> subprocess.CompletedProcess[str]:
    """Run make without a terminal, and with this Python instead of the virtual environment."""
    bin_folder = os.path.dirname(sys.executable)
    command = ["make", "-o", ".venv/run", "-o", ".venv/ready", f"BIN={bin_folder}", *arguments]
    command += [f"{key}={value}" for key, value in options.items()]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )


def documents(text: str) -> dict[str, Obj]:
    """The objects of a manifest by their kind."""
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """What a release is made from, with results that have the right fingerprint."""
    for name in ("bundle", "benchmarks", "samples", "docs"):
        shutil.copytree(TOP / name, tmp_path / name)
    for name in ("Makefile", "crd.yaml", "deploy.yaml", "milvus_operator.py"):
        shutil.copy(TOP / name, tmp_path)
    for name in fingerprint.RESULTS:
        (tmp_path / name).write_text(f"# Results\n\n{fingerprint.line()}\n")
    return tmp_path


# The bundle ----------------------------------------------------------------------------


@pytest.fixture
def service_version(tmp_path: Path) -> Obj:
    """The ClusterServiceVersion of the bundle."""
    command = [sys.executable, "-m", "bundle.make", "bundle", str(tmp_path), IMAGE]
    subprocess.run(command, cwd=TOP, check=True)
    file = tmp_path / "bundle/manifests/milvus-polling-operator.clusterserviceversion.yaml"
    csv = yaml.safe_load(file.read_text())
    assert isinstance(csv, dict)
    crd = (tmp_path / "bundle/manifests/milvuses.zilliz.com.crd.yaml").read_text()
    assert crd == (TOP / "crd.yaml").read_text()
    annotations = yaml.safe_load((tmp_path / "bundle/metadata/annotations.yaml").read_text())
    for key, value in annotations["annotations"].items():
        assert f"LABEL {key}={value}\n" in (tmp_path / "bundle.Dockerfile").read_text()
    return csv


def test_olm_gets_the_pod_and_the_permissions_of_deploy_yaml_and_no_others(
    service_version: Obj,
) -> None:
    deploy = documents((TOP / "deploy.yaml").read_text())
    install = service_version["spec"]["install"]["spec"]
    rules = deploy["ClusterRole"]["rules"]
    assert install["permissions"] == [
        {"serviceAccountName": "milvus-polling-operator", "rules": rules}
    ]
    assert "clusterPermissions" not in install, "they are limited to the managed namespaces"
    (deployment,) = install["deployments"]
    container, ours = (
        spec["template"]["spec"]["containers"][0]
        for spec in (deployment["spec"], deploy["Deployment"]["spec"])
    )
    (targets,) = container.pop("env")
    assert (targets["name"], targets["valueFrom"]["fieldRef"]["fieldPath"]) == (
        "MILVUS_OPERATOR_NAMESPACE",
        "metadata.annotations['olm.targetNamespaces']",
    )
    container["args"].insert(0, "--all-namespaces")
    assert container == ours | {"image": IMAGE}
    deployment["spec"]["template"]["spec"]["containers"] = [ours]
    assert deployment["spec"] == deploy["Deployment"]["spec"]


def test_the_example_in_the_bundle_is_accepted(kube: Kube, service_version: Obj) -> None:
    (example,) = json.loads(service_version["metadata"]["annotations"]["alm-examples"])
    kube.kubectl("create", "--validate=strict", "-f", "-", stdin=json.dumps(example))


# The files of a release ----------------------------------------------------------------


def test_a_release_is_reproducible_and_its_checksums_are_right(copy: Path) -> None:
    made = []
    for _ in range(2):
        done = make("release", folder=copy, IMAGE=IMAGE)
        assert done.returncode == 0, done.stderr
        made.append({path.name: path.read_bytes() for path in copy.glob("dist/*")})
        check = ["sha256sum", "-c", "SHA256SUMS"]
        said = subprocess.run(check, cwd=copy / "dist", capture_output=True, text=True).stdout
        files = [f"{NAME}-bundle.tar", f"{NAME}-namespaced.yaml", f"{NAME}.yaml"]
        assert said.splitlines() == [f"{file}: OK" for file in files]
        assert sorted(made[0]) == ["SHA256SUMS", *files]
    assert made[0] == made[1]
    whole, one = (
        documents(made[0][name].decode()) for name in (f"{NAME}.yaml", f"{NAME}-namespaced.yaml")
    )
    for manifest in (whole, one):
        pod = manifest["Deployment"]["spec"]["template"]["spec"]
        assert pod["containers"][0]["image"] == IMAGE
    assert whole["CustomResourceDefinition"] == yaml.safe_load((TOP / "crd.yaml").read_text())


@pytest.mark.parametrize("name", fingerprint.RESULTS)
def test_a_release_needs_results_of_this_very_operator(copy: Path, name: str) -> None:
    line = re.sub("`.*`", "`0123456789ab`", fingerprint.line())
    (copy / name).write_text(f"# Results\n\n{line}\n")
    done = make("release", folder=copy, IMAGE=IMAGE)
    assert done.returncode == 2
    assert f"{name} is not of this milvus_operator.py: run `make " in done.stderr
    assert not (copy / "dist").exists()


def test_the_manifest_of_a_release_installs_everything_with_its_image(
    kube: Kube, copy: Path
) -> None:
    make("release", folder=copy, IMAGE=IMAGE)
    manifest = (copy / f"dist/{NAME}.yaml").read_text()
    until_gone(kube, SYSTEM)
    kube.kubectl("apply", "-n", SYSTEM, "-f", "-", stdin=manifest)
    try:
        show = ("get", "deployment", "milvus-polling-operator", "-n", SYSTEM, "-o")
        assert kube.kubectl(*show, "jsonpath={.spec.template.spec.containers[0].image}") == IMAGE
    finally:
        _crd, *others = yaml.safe_load_all(manifest)
        kube.kubectl("delete", "-n", SYSTEM, "-f", "-", stdin=yaml.safe_dump_all(others))


def test_one_namespace_gets_the_same_with_a_role_and_nothing_else() -> None:
    whole, one = (
        documents(make("--silent", "manifest", NAMESPACE=namespace).stdout)
        for namespace in ("", "milvus")
    )
    assert one.keys() == {"ServiceAccount", "Role", "RoleBinding", "Deployment"}
    assert {document["metadata"]["namespace"] for document in one.values()} == {"milvus"}
    assert one["Role"]["rules"] == whole["ClusterRole"]["rules"]
    assert one["RoleBinding"]["roleRef"]["kind"] == "Role"
    assert one["RoleBinding"]["subjects"][0]["namespace"] == "milvus"
    pods = [manifest["Deployment"]["spec"]["template"]["spec"] for manifest in (whole, one)]
    assert pods[0]["containers"][0]["args"].pop(0) == "--all-namespaces"
    assert pods[0] == pods[1]


# Upgrading and uninstalling ------------------------------------------------------------


def test_an_upgrade_restarts_no_pod(kube: Kube, operator: mo.Operator) -> None:
    """A pod as an earlier version generated it stays, if its fingerprint is that of the spec."""
    milvus, pod = (TOP / "tests/upgrade/pod.yaml").read_text().split("---\n")
    kube.kubectl("create", "-f", "-", stdin=milvus)
    kube.kubectl("create", "-f", "-", stdin=pod.replace("UID", mo.uid_of(kube.get())))
    kube.ready("x-0")
    before = kube.uids()
    settle(operator)
    assert kube.uids() == before
    assert kube.condition("Ready")["status"] == "True"
    assert kube.status()["updatedReplicas"] == 1


def at_a_terminal(kube: Kube, target: str, answer: str) -> tuple[int, str]:
    """Run make with a terminal as its standard input; returns its exit code and its output."""
    master, terminal = pty.openpty()
    os.write(master, f"{answer}\n".encode())
    env = os.environ | {"KUBECONFIG": str(kube.plane.kubeconfig())}
    command = ["make", target, f"KUBECTL={kube.plane.kubectl}"]
    done = subprocess.run(command, cwd=TOP, env=env, stdin=terminal, capture_output=True, text=True)
    os.close(master)
    os.close(terminal)
    return done.returncode, done.stdout


@pytest.fixture
def deployed(kube: Kube) -> Iterator[None]:
    deploy = ("-n", SYSTEM, "-f", str(TOP / "deploy.yaml"))
    until_gone(kube, SYSTEM)
    kube.kubectl("apply", *deploy)
    yield
    kube.kubectl("delete", *deploy, "--ignore-not-found")


@pytest.mark.parametrize("target", ["uninstall", "undeploy"])
def test_removing_says_what_it_removes_and_asks_at_a_terminal(
    kube: Kube, deployed: None, target: str
) -> None:
    code, said = at_a_terminal(kube, target, "n")
    assert code == 2
    assert "every Milvus" in said
    assert said.endswith("Continue? [y/N] Nothing was removed.\n")
    there = (
        "crd/milvuses.zilliz.com",
        f"namespace/{SYSTEM}",
        "clusterrole/milvus-polling-operator",
    )
    kube.kubectl("get", *there)


def test_after_a_yes_undeploy_keeps_only_the_pods(
    kube: Kube, operator: mo.Operator, deployed: None
) -> None:
    kube.create()
    settle(operator)
    code, said = at_a_terminal(kube, "undeploy", "y")
    assert (code, f'namespace "{SYSTEM}" deleted' in said) == (0, True)
    assert kube.names() == ["x-0"]
