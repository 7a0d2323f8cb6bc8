"""A release: the bundle for OLM, dist/, the wheel, the manifests, the image."""

import json
import os
import re
import shutil
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import yaml

import milvus_operator as mo
from tests.lib.kit import TOP, Command, Obj, output_of
from tests.lib.objects import by_kind
from tests.lib.wire import Api
from tests.lib.world import milvus
from tools import fingerprint, release
from tools.matrix import PYTHONS

NAME = f"milvus-polling-operator-{mo.__version__}"
IMAGE = "example/milvus-polling-operator:test"
DOCKERFILE = (TOP / "Dockerfile").read_text()


def make(*arguments: str, **options: Any) -> str:
    """Run make with this Python instead of the virtual environment."""
    this = f"BIN={os.path.dirname(sys.executable)}"
    return output_of("make", "-o", ".venv/run", this, *arguments, **options)


def manifest(*options: str) -> dict[str, Obj]:
    """What `make deploy` applies, by kind."""
    return by_kind(make("--silent", "manifest", f"IMAGE={IMAGE}", *options))


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


TARGETS = """
name: MILVUS_OPERATOR_NAMESPACE
valueFrom: {fieldRef: {fieldPath: "metadata.annotations['olm.targetNamespaces']"}}
"""


def test_olm_gets_the_crd_the_pod_and_the_permissions_of_the_manifests(tmp_path: Path) -> None:
    """OLM limits the permissions to the managed namespaces, and names those in an annotation."""
    output_of(sys.executable, "-m", "tools.release", "bundle", str(tmp_path), IMAGE)
    manifests = tmp_path / "bundle/manifests"
    assert read(manifests / "milvuses.zilliz.com.crd.yaml") == read(TOP / "crd.yaml")
    csv = read(manifests / "milvus-polling-operator.clusterserviceversion.yaml")
    examples = csv["metadata"]["annotations"]["alm-examples"]
    assert json.loads(examples) == [read(TOP / "samples/minimal.yaml")]
    deploy = manifest()
    rules = deploy["ClusterRole"]["rules"]
    deployment = deploy["Deployment"]["spec"]
    (container,) = deployment["template"]["spec"]["containers"]
    container["args"].remove("--all-namespaces")
    container["env"] = [yaml.safe_load(TARGETS)]
    install = csv["spec"]["install"]["spec"]
    assert install.keys() == {"permissions", "deployments"}
    assert install["permissions"] == [{"serviceAccountName": mo.MANAGER, "rules": rules}]
    assert install["deployments"][0]["spec"] == deployment


def test_a_release_is_reproducible_installable_and_needs_results_of_this_operator(
    tmp_path: Path,
) -> None:
    for name in ("tools", "samples", "docs"):
        shutil.copytree(TOP / name, tmp_path / name)
    for name in ("Makefile", "crd.yaml", "deploy.yaml", *release.SOURCES):
        shutil.copy(TOP / name, tmp_path)
    earlier = re.sub("`.*`", "`0123456789ab`", fingerprint.line())
    for name in fingerprint.RESULTS:
        (tmp_path / name).write_text(earlier)
    said = make("release", f"IMAGE={IMAGE}", cwd=tmp_path, code=2)
    for name, target in fingerprint.RESULTS.items():
        assert f"{name} is not of this milvus_operator.py: run `{target}`" in said
        (tmp_path / name).write_text(fingerprint.line())
    dist = tmp_path / "dist"
    assert not dist.exists()
    make("release", f"IMAGE={IMAGE}", cwd=tmp_path)
    sums = (dist / "SHA256SUMS").read_text()
    make("release", f"IMAGE={IMAGE}", cwd=tmp_path)
    assert (dist / "SHA256SUMS").read_text() == sums
    wheel = "milvus_polling_operator-0.1.0-py3-none-any.whl"
    files = [f"{NAME}-bundle.tar", f"{NAME}-namespaced.yaml", f"{NAME}.yaml", wheel]
    said = output_of("sha256sum", "-c", "SHA256SUMS", cwd=dist)
    assert said.splitlines() == [f"{file}: OK" for file in files]
    assert by_kind((dist / files[1]).read_text()) == manifest("NAMESPACE=milvus")
    crd = {"CustomResourceDefinition": read(TOP / "crd.yaml")}
    assert by_kind((dist / files[2]).read_text()) == crd | manifest()
    new = str(tmp_path / "new")
    options = ("--no-index", "--no-deps", f"--target={new}", str(dist / wheel))
    output_of(sys.executable, "-m", "pip", "install", *options)
    env = {"PYTHONPATH": new}
    said = output_of(f"{new}/bin/{mo.MANAGER}", "--version", env=env)
    assert said == f"{mo.MANAGER} {mo.__version__}\n"
    (installed,) = distributions(path=[new])
    assert "kubernetes" in str(installed.requires)


def test_one_namespace_gets_the_same_with_a_role_and_nothing_else() -> None:
    """What the Role grants is tested with the permissions that the operator uses."""
    one = manifest("NAMESPACE=milvus")
    assert one.keys() == {"ServiceAccount", "Role", "RoleBinding", "Deployment"}
    for obj in one.values():
        assert obj["metadata"]["namespace"] == "milvus"
    template = manifest()["Deployment"]["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert container["args"].pop(0) == "--all-namespaces"
    assert container["image"] == IMAGE
    assert one["Deployment"]["spec"]["template"] == template


def test_an_empty_namespace_on_the_command_line_is_an_error(tmp_path: Path) -> None:
    """It is most often a variable that is not set, and all namespaces would be another thing."""
    touch = f"KUBECTL=touch {tmp_path}/called;:"
    for target in ("deploy", "undeploy"):
        said = make(target, "NAMESPACE=", touch, "YES=1", code=2)
        assert "NAMESPACE is empty" in said
    assert not (tmp_path / "called").exists()
    make("undeploy", touch, "YES=1", env=os.environ | {"NAMESPACE": ""})
    assert (tmp_path / "called").exists()


# --- The image: what can be checked without building it ---
def test_the_base_image_is_pinned_and_has_a_python_that_the_lock_and_the_matrix_are_for() -> None:
    base = re.search(r"^ARG BASE=python:([\d.]+)-slim@sha256:[0-9a-f]{64}$", DOCKERFILE, re.M)
    assert base
    assert f"--python-version={base[1]} " in (TOP / "Makefile").read_text()
    assert base[1] in PYTHONS


def test_what_the_image_leaves_out_is_not_imported(api: Api) -> None:
    (removed,) = re.findall(r"^RUN rm -r (.+)$", DOCKERFILE, re.M)
    modules = removed.replace("*", "").replace("/", ".").split()
    assert "aiohttp" in modules
    without = f"import sys\nsys.modules |= dict.fromkeys({modules})\n"
    (api.folder / "sitecustomize.py").write_text(without)
    api.world.add(milvus("x"))
    env = {"PYTHONPATH": str(api.folder)}
    config = api.kubeconfig()
    process = Command("--once", "--kubeconfig", config, env=env)
    assert process.end() == 0, process.log
    assert api.world.pods() == ["x-0"]
