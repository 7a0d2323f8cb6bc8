"""What docs/integrations.md says: Prometheus (monitoring.yaml), Argo CD and Flux.

The checks for Argo CD and Flux are run on the status that the operator writes.
"""

from __future__ import annotations

import re
import subprocess
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


def test_every_row_of_the_table_is_tested() -> None:
    assert [row[0] for row in ROWS] == list(STATES)


@pytest.mark.parametrize(("state", "expected"), [(row[0], row[1]) for row in ROWS])
def test_argo_cd_shows_what_the_table_says(state: str, expected: str) -> None:
    assert [argo(milvus)["status"] for milvus in STATES[state]] == [expected] * len(STATES[state])


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


@pytest.mark.parametrize(("state", "expected"), [(row[0], row[2]) for row in ROWS])
def test_flux_shows_what_the_table_says(state: str, expected: str) -> None:
    assert [flux(milvus) for milvus in STATES[state]] == [expected] * len(STATES[state])


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


@pytest.mark.parametrize("namespace", ["", "milvus"])
def test_the_pod_monitor_finds_the_operator(namespace: str) -> None:
    make = ["make", "--silent", "manifest", f"NAMESPACE={namespace}"]
    manifest = subprocess.run(make, cwd=TOP, capture_output=True, text=True, check=True).stdout
    documents = {doc["kind"]: doc for doc in yaml.safe_load_all(manifest)}
    pod = documents["Deployment"]["spec"]["template"]
    assert MONITOR["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    (container,) = pod["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    (endpoint,) = MONITOR["podMetricsEndpoints"]
    assert f"--health-port={ports[endpoint['port']]}" in container["args"]


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_uses_only_metrics_that_exist(alert: dict[str, str]) -> None:
    used = re.findall(r'(milvus_operator_\w+)(?:\{(\w+)="(\w+)"\})?', alert["expr"])
    assert used
    for name, label, value in used:
        assert METRICS[name]._labelnames == ((label,) if label else ())
        assert not label or value in mo.STATES


def test_the_document_names_every_alert() -> None:
    said = re.findall(r"^\| `(\w+)` \| (\w+) \| for (\d+) minutes,", TEXT, re.M)
    assert said == [
        (rule["alert"], rule["labels"]["severity"], rule["for"].rstrip("m")) for rule in ALERTS
    ]
