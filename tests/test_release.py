"""A release: dist/, the wheel, the manifests, the image."""

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
import yaml

import milvus_operator as mo
from local.controlplane import ControlPlane
from tests.lib.kit import TOP, Obj, for_one_namespace, output_of
from tests.lib.objects import by_kind

IMAGE = "example.org:5000/milvus-polling-operator:test"


def make(*arguments: str, **options: Any) -> str:
    """Run make with this Python instead of the virtual environment."""
    this = f"BIN={os.path.dirname(sys.executable)}"
    return output_of("make", "-o", ".venv/run", this, *arguments, **options)


def manifest(plane: ControlPlane, *options: str) -> dict[str, Obj]:
    """What `make deploy` applies, by kind."""
    kubectl = f"KUBECTL={plane.kubectl}"
    return by_kind(make("--silent", "manifest", kubectl, f"IMAGE={IMAGE}", *options))


def deploy_yaml() -> dict[str, Obj]:
    """deploy.yaml with the image, by kind."""
    text = (TOP / "deploy.yaml").read_text()
    return by_kind(re.sub("image: .*", f"image: {IMAGE}", text))


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def copied(folder: Path) -> Path:
    """A copy of what is committed, or is about to be."""
    for name in output_of("git", "ls-files", cwd=TOP).split():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(TOP / name, folder / name)
    return folder


def test_a_release_is_reproducible_and_installable_from_its_files(
    plane: ControlPlane, tmp_path: Path
) -> None:
    tree = copied(tmp_path)
    dist = tree / "dist"
    command = ("release", f"KUBECTL={plane.kubectl}", f"IMAGE={IMAGE}")
    make(*command, cwd=tree)
    sums = (dist / "SHA256SUMS").read_text()
    make(*command, cwd=tree)
    assert (dist / "SHA256SUMS").read_text() == sums
    wheel = f"milvus_polling_operator-{mo.__version__}-py3-none-any.whl"
    manifests = ["install-one-namespace.yaml", "install.yaml"]
    reports = ["benchmark.md", "soak.md", "tested.md"]
    said = output_of("sha256sum", "-c", "SHA256SUMS", cwd=dist)
    files = [*manifests, *reports, wheel]
    assert sorted(said.splitlines()) == sorted(f"{file}: OK" for file in files)
    one = by_kind((dist / "install-one-namespace.yaml").read_text())
    assert one == manifest(plane, "NAMESPACE=milvus")
    crd = {"CustomResourceDefinition": read(TOP / "crd.yaml")}
    assert by_kind((dist / "install.yaml").read_text()) == crd | deploy_yaml()
    new = str(tmp_path / "new")
    options = ("--no-index", "--no-deps", f"--target={new}", str(dist / wheel))
    output_of(sys.executable, "-m", "pip", "install", *options)
    env = {"PYTHONPATH": new}
    said = output_of(f"{new}/bin/{mo.MANAGER}", "--version", env=env)
    assert said == f"{mo.MANAGER} {mo.__version__}\n"
    (installed,) = distributions(path=[new])
    assert "kubernetes" in str(installed.requires)


def test_another_version_is_set_everywhere_by_one_command(tmp_path: Path) -> None:
    tree = copied(tmp_path)
    output_of("git", "init", "--quiet", cwd=tree)
    output_of("git", "add", "--all", cwd=tree)
    make("version", "V=12.34.56", cwd=tree)
    by_hand = {
        "CHANGELOG.md",
        "docs/reports",
        "local/modules",
        "requirements.lock",
    }
    excluded = [f":!{name}" for name in sorted(by_hand)]
    old = ("git", "grep", "-n", mo.__version__.replace(".", "[.]"), "--", *excluded)
    assert output_of(*old, cwd=tree, code=1) == ""
    said = output_of(sys.executable, "milvus_operator.py", "--version", cwd=tree)
    assert said == f"{mo.MANAGER} 12.34.56\n"
    for name in ("deploy.yaml", "kustomization.yaml", "samples/one-namespace/kustomization.yaml"):
        assert "12.34.56" in (tree / name).read_text()
    assert "Give the new version" in make("version", cwd=tree, code=2)


