"""What a spec asks for, as the API server sees it."""

from __future__ import annotations

import json

import pytest

import milvus_operator as mo
from tests.lib.kit import Kube, Obj, eventually, make_pass, rest, settle


def test_settings_reach_the_pod_and_text_is_kept_as_an_annotation(
    kube: Kube, operator: mo.Operator
) -> None:
    kube.create("a", milvusSpec="proxy: {maxNameLength: 300}\ncommon.storageType: minio")
    kube.create("b", milvusSpec="this is milvus spec")
    settle(operator)
    kube.ready("a-0", "b-0")
    pods = kube.all_pods()
    environment = {v["name"]: v.get("value") for v in pods["a-0"]["spec"]["containers"][0]["env"]}
    assert (environment["proxy.maxNameLength"], environment["common.storageType"]) == (
        "300",
        "minio",
    )
    assert "COMMON_STORAGETYPE" not in environment
    assert "zilliz.com/milvus-spec" not in pods["a-0"]["metadata"]["annotations"]
    assert pods["b-0"]["metadata"]["annotations"]["zilliz.com/milvus-spec"] == "this is milvus spec"
    assert kube.condition("Reconciled", "a")["reason"] == "Reconciled"
    assert (
        kube.condition("Reconciled", "b")["reason"],
        kube.condition("Reconciled", "b")["status"],
    ) == (
        "SpecIsText",
        "True",
    )


def test_an_overlay_that_makes_the_pod_invalid_costs_no_pod(
    kube: Kube, operator: mo.Operator
) -> None:
    kube.create(replicas=2)
    kube.create("y")
    rest(operator, kube, "x-0", "x-1", "y-0")
    before = kube.uids()
    kube.change(
        pod={"spec": {"containers": [{"name": "milvus", "ports": [{"containerPort": 99999}]}]}}
    )
    kube.change("y", replicas=2)
    settle(operator)
    assert kube.uids().items() >= before.items()
    assert "y-1" in kube.names()
    reconciled = kube.condition("Reconciled")
    assert (reconciled["status"], reconciled["reason"]) == ("False", "Invalid")
    assert "must be between 1 and 65535" in reconciled["message"]
    kube.change(
        pod={
            "metadata": {"labels": {"team": "a"}},
            "spec": {"containers": [{"name": "milvus", "ports": None}]},
        }
    )
    eventually(lambda: make_pass(operator) and kube.condition("Ready")["status"] == "True")
    assert {
        pod["metadata"]["labels"].get("team") for name, pod in kube.all_pods().items() if name < "y"
    } == {"a"}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"milvusSpec": "proxy.port: 1"}, "line 1: proxy.port cannot be changed"),
        ({"milvusSpec": "a=b: c"}, "a valid environment variable name must consist"),
        ({"storage": {"size": "0"}}, "must be greater than zero"),
        ({"pod": {"spec": {"containers": "text"}}}, "cannot be handled as a Pod"),
        ({"pod": {"spec": {"serviceAccountName": "nobody"}}}, 'serviceaccount "nobody" not found'),
        (
            {"pod": {"spec": {"volumes": [{"name": "data", "emptyDir": {"sizeLimit": "lots"}}]}}},
            "quantities must match",
        ),
    ],
)
def test_a_refused_pod_is_reported_and_harms_nobody(
    kube: Kube, operator: mo.Operator, spec: Obj, message: str
) -> None:
    kube.create("bad", **spec)
    kube.create("good")
    make_pass(operator)
    assert "good-0" in kube.names()
    assert message in kube.condition("Reconciled", "bad")["message"]
    assert kube.condition("Reconciled", "bad")["status"] == "False"


