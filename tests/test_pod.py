"""The generated pod: its template, the settings of Milvus, the overlay, the claim."""

import re
import tracemalloc
from typing import Any

import pytest
import yaml

import milvus_operator as mo
from tests.lib.objects import NOW, Obj, milvus, pods, read


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
    """The fingerprint is that of this version: a newer one must not restart pods."""
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
          labels: {{zilliz.com/milvus: x,
            app.kubernetes.io/name: milvus, app.kubernetes.io/instance: x,
            app.kubernetes.io/managed-by: milvus-polling-operator,
            apps.kubernetes.io/pod-index: "7", team: search}}
          annotations: {{zilliz.com/operator-version: {mo.__version__}, zilliz.com/template-hash: "c83cd8ef621da431",
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
    "a: 0777\nb: 1e3\nc: 1_000\nd: True\ne: 12:30": "a=0777 b=1e3 c=1_000 d=True e=12:30",
    # As Milvus reads its own file, by YAML 1.1; but a variable only by Go's ParseBool.
    "a: on\nb: Yes\nc: Y\nd: OFF\ne: no\nf: n": "a=true b=true c=true d=false e=false f=false",
    "a: [on, 'on', No]\nb: 'yes'\nc: \"off\"\nd: |\n  no": "a=true,on,false b=yes c=off d=no",
    "a: oN\nb: yES\nc: noo\nd: !!str on\ne: none": "a=oN b=yES c=noo d=on e=none",
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
    dotted = name.removeprefix("MILVUS_CONF_").lower()
    in_capitals = re.sub("[./]", "_", mo.MILVUS_PREFIX.sub("", name)).upper()
    sent = {dotted: "x", in_capitals: "x"}
    assert environment(new_pod(milvusSpec=f"{name}: x")) == expected | sent
    variable = {"name": name, "valueFrom": SECRET}
    over = {"name": "milvus", "env": [variable]}
    made = new_pod(pod={"spec": {"containers": [over]}})
    assert environment(made) == expected | {name: SECRET}


# A setting, and its two variables: one that every shell hands on, one that is a member of its group.
NAMES = {
    "proxy.maxNameLength": "PROXY_MAXNAMELENGTH proxy.maxnamelength",
    "milvus.proxy/Port.x": "PROXY_PORT_X milvus.proxy/port.x",
    "MILVUS_CONF_a.region": "A_REGION a.region",
    "knowhere.DISKANN.build.R": "KNOWHERE_DISKANN_BUILD_R knowhere.DISKANN.build.R",
    "COMMON_SECURITY_TLSMODE": "COMMON_SECURITY_TLSMODE common_security_tlsmode",
}


@pytest.mark.parametrize("name", NAMES)
def test_each_setting_is_handed_on_under_two_names_and_an_overlay_replaces_both(name: str) -> None:
    settings = environment(new_pod(milvusSpec=f"{name}: x"))
    assert " ".join([*settings][-2:]) == NAMES[name]
    for variable in NAMES[name].split():
        over = {"name": "milvus", "env": [{"name": variable, "value": "theirs"}]}
        made = environment(new_pod(milvusSpec=f"{name}: x", pod={"spec": {"containers": [over]}}))
        assert made == mo.DEFAULTS | {variable: "theirs"}


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
    "serviceAccount: app": "{serviceAccount: app, automountServiceAccountToken: null}",
    "{containers: null, volumes: null}": "{}",
    "{serviceAccountName: null}": "{}",
    "{serviceAccountName: ''}": "{serviceAccountName: ''}",
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
    "etcd: {endpoints: [a:2379, b:2379]}": "etcd.endpoints",
    "kafka.brokerList: a": "kafka",
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
        # Its owner has decided that it is not used, perhaps in a milvus.yaml that was pasted.
        ("minio: {accessKeyID: a}\ncommon.storageType: LOCAL", "[]"),
        ("minio.address: a", "[{name: COMMON_STORAGETYPE, value: local}]"),
        ("etcd.endpoints: a\nETCD_USE_EMBED: true", "[]"),
        ("mq: {type: pulsar}\nkafka: {brokerList: a}", "[]"),
        # Woodpecker keeps its queue in the bucket, unless told otherwise.
        ("mq.type: woodpecker\nminio: {address: a}", "[]"),
        ("mq.type: woodpecker\nwoodpecker.storage.type: minio\nminio.bucketName: b", "[]"),
    ],
)
def test_a_part_that_is_used_or_decided_about_is_not(settings: str, env: str) -> None:
    """Wherever the deciding setting is; what a Secret decides, nobody here knows."""
    assert invalid(settings, env) == ""


