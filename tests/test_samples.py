"""Each sample is applied to the API server, and the operator makes of it what its comments say."""

from pathlib import Path

import pytest
import yaml

import milvus_operator as mo
from tests.lib.kit import ORIGINAL_MILVUS, TOP, Kube, Obj, rest
from tests.lib.objects import by_kind

MANIFESTS = ("minimal", "production", "tls")  # monitoring.yaml is of other kinds
SAMPLES = [TOP / "sample.yaml", *(TOP / f"samples/{name}.yaml" for name in MANIFESTS)]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.stem)
def test_a_sample_becomes_ready(kube: Kube, operator: mo.Operator, sample: Path) -> None:
    found = by_kind(sample.read_text())
    milvus = found["Milvus"]
    name = mo.name_of(milvus)
    # Nothing provisions a volume for the claim of samples/production.yaml.
    kube.create_volume(kube.ns, "100Gi", claimRef={"namespace": kube.ns, "name": "data-vectors-0"})
    kube.kubectl("apply", "-f", str(sample))
    rest(operator, kube, f"{name}-0")
    assert kube.condition("Ready", name)["status"] == "True"
    kube.kubectl("delete", "pv", kube.ns, "--wait=false")
    (pod,) = kube.all_pods().values()
    spread = pod["spec"].get("topologySpreadConstraints", [])
    selectors = [constraint["labelSelector"] for constraint in spread]
    if service := found.get("Service"):
        assert service["metadata"]["name"] == name, "its name is a part of the pods' DNS names"
        assert service["spec"]["clusterIP"] == "None"
        selectors.append({"matchLabels": service["spec"]["selector"]})
    if budget := found.get("PodDisruptionBudget"):
        selectors.append(budget["spec"]["selector"])
    expected = {"matchLabels": mo.selector_of(milvus)}
    assert selectors == [expected] * len(selectors), "one of them selects other pods"


def test_the_samples_have_the_password_the_memory_and_the_files_that_they_name() -> None:
    containers, env = dict[str, Obj](), dict[str, Obj]()
    for sample in SAMPLES:
        milvus = by_kind(sample.read_text())["Milvus"]
        milvus["metadata"] |= {"namespace": "ns", "uid": "uid"}
        pod = mo.new_pod(milvus, mo.spec_of(milvus), 0)
        (containers[sample.stem],) = pod["spec"]["containers"]
        env[sample.stem] = {one["name"]: one for one in containers[sample.stem]["env"]}
    production, tls = env["production"], env["tls"]
    assert production["common.security.authorizationEnabled"]["value"] == "true"
    password = production["common.security.defaultRootPassword"]["valueFrom"]["secretKeyRef"]
    assert password == {"name": "vectors-root", "key": "password"}
    assert containers["production"]["resources"]["limits"] == {"memory": "16Gi"}
    assert tls["common.security.tlsMode"]["value"] == "1"
    mounts = [mount["mountPath"] for mount in containers["tls"]["volumeMounts"]]
    for name in ("tls.serverPemPath", "tls.serverKeyPath"):
        assert tls[name]["value"].rpartition("/")[0] in mounts


def test_sample_yaml_is_the_original_example() -> None:
    sample = by_kind((TOP / "sample.yaml").read_text())
    assert sample["Milvus"] == yaml.safe_load(ORIGINAL_MILVUS)
