"""What only a real control plane decides: admission, quotas, garbage collection, scheduling."""

from __future__ import annotations

import json
from typing import Any

import milvus_operator as mo
from tests.lib.kit import Clock, Kube, Obj, eventually, make_pass, new_operator, rest, settle
from tests.lib.wire import Wire

STORED = {"size": "1Gi", "storageClassName": "none"}


def quota(kube: Kube, **hard: int) -> None:
    what = ",".join(f"{name}={number}" for name, number in hard.items())
    kube.kubectl("create", "quota", "q", f"--hard={what}")
    eventually(lambda: kube.kubectl("get", "quota", "q", "-o", "jsonpath={.status.hard}") != "")


def policy(kube: Kube, kind: str, operations: list[str], **rules: Any) -> None:
    """An admission policy for the pods of this namespace."""
    version, name = "admissionregistration.k8s.io/v1", {"name": kube.ns}
    resources = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
    where = {"matchLabels": {"kubernetes.io/metadata.name": kube.ns}}
    constraints = {
        "namespaceSelector": where,
        "resourceRules": [resources | {"operations": operations}],
    }
    binding: Obj = {"policyName": kube.ns}
    if kind == "ValidatingAdmissionPolicy":
        binding["validationActions"] = ["Deny"]
    for made, spec in (
        (kind, {"matchConstraints": constraints} | rules),
        (f"{kind}Binding", binding),
    ):
        obj = {"apiVersion": version, "kind": made, "metadata": name, "spec": spec}
        kube.kubectl("create", "-f", "-", stdin=json.dumps(obj))


def drop(kube: Kube, kind: str) -> None:
    kube.kubectl("delete", f"{kind}binding,{kind}", kube.ns)


def test_what_a_quota_refuses_is_told_in_its_words_and_tried_again(
    kube: Kube, operator: mo.Operator, clock: Clock
) -> None:
    quota(kube, pods=2, persistentvolumeclaims=3)
    kube.create(replicas=4, storage=STORED)
    settle(operator)
    assert len(kube.names()) == 2
    assert kube.condition("Reconciled")["reason"] == "QuotaExceeded"
    assert "exceeded quota: q" in kube.condition("Reconciled")["message"]
    kube.delete_pod("x-0")
    kube.gone("x-0")
    settle(operator)
    assert "x-0" in kube.names(), "with the claim it has, at once"
    kube.kubectl("delete", "quota", "q")
    clock.skip(300)
    settle(operator)
    assert len(kube.names()) == 4
    assert kube.condition("Reconciled")["status"] == "True"


def test_a_policy_that_refuses_one_pod_delays_no_other(kube: Kube, operator: mo.Operator) -> None:
    kind = "ValidatingAdmissionPolicy"
    rule = {"expression": "object.metadata.name != 'x-0'", "message": "not that one"}
    policy(kube, kind, ["CREATE"], validations=[rule])
    ask = ("run", "x-0", "--image=a", "--dry-run=server")
    eventually(lambda: "not that one" in kube.kubectl(*ask, check=False))
    kube.create(replicas=3)
    settle(operator)
    assert kube.names() == ["x-1", "x-2"]
    assert "not that one" in kube.condition("Reconciled")["message"]
    drop(kube, kind)


def test_a_policy_that_removes_the_fingerprint_makes_no_loop(kube: Kube, wire: Wire) -> None:
    kind, path = "MutatingAdmissionPolicy", "/metadata/annotations"
    patch = {"patchType": "JSONPatch", "jsonPatch": {
        "expression": f'[JSONPatch{{op: "remove", path: "{path}"}}]'}}  # fmt: skip
    has = {"name": "has", "expression": "has(object.metadata.annotations)"}
    policy(kube, kind, ["CREATE", "UPDATE"], mutations=[patch], matchConditions=[has],
           reinvocationPolicy="Never", failurePolicy="Fail")  # fmt: skip
    ask = ("run", "a", "--image=a", "--annotations=a=b", "--dry-run=server", "-o", "yaml")
    eventually(lambda: "annotations" not in kube.kubectl(*ask, check=False))
    operator, clock = new_operator(kube, server=wire.url), Clock()
    kube.create()
    for _ in range(10):
        make_pass(operator)
        clock.skip(5)
    assert kube.condition("Reconciled")["reason"] == "Invalid"
    assert "admission removes or changes the annotation" in kube.condition("Reconciled")["message"]
    assert [verb for verb in wire.verbs() if verb.startswith("DELETE")] == []
    drop(kube, kind)