# --- Where data lies ---
# A spec in short: what milvusSpec, storage, and parts of the pod say, and how many replicas.
MOUNTED = "volumes: [{name: mine, %s}]"
AT_DATA = "mounts: [{name: mine, mountPath: /var/lib/milvus}]"
NFS = MOUNTED % "nfs: {server: a, path: /b}"
OWN_CLAIM = MOUNTED % "persistentVolumeClaim: {claimName: old}"
OWN_NAME = "{name: ME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}"
BUCKET = "common.storageType: remote"
WOODPECKER = "mq.type: woodpecker, woodpecker.storage"
OUTSIDE = "is not on a volume of the pod"
ENDS = "is on a volume that ends with the pod"
SHARED = "is the same place for all replicas"
UNSAFE = {
    # A relative path is in the container's own layer, and so is one beside the volume.
    "{settings: {etcd.data.dir: default.etcd}, size: 1Gi}": f"etcd.data.dir {OUTSIDE}",
    "settings: {localStorage.path: /data}": f"localStorage.path {OUTSIDE}",
    "settings: {localStorage.path: /var/lib/milvus/../a}": f"localStorage.path {OUTSIDE}",
    "{settings: {rocksmq.path: /var/lib/milvus2}, size: 1Gi}": f"rocksmq.path {OUTSIDE}",
    "settings: {mq.type: default, rocksmq.path: /tmp/milvus}": f"rocksmq.path {OUTSIDE}",
    "settings: {mq.type: natsmq, natsmq.server.storeDir: /a}": f"natsmq.server.storeDir {OUTSIDE}",
    f"settings: {{{WOODPECKER}: {{type: local, rootPath: /a}}}}": f"rootPath {OUTSIDE}",
    f"settings: {{{WOODPECKER}: {{type: local, rootPath: default}}, localStorage.path: /a}}": OUTSIDE,
    "settings: {etcd.use.embed: 1, etcd.data.dir: /x}": f"etcd.data.dir {OUTSIDE}",
    "{env: [{name: D, value: /tmp}, {name: LOCALSTORAGE_PATH, value: $(D)/d}]}": OUTSIDE,
    # The folder is on a volume, and its list of topics, a folder beside it, is not.
    f"{{size: 1Gi, settings: {{rocksmq.path: /q}}, {NFS}, mounts: [{{name: mine, mountPath: /q}}]}}": (
        f"rocksmq.path with the suffix _meta_kv {OUTSIDE}"
    ),
    f"{{size: 1Gi, {MOUNTED % 'emptyDir: {}'}, mounts: [{{name: mine, mountPath: /var/lib/milvus/rdb_data_meta_kv}}]}}": (
        f"_meta_kv {ENDS}"
    ),
    # Beside storage, what ends with the pod is a mistake.
    f"{{size: 1Gi, {MOUNTED % 'emptyDir: {}'}, {AT_DATA}}}": f"etcd.data.dir {ENDS}",
    f"{{size: 1Gi, volumes: [{{name: mine}}], {AT_DATA}}}": f"etcd.data.dir {ENDS}",
    f"{{size: 1Gi, {MOUNTED % 'ephemeral: {}'}, mounts: [{{name: mine, mountPath: /q}}], "
    "settings: {rocksmq.path: /q/a}}": f"rocksmq.path {ENDS}",
    "{size: 1Gi, volumes: [{name: data, emptyDir: {}}]}": f"etcd.data.dir {ENDS}",
    # The vectors stay, and what lists them ends.
    "settings: {common.storageType: Remote}": f"etcd.data.dir {ENDS}",
    f"settings: {{{BUCKET}}}": f"etcd.data.dir {ENDS}, but minio.rootPath outlives it",
    f"{{settings: {{{BUCKET}}}, {MOUNTED % 'ephemeral: {}'}, {AT_DATA}}}": "minio.rootPath outlives",
    f"{{settings: {{localStorage.path: /disk/a}}, {NFS}, mounts: [{{name: mine, mountPath: /disk/}}]}}": (
        f"etcd.data.dir {ENDS}, but localStorage.path outlives"
    ),
    # and the other way round: the Milvus project's Helm chart mounts an emptyDir there.
    "{volumes: [{name: data, persistentVolumeClaim: {claimName: old}}, {name: tmp, emptyDir: {}}], "
    "mounts: [{name: tmp, mountPath: /var/lib/milvus/data}]}": (
        f"localStorage.path {ENDS}, but etcd.data.dir outlives"
    ),
    f"{{size: 1Gi, {MOUNTED % 'csi: {driver: a}'}, {AT_DATA}}}": f"etcd.data.dir {ENDS}",
    # One place for two pods: a folder, whatever its volume is called,
    f"{{replicas: 2, {OWN_CLAIM}, {AT_DATA}}}": f"etcd.data.dir {SHARED}",
    f"{{replicas: 2, {MOUNTED % 'hostPath: {path: /a}'}, {AT_DATA}}}": f"etcd.data.dir {SHARED}",
    "{replicas: 2, size: 1Gi, volumes: [{name: data, persistentVolumeClaim: {claimName: data-x-0}}]}": SHARED,
    f"{{replicas: 2, size: 1Gi, {NFS}, mounts: [{{name: mine, mountPath: /var/lib/milvus/data/}}]}}": (
        f"localStorage.path {SHARED}"
    ),
    f"{{replicas: 2, {NFS}, env: [{OWN_NAME}], mounts: [{{name: mine, mountPath: /var/lib/milvus, "
    "subPath: $(ME)}]}": SHARED,  # as it is written: only subPathExpr is expanded
    f"{{replicas: 2, {NFS}, mounts: [{{name: mine, mountPath: /var/lib/milvus, subPathExpr: $(ME)}}], "
    "env: [{name: ME, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}]}": SHARED,
    f"{{replicas: 2, {NFS}, mounts: [{{name: mine, mountPath: /var/lib/milvus, subPathExpr: $(ME)}}], "
    "env: [{name: ME, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}]}": SHARED,
    f"{{replicas: 2, {NFS}, {AT_DATA}, annotations: {{a: subPathExpr}}}}": SHARED,
    # a bucket, an etcd or a queue.
    f"{{replicas: 2, size: 1Gi, settings: {{{BUCKET}}}}}": f"minio.rootPath {SHARED}",
    f"{{replicas: 2, size: 1Gi, settings: {{{BUCKET}, minio.rootPath: a}}}}": SHARED,
    f"{{replicas: 2, size: 1Gi, settings: {{{BUCKET}}}, "
    "env: [{name: minio.rootPath, valueFrom: {secretKeyRef: {name: a, key: b}}}]}": SHARED,
    f"{{replicas: 2, size: 1Gi, settings: {{{BUCKET}}}, env: [{{name: minio.rootPath, value: a/$$(ME)}}]}}": SHARED,
    "{replicas: 2, settings: {etcd.use.embed: false}}": f"etcd.rootPath {SHARED}",
    "{replicas: 2, settings: {mq.type: kafka}}": f"msgChannel.chanNamePrefix.cluster {SHARED}",
    f"{{replicas: 2, settings: {{{WOODPECKER}.type: service}}}}": f"minio.rootPath {SHARED}",
}
SAFE = [
    "{replicas: 2, size: 1Gi}",
    "replicas: 2",
    "{settings: {localStorage.path: /var/lib/milvus/a}, size: 1Gi}",
    f"{{settings: {{localStorage.path: /disk/a}}, size: 1Gi, {NFS}, mounts: [{{name: mine, mountPath: /disk/}}]}}",
    "{mounts: null, env: null, volumes: null, size: 1Gi}",  # left empty: they name nothing
    # Only what was not flushed is in the queue; and an etcd elsewhere may end with the pod, too.
    f"{{settings: {{rocksmq.path: /q/a}}, {OWN_CLAIM}, mounts: [{{name: mine, mountPath: /var/lib/milvus/etcd}}, "
    "{name: mine, mountPath: /var/lib/milvus/data}, {name: data, mountPath: /q}]}",
    "settings: {etcd.use.embed: false, etcd.endpoints: 127.0.0.1}",
    f"{{size: 1Gi, settings: {{{BUCKET}}}}}",
    f"{{settings: {{{BUCKET}}}, {OWN_CLAIM}, {AT_DATA}}}",
    f"settings: {{etcd.use.embed: false, etcd.data.dir: x, {BUCKET}}}",
    "volumes: [{name: data, persistentVolumeClaim: {claimName: old}}]",
    "{settings: {localStorage.path: //var/lib/milvus/./data}}",
    f"{{settings: {{rocksmq.path: /q/a}}, {NFS}, mounts: [{{name: mine, mountPath: /q/.}}]}}",
    f"{{settings: {{etcd.data.dir: /e, localStorage.path: /l, rocksmq.path: /r}}, {NFS}, "
    "mounts: [{name: mine, mountPath: /}]}",
    f"{{replicas: 2, {MOUNTED % 'csi: {driver: a}'}, {AT_DATA}}}",
    # A relative path, in a folder that is on a volume.
    "{settings: {etcd.data.dir: default.etcd}, more: {workingDir: /var/lib/milvus}}",
    # What is different in each pod.
    f"{{replicas: 2, {NFS}, env: [{OWN_NAME}], mounts: [{{name: mine, mountPath: /var/lib/milvus, "
    "subPathExpr: a/$(ME)}]}",
    f"{{replicas: 2, {NFS}, {AT_DATA}, env: [{OWN_NAME}, {{name: D, value: /var/lib/milvus/$(ME)}}, "
    "{name: ETCD_DATA_DIR, value: $(D)/etcd}, {name: localStorage.path, value: $(D)}, "
    "{name: ROCKSMQ_PATH, value: $(D)/rdb}]}",
    f"{{replicas: 2, {MOUNTED % 'ephemeral: {}'}, {AT_DATA}}}",
    f"{{replicas: 2, volumes: [{{name: mine}}], {AT_DATA}}}",
    f"{{replicas: 2, size: 1Gi, settings: {{{BUCKET}}}, env: [{OWN_NAME.replace('ME', 'MINIO_ROOTPATH')}]}}",
    f"{{replicas: 2, size: 1Gi, settings: {{{BUCKET}}}, env: [{OWN_NAME}, {{name: minio.bucketName, value: b-$(ME)}}]}}",
    "{replicas: 2, env: [{name: I, valueFrom: {fieldRef: {fieldPath: \"metadata.labels['apps.kubernetes.io/pod-index']\"}}}, "
    "{name: MSGCHANNEL_CHANNAMEPREFIX_CLUSTER, value: x$(I)}], settings: {mq.type: pulsar}}",
    # On a volume of its own within another one, which does not end with the pod.
    f"{{settings: {{{BUCKET}}}, {NFS}, mounts: [{{name: mine, mountPath: /var/lib/milvus/etcd}}]}}",
    f"settings: {{{WOODPECKER}: {{type: local, rootPath: default}}}}",
    f"settings: {{{WOODPECKER}: {{type: minio, rootPath: wp}}}}",
    "settings: {etcd.use.embed: 0, etcd.endpoints: a}",
    # A path that only a Secret knows is not known to be outside.
    "env: [{name: rocksmq.path, valueFrom: {secretKeyRef: {name: a, key: b}}}]",
]


