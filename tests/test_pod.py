"""The generated pod: its template, the settings of Milvus, the overlay, the claim."""

from typing import Any

import pytest
import yaml

import milvus_operator as mo
from tests.lib.objects import Obj, milvus, read


def new_pod(ordinal: int = 0, **spec: Any) -> Obj:
    there = milvus(**spec)
    return mo.new_pod(there, mo.spec_of(there), ordinal)


def environment(pod: Obj) -> dict[str, Any]:
    found = dict[str, Any]()
    for variable in pod["spec"]["containers"][0]["env"]:
        name, value = variable.values()
        assert name not in found
        found[name] = value
    return found


def test_the_pod_at_a_glance() -> None:
    """The fingerprint is that of version 0.1.0: a newer one must not restart pods."""
    overlay = {"metadata": {"labels": {"team": "search"}}}
    made = new_pod(7, milvusSpec="this is milvus spec", pod=overlay)
    assert environment(made) == mo.DEFAULTS
    del made["spec"]["containers"][0]["env"]
    assert made == yaml.safe_load(f"""
        apiVersion: v1
        kind: Pod
        metadata:
          name: x-7
          namespace: ns
          labels: {{app.kubernetes.io/name: milvus, app.kubernetes.io/instance: x,
            app.kubernetes.io/managed-by: milvus-polling-operator,
            apps.kubernetes.io/pod-index: "7", team: search}}
          annotations: {{zilliz.com/template-hash: "5758def771d788f1"}}
          ownerReferences: [{{apiVersion: zilliz.com/v1, kind: Milvus, name: x, uid: uid-of-x,
            controller: true, blockOwnerDeletion: true}}]
        spec:
          {{hostname: x-7, subdomain: x, terminationGracePeriodSeconds: 60,
          automountServiceAccountToken: false, enableServiceLinks: false,
          securityContext: {{fsGroup: 999}}, volumes: [{DATA}],
          containers: [{{
            name: milvus, image: milvus:1, args: [milvus, run, standalone],
            ports: [{PORTS}], volumeMounts: [{MOUNT}],
            startupProbe: {{{HEALTHZ}, timeoutSeconds: 5, periodSeconds: 5, failureThreshold: 60}},
            readinessProbe: {{{HEALTHZ}, timeoutSeconds: 5}},
            livenessProbe: {{tcpSocket: {{port: 9091}}, timeoutSeconds: 5, periodSeconds: 15}},
            resources: {{requests: {{cpu: 250m, memory: 1Gi}}}},
            securityContext: {{allowPrivilegeEscalation: false}}}}]}}
        """)


# --- spec.milvusSpec ---
SETTINGS = {
    "proxy: {a: 255}\nmilvus.b: 1": "proxy.a=255 milvus.b=1",
    "a: {b: {c: 1, d: 2}, e: 3}": "a.b.c=1 a.b.d=2 a.e=3",
    "a: {list: [1, two, 3.0]}\nb: []": "a.list=1,two,3.0 b=",
    "a: off\nb: 0777\nc: 1e3\nd:": "a=off b=0777 c=1e3 d=",
    "a: 'it''s'\nb: >-\n  a\n  b": "a=it's b=a b",
    "a: !!int 5\nb: !!python/object:os.system x": "a=5 b=x",
    "a b~!: é€😀": "a b~!=é€😀",
    "{a: " * 50 + "}" * 50: ".".join("a" * 50) + "=",
    "# a: comment": "",
}


@pytest.mark.parametrize(("text", "settings"), SETTINGS.items())
def test_what_milvus_spec_means(text: str, settings: str) -> None:
    found = read(milvus(milvusSpec=text)).settings
    assert " ".join(f"{name}={value}" for name, value in found.items()) == settings


@pytest.mark.parametrize("text", ["this is milvus spec", "42", "null", "- a\n- b"])
def test_text_that_is_no_typing_error_sets_nothing(text: str) -> None:
    spec = read(milvus(milvusSpec=text))
    assert (spec.is_text, spec.settings, spec.invalid) == (True, {}, "")


