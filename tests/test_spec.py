"""What a spec may say, what is refused, and which changes of it replace pods."""

from typing import Any

import pytest
import yaml

import milvus_operator as mo
from tests.server import Obj
from tests.world import milvus

BUCKET = "minio: {address: s3.example.com}\n"
ETCD = "etcd: {endpoints: 'etcd-0.etcd:2379,etcd-1.etcd:2379'}\n"
PULSAR = "pulsar: {address: pulsar.example.com}\n"
STORAGE = {"size": "1Gi"}
NFS = {"name": "data", "nfs": {"server": "nfs", "path": "/"}}


def server(**fields: Any) -> Obj:
    """spec.pod with these fields of the container milvus."""
    return {"spec": {"containers": [{"name": "milvus"} | fields]}}


def variable(name: str, **source: Any) -> Obj:
    return server(env=[{"name": name} | source])


def volume(volume: Obj, **mount: Any) -> Obj:
    """spec.pod with this volume, and where it is mounted: for all data if nothing else is said."""
    mount = {"name": volume["name"], "mountPath": "/var/lib/milvus"} | mount
    return {"spec": {"volumes": [volume]} | server(volumeMounts=[mount])["spec"]}


def why_invalid(**spec: Any) -> str:
    """What is wrong with a spec; empty if nothing is."""
    return mo.new_memory(milvus(**spec)).why_invalid


# --- milvusSpec ---

SETTINGS = {
    "": {},
    "this is milvus spec": {},
    "# only a comment": {},
    "proxy: {maxNameLength: 300}": {"proxymaxnamelength": "300"},
    "proxy.maxNameLength: 300": {"proxymaxnamelength": "300"},
    "proxy:\n  maxNameLength: '300'": {"proxymaxnamelength": "300"},
    "milvus.proxy.port: 19530": {"proxyport": "19530"},
    "a: [1, two, on]": {"a": "1,two,on"},
    "a: on\nb: null\nc:": {"a": "on", "b": "null", "c": ""},
    "---\na: 1\n": {"a": "1"},
}


@pytest.mark.parametrize("text", SETTINGS)
def test_settings_have_the_names_by_which_milvus_compares_them(text: str) -> None:
    assert mo.spec_of(milvus(milvusSpec=text)).settings == SETTINGS[text]


REFUSED_TEXTS = {
    "a: {b: secret": "line 1: this is not a single, valid YAML document",
    "a: 1\n---\nb: 2": "line 2: this is not a single, valid YAML document",
    "a: 1\n b: secret": "line 2: this is not a single, valid YAML document",
    "a: secret\nb: 2\na: 3": "line 3: this section or setting appears twice",
    "a: {b: 1, b: secret}": "line 1: this section or setting appears twice",
    "a: &x secret\nb: *x": "line 2: aliases and tags (& * !) are not allowed",
    "a:\n  key: {{ .Values.secret }}": "line 2: this is not a single, valid YAML document",
    "a: !!int secret": "line 1: aliases and tags (& * !) are not allowed",
    "- a: secret": "is not a YAML mapping: write `name: value`",
    "maxNameLength=secret": "is not a YAML mapping: write `name: value`",
    "a: [" * 100_000: "this is not a single, valid YAML document",
    "\n".join(f"a{number}: 1" for number in range(2501)): "more than 2500 settings",
}


@pytest.mark.parametrize("text", REFUSED_TEXTS, ids=range(len(REFUSED_TEXTS)))
def test_a_text_that_milvus_would_misread_is_invalid_and_never_quoted(text: str) -> None:
    found = why_invalid(milvusSpec=text)
    assert found.startswith("spec.milvusSpec")
    assert REFUSED_TEXTS[text] in found
    assert "secret" not in found


def test_a_long_name_above_many_settings_costs_no_memory() -> None:
    text = f"? {'n' * 57_000}\n:\n" + "".join(f"  a{number}: 1\n" for number in range(1000))
    assert mo.spec_of(milvus(milvusSpec=text)).settings == {}


def test_the_manifest_of_the_first_example_is_accepted() -> None:
    manifest = """
        apiVersion: zilliz.com/v1
        kind: Milvus
        metadata: {name: milvus-crd-test, namespace: test}
        spec: {milvusSpec: "this is milvus spec", image: milvusdb/milvus}
    """
    spec = mo.spec_of(milvus() | {"spec": yaml.safe_load(manifest)["spec"]})
    assert (spec.image, spec.user_file) == ("milvusdb/milvus", "")


# --- What would lose data ---

