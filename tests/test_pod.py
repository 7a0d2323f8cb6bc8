"""The objects that the operator makes, and how spec.pod is laid over the generated pod."""

from typing import Any

import pytest
import yaml

import milvus_operator as mo
from tests.server import Obj
from tests.test_spec import BUCKET, ETCD, PULSAR, STORAGE, server, variable
from tests.world import milvus


def new_pod(**spec: Any) -> Obj:
    there = milvus(**spec)
    return mo.new_pod(there, mo.spec_of(there), 0)


def container_of(pod: Obj, number: int = 0) -> Obj:
    return pod["spec"]["containers"][number]


def file_of(pod: Obj, name: str) -> Obj:
    return yaml.safe_load(pod["metadata"]["annotations"][f"zilliz.com/{name}"])


def by_name(items: list[Obj], key: str = "name") -> dict[str, Obj]:
    return {item[key]: item for item in items}


# --- What makes one container a whole server ---


def test_a_pod_is_a_standalone_milvus_that_its_service_can_name() -> None:
    pod = new_pod()
    container = container_of(pod)
    assert pod["metadata"]["name"] == pod["spec"]["hostname"] == "x-0"
    assert pod["spec"]["subdomain"] == "x"
    assert pod["metadata"]["labels"] == {
        "zilliz.com/milvus": "x",
        "app.kubernetes.io/name": "milvus",
        "app.kubernetes.io/instance": "x",
        "app.kubernetes.io/managed-by": "milvus-polling-operator",
        "apps.kubernetes.io/pod-index": "0",
    }
    assert pod["metadata"]["ownerReferences"] == [mo.owner_reference(milvus())]
    assert pod["spec"]["enableServiceLinks"] is False
    assert container["args"] == ["milvus", "run", "standalone"]
    assert "command" not in container
    assert [port["containerPort"] for port in container["ports"]] == [19530, 9091]
    env = {one["name"]: one["value"] for one in container["env"]}
    assert env["DEPLOY_MODE"] == "STANDALONE"
    assert (env["PROXY_PORT"], env["METRICS_PORT"]) == ("19530", "9091")
    folders = [path for path in env.values() if path.startswith("/")]
    assert len(folders) == 5
    assert all(path.startswith("/var/lib/milvus/") for path in folders)
    for probe in ("startupProbe", "readinessProbe"):
        assert container[probe]["httpGet"] == {"path": "/healthz", "port": 9091}
    assert container["livenessProbe"]["tcpSocket"] == {"port": 9091}
    assert container["resources"] == {"requests": {"cpu": "250m", "memory": "1Gi"}}


def test_the_files_of_the_settings_come_from_annotations() -> None:
    text = "proxy: {maxNameLength: 300}  # as it was written"
    pod = new_pod(milvusSpec=text)
    assert pod["metadata"]["annotations"]["zilliz.com/user.yaml"] == text
    assert file_of(pod, "etcd.yaml")["quota-backend-bytes"] == 4 << 30
    defaults = file_of(pod, "default.yaml")
    assert defaults["etcd.use.embed"] is True
    assert defaults["etcd.config.path"] == "/milvus/configs/etcd.yaml"
    assert defaults["common.storageType"] == "local"
    assert defaults["common.gracefulStopTimeout"] == 5
    assert defaults["mq.type"] == "rocksmq"
    components = {name for name in defaults if name.endswith(".ip")}
    assert {"proxy.ip", "dataNode.ip", "streamingNode.ip"} <= components
    assert {defaults[name] for name in components} == {"127.0.0.1"}
    items = by_name(pod["spec"]["volumes"])["operator-config"]["downwardAPI"]["items"]
    fields = {item["path"]: item["fieldRef"]["fieldPath"] for item in items}
    mounts = by_name(container_of(pod)["volumeMounts"], "mountPath")
    for name in ("default.yaml", "user.yaml", "etcd.yaml"):
        assert fields[name] == f"metadata.annotations['zilliz.com/{name}']"
        assert mounts[f"/milvus/configs/{name}"]["subPath"] == name


def test_words_that_set_nothing_leave_user_yaml_empty() -> None:
    pod = new_pod(milvusSpec="this is milvus spec")
    assert pod["metadata"]["annotations"]["zilliz.com/user.yaml"] == ""


KAFKA = "kafka: {brokerList: 'kafka:9092'}\n"
EXTERNAL = [
    ("", {}),
    (BUCKET, {"common.storageType": "remote"}),
    (ETCD, {"etcd.use.embed": False}),
    (PULSAR, {"mq.type": "pulsar"}),
    (KAFKA, {"mq.type": "kafka"}),
    (KAFKA + PULSAR, {"mq.type": "pulsar"}),
    ("minio.address: 127.0.0.1:9000", {}),
    ("minio.address: LocalHost", {}),
    ("etcd.endpoints: [localhost:2379, 'http://127.0.0.1:2379']", {}),
    ("etcd.endpoints: [localhost:2379, etcd:2379]", {"etcd.use.embed": False}),
    ("pulsar.address:", {}),
]


