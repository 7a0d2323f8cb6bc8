"""What only a real API server decides, and what the operator makes of that."""

import json
import re
import subprocess
import sys
import time
from datetime import datetime
from math import inf
from pathlib import Path

import pytest
import yaml
from kubernetes.client import ApiException

import milvus_operator as mo
from tests.conftest import Proxy
from tests.kube import CLAIMS, Kube, Obj
from tests.world import eventually

TOP = Path(mo.__file__).parent
HOLD = {"metadata": {"finalizers": ["test/hold"]}}  # it stays until that is removed
RELEASE = {"metadata": {"finalizers": None}}
SERVICES = ("services", "Service")

# What is refused: a part of the spec, and why.
REFUSED: list[tuple[Obj, str]] = [
    ({"image": None}, "spec.image: Required value"),
    ({"replicas": -1}, "spec.replicas in body should be greater than or equal to 0"),
    ({"replicas": 1001}, "spec.replicas in body should be less than or equal to 1000"),
    ({"storage": {"size": "lots"}}, "spec.storage.size in body should match"),
    ({"storage": {"size": -5}}, "spec.storage.size: Invalid value: -5"),
    ({"updateStrategy": {"type": "Sometimes"}}, 'supported values: \\"RollingUpdate'),
    ({"updateStrategy": {"minReadySeconds": -1}}, "should be greater than or equal to 0"),
]


def test_names_and_specs_that_cannot_be_served_are_refused(kube: Kube) -> None:
    for spec, message in REFUSED:
        with pytest.raises(ApiException, match=re.escape(message)):
            kube.create(**spec)
    for name in ("a.b", "a" * 53, "1a", "a-"):
        with pytest.raises(ApiException, match="must be a DNS label of at most 52 characters"):
            kube.create(name)
    kube.create("a" * 52, replicas=1000)


def test_of_storage_only_the_size_changes_and_it_only_grows(kube: Kube) -> None:
    kube.create("bare")
    kube.create("classy", storage={"size": "1Gi", "storageClassName": "a"})
    changes: list[tuple[str, Obj | None, str]] = [
        ("bare", {"size": "1Gi"}, "storage can't be added or removed"),
        ("classy", None, "storage can't be added or removed"),
        ("classy", {"storageClassName": "b"}, "the storage class can't be changed"),
        ("classy", {"storageClassName": None}, "the storage class can't be changed"),
        ("classy", {"size": "1023Mi"}, "a volume can only grow"),
    ]
    for name, storage, message in changes:
        with pytest.raises(ApiException, match=message):
            kube.change(name, storage=storage)
    for size in ("1024Mi", "2Gi", "2147483649"):
        kube.change("classy", storage={"size": size}, image="milvus:2")


def test_kubectl_shows_waits_scales_and_describes(kube: Kube) -> None:
    kube.create(replicas=3)
    assert kube.get()["status"] == {"observedGeneration": -1}, "nobody has seen it yet"
    kube.rest("x-0", "x-1", "x-2")
    kube.kubectl("wait", "--for=condition=Ready", "mi/x", "--timeout=5s")
    shown = " ".join(kube.kubectl("get", "mi").split())
    assert shown.startswith("NAME DESIRED READY STATUS IMAGE AGE x 3 3 Ready milvus:1 ")
    kube.kubectl("scale", "milvus/x", "--replicas=2")
    kube.rest("x-0", "x-1")
    scale = json.loads(kube.kubectl("get", "mi/x", "--subresource=scale", "--output=json"))
    assert scale["status"]["replicas"] == 2
    selector = scale["status"]["selector"]
    listed = kube.kubectl("get", "pods", f"--selector={selector}", "--output=name")
    assert listed == "pod/x-0\npod/x-1\n"
    assert kube.get()["status"]["observedGeneration"] == 2
    events = kube.kubectl("events", "--for=milvus/x")
    assert re.search("Normal +Created .*created pod x-0, pod x-1, pod x-2, service x", events)
    assert re.search("Normal +Deleted .*deleted pod x-2: spec.replicas is 2", events)
    assert "created pod x-0, pod x-1, pod x-2, service x" in kube.kubectl("describe", "mi/x")