REFUSED: dict[str, Obj] = {
    "must not change what the variable PROXY_PORT sets": {"milvusSpec": "proxy.port: 1"},
    "must not change what the variable LOCALSTORAGE_PATH sets": {
        "milvusSpec": "localStorage: {path: /data}"
    },
    "terminationGracePeriodSeconds must not be 0": {
        "pod": {"spec": {"terminationGracePeriodSeconds": 0}}
    },
    "the data of vectors would end with the pod, although": {
        "storage": STORAGE,
        "pod": volume({"name": "data", "ephemeral": {"volumeClaimTemplate": {}}}),
    },
    "must not have envFrom": {"pod": server(envFrom=[{"secretRef": {"name": "a"}}])},
    "no volume is mounted at /data": {"pod": variable("LOCALSTORAGE_PATH", value="/data")},
    "the data of etcd would end with the pod, although": {
        "storage": STORAGE,
        "pod": volume({"name": "fast", "emptyDir": {}}, mountPath="//var/lib/milvus/etcd/"),
    },
    "the data of etcd and queue would end with the pod, and": {"milvusSpec": BUCKET},
    "the data of queue would end with the pod, and": {"milvusSpec": BUCKET + ETCD},
    "the data of vectors and queue would end with the pod": {
        "pod": variable("ETCD_ENDPOINTS", valueFrom={"secretKeyRef": {"name": "a", "key": "b"}})
    },
    "all replicas would share their etcd": {
        "milvusSpec": BUCKET + ETCD + PULSAR,
        "replicas": 2,
    },
    "all replicas would share their vectors": {"pod": volume(NFS), "replicas": 2},
    "settings of its own at /milvus/configs/user.yaml": {
        "pod": server(volumeMounts=[{"name": "a", "mountPath": "/milvus/configs/user.yaml"}])
    },
    "settings of its own at /milvus/configs": {
        "pod": server(volumeMounts=[{"name": "a", "mountPath": "/milvus/configs/"}])
    },
    "containers in spec.pod must be a list of mappings": {"pod": {"spec": {"containers": "a"}}},
    "securityContext in spec.pod must be a mapping": {"pod": {"spec": {"securityContext": []}}},
    "has the wrong type (TypeError)": {"replicas": "2"},
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_would_lose_data_is_invalid(words: str) -> None:
    assert words in why_invalid(**REFUSED[words])


ACCEPTED: dict[str, Obj] = {
    "settings of a pasted milvus.yaml": {
        "milvusSpec": "localStorage: {path: /var/lib/milvus/data/}\n"
        "etcd: {endpoints: 'localhost:2379, 127.0.0.1:2379', data: {dir: default.etcd}}\n"
        "minio: {address: localhost}\npulsar: {address: }\nproxy: {port: 19530}",
        "replicas": 3,
    },
    "all three parts outside": {"milvusSpec": BUCKET + ETCD + PULSAR},
    "a bucket, and a claim for the rest": {"milvusSpec": BUCKET, "storage": STORAGE},
    "a bucket, an etcd, and woodpecker in the bucket": {
        "milvusSpec": BUCKET + ETCD + "mq: {type: woodpecker}"
    },
    "another port and another folder by variables": {
        "pod": server(
            env=[
                {"name": "PROXY_PORT", "value": "1953"},
                {"name": "LOCALSTORAGE_PATH", "value": "/var/lib/milvus/elsewhere"},
            ]
        )
    },
    "NFS for one": {"pod": volume(NFS)},
    "NFS with a folder for each": {"pod": volume(NFS, subPathExpr="$(POD_NAME)"), "replicas": 3},
    "an emptyDir for caches beside the claim": {
        "storage": STORAGE,
        "pod": volume({"name": "cache", "emptyDir": {}}, mountPath="/var/lib/milvus/dat"),
    },
    "a claim for each": {"storage": STORAGE, "replicas": 3},
}


@pytest.mark.parametrize("what", ACCEPTED)
def test_safe_layouts_are_accepted(what: str) -> None:
    assert why_invalid(**ACCEPTED[what]) == ""


# --- Which changes replace pods ---

LABELS = {"metadata": {"labels": {"a": "b", "c": "d"}}}
SAME: list[tuple[Obj, Obj]] = [
    ({"milvusSpec": "a: 1\nb: 2"}, {"milvusSpec": "# new\nb: '2'\n\na: \"1\""}),
    ({"milvusSpec": "a: {b: 1}"}, {"milvusSpec": "a.b: 1"}),
    ({"milvusSpec": "these words"}, {"milvusSpec": "and those"}),
    ({"pod": LABELS}, {"pod": {"metadata": {"labels": {"c": "d", "a": "b"}}, "spec": {}}}),
    ({}, {"replicas": 5, "updateStrategy": {"type": "OnDelete"}}),
    ({"storage": {"size": "1Gi"}}, {"storage": {"size": "2Gi"}}),
]
OTHER: list[tuple[Obj, Obj]] = [
    ({}, {"image": "milvus:2"}),
    ({"milvusSpec": "a: 1"}, {"milvusSpec": "a: 2"}),
    ({}, {"pod": LABELS}),
]


@pytest.mark.parametrize(("before", "after"), SAME)
def test_a_change_without_meaning_replaces_no_pod(before: Obj, after: Obj) -> None:
    first, second = mo.spec_of(milvus(**before)), mo.spec_of(milvus(**after))
    assert first.template_hash == second.template_hash


@pytest.mark.parametrize(("before", "after"), OTHER)
def test_a_change_of_image_settings_or_pod_replaces_pods(before: Obj, after: Obj) -> None:
    first, second = mo.spec_of(milvus(**before)), mo.spec_of(milvus(**after))
    assert first.template_hash != second.template_hash


def test_a_new_version_of_the_operator_replaces_no_pods() -> None:
    """If one of these must change, every pod of every user is replaced: say so in the changelog."""
    specs: dict[str, Obj] = {
        "bc6eef5be75b1860": {},
        "9427172a0f46b06c": {"milvusSpec": "proxy: {maxNameLength: 300}", "storage": STORAGE},
        "69521e7d0f631cdb": {"pod": LABELS},
    }
    assert [mo.spec_of(milvus(**spec)).template_hash for spec in specs.values()] == [*specs]
