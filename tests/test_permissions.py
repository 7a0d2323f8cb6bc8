"""Permissions: the operator runs as its own service account, with the rules of the manifests."""

from collections.abc import Iterator

import pytest
import yaml

import milvus_operator as mo
from tests.lib.front import target_of
from tests.lib.kit import Kube, Obj, eventually, new_operator, output_of, settle
from tests.lib.wire import Wire

Permission = tuple[str, str, str]  # verb, resource, group
IMPLIED = ("update", "milvuses/finalizers", "zilliz.com")  # it is needed for blockOwnerDeletion


def manifest(*options: str) -> list[Obj]:
    """What an installation applies."""
    return list(yaml.safe_load_all(output_of("make", "-s", "manifest", *options)))


def role_of(documents: list[Obj]) -> Obj:
    (role,) = (document for document in documents if document["kind"].endswith("Role"))
    return role


def granted(documents: list[Obj]) -> set[Permission]:
    return {
        (verb, resource, group)
        for rule in role_of(documents)["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.fixture(params=["all namespaces", "one namespace"])
def installed(request: pytest.FixtureRequest, kube: Kube) -> Iterator[tuple[list[Obj], str]]:
    """Applies the manifest of an installation; its documents and its namespace."""
    is_one = request.param == "one namespace"
    options = [f"NAMESPACE={kube.ns}"] if is_one else []
    documents = manifest(*options)
    (deployment,) = (document for document in documents if document["kind"] == "Deployment")
    namespace = mo.namespace_of(deployment)
    text = yaml.safe_dump_all(documents)
    kube.kubectl("apply", "-n", namespace, "-f", "-", stdin=text)
    yield documents, namespace
    if not is_one:
        kube.kubectl("delete", "-n", namespace, "-f", "-", "--wait=false", stdin=text)


def live(kube: Kube, operator: mo.Operator) -> None:
    """Make the operator do everything that it ever does; what it is not allowed is skipped."""
    settle(operator)  # while there is nothing yet
    kube.create(replicas=2)
    kube.create_storage_class(kube.ns, allowVolumeExpansion=True)
    kube.create_volume(kube.ns, storageClassName=kube.ns)
    kube.create("kept", storage={"size": "1Gi", "storageClassName": kube.ns})
    kube.create_pod("taken-0")
    kube.create("taken")
    settle(operator)
    if "kept-0" in kube.names():
        phase = ("get", "pvc", "data-kept-0", "-o", "jsonpath={.status.phase}")
        eventually(lambda: kube.kubectl(*phase) == "Bound")
    kube.change("kept", storage={"size": "2Gi"})
    settle(operator)
    for name in {"x-0", "kept-0"} & {*kube.names()}:  # the claim of the latter exists already
        kube.kubectl("delete", "pod", name)
    settle(operator)
    kube.change(replicas=1)
    settle(operator)
    if "x-0" not in kube.names():
        kube.create_pod("x-0", labels=mo.selector_of(kube.get()))
    kube.patch_pod("x-0", ownerReferences=None)
    settle(operator)


@pytest.mark.platform
def test_the_rules_grant_exactly_the_permissions_that_the_operator_uses(
    kube: Kube, wire: Wire, installed: tuple[list[Obj], str], caplog: pytest.LogCaptureFixture
) -> None:
    documents, namespace = installed
    token = kube.kubectl("create", "token", mo.MANAGER, "-n", namespace).strip()
    managed = kube.ns if namespace == kube.ns else None
    operator = new_operator(kube, namespaces=[managed], server=wire.url, token=token)
    live(kube, operator)
    assert "not allowed" not in caplog.text
    used = {target_of(request.verb, request.path)[:3] for request in wire.requests}
    assert used | {IMPLIED} == granted(documents)
    rejected = [request.path for request in wire.requests if request.code == 403]
    assert kube.ns not in "".join(rejected)
    assert mo.controller_of(kube.all_pods()["x-0"]) == mo.owner_reference(kube.get()), "adopted"


@pytest.mark.platform
@pytest.mark.parametrize("missing", sorted(granted(manifest("NAMESPACE=any"))), ids=" ".join)
def test_a_missing_permission_is_named_once_and_everything_else_goes_on(
    kube: Kube, missing: Permission, caplog: pytest.LogCaptureFixture
) -> None:
    documents = manifest(f"NAMESPACE={kube.ns}")
    role_of(documents)["rules"] = [
        {"apiGroups": [group], "resources": [resource], "verbs": [verb]}
        for verb, resource, group in granted(documents) - {missing}
    ]
    kube.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(documents))
    token = kube.kubectl("create", "token", mo.MANAGER).strip()
    live(kube, new_operator(kube, token=token))
    verb, resource, _ = missing
    errors = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    # The API server asks for the implied one when an owner is set.
    affected = ["create pods", "patch pods"] if missing == IMPLIED else [f"{verb} {resource}"]
    for error, permission in zip(errors, affected, strict=True):
        assert error.startswith(f"not allowed to {permission} in namespace {kube.ns}: ")
        assert ("cannot set blockOwnerDeletion" if missing == IMPLIED else mo.MANAGER) in error
    needed = [("list", "pods"), ("list", "milvuses")]
    if (verb, resource) in needed:
        assert "x-1" not in kube.names(), "nothing is decided without both lists"
    elif verb not in ("create", "update"):
        assert "kept-0" in kube.names()
    if (verb, resource) not in (*needed, ("patch", "milvuses/status")):
        assert kube.status()["observedGeneration"] == kube.get()["metadata"]["generation"]