def in_short(text: str) -> Obj:
    """The spec of a Milvus that this describes."""
    found = {"replicas": 1} | yaml.safe_load(text)
    container = {"name": "milvus", "env": found.get("env", []), **found.get("more", {})}
    if "mounts" in found:
        container["volumeMounts"] = found["mounts"]
    spec = {"containers": [container], "volumes": found.get("volumes", [])}
    overlay = {"metadata": {"annotations": found.get("annotations", {})}, "spec": spec}
    spec = {
        "replicas": found["replicas"],
        "pod": overlay,
        "milvusSpec": yaml.safe_dump(found.get("settings", {})),
    }
    if "size" in found:
        spec["storage"] = {"size": found["size"]}
    return spec


@pytest.mark.parametrize(("text", "message"), UNSAFE.items())
def test_a_spec_that_would_lose_data_is_invalid(text: str, message: str) -> None:
    assert message in read(milvus(**in_short(text))).invalid


@pytest.mark.parametrize("text", SAFE)
def test_a_spec_that_keeps_data_in_places_of_its_own_is_not(text: str) -> None:
    assert read(milvus(**in_short(text))).invalid == ""


@pytest.mark.parametrize(
    ("text", "least"), [(SHARED, 2), (OUTSIDE, 1), (ENDS, 1), ("outlives it", 1)]
)
def test_what_is_dangerous_and_runs_already_is_not_refused(text: str, least: int) -> None:
    """Otherwise a check that a new version brings would keep a database from being healed."""
    found = next(spec for spec, message in UNSAFE.items() if text in message)
    there = milvus(**in_short(found))
    running = pods("x-0, x-1")
    for pod in running:  # they are of this template
        pod["metadata"]["annotations"] = mo.new_pod(there, accepted(there), 0)["metadata"][
            "annotations"
        ]
    mine = dict(enumerate(running))
    for number in range(3):
        kept = {ordinal: mine[ordinal] for ordinal in mine if ordinal < number}
        assert bool(read(there, kept).invalid) == (number < least)
    mine[0]["metadata"]["annotations"] = mine[1]["metadata"]["annotations"] = {
        mo.TEMPLATE_HASH: "another"
    }
    assert text in read(there, mine).invalid


