"""The generated pod: its template, the configuration of Milvus, the overlay, the claim."""

from __future__ import annotations

import time
from typing import Any

import pytest
import yaml

import milvus_operator as mo

Obj = dict[str, Any]


def milvus(**spec: Any) -> Obj:
    return {
        "metadata": {"name": "x", "namespace": "ns", "uid": "uid-of-x"},
        "spec": {"image": "milvus:1"} | spec,
    }


def env_of(pod: Obj, container: int = 0) -> dict[str, Any]:
    variables = pod["spec"]["containers"][container]["env"]
    assert len({variable["name"] for variable in variables}) == len(variables)
    return {
        variable["name"]: variable.get("value", variable.get("valueFrom")) for variable in variables
    }


def spec_of(**over: Any) -> Obj:
    return mo.new_pod(milvus(pod={"spec": over}), 0)["spec"]  # type: ignore[no-any-return]


def container_of(**over: Any) -> Obj:
    return spec_of(containers=[{"name": "milvus"} | over])["containers"][0]  # type: ignore[no-any-return]


def test_the_pod_at_a_glance() -> None:
    pod = mo.new_pod(milvus(milvusSpec="this is milvus spec"), 7)
    environment = pod["spec"]["containers"][0].pop("env")
    assert pod == yaml.safe_load(f"""
        apiVersion: v1
        kind: Pod
        metadata:
          name: x-7
          namespace: ns
          labels:
            app.kubernetes.io/name: milvus
            app.kubernetes.io/instance: x
            app.kubernetes.io/managed-by: milvus-operator
            apps.kubernetes.io/pod-index: "7"
          annotations:
            zilliz.com/template-hash: {mo.template_hash(milvus(milvusSpec="this is milvus spec"))}
            zilliz.com/milvus-spec: this is milvus spec
          ownerReferences:
          - apiVersion: zilliz.com/v1
            kind: Milvus
            name: x
            uid: uid-of-x
            controller: true
            blockOwnerDeletion: true
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
            ports:
            - {{name: milvus, containerPort: 19530}}
            - {{name: metrics, containerPort: 9091}}
            startupProbe:
              httpGet: {{path: /healthz, port: metrics}}
              timeoutSeconds: 5
              periodSeconds: 5
              failureThreshold: 60
            readinessProbe:
              httpGet: {{path: /healthz, port: metrics}}
              timeoutSeconds: 5
              periodSeconds: 10
              failureThreshold: 3
            livenessProbe: {{tcpSocket: {{port: metrics}}, timeoutSeconds: 5, periodSeconds: 15}}
            resources: {{requests: {{cpu: 250m, memory: 1Gi}}}}
            securityContext: {{allowPrivilegeEscalation: false}}
            volumeMounts:
            - {{name: data, mountPath: /var/lib/milvus}}
          volumes:
          - {{name: data, emptyDir: {{}}}}
    """)
    assert {variable["name"]: variable["value"] for variable in environment} == mo.DEFAULTS