# What is wrong with a text: such texts, each after the number of the line that is named.
INVALID = {
    # A typing error: a pod without these settings would run beside its data.
    "it is not a YAML mapping: write `name: value`": ["1 a:1", "2 \na=1", "1 - a: 1"],
    "leave out proxy.port and metrics.port: the ports are fixed": [
        *("1 proxy: {port: 1}", "2 a: 1\nMILVUS_CONF_PROXY_PORT: 1", "1 metrics: {port: 1}"),
    ],
    "a list may hold only scalars, not mappings or lists": ["1 a: [{b: c}]", "2 a: 1\nb: [[c]]"],
    "it sets the same setting as line 2": ["4 b: 1\na: 1\n\na: 2"],
    "it sets the same setting as line 1": ["3 MILVUS_CONF_a_b: a\na:\n  B: b"],
    "anchors and aliases are not allowed: write the value": ["1 a: &x 1\nb: *x", "2 b: 1\n<<: *x"],
    "a key must be a non-empty string": ["1 ? [a]\n: b", "1 a: {'': b}"],
    "a key must be short, printable ASCII text without =": [
        *("2 a: 1\nb=c: 1", "1 é: 1", '1 "a\\nb": 1', '1 "\\x7F": 1', f"1 {'k' * 257}: 1"),
    ],
    "it is not valid YAML": ["2 a: 1\r\nb: c: d\r\n", "2 a: b\n---\nc: d"],
    "it is longer than any configuration of Milvus": [
        *("1 {" + "b," * 10_000 + "}", "1 [" + "[]," * 10_000 + "]"),
        "1000 " + "\n".join(f"k{i}: v" for i in range(1001)),
    ],
    "it ": ['1 a: "\\U00110000"', '1 a: "\\UFFFFFFFF"', "1 a: \ud800", "1 " + "- " * 10_000],
}


