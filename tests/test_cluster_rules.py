"""What only a real API server decides: validation, the original CRD, ends of namespaces,
scheduling, what kubectl shows."""

import json
import os
import re
import sys
import time

import pytest
import yaml
from kubernetes.client import ApiException

import milvus_operator as mo
from tests.lib import kit
from tests.lib.kit import Kube, Obj, eventually, make_pass, new_operator, rest, settle
from tests.lib.world import milvus

# --- Our CRD ---
INVALID = {
    "{}": "spec.image: Required value",
    '{"image": ""}': "spec.image in body should be at least 1 chars long",
    '{"image": 3.1}': "spec.image in body must be of type string",
    '{"image": "a", "replicas": -1}': "spec.replicas in body should be greater than or equal to 0",
    '{"image": "a", "replicas": 1001}': "spec.replicas in body should be less than or equal to 1000",
    '{"image": "a", "storage": {"size": "lots"}}': "spec.storage.size in body should match",
    '{"image": "a", "storage": {}}': "spec.storage.size: Required value",
    '{"pod": {"metadata": {"labels": {"a": 1}}}}': "labels.a in body must be of type string",
    f'{{"milvusSpec": "{"a" * 131073}"}}': "spec.milvusSpec: Too long",
}
INVALID_CHANGES: dict[str, Obj | None] = {
    "storage can't be added or removed": None,
    "a volume can only grow": {"size": "1023Mi"},
    "the storage class can't be changed": {"storageClassName": "a"},
}


def create_raw(kube: Kube, name: str, spec: str) -> str:
    """Try to create a Milvus from a spec in JSON; returns the response."""
    head = f'"apiVersion": "{mo.API_VERSION}", "kind": "Milvus", "metadata": {{"name": "{name}"}}'
    body = f'{{{head}, "spec": {spec}}}'
    path = kube.milvuses.path(namespace=kube.ns)
    return kube.request("POST", path, {}, body).data.decode()


def test_the_crd_rejects_what_cannot_be_managed(kube: Kube) -> None:
    for spec, message in INVALID.items():
        assert message in create_raw(kube, "x", spec)
    for name in ("a.b", "a" * 53, "1a"):
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
    "shape": ("pod: {spec: {dnsPolicy: [a]}}", "cannot be handled as a Pod"),
    "slip": ("pod: {spec: {containers: text}}", "spec.pod.spec.containers must be a list"),
    "denied": ("pod: {spec: {serviceAccountName: a}}", 'serviceaccount "a" not found'),
    # A user's words that must not pass for those of the API server.
    "quoted": ("pod: {spec: {dnsPolicy: 'exceeded quota: a'}}", "exceeded quota: a"),
    "named": ("pod: {spec: {priorityClassName: 'User \"a\" cannot'}}", 'User "a" cannot'),
    "x": ("pod: {spec: {nodeSelektor: {a: b}}}", 'unknown field "spec.nodeSelektor"'),
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
    assert kube.names() == ["size-0", "x-0", "y-0"], "and a pod without its claim waits"
    assert kube.uids()["x-0"] == before["x-0"]
    for name, (_, message) in REJECTED.items():
        reconciled = kube.condition("Reconciled", name)
        assert reconciled["reason"] == ("Forbidden" if name in ("denied", "named") else "Invalid")
        assert message in reconciled["message"]
    assert make_pass(operator), "no outage stands"


# A policy that binds an address to the name of a pod, and one that writes well-known labels.
POLICIES = """
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: NAME}
spec:
  matchConstraints:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NAME}}
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
  validations:
    - expression: >-
        object.metadata.name == 'x-0' || !has(object.metadata.annotations) ||
        !('address' in object.metadata.annotations)
      message: the address belongs to x-0
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: NAME}
spec: {policyName: NAME, validationActions: [Deny]}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: NAME}
spec:
  matchConstraints:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NAME}}
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
  failurePolicy: Fail
  reinvocationPolicy: Never
  mutations:
    - patchType: ApplyConfiguration
      applyConfiguration:
        expression: >-
          Object{metadata: Object.metadata{labels: {"app.kubernetes.io/managed-by": "platform",
          "app.kubernetes.io/instance": "platform"}}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: NAME}
spec: {policyName: NAME}
"""


