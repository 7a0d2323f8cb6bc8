"""Each sample is applied to the API server, and the operator makes of it what its comments say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import milvus_operator as mo
from tests.lib.kit import ORIGINAL_MILVUS, TOP, Kube, Obj, eventually, settle

SAMPLES = [TOP / "sample.yaml", *sorted((TOP / "samples").glob("*.yaml"))]
VOLUME = """
apiVersion: v1
kind: PersistentVolume
metadata: {name: NAMESPACE}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {storage: 100Gi}
  hostPath: {path: /nowhere}
  claimRef: {namespace: NAMESPACE, name: data-vectors-0}
"""


def objects(sample: Path) -> dict[str, Obj]:
    """The objects of a sample by their kind."""
    return {obj["kind"]: obj for obj in yaml.safe_load_all(sample.read_text())}


@pytest.fixture
def volume(kube: Kube) -> Iterator[None]:
    """A volume that the claim of samples/production.yaml is bound to: nothing provisions one."""
    kube.kubectl("create", "-f", "-", stdin=VOLUME.replace("NAMESPACE", kube.ns))
    yield
    kube.kubectl("delete", "pv", kube.ns, "--wait=false")


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.stem)
def test_a_sample_becomes_ready(
    kube: Kube, operator: mo.Operator, volume: None, sample: Path
) -> None:
    milvus = objects(sample)["Milvus"]
    name = milvus["metadata"]["name"]
    kube.kubectl("apply", "-f", str(sample))

    def is_ready() -> bool:
        settle(operator)
        return kube.condition("Ready", name).get("status") == "True"

    eventually(is_ready)
    assert kube.names() == [f"{name}-0"]
    for reader in ("Service", "PodDisruptionBudget"):
        if found := objects(sample).get(reader):
            selector = found["spec"]["selector"]
            labels = selector.get("matchLabels", selector)
            assert labels == mo.selector_of(milvus), f"the {reader} selects other pods"
    if service := objects(sample).get("Service"):
        assert service["metadata"]["name"] == name, "its name is a part of the pods' DNS names"
        assert service["spec"]["clusterIP"] == "None"


def test_the_production_sample_has_its_password_volume_and_memory(
    kube: Kube, operator: mo.Operator, volume: None
) -> None:
    kube.kubectl("apply", "-f", str(TOP / "samples/production.yaml"))
    settle(operator)
    spec = kube.all_pods()["vectors-0"]["spec"]
    (container,) = spec["containers"]
    env = {variable["name"]: variable for variable in container["env"]}
    assert env["common.security.authorizationEnabled"]["value"] == "true"
    password = env["common.security.defaultRootPassword"]["valueFrom"]["secretKeyRef"]
    assert password == {"name": "vectors-root", "key": "password"}
    assert container["resources"]["limits"] == {"memory": "16Gi"}
    (data,) = (volume for volume in spec["volumes"] if volume["name"] == "data")
    assert data["persistentVolumeClaim"] == {"claimName": "data-vectors-0"}
    (constraint,) = spec["topologySpreadConstraints"]
    milvus = objects(TOP / "samples/production.yaml")["Milvus"]
    assert constraint["labelSelector"]["matchLabels"] == mo.selector_of(milvus)


def test_the_tls_sample_mounts_the_files_that_it_names(kube: Kube, operator: mo.Operator) -> None:
    kube.kubectl("apply", "-f", str(TOP / "samples/tls.yaml"))
    settle(operator)
    (container,) = kube.all_pods()["encrypted-0"]["spec"]["containers"]
    env = {variable["name"]: variable.get("value") for variable in container["env"]}
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert env["common.security.tlsMode"] == "1"
    for name in ("tls.serverPemPath", "tls.serverKeyPath"):
        assert str(env[name]).rpartition("/")[0] in mounts


def test_sample_yaml_is_the_original_example() -> None:
    assert objects(TOP / "sample.yaml")["Milvus"] == yaml.safe_load(ORIGINAL_MILVUS)