@pytest.mark.parametrize("message", INVALID)
@pytest.mark.parametrize("loader", [mo.YAML_LOADER, yaml.BaseLoader])
def test_what_milvus_spec_must_not_contain(
    message: str, loader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with a PyYAML without libyaml."""
    monkeypatch.setattr(mo, "YAML_LOADER", loader)
    for case in INVALID[message]:
        line, _, text = case.partition(" ")
        found = read(milvus(milvusSpec=text)).invalid
        assert found.startswith(f"spec.milvusSpec, line {line}: {message}"), case


OURS = """
common.storageType COMMON_STORAGETYPE common/storage_type Milvus.common.storageType
milvus.COMMON_STORAGETYPE MILVUS_CONF_COMMON_STORAGETYPE MILVUS_CONF_milvus.common.storageType
"""
OTHERS = """
milvus_common_storageType milvus_conf_COMMON_STORAGETYPE my.common.storageType
common.milvus.storageType milvus.milvus.common.storageType
"""
SECRET = {"secretKeyRef": {"name": "s", "key": "k"}}


@pytest.mark.parametrize("name", (OURS + OTHERS).split())
def test_a_users_setting_replaces_ours_however_it_is_spelled(name: str) -> None:
    expected = dict(mo.DEFAULTS)
    if name in OURS.split():
        del expected["COMMON_STORAGETYPE"]
    assert environment(new_pod(milvusSpec=f"{name}: minio")) == expected | {name: "minio"}
    variable = {"name": name, "valueFrom": SECRET}
    over = {"name": "milvus", "env": [variable]}
    made = new_pod(pod={"spec": {"containers": [over]}})
    assert environment(made) == expected | {name: SECRET}


@pytest.mark.parametrize("value", ["$(HOME)", "a$$"])
def test_a_value_reaches_the_server_as_it_is_written(value: str) -> None:
    """Kubernetes expands $(NAME), and reads $$ as an escaped $."""
    sent = environment(new_pod(milvusSpec=f"password: {value}"))["password"]
    assert sent == value.replace("$", "$$")


# --- spec.pod ---
DATA = "{name: data, emptyDir: {}}"
PORTS = "{name: milvus, containerPort: 19530}, {name: metrics, containerPort: 9091}"
MOUNT = "{name: data, mountPath: /var/lib/milvus}"
OTHER_MOUNT = "{name: a, mountPath: /var/lib/milvus}"
HEALTHZ = "httpGet: {path: /healthz, port: 9091}"
PROBE = "timeoutSeconds: 5, periodSeconds: 5, failureThreshold: 60"
# What is laid over the spec of the pod: what differs then; null if it is removed.
OVER_POD = {
    "subdomain: null": "subdomain: null",
    "securityContext: {runAsUser: 5}": "securityContext: {fsGroup: 999, runAsUser: 5}",
    "volumes: [{name: a}]": f"volumes: [{DATA}, {{name: a}}]",
    "volumes: [{name: data, hostPath: {}}]": "volumes: [{name: data, hostPath: {}}]",
    "volumes: text": "volumes: text",  # for the API server to reject
}
OVER_CONTAINER = {
    "{image: mine:2, args: []}": "{image: mine:2, args: []}",
    "resources: {requests: {cpu: 2}}": "resources: {requests: {cpu: 2, memory: 1Gi}}",
    "ports: [{containerPort: 80}]": f"ports: [{PORTS}, {{containerPort: 80}}]",
    "ports: [{name: a, containerPort: 9091}]": f"ports: [{PORTS.replace('metrics', 'a')}]",
    "ports: [{containerPort: 9091, protocol: UDP}]": (
        f"ports: [{PORTS}, {{containerPort: 9091, protocol: UDP}}]"
    ),
    "volumeMounts: [{mountPath: /tmp}]": f"volumeMounts: [{MOUNT}, {{mountPath: /tmp}}]",
    f"volumeMounts: [{OTHER_MOUNT}]": f"volumeMounts: [{OTHER_MOUNT}]",
    "startupProbe: {httpGet: , exec: {}}": f"startupProbe: {{exec: {{}}, {PROBE}}}",
    "livenessProbe: null": "livenessProbe: null",
}


def differing(base: Obj, text: str) -> Obj:
    """The mapping with these other values, without those that are null."""
    changed = base | yaml.safe_load(text)
    return mo.pick(changed, changed)


@pytest.mark.parametrize(("over", "expected"), OVER_POD.items())
def test_what_is_laid_over_the_pod(over: str, expected: str) -> None:
    made = new_pod(pod={"spec": yaml.safe_load(over)})["spec"]
    assert made == differing(new_pod()["spec"], expected)


@pytest.mark.parametrize(("over", "expected"), OVER_CONTAINER.items())
def test_what_is_laid_over_the_container(over: str, expected: str) -> None:
    side = {"name": "side", "image": "side:1"}
    changed = {"name": "milvus"} | yaml.safe_load(over)
    spec = {"containers": [side, changed]}
    made = new_pod(pod={"spec": spec})["spec"]["containers"]
    (plain,) = new_pod()["spec"]["containers"]
    made.remove(side)
    assert made == [differing(plain, expected)]


def test_labels_and_annotations_are_added_and_ours_stay() -> None:
    over = yaml.safe_load("""
        name: y
        finalizers: [never/ends]
        labels: {app.kubernetes.io/managed-by: me, apps.kubernetes.io/pod-index: "9", own: "1"}
        annotations: {zilliz.com/template-hash: "0", own: "1"}
        """)
    fingerprint = read(milvus(pod={"metadata": over})).template_hash
    expected = new_pod()["metadata"]
    expected["labels"]["own"] = "1"
    expected["annotations"] = {mo.TEMPLATE_HASH: fingerprint, "own": "1"}
    assert new_pod(pod={"metadata": over})["metadata"] == expected


# --- The claim ---
def test_each_pod_has_a_claim_of_its_own() -> None:
    """With no label that other tools delete by, and no owner. The size 0 is a size, too."""
    stored = milvus(storage={"size": 0, "storageClassName": ""})
    made = mo.new_pod(stored, read(stored), 3)
    (volume,) = made["spec"]["volumes"]
    assert volume["persistentVolumeClaim"] == {"claimName": "data-x-3"}
    assert mo.new_claim(stored, read(stored), 3) == yaml.safe_load("""
        apiVersion: v1
        kind: PersistentVolumeClaim
        metadata: {name: data-x-3, namespace: ns, labels: {zilliz.com/milvus: x}}
        spec:
          accessModes: [ReadWriteOnce]
          resources: {requests: {storage: 0}}
          storageClassName: ""
        """)
