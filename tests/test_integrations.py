"""What docs/integrations.md says: Prometheus (monitoring.yaml), Argo CD and Flux.

The checks for Argo CD and Flux are run on the status that the operator writes.
"""

from __future__ import annotations

import re
from typing import Any

import cel
import pytest
import yaml
from lupa import lua51  # type: ignore[import-untyped]
from prometheus_client.metrics import MetricWrapperBase

import milvus_operator as mo
from tests.lib.kit import TOP, Obj
from tests.lib.objects import NOW, milvus, pod, pods, read

TEXT = (TOP / "docs" / "integrations.md").read_text()

# Argo CD and Flux ----------------------------------------------------------------------

ROWS = re.findall(r"^\| (.+) \| (\w+) \| (\w+) \|$", TEXT, re.M)
ARGO, FLUX = (
    yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.M | re.S)
)
(VERSION,) = yaml.safe_load((TOP / "crd.yaml").read_text())["spec"]["versions"]
UNSEEN = VERSION["schema"]["openAPIV3Schema"]["properties"]["status"]["default"]
UNPULLED = {"name": "milvus", "state": {"waiting": {"reason": "ImagePullBackOff"}}}


def written(milvus: Obj, pods: list[Obj], **problems: mo.Reason) -> Obj:
    """The Milvus with the status that the operator writes for it; `problems` is by pod."""
    by_name = {name.replace("_", "-"): problem for name, problem in problems.items()}
    status = mo.status_of(milvus, read(milvus), pods, by_name, NOW)
    return milvus | {"status": status}


def rejected(reason: str) -> Obj:
    return written(milvus(3), pods("x-0, x-1"), x_2=mo.Reason(reason, "why"))


READY = pods("x-0, x-1, x-2")
CHANGED = milvus(image="milvus:2")
CHANGED["metadata"]["generation"] = 2
NEW = pods("x-0, x-1, x-2")
for _pod in NEW:
    _pod["metadata"]["annotations"][mo.TEMPLATE_HASH] = read(CHANGED).template_hash
STATES = {
    "was created, and no operator has seen it yet": [milvus() | {"status": UNSEEN}],
    "waits for its pods, or for an image that can't be pulled": [
        written(milvus(), []),
        written(milvus(), pods("x-0, x-1")),
        written(milvus(1), [pod("x-0", "starting", containerStatuses=[UNPULLED])]),
    ],
    "has all its pods ready and up to date": [written(milvus(), READY), written(CHANGED, NEW)],
    "is scaled to 0": [written(milvus(0), [])],
    "was changed, and the operator has not looked since": [
        CHANGED | {"status": written(milvus(), READY)["status"]}
    ],
    "is in a rolling update": [written(CHANGED, READY)],
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


def test_argo_cd_says_why() -> None:
    assert argo(rejected("QuotaExceeded"))["message"] == "QuotaExceeded: why"
    ready = argo(written(milvus(), READY))["message"]
    assert ready == "Ready: 3 of 3 pods are ready and up to date"
    assert argo(milvus()) == {"status": "Healthy", "message": "the CRD has no status"}


def flux(milvus: Obj) -> str:
    """The result of the expressions, in Flux's order, after it has compared the generations."""
    if milvus["status"].get("observedGeneration") not in (None, milvus["metadata"]["generation"]):
        return "InProgress"
    (check,) = FLUX["spec"]["healthCheckExprs"]
    states = {"inProgress": "InProgress", "failed": "Failed", "current": "Current"}
    results = (name for key, name in states.items() if cel.evaluate(check[key], milvus))
    return next(results, "InProgress")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_argo_cd_and_flux_show_what_the_table_says(row: tuple[str, str, str]) -> None:
    state, in_argo, in_flux = row
    shown = {(argo(milvus)["status"], flux(milvus)) for milvus in STATES[state]}
    assert shown == {(in_argo, in_flux)}


def test_every_row_of_the_table_is_tested() -> None:
    assert [row[0] for row in ROWS] == list(STATES)


def test_flux_waits_for_a_deletion() -> None:
    ending = written(milvus(), READY)
    ending["metadata"]["deletionTimestamp"] = NOW
    assert flux(ending) == "InProgress"


# Prometheus ----------------------------------------------------------------------------

MONITOR, RULES = (doc["spec"] for doc in yaml.safe_load_all((TOP / "monitoring.yaml").read_text()))
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
METRICS = {
    metric._name: metric for metric in vars(mo).values() if isinstance(metric, MetricWrapperBase)
}


def test_the_pod_monitor_finds_the_operator() -> None:
    manifests = yaml.safe_load_all((TOP / "deploy.yaml").read_text())
    (pod,) = (one["spec"]["template"] for one in manifests if one["kind"] == "Deployment")
    assert MONITOR["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    (container,) = pod["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    (endpoint,) = MONITOR["podMetricsEndpoints"]
    assert f"--health-port={ports[endpoint['port']]}" in container["args"]


def test_the_alerts_use_only_metrics_that_exist_and_the_document_names_them() -> None:
    for alert in ALERTS:
        used = re.findall(r'(milvus_\w+)(?:\{(\w+)="(\w+)"\})?', alert["expr"])
        assert used, alert["alert"]
        for name, label, value in used:
            assert METRICS[name]._labelnames == ((label,) if label else ())
            assert not label or value in mo.STATES
    said = re.findall(r"^\| `(\w+)` \| (\w+) \| for (\d+) minutes,", TEXT, re.M)
    assert said == [
        (rule["alert"], rule["labels"]["severity"], rule["for"].rstrip("m")) for rule in ALERTS
    ]
