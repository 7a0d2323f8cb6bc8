"""What only a real control plane decides: validation, ends of namespaces, scheduling."""

import json

import milvus_operator as mo
from tests.lib.kit import Clock, Kube, Obj, eventually, make_pass, rest, settle


def test_the_crd_rejects_what_cannot_be_served(kube: Kube) -> None:
    def answer(spec: str, name: str = "x") -> str:
        head = f"apiVersion: {mo.API_VERSION}\nkind: Milvus\nmetadata: {{name: {name}}}\n"
        return kube.kubectl("apply", "-f", "-", stdin=f"{head}spec: {{{spec}}}\n", check=False)

    for spec, words in {
        "image: ": "spec.image: Required value",
        'image: ""': "spec.image in body should be at least 1 chars long",
        "image: 3.1": 'spec.image: Invalid value: "number"',
        "image: a, replicas: -1": "spec.replicas in body should be greater than or equal to 0",
        "image: a, replicas: 1001": "spec.replicas in body should be less than or equal to 1000",
        "image: a, storage: {size: lots}": "spec.storage.size in body should match",
        "image: a, storage: {}": "spec.storage.size: Required value",
        "image: a, pod: {metadata: {labels: {a: 1}}}": "labels.a in body must be of type string",
        f"image: a, milvusSpec: {'a' * 65537}": "spec.milvusSpec: Too long",
    }.items():
        assert words in answer(spec)
    for name in ("a.b", "a" * 53, "a" * 253):
        words = "the name of a Milvus must be a DNS label of at most 52 characters"
        assert words in answer("image: a", name)
    assert "created" in answer("image: a", "a" * 52)
    assert "created" in answer("image: a, storage: {size: 1Gi}")
    for storage, words in {
        "": "storage can't be added or removed",
        ", storage: {size: 1023Mi}": "a volume can only grow",
        ", storage: {size: 1Gi, storageClassName: a}": "the storage class can't be changed",
    }.items():
        assert words in answer(f"image: a{storage}")
    for size in ("1024Mi", "2Gi", "2147483649"):
        assert "configured" in answer(f"image: b, storage: {{size: {size}}}")


BAD_PORT = {"name": "milvus", "ports": [{"containerPort": 99999}]}
REJECTED: dict[str, tuple[Obj, str]] = {
    "size": ({"storage": {"size": "0"}}, "must be greater than zero"),
    "shape": ({"pod": {"spec": {"containers": "text"}}}, "cannot be handled as a Pod"),
    "port": ({"pod": {"spec": {"containers": [BAD_PORT]}}}, "must be between 1 and 65535"),
    "denied": ({"pod": {"spec": {"serviceAccountName": "a"}}}, 'serviceaccount "a" not found'),
    "x": ({"pod": {"spec": {"nodeSelektor": {}}}}, 'unknown field "spec.nodeSelektor"'),
}


def test_what_is_rejected_is_told_and_costs_no_pod(kube: Kube, operator: mo.Operator) -> None:
    """In the words of the server."""
    kube.create("x")
    rest(operator, kube, "x-0")
    before = kube.uids()
    for name, (spec, _) in REJECTED.items():
        write = kube.change if name == "x" else kube.create
        write(name, **spec)
    kube.create("y")
    settle(operator)
    assert kube.names() == ["x-0", "y-0"]
    assert kube.uids().items() >= before.items()
    for name, (_, message) in REJECTED.items():
        reconciled = kube.condition("Reconciled", name)
        assert reconciled["reason"] == ("Forbidden" if name == "denied" else "Invalid")
        assert message in reconciled["message"]


def test_a_namespace_that_is_being_deleted_is_no_failure(kube: Kube, operator: mo.Operator) -> None:
    kube.create(replicas=2)
    rest(operator, kube, "x-0", "x-1")
    kube.patch_pod("x-1", finalizers=["test/hold"])
    kube.kubectl("delete", "ns", kube.ns, "--wait=false")
    eventually(lambda: kube.names() == ["x-1"])
    assert operator.run_once()
    reasons = {condition["reason"] for condition in kube.status().get("conditions", [])}
    assert not reasons & {"Forbidden", "APIError"}
    kube.patch_pod("x-1", finalizers=None)


def test_the_schedulers_words_are_told_and_say_which_claim_is_gone(
    kube: Kube, operator: mo.Operator, clock: Clock
) -> None:
    kube.create(replicas=11, storage={"size": "1Gi", "storageClassName": "none"})
    settle(operator)
    eventually(lambda: make_pass(operator) and kube.condition("Ready")["reason"] == "Unschedulable")
    assert "unbound immediate PersistentVolumeClaims" in kube.condition("Ready")["message"]
    uid = ("get", "pvc", "-o", "jsonpath={.metadata.uid}", "--ignore-not-found")
    before = kube.kubectl(*uid, "data-x-1"), kube.kubectl(*uid, "data-x-10")
    kube.kubectl("delete", "pvc", "data-x-10")

    def again() -> bool:
        clock.ahead += 30
        return make_pass(operator) and kube.kubectl(*uid, "data-x-10") not in ("", before[1])

    eventually(again, 40)  # as soon as the scheduler has noticed
    assert kube.kubectl(*uid, "data-x-1") == before[0]


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
