"""What docs/integrations.md and the samples say: Argo CD, whose health check is run on the status
that the operator writes, kstatus, Prometheus, and each sample on the API server."""

import re
from typing import Any

import pytest
import yaml
from lupa import lua51  # type: ignore[import-untyped]

import milvus_operator as mo
from local.controlplane import free_ports
from tests.lib.kit import TOP, Kube, Obj, eventually, http_get, rest, settle
from tests.lib.objects import by_kind, milvus, new_status, pods
from tests.lib.world import World
from tests.lib.world import milvus as created

# --- Argo CD and kstatus ---
TEXT = (TOP / "docs" / "integrations.md").read_text()
ROWS = re.findall(r"^\| (.+) \| (\w+) \| (\w+) \|$", TEXT, re.M)
BLOCKS = re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.M | re.S)
(ARGO,) = map(yaml.safe_load, BLOCKS)
UNSEEN = {"observedGeneration": -1}  # the default in the CRD
CHANGED = milvus()
CHANGED["metadata"]["generation"] = 2


def written(milvus: Obj, there: list[Obj]) -> Obj:
    """The Milvus with the status that the operator writes for it."""
    return milvus | {"status": new_status(milvus, there)}


def rejected(reason: str) -> Obj:
    problems = {2: mo.Why(reason, "why")}
    status = new_status(milvus(), pods("x-0, x-1"), problems)
    return milvus() | {"status": status}


THREE = pods("x-0, x-1, x-2")
READY = written(milvus(), THREE)
STATES = {
    "was created, and no operator has seen it yet": [milvus() | {"status": UNSEEN}],
    "waits for its pods, or for an image that can't be pulled": [
        written(milvus(), pods("x-0, x-1 starting")),
    ],
    "has all its pods ready and up to date": [READY],
    "is scaled to 0": [written(milvus(0), [])],
    "was changed, and the operator has not looked since": [
        READY | {"metadata": CHANGED["metadata"]}
    ],
    "is in a rolling update": [written(CHANGED, pods("x-0 old, x-1 old"))],
    "has a spec that the operator rejects; or the API server has rejected something for half a minute": [
        written(milvus(milvusSpec="a: [b"), []),
        rejected("NameConflict"),
        rejected("QuotaExceeded"),
        rejected("Forbidden"),
    ],
    "has an `APIError`, which is retried, and a pod is not Ready": [rejected("APIError")],
    "serves, while a claim is being deleted or is lost": [
        milvus() | {"status": new_status(milvus(), THREE, {0: mo.Why(reason, "why")})}
        for reason in ("ClaimTerminating", "ClaimLost")
    ],
}


def argo(milvus: Obj) -> dict[str, Any]:
    """The result of the health check, run with only the parts of Lua that Argo CD allows."""
    lua = lua51.LuaRuntime()
    lua.execute("string, math, io, debug, coroutine = nil")
    lua.globals().obj = lua.table_from(milvus, recursive=True)
    return dict(lua.execute(ARGO["data"]["resource.customizations.health.zilliz.com_Milvus"]))


def kstatus(milvus: Obj) -> str:
    """By its rules for custom resources, of whose conditions a Milvus has two."""
    status = milvus["status"]
    if status["observedGeneration"] != milvus["metadata"]["generation"]:
        return "InProgress"
    conditions = {one["type"]: one["status"] for one in status["conditions"]}
    if conditions.get("Stalled") == "True":
        return "Failed"
    return "Current" if conditions["Ready"] == "True" else "InProgress"


def test_argo_cd_and_kstatus_show_what_the_table_says() -> None:
    assert [row[0] for row in ROWS] == [*STATES]
    for state, in_argo, in_kstatus in ROWS:
        for one in STATES[state]:
            assert argo(one)["status"] == in_argo, state
            assert kstatus(one) == in_kstatus, state
    assert argo(rejected("QuotaExceeded"))["message"] == "QuotaExceeded: why"


# --- Prometheus ---
MONITOR, RULES = yaml.safe_load_all((TOP / "samples/monitoring.yaml").read_text())


def test_the_pod_monitor_finds_the_operator() -> None:
    deploy = by_kind((TOP / "deploy.yaml").read_text())
    pod = deploy["Deployment"]["spec"]["template"]
    monitor = MONITOR["spec"]
    labels = monitor["selector"]["matchLabels"]
    assert labels.items() <= pod["metadata"]["labels"].items()
    (container,) = pod["spec"]["containers"]
    (port,) = container["ports"]
    assert monitor["podMetricsEndpoints"] == [{"port": port["name"], "honorLabels": True}]
    assert f"--health-port={port['containerPort']}" in container["args"]