def test_a_pod_nested_thousands_of_levels_deep_is_invalid_and_harms_nobody(
    kube: Kube, operator: mo.Operator
) -> None:
    for depth in (90, 900, 4000, 8000):
        body = f'{{"apiVersion": "zilliz.com/v1", "kind": "Milvus", "metadata": {{"name": "deep-{depth}"}}, "spec": {{"image": "a", "pod": {{"spec": '
        body += '{"a":' * depth + "1" + "}" * depth + "}}}"
        kube.kubectl("create", "--raw", kube.milvuses_path, "-f", "-", stdin=body)
    kube.create("y")
    make_pass(operator)
    assert kube.names() == ["y-0"]
    for depth in (900, 4000, 8000):
        said = json.loads(
            kube.kubectl("get", "mi", f"deep-{depth}", "-o", "jsonpath={.status.conditions}")
        )
        assert said[1]["message"] == "spec.pod is nested more than 100 levels deep"


def test_a_misspelled_field_is_refused_and_costs_no_pod(kube: Kube, operator: mo.Operator) -> None:
    misspelled = {"spec": {"nodeSelektor": {"disk": "ssd"}}}
    kube.create("new", pod=misspelled)
    kube.create()
    make_pass(operator)
    eventually(lambda: mo.is_ready(kube.all_pods()["x-0"]))
    before = kube.uids()
    kube.change(pod=misspelled)
    make_pass(operator)
    assert kube.uids() == before
    assert kube.names() == ["x-0"]
    for name in ("new", "x"):
        assert 'unknown field "spec.nodeSelektor"' in kube.condition("Reconciled", name)["message"]


def test_the_crd_refuses_what_cannot_be_served(kube: Kube) -> None:
    def refused(spec: str, name: str = "x") -> str:
        body = (
            f"apiVersion: zilliz.com/v1\nkind: Milvus\nmetadata: {{name: {name}}}\nspec: {spec}\n"
        )
        return kube.kubectl("create", "-f", "-", stdin=body, check=False)

    assert "spec.image: Required value" in refused("{}")
    assert "spec.image in body should be at least 1 chars long" in refused('{image: ""}')
    assert 'spec.image: Invalid value: "number"' in refused("{image: 3.1}")
    assert "spec.replicas in body should be greater than or equal to 0" in refused(
        "{image: a, replicas: -1}"
    )
    assert "spec.replicas in body should be less than or equal to 1000" in refused(
        "{image: a, replicas: 1001}"
    )
    assert "spec.storage.size in body should match" in refused("{image: a, storage: {size: lots}}")
    assert "spec.storage.size: Required value" in refused("{image: a, storage: {}}")
    assert "spec.pod.metadata.labels.a in body must be of type string" in refused(
        "{image: a, pod: {metadata: {labels: {a: 1}}}}"
    )
    assert "spec.milvusSpec: Too long" in refused("{image: a, milvusSpec: " + "a" * 65537 + "}")
    for name in ("a.b", "a" * 53, "a" * 253):
        assert "the name of a Milvus must be a DNS label of at most 52 characters" in refused(
            "{image: a}", name
        )
    assert "created" in refused("{image: a}", "a" * 52)


def test_a_name_of_52_characters_with_a_thousand_replicas_is_a_host_name(
    kube: Kube, operator: mo.Operator
) -> None:
    name = "a" * 52
    kube.create(name)
    make_pass(operator)
    pod = mo.new_pod(kube.get(name), 999)
    kube.pods.create(body=pod, namespace=kube.ns)
    assert f"{name}-999" in kube.names()


@pytest.mark.parametrize("levels", [600, 950])
@pytest.mark.platform
def test_a_milvus_nested_deeply_is_invalid_and_harms_nobody(
    kube: Kube, operator: mo.Operator, levels: int
) -> None:
    """Too deep for the code that uses the parsed object, but not for the parser."""
    deep = '{"spec":' * levels + "{}" + "}" * levels
    spec = f'{{"image":"i","pod":{deep}}}'
    body = f'{{"apiVersion":"zilliz.com/v1","kind":"Milvus","metadata":{{"name":"deep"}},"spec":{spec}}}'
    kube.kubectl("create", "--raw", kube.milvuses_path, "-f", "-", stdin=body)
    kube.create()
    settle(operator)
    assert kube.names() == ["x-0"]
    said = kube.kubectl("get", "mi", "deep", "-o", "jsonpath={.status.conditions[1].message}")
    assert said == "spec.pod is nested more than 100 levels deep"
