"""A release: the bundle for OLM, dist/, upgrading and uninstalling."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import milvus_operator as mo
from tests.lib.kit import TOP, Kube, Obj, eventually, settle


def make_bundle(folder: Path, *image: str) -> dict[str, bytes]:
    """The files that the script makes, by path."""
    subprocess.run([sys.executable, "-m", "bundle.make", folder, *image], cwd=TOP, check=True)
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def service_version() -> Obj:
    csv = yaml.safe_load(
        (TOP / "bundle/manifests/milvus-operator.clusterserviceversion.yaml").read_text()
    )
    assert isinstance(csv, dict)
    return csv


def test_the_bundle_is_up_to_date(tmp_path: Path) -> None:
    made = make_bundle(tmp_path)
    there = [
        TOP / "bundle.Dockerfile",
        *TOP.glob("bundle/manifests/*"),
        *TOP.glob("bundle/metadata/*"),
    ]
    assert {str(path.relative_to(TOP)): path.read_bytes() for path in there} == made, (
        "run `make bundle`"
    )


def test_olm_gets_the_pod_and_the_rights_of_deploy_yaml_and_no_others() -> None:
    documents = {doc["kind"]: doc for doc in yaml.safe_load_all((TOP / "deploy.yaml").read_text())}
    install = service_version()["spec"]["install"]["spec"]
    assert install["permissions"] == [
        {"serviceAccountName": "milvus-operator", "rules": documents["ClusterRole"]["rules"]}
    ]
    assert "clusterPermissions" not in install, (
        "its rights are limited to the namespaces that it serves"
    )
    (deployment,) = install["deployments"]
    container, ours = (
        spec["template"]["spec"]["containers"][0]
        for spec in (deployment["spec"], documents["Deployment"]["spec"])
    )
    (targets,) = container.pop("env")
    assert (targets["name"], targets["valueFrom"]["fieldRef"]["fieldPath"]) == (
        "MILVUS_OPERATOR_NAMESPACE",
        "metadata.annotations['olm.targetNamespaces']",
    )
    container["args"].insert(0, "--all-namespaces")
    assert container == ours
    assert deployment["spec"] == documents["Deployment"]["spec"]


def test_the_example_in_the_bundle_is_accepted(kube: Kube) -> None:
    (example,) = json.loads(service_version()["metadata"]["annotations"]["alm-examples"])
    kube.kubectl("create", "--validate=strict", "-f", "-", stdin=json.dumps(example))


def test_a_release_is_reproducible_and_its_checksums_are_right(tmp_path: Path) -> None:
    made = []
    for copy in (tmp_path / "once", tmp_path / "again"):
        shutil.copytree(TOP / "bundle", copy / "bundle")
        for name in ("Makefile", "crd.yaml", "deploy.yaml", "sample.yaml", "milvus_operator.py"):
            shutil.copy(TOP / name, copy)
        make = ["make", "-o", ".venv/ready", f"BIN={os.path.dirname(sys.executable)}", "release"]
        subprocess.run(make, cwd=copy, check=True, capture_output=True)
        made.append({path.name: path.read_bytes() for path in copy.glob("dist/*")})
        said = subprocess.run(
            ["sha256sum", "-c", "SHA256SUMS"], cwd=copy / "dist", capture_output=True, text=True
        )
        name = f"milvus-operator-{mo.__version__}"
        assert said.stdout.splitlines() == [f"{name}-bundle.tar: OK", f"{name}.yaml: OK"]
        assert sorted(made[0]) == ["SHA256SUMS", f"{name}-bundle.tar", f"{name}.yaml"]
    assert made[0] == made[1]


def test_the_manifest_of_a_release_installs_everything_with_its_image(
    kube: Kube, tmp_path: Path
) -> None:
    image = "example/milvus-operator:test"
    manifest = make_bundle(tmp_path, image)[f"milvus-operator-{mo.__version__}.yaml"].decode()
    crd, *documents = yaml.safe_load_all(manifest)
    assert crd == yaml.safe_load((TOP / "crd.yaml").read_text())
    kube.kubectl("apply", "-n", "milvus-operator", "-f", "-", stdin=manifest)
    try:
        show = ("get", "deployment", "milvus-operator", "-n", "milvus-operator", "-o")
        assert kube.kubectl(*show, "jsonpath={.spec.template.spec.containers[0].image}") == image
    finally:
        kube.kubectl(
            "delete", "-n", "milvus-operator", "-f", "-", stdin=yaml.safe_dump_all(documents)
        )


def test_an_upgrade_restarts_no_pod(kube: Kube, operator: mo.Operator) -> None:
    """In the order that the documents give: the CRD first, then the operator."""
    kube.kubectl("apply", "-f", str(TOP / "tests/upgrade/crd.yaml"))
    try:
        milvus, pod = (TOP / "tests/upgrade/pod.yaml").read_text().split("---\n")
        kube.kubectl("create", "-f", "-", stdin=milvus)
        kube.kubectl("create", "-f", "-", stdin=pod.replace("UID", mo.uid_of(kube.get())))
        kube.ready("x-0")
        before = kube.uids()
    finally:
        kube.kubectl("apply", "-f", str(TOP / "crd.yaml"))
    eventually(lambda: "disruptedPod" in kube.kubectl("explain", "mi.status", check=False))
    settle(operator)
    assert kube.uids() == before
    assert kube.condition("Ready")["status"] == "True"
    assert kube.status()["updatedReplicas"] == 1


def at_a_terminal(kube: Kube, target: str, answer: str) -> tuple[int, str]:
    """Run make with a terminal as its standard input; returns its exit code and its output."""
    master, terminal = pty.openpty()
    os.write(master, f"{answer}\n".encode())
    env = os.environ | {"KUBECONFIG": str(kube.plane.kubeconfig())}
    done = subprocess.run(["make", target, f"KUBECTL={kube.plane.kubectl}"], cwd=TOP, env=env, stdin=terminal,
                          capture_output=True, text=True)  # fmt: skip
    os.close(master)
    os.close(terminal)
    return done.returncode, done.stdout


@pytest.fixture
def deployed(kube: Kube) -> Iterator[None]:
    kube.kubectl("apply", "-n", "milvus-operator", "-f", str(TOP / "deploy.yaml"))
    yield
    kube.kubectl(
        "delete", "-n", "milvus-operator", "-f", str(TOP / "deploy.yaml"), "--ignore-not-found"
    )


@pytest.mark.parametrize("target", ["uninstall", "undeploy"])
def test_removing_says_what_it_removes_and_asks_at_a_terminal(
    kube: Kube, deployed: None, target: str
) -> None:
    code, said = at_a_terminal(kube, target, "n")
    assert code == 2
    assert "every Milvus" in said
    assert said.endswith("Continue? [y/N] Nothing was removed.\n")
    kube.kubectl(
        "get", "crd/milvuses.zilliz.com", "namespace/milvus-operator", "clusterrole/milvus-operator"
    )


def test_after_a_yes_undeploy_keeps_only_the_pods(
    kube: Kube, operator: mo.Operator, deployed: None
) -> None:
    kube.create()
    settle(operator)
    code, said = at_a_terminal(kube, "undeploy", "y")
    assert (code, 'namespace "milvus-operator" deleted' in said) == (0, True)
    assert kube.names() == ["x-0"]
