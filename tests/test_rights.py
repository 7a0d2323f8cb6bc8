"""Rights: the operator runs as its own service account, with the rules of the manifests."""

from collections.abc import Iterator

import pytest
import yaml

import milvus_operator as mo
from tests.lib.front import target_of
from tests.lib.kit import Kube, Obj, eventually, new_operator, output_of, settle
from tests.lib.wire import Wire

Right = tuple[str, str, str]  # verb, resource, group
IMPLIED = ("update", "milvuses/finalizers", "zilliz.com")  # it is needed for blockOwnerDeletion


def manifest(namespace: str) -> list[Obj]:
    """What an installation for all namespaces, or for this one alone, applies."""
    only = [f"NAMESPACE={namespace}"] if namespace else []
    return list(yaml.safe_load_all(output_of("make", "-s", "manifest", *only)))


def rights(documents: list[Obj]) -> set[Right]:
    (role,) = (document for document in documents if document["kind"].endswith("Role"))
    return {
        (verb, resource, group)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.fixture(params=["all namespaces", "one namespace"])
def installed(request: pytest.FixtureRequest, kube: Kube) -> Iterator[tuple[list[Obj], str]]:
    """Applies the manifest of an installation; its documents and its namespace."""
    documents = manifest(kube.ns if request.param == "one namespace" else "")
    (deployment,) = (document for document in documents if document["kind"] == "Deployment")
    namespace, everything = mo.namespace_of(deployment), yaml.safe_dump_all(documents)
    kube.kubectl("apply", "-n", namespace, "-f", "-", stdin=everything)
    yield documents, namespace
    if namespace != kube.ns:
        kube.kubectl("delete", "-n", namespace, "-f", "-", "--wait=false", stdin=everything)


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
def test_the_rules_grant_exactly_the_rights_that_the_operator_uses(
    kube: Kube, wire: Wire, installed: tuple[list[Obj], str], caplog: pytest.LogCaptureFixture
) -> None:
    documents, namespace = installed
    bearer = kube.kubectl("create", "token", mo.MANAGER, "-n", namespace).strip()
    namespaces = [None if namespace != kube.ns else kube.ns]
    operator = new_operator(kube, namespaces=namespaces, server=wire.url, token=bearer)
    live(kube, operator)
    assert "not allowed" not in caplog.text
    used = {target_of(request.verb, request.path)[:3] for request in wire.requests}
    assert used | {IMPLIED} == rights(documents)
    refused = [request for request in wire.requests if request.code == 403]
    assert not [request for request in refused if kube.ns in request.path]
    assert mo.controller_of(kube.all_pods()["x-0"]) == mo.owner_reference(kube.get()), "adopted"


@pytest.mark.parametrize("missing", sorted(rights(manifest("any"))), ids=" ".join)
@pytest.mark.platform
def test_a_missing_right_is_named_once_and_everything_else_goes_on(
    kube: Kube, missing: Right, caplog: pytest.LogCaptureFixture
) -> None:
    documents = manifest(kube.ns)
    (role,) = (document for document in documents if document["kind"] == "Role")
    role["rules"] = [
        {"apiGroups": [group], "resources": [resource], "verbs": [verb]}
        for verb, resource, group in rights(documents) - {missing}
    ]
    kube.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(documents))
    bearer = kube.kubectl("create", "token", mo.MANAGER).strip()
    operator = new_operator(kube, token=bearer)
    live(kube, operator)
    verb, resource, _ = missing
    # The API server asks for the implied one when an owner is set.
    affected = ("create pods", "patch pods") if missing == IMPLIED else (f"{verb} {resource}",)
    errors = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert len(errors) == len(affected)
    for error, right in zip(errors, affected, strict=True):
        assert error.startswith(f"not allowed to {right} in namespace {kube.ns}: ")
        assert error.endswith(" (see the role in deploy.yaml)")
        assert ("cannot set blockOwnerDeletion" if missing == IMPLIED else mo.MANAGER) in error
    if verb == "list" and resource != "persistentvolumeclaims":
        assert "x-1" not in kube.names(), "nothing is decided without both lists"
    elif verb not in ("create", "update"):
        assert "kept-0" in kube.names()
    if (verb, resource) not in (
        ("list", "pods"),
        ("list", "milvuses"),
        ("patch", "milvuses/status"),
    ):
        assert kube.status()["observedGeneration"] == kube.get()["metadata"]["generation"]
