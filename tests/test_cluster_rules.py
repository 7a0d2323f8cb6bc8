"""What only a real API server decides: validation, also by an older CRD, which lets almost anything
pass; ends of namespaces, scheduling, what kubectl shows."""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator

import pytest
import yaml
from kubernetes.client import ApiException

import milvus_operator as mo
from tests.lib import kit
from tests.lib.kit import Clock, Kube, Obj, eventually, make_pass, rest, settle

# --- Our CRD ---
INVALID = {
    "{}": "spec.image: Required value",
    '{image: ""}': "spec.image in body should be at least 1 chars long",
    "{image: 3.1}": "spec.image in body must be of type string",
    "{image: a, replicas: -1}": "spec.replicas in body should be greater than or equal to 0",
    "{image: a, replicas: 1001}": "spec.replicas in body should be less than or equal to 1000",
    "{image: a, storage: {size: lots}}": "spec.storage.size in body should match",
    "{image: a, storage: {}}": "spec.storage.size: Required value",
    "{image: a, pod: {metadata: {labels: {a: 1}}}}": "labels.a in body must be of type string",
    f"{{image: a, milvusSpec: {'a' * 65537}}}": "spec.milvusSpec: Too long",
}
INVALID_CHANGES: dict[str, Obj | None] = {
    "storage can't be added or removed": None,
    "a volume can only grow": {"size": "1023Mi"},
    "the storage class can't be changed": {"storageClassName": "a"},
}


def create_raw(kube: Kube, name: str, spec: str) -> str:
    """Try to create a Milvus from a spec in JSON; returns the response."""
    head = f'"apiVersion": "{mo.API_VERSION}", "kind": "Milvus", "metadata": {{"name": "{name}"}}'
    body = f'{{{head}, "spec": {spec}}}'.encode()
    return kube.request("POST", kube.milvuses_path, body=body).data.decode()


def test_the_crd_rejects_what_cannot_be_managed(kube: Kube) -> None:
    for spec, message in INVALID.items():
        assert message in create_raw(kube, "x", json.dumps(yaml.safe_load(spec)))
    for name in ("a.b", "a" * 53):
        with pytest.raises(ApiException, match="must be a DNS label of at most 52 characters"):
            kube.create(name)
    kube.create("a" * 52)
    kube.create(storage={"size": "1Gi"})
    for message, storage in INVALID_CHANGES.items():
        with pytest.raises(ApiException, match=message):
            kube.change(storage=storage)
    for size in ("1024Mi", "2Gi", "2147483649"):
        kube.change(image="b", storage={"size": size})


def test_what_kubectl_shows_and_scales(kube: Kube, operator: mo.Operator) -> None:
    kube.create(replicas=2)
    rest(operator, kube, "x-0", "x-1")
    kube.kubectl("wait", "--for=condition=Ready", "mi/x", "--timeout=5s")
    shown = " ".join(kube.kubectl("get", "mi").split())
    assert shown.startswith("NAME DESIRED READY STATUS IMAGE AGE x 2 2 Ready milvus:1 ")
    kube.kubectl("scale", "milvus/x", "--replicas=3")
    rest(operator, kube, "x-0", "x-1", "x-2")
    scale = json.loads(kube.kubectl("get", "mi/x", "--subresource=scale", "-o", "json"))
    assert scale["status"]["replicas"] == 3
    selector = scale["status"]["selector"]
    selected = kube.kubectl("get", "pods", "-l", selector, "-o", "name")
    assert selected == "pod/x-0\npod/x-1\npod/x-2\n"
    assert "created pods x-0, x-1" in kube.kubectl("events", "--for", "milvus/x")


# --- What the API server does with pods ---
REJECTED = {
    "size": ("storage: {size: '0'}", "must be greater than zero"),
    "shape": ("pod: {spec: {containers: text}}", "cannot be handled as a Pod"),
    "denied": ("pod: {spec: {serviceAccountName: a}}", 'serviceaccount "a" not found'),
    "x": ("pod: {spec: {nodeSelektor: {}}}", 'unknown field "spec.nodeSelektor"'),
}