def test_policies_about_names_and_labels_stop_no_roll(kube: Kube, operator: mo.Operator) -> None:
    kube.kubectl("apply", "-f", "-", stdin=POLICIES.replace("NAME", kube.ns))

    def are_active() -> bool:
        kube.create_pod("probe")
        labels = kube.all_pods()["probe"]["metadata"].get("labels") or {}
        kube.kubectl("delete", "pod", "probe", "--now")
        return "app.kubernetes.io/managed-by" in labels

    eventually(are_active)
    kube.create(pod={"metadata": {"annotations": {"address": "10.0.0.1"}}})
    rest(operator, kube, "x-0")
    before = kube.uids()
    kube.change(image="milvus:2")
    rest(operator, kube, "x-0")
    assert kube.uids() != before
    assert kube.condition("Ready")["status"] == "True"
    labels = kube.all_pods()["x-0"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/managed-by"] == "platform"
    kube.change(replicas=2)
    settle(operator)
    assert kube.condition("Reconciled")["message"].endswith("the address belongs to x-0")
    kube.change(replicas=0)
    settle(operator)
    eventually(lambda: kube.names() == [])


def test_a_pod_that_lost_our_label_is_told_and_is_found_with_it(
    kube: Kube, operator: mo.Operator
) -> None:
    kube.create(replicas=2)
    rest(operator, kube, "x-0", "x-1")
    before = kube.uids()
    kube.kubectl("label", "pod", "x-1", "zilliz.com/milvus-", "app.kubernetes.io/managed-by-")
    settle(operator)
    said = kube.condition("Reconciled")
    assert said["reason"] == "NameConflict"
    (label,) = re.findall("give it the label (\\S+)$", said["message"])
    kube.kubectl("label", "pod", "x-1", label)
    settle(operator)
    assert kube.uids() == before
    assert kube.condition("Reconciled")["status"] == "True"


def test_a_namespace_that_is_being_deleted_is_no_problem(kube: Kube, operator: mo.Operator) -> None:
    kube.create(replicas=2)
    rest(operator, kube, "x-0", "x-1")
    kube.patch_pod("x-1", finalizers=["test/hold"])
    kube.kubectl("delete", "ns", kube.ns, "--wait=false")
    eventually(lambda: kube.names() == ["x-1"])
    assert operator.run_once()
    assert kube.condition("Reconciled").get("reason") not in ("Forbidden", "APIError")
    kube.patch_pod("x-1", finalizers=None)


def test_the_schedulers_words_are_told_and_a_claim_that_is_gone_is_made_again(
    kube: Kube, operator: mo.Operator
) -> None:
    kube.create(storage={"size": "1Gi", "storageClassName": "none"})

    def is_told() -> bool:
        settle(operator)
        return kube.condition("Ready")["reason"] == "Unschedulable"

    eventually(is_told)
    assert "unbound immediate PersistentVolumeClaims" in kube.condition("Ready")["message"]
    uid = ("get", "pvc", "data-x-0", "-o=jsonpath={.metadata.uid}", "--ignore-not-found")
    before = kube.kubectl(*uid)
    kube.kubectl("delete", "pvc", "data-x-0")

    def is_new() -> bool:
        return make_pass(new_operator(kube)) and kube.kubectl(*uid) not in ("", before)

    eventually(is_new, 40)


def test_with_on_delete_an_owner_chooses_the_hour_and_may_resize_a_pod(
    kube: Kube, operator: mo.Operator
) -> None:
    """The wrong word is refused; a pod that is resized in place is not touched."""
    refused = kit.output_of(
        "sh",
        "-c",
        f"exec {kube.plane.kubectl} --kubeconfig={kube.plane.kubeconfig()} "
        f"-n {kube.ns} create -f - <<END\n{json.dumps(on_delete('y', 'Sometimes', '1Gi'))}\nEND",
        code=1,
    )
    assert 'supported values: "RollingUpdate", "OnDelete"' in refused
    kube.kubectl("create", "-f", "-", stdin=json.dumps(on_delete("x", "OnDelete", "1Gi")))
    rest(operator, kube, "x-0", "x-1")
    before = kube.uids()
    kube.kubectl("apply", "-f", "-", stdin=json.dumps(on_delete("x", "OnDelete", "2Gi")))
    settle(operator)
    kube.kubectl("wait", "--for=condition=Ready", "mi/x", "--timeout=5s")
    assert kube.get()["status"]["updatedReplicas"] == 0
    assert "outdated until somebody deletes them: 2" in kube.condition("Ready")["message"]
    status = kube.all_pods()["x-0"]["status"]  # a kubelet that can resize tells the resources
    status["containerStatuses"][0]["resources"] = {"limits": {"memory": "1Gi"}}
    patch = json.dumps({"status": {"containerStatuses": status["containerStatuses"]}})
    kube.kubectl("patch", "pod", "x-0", "--subresource=status", "--type=merge", "-p", patch)
    more = {"requests": {"memory": "2Gi"}, "limits": {"memory": "2Gi"}}
    change = {"spec": {"containers": [{"name": "milvus", "resources": more}]}}
    kube.kubectl("patch", "pod", "x-0", "--subresource=resize", "-p", json.dumps(change))
    settle(operator)
    assert kube.uids() == before
    (container,) = kube.all_pods()["x-0"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"memory": "2Gi"}
    kube.kubectl("delete", "pod", "x-1")
    rest(operator, kube, "x-0", "x-1")
    (container,) = kube.all_pods()["x-1"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"memory": "2Gi"}, "it has the new template"
    assert kube.get()["status"]["updatedReplicas"] == 1
    assert kube.uids()["x-0"] == before["x-0"]


def on_delete(name: str, type_: str, memory: str) -> Obj:
    resources = {"requests": {"memory": memory}, "limits": {"memory": memory}}
    container = {"name": "milvus", "resources": resources}
    spec: Obj = {"replicas": 2, "updateStrategy": {"type": type_}}
    created = milvus(name, **spec, pod={"spec": {"containers": [container]}})
    del created["metadata"]["namespace"]
    return created


# As in the original example: it checks nothing, and has no status subresource.
ORIGINAL_VERSION = """
name: v1
served: true
storage: true
schema:
  openAPIV3Schema:
    type: object
    properties:
      spec:
        type: object
        properties: {milvusSpec: {type: string}, image: {type: string}, replicas: {type: integer}}
"""


def test_under_the_original_crd_pods_are_made_and_a_newer_crd_brings_statuses(
    kube: Kube, operator: mo.Operator
) -> None:
    crd = yaml.safe_load((kit.TOP / "crd.yaml").read_text())

    def use(version: Obj) -> None:
        """Replace the version in the CRD, and wait until the new one is in use."""
        changed = crd | {"spec": crd["spec"] | {"versions": [version]}}
        kube.kubectl("replace", "-f", "-", stdin=json.dumps(changed))
        has_status = "subresources" in version
        get = ("get", "--raw", "/apis/zilliz.com/v1")
        eventually(lambda: ("milvuses/status" in kube.kubectl(*get)) == has_status)
        time.sleep(1)  # the handler changes after discovery

    try:
        use(yaml.safe_load(ORIGINAL_VERSION))
        kube.kubectl("apply", "-f", "sample.yaml")
        settle(operator)
        kube.ready("milvus-crd-test-0")
    finally:
        use(crd["spec"]["versions"][0])
    before = kube.uids()

    def is_told() -> bool:
        make_pass(new_operator(kube))  # the API server may still respond as before the change
        return kube.condition("Reconciled", "milvus-crd-test").get("reason") == "SpecIsText"

    eventually(is_told)
    assert kube.uids() == before


@pytest.mark.platform
def test_a_spec_nested_thousands_of_levels_deep_harms_nobody(kube: Kube) -> None:
    """One is too deep for Python, the other only for us."""
    depths = (900, 5000)
    for depth in depths:
        deep = '{"a":' * depth + "1" + "}" * depth
        create_raw(kube, f"deep-{depth}", f'{{"image": "a", "pod": {{"spec": {deep}}}}}')
    kube.create("y")
    command = (sys.executable, "milvus_operator.py", "--once", "-n", kube.ns)
    env = os.environ | {"KUBECONFIG": str(kube.plane.kubeconfig())}
    said = kit.output_of(*command, code=None, env=env)
    warnings = re.findall(" WARNING .*(?:/deep-|is nested too deeply, and)", said)
    assert len(warnings) == 2, said
    assert kube.names() == ["y-0"], said
