"""What docs/integrations.md says: Prometheus (samples/monitoring.yaml), Argo CD and Flux, whose checks are
run on the status that the operator writes."""

import re
from typing import Any

import cel
import yaml
from lupa import lua51  # type: ignore[import-untyped]
from prometheus_client.metrics import MetricWrapperBase

import milvus_operator as mo
from tests.lib.kit import TOP, Obj
from tests.lib.objects import NOW, by_kind, milvus, new_status, pod, pods

TEXT = (TOP / "docs" / "integrations.md").read_text()

ROWS = re.findall(r"^\| (.+) \| (\w+) \| (\w+) \|$", TEXT, re.M)
ARGO, FLUX = map(yaml.safe_load, re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.M | re.S))
(VERSION,) = yaml.safe_load((TOP / "crd.yaml").read_text())["spec"]["versions"]
MONITOR, RULES = (
    doc["spec"] for doc in yaml.safe_load_all((TOP / "samples/monitoring.yaml").read_text())
)
UNSEEN = VERSION["schema"]["openAPIV3Schema"]["properties"]["status"]["default"]
UNPULLED = {"name": "milvus", "state": {"waiting": {"reason": "ImagePullBackOff"}}}


def written(milvus: Obj, pods: list[Obj]) -> Obj:
    """The Milvus with the status that the operator writes for it."""
    return milvus | {"status": new_status(milvus, pods)}


def rejected(reason: str) -> Obj:
    status = new_status(milvus(3), pods("x-0, x-1"), {2: mo.Reason(reason, "why")})
    return milvus(3) | {"status": status}


READY = pods("x-0, x-1, x-2")
CHANGED = milvus()
CHANGED["metadata"]["generation"] = 2
STATES = {
    "was created, and no operator has seen it yet": [milvus() | {"status": UNSEEN}],
    "waits for its pods, or for an image that can't be pulled": [
        written(milvus(), []),
        written(milvus(), pods("x-0, x-1")),
        written(milvus(1), [pod("x-0", "starting", containerStatuses=[UNPULLED])]),
    ],
    "has all its pods ready and up to date": [written(milvus(), READY), written(CHANGED, READY)],
    "is scaled to 0": [written(milvus(0), [])],
    "was changed, and the operator has not looked since": [
        CHANGED | {"status": written(milvus(), READY)["status"]}
    ],
    "is in a rolling update": [written(CHANGED, pods("x-0 old, x-1 old, x-2 old"))],
    "is `Invalid`, `NameConflict`, `QuotaExceeded` or `Forbidden`": [
        written(milvus(milvusSpec="a: [b"), READY),
        *map(rejected, ("NameConflict", "QuotaExceeded", "Forbidden")),
    ],
    "has an `APIError`, which is retried": [rejected("APIError")],
}


def argo(milvus: Obj) -> dict[str, Any]:
    """The result of the health check, run with only the parts of Lua that Argo CD allows."""
    lua = lua51.LuaRuntime()
    lua.execute("string, math, io, debug, coroutine = nil")
    lua.globals().obj = lua.table_from(milvus, recursive=True)
    return dict(lua.execute(ARGO["data"]["resource.customizations.health.zilliz.com_Milvus"]))


def flux(milvus: Obj) -> str:
    """The result of the expressions, in Flux's order, after it has compared the generations."""
    if milvus["status"].get("observedGeneration") not in (None, milvus["metadata"]["generation"]):
        return "InProgress"
    (check,) = FLUX["spec"]["healthCheckExprs"]
    states = {"inProgress": "InProgress", "failed": "Failed", "current": "Current"}
    results = (name for key, name in states.items() if cel.evaluate(check[key], milvus))
    return next(results, "InProgress")


def test_argo_cd_and_flux_show_what_the_table_says() -> None:
    shown = {
        state: {(argo(milvus)["status"], flux(milvus)) for milvus in several}
        for state, several in STATES.items()
    }
    assert shown == {state: {(in_argo, in_flux)} for state, in_argo, in_flux in ROWS}
    assert argo(rejected("QuotaExceeded"))["message"] == "QuotaExceeded: why"
    ending = written(milvus(), READY)
    ending["metadata"]["deletionTimestamp"] = NOW
    assert flux(ending) == "InProgress"


def test_the_pod_monitor_finds_the_operator() -> None:
    pod = by_kind((TOP / "deploy.yaml").read_text())["Deployment"]["spec"]["template"]
    assert MONITOR["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    (container,) = pod["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    (endpoint,) = MONITOR["podMetricsEndpoints"]
    assert f"--health-port={ports[endpoint['port']]}" in container["args"]


def test_the_alerts_use_only_metrics_that_exist() -> None:
    metrics = [metric for metric in vars(mo).values() if isinstance(metric, MetricWrapperBase)]
    labels = {metric._name: metric._labelnames for metric in metrics}
    for alert in (rule for group in RULES["groups"] for rule in group["rules"]):
        used = re.findall(r'(milvus_\w+)(?:\{(\w+)="(\w+)"\})?', alert["expr"])
        assert used, alert["alert"]
        for name, label, value in used:
            assert labels[name.removesuffix("_total")] == ((label,) if label else ())
            assert not label or value in (*mo.STATES, "success", "failure")