def test_what_is_rejected_is_told_and_costs_no_pod(kube: Kube, operator: mo.Operator) -> None:
    """In the words of the API server."""
    kube.create("x")
    rest(operator, kube, "x-0")
    before = kube.uids()
    for name, (spec, _) in REJECTED.items():
        write = kube.change if name == "x" else kube.create
        write(name, **yaml.safe_load(spec))
    kube.create("y")
    settle(operator)
    assert kube.names() == ["x-0", "y-0"]
    assert kube.uids()["x-0"] == before["x-0"]
    for name, (_, message) in REJECTED.items():
        reconciled = kube.condition("Reconciled", name)
        assert reconciled["reason"] == ("Forbidden" if name == "denied" else "Invalid")
        assert message in reconciled["message"]


def test_a_namespace_that_is_being_deleted_is_no_problem(kube: Kube, operator: mo.Operator) -> None:
    kube.create(replicas=2)
    rest(operator, kube, "x-0", "x-1")
    kube.patch_pod("x-1", finalizers=["test/hold"])
    kube.kubectl("delete", "ns", kube.ns, "--wait=false")
    eventually(lambda: kube.names() == ["x-1"])
    assert operator.run_once()
    assert kube.condition("Reconciled").get("reason") not in ("Forbidden", "APIError")
    kube.patch_pod("x-1", finalizers=None)


def test_the_schedulers_words_are_told_and_say_which_claim_is_gone(
    kube: Kube, operator: mo.Operator, clock: Clock
) -> None:
    kube.create(replicas=11, storage={"size": "1Gi", "storageClassName": "none"})
    settle(operator)
    eventually(lambda: make_pass(operator) and kube.condition("Ready")["reason"] == "Unschedulable")
    assert "unbound immediate PersistentVolumeClaims" in kube.condition("Ready")["message"]

    def uid(claim: str) -> str:
        return kube.kubectl(
            "get", "pvc", claim, "-o=jsonpath={.metadata.uid}", "--ignore-not-found"
        )

    before = uid("data-x-1"), uid("data-x-10")
    kube.kubectl("delete", "pvc", "data-x-10")

    def is_new() -> bool:
        clock.ahead += 30
        return make_pass(operator) and uid("data-x-10") not in ("", before[1])

    eventually(is_new, 40)  # as soon as the scheduler has noticed
    assert uid("data-x-1") == before[0]


# --- Under another CRD ---
# As in the original example: without a status subresource.
ORIGINAL_VERSION = yaml.safe_load("""
name: v1
served: true
storage: true
schema:
  openAPIV3Schema:
    type: object
    properties:
      spec:
        type: object
        properties:
          milvusSpec: {type: string}
          image: {type: string}
          replicas: {type: integer}
""")
# With a status subresource and no schema, the API server stores almost anything.
NO_SCHEMA = ORIGINAL_VERSION | yaml.safe_load("""
subresources: {status: {}}
schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
""")


OtherVersion = Callable[..., None]


@pytest.fixture
def other_version(kube: Kube) -> Iterator[OtherVersion]:
    """Replaces the version in the CRD for one test: call it with the new one, or with none for
    ours; it waits until that is in use."""
    crd = yaml.safe_load((kit.TOP / "crd.yaml").read_text())
    (ours,) = crd["spec"]["versions"]

    def replace(version: Obj = ours) -> None:
        crd["spec"]["versions"] = [version]
        kube.kubectl("replace", "-f", "-", stdin=json.dumps(crd))
        has_status = "subresources" in version
        get = ("get", "--raw", "/apis/zilliz.com/v1")
        eventually(lambda: ("milvuses/status" in kube.kubectl(*get)) == has_status)
        time.sleep(1)  # the handler changes after discovery

    yield replace
    replace()


def test_under_the_original_crd_pods_are_made_and_a_newer_crd_brings_statuses(
    kube: Kube, operator: mo.Operator, clock: Clock, other_version: OtherVersion
) -> None:
    """It checks nothing, and has no status subresource."""
    other_version(ORIGINAL_VERSION)
    kube.kubectl("apply", "-f", "-", stdin=kit.ORIGINAL_MILVUS)
    kube.create("l" * 253)
    kube.create("negative", replicas=-1)
    settle(operator)
    kube.ready("milvus-crd-test-0")
    before = kube.uids()
    other_version()

    def is_told(name: str, reason: str) -> bool:
        clock.ahead += 30  # just after the change, the API server may still respond as before
        make_pass(operator)
        return kube.condition("Reconciled", name).get("reason") == reason

    eventually(lambda: is_told("milvus-crd-test", "SpecIsText"))
    eventually(lambda: is_told("negative", "Invalid"))
    assert kube.uids() == before