def accepted(there: Obj) -> mo.Spec:
    """Its spec, which an earlier version of the operator has accepted."""
    generation = there["metadata"]["generation"]
    said = {"type": "Ready", "observedGeneration": generation, "reason": "Creating"}
    return read(there | {"status": {"conditions": [said | {"lastTransitionTime": NOW}]}})


def test_a_dangerous_spec_that_was_accepted_is_not_refused_and_an_edit_of_it_is() -> None:
    there = milvus(**in_short("settings: {localStorage.path: /data}"))
    assert read(there).invalid
    assert accepted(there).invalid == ""
    refused = {"type": "Ready", "observedGeneration": 1, "reason": "Invalid"}
    assert read(there | {"status": {"conditions": [refused]}}).invalid
    service_refused = {"type": "Reconciled", "observedGeneration": 1, "reason": "Invalid"}
    pods_accepted = refused | {"reason": "Creating"}
    said = there | {"status": {"conditions": [pods_accepted, service_refused]}}
    assert read(said).invalid == ""
    of_another_spec = {"type": "Ready", "observedGeneration": 0, "reason": "Creating"}
    assert read(there | {"status": {"conditions": [of_another_spec]}}).invalid


def test_variables_that_repeat_variables_take_no_time_and_no_memory() -> None:
    env = [{"name": "A0", "value": "$$" * 100}]
    env += [{"name": f"A{level}", "value": f"$(A{level - 1})" * 50} for level in range(1, 200)]
    env.append({"name": "rocksmq.path", "value": "/var/lib/milvus/$(A199)"})
    assert (
        read(milvus(1, pod={"spec": {"containers": [{"name": "milvus", "env": env}]}})).invalid
        == ""
    )


