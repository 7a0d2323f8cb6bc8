"""Permissions: the operator runs as its own service account, with the rules of the manifests."""

from collections.abc import Iterator

import pytest
import yaml

import milvus_operator as mo
from tests.lib.front import target_of
from tests.lib.kit import TOP, Kube, Obj, eventually, for_one_namespace, new_operator, settle
from tests.lib.objects import by_kind
from tests.lib.wire import Wire

Permission = tuple[str, str, str]  # verb, resource, group
IMPLIED = ("update", "milvuses/finalizers", "zilliz.com")  # it is needed for blockOwnerDeletion


def granted(role: Obj) -> set[Permission]:
    return {
        (verb, resource, group)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


EVERYWHERE = by_kind((TOP / "deploy.yaml").read_text())
PERMISSIONS = granted(EVERYWHERE["ClusterRole"])


def live(kube: Kube, operator: mo.Operator) -> None:
    """Make the operator do everything that it ever does; what it is not allowed is skipped."""
    settle(operator)  # while there is nothing yet
    kube.create(replicas=2)
    kind = kube.ns
    kube.create_storage_class(kind, allowVolumeExpansion=True)
    kube.create_volume(kind, storageClassName=kind)
    kube.create("kept", storage={"size": "1Gi", "storageClassName": kind})
    kube.create_pod("taken-0")
    kube.create("taken")
    settle(operator)
    if kube.kubectl("get", "pvc", "-o", "name"):
        phase = ("get", "pvc", "data-kept-0", "-o", "jsonpath={.status.phase}")
        eventually(lambda: kube.kubectl(*phase) == "Bound")
    kube.change("kept", storage={"size": "2Gi"})
    settle(operator)
    for name in {"x-0", "kept-0"} & {*kube.names()}:
        kube.kubectl("delete", "pod", name)
    settle(operator)
    kube.change("kept", image="milvus:2")
    kube.change(replicas=1)
    settle(operator)
    if "x-0" not in kube.names():
        kube.create_pod("x-0", labels=mo.our_label(kube.get()))
    kube.patch_pod("x-0", ownerReferences=None)
    settle(operator)


@pytest.fixture
def installed(kube: Kube) -> Iterator[str]:
    """Applies deploy.yaml; its namespace."""
    namespace = mo.namespace_of(EVERYWHERE["Deployment"])
    options = ("-n", namespace, "-f", str(TOP / "deploy.yaml"))
    kube.kubectl("apply", *options)
    yield namespace
    kube.kubectl("delete", *options, "--wait=false")


@pytest.mark.platform
def test_the_rules_grant_exactly_the_permissions_that_the_operator_uses(
    kube: Kube, wire: Wire, installed: str, caplog: pytest.LogCaptureFixture
) -> None:
    token = kube.kubectl("create", "token", mo.MANAGER, "-n", installed)
    operator = new_operator(kube, server=wire.url, token=token.strip())
    operator.namespaces = [None]
    live(kube, operator)
    assert "forbidden" not in caplog.text
    used = {IMPLIED}
    for request in wire.requests:
        used.add(target_of(request.verb, request.path)[:3])
        assert request.code != 403 or kube.ns not in request.path
    assert used == PERMISSIONS
    adopted = kube.all_pods()["x-0"]
    assert mo.controller_of(adopted) == mo.owner_reference(kube.get())
    size = "jsonpath={.items[*].spec.resources.requests.storage}"
    assert kube.kubectl("get", "pvc", "-o", size) == "2Gi"


@pytest.mark.platform
@pytest.mark.parametrize("missing", sorted(PERMISSIONS), ids=" ".join)
def test_a_missing_permission_is_named_once_for_each_milvus(
    kube: Kube, missing: Permission, caplog: pytest.LogCaptureFixture
) -> None:
    """In an installation for one namespace."""
    rules = [
        {"apiGroups": [group], "resources": [resource], "verbs": [verb]}
        for verb, resource, group in PERMISSIONS - {missing}
    ]
    documents = by_kind(for_one_namespace(kube.plane, kube.ns))
    documents["Role"]["rules"] = rules
    text = yaml.safe_dump_all(documents.values())
    kube.kubectl("apply", "-f", "-", stdin=text)
    token = kube.kubectl("create", "token", mo.MANAGER)
    operator = new_operator(kube, token=token.strip())
    live(kube, operator)
    verb, resource, _ = missing
    lines = [record.getMessage() for record in caplog.records]
    said = [line for line in lines if "forbidden" in line]
    if verb == "list":
        (line,) = said
        assert line.startswith(f"cannot list {resource} in namespace {kube.ns}: ")
        assert "x-1" not in kube.names(), "nothing is decided without all lists"
        return
    if resource == "events":
        assert all("was not sent" in line for line in said)
        assert said
        assert "x-0" in kube.names()
        return
    assert said
    assert all(line.startswith(f"milvus {kube.ns}/") for line in said)
    words = "cannot set blockOwnerDeletion" if missing == IMPLIED else f"cannot {verb} resource"
    assert any(words in line for line in said), said
