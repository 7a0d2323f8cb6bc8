"""Rights: the operator runs as its own service account, with the rules of the manifests, under RBAC."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

import milvus_operator as mo
from tests.lib.kit import TOP, Kube, Obj, client, make_pass, new_operator
from tests.lib.wire import Request, Wire

Right = tuple[str, str]  # verb, resource with its group
IMPLIED = (
    "update",
    "zilliz.com/milvuses/finalizers",
)  # the API server requires it for blockOwnerDeletion


def manifest(file: str, namespace: str) -> list[Obj]:
    text = (TOP / file).read_text()
    if file == "deploy-namespaced.yaml":
        text = text.replace(": milvus\n", f": {namespace}\n")
    return list(yaml.safe_load_all(text))


def rights(documents: list[Obj]) -> set[Right]:
    (role,) = (document for document in documents if document["kind"].endswith("Role"))
    return {
        (verb, f"{group}/{resource}".lstrip("/"))
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def group_of(resource: str) -> str:
    return resource.split("/")[0] if "." in resource else ""


def without_group(resource: str) -> str:
    return resource.removeprefix(f"{group_of(resource)}/")


def right_of(request: Request) -> Right:
    """The right that a request needs, as RBAC names it."""
    _, prefix, *parts = request.path.split("/")
    group = f"{parts[0]}/" if prefix == "apis" else ""
    parts = parts[2:] if prefix == "apis" else parts[1:]
    if parts[0] == "namespaces" and len(parts) > 2:
        parts = parts[2:]
    verb = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}.get(request.verb)
    return verb or ("get" if len(parts) > 1 else "list"), group + "/".join(parts[::2])


def token(kube: Kube, namespace: str) -> str:
    return kube.kubectl("create", "token", "milvus-operator", "-n", namespace).strip()


@pytest.fixture(params=["deploy.yaml", "deploy-namespaced.yaml"])
def installed(request: pytest.FixtureRequest, kube: Kube) -> Iterator[tuple[list[Obj], str]]:
    """Applies the manifest of an installation; its documents and its namespace."""
    documents = manifest(request.param, kube.ns)
    namespace = documents[1]["metadata"]["namespace"]
    kube.kubectl("apply", "-n", namespace, "-f", "-", stdin=yaml.safe_dump_all(documents))
    yield documents, namespace
    if namespace != kube.ns:
        kube.kubectl(
            "delete",
            "-n",
            namespace,
            "-f",
            "-",
            "--wait=false",
            stdin=yaml.safe_dump_all(documents),
        )


def live(kube: Kube, operator: mo.Operator) -> None:
    """Make the operator do everything that it ever does; what it is not allowed to do is skipped."""

    def passes(count: int = 3) -> None:
        for _ in range(count):
            make_pass(operator, once=True)

    passes(1)  # while there is nothing yet
    kube.create(replicas=2)
    kube.create("kept", storage={"size": "1Gi", "storageClassName": "none"})
    kube.create_pod("taken-0")
    kube.create("taken")
    passes()
    for _ in range(2):
        if "x-0" in kube.names():
            kube.delete_pod("x-0")
            kube.gone("x-0")
        passes()
    if "kept-0" in kube.names():  # its claim exists already
        kube.delete_pod("kept-0")
        kube.gone("kept-0")
    passes()
    kube.change(replicas=1)
    passes()
    if "x-0" not in kube.names():
        kube.create_pod("x-0", labels=mo.pod_labels(kube.get(), 0))
    kube.patch_pod("x-0", ownerReferences=None)
    passes()


@pytest.mark.platform
def test_the_rules_grant_exactly_the_rights_that_the_operator_uses(
    kube: Kube, wire: Wire, installed: tuple[list[Obj], str], caplog: pytest.LogCaptureFixture
) -> None:
    documents, namespace = installed
    everywhere = namespace != kube.ns
    operator = new_operator(
        kube, wire.url, token(kube, namespace), namespaces=[None if everywhere else kube.ns]
    )  # fmt: skip
    live(kube, operator)
    assert "not allowed" not in caplog.text
    used = {
        right_of(request) for request in wire.requests if request.path != f"/apis/{mo.API_VERSION}"
    }
    assert used | {IMPLIED} == rights(documents)
    assert not [
        request for request in wire.requests if request.code == 403 and kube.ns in request.path
    ]
    assert mo.owner_uid(kube.all_pods()["x-0"]) == kube.get()["metadata"]["uid"]


@pytest.mark.parametrize(
    "missing",
    sorted(rights(manifest("deploy-namespaced.yaml", ""))),
    ids=lambda right: " ".join(right),
)
@pytest.mark.platform
def test_a_missing_right_is_named_and_everything_else_goes_on(
    kube: Kube, missing: Right, caplog: pytest.LogCaptureFixture
) -> None:
    documents = manifest("deploy-namespaced.yaml", kube.ns)
    (role,) = (document for document in documents if document["kind"] == "Role")
    role["rules"] = [
        {"apiGroups": [group_of(resource)], "resources": [without_group(resource)], "verbs": [verb]}
        for verb, resource in rights(documents) - {missing}
    ]
    kube.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(documents))
    verb, resource = missing
    operator = new_operator(kube, token=token(kube, kube.ns))
    live(kube, operator)
    named = without_group(resource)
    assert (
        f"not allowed to {verb} {named} in namespace {kube.ns}: grant this right to the operator"
        in caplog.text
    )
    assert caplog.text.count(f"not allowed to {verb} {named} in") == 1, "logged once"
    if verb == "list":
        assert "x-1" not in kube.names(), "nothing is decided without both lists"
    elif verb not in ("create", "update") and missing != ("get", "persistentvolumeclaims"):
        assert "kept-0" in kube.names()
    if verb != "list" and "status" not in resource:
        assert kube.status()["observedGeneration"] == kube.get()["metadata"]["generation"]


def test_without_any_rights_the_operator_says_so_and_keeps_trying(
    kube: Kube, caplog: pytest.LogCaptureFixture
) -> None:
    kube.kubectl("create", "serviceaccount", "milvus-operator")
    operator = new_operator(kube, token=token(kube, kube.ns))
    for _ in range(3):
        assert not make_pass(operator)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        f"not allowed to list pods in namespace {kube.ns}: grant this right to the operator"
    ]


def test_pod_security_accepts_the_operators_pod(
    kube: Kube, installed: tuple[list[Obj], str]
) -> None:
    documents, namespace = installed
    template = documents[-1]["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", **template}
    pod["metadata"] = {"name": "as-deployed", "namespace": namespace, **template["metadata"]}
    pods = mo.pods(client(kube.plane))
    pods.create(body=pod, namespace=namespace, dry_run="All")
    if namespace != kube.ns:
        del pod["spec"]["containers"][0]["securityContext"]["capabilities"]
        with pytest.raises(Exception, match="violates PodSecurity"):
            pods.create(body=pod, namespace=namespace, dry_run="All")


def test_an_installation_changes_only_one_image_line() -> None:
    for file in ("deploy.yaml", "deploy-namespaced.yaml"):
        lines = [line.strip() for line in (TOP / file).read_text().splitlines()]
        assert [line for line in lines if line.startswith("image:")] == [
            f"image: milvus-operator:{mo.__version__}"
        ]
