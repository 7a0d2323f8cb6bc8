"""The generated pod: its template, its files, the overlay, the claim."""

from typing import Any

import pytest
import yaml

import milvus_operator as mo
from tests.lib import kubelet
from tests.lib.objects import Obj, milvus, read


def new_pod(ordinal: int = 0, **spec: Any) -> Obj:
    there = milvus(**spec)
    return mo.new_pod(there, mo.spec_of(there), ordinal)


def variables(*env: Obj) -> Obj:
    """An overlay with these environment variables."""
    return {"spec": {"containers": [{"name": "milvus", "env": [*env]}]}}


def test_the_pod_at_a_glance() -> None:
    """The fingerprint is that of this version: a newer one must not restart pods."""
    overlay = {"metadata": {"labels": {"team": "search"}}}
    made = new_pod(7, milvusSpec="this is milvus spec", pod=overlay)
    default_yaml = made["metadata"]["annotations"].pop("zilliz.com/default.yaml")
    assert yaml.load(default_yaml, yaml.BaseLoader) == mo.DEFAULTS
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
            zilliz.com/user.yaml: "", zilliz.com/etcd.yaml: {mo.ETCD_CONFIG!r}}}
          ownerReferences: [{{apiVersion: zilliz.com/v1, kind: Milvus, name: x, uid: uid-of-x,
            controller: true, blockOwnerDeletion: true}}]
        spec:
          {{hostname: x-7, subdomain: x, terminationGracePeriodSeconds: 60,
          automountServiceAccountToken: false, enableServiceLinks: false,
          securityContext: {{fsGroup: 999}}, volumes: [{DATA}],
          containers: [{{
            name: milvus, image: milvus:1, args: [milvus, run, standalone],
            env: [{ENV}], ports: [{PORTS}], volumeMounts: [{MOUNT}],
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


# --- The files ---
FOLDER = "/milvus/configs"
# What may be in a real configuration, and what an editor leaves.
TEXTS = [
    "proxy: {maxNameLength: 255}\n",
    "# by hand\r\nlog.level: warn\r\n\r\n",
    "\ufeffcommon:\n  security: {authorizationEnabled: on}",
    "password: '$(HOME) $$ {{x}} %s'\nname: 名前 é😀\n",
    "a: |\n  two\n  lines\nb: >-\n  a\n  b\n# end",
    "---\na: 0o17\nb: 1_000\nc: .inf\nd: 12:30\ne: ~\n1: x\nnull: y\n...\n",
    "# 5 %\n---\na: &unused b\nc: 'http://x?y=z'\n",
    "path: /var/lib/milvus/rdb_data # \\/ ?",
    "a: 'x\\/y'\nb: x\\/y",
    'a: "b\\\\/c"',
    "# only a comment",
    "{}",
    "",
]


@pytest.mark.parametrize("text", TEXTS)
def test_user_yaml_is_what_the_owner_wrote_word_for_word(text: str) -> None:
    """And nothing of it becomes a variable: not even `path`, which would be PATH."""
    made = new_pod(milvusSpec=text)
    files = kubelet.files(made)
    assert [*files] == [f"{FOLDER}/{name}" for name in ("default.yaml", "user.yaml", "etcd.yaml")]
    assert files[f"{FOLDER}/user.yaml"] == text
    assert kubelet.variables(made) == {"DEPLOY_MODE": "STANDALONE"}
    assert not read(milvus(milvusSpec=text)).is_text


@pytest.mark.parametrize("text", ["this is milvus spec", "42", "null", "- a\n- b", "'a b'"])
def test_text_that_is_no_typing_error_sets_nothing(text: str) -> None:
    """A file that is not a mapping would make Milvus drop all of its files."""
    assert read(milvus(milvusSpec=text)).is_text
    assert kubelet.files(new_pod(milvusSpec=text))[f"{FOLDER}/user.yaml"] == ""


# What is wrong with a text: such texts, each after the number of the line that is named.
INVALID = {
    # A typing error: a pod without these settings would run beside its data.
    "it is not a YAML mapping: write `name: value`": ["1 a:1", "2 \na=1", "1 - a: 1"],
    "leave out proxy.port and metrics.port: "
    "to move a port, set PROXY_PORT, or METRICS_PORT and the probes, in spec.pod": [
        *("1 proxy: {port: 1}", "2 a: 1\nMILVUS_CONF_PROXY_PORT: 1", "1 metrics: {port: 19530}"),
    ],
    "a list may hold only scalars, not mappings or lists": ["1 a: [{b: c}]", "2 a: 1\nb: [[c]]"],
    # Milvus would take the last one, and drop the other, with all that is below it.
    "it repeats the key of line 2": [
        "4 b: 1\na: 1\n\na: 2",
        "4 a:\n  b: {c: 1}\n  d: 1\n  b: {e: 1}",
    ],
    "it repeats the key of line 1": ["2 a: {b: 1}\n'a': {c: 1}", "3 a:\nb: 1\na: {}"],
    "it sets the same setting as line 2": ["3 c: 1\na.b: 1\na: {b: 2}"],
    "it sets the same setting as line 1": ["3 MILVUS_CONF_a_b: a\na:\n  B: b"],
    "aliases, tags and directives are not allowed: write plain values": [
        *("1 %YAML 1.2\n---\na: 1", "1 %TAG ! x\n---\na: 1"),
        *("2 a: &x 1\nb: *x", "2 b: &y {c: 1}\n<<: *y", "1 a: !!int abc", "2 a: 1\nb: !!str on"),
        *("1 !!map {a: 1}", "1 !mine\na: 1", "1 a: ! b"),
    ],
    "a key must be the name of a setting, and not <<": [
        *("1 ? [a]\n: b", "1 a: {'': b}", "2 a: 1\n<<: {b: 2}", "1 {? {a: b} : c}"),
    ],
    # What PyYAML reads, and Milvus does not.
    "Milvus cannot read the escape \\/: write / instead": [
        '2 a: 1\nb: "http:\\/\\/x"',
        '1 a: "b\\\\\\/c"',
    ],
    "a question mark, or a byte order mark, must be in quotes": [
        *("1 a?: b", "2 a: 1\nb?: c", "3 a: 1\n\nb: \ufeff"),
    ],
    "": ["1 {a: b?}"],  # whoever refuses it
    "it is not one valid YAML document": [
        *(
            "2 a: 1\r\nb: c: d\r\n",
            "2 a: b\n---\nc: d",
            "1 a: b\tc: d",
            "1 'a: b",
            "2 a: 1\n\tb: 2",
        ),
    ],
    "it has more than 2500 settings": [
        *("1 {" + "b," * 10_000 + "}", "1 [" + "[]," * 10_000 + "]"),
        "2499 " + "\n".join(f"k{i}: v" for i in range(3000)),
    ],
    "it ": ['1 a: "\\U00110000"', '1 a: "\\UFFFFFFFF"', "1 a: \ud800", "1 " + "- " * 10_000],
}


@pytest.mark.parametrize("message", INVALID)
@pytest.mark.parametrize("loader", [mo.YAML_LOADER, yaml.SafeLoader])
def test_what_milvus_spec_must_not_contain(
    message: str, loader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with a PyYAML without libyaml."""
    monkeypatch.setattr(mo, "YAML_LOADER", loader)
    for case in INVALID[message]:
        line, _, text = case.partition(" ")
        found = read(milvus(milvusSpec=text)).invalid
        assert found.startswith(f"spec.milvusSpec, line {line}: {message}"), case


def test_the_ports_may_be_named_as_they_are() -> None:
    """As in a whole milvus.yaml."""
    text = "proxy: {port: 19530}\nmetrics.port: '9091'"
    assert not read(milvus(milvusSpec=text)).invalid


# --- What is named is used ---
SECRET = "valueFrom: {secretKeyRef: {name: s, key: k}}"
# Settings and variables; and the settings of default.yaml that differ then.
CHOSEN = {
    "minio: {address: s3.example.com}": "common.storageType: remote",
    "MINIO_ADDRESS: b": "common.storageType: remote",
    "milvus.minio.address: b": "common.storageType: remote",
    "etcd: {endpoints: [a:2379, b:2379]}": "etcd.use.embed: false",
    "kafka.brokerList: a:9092": "mq.type: kafka",
    "pulsar: {address: a}\nkafka: {brokerList: b}": "mq.type: pulsar",
    f"; {{name: MINIO_ADDRESS, {SECRET}}}": "common.storageType: remote",
    "; {name: MILVUS_CONF_ETCD_ENDPOINTS, value: a}": "etcd.use.embed: false",
    "minio.address: a; {name: kafka.brokerList, value: a}": (
        "{common.storageType: remote, mq.type: kafka}"
    ),
    # What the owner decides himself is laid over this by Milvus.
    "minio: {address: a}\ncommon.storageType: local": "common.storageType: remote",
    # These name no place, or one in the pod.
    "etcd.endpoints: 127.0.0.1:2379": "{}",
    "minio: {address: ''}\nkafka: {brokerList: }\npulsar.address: pulsar://localhost:6650": "{}",
    "minio.address: NULL\netcd.endpoints: LocalHost:2379": "{}",
    "etcd.endpoints: ['127.0.0.1:2379', '[::1]:2379']": "{}",
    "etcd.endpoints: ['127.0.0.1:2379', 'a:2379']": "etcd.use.embed: false",
    "pulsar.maxMessageSize: 9": "{}",  # Milvus uses it for every queue
    "woodpecker: {storage: {type: local}}": "{}",  # Milvus wants it before mq.type is switched
    "minio: {listObjectsMaxKeys: 9}\nkafka.saslUsername: a\nwoodpecker.client.batchSize: 9": "{}",
    "minio: {}": "{}",
    "minio: {address: localhost, useIAM: true, bucketName: a-bucket}": "{}",
    "minio.address: a; {name: MINIO_ADDRESS, value: localhost}": "{}",  # the variable wins
    "etcd: {rootPath: a}\nrocksmq.retentionSizeInMB: 1": "{}",
    "common: {kafka: a}\nmykafka.brokerList: a": "{}",
}


@pytest.mark.parametrize(("given", "chosen"), CHOSEN.items())
def test_what_is_named_is_used(given: str, chosen: str) -> None:
    text, _, env = given.partition("; ")
    there = variables(*yaml.safe_load(f"[{env}]"))
    made = new_pod(milvusSpec=text, pod=there, replicas=1, storage={"size": "1Gi"})
    found = yaml.load(kubelet.files(made)[f"{FOLDER}/default.yaml"], yaml.BaseLoader)
    assert found == mo.DEFAULTS | yaml.load(chosen, yaml.BaseLoader)


# --- spec.pod ---
FIELDS = ", ".join(
    f"{{path: {name}, fieldRef: {{fieldPath: \"metadata.annotations['zilliz.com/{name}']\"}}}}"
    for name in ("default.yaml", "user.yaml", "etcd.yaml")
)
CONFIG = f"{{name: operator-config, downwardAPI: {{items: [{FIELDS}]}}}}"
EMPTY = "{name: data, emptyDir: {}}"
DATA = f"{EMPTY}, {CONFIG}"
ENV = "{name: DEPLOY_MODE, value: STANDALONE}"
PORTS = "{name: milvus, containerPort: 19530}, {name: metrics, containerPort: 9091}"
FILE_MOUNTS = ", ".join(
    f"{{name: operator-config, mountPath: {FOLDER}/{name}, subPath: {name}, readOnly: true}}"
    for name in ("default.yaml", "user.yaml", "etcd.yaml")
)
MOUNT = f"{{name: data, mountPath: /var/lib/milvus}}, {FILE_MOUNTS}"
OTHER_MOUNT = "{name: a, mountPath: /var/lib/milvus/}"
HEALTHZ = "httpGet: {path: /healthz, port: 9091}"
PROBE = "timeoutSeconds: 5, periodSeconds: 5, failureThreshold: 60"
# What is laid over the spec of the pod: what differs then; null if it is removed.
OVER_POD = {
    "{hostname: mine, subdomain: null}": "{}",  # by these, the Service gives each pod a name
    "securityContext: {runAsUser: 5}": "securityContext: {fsGroup: 999, runAsUser: 5}",
    "volumes: [{name: a}]": f"volumes: [{EMPTY}, {{name: a}}, {CONFIG}]",
    "volumes: [{name: data, emptyDir: {sizeLimit: 5}}]": (
        f"volumes: [{{name: data, emptyDir: {{sizeLimit: 5}}}}, {CONFIG}]"
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
    "volumeMounts: [{name: a, mountPath: /tmp}]": (
        f"volumeMounts: [{MOUNT}, {{name: a, mountPath: /tmp}}]"
    ),
    f"volumeMounts: [{OTHER_MOUNT}]": f"volumeMounts: [{FILE_MOUNTS}, {OTHER_MOUNT}]",
    # Variables are merged by name, and nothing else.
    "env: [{name: DEPLOY_MODE, value: CLUSTER}]": "env: [{name: DEPLOY_MODE, value: CLUSTER}]",
    "env: [{name: deploy.mode, value: a}]": f"env: [{ENV}, {{name: deploy.mode, value: a}}]",
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


# --- Where the data is ---
# A spec in short: what milvusSpec, storage, and parts of the pod say, and how many replicas.
NFS = "volumes: [{name: mine, nfs: {server: a, path: /b}}]"
DISK = "volumes: [{name: mine, persistentVolumeClaim: {claimName: old}}]"
SCRATCH = "volumes: [{name: mine, emptyDir: {}}]"
AT_DATA = "mounts: [{name: mine, mountPath: /var/lib/milvus}]"
BELOW = "must be a folder below /var/lib/milvus, because a volume is mounted there: "
ENDS = "is on a volume that ends with the pod, although spec.storage is set: "
ONE_EACH = "set spec.replicas to 1, and create one Milvus in a place of its own for each"
UNSAFE = {
    # In the container's own layer.
    "settings: {etcd.data.dir: default.etcd}": f"etcd.data.dir {BELOW}",
    "{settings: {localStorage: {path: /mnt/vectors}}, size: 1Gi}": f"localStorage.path {BELOW}",
    "settings: {localStorage.path: /var/lib/milvus/data/../../other}": f"localStorage.path {BELOW}",
    "settings: {rocksmq.path: /var/lib/milvus-queue}": f"rocksmq.path {BELOW}",
    # Its second folder, /var/lib/milvus_meta_kv, would be beside the volume.
    "settings: {rocksmq.path: /var/lib/milvus}": f"rocksmq.path {BELOW}",
    "settings: {mq.type: default, rocksmq.path: /queue}": f"rocksmq.path {BELOW}",
    "settings: {mq: {type: natsmq}, natsmq.server.storeDir: /nats}": (
        f"natsmq.server.storeDir {BELOW}"
    ),
    "settings: {mq.type: woodpecker, woodpecker.storage: {type: local, rootPath: /wp}}": (
        f"woodpecker.storage.rootPath {BELOW}"
    ),
    "settings: {etcd.use.embed: 'T', etcd.data.dir: /etcd}": f"etcd.data.dir {BELOW}",
    "env: [{name: LOCALSTORAGE_PATH, value: /scratch}]": f"localStorage.path {BELOW}",
    "{settings: {localStorage.path: /var/lib/milvus/a}, env: [{name: localstorage.path, value: a}]}": (
        f"localStorage.path {BELOW}"
    ),
    "settings: {localStorage.path: ''}": f"localStorage.path {BELOW}",
    # Also where its owner has mounted a volume: who wants two disks mounts one below.
    f"{{settings: {{localStorage.path: /mnt/a}}, {NFS}, mounts: [{{name: mine, mountPath: /mnt}}]}}": (
        f"localStorage.path {BELOW}leave the setting out, or mount a volume of your own at /var"
    ),
    "mounts: [{name: nothing, mountPath: /var/lib/milvus}]": (
        "no volume is mounted at /var/lib/milvus: mount one, such as the one named data"
    ),
    # Settings that nobody here can read: they may say anything of where the data is.
    "{volumes: [{name: a, configMap: {name: b}}], mounts: [{name: a, mountPath: /milvus/configs/}]}": (
        "spec.pod mounts settings at /milvus/configs, where the operator cannot judge them: write them"
    ),
    "mounts: [{name: a, mountPath: /milvus/configs/milvus.yaml, subPath: b}]": "configs/milvus.yaml",
    "mounts: [{name: a, mountPath: /milvus/configs/user.yaml, subPath: b}]": "at /milvus/configs/user",
    "mounts: [{name: a, mountPath: //milvus/configs/user.yaml}]": "at /milvus/configs/user",
    "mounts: [{name: a, mountPath: /milvus}]": "mounts settings at /milvus, where",
    "mounts: [{name: operator-config, mountPath: /milvus/configs/default.yaml, subPath: b}]": "configs/default",
    "env: [{name: MILVUSCONF, value: /a}]": "must not set workingDir or MILVUSCONF",
    "folder: /a": "must not set workingDir or MILVUSCONF: Milvus would not find its settings in",
    "grace: 0": (
        "spec.pod.spec.terminationGracePeriodSeconds must not be 0: a new pod would use the volume"
    ),
    # Beside storage, what ends with the pod is a mistake.
    f"{{size: 1Gi, {SCRATCH}, {AT_DATA}}}": f"localStorage.path {ENDS}",
    f"{{size: 1Gi, {SCRATCH}, mounts: [{{name: mine, mountPath: /var/lib/milvus/}}]}}": ENDS,
    f"{{size: 1Gi, volumes: [{{name: mine}}], {AT_DATA}}}": f"localStorage.path {ENDS}",
    f"{{size: 1Gi, {SCRATCH}, mounts: [{{name: mine, mountPath: /var/lib/milvus/rdb_data}}]}}": (
        f"rocksmq.path {ENDS}mount the volume named data there, or leave out spec.storage"
    ),
    # Where a kubelet mounts it, however it is written.
    f"{{size: 1Gi, {SCRATCH}, mounts: [{{name: mine, mountPath: //var/lib/milvus/etcd}}]}}": ENDS,
    f"{{size: 1Gi, {SCRATCH}, mounts: [{{name: mine, mountPath: var/lib/milvus/etcd}}]}}": ENDS,
    # A folder is not below another one because its name begins with that of the other.
    f"{{size: 1Gi, {SCRATCH}, mounts: [{{name: mine, mountPath: /var/lib/milvus}}, {{name: data, mountPath: "
    "/var/lib/milvus/data}], settings: {localStorage.path: /var/lib/milvus/data-2}}": f"localStorage.path {ENDS}",
    f"{{size: 1Gi, volumes: [{{name: mine, ephemeral: {{}}}}], {AT_DATA}}}": f"localStorage.path {ENDS}",
    f"{{size: 1Gi, volumes: [{{name: mine, csi: {{driver: a}}}}], {AT_DATA}}}": f"localStorage.path {ENDS}",
    # Its own claim would be empty, and its loss a false alarm.
    "{size: 1Gi, volumes: [{name: data, persistentVolumeClaim: {claimName: old}}]}": (
        "spec.pod has a volume named data, although spec.storage makes one of that name: give the"
    ),
    # One of the two stays: Milvus deletes vectors that its etcd does not know.
    "settings: {common.storageType: remote}": "the etcd would be deleted with the pod, but",
    "settings: {minio.address: a}": "the etcd would be deleted with the pod, but the vectors would",
    f"{{env: [{{name: MINIO_ADDRESS, {SECRET}}}]}}": "the etcd would be deleted with the pod",
    "settings: {etcd.endpoints: [a, b]}": "the vectors would be deleted with the pod, but the etcd",
    f"{{{NFS}, mounts: [{{name: mine, mountPath: /var/lib/milvus/data}}]}}": (
        "the etcd would be deleted with the pod, but the vectors would not, and neither is of use "
        "without the other: set etcd.endpoints if you already have such a service; if all is new, "
        "set spec.storage"
    ),
    "{volumes: [{name: data, persistentVolumeClaim: {claimName: old}}, {name: tmp, emptyDir: {}}], "
    "mounts: [{name: tmp, mountPath: /var/lib/milvus/data}]}": "the vectors would be deleted",
    # Several replicas, with one place for all: a bucket, an etcd, a queue, or a volume.
    "{replicas: 2, size: 1Gi, settings: {minio.address: a}}": (
        "all replicas would have their vectors in the same place (common.storageType), and delete "
        f"each other's data: {ONE_EACH}"
    ),
    "{replicas: 2, size: 1Gi, settings: {minio: {address: a}}, "
    "env: [{name: MINIO_ROOTPATH, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]}": ONE_EACH,
    "{replicas: 9, size: 1Gi, settings: {etcd.endpoints: a}}": "their etcd in the same place (etcd.use",
    "{replicas: 2, settings: {kafka.brokerList: a}}": "their queue in the same place (mq.type)",
    "{replicas: 2, settings: {mq.type: woodpecker}}": "their queue in the same place (mq.type)",
    "{replicas: 2, settings: {mq.type: woodpecker, woodpecker.storage.type: service}}": "their queue",
    f"{{replicas: 2, {DISK}, {AT_DATA}}}": "their vectors in the same place (localStorage.path)",
    f"{{replicas: 2, {NFS}, env: [{{name: ME, valueFrom: {{fieldRef: {{fieldPath: metadata.name}}}}}}], "
    "mounts: [{name: mine, mountPath: /var/lib/milvus, subPathExpr: $(ME)}]}": ONE_EACH,
    f"{{replicas: 2, size: 1Gi, volumes: [{{name: mine, hostPath: {{path: /a}}}}], {AT_DATA}}}": ONE_EACH,
    f"{{replicas: 2, size: 1Gi, {NFS}, mounts: [{{name: mine, mountPath: /var/lib/milvus/etcd}}]}}": (
        "their etcd in the same place (etcd.data.dir)"
    ),
}
SAFE = [
    "{replicas: 2, size: 1Gi}",
    "replicas: 2",
    "{size: 1Gi, grace: 1}",
    "{mounts: null, env: null, volumes: null, size: 1Gi}",  # left empty: they name nothing
    "{size: 1Gi, settings: {localStorage.path: /var/lib/milvus/./mine/, rocksmq.path: /var/lib/milvus/q}}",
    f"{{size: 1Gi, {SCRATCH}, mounts: [{{name: mine, mountPath: /var/lib/milvus/da}}]}}",
    # Folders that are not used.
    "{size: 1Gi, settings: {minio.address: a, localStorage.path: /cache}}",
    "{size: 1Gi, settings: {etcd: {endpoints: a, data.dir: default.etcd}}}",
    "{settings: {pulsar.address: a, rocksmq.path: /q}}",
    "{settings: {mq.type: rocksmq, woodpecker.storage: {type: local, rootPath: /wp}}}",
    "{size: 1Gi, settings: {mq.type: woodpecker, woodpecker.storage: {type: minio, rootPath: wp}}}",
    "{replicas: 2, size: 1Gi, settings: {mq.type: woodpecker, woodpecker.storage: {type: local, rootPath: default}}}",
    # A local cache beside a bucket may end with the pod.
    f"{{size: 1Gi, settings: {{minio.address: a}}, {SCRATCH}, mounts: [{{name: mine, mountPath: /var/lib/milvus/data}}]}}",
    # All of it elsewhere; only what was not flushed is in the queue.
    "settings: {minio.address: a, etcd.endpoints: b}",
    "{settings: {minio.address: a, etcd.endpoints: b, kafka.brokerList: c}}",
    # Two disks, and disks of the owner's own.
    f"{{size: 1Gi, {DISK}, mounts: [{{name: mine, mountPath: /var/lib/milvus/data}}]}}",
    "volumes: [{name: data, persistentVolumeClaim: {claimName: old}}]",
    f"{{{NFS}, {AT_DATA}, settings: {{minio.address: a}}}}",
    f"{{{DISK}, {AT_DATA}}}",
    # Each replica has its own.
    "{replicas: 3, volumes: [{name: data, ephemeral: {}}]}",
    f"{{replicas: 2, volumes: [{{name: mine}}], {AT_DATA}}}",
    # What is no data may be the same, and may end.
    "{replicas: 2, size: 1Gi, volumes: [{name: tls, secret: {secretName: a}}], "
    "mounts: [{name: tls, mountPath: /var/lib/milvus/tls}]}",
    "{volumes: [{name: a, configMap: {name: b}}], mounts: [{name: a, mountPath: /milvus/configs/etcd.yaml}]}",
    # What only a Secret or the kubelet knows is not judged.
    f"env: [{{name: rocksmq.path, {SECRET}}}]",
    f"{{replicas: 2, settings: {{rocksmq.path: /q}}, env: [{{name: ROCKSMQ_PATH, {SECRET}}}]}}",
    f"{{replicas: 2, env: [{{name: MQ_TYPE, {SECRET}}}, {{name: ETCD_USE_EMBED, {SECRET}}}]}}",
    "env: [{name: LOCALSTORAGE_PATH, value: $(FOLDER)/a}]",
    # What a whole milvus.yaml says of this, with the addresses of a bucket and an etcd.
    "settings: {etcd: {endpoints: a, use: {embed: false}, data: {dir: default.etcd}}, mq: {type: default}, "
    "minio: {address: b}, localStorage: {path: /var/lib/milvus/data/}, pulsar: {address: localhost}, "
    "woodpecker: {storage: {type: minio, rootPath: /var/lib/milvus/woodpecker}}, proxy: {port: 19530, ip: null}}",
    # An owner who decides himself.
    "{replicas: 2, size: 1Gi, settings: {minio.address: a, common.storageType: Local}}",
    "{replicas: 2, settings: {kafka.brokerList: a}, env: [{name: MQ_TYPE, value: rocksmq}]}",
    "{replicas: 2, settings: {etcd.endpoints: a, etcd.use.embed: on}}",
]


def in_short(text: str) -> Obj:
    """The spec of a Milvus that this describes."""
    found = {"replicas": 1} | yaml.safe_load(text)
    container = {"name": "milvus", "env": found.get("env", [])}
    if "mounts" in found:
        container["volumeMounts"] = found["mounts"]
    if "folder" in found:
        container["workingDir"] = found["folder"]
    pod = {"containers": [container], "volumes": found.get("volumes", [])}
    if "grace" in found:
        pod["terminationGracePeriodSeconds"] = found["grace"]
    spec = {
        "replicas": found["replicas"],
        "pod": {"spec": pod},
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
    ("word", "is_true"),
    [
        *[("on", True), ("Yes", True), ("true", True), ("'true'", True), ("1", True), ("y", True)],
        *[("'on'", False), ('"yes"', False), ("'y'", False), ("off", False), ("tru", False)],
    ],
)
def test_a_word_that_only_yaml_takes_for_true_is_not_so_in_quotes(word: str, is_true: bool) -> None:
    """Then two replicas have an embedded etcd each; otherwise they share one."""
    text = f"etcd: {{endpoints: a, use: {{embed: {word}}}}}"
    assert (read(milvus(2, milvusSpec=text)).invalid == "") == is_true


def test_a_variable_is_true_only_as_go_has_it() -> None:
    text = (
        "{replicas: 2, settings: {etcd.endpoints: a}, env: [{name: ETCD_USE_EMBED, value: 'WORD'}]}"
    )
    for word, is_true in {"true": True, "t": True, "1": True, "yes": False, "on": False}.items():
        assert (read(milvus(**in_short(text.replace("WORD", word)))).invalid == "") == is_true, word


# What has the wrong type where data lies, and in variables: no bug of ours.
ODD = [
    "{name: A, valueFrom: text}",
    "{name: A, valueFrom: {fieldRef: text}}",
    "{name: [A], value: {b: c}}",
    "{value: 5}",
    "{name: MINIO_ADDRESS}",
]


@pytest.mark.parametrize("variable", ODD)
def test_an_odd_variable_is_left_to_the_api_server(variable: str) -> None:
    assert read(milvus(**in_short(f"{{size: 1Gi, env: [{variable}]}}"))).invalid == ""


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
