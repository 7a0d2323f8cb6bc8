"""The generated pod: its template, the settings of Milvus, the overlay, the claim."""

import tracemalloc
from typing import Any

import pytest
import yaml

import milvus_operator as mo
from tests.lib.objects import Obj, milvus, read


def new_pod(ordinal: int = 0, **spec: Any) -> Obj:
    there = milvus(**spec)
    return mo.new_pod(there, mo.spec_of(there), ordinal)


def laid_over(**over: Any) -> Any:
    """The pod's spec when this is in spec.pod.spec."""
    return new_pod(pod={"spec": over})["spec"]


def container(**over: Any) -> Any:
    """The container of Milvus when this is laid over it."""
    return laid_over(containers=[{"name": "milvus"} | over])["containers"][0]


def environment(pod: Obj) -> dict[str, Any]:
    variables = pod["spec"]["containers"][0]["env"]
    found = {one["name"]: one.get("value", one.get("valueFrom")) for one in variables}
    assert len(found) == len(variables)
    return found


DATA = "{name: data, emptyDir: {}}"
PORTS = "{name: milvus, containerPort: 19530}, {name: metrics, containerPort: 9091}"
MOUNT = "{name: data, mountPath: /var/lib/milvus}"
HEALTHZ = "httpGet: {path: /healthz, port: 9091}"


def test_the_pod_at_a_glance() -> None:
    made = new_pod(7, milvusSpec="this is milvus spec")
    fingerprint = read(milvus(milvusSpec="this is milvus spec")).template_hash
    assert environment(made) == mo.DEFAULTS
    del made["spec"]["containers"][0]["env"]
    assert made == yaml.safe_load(f"""
        apiVersion: v1
        kind: Pod
        metadata:
          name: x-7
          namespace: ns
          labels:
            app.kubernetes.io/name: milvus
            app.kubernetes.io/instance: x
            app.kubernetes.io/managed-by: milvus-polling-operator
            apps.kubernetes.io/pod-index: "7"
          annotations: {{zilliz.com/template-hash: {fingerprint}}}
          ownerReferences:
          - {{apiVersion: zilliz.com/v1, kind: Milvus, name: x, uid: uid-of-x, controller: true, blockOwnerDeletion: true}}
        spec:
          hostname: x-7
          subdomain: x
          automountServiceAccountToken: false
          enableServiceLinks: false
          terminationGracePeriodSeconds: 60
          securityContext: {{fsGroup: 999}}
          containers:
          - name: milvus
            image: milvus:1
            args: [milvus, run, standalone]
            ports: [{PORTS}]
            startupProbe: {{{HEALTHZ}, timeoutSeconds: 5, periodSeconds: 5, failureThreshold: 60}}
            readinessProbe: {{{HEALTHZ}, timeoutSeconds: 5, periodSeconds: 10, failureThreshold: 3}}
            livenessProbe: {{tcpSocket: {{port: 9091}}, timeoutSeconds: 5, periodSeconds: 15}}
            resources: {{requests: {{cpu: 250m, memory: 1Gi}}}}
            securityContext: {{allowPrivilegeEscalation: false}}
            volumeMounts: [{MOUNT}]
          volumes: [{DATA}]
    """)


# --- spec.milvusSpec ---
@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("proxy: {a: 255}\nmilvus.b: 1", {"proxy.a": "255", "milvus.b": "1"}),
        ("a: {b: {c: 1, d: 2}, e: 3}", {"a.b.c": "1", "a.b.d": "2", "a.e": "3"}),
        ("a: {list: [1, two, 3.0]}\nb: []", {"a.list": "1,two,3.0", "b": ""}),
        ("a: off\nb: 0777\nc: 1e3\nd:", {"a": "off", "b": "0777", "c": "1e3", "d": ""}),
        ("a: 'it''s'\nb: >-\n  a\n  b", {"a": "it's", "b": "a b"}),
        ("a: !!int 5\nb: !!python/object:os.system x", {"a": "5", "b": "x"}),
        ("a: é€😀", {"a": "é€😀"}),
        ("a b~!: 1", {"a b~!": "1"}),
        ("a: " + "9" * 65533, {"a": "9" * 65533}),
        ("{a: " * 32 + "1" + "}" * 32, {".".join("a" * 32): "1"}),
        ("\n".join(f"k{i}: v" for i in range(1000)), {f"k{i}": "v" for i in range(1000)}),
        ("\n".join(f"k{i}: {{a: 1}}" for i in range(33)), {f"k{i}.a": "1" for i in range(33)}),
        *((text, {}) for text in ("{}", "", "  \n", "# a: comment")),
        # Text that is no typing error, such as that of the original example, sets nothing.
        *((text, None) for text in ("this is milvus spec", "42", "null", "- a\n- b", "[a, 1]")),
    ],
)
def test_what_milvus_spec_means(text: str, settings: dict[str, str] | None) -> None:
    assert mo.settings_of(text) == settings