# Configuration -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("proxy.maxNameLength: 255", {"proxy.maxNameLength": "255"}),
        ("proxy: {maxNameLength: 255}", {"proxy.maxNameLength": "255"}),
        ("a: {b: {c: 1, d: 2}, e: 3}", {"a.b.c": "1", "a.b.d": "2", "a.e": "3"}),
        ("list: [1, two, 3.0]", {"list": "1,two,3.0"}),
        ("list: []", {"list": ""}),
        ("a: {list: [1, two]}", {"a.list": "1,two"}),
        ("\n".join(f"k{i}: {{a: 1}}" for i in range(33)), {f"k{i}.a": "1" for i in range(33)}),
        ("\n".join(f"k{i}: v" for i in range(1000)), {f"k{i}": "v" for i in range(1000)}),
        ("a: " + "x" * 65533, {"a": "x" * 65533}),
        (
            "flag: off\nother: yes\nnone: ~\nnothing:",
            {"flag": "off", "other": "yes", "none": "~", "nothing": ""},
        ),
        (
            "octal: 0777\nfloat: 1e3\ndate: 2001-01-01",
            {"octal": "0777", "float": "1e3", "date": "2001-01-01"},
        ),
        ("quoted: 'it''s'\nfolded: >-\n  a\n  b", {"quoted": "it's", "folded": "a b"}),
        ("tagged: !!int 5\nobject: !!python/object:os.system x", {"tagged": "5", "object": "x"}),
        ("big: " + "9" * 5000, {"big": "9" * 5000}),
        ("{a: " * 32 + "1" + "}" * 32, {".".join("a" * 32): "1"}),
        ("{}", {}),
        ("", {}),
        ("  \n", {}),
        ("# a comment", {}),
        ("milvus_proxy_port: 1", {"milvus_proxy_port": "1"}),
        ("milvus_conf_proxy_port: 1", {"milvus_conf_proxy_port": "1"}),
        ("milvus.proxy.maxNameLength: 1", {"milvus.proxy.maxNameLength": "1"}),
        ("this is milvus spec", None),
        ("- a\n- b", None),
        ("- a: b", None),
        ("&a text", None),
        ("42", None),
        ("null", None),
        ("text\n---\nmore text", None),
    ],
)
def test_what_milvus_spec_means(text: str, settings: dict[str, str] | None) -> None:
    assert mo.settings_of(milvus(milvusSpec=text)) == settings


PROXY, METRICS = (
    f"{name}.port cannot be changed: the ports of the pod depend on it"
    for name in ("proxy", "metrics")
)
LIST, NO_NAME = (
    "a list may hold only scalars, not mappings or lists",
    "a key must be a string that is not empty",
)
ALIAS, LEVELS = (
    "anchors and aliases are not allowed: write the value instead",
    "more than 32 levels of nesting",
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("proxy: {port: 1}", f", line 1: {PROXY}"),
        ("a: 1\nPROXY_PORT: 1", f", line 2: {PROXY}"),
        ("metrics: {port: 1}", f", line 1: {METRICS}"),
        ("milvus.proxy.port: 1", f", line 1: {PROXY}"),
        ("MILVUS.Proxy.Port: 1", f", line 1: {PROXY}"),
        ("milvus: {proxy: {port: 1}}", f", line 1: {PROXY}"),
        ("a: 1\nMILVUS_CONF_PROXY_PORT: 1", f", line 2: {PROXY}"),
        ("MILVUS_CONF_METRICS_PORT: 1", f", line 1: {METRICS}"),
        ("a: [{b: c}]", f", line 1: {LIST}"),
        ("a: [[b]]", f", line 1: {LIST}"),
        ("a: 1\n\na: 2", ", line 3: the same setting as on line 1"),
        ("b: 1\na: 1\na: 2", ", line 3: the same setting as on line 2"),
        ("common.storageType: a\nCOMMON_STORAGETYPE: b", ", line 2: the same setting as on line 1"),
        (
            "common.storageType: a\nMilvus.common.storageType: b",
            ", line 2: the same setting as on line 1",
        ),
        (
            "MILVUS_CONF_COMMON_STORAGETYPE: a\nb: c\ncommon:\n  storageType: b",
            ", line 4: the same setting as on line 1",
        ),
        ("a: &x 1\nb: *x", f", line 1: {ALIAS}"),
        ("b: 1\n<<: *x\na: 1", f", line 2: {ALIAS}"),
        ("text\n---\na: &x 1", f", line 3: {ALIAS}"),
        ("? [a]\n: b", f", line 1: {NO_NAME}"),
        ("a: {'': b}", f", line 1: {NO_NAME}"),
        ("{a: " * 33 + "}" * 33, f", line 1: {LEVELS}"),
        ("a: " + "[" * 10_000, f", line 1: {LEVELS}"),
        ("\n".join(f"k{i}: v" for i in range(1001)), " has 1001 settings; the limit is 1000"),
        ("a: " + "x" * 65534, " is longer than 64 KiB"),
        ("a: " + "x" * 1_000_000, " is longer than 64 KiB"),
        ("a: " + "é" * 40_000, " is longer than 64 KiB"),
    ],
)
def test_what_milvus_spec_must_not_contain(text: str, message: str) -> None:
    started = time.process_time()
    with pytest.raises(mo.Invalid) as error:
        mo.settings_of(milvus(milvusSpec=text))
    assert str(error.value) == f"spec.milvusSpec{message}"
    assert time.process_time() - started < 5, "bounded for any text"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "line 1: not valid YAML"),
        ("a: [\n\n\n", "line 1: not valid YAML"),
        ("a: 1\nb: c: d", "line 2: not valid YAML"),
        ("a:\n\t- b", "line 2: not valid YAML"),
        ("- a\nb: c", "line 2: not valid YAML"),
        ("*text*", "line 1: not valid YAML"),
        ("%YAML 9.9\n---\na: 1", "line 1: not valid YAML"),
        ("a: 1\r\nb: c: d\r\n", "line 2: not valid YAML"),
        ('a: "\\U00110000"', "line 1: "),
        ('a: "\\UFFFFFFFF"', "line 1: "),
        ("a: b\n---\nc: d", "line 2: "),
        ("text\n---\na: b", "line 2: "),
        ("\0", "line 1: a character that YAML does not allow"),
        ("\n\0", "line 2: a character that YAML does not allow"),
        ("a: \x07", "line 1: a character that YAML does not allow"),
        ("a: 1\nb: \x07\nc: 1", "line 2: a character that YAML does not allow"),
        ("a: é\nb: \x07\nc: 1", "line 2: a character that YAML does not allow"),
        ("a: 1\n\ud800: x", "line 2: a character that YAML does not allow"),
        (
            "# 😀 a comment of some length\na: \ud800\nb: 1",
            "line 2: a character that YAML does not allow",
        ),
    ],
)
@pytest.mark.parametrize(
    "loader", [mo.YAML_LOADER, yaml.BaseLoader]
)  # the second is for a PyYAML without libyaml
def test_text_that_does_not_parse_is_invalid_and_its_line_is_named(
    text: str, message: str, loader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mo, "YAML_LOADER", loader)
    with pytest.raises(mo.Invalid, match="^spec.milvusSpec, " + message):
        mo.settings_of(milvus(milvusSpec=text))


