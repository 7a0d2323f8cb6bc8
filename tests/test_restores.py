"""Restores, by the commands of docs/backup.md. What fills a claim is the matter of a volume
snapshot or of copied files; here, a claim without a source stands for either, and the real server
finds the files of the backup in the new pod's folder."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import milvus_operator as mo
from tests.lib.kit import TOP, Kube, Obj, Start, eventually, scripts
from tests.test_documents import blocks, chapter

ANOTHER_NAME, SAME_NAME = blocks("sh", chapter("Restore"))
SOURCE = (
    "  dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: vectors-0-abcde}"
)
MANIFEST = """
apiVersion: zilliz.com/v1
kind: Milvus
metadata: {name: vectors}
spec:
  image: milvusdb/milvus:v2.3.5
  replicas: REPLICAS
  storage: {size: 100Gi}
  milvusSpec: |
    log.level: info
"""
Run = Callable[[str], str]


@pytest.fixture
def run(kube: Kube, tmp_path: Path) -> Run:
    """Runs a script beside a copy of the samples."""
    shutil.copytree(TOP / "samples", tmp_path / "samples")
    sample = tmp_path / "samples/restore.yaml"
    before = sample.read_text()
    assert SOURCE in before
    sample.write_text(before.replace(SOURCE, ""))  # as for copied files
    return scripts(kube, tmp_path)


def claim_uid(kube: Kube, name: str) -> str:
    shown = ("get", "pvc", name, "-o", "jsonpath={.metadata.uid}", "--ignore-not-found")
    return kube.kubectl(*shown)


def same_name(run: Run) -> str:
    run(SAME_NAME)
    return "vectors-0"


def another_name(run: Run) -> str:
    for old, new in {
        "data-vectors-0": "data-restored-0",
        "milvus: vectors": "milvus: restored",
    }.items():
        run(f"sed -i 's/{old}/{new}/' samples/restore.yaml")
    run(ANOTHER_NAME)
    return "restored-0"


def one_of_three(run: Run) -> str:
    script = SAME_NAME.replace("--replicas=1", "--replicas=3").replace(
        "--replicas=0", "--replicas=1"
    )
    run("sed -i s/data-vectors-0/data-vectors-1/ samples/restore.yaml")
    run(script.replace("vectors-0", "vectors-1"))
    return "vectors-1"


def all_gone(run: Run) -> str:
    run("kubectl delete milvus vectors && kubectl wait --for=delete pod/vectors-0 --timeout=60s")
    run("kubectl delete pvc --all && kubectl apply -f samples/restore.yaml")
    run(f"kubectl apply -f - <<END{MANIFEST.replace('REPLICAS', '1')}END")
    run("kubectl wait --for=condition=Ready milvus/vectors --timeout=60s")
    return "vectors-0"


# What a restore does, and how many replicas there are.
WAYS: dict[Callable[[Run], str], int] = {
    same_name: 1,
    another_name: 1,
    one_of_three: 3,
    all_gone: 1,
}


def restore(kube: Kube, command: Start, run: Run, way: Callable[[Run], str]) -> tuple[Obj, Obj]:
    """A pod with data, and the one that has the restored claim."""
    for claim in ("data-vectors-0", "data-vectors-1", "data-vectors-2", "data-restored-0"):
        for number in range(2):  # for the old claim, and for the new one
            reference = {"namespace": kube.ns, "name": claim}
            kube.create_volume(f"{kube.ns}-{claim}-{number}", "100Gi", claimRef=reference)
    command("--interval=0.5")
    run(f"kubectl apply -f - <<END{MANIFEST.replace('REPLICAS', str(WAYS[way]))}END")
    run("kubectl wait --for=condition=Ready milvus/vectors --timeout=60s")
    before = kube.all_pods()
    claims = {name: claim_uid(kube, f"data-{name}") for name in before}
    name = way(run)
    after = kube.all_pods()[name]
    uid = claim_uid(kube, f"data-{name}")
    assert uid
    assert uid not in claims.values(), "the claim of the backup is used"
    volume = after["spec"]["volumes"][0]
    assert volume["persistentVolumeClaim"]["claimName"] == f"data-{name}"
    assert mo.uid_of(after) not in {mo.uid_of(pod) for pod in before.values()}
    if way is not same_name and way is not all_gone:
        kept = [one for one in claims if one != name]
        assert [claim_uid(kube, f"data-{one}") for one in kept] == [claims[one] for one in kept]
    return before[name] if name in before else before["vectors-0"], after


@pytest.mark.parametrize("way", WAYS)
def test_a_restored_claim_is_used_and_no_other_is_touched(
    kube: Kube, command: Start, run: Run, way: Callable[[Run], str]
) -> None:
    restore(kube, command, run, way)
    eventually(lambda: kube.condition("Ready", "vectors")["status"] == "True")