PROXY = "proxy.port cannot be changed: the ports of the pod depend on it"
TYPO = "it is not a YAML mapping: write `name: value`"
LIST = "a list may hold only scalars, not mappings or lists"
NO_NAME = "a key must be a non-empty string"
ALIAS = "anchors and aliases are not allowed: write the value instead"
LEVELS = "it has more than 32 levels of nesting"
BAD_KEY = "a key must be short, printable ASCII text without ="
NO_YAML = "it is not valid YAML"
WIDE = "? " + "k" * 60_000 + "\n: {" + ",".join(f"a{i}" for i in range(900)) + "}"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        # A typing error: a pod without these settings would run beside its data.
        ("a:1", 1, TYPO),
        ("\na=1", 2, TYPO),
        ("- a: 1", 1, TYPO),
        ("'a: 1'", 1, TYPO),
        ("proxy: {port: 1}", 1, PROXY),
        ("a: 1\nMILVUS_CONF_PROXY_PORT: 1", 2, PROXY),
        ("metrics: {port: 1}", 1, PROXY.replace("proxy", "metrics")),
        ("a: [{b: c}]", 1, LIST),
        ("a: 1\nb: [[c]]", 2, LIST),
        ("b: 1\na: 1\n\na: 2", 4, "it sets the same setting as line 2"),
        ("MILVUS_CONF_a_b: a\na:\n  B: b", 3, "it sets the same setting as line 1"),
        ("a: &x 1\nb: *x", 1, ALIAS),
        ("b: 1\n<<: *x\na: 1", 2, ALIAS),
        ("&a text", 1, ALIAS),
        ("? [a]\n: b", 1, NO_NAME),
        ("a: {'': b}", 1, NO_NAME),
        ("a: 1\nb=c: 1", 2, BAD_KEY),
        ("é: 1", 1, BAD_KEY),
        ('"a\\nb": 1', 1, BAD_KEY),
        ('"\\x7F": 1', 1, BAD_KEY),
        (WIDE, 2, BAD_KEY),
        ("{a: " * 33 + "}" * 33, 1, LEVELS),
        ("a:\n" + "- " * 10_000 + "x", 2, LEVELS),
        ("\n".join(f"k{i}: v" for i in range(1001)), 1001, "there are more than 1000 settings"),
        ("a: 1\nb: c: d", 2, NO_YAML),
        ("a: 1\r\nb: c: d\r\n", 2, NO_YAML),
        ("*text*", 1, NO_YAML),
        ("a: b\n---\nc: d", 2, NO_YAML),
        ('a: "\\U00110000"', 1, "it "),
        ('a: "\\UFFFFFFFF"', 1, "it "),
        ("a: \x07", 1, NO_YAML),
        ("a: \ud800", 1, NO_YAML),
    ],
)
@pytest.mark.parametrize("loader", [mo.YAML_LOADER, yaml.BaseLoader])
def test_what_milvus_spec_must_not_contain(
    text: str, line: int, message: str, loader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with a PyYAML without libyaml."""
    monkeypatch.setattr(mo, "YAML_LOADER", loader)
    found = read(milvus(milvusSpec=text)).invalid
    assert found.startswith(f"spec.milvusSpec, line {line}: {message}")


@pytest.mark.parametrize("text", [WIDE, "a: [" + "{}, " * 16_000 + "]"])
def test_any_text_takes_bounded_memory(text: str) -> None:
    tracemalloc.start()
    read(milvus(milvusSpec=text))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20


OURS = "common.storageType COMMON_STORAGETYPE common/storage_type Milvus.common.storageType"
OURS += " milvus.COMMON_STORAGETYPE MILVUS_CONF_COMMON_STORAGETYPE"
OURS += " MILVUS_CONF_milvus.common.storageType"
OTHERS = "milvus_common_storageType milvus_conf_COMMON_STORAGETYPE my.common.storageType"
OTHERS += " common.milvus.storageType milvus.milvus.common.storageType"
SECRET = {"secretKeyRef": {"name": "s", "key": "k"}}


@pytest.mark.parametrize("name", [*OURS.split(), *OTHERS.split()])
def test_a_users_setting_replaces_ours_however_it_is_spelled(name: str) -> None:
    expected = dict(mo.DEFAULTS)
    if name in OURS.split():
        del expected["COMMON_STORAGETYPE"]
    assert environment(new_pod(milvusSpec=f"{name}: minio")) == expected | {name: "minio"}
    over = [{"name": "milvus", "env": [{"name": name, "valueFrom": SECRET}]}]
    assert environment(new_pod(pod={"spec": {"containers": over}})) == expected | {name: SECRET}


@pytest.mark.parametrize("value", ["$(HOME)", "$$(HOME)", "a$$b", "$", "$$$", "a$b", "cost: 5$"])
def test_a_value_reaches_the_server_as_it_is_written(value: str) -> None:
    """Kubernetes expands $(NAME), and reads $$ as an escaped $."""
    sent = next(one for one in mo.environment({"password": value}) if one["name"] == "password")
    assert sent["value"].replace("$$", "\0").replace("\0", "$") == value
    assert "$(" not in sent["value"].replace("$$", "")


# --- spec.pod ---
OTHER_MOUNT = MOUNT.replace("data", "a")
PROBE = f"startupProbe: {{{HEALTHZ}, timeoutSeconds: 5, periodSeconds: 5, failureThreshold: 60}}"


@pytest.mark.parametrize(
    ("over", "expected"),
    [
        ("nodeSelector: {disk: ssd}", "nodeSelector: {disk: ssd}"),
        ("hostname: h", "hostname: h"),
        ("securityContext: {runAsUser: 5}", "securityContext: {fsGroup: 999, runAsUser: 5}"),
        ("volumes: [{name: a}]", f"volumes: [{DATA}, {{name: a}}]"),
        ("volumes: [{name: data, hostPath: {}}]", "volumes: [{name: data, hostPath: {}}]"),
        ("volumes: []", f"volumes: [{DATA}]"),
        ("volumes: text", "volumes: text"),  # for the API server to reject
    ],
)
def test_what_is_laid_over_the_pod(over: str, expected: str) -> None:
    assert laid_over(**yaml.safe_load(over)) == laid_over() | yaml.safe_load(expected)


@pytest.mark.parametrize(
    ("over", "expected"),
    [
        ("{image: mine:2, args: []}", "{image: mine:2, args: []}"),
        ("resources: {requests: {cpu: 2}}", "resources: {requests: {cpu: 2, memory: 1Gi}}"),
        ("ports: [{containerPort: 80}]", f"ports: [{PORTS}, {{containerPort: 80}}]"),
        ("ports: [{name: a, containerPort: 9091}]", f"ports: [{PORTS.replace('metrics', 'a')}]"),
        ("volumeMounts: [{mountPath: /tmp}]", f"volumeMounts: [{MOUNT}, {{mountPath: /tmp}}]"),
        (f"volumeMounts: [{OTHER_MOUNT}]", f"volumeMounts: [{OTHER_MOUNT}]"),
        ("startupProbe: {httpGet: {path: /up}}", PROBE.replace("/healthz", "/up")),
        ("startupProbe: {httpGet: , exec: {}}", PROBE.replace(HEALTHZ, "exec: {}")),
    ],
)
def test_what_is_laid_over_the_container(over: str, expected: str) -> None:
    assert container(**yaml.safe_load(over)) == container() | yaml.safe_load(expected)


def test_null_removes_a_key() -> None:
    assert {*laid_over()} - {*laid_over(subdomain=None, volumes=None)} == {"subdomain", "volumes"}
    assert {*container()} - {*container(livenessProbe=None)} == {"livenessProbe"}


def test_a_sidecar_is_added() -> None:
    side = {"name": "side", "image": "side:1"}
    made = laid_over(containers=[side, {"name": "milvus", "image": "mine:2"}])["containers"]
    assert sorted(made, key=str) == sorted([container(image="mine:2"), side], key=str)


def test_the_name_of_the_container_is_in_no_label(monkeypatch: pytest.MonkeyPatch) -> None:
    before = new_pod()["metadata"]
    monkeypatch.setattr(mo, "CONTAINER", "other")
    assert new_pod()["metadata"] == before


def test_labels_and_annotations_are_added_and_ours_stay() -> None:
    theirs = {mo.MANAGED_BY_LABEL: "me", mo.POD_INDEX_LABEL: "9", mo.TEMPLATE_HASH: "0", "own": "1"}
    over = {"labels": theirs, "annotations": theirs, "finalizers": ["never/ends"], "name": "y"}
    made, plain = new_pod(pod={"metadata": over}), new_pod()
    plain["metadata"]["labels"] = theirs | plain["metadata"]["labels"]
    fingerprint = read(milvus(pod={"metadata": over})).template_hash
    plain["metadata"]["annotations"] = theirs | {mo.TEMPLATE_HASH: fingerprint}
    assert made == plain


# --- The claim ---
@pytest.mark.parametrize("storage_class", [{}, {"storageClassName": ""}, {"storageClassName": "a"}])
def test_each_pod_has_a_claim_of_its_own(storage_class: Obj) -> None:
    """With no label that other tools delete by, and no owner: it outlives the Milvus."""
    stored = milvus(storage={"size": "5Gi"} | storage_class)
    volumes = mo.new_pod(stored, read(stored), 3)["spec"]["volumes"]
    assert volumes == [{"name": "data", "persistentVolumeClaim": {"claimName": "data-x-3"}}]
    claim, resources = mo.new_claim(stored, read(stored), 3), {"requests": {"storage": "5Gi"}}
    assert claim == {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data-x-3", "namespace": "ns", "labels": {"zilliz.com/milvus": "x"}},
        "spec": storage_class | {"accessModes": ["ReadWriteOnce"], "resources": resources},
    }