def test_the_line_of_a_character_that_yaml_does_not_allow_is_named() -> None:
    """Even after characters of several bytes."""
    for before in ("a", "é", "€", "😀"):
        with pytest.raises(mo.Invalid, match="line 2: "):
            mo.settings_of(milvus(milvusSpec=f"key: {before * 9}\nb: \x07\nc: 1\nd: 2\ne: 3\nf: 4"))


def test_a_typo_replaces_no_pod_and_is_reported() -> None:
    """A typo must not reset a database to its defaults."""
    old = mo.new_pod(milvus(milvusSpec="common: {security: {authorizationEnabled: true}}"), 0)
    old["metadata"]["uid"], old["status"] = (
        "uid-0",
        {"conditions": [{"type": "Ready", "status": "True"}]},
    )
    broken = milvus(milvusSpec="common: {security: {authorizationEnabled: true}")
    broken["metadata"]["generation"] = 2
    for pods in ([old], []):
        with pytest.raises(mo.Invalid):
            mo.decide(broken, pods)
    status = mo.status_of(broken, [old], {}, "now")
    assert (status["readyReplicas"], status["updatedReplicas"]) == (1, 0)
    assert [(condition["type"], condition["status"]) for condition in status["conditions"]] == [
        ("Ready", "False"), ("Reconciled", "False"), ("Stalled", "True")
    ]  # fmt: skip
    for condition in status["conditions"]:
        assert (condition["reason"], condition["observedGeneration"]) == ("Invalid", 2)
        assert condition["message"] == "spec.milvusSpec, line 1: not valid YAML"