def test_make_and_kustomize_deploy_the_same_and_in_one_namespace_with_a_role(
    plane: ControlPlane,
) -> None:
    """What the Role grants is tested with the permissions that the operator uses."""

    def with_image(text: str) -> dict[str, Obj]:
        return by_kind(text.replace(f"{mo.MANAGER}:{mo.__version__}", IMAGE))

    everything = with_image(output_of(str(plane.kubectl), "kustomize", "."))
    assert everything.pop("CustomResourceDefinition") == read(TOP / "crd.yaml")
    assert everything == manifest(plane) == deploy_yaml()
    one = with_image(for_one_namespace(plane))
    assert one == manifest(plane, "NAMESPACE=milvus")
    assert one.keys() == {"ServiceAccount", "Role", "RoleBinding", "Deployment"}
    for obj in one.values():
        assert obj["metadata"]["namespace"] == "milvus"
    assert one["Role"]["rules"] == everything["ClusterRole"]["rules"]
    template = everything["Deployment"]["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert container["args"].pop(0) == "--all-namespaces"
    assert one["Deployment"]["spec"]["template"] == template


def test_make_deploy_without_an_image_says_how_to_get_one() -> None:
    said = make("deploy", code=2)
    for way in ("kind load docker-image", "minikube image build", "docker push"):
        assert way in said


def test_an_empty_namespace_on_the_command_line_is_an_error(tmp_path: Path) -> None:
    """It is most often a variable that is not set, and all namespaces would be another thing."""
    touch = f"KUBECTL=touch {tmp_path}/called;:"
    for target in ("deploy", "undeploy"):
        said = make(target, "NAMESPACE=", touch, "YES=1", code=2)
        assert "NAMESPACE is empty" in said
    assert not (tmp_path / "called").exists()
    make("undeploy", touch, "YES=1", env=os.environ | {"NAMESPACE": ""})
    assert (tmp_path / "called").exists()


# --- The image ---
DOCKERFILE = (TOP / "Dockerfile").read_text()
BASE = re.search(r"^ARG BASE=python:([\d.]+)-slim@sha256:[0-9a-f]{64}$", DOCKERFILE, re.M)


def test_the_lock_is_for_the_python_of_the_base_image_which_is_pinned() -> None:
    assert BASE
    assert f"--python-version={BASE[1]} " in (TOP / "Makefile").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_each_architecture_of_the_image_has_all_of_its_packages(
    machine: str, tmp_path: Path
) -> None:
    assert BASE
    platforms = [f"--platform=manylinux_2_{minor}_{machine}" for minor in (17, 28)]
    options = ["--only-binary=:all:", "--require-hashes", "--no-deps", f"--dest={tmp_path}"]
    target = [f"--python-version={BASE[1]}", *platforms, "-r", "requirements.lock"]
    output_of(sys.executable, "-m", "pip", "--quiet", "download", *options, *target)
    wheels = [path.name for path in tmp_path.iterdir()]
    assert len(wheels) == (TOP / "requirements.lock").read_text().count("==")
    assert any(machine in wheel for wheel in wheels)


def find_engine() -> str:
    """A container engine that works here. Skips the test if there is none."""
    for name in ("docker", "podman", "buildah"):
        if shutil.which(name):
            done = subprocess.run([name, "info"], capture_output=True)
            if done.returncode == 0:
                return name
    pytest.skip("neither docker, podman nor buildah works here")


@pytest.mark.slow
def test_the_image_runs_as_any_user_with_a_root_that_is_read_only() -> None:
    """BASE names another base image, for a machine without a registry. buildah can't make the root
    read-only; but another user can't write there."""
    tag = "localhost/milvus-polling-operator:test"
    engine = find_engine()
    is_buildah = engine == "buildah"
    options = ["--isolation=chroot"] if is_buildah else []
    base = [f"--build-arg=BASE={os.environ['BASE']}"] if "BASE" in os.environ else []
    said = output_of(engine, "build", *options, *base, "-t", tag, ".", code=None)
    if "manifest unknown" in said or "no such host" in said or "connection refused" in said:
        pytest.skip(f"{engine} can't pull the base image here")
    container = ""
    try:
        run = [engine, "run", "--rm", "--read-only", "--user=12345:12345", tag]
        if is_buildah:
            container = output_of("buildah", "from", tag).strip()
            run = ["buildah", "run", *options, "--user=12345:12345", container, "--"]
            run += ["python3", "-m", "milvus_operator"]
        assert mo.__version__ in output_of(*run, "--version")
        assert "no such file" in output_of(*run, "--kubeconfig=/nowhere", code=2)
    finally:
        if container:
            output_of("buildah", "rm", container)
        output_of(engine, "rmi", tag)
