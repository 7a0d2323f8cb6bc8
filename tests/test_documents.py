"""Every manifest and every command in the documents works, on a real API server."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import milvus_operator as mo
from tests.kube import CLAIMS, Kube

TOP = Path(mo.__file__).parent
PAGES = [TOP / "README.md", TOP / "CONTRIBUTING.md", *sorted((TOP / "docs").glob("*.md"))]
# What needs a kubelet, a builder of images, or a terminal of its own; or is these tests.
ELSEWHERE = re.compile("make (run|image|demo|test)|kind load|sudo tar|kubectl .*(logs|exec) ")
KINDS = {  # of other projects: group and plural
    "PodMonitor": ("monitoring.coreos.com", "podmonitors"),
    "PrometheusRule": ("monitoring.coreos.com", "prometheusrules"),
    "VolumeSnapshot": ("snapshot.storage.k8s.io", "volumesnapshots"),
}


def blocks(language: str, page: Path) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.M | re.S)


def manifests() -> list[dict[str, Any]]:
    texts = [path.read_text() for path in (TOP / "sample.yaml", *TOP.glob("samples/*.yaml"))]
    texts += [block for page in PAGES for block in blocks("yaml", page)]
    found = [obj for text in texts for obj in yaml.safe_load_all(text)]
    return [obj for obj in found if "kind" in obj]  # the others are parts, of an argocd-cm


def make_kind(kube: Kube, kind: str, group: str, plural: str) -> None:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    spec: Any = {"group": group, "scope": "Namespaced"}
    spec["versions"] = [{"name": "v1", "served": True, "storage": True, "schema": schema}]
    spec["names"] = {"kind": kind, "plural": plural}
    name = f"{plural}.{group}"
    metadata = {"name": name, "annotations": {"api-approved.kubernetes.io": "unapproved"}}
    crd = "CustomResourceDefinition"
    kube.make("apiextensions.k8s.io/v1", crd, name, metadata=metadata, spec=spec)
    kube.kubectl("wait", "--for=condition=Established", f"crd/{name}", "--timeout=20s")


def test_every_manifest_is_accepted_and_every_milvus_gets_its_pods(kube: Kube) -> None:
    for kind, names in KINDS.items():
        make_kind(kube, kind, *names)
    expected = set()
    for obj in manifests():
        if obj["kind"] == "Milvus":
            kube.kubectl("apply", "-f", "-", stdin=json.dumps(obj))
            replicas = obj["spec"].get("replicas", 1)
            expected |= {f"{mo.name_of(obj)}-{ordinal}" for ordinal in range(replicas)}
        else:
            kube.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(obj))
    assert len(expected) > 7
    kube.live(lambda: set(kube.all_of()) == expected)
    for milvus in kube.milvuses.get(namespace=kube.ns).to_dict()["items"]:
        condition = mo.condition_of(milvus, "Reconciled")
        assert condition["status"] == "True", (mo.name_of(milvus), condition)


@pytest.fixture
def run(kube: Kube, tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Runs the commands of a user, in a copy of the repository, beside a running operator. The Milvus
    `vectors` is there, and volumes for the claims of the documents."""
    for name in ("Makefile", "milvus_operator.py", "crd.yaml", "deploy.yaml", "sample.yaml"):
        shutil.copy(TOP / name, tmp_path)
    shutil.copytree(TOP / "samples", tmp_path / "samples")
    (tmp_path / "kubectl").symlink_to(kube.plane.kubectl)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "YES": "1"}
    env |= {"KUBECONFIG": kube.config, "KUBECACHEDIR": str(tmp_path / "cache")}
    env["IMAGE"] = "milvus-polling-operator:0.1.0"

    def run(script: str) -> None:
        lines = [line for line in script.splitlines() if not ELSEWHERE.match(line)]
        command = ["sh", "-e", "-c", "\n".join(lines).replace("=10m", "=1m")]
        options: Any = {"cwd": tmp_path, "env": env, "capture_output": True, "text": True}
        done = subprocess.run(command, timeout=120, **options)
        log = (tmp_path / "log").read_text()
        assert done.returncode == 0, f"{script}{done.stdout}{done.stderr}{log}"

    (tmp_path / "log").touch()
    run(f"kubectl config set-context --current --namespace={kube.ns}")
    for claim in ("vectors-0", "vectors-0", "vectors-0", "restored-0", "moved-0"):
        reference = {"namespace": kube.ns, "name": f"data-{claim}"}
        spec = {"capacity": {"storage": "100Gi"}, "accessModes": ["ReadWriteOnce"]}
        spec |= {"hostPath": {"path": "/nowhere"}, "claimRef": reference}
        kube.make("v1", "PersistentVolume", f"{kube.ns}-{claim}-{os.urandom(3).hex()}", spec=spec)
    command = [sys.executable, "milvus_operator.py", "--interval=0.5"]
    with (tmp_path / "log").open("w") as log:
        operator = subprocess.Popen(command, cwd=tmp_path, env=env, stderr=log)
    try:
        kube.create("vectors", storage={"size": "50Gi"})
        run("kubectl wait --for=condition=Ready milvus/vectors --timeout=1m")
        yield run
    finally:
        operator.kill()


@pytest.mark.parametrize("page", [p for p in PAGES if p.name != "data.md"], ids=lambda p: p.name)
def test_the_commands_of_a_page_work(run: Callable[[str], None], page: Path) -> None:
    for block in blocks("sh", page):
        run(block)
    run("make undeploy; kubectl delete namespace vectors --wait=false --ignore-not-found")


def test_the_commands_about_data_keep_it(run: Callable[[str], None], kube: Kube) -> None:
    grow, keep, rescue, another_name, same_name, move = blocks("sh", TOP / "docs/data.md")
    volume = kube.all_of(*CLAIMS)["data-vectors-0"]["spec"]["volumeName"]
    run(f"{grow}kubectl delete pvc data-vectors-0 --wait=false")
    run("kubectl wait --for=jsonpath='{.status.conditions[1].reason}'=ClaimLost milvus/vectors")
    run(keep + rescue)
    run("kubectl wait --for=condition=Ready milvus/vectors --timeout=1m")
    assert kube.all_of(*CLAIMS)["data-vectors-0"]["spec"]["volumeName"] == volume
    before = kube.uids(*CLAIMS)
    rename = "s/data-vectors-0/data-restored-0/; s/milvus: vectors/milvus: restored/"
    run(f"cp -r samples kept; sed -i '{rename}' samples/restore.yaml")
    run(another_name)
    assert kube.uids(*CLAIMS).items() >= before.items(), "the old database is as it was"
    run("rm -r samples; mv kept samples")
    run(same_name)
    assert kube.uids(*CLAIMS)["data-vectors-0"] != before["data-vectors-0"]
    run(f"{move}kubectl delete pod copy && kubectl scale milvus/moved --replicas=1")
    run("kubectl wait --for=condition=Ready milvus/moved --timeout=1m")


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        text = page.read_text()
        for file, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", text):
            target = page.parent / file if file else page
            assert target.exists(), f"{page.name}: {file}"
            titles = re.findall(r"^#+ (.*)$", target.read_text(), re.M) if anchor else []
            anchors = [
                re.sub("[^a-z0-9-]", "", title.lower().replace(" ", "-")) for title in titles
            ]
            assert not anchor or anchor in anchors, f"{page.name}: {file}#{anchor}"