@pytest.mark.parametrize(
    "spec",
    [{"milvusSpec": text} for text in (
        "a: b: hunter2", "hunter2: b: c", "a: 'hunter2", "a: [hunter2", "%hunter2", "a: hunter2\x07", "hunter2: [{}]",
        "? [hunter2]\n: 1", "'': hunter2", "a: &hunter2 1", "a: *hunter2", "&hunter2 a: 1", "hunter2: 1\nHUNTER2: 2",
        "proxy: {port: hunter2}", "PROXY_PORT: hunter2", "a: hunter2\n---\nb: hunter2", "a: !<hunter2 b",
        "a: " + "[" * 40 + "hunter2", "a: hunter2\n" * 1001, "a: " + "hunter2" * 10_000, "hunter2",
    )]
    + [{"milvusSpec": ["hunter2"]}, {"image": ["hunter2"]}, {"replicas": "hunter2"}, {"storage": "hunter2"},
       {"pod": "hunter2"}, {"pod": {"spec": "hunter2"}}, {"pod": {"metadata": {"labels": "hunter2"}}}],
)  # fmt: skip
def test_messages_about_a_spec_never_quote_it(spec: Obj) -> None:
    """A spec may contain passwords, and more people can read statuses and events than specs."""
    assert "hunter2" not in str(mo.status_of(milvus(**spec), [], {}, "now")).lower()