@pytest.mark.parametrize(("text", "chosen"), EXTERNAL)
def test_an_address_outside_the_pod_chooses_that_service(text: str, chosen: Obj) -> None:
    plain = file_of(new_pod(storage=STORAGE), "default.yaml")
    pod = new_pod(milvusSpec=text, storage=STORAGE)
    assert file_of(pod, "default.yaml") == plain | chosen


@pytest.mark.parametrize(
    "source",
    [{"value": "s3.example.com"}, {"valueFrom": {"secretKeyRef": {}}}, {"value": "$(HOST):9000"}],
)
@pytest.mark.parametrize("name", ["MINIO_ADDRESS", "minio.address", "MILVUS_CONF_MINIO_ADDRESS"])
def test_an_address_in_a_variable_counts_also_from_a_secret(name: str, source: Obj) -> None:
    pod = new_pod(storage=STORAGE, pod=variable(name, **source))
    assert file_of(pod, "default.yaml")["common.storageType"] == "remote"


# --- spec.pod ---


def test_maps_merge_and_null_removes_a_key() -> None:
    overlay = {
        "metadata": {
            "labels": {"team": "a", "app.kubernetes.io/instance": "theirs"},
            "annotations": {"b": "c"},
        },
        "spec": {
            "securityContext": {"runAsUser": 999, "fsGroup": None},
            "nodeSelector": {"d": "e"},
        },
    }
    pod = new_pod(pod=overlay)
    assert pod["spec"]["securityContext"] == {"runAsUser": 999}
    assert pod["spec"]["nodeSelector"] == {"d": "e"}
    assert pod["metadata"]["labels"]["team"] == "a"
    assert pod["metadata"]["labels"]["app.kubernetes.io/instance"] == "theirs"
    assert pod["metadata"]["annotations"]["b"] == "c"
    assert pod["spec"]["terminationGracePeriodSeconds"] == 60


def test_lists_merge_by_their_keys_and_others_are_replaced() -> None:
    overlay = server(
        env=[{"name": "PROXY_PORT", "valueFrom": {"fieldRef": {}}}, {"name": "A", "value": "b"}],
        ports=[{"containerPort": 9091, "hostPort": 1}, {"containerPort": 8080}],
        volumeMounts=[{"mountPath": "/cache/", "name": "cache"}],
        args=["milvus", "run", "other"],
    )
    overlay["spec"] |= {"volumes": [{"name": "cache", "emptyDir": {}}], "tolerations": [{}]}
    overlay["spec"]["containers"].append({"name": "sidecar", "image": "s"})
    pod = new_pod(pod=overlay)
    container = container_of(pod)
    env = by_name(container["env"])
    assert env["PROXY_PORT"] == {"name": "PROXY_PORT", "valueFrom": {"fieldRef": {}}}
    assert env["A"] == {"name": "A", "value": "b"}
    assert env["DEPLOY_MODE"]["value"] == "STANDALONE"
    assert {"name": "metrics", "containerPort": 9091, "hostPort": 1} in container["ports"]
    assert {"containerPort": 8080} in container["ports"]
    assert {"mountPath": "/cache", "name": "cache"} in container["volumeMounts"]
    assert container["args"] == ["milvus", "run", "other"]
    assert container_of(pod, 1)["name"] == "sidecar"
    assert [volume["name"] for volume in pod["spec"]["volumes"]] == [
        "data",
        "cache",
        "operator-config",
    ]


def test_resources_are_replaced_as_a_whole() -> None:
    limits = {"limits": {"memory": "512Mi"}}
    assert container_of(new_pod(pod=server(resources=limits)))["resources"] == limits


def test_what_the_operator_relies_on_is_ours() -> None:
    overlay = {
        "metadata": {"labels": {"zilliz.com/milvus": "y"}, "annotations": {mo.TEMPLATE_HASH: "z"}},
        "spec": {"hostname": "other", "subdomain": "other"},
    }
    pod = new_pod(pod=overlay)
    assert pod["metadata"]["labels"]["zilliz.com/milvus"] == "x"
    assert pod["metadata"]["annotations"][mo.TEMPLATE_HASH] != "z"
    assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("x-0", "x")


# --- Claims and the Service ---


def test_each_pod_has_a_claim_without_an_owner() -> None:
    there = milvus(storage={"size": "5Gi", "storageClassName": "fast"})
    spec = mo.spec_of(there)
    claim = mo.new_claim(there, spec, 2)
    assert claim["metadata"]["name"] == "data-x-2"
    assert claim["metadata"]["labels"] == {"zilliz.com/milvus": "x"}
    assert "ownerReferences" not in claim["metadata"]
    assert claim["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "5Gi"}},
        "storageClassName": "fast",
    }
    data = by_name(mo.new_pod(there, spec, 2)["spec"]["volumes"])["data"]
    assert data == {"name": "data", "persistentVolumeClaim": {"claimName": "data-x-2"}}


def test_the_service_is_headless_and_goes_with_its_milvus() -> None:
    service = mo.new_service(milvus())
    assert service["metadata"]["name"] == "x"
    assert service["metadata"]["ownerReferences"] == [mo.owner_reference(milvus())]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"zilliz.com/milvus": "x"}
    assert [port["port"] for port in service["spec"]["ports"]] == [19530, 9091]