def test_a_status_that_an_older_crd_drops_is_not_written_for_ever(kube: Kube, proxy: Proxy) -> None:
    kube.create()
    kube.rest("x-0")
    path = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/pods"
    drop = json.dumps([{"op": "remove", "path": path}])
    try:
        kube.kubectl("patch", "crd", "milvuses.zilliz.com", "--type=json", f"--patch={drop}")
        eventually(lambda: "pods" not in kube.get()["status"])
        proxy.requests.clear()
        end = time.monotonic() + 4
        kube.live(lambda: time.monotonic() > end)
        writes = [path for verb, path, _ in proxy.requests if verb == "PATCH"]
        assert 1 <= len(writes) <= 4, "at once, and after 1 s, 2 s, 4 s …"
    finally:
        kube.kubectl("apply", f"--filename={TOP}/crd.yaml")
        kube.told("True Reconciled")


BIG = {"containers": [{"name": "milvus", "resources": {"limits": {"cpu": "9k"}}}]}
# What a user changes, the reason, and the words of the API server.
MISTAKES: dict[str, tuple[Obj, str, str]] = {
    "typo": ({"nodeSelektor": {"a": "b"}}, "Invalid", 'unknown field "spec.nodeSelektor"'),
    "shape": ({"dnsPolicy": ["a"]}, "Invalid", "cannot be handled as a Pod"),
    "value": ({"dnsPolicy": "Sometimes"}, "Invalid", "spec.dnsPolicy: Unsupported value"),
    "account": ({"serviceAccountName": "a"}, "Forbidden", 'serviceaccount "a" not found'),
    "range": (BIG, "Forbidden", "maximum cpu usage per Container is 1k"),
}


def test_what_the_server_refuses_is_told_in_its_words_and_costs_no_pod(kube: Kube) -> None:
    most = [{"type": "Container", "max": {"cpu": "1k"}, "default": {"cpu": "1"}}]
    kube.make("v1", "LimitRange", "most", spec={"limits": most})
    for name in MISTAKES:
        kube.create(name)
    kube.rest(*sorted(f"{name}-0" for name in MISTAKES))
    before = kube.uids()
    for name, (change, _, _) in MISTAKES.items():
        kube.change(name, pod={"spec": change})
    for name, (_, reason, words) in MISTAKES.items():
        assert words in kube.told(f"False {reason}: in a dry run: ", name)
    kube.create("new", storage={"size": "1Gi"}, pod={"spec": {"dnsPolicy": "Sometimes"}})
    kube.told("False Invalid", "new")
    assert kube.all_of(*CLAIMS) == {}, "a pod that is refused costs no volume"
    assert kube.uids() == before
    assert "Warning" in kube.kubectl("events", "--for=milvus/typo")


def test_a_quota_is_told_and_stops_no_roll_as_the_old_pod_makes_room(kube: Kube) -> None:
    kube.make("v1", "ResourceQuota", "two", spec={"hard": {"pods": "2"}})
    eventually(lambda: "used" in kube.all_of("resourcequotas", "ResourceQuota")["two"]["status"])
    kube.create(replicas=3)
    assert 'pods "x-2" is forbidden: exceeded quota: two' in kube.told("False QuotaExceeded: ")
    kube.change(replicas=2, image="milvus:2")
    kube.live(lambda: kube.images() == {"x-0": "milvus:2", "x-1": "milvus:2"})
    kube.told("True Reconciled")


def test_pods_of_others_are_never_touched_and_the_other_ordinals_go_on(kube: Kube) -> None:
    kube.create("other", replicas=0)
    owner = mo.owner_reference(kube.get("other"))
    kube.make_pod("x-0", ownerReferences=[owner], labels={mo.MILVUS_LABEL: "x"})
    kube.make_pod("x-2")
    before = kube.uids()
    kube.create(replicas=4)
    kube.told("False NameConflict: pod x-0 exists, but has another owner")
    kube.live(lambda: len(kube.images()) == 4)
    kube.change(replicas=0)
    kube.live(lambda: kube.uids() == before)
    kube.change(replicas=3)
    kube.kubectl("delete", "pod", "x-0", "x-2")
    kube.rest("x-0", "x-1", "x-2")


