"""What a spec asks for, as the API server sees it."""

from __future__ import annotations

import json

import pytest

import milvus_operator as mo
from tests.lib.kit import Kube, Obj, eventually, make_pass, rest, settle


def test_settings_reach_the_container_and_text_sets_nothing(
    kube: Kube, operator: mo.Operator
) -> None:
    kube.create("a", milvusSpec="proxy: {maxNameLength: 300}\ncommon.storageType: minio")
    kube.create("b", milvusSpec="this is milvus spec")
    rest(operator, kube, "a-0", "b-0")
    variables = kube.all_pods()["a-0"]["spec"]["containers"][0]["env"]
    environment = {one["name"]: one.get("value") for one in variables}
    assert environment["proxy.maxNameLength"] == "300"
    assert environment["common.storageType"] == "minio"
    assert "COMMON_STORAGETYPE" not in environment
    for name, reason in {"a": "Reconciled", "b": "SpecIsText"}.items():
        reconciled = kube.condition("Reconciled", name)
        assert (reconciled["reason"], reconciled["status"]) == (reason, "True")


@pytest.mark.parametrize(
    ("pod", "message"),
    [
        (
            {"spec": {"containers": [{"name": "milvus", "ports": [{"containerPort": 99999}]}]}},
            "must be between 1 and 65535",
        ),
        ({"spec": {"nodeSelektor": {"disk": "ssd"}}}, 'unknown field "spec.nodeSelektor"'),
    ],
)
def test_a_pod_that_would_be_refused_costs_no_pod_and_stops_no_other_milvus(
    kube: Kube, operator: mo.Operator, pod: Obj, message: str
) -> None:
    kube.create(replicas=2)
    kube.create("y")
    rest(operator, kube, "x-0", "x-1", "y-0")
    before = kube.uids()
    kube.change(pod=pod)
    kube.create("z", pod=pod)
    kube.change("y", replicas=2)
    settle(operator)
    assert kube.uids().items() >= before.items()
    assert kube.names() == ["x-0", "x-1", "y-0", "y-1"]
    for name in ("x", "z"):
        reconciled = kube.condition("Reconciled", name)
        assert (reconciled["status"], reconciled["reason"]) == ("False", "Invalid")
        assert message in reconciled["message"]
    kube.change(pod={"metadata": {"labels": {"team": "a"}}, "spec": None})
    eventually(lambda: make_pass(operator) and kube.condition("Ready")["status"] == "True")
    teams = [kube.all_pods()[name]["metadata"]["labels"].get("team") for name in ("x-0", "x-1")]
    assert teams == ["a", "a"]


REFUSED: dict[str, tuple[Obj, str]] = {
    "port": ({"milvusSpec": "proxy.port: 1"}, "line 1: proxy.port cannot be changed"),
    "key": ({"milvusSpec": "a=b: c"}, "a key must consist of printable ASCII characters"),
    "size": ({"storage": {"size": "0"}}, "must be greater than zero"),
    "shape": ({"pod": {"spec": {"containers": "text"}}}, "cannot be handled as a Pod"),
    "account": ({"pod": {"spec": {"serviceAccountName": "a"}}}, 'serviceaccount "a" not found'),
    "quantity": (
        {"pod": {"spec": {"volumes": [{"name": "data", "emptyDir": {"sizeLimit": "lots"}}]}}},
        "quantities must match",
    ),
}


def test_refusals_are_told_in_the_servers_words_and_harm_nobody(
    kube: Kube, operator: mo.Operator
) -> None:
    for name, (spec, _) in REFUSED.items():
        kube.create(name, **spec)
    kube.create()
    settle(operator)
    assert kube.names() == ["x-0"]
    for name, (_, message) in REFUSED.items():
        reconciled = kube.condition("Reconciled", name)
        assert reconciled["status"] == "False"
        assert message in reconciled["message"]


@pytest.mark.platform
def test_a_pod_nested_thousands_of_levels_deep_is_invalid_and_harms_nobody(
    kube: Kube, operator: mo.Operator
) -> None:
    depths = (90, 600, 900, 950, 4000, 8000)
    for depth in depths:
        pod = '{"spec": ' + '{"a":' * depth + "1" + "}" * depth + "}"
        head = f'"apiVersion": "{mo.API_VERSION}", "kind": "Milvus"'
        body = f'{{{head}, "metadata": {{"name": "deep-{depth}"}}, '
        body += f'"spec": {{"image": "a", "pod": {pod}}}}}'
        kube.kubectl("create", "--raw", kube.milvuses_path, "-f", "-", stdin=body)
    kube.create()
    settle(operator)
    assert kube.names() == ["x-0"]
    for depth in depths[1:]:
        path = "jsonpath={.status.conditions}"
        said = json.loads(kube.kubectl("get", "mi", f"deep-{depth}", "-o", path))
        assert said[1]["message"] == "the spec is nested more than 100 levels deep"


def test_the_crd_refuses_what_cannot_be_served(kube: Kube) -> None:
    def answer(spec: str, name: str = "x") -> str:
        head = f"apiVersion: {mo.API_VERSION}\nkind: Milvus\nmetadata: {{name: {name}}}\n"
        body = f"{head}spec: {{image: a, {spec}}}\n"
        return kube.kubectl("create", "-f", "-", stdin=body.replace("image: a, image", "image"),
                            check=False)  # fmt: skip

    for spec, words in {
        "image: ": "spec.image: Required value",
        'image: ""': "spec.image in body should be at least 1 chars long",
        "image: 3.1": 'spec.image: Invalid value: "number"',
        "replicas: -1": "spec.replicas in body should be greater than or equal to 0",
        "replicas: 1001": "spec.replicas in body should be less than or equal to 1000",
        "storage: {size: lots}": "spec.storage.size in body should match",
        "storage: {}": "spec.storage.size: Required value",
        "pod: {metadata: {labels: {a: 1}}}": "labels.a in body must be of type string",
        f"milvusSpec: {'a' * 65537}": "spec.milvusSpec: Too long",
    }.items():
        assert words in answer(spec)
    for name in ("a.b", "a" * 53, "a" * 253):
        words = "the name of a Milvus must be a DNS label of at most 52 characters"
        assert words in answer("", name)
    assert "created" in answer("", "a" * 52)


def test_a_name_of_52_characters_with_a_thousand_replicas_is_a_host_name(
    kube: Kube, operator: mo.Operator
) -> None:
    name = "a" * 52
    kube.create(name)
    make_pass(operator)
    milvus = kube.get(name)
    kube.pods.create(body=mo.new_pod(milvus, mo.spec_of(milvus), 999), namespace=kube.ns)
    assert kube.names() == [f"{name}-0", f"{name}-999"]