def test_a_billion_laughs_are_refused_at_once() -> None:
    bomb = "a: &a [lol, lol]\n" + "".join(
        f"{b}: &{b} [{', '.join(['*' + a] * 10)}]\n"
        for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    with pytest.raises(mo.Invalid, match="anchors and aliases"):
        mo.settings_of(milvus(milvusSpec=bomb))


@pytest.mark.parametrize(
    "name",
    ["common.storageType", "COMMON_STORAGETYPE", "common/storage_type", "Milvus.common.storageType",
     "milvus.COMMON_STORAGETYPE", "MILVUS_CONF_COMMON_STORAGETYPE", "MILVUS_CONF_milvus.common.storageType"],
)  # fmt: skip
def test_a_users_setting_replaces_ours_however_it_is_spelled(name: str) -> None:
    for made in (milvus(milvusSpec=f"{name}: minio"), with_variable(name, "minio")):
        environment = env_of(mo.new_pod(made, 0))
        spelled = {key for key in environment if "storage" in key.lower()}
        assert spelled == {name}
        assert environment[name] == "minio"


@pytest.mark.parametrize(
    "name",
    ["milvus_common_storageType", "milvus_conf_COMMON_STORAGETYPE", "my.common.storageType",
     "common.milvus.storageType", "milvus.milvus.common.storageType"],
)  # fmt: skip
def test_another_setting_replaces_none_of_ours(name: str) -> None:
    for made in (milvus(milvusSpec=f"{name}: minio"), with_variable(name, "minio")):
        environment = env_of(mo.new_pod(made, 0))
        assert environment.items() >= {name: "minio", "COMMON_STORAGETYPE": "local"}.items()


def with_variable(name: str, value: str) -> Obj:
    """A Milvus whose spec.pod has an environment variable."""
    return milvus(
        pod={"spec": {"containers": [{"name": "milvus", "env": [{"name": name, "value": value}]}]}}
    )


def test_the_environment_has_the_users_settings_and_ours() -> None:
    environment = env_of(
        mo.new_pod(milvus(milvusSpec="common: {storageType: minio}\nMQ_TYPE: pulsar\nmore: 1"), 0)
    )
    assert (environment["common.storageType"], environment["MQ_TYPE"], environment["more"]) == (
        "minio",
        "pulsar",
        "1",
    )
    assert "COMMON_STORAGETYPE" not in environment
    assert environment["ETCD_USE_EMBED"] == "true"


@pytest.mark.parametrize("value", ["$(HOME)", "$$(HOME)", "a$$b", "$", "$$$", "a$b", "cost: 5$"])
def test_a_value_reaches_the_server_as_it_is_written(value: str) -> None:
    """Kubernetes expands $(NAME), and reads $$ as an escaped $."""
    sent = mo.environment({}, {"password": value})[0]["value"]
    assert sent.replace("$$", "\0").replace("\0", "$") == value
    assert "$(" not in sent.replace("$$", "")


# The overlay ---------------------------------------------------------------------------


def test_resources_and_a_node_selector() -> None:
    spec = spec_of(
        nodeSelector={"disk": "ssd"},
        tolerations=[{"key": "db", "operator": "Exists"}],
        imagePullSecrets=[{"name": "s"}],
        containers=[{"name": "milvus", "resources": {"limits": {"memory": "8Gi"}}}],
    )
    assert spec["nodeSelector"] == {"disk": "ssd"}
    assert spec["tolerations"] == [{"key": "db", "operator": "Exists"}]
    assert spec["imagePullSecrets"] == [{"name": "s"}]
    (container,) = spec["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "250m", "memory": "1Gi"},
        "limits": {"memory": "8Gi"},
    }
    assert container["image"] == "milvus:1"


def test_an_environment_variable_from_a_secret_replaces_ours_of_the_same_setting() -> None:
    secret = {"secretKeyRef": {"name": "s", "key": "k"}}
    over = {
        "name": "milvus",
        "env": [{"name": "common.storageType", "valueFrom": secret}, {"name": "NEW", "value": "1"}],
    }
    spec = milvus(milvusSpec="new: 0\nother: 1", pod={"spec": {"containers": [over]}})
    environment = env_of(mo.new_pod(spec, 0))
    assert environment["common.storageType"] == secret
    assert (environment["NEW"], environment["other"]) == ("1", "1")
    assert not {"COMMON_STORAGETYPE", "new"} & environment.keys()


def test_a_sidecar_an_init_container_and_a_volume() -> None:
    spec = spec_of(
        containers=[
            {"name": "side", "image": "side:1"},
            {"name": "milvus", "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}]},
        ],
        initContainers=[{"name": "init", "image": "init:1"}],
        volumes=[{"name": "tmp", "emptyDir": {"medium": "Memory"}}],
    )
    assert [container["name"] for container in spec["containers"]] == ["milvus", "side"]
    assert spec["initContainers"] == [{"name": "init", "image": "init:1"}]
    assert spec["volumes"] == [
        {"name": "data", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {"medium": "Memory"}},
    ]
    assert spec["containers"][0]["volumeMounts"] == [
        {"name": "data", "mountPath": "/var/lib/milvus"},
        {"name": "tmp", "mountPath": "/tmp"},
    ]


def test_a_volume_of_ours_is_replaced_as_a_whole() -> None:
    assert spec_of(volumes=[{"name": "data", "hostPath": {"path": "/d"}}])["volumes"] == [
        {"name": "data", "hostPath": {"path": "/d"}}
    ]


def test_ports_merge_by_their_number_and_probes_by_their_kind() -> None:
    container = container_of(
        ports=[{"containerPort": 19530, "hostPort": 1}, {"containerPort": 80}],
        startupProbe={"failureThreshold": 1},
        readinessProbe={"httpGet": {"path": "/ready"}},
        livenessProbe={"exec": {"command": ["true"]}},
    )
    assert container["ports"] == [
        {"name": "milvus", "containerPort": 19530, "hostPort": 1},
        {"name": "metrics", "containerPort": 9091},
        {"containerPort": 80},
    ]
    assert container["startupProbe"] == {
        "httpGet": {"path": "/healthz", "port": "metrics"}, "timeoutSeconds": 5, "periodSeconds": 5, "failureThreshold": 1
    }  # fmt: skip
    assert container["readinessProbe"]["httpGet"] == {"path": "/ready", "port": "metrics"}
    assert container["livenessProbe"] == {
        "exec": {"command": ["true"]},
        "timeoutSeconds": 5,
        "periodSeconds": 15,
    }


@pytest.mark.parametrize("kind", ["exec", "httpGet", "tcpSocket", "grpc"])
def test_a_probe_has_exactly_one_kind_of_check(kind: str) -> None:
    for probe in ("readinessProbe", "livenessProbe"):
        asks = container_of(**{probe: {kind: {"port": 1}}})[probe]
        assert [key for key in asks if not key.endswith(("Seconds", "Threshold"))] == [kind]


@pytest.mark.parametrize("args", [["milvus", "run", "proxy"], []])
def test_lists_without_a_key_replace(args: list[str]) -> None:
    assert container_of(args=args)["args"] == args


def test_duplicates_and_values_that_are_not_lists_are_left_for_the_api_server_to_refuse() -> None:
    twice = [{"name": "milvus", "image": "a"}, {"name": "milvus", "image": "b"}]
    assert [container["image"] for container in spec_of(containers=twice)["containers"]] == [
        "a",
        "b",
    ]
    assert spec_of(containers={})["containers"] == {}


def test_what_the_operator_relies_on_cannot_be_overridden() -> None:
    metadata = {
        "name": "y", "namespace": "z", "uid": "u", "ownerReferences": [],
        "labels": {mo.MANAGED_BY_LABEL: "me", "own": "1"},
        "annotations": {mo.TEMPLATE_HASH: "0", "own": "1"},
    }  # fmt: skip
    pod = mo.new_pod(milvus(pod={"metadata": metadata, "kind": "Job"}), 0)
    plain = mo.new_pod(milvus(), 0)
    hashed = pod["metadata"]["annotations"].pop(mo.TEMPLATE_HASH)
    assert hashed == mo.template_hash(milvus(pod={"metadata": metadata, "kind": "Job"}))
    assert pod["metadata"]["annotations"] == {"own": "1"}
    assert pod["metadata"]["labels"] == plain["metadata"]["labels"] | {"own": "1"}
    for key in ("name", "namespace", "ownerReferences"):
        assert pod["metadata"][key] == plain["metadata"][key]
    assert pod["kind"] == "Pod"


@pytest.mark.parametrize(
    "over",
    [{"containers": "text"}, {"containers": [1]}, {"containers": [{"name": ["x"]}]}, {"containers": [{}]},
     {"containers": 5}, {"containers": [{"name": "a"}, 1]}, {"securityContext": "text"},
     {"securityContext": {"ports": [{}]}}, {"volumes": [None]}, {"volumes": [{"name": {}}]},
     {"containers": [{"name": "milvus", "env": [{"name": 3}]}]},
     {"containers": [{"name": "milvus", "ports": [{"containerPort": []}]}]}, {"hostname": None}],
)  # fmt: skip
def test_an_overlay_of_any_shape_makes_a_pod_for_the_api_server_to_check(over: Obj) -> None:
    assert mo.new_pod(milvus(pod={"spec": over}), 0)["metadata"]["name"] == "x-0"


# The claim -----------------------------------------------------------------------------


def test_each_pod_has_a_claim_of_its_own() -> None:
    stored = milvus(storage={"size": "5Gi", "storageClassName": "fast"})
    pod = mo.new_pod(stored, 3)
    assert pod["spec"]["volumes"] == [
        {"name": "data", "persistentVolumeClaim": {"claimName": "data-x-3"}}
    ]
    assert mo.new_claim(stored, pod) == {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data-x-3", "namespace": "ns", "labels": pod["metadata"]["labels"]},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "5Gi"}},
            "storageClassName": "fast",
        },
    }
    first = mo.new_claim(stored, mo.new_pod(stored, 0))
    assert first
    assert first["metadata"]["labels"][mo.POD_INDEX_LABEL] == "0"
    assert "storageClassName" not in mo.new_claim(milvus(storage={"size": 1}), pod)["spec"]  # type: ignore[index]
    by_hand = mo.new_claim(milvus(storage={"size": 1, "storageClassName": ""}), pod)
    assert by_hand
    assert by_hand["spec"]["storageClassName"] == "", "not the default class"
    assert mo.new_claim(milvus(), pod) is None