def test_one_milvus_that_is_nested_5000_levels_deep_stops_no_other(kube: Kube) -> None:
    deep = '{"a":' * 5000 + "1" + "}" * 5000
    head = f'"apiVersion": "{mo.API_VERSION}", "kind": "Milvus", "metadata": {{"name": "deep"}}'
    body = f'{{{head}, "spec": {{"image": "a", "pod": {{"spec": {deep}}}}}}}'
    path = f"/apis/{mo.API_VERSION}/namespaces/{kube.ns}/{mo.PLURAL}"
    kube.kubectl("create", f"--raw={path}", "--filename=-", stdin=body)
    kube.create("x")
    command = [sys.executable, mo.__file__, f"--kubeconfig={kube.config}", "-n", kube.ns, "--once"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not re.search("Traceback|unexpected", done.stderr)
    assert "x-0" in kube.uids()
    assert done.returncode == 1, done.stderr


def test_a_delete_is_of_the_pod_that_was_seen_and_no_other(kube: Kube) -> None:
    api = kube.operator.api
    kube.create()
    kube.rest("x-0")
    seen = kube.all_of()["x-0"]
    kube.kubectl("delete", "pod", "x-0")
    kube.rest("x-0")
    with pytest.raises(mo.ApiError, match="the UID in the precondition"):
        api.delete(seen)
    unready = kube.all_of()["x-0"]
    unready["status"] = {"phase": "Running"}  # it was so, but it has changed since
    kube.patch("pod/x-0", {"metadata": {"labels": {"a": "b"}}})
    with pytest.raises(mo.ApiError, match="the ResourceVersion in the precondition"):
        api.delete(unready)
    assert mo.uid_of(seen) != kube.uids()["x-0"]


def test_pods_go_with_their_milvus_and_claims_stay_for_the_next_one(kube: Kube) -> None:
    storage = kube.make_class()
    kube.create(storage=storage)
    kube.rest("x-0")
    (before,) = kube.all_of(*CLAIMS).values()
    kube.kubectl("delete", "mi/x")
    kube.live(lambda: not kube.all_of() and not kube.all_of(*SERVICES))
    kube.create(storage=storage)
    kube.rest("x-0")
    (after,) = kube.all_of(*CLAIMS).values()
    assert mo.uid_of(after) == mo.uid_of(before)


def test_orphans_are_adopted_not_restarted(kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mo, "PAGE", 2)  # so that each list has pages
    names = [f"x-{ordinal}" for ordinal in range(5)]
    kube.create(replicas=5)
    kube.rest(*names)
    before = kube.uids()
    kube.kubectl("delete", "mi/x", "--cascade=orphan")
    kube.operator.run_pass()
    kube.create(replicas=5)
    kube.rest(*names)
    assert kube.uids() == before
    owners = {mo.controller_of(pod)["uid"] for pod in kube.all_of().values()}
    assert owners == {mo.uid_of(kube.get())}


def test_a_page_that_is_as_before_is_not_parsed_again(
    kube: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    kube.create(storage=kube.make_class())
    kube.rest("x-0")
    parsed: list[str] = []
    monkeypatch.setattr(mo, "slim", lambda obj: parsed.append(mo.name_of(obj)))
    kube.operator.run_pass()
    assert (parsed, kube.operator.outages) == ([], {})
    kube.change(replicas=2)
    kube.operator.run_pass()
    assert parsed == ["x"], "of each list, only the pages that changed"


def test_a_milvus_whose_deletion_began_after_it_was_listed_gets_nothing_new(kube: Kube) -> None:
    kube.create()
    kube.rest("x-0")
    before = kube.uids()
    kube.patch("mi/x", HOLD)
    kube.change(image="milvus:2")
    (visit,) = kube.operator.list_namespace(kube.ns)
    kube.kubectl("delete", "mi/x", "--wait=false")
    visit.make(deadline=inf)
    assert kube.uids() == before
    kube.patch("mi/x", RELEASE)


def test_a_namespace_that_is_being_deleted_is_told_and_is_no_outage(kube: Kube) -> None:
    kube.create(replicas=2)
    kube.rest("x-0", "x-1")
    kube.patch("pod/x-1", HOLD)  # pods go first: until then, the Milvus stays
    kube.kubectl("delete", "namespace", kube.ns, "--wait=false")
    kube.kubectl("delete", "pod", "x-0")
    assert "because it is being terminated" in kube.told("False Forbidden")
    assert kube.operator.outages == {}
    kube.patch("pod/x-1", RELEASE)


def test_a_pod_has_a_name_of_its_own_in_the_headless_service(kube: Kube) -> None:
    kube.kubectl("create", "service", "clusterip", "y", "--tcp=80")
    theirs = kube.all_of(*SERVICES)["y"]
    kube.create("x")
    kube.create("y")
    kube.rest("x-0", "y-0")
    assert kube.all_of(*SERVICES)["y"] == theirs, "it is of somebody else"
    service = kube.all_of(*SERVICES)["x"]["spec"]
    pod = kube.all_of()["x-0"]
    assert service["clusterIP"] == "None"
    assert {port["name"]: port["port"] for port in service["ports"]} == mo.PORTS
    assert service["selector"].items() <= pod["metadata"]["labels"].items()
    assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("x-0", "x")


def size_of(claim: Obj) -> str:
    return str(claim["spec"]["resources"]["requests"]["storage"])


def stored(kube: Kube, **class_: bool) -> Obj:
    """A Milvus x of one pod, whose claim is Bound. Returns its spec.storage."""
    storage = kube.make_class(**class_)
    kube.create(storage=storage)
    kube.rest("x-0")  # a scheduler waits for the volume
    return storage


def test_claims_are_asked_to_grow_when_they_are_bound(kube: Kube) -> None:
    storage = stored(kube, allowVolumeExpansion=True)
    kube.change(replicas=2, storage=storage | {"size": "2Gi"})
    kube.live(lambda: [*map(size_of, kube.all_of(*CLAIMS).values())] == ["2Gi", "2Gi"])
    kube.change(storage=storage | {"size": "3Gi"})  # the second one has no volume yet
    kube.live(lambda: size_of(kube.all_of(*CLAIMS)["data-x-0"]) == "3Gi")
    assert size_of(kube.all_of(*CLAIMS)["data-x-1"]) == "2Gi"
    assert kube.operator.run_once(), "and that is no failure"
    assert kube.all_of(*CLAIMS)["data-x-0"]["metadata"]["labels"] == {mo.MILVUS_LABEL: "x"}


def test_a_class_whose_volumes_cannot_grow_is_told_in_the_servers_words(kube: Kube) -> None:
    storage = stored(kube)
    kube.change(storage=storage | {"size": "2Gi"})
    assert "storageclass that provisions the pvc must support res" in kube.told("False Forbidden")
    assert kube.condition("Ready").startswith("True")


def test_a_claim_of_ones_own_is_used_and_left_as_it_is(kube: Kube) -> None:
    kube.make_class(allowVolumeExpansion=True)
    spec: Obj = {"storageClassName": kube.ns, "accessModes": ["ReadWriteOnce"]}
    spec |= {"resources": {"requests": {"storage": "1Gi"}}}
    kube.make("v1", "PersistentVolumeClaim", "data-x-0", spec=spec)
    eventually(lambda: mo.phase_of(kube.all_of(*CLAIMS)["data-x-0"]) == "Bound")
    before = kube.all_of(*CLAIMS)
    kube.create(storage={"size": "5Gi"})
    kube.rest("x-0")
    assert kube.all_of(*CLAIMS) == before
    assert kube.condition().startswith("True")


@pytest.mark.parametrize("trouble", ["is being deleted", "is gone", "is Lost"])
def test_a_pod_whose_claim_is_in_trouble_is_not_replaced(kube: Kube, trouble: str) -> None:
    stored(kube)
    before = kube.uids()
    claim = mo.uid_of(kube.all_of(*CLAIMS)["data-x-0"])
    what = f"pv/{kube.ns}-0" if trouble == "is Lost" else "pvc/data-x-0"
    kube.kubectl("delete", what, "--wait=false")  # the pod still holds it
    if trouble != "is being deleted":
        kube.patch(what, RELEASE)
    if trouble == "is Lost":
        eventually(lambda: mo.phase_of(kube.all_of(*CLAIMS)["data-x-0"]) == "Lost")
    kube.change(image="milvus:2")
    assert f"claim data-x-0 {trouble}" in kube.told("False ClaimLost")
    kube.rest("x-0")
    assert kube.uids() == before
    kube.kubectl("delete", "pod", "x-0")
    if trouble == "is Lost":
        kube.operator.run_pass()
        assert kube.uids() == {}
        kube.kubectl("delete", "pvc", "data-x-0")
    kube.live(lambda: "x-0" in kube.all_of() and "data-x-0" in kube.all_of(*CLAIMS))
    assert mo.uid_of(kube.all_of(*CLAIMS)["data-x-0"]) != claim, "both are made anew"


def test_a_roll_goes_down_and_waits_for_each_pod_to_be_ready_for_a_while(kube: Kube) -> None:
    kube.create(replicas=3, updateStrategy={"minReadySeconds": 2})
    kube.rest("x-0", "x-1", "x-2")
    kube.change(image="milvus:2")
    kube.live(lambda: [*kube.images().values()] == ["milvus:2"] * 3)
    pods = kube.all_of().values()
    created = [datetime.fromisoformat(pod["metadata"]["creationTimestamp"]) for pod in pods]
    ready = [mo.condition_of(pod, "Ready")["lastTransitionTime"] for pod in pods]
    for later, earlier in ((1, 2), (0, 1)):
        waited = created[later] - datetime.fromisoformat(ready[earlier])
        assert waited.total_seconds() >= 2


def test_with_on_delete_a_pod_is_replaced_when_somebody_deletes_it(kube: Kube) -> None:
    kube.create(replicas=2, updateStrategy={"type": "OnDelete"})
    kube.rest("x-0", "x-1")
    kube.change(image="milvus:2")
    kube.live(lambda: kube.get()["status"]["updatedReplicas"] == 0)
    kube.kubectl("wait", "--for=condition=Ready", "mi/x", "--timeout=5s")
    kube.kubectl("delete", "pod", "x-0")
    kube.rest("x-0", "x-1")
    assert kube.images() == {"x-0": "milvus:2", "x-1": "milvus:1"}


def test_a_roll_stops_at_a_broken_pod_which_the_cure_replaces_first(kube: Kube) -> None:
    kube.create(replicas=3)
    kube.rest("x-0", "x-1", "x-2")
    kube.change(image="milvus:broken")
    kube.told("False ImagePullBackOff: 2 of 3 pods are ready, 2 outdated; x-2: Back", kind="Ready")
    kube.live(lambda: kube.operator.run_pass() == 0)
    assert kube.images() == {"x-0": "milvus:1", "x-1": "milvus:1"}
    kube.change(image="milvus:2", updateStrategy={"minReadySeconds": 3600})
    kube.live(lambda: kube.images().get("x-2") == "milvus:2")
    assert kube.images() == {"x-0": "milvus:1", "x-1": "milvus:1", "x-2": "milvus:2"}


DEPLOYED = [*yaml.safe_load_all((TOP / "deploy.yaml").read_text())]
RULES = next(one["rules"] for one in DEPLOYED if one["kind"] == "ClusterRole")
GRANTED = {(verb, name) for rule in RULES for name in rule["resources"] for verb in rule["verbs"]}


def right(method: str, path: str) -> tuple[str, str]:
    """The verb and resource of a role that allow a request."""
    parts = path.partition("?")[0].partition("/v1/")[2].split("/")
    plural, *name = parts[2:] if parts[0] == "namespaces" else parts
    verbs = {"GET": "get" if name else "list", "POST": "create"}
    return verbs.get(method, method.lower()), "/".join([plural, *name[1:]])


@pytest.mark.parametrize("kind", ["ClusterRole", "Role"])
def test_it_needs_exactly_the_rights_in_deploy_yaml(kube: Kube, proxy: Proxy, kind: str) -> None:
    api = "rbac.authorization.k8s.io"
    role = {"apiGroup": api, "kind": kind, "name": kube.ns}
    account = {"kind": "ServiceAccount", "name": kube.ns, "namespace": kube.ns}
    kube.kubectl("create", "serviceaccount", kube.ns)
    kube.make(f"{api}/v1", kind, kube.ns, rules=RULES)
    kube.make(f"{api}/v1", f"{kind}Binding", kube.ns, roleRef=role, subjects=[account])
    token = kube.kubectl("create", "token", kube.ns).strip()
    kube.configure(token=token, server=f"http://127.0.0.1:{proxy.server_port}")
    kube.operator = kube.new_operator(None if kind == "ClusterRole" else kube.ns)
    storage = stored(kube, allowVolumeExpansion=True)
    kube.make_pod("taken-0")
    kube.create("taken")
    kube.told("False NameConflict", "taken")
    kube.change(replicas=2, storage=storage | {"size": "2Gi"}, image="milvus:2")
    kube.live(lambda: [*map(size_of, kube.all_of(*CLAIMS).values())] == ["2Gi", "2Gi"])
    kube.change(replicas=1)
    kube.rest("taken-0", "x-0")
    kube.patch("pod/x-0", {"metadata": {"ownerReferences": None}})
    kube.live(lambda: mo.controller_of(kube.all_of()["x-0"]))
    assert [one for one in proxy.requests if one[2] in (401, 403)] == []
    assert {right(verb, path) for verb, path, _ in proxy.requests} == GRANTED


def test_a_dry_run_changes_nothing(kube: Kube) -> None:
    kube.create(replicas=2)
    kube.rest("x-0", "x-1")
    kube.create("y", storage={"size": "1Gi"})
    kube.change(replicas=1, image="milvus:2")
    shown = ("get", "mi,pods,pvc,services,events", "--output=json")
    before = kube.kubectl(*shown)
    assert kube.new_operator(kube.ns, dry_run=True).run_once()
    assert kube.kubectl(*shown) == before
