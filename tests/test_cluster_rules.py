"""What only a real API server decides: validation, the original CRD, ends of namespaces,
scheduling, what kubectl shows."""

import json

import pytest
import yaml
from kubernetes.client import ApiException

import milvus_operator as mo
from tests.lib import kit
from tests.lib.kit import Kube, Obj, eventually, make_pass, rest, settle
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
    '{"image": "a", "storage": {"size": -5}}': "spec.storage.size: Invalid value: -5",
    '{"image": "a", "storage": {"size": "1e999"}}': "spec.storage.size: Invalid value",
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


def test_a_namespace_that_is_being_deleted_is_no_problem(kube: Kube, operator: mo.Operator) -> None:
    kube.create(replicas=2)
    rest(operator, kube, "x-0", "x-1")
    kube.patch_pod("x-1", finalizers=["test/hold"])
    kube.kubectl("delete", "ns", kube.ns, "--wait=false")
    eventually(lambda: kube.names() == ["x-1"])
    assert operator.run_once()
    reconciled = kube.condition("Reconciled")
    assert (reconciled["status"], reconciled["reason"]) == ("True", "NamespaceTerminating")
    assert "because it is being terminated" in reconciled["message"]
    kube.patch_pod("x-1", finalizers=None)


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
