"""monitoring.yaml matches the manifests and the metrics."""

from __future__ import annotations

import re

import pytest
import yaml
from prometheus_client.metrics import MetricWrapperBase

import milvus_operator as mo
from tests.lib.kit import TOP

MONITOR, RULES = (doc["spec"] for doc in yaml.safe_load_all((TOP / "monitoring.yaml").read_text()))
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
METRICS = {
    metric._name: metric for metric in vars(mo).values() if isinstance(metric, MetricWrapperBase)
}


@pytest.mark.parametrize("name", ["deploy.yaml", "deploy-namespaced.yaml"])
def test_the_pod_monitor_finds_the_operator(name: str) -> None:
    docs = yaml.safe_load_all((TOP / name).read_text())
    (pod,) = (doc["spec"]["template"] for doc in docs if doc["kind"] == "Deployment")
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
    said = re.findall(
        r"^\| `(\w+)` \| (\w+) \| for (\d+) minutes,",
        (TOP / "docs" / "monitoring.md").read_text(),
        re.M,
    )
    assert said == [
        (rule["alert"], rule["labels"]["severity"], rule["for"].rstrip("m")) for rule in ALERTS
    ]