LONG = 30_000
COSTLY = {
    "a reference that never ends": [{"name": "A", "value": "$(" * LONG}],
    "a field that never ends": [
        {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "['" * LONG}}}
    ],
    "a long field, many times": [
        {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['long']"}}},
        {"name": "B", "value": "$(A)" * 14_000},
    ],
}


@pytest.mark.timeout(10)
@pytest.mark.parametrize("env", COSTLY.values(), ids=COSTLY)
def test_no_variable_costs_others_time_or_memory(env: list[Obj]) -> None:
    """A search that takes the square of the length would stop the whole operator for minutes."""
    over = {
        "metadata": {"annotations": {"long": "a" * LONG}},
        "spec": {"containers": [{"name": "milvus", "env": env}]},
    }
    there = milvus(1, pod=over)
    tracemalloc.start()
    assert read(there).invalid == ""
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 << 20


# What has the wrong type where data lies, and in variables: no bug of ours.
ODD = [
    "{name: A, valueFrom: text}",
    "{name: A, valueFrom: {fieldRef: text}}",
    "{name: A, valueFrom: {fieldRef: {fieldPath: [a]}}}",
    "{name: A, valueFrom: {fieldRef: {fieldPath: 'spec.containers.name'}}}",
    "{name: [A], value: {b: c}}",
    "{value: 5}",
]


@pytest.mark.parametrize("variable", ODD)
def test_an_odd_variable_is_left_to_the_api_server(variable: str) -> None:
    assert read(milvus(**in_short(f"env: [{variable}]"))).invalid == ""


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