@pytest.mark.platform
def test_a_spec_nested_thousands_of_levels_deep_harms_nobody(kube: Kube) -> None:
    """Thread stacks are as small as with musl; Python 3.13 recurses until the stack is full."""
    depths = (900, 5000)
    for depth in depths:
        deep = '{"a":' * depth + "1" + "}" * depth
        create_raw(kube, f"deep-{depth}", f'{{"image": "a", "pod": {{"spec": {deep}}}}}')
    kube.create("y")
    command = f"ulimit -s 1024; {sys.executable} milvus_operator.py --once -n {kube.ns}"
    env = os.environ | {"KUBECONFIG": str(kube.plane.kubeconfig())}
    said = kit.output_of("sh", "-ec", command, code=1, env=env)
    for depth in depths:
        assert said.count(f"/deep-{depth}: ") == 1, said
    assert kube.names() == ["y-0"], said


# The property tests have more of them, but not the API server's responses.
BAD_SPECS = yaml.safe_load(r"""
- null
- text
- {image: [milvus]}
- {image: a, replicas: 1000000000000000000000000000000}
- {image: a, milvusSpec: {a: 1}}
- {image: a, storage: {size: []}}
- {image: a, storage: {size: 1Gi, storageClassName: {}}}
- {image: a, pod: text}
- {image: a, pod: {metadata: {labels: {"no label!": x}, finalizers: [never/ends]}}}
- {image: a, pod: {spec: {containers: [{}, {name: null}, {name: {}}]}}}
- {image: a, pod: {spec: {containers: [{name: milvus, env: [{}, {name: 1}, {name: null}]}]}}}
- {image: a, pod: {spec: {securityContext: []}}}
""")
BAD_SPECS.append({"image": "i" * 1_000_000})
# They must neither pass for the API server's words, nor control a terminal.
for words in (
    "cannot set blockOwnerDeletion",
    'x: User "system:anonymous" cannot create resource "pods" in API group ""',
    "\x1b[2J\x1b]0;owned\x07\x9b31m",
):
    BAD_SPECS.append({"image": "a", "pod": {"spec": {"dnsPolicy": words}}})
    BAD_SPECS.append({"image": "a", "pod": {"spec": {"priorityClassName": words}}})


def test_bad_specs_get_a_clear_message_and_harm_nobody(
    kube: Kube, operator: mo.Operator, other_version: OtherVersion, caplog: pytest.LogCaptureFixture
) -> None:
    other_version(NO_SCHEMA)
    for number, spec in enumerate(BAD_SPECS):
        create_raw(kube, f"bad-{number}", json.dumps(spec))
    kube.create("a-good")
    kube.create("z-good")
    settle(operator)
    items = json.loads(kube.request("GET", kube.milvuses_path).data)["items"]
    assert len(items) >= 15
    reasons = {}
    for milvus in items:
        reconciled = mo.condition_of(milvus, "Reconciled")
        reasons[mo.name_of(milvus)] = reconciled["reason"]
        assert reconciled["message"], milvus
        assert "\n" not in reconciled["message"], milvus
    assert reasons.pop("a-good") == reasons.pop("z-good") == "Reconciled"
    assert {*reasons.values()} <= {"Reconciled", "Invalid", "Forbidden"}
    assert {"a-good-0", "z-good-0"} <= {*kube.names()}
    for name, pod in kube.all_pods().items():
        assert name.startswith(f"{mo.controller_of(pod)['name']}-")
        assert mo.labels_of(pod)[mo.MANAGED_BY_LABEL] == mo.MANAGER
    for record in caplog.records:
        if record.name == "milvus_operator":
            assert record.levelname != "ERROR", "no Milvus is an outage"
            assert len(record.getMessage()) < 1500
            assert not re.search(r"[\x00-\x1f\x7f-\x9f]", mo.text_line(record))
