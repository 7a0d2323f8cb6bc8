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
          annotations: {{zilliz.com/template-hash: "5758def771d788f1",
            zilliz.com/etcd-config: {mo.ETCD_CONFIG!r}}}
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


def test_the_embedded_etcd_is_configured_as_by_the_milvus_projects_script() -> None:
    found = yaml.safe_load(mo.ETCD_CONFIG)
    urls = {found.pop(key) for key in ("listen-client-urls", "advertise-client-urls")}
    assert urls == {"http://127.0.0.1:2379"}, "on this host only"
    assert found == {
        "quota-backend-bytes": 4 << 30,
        "auto-compaction-mode": "revision",
        "auto-compaction-retention": "1000",
    }


# --- spec.milvusSpec ---
SETTINGS = {
    "proxy: {a: 255}\nmilvus.b: 1": "proxy.a=255 milvus.b=1",
    "a: {b: {c: 1, d: 2}, e: 3}": "a.b.c=1 a.b.d=2 a.e=3",
    "a: {list: [1, two, 3.0]}\nb: []": "a.list=1,two,3.0 b=",
    "a: off\nb: 0777\nc: 1e3": "a=off b=0777 c=1e3",
    # As Python's yaml.safe_dump writes None, and as people do; text only if it is quoted.
    "a: null\nb: ~\nc:\nd: {e: Null, f: NULL}": "",
    "a: 'null'\nb: \"~\"\nc: ''\nd: nulls": "a=null b=~ c= d=nulls",
    # Milvus looks groups up in lower case.
    "proxy: {accessLog: {formatters: {mine: {format: $method}}}}": (
        "proxy.accesslog.formatters.mine.format=$method"
    ),
    "knowhere: {DISKANN: {build: {max_degree: 5}}}": "knowhere.DISKANN.build.max_degree=5",
    "milvus.knowhere.DISKANN.x: 5": "milvus.knowhere.DISKANN.x=5",
    "MILVUS_CONF_QuotaAndLimits.dml.enabled: x": "quotaandlimits.dml.enabled=x",
    "a: 'it''s'\nb: >-\n  a\n  b": "a=it's b=a b",
    "a: !!int 5\nb: !!python/object:os.system x": "a=5 b=x",
    "a b~!: é€😀": "a b~!=é€😀",
    "{a: " * 50 + "1" + "}" * 50: ".".join("a" * 50) + "=1",
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
    "leave out proxy.port and metrics.port: to move a port, use spec.pod": [
        *("1 proxy: {port: 1}", "2 a: 1\nMILVUS_CONF_PROXY_PORT: 1", "1 metrics: {port: 1}"),
    ],
    "a list may hold only scalars, not mappings or lists": ["1 a: [{b: c}]", "2 a: 1\nb: [[c]]"],
    "it sets the same setting as line 2": ["4 b: 1\na: 1\n\na: 2"],
    "it sets the same setting as line 1": ["3 MILVUS_CONF_a_b: a\na:\n  B: b"],
    "anchors and aliases are not allowed: write the value": ["1 a: &x 1\nb: *x", "2 b: 1\n<<: *x"],
    "a key must be a non-empty string": ["1 ? [a]\n: b", "1 a: {'': b}"],
    "a key must be at most 256 characters of printable ASCII, without =": [
        *("2 a: 1\nb=c: 1", "1 é: 1", '1 "a\\nb": 1', '1 "\\x7F": 1', f"1 {'k' * 257}: 1"),
    ],
    "it is not valid YAML": ["2 a: 1\r\nb: c: d\r\n", "2 a: b\n---\nc: d"],
    "it has too many settings": [
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
    sent = name.removeprefix("MILVUS_CONF_").lower()
    assert environment(new_pod(milvusSpec=f"{name}: x")) == expected | {sent: "x"}
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
FILE = (
    "{path: etcd.yaml, fieldRef: {fieldPath: \"metadata.annotations['zilliz.com/etcd-config']\"}}"
)
DATA = (
    f"{{name: data, emptyDir: {{}}}}, {{name: operator-config, downwardAPI: {{items: [{FILE}]}}}}"
)
PORTS = "{name: milvus, containerPort: 19530}, {name: metrics, containerPort: 9091}"
FILE_MOUNT = "{name: operator-config, mountPath: /etc/milvus-polling-operator, readOnly: true}"
MOUNT = f"{{name: data, mountPath: /var/lib/milvus}}, {FILE_MOUNT}"
OTHER_MOUNT = "{name: a, mountPath: /var/lib/milvus}"
HEALTHZ = "httpGet: {path: /healthz, port: 9091}"
PROBE = "timeoutSeconds: 5, periodSeconds: 5, failureThreshold: 60"
# What is laid over the spec of the pod: what differs then; null if it is removed.
OVER_POD = {
    "subdomain: null": "subdomain: null",
    "securityContext: {runAsUser: 5}": "securityContext: {fsGroup: 999, runAsUser: 5}",
    "volumes: [{name: a}]": f"volumes: [{DATA}, {{name: a}}]",
    "volumes: [{name: data, emptyDir: {sizeLimit: 5}}]": (
        f"volumes: [{DATA.partition('}, ')[2]}, {{name: data, emptyDir: {{sizeLimit: 5}}}}]"
    ),
    "serviceAccountName: app": "{serviceAccountName: app, automountServiceAccountToken: null}",
    "{serviceAccountName: a, automountServiceAccountToken: false}": "serviceAccountName: a",
}
OVER_CONTAINER = {
    "{image: mine:2, args: []}": "{image: mine:2, args: []}",
    # What is asked for in part is not completed by a default that changes what it means.
    "resources: {limits: {cpu: 2, memory: 512Mi}}": "resources: {limits: {cpu: 2, memory: 512Mi}}",
    "resources: {requests: {cpu: 2}}": "resources: {requests: {cpu: 2}}",
    "resources: null": "resources: null",
    "livenessProbe: {httpGet: {path: /livez, port: 9091}}": (
        "livenessProbe: {httpGet: {path: /livez, port: 9091}, timeoutSeconds: 5, periodSeconds: 15}"
    ),
    "startupProbe: {grpc: {port: 1}, failureThreshold: 9}": (
        "startupProbe: {grpc: {port: 1}, timeoutSeconds: 5, periodSeconds: 5, failureThreshold: 9}"
    ),
    "livenessProbe: {tcpSocket: null}": "livenessProbe: {timeoutSeconds: 5, periodSeconds: 15}",
    "ports: [{containerPort: 80}]": f"ports: [{PORTS}, {{containerPort: 80}}]",
    "ports: [{name: a, containerPort: 9091}]": f"ports: [{PORTS.replace('metrics', 'a')}]",
    "ports: [{containerPort: 9091, protocol: UDP}]": (
        f"ports: [{PORTS}, {{containerPort: 9091, protocol: UDP}}]"
    ),
    "volumeMounts: [{mountPath: /tmp}]": f"volumeMounts: [{MOUNT}, {{mountPath: /tmp}}]",
    f"volumeMounts: [{OTHER_MOUNT}]": f"volumeMounts: [{FILE_MOUNT}, {OTHER_MOUNT}]",
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
    spec = {"containers": [side, changed], "volumes": [{"name": "a"}]}
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
    expected["annotations"] |= {mo.TEMPLATE_HASH: fingerprint, "own": "1"}
    assert new_pod(pod={"metadata": over})["metadata"] == expected


# What is of the wrong shape in spec.pod: the path that is named.
SLIPS = {
    "metadata: [a]": "spec.pod.metadata must be a mapping",
    "metadata: {labels: text}": "spec.pod.metadata.labels must be a mapping",
    "spec: []": "spec.pod.spec must be a mapping",
    "spec: {volumes: text}": "spec.pod.spec.volumes must be a list",
    "spec: {containers: {name: milvus}}": "spec.pod.spec.containers must be a list",
    "spec: {containers: [{name: a}, sidecar]}": "spec.pod.spec.containers[1] must be a mapping",
    "spec: {volumes: [null]}": "spec.pod.spec.volumes[0] must be a mapping",
    "spec: {containers: [{name: milvus, env: [A=1]}]}": (
        "spec.pod.spec.containers[0].env[0] must be a mapping"
    ),
    "spec: {containers: [{name: milvus, startupProbe: 5}]}": (
        "spec.pod.spec.containers[0].startupProbe must be a mapping"
    ),
    "spec: {securityContext: 999}": "spec.pod.spec.securityContext must be a mapping",
}


@pytest.mark.parametrize(("over", "message"), SLIPS.items())
def test_a_slip_in_the_shape_is_told_with_its_path(over: str, message: str) -> None:
    assert read(milvus(pod=yaml.safe_load(over))).invalid == message


# --- What is named must be used ---
def invalid(settings: str = "", env: str = "[]") -> str:
    """What is wrong with these settings, beside these variables."""
    container = {"name": "milvus", "env": yaml.safe_load(env)}
    pod = {"spec": {"containers": [container]}}
    kept = {"size": "1Gi"}
    return read(milvus(1, milvusSpec=settings, pod=pod, storage=kept)).invalid


UNUSED = {
    "MINIO_ADDRESS: x": "minio",
    "milvus.minio: {bucketName: b}": "minio",
    "minio: {accessKeyID: a}\ncommon.storageType: LOCAL": "minio",
    "etcd: {endpoints: [a:2379, b:2379]}": "etcd.endpoints",
    "etcd.endpoints: a\nETCD_USE_EMBED: true": "etcd.endpoints",
    "kafka.brokerList: a": "kafka",
    "mq: {type: pulsar}\nkafka: {brokerList: a}": "kafka",
    "MILVUS_CONF_PULSAR_ADDRESS: a": "pulsar",
    "woodpecker: {storage: {type: local}}": "woodpecker",
}


@pytest.mark.parametrize(("settings", "part"), UNUSED.items())
def test_a_part_that_is_named_but_not_used_is_invalid(settings: str, part: str) -> None:
    """Otherwise its owner would think that the data lies there."""
    decider = mo.PARTS[part][0]
    expected = f"{part} is set, but has no effect: set {decider} to "
    assert invalid(settings).startswith(expected)
    assert invalid(env="[{name: Minio.UseSSL, value: 'x'}]").startswith("minio is set, but has")


@pytest.mark.parametrize(
    ("settings", "env"),
    [
        ("minio: {address: a}\ncommon: {storageType: minio}", "[]"),
        ("minio: {address: a}\nCOMMON_STORAGETYPE: Remote", "[]"),
        ("minio.address: a", "[{name: COMMON_STORAGETYPE, value: opendal}]"),
        ("minio.address: a", "[{name: common.storageType, valueFrom: {secretKeyRef: {}}}]"),
        ("common.storageType: remote", "[{name: MINIO_SECRET_ACCESS_KEY, valueFrom: {}}]"),
        ("etcd: {endpoints: [a], use: {embed: false}}", "[]"),
        ("etcd.endpoints: a", "[{name: ETCD_USE_EMBED, value: 'false'}]"),
        ("kafka.brokerList: a", "[{name: MQ_TYPE, value: kafka}]"),
        ("pulsar: {address: a}\nmq: {type: pulsar}", "[]"),
        ("woodpecker: {a: b}\nmq.type: woodpecker", "[]"),
        ("rocksmq: {retentionSizeInMB: 1}\netcd: {rootPath: a}", "[]"),
        ("minio: {address: null}\nkafka: {brokerList: ~}", "[]"),
    ],
)
def test_a_part_that_is_used_is_not(settings: str, env: str) -> None:
    """Wherever the deciding setting is; what a Secret decides, nobody here knows."""
    assert invalid(settings, env) == ""


# --- Where data lies ---
KEPT = "storage: {size: 1Gi}"
BUCKET = "milvusSpec: 'common.storageType: remote'"
OUTSIDE = "is not on a volume of the pod"
OWN_CLAIM = "{volumes: [{name: data, persistentVolumeClaim: {claimName: old}}]}"
OWN_DISK = (
    "{volumes: [{name: disk, hostPath: {path: /disk}}], "
    "containers: [{name: milvus, volumeMounts: [{name: disk, mountPath: /disk/}]}]}"
)
BY_NAME = "valueFrom: {fieldRef: {fieldPath: metadata.name}}"
UNSAFE = {
    # A relative path is in the container's own layer, and so is one beside the volume.
    f"{{milvusSpec: 'etcd.data.dir: default.etcd', {KEPT}}}": f"etcd.data.dir {OUTSIDE}",
    "milvusSpec: 'localStorage.path: /data'": f"localStorage.path {OUTSIDE}",
    f"{{milvusSpec: 'rocksmq.path: /var/lib/milvus2', {KEPT}}}": f"rocksmq.path {OUTSIDE}",
    "milvusSpec: '{mq.type: default, rocksmq.path: /tmp/milvus}'": f"rocksmq.path {OUTSIDE}",
    "milvusSpec: '{mq.type: natsmq, natsmq.server.storeDir: /a}'": f"natsmq.server.storeDir {OUTSIDE}",
    "milvusSpec: '{mq.type: woodpecker, woodpecker.storage: {type: local, rootPath: /a}}'": (
        f"woodpecker.storage.rootPath {OUTSIDE}"
    ),
    "milvusSpec: '{etcd.use.embed: 1, etcd.data.dir: /x}'": f"etcd.data.dir {OUTSIDE}",
    "milvusSpec: 'etcd.data.dir: default'": f"etcd.data.dir {OUTSIDE}",
    f"{{{BUCKET}, pod: {{spec: {{volumes: [{{name: data, ephemeral: {{}}}}]}}}}}}": "end with the pod",
    f"{{replicas: 2, {KEPT}, {BUCKET}, pod: {{spec: {{containers: [{{name: milvus, "
    "env: [{name: minio.rootPath, valueFrom: {secretKeyRef: {}}}]}]}}}": "all replicas",
    f"{{replicas: 2, {KEPT}, milvusSpec: '{{common.storageType: remote, minio.rootPath: a}}'}}": (
        "all replicas would use the same data"
    ),
    f"{{replicas: 2, {KEPT}, pod: {{spec: {OWN_CLAIM.replace('old', 'data-x-0')}}}}}": "same volume",
    "{replicas: 2, pod: {spec: {volumes: [{name: data, hostPath: {path: /a}}]}}}": "same volume",
    "milvusSpec: 'localStorage.path: /var/lib/milvus/../a'": f"localStorage.path {OUTSIDE}",
    BUCKET: "etcd, which lists them, would end with the pod: set",
    f"{{replicas: 2, {KEPT}, {BUCKET}}}": "with this common.storageType, all replicas",
    "{replicas: 2, milvusSpec: 'etcd.use.embed: false'}": "with this etcd.use.embed, all replicas",
    "{replicas: 2, milvusSpec: 'mq.type: kafka'}": "with this mq.type, all replicas",
    f"{{replicas: 2, pod: {{spec: {OWN_CLAIM}}}}}": "keep their data in the same volume",
}
SAFE = [
    f"{{replicas: 2, {KEPT}}}",
    f"{{milvusSpec: 'localStorage.path: /var/lib/milvus/a', {KEPT}}}",
    f"{{milvusSpec: 'localStorage.path: /disk/a', pod: {{spec: {OWN_DISK}}}}}",
    f"{{{KEPT}, {BUCKET}}}",
    f"{{{BUCKET}, pod: {{spec: {OWN_CLAIM}}}}}",
    "milvusSpec: '{etcd.use.embed: false, etcd.data.dir: x, common.storageType: remote}'",
    f"pod: {{spec: {OWN_CLAIM}}}",
    "{replicas: 2, pod: {spec: {volumes: [{name: data, hostPath: {path: /a}}], containers: [{name: "
    "milvus, volumeMounts: [{mountPath: /var/lib/milvus, subPathExpr: $(POD_NAME)}]}]}}}",
    # On a volume of its own within another one, which does not end with the pod.
    f"{{{BUCKET}, pod: {{spec: {{volumes: [{{name: etcd, hostPath: {{path: /a}}}}], containers: "
    "[{name: milvus, volumeMounts: [{name: etcd, mountPath: /var/lib/milvus/etcd}]}]}}}",
    # Only etcd must outlive the pod: files may be in a bucket, and the queue on an emptyDir.
    f"{{{KEPT}, milvusSpec: '{{common.storageType: remote, rocksmq.path: /q}}', pod: {{spec: {{volumes: "
    "[{name: q, emptyDir: {}}], containers: [{name: milvus, volumeMounts: [{name: q, mountPath: /q}]}]}}}",
    "milvusSpec: '{mq.type: woodpecker, woodpecker.storage: {type: local, rootPath: default}}'",
    "milvusSpec: '{mq.type: woodpecker, woodpecker.storage: {type: minio, rootPath: wp}}'",
    "milvusSpec: '{etcd.use.embed: 0, etcd.endpoints: a}'",
    f"{{replicas: 2, {KEPT}, {BUCKET}, pod: {{spec: {{containers: [{{name: milvus, "
    f"env: [{{name: MINIO_ROOTPATH, {BY_NAME}}}]}}]}}}}}}",
]


@pytest.mark.parametrize(("spec", "message"), UNSAFE.items())
def test_a_spec_that_would_lose_data_is_invalid(spec: str, message: str) -> None:
    assert message in read(milvus(**{"replicas": 1} | yaml.safe_load(spec))).invalid


@pytest.mark.parametrize("spec", SAFE)
def test_a_spec_that_puts_data_on_a_volume_of_its_own_is_not(spec: str) -> None:
    assert read(milvus(**{"replicas": 1} | yaml.safe_load(spec))).invalid == ""


# --- The claim ---
def test_each_pod_has_a_claim_of_its_own() -> None:
    """With no label that other tools delete by, and no owner. The size 0 is a size, too."""
    stored = milvus(storage={"size": 0, "storageClassName": ""})
    made = mo.new_pod(stored, read(stored), 3)
    volume, _ = made["spec"]["volumes"]
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