def test_the_alerts_use_only_metrics_that_exist() -> None:
    world = World(created(), created("bad", milvusSpec="proxy.port: 1"))
    world.passes(3)
    world.server.set_pod("x-0")
    world.passes(2)
    port = free_ports(1)[0]
    mo.start_health_server(world.operator, port)
    shown = http_get(port, "/metrics")[1]
    (group,) = RULES["spec"]["groups"]
    for alert in group["rules"]:
        used = re.findall(r"(milvus_\w+)({.*?})?", alert["expr"])
        assert used, alert["alert"]
        for metric, labels in used:
            sample = f"\\n{metric}{{[^}}]*{labels.strip('{}')}[^}}]*}} "
            assert re.search(sample, shown), metric


def test_the_pod_monitor_of_the_databases_finds_them_and_has_the_labels_of_their_dashboards() -> (
    None
):
    there = milvus()
    made = mo.new_pod(there, mo.spec_of(there), 0)
    monitor, rules = yaml.safe_load_all((TOP / "samples/monitoring-databases.yaml").read_text())
    spec = monitor["spec"]
    labels = made["metadata"]["labels"]
    assert spec["selector"] == EVERY_MILVUS
    assert {*spec["podTargetLabels"]} <= labels.keys()
    (endpoint,) = spec["podMetricsEndpoints"]
    (container,) = made["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports[endpoint["port"]] == 9091
    (group,) = rules["spec"]["groups"]
    down, full = (alert["expr"] for alert in group["rules"])
    assert f'{{app_kubernetes_io_name="{labels[mo.NAME_LABEL]}"}}' in down
    for pattern in re.findall('persistentvolumeclaim=~"(.*?)"', full):
        assert re.fullmatch(pattern, mo.claim_name(there, 12))


# --- The samples ---
EVERY_MILVUS = {"matchExpressions": [{"key": mo.MILVUS_LABEL, "operator": "Exists"}]}
OTHERS = ("minimal", "production", "slow-disk", "tls")
SAMPLES = ("sample", *(f"samples/{name}" for name in OTHERS))


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_sample_becomes_ready(kube: Kube, operator: mo.Operator, sample: str) -> None:
    file = TOP / f"{sample}.yaml"
    found = by_kind(file.read_text())
    name = mo.name_of(found["Milvus"])
    # Nothing provisions a volume for the claim of a sample with storage.
    claim = {"namespace": kube.ns, "name": f"data-{name}-0"}
    kube.create_volume(kube.ns, "100Gi", claimRef=claim)
    kube.kubectl("apply", "-f", str(file))
    rest(operator, kube, f"{name}-0")
    assert kube.condition("Ready", name)["status"] == "True"
    kube.kubectl("delete", "pv", kube.ns, "--wait=false")
    assert "Service" not in found, "the operator makes it"


def test_the_sample_for_production_selects_its_pods() -> None:
    found = by_kind((TOP / "samples/production.yaml").read_text())
    budget = found["PodDisruptionBudget"]["spec"]
    x = found["Milvus"]
    (spread,) = x["spec"]["pod"]["spec"]["topologySpreadConstraints"]
    policy = found["NetworkPolicy"]["spec"]
    for selector in (budget["selector"], spread["labelSelector"]):
        assert selector == {"matchLabels": mo.our_label(x)}
    assert policy["podSelector"] == EVERY_MILVUS, "also one that is restored under another name"
    clients, prometheus = policy["ingress"]
    assert [one["port"] for one in clients["ports"]] == [mo.PORTS["milvus"]]
    assert [one["port"] for one in prometheus["ports"]] == [mo.PORTS["metrics"]]
    assert clients["from"] != prometheus["from"]


def test_a_claim_with_the_data_of_a_snapshot_is_accepted_and_used(
    kube: Kube, operator: mo.Operator
) -> None:
    snapshot = yaml.safe_load((TOP / "samples/snapshot.yaml").read_text())
    claim = yaml.safe_load((TOP / "samples/restore.yaml").read_text())
    kube.kubectl("apply", "-f", str(TOP / "samples/restore.yaml"))
    before = kube.kubectl("get", "pvc", "data-vectors-0", "-o=jsonpath={.metadata.uid}")
    kube.create("vectors", storage={"size": "100Gi"})
    settle(operator)
    (volume, _) = kube.all_pods()["vectors-0"]["spec"]["volumes"][:2]
    assert volume["persistentVolumeClaim"]["claimName"] == mo.name_of(claim)
    assert kube.kubectl("get", "pvc", "-o=jsonpath={.items[*].metadata.uid}") == before
    start = snapshot["metadata"]["generateName"]
    assert claim["spec"]["dataSource"]["name"].startswith(start)
    source = snapshot["spec"]["source"]["persistentVolumeClaimName"]
    assert source == mo.claim_name(milvus(name="vectors"), 0) == mo.name_of(claim)


def test_with_tls_rest_has_a_port_of_its_own() -> None:
    """Otherwise Milvus ends when it starts (milvus-io/milvus#46312)."""
    sample = yaml.safe_load((TOP / "samples/tls.yaml").read_text())
    settings = yaml.safe_load(sample["spec"]["milvusSpec"])
    assert settings["common.security.tlsMode"] == 1
    assert settings["proxy.http.port"] not in (None, 0, mo.PORTS["milvus"])


def test_the_role_for_editors_is_accepted(kube: Kube) -> None:
    kube.kubectl("apply", "--dry-run=server", "-f", str(TOP / "samples/edit-role.yaml"))


# What the policy of samples/pod-policy.yaml answers to such a spec; empty: it is allowed.
JUDGED = {
    "{}": "",
    "pod: {metadata: {labels: {a: b}}}": "",
    "pod: {spec: {nodeSelector: {a: b}, containers: [{name: milvus, env: [{name: A, value: b}]}]}}": "",
    "pod: {spec: {containers: [{name: milvus, env: [{name: A, valueFrom: {secretKeyRef: {name: milvus-x, key: b}}}]}]}}": "",
    "pod: {spec: {containers: [{name: milvus, env: [{name: A, valueFrom: {secretKeyRef: {name: milvus-x-root, key: b}}}]}]}}": "only from the Secret",
    "pod: {spec: {containers: [{name: milvus, env: [{name: A, valueFrom: {secretKeyRef: {name: other, key: b}}}]}]}}": (
        "only from the Secret"
    ),
    "pod: {spec: {containers: [{name: milvus, env: [{name: A, valueFrom: {configMapKeyRef: {name: x, key: b}}}]}]}}": (
        "only from the Secret"
    ),
    "pod: {spec: {serviceAccountName: admin}}": "only placement",
    "pod: {spec: {volumes: [{name: a, hostPath: {path: /}}]}}": "only placement",
    "pod: {spec: {containers: [{name: other, image: b}]}}": "no other container",
    "pod: {spec: {containers: [{name: milvus, image: b}]}}": "only env and resources",
    "image: example.org/other:1": "the image must be milvusdb/milvus with a tag",
    "image: milvusdb/milvus": "the image must be milvusdb/milvus with a tag",
}


def test_the_sample_of_a_policy_allows_and_denies(kube: Kube) -> None:
    policy = (TOP / "samples/pod-policy.yaml").read_text()
    here = f"  matchConstraints:\n    namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {kube.ns}}}}}\n"
    text = policy.replace("  matchConstraints:\n", here)
    before = created(image="example.org/other:1") | {"metadata": {"name": "before"}}
    kube.kubectl("create", "-f", "-", stdin=yaml.safe_dump(before))
    kube.kubectl("apply", "-f", "-", stdin=text)

    def answer(spec: str) -> str:
        there = created(**{"image": "milvusdb/milvus:v2.6.25"} | yaml.safe_load(spec))
        body = yaml.safe_dump(there | {"metadata": {"name": "x"}})
        command = ("apply", "--dry-run=server", "-f", "-")
        return kube.kubectl(*command, stdin=body, code=None)

    try:
        eventually(lambda: "denied" in answer("image: a:1"))
        for spec, words in JUDGED.items():
            said = answer(spec)
            assert ("denied" in said) == (words != ""), f"{spec}: {said}"
            assert words in said
        change = ("patch", "mi/before", "--type=merge", "-p")
        assert "denied" in kube.kubectl(*change, '{"spec": {"replicas": 2}}', code=None)
        kube.kubectl(*change, '{"metadata": {"finalizers": ["a/b"]}}')
        kube.kubectl("delete", "mi/before", "--wait=false")
        kube.kubectl(*change, '{"metadata": {"finalizers": null}}')
        assert not kube.kubectl("get", "mi/before", "--ignore-not-found")
        for sample in ("minimal", "production"):
            kube.kubectl("apply", "--dry-run=server", "-f", f"samples/{sample}.yaml")
    finally:
        kube.kubectl("delete", "-f", "-", stdin=text)