def test_orphans_of_a_deleted_milvus_are_adopted_by_a_new_one(
    kube: Kube, operator: mo.Operator
) -> None:
    kube.create(replicas=3)
    rest(operator, kube, "x-0", "x-1", "x-2")
    before = kube.uids()
    kube.kubectl("delete", "mi", "x", "--cascade=orphan")
    eventually(lambda: all(not mo.controller_of(pod) for pod in kube.all_pods().values()))
    make_pass(operator)
    new = kube.create(replicas=2)
    rest(operator, kube, "x-0", "x-1")
    assert kube.uids().items() <= before.items()
    assert {mo.owner_uid(pod) for pod in kube.all_pods().values()} == {new["metadata"]["uid"]}


def test_a_milvus_that_is_deleted_takes_its_pods_along_and_gets_nothing_new(
    kube: Kube, operator: mo.Operator
) -> None:
    kube.create(replicas=2)
    rest(operator, kube, "x-0", "x-1")
    kube.patch_pod("x-1", finalizers=["test/hold"])
    kube.delete(propagationPolicy="Foreground")
    kube.gone("x-0")
    make_pass(operator)
    assert kube.names() == ["x-1"], "its Milvus is ending: x-0 is not created again"
    kube.patch_pod("x-1", finalizers=None)
    eventually(lambda: not kube.names())


def test_a_namespace_that_is_being_deleted_is_no_failure(kube: Kube, operator: mo.Operator) -> None:
    kube.create(replicas=2)
    rest(operator, kube, "x-0", "x-1")
    kube.patch_pod("x-1", finalizers=["test/hold"])
    kube.kubectl("delete", "ns", kube.ns, "--wait=false")
    kube.gone("x-0")
    assert operator.run_once()
    reasons = {condition["reason"] for condition in kube.status().get("conditions", [])}
    assert not reasons & {"Forbidden", "APIError"}
    kube.patch_pod("x-1", finalizers=None)


def test_a_pod_whose_claim_is_gone_is_replaced_in_the_schedulers_words(
    kube: Kube, operator: mo.Operator, clock: Clock
) -> None:
    kube.create(replicas=11, storage=STORED)
    settle(operator)
    uid = ("get", "pvc", "-o", "jsonpath={.metadata.uid}", "--ignore-not-found")
    before = kube.kubectl(*uid, "data-x-1"), kube.kubectl(*uid, "data-x-10")
    kube.kubectl("delete", "pvc", "data-x-10")

    def again() -> bool:
        clock.skip(30)
        return make_pass(operator) and kube.kubectl(*uid, "data-x-10") not in ("", before[1])

    eventually(again, 40)  # as soon as the scheduler has noticed
    assert kube.kubectl(*uid, "data-x-1") == before[0]


def test_an_unschedulable_pod_is_told_in_the_schedulers_words(
    kube: Kube, operator: mo.Operator
) -> None:
    kube.create(pod={"spec": {"nodeSelector": {"no": "such"}}})
    eventually(
        lambda: make_pass(operator) and kube.condition("Ready").get("reason") == "Unschedulable"
    )
    assert "didn't match Pod's node affinity/selector" in kube.condition("Ready")["message"]
    assert kube.condition("Reconciled")["status"] == "True"


def test_what_kubectl_shows_and_scales(kube: Kube, operator: mo.Operator) -> None:
    kube.create(replicas=2)
    rest(operator, kube, "x-0", "x-1")
    kube.kubectl("wait", "--for=condition=Ready", "mi/x", "--timeout=5s")
    head, row = (line.split() for line in kube.kubectl("get", "mi").splitlines())
    assert head == ["NAME", "DESIRED", "READY", "STATUS", "IMAGE", "AGE"]
    assert row[:5] == ["x", "2", "2", "Ready", "milvus:1"]
    selector = kube.status()["selector"]
    selected = kube.kubectl("get", "pods", "-l", selector, "-o", "name").split()
    assert selected == ["pod/x-0", "pod/x-1"]
    kube.kubectl("scale", "milvus/x", "--replicas=3")
    rest(operator, kube, "x-0", "x-1", "x-2")
    scale = json.loads(kube.kubectl("get", "mi", "x", "--subresource=scale", "-o", "json"))
    assert (scale["status"]["replicas"], scale["status"]["selector"]) == (3, selector)
    assert "Created" in kube.kubectl("describe", "mi", "x")
    assert "created pods x-0, x-1" in kube.kubectl("events", "--for", "milvus/x")


def test_real_lists_come_in_pages(kube: Kube, wire: Wire) -> None:
    kube.create(replicas=200)
    operator = new_operator(kube, server=wire.url)
    assert operator.run_once()
    assert kube.status()["replicas"] == 200
    wire.requests.clear()
    make_pass(operator)
    pages = [one.query for one in wire.requests if one.path.endswith("/pods")]
    assert len(pages) >= 3
    assert "continue" in pages[1]
