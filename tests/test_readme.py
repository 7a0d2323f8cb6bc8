"""The README says what is so: its commands run, its options are those of --help."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml
from conftest import TOP, Kube, Obj, eventually, settle

import milvus_operator as mo

README = (TOP / "README.md").read_text()


def blocks(language: str, text: str = README) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
    return [block for kind, block in found if kind == language]


def test_the_options_are_those_of_help() -> None:
    command = [sys.executable, "milvus_operator.py", "--help"]
    said = subprocess.run(command, cwd=TOP, capture_output=True, text=True, env=os.environ | {"COLUMNS": "80"}).stdout
    assert said.rstrip() in [block.rstrip() for block in blocks("")]


def test_make_help_explains_every_target_and_those_of_the_readme_exist() -> None:
    said = subprocess.run(["make", "help"], cwd=TOP, capture_output=True, text=True).stdout
    targets = set(re.findall(r"^  make (\w+) +\S", said, re.M))
    assert targets == {
        "help",
        "demo",
        "test",
        "lint",
        "bench",
        "soak",
        "install",
        "uninstall",
        "run",
        "image",
        "deploy",
        "undeploy",
        "clean",
    }
    assert set(re.findall(r"^make (\w+)", "\n".join(blocks("sh")), re.M)) <= targets
    assert subprocess.run(["make"], cwd=TOP, capture_output=True, text=True).stdout == said


def test_the_first_yaml_is_the_sample() -> None:
    assert blocks("yaml")[0] == (TOP / "sample.yaml").read_text().partition("---")[0]


def test_every_milvus_of_the_readme_gets_its_pod(kube: Kube, operator: mo.Operator) -> None:
    for block in blocks("yaml"):
        kube.kubectl("apply", "-f", "-", stdin=block)
    settle(operator)
    assert kube.names() == ["bucket-0", "configured-0", "kept-0", "large-0", "locked-0", "milvus-crd-test-0"]
    (container,) = kube.all_pods()["locked-0"]["spec"]["containers"]
    names = [variable["name"] for variable in container["env"]]
    assert {"common.security.authorizationEnabled", "common.security.defaultRootPassword"} <= set(names)


def test_the_demo() -> None:
    done = subprocess.run([sys.executable, "tests/demo.py", "--wait=no"], cwd=TOP, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "That was the life of a Milvus" in done.stdout
    assert "\x1b" not in done.stdout, "no colours in a pipe"


def test_make_install_run_and_uninstall(kube: Kube) -> None:
    env = os.environ | {"KUBECONFIG": str(kube.plane.kubeconfig()), "KUBECTL": str(kube.plane.kubectl)}
    make = ["make", "-o", ".venv/ready", f"KUBECTL={kube.plane.kubectl}", f"BIN={os.path.dirname(sys.executable)}"]

    def run(*arguments: str) -> str:
        done = subprocess.run([*make, *arguments], cwd=TOP, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    assert "customresourcedefinition.apiextensions.k8s.io/milvuses.zilliz.com" in run("install")
    kube.create()
    assert "1 created" in run("run", f"ARGS=--once -n {kube.ns}")
    assert 'customresourcedefinition.apiextensions.k8s.io "milvuses.zilliz.com" deleted' in run("uninstall")
    run("install")


def section(title: str) -> list[str]:
    """The commands in a section of the README."""
    text = README.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    lines = "\n".join(blocks("sh", text)).splitlines()
    return [line.partition("  #")[0].strip() for line in lines if line]


def test_the_commands_about_an_installation(kube: Kube, tmp_path: Path) -> None:
    """Each as it is written, but for the image, which takes an engine to build; the kubelet is a simulated one."""
    env = os.environ | {"KUBECONFIG": str(kube.plane.kubeconfig()), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    (tmp_path / "kubectl").symlink_to(kube.plane.kubectl)
    commands = [line for title in ("Install in a cluster", "Rights", "Watch it") for line in section(title)]
    assert [line for line in commands if "make image" in line] == commands[:1]
    said = {}
    try:
        for line in commands[1:]:
            done = subprocess.run(line, shell=True, cwd=TOP, env=env, capture_output=True, text=True)
            assert done.returncode == 0, f"{line}: {done.stderr}"
            said.update(dict.fromkeys(line.split(), done.stdout))
            if line == "kubectl apply -f sample.yaml":
                default = Kube(kube.plane, "default")
                mo.Operator(mo.Cluster(default.api), ["default"], 5, 4).run_once()
        assert "successfully rolled out" in said["rollout"]
        assert "deployment.apps/milvus-operator" in said["get"]
        assert "milvuses.zilliz.com" in said["auth"]
        assert "milvus-crd-test-0: missing" in said["describe"]
        assert "milvus-crd-test-0: missing" in said["events"]
    finally:
        for line in ("make undeploy", "kubectl delete namespace milvus --wait=false", "kubectl delete -f sample.yaml"):
            subprocess.run(line, shell=True, cwd=TOP, env=env, capture_output=True)


def test_from_python(kube: Kube) -> None:
    env = os.environ | {"KUBECONFIG": str(kube.plane.kubeconfig()), "PYTHONPATH": str(TOP)}
    code = blocks("python")[1]
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["milvusdb/milvus:v2.6.0", "['from-python']", "[]"], done.stderr


def test_every_field_of_the_crd_is_described(kube: Kube) -> None:
    def undescribed(schema: Obj, path: str) -> Iterator[str]:
        if "description" not in schema:
            yield path
        for name, field in schema.get("properties", {}).items():
            yield from undescribed(field, f"{path}.{name}")
        if isinstance(schema.get("items"), dict) and "properties" in schema["items"]:
            yield from undescribed(schema["items"], f"{path}[]")

    schema = yaml.safe_load((TOP / "crd.yaml").read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    fields = {name: field for name, field in schema["properties"].items() if name in ("spec", "status")}
    assert [path for name, field in fields.items() for path in undescribed(field, name)] == []
    eventually(lambda: "FIELDS:" in kube.kubectl("explain", "mi.spec", check=False))
    said = " ".join(kube.kubectl("explain", "mi.spec").split())
    for name, field in fields["spec"]["properties"].items():
        assert " ".join(field["description"].split()[:6]) in said, name


def test_the_version_is_the_same_everywhere() -> None:
    for name in ("Makefile", "deploy.yaml", "deploy-namespaced.yaml", "Dockerfile", "README.md"):
        assert set(re.findall(r"milvus-operator:(\d[\d.]*\d)", (TOP / name).read_text())) == {mo.__version__}, name
