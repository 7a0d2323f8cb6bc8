"""The core: pure functions over dicts. Tables of what is there and the actions that are expected."""

from __future__ import annotations

from typing import Any

import pytest

import milvus_operator as mo

Obj = dict[str, Any]
NOW = "2026-01-01T00:00:00Z"


def milvus(replicas: Any = 3, name: str = "x", image: Any = "milvus:1", **extra: Any) -> Obj:
    metadata = {"name": name, "namespace": "ns", "uid": f"uid-of-{name}", "generation": 1, "resourceVersion": "1"}
    return {"metadata": metadata, "spec": {"image": image, "replicas": replicas} | extra}


def pod(name: str, *state: str, owner: str | None = "uid-of-x", image: str = "milvus:1", **status: Any) -> Obj:
    """A pod of x; `state` is any of ready, ending, failed, unlabelled."""
    start, _, ordinal = name.rpartition("-")
    labels = mo.pod_labels(milvus(name=start), int(ordinal)) if ordinal.isdecimal() else {}
    metadata: Obj = {"name": name, "namespace": "ns", "uid": f"uid-of-{name}", "resourceVersion": "1"}
    metadata["labels"] = {} if "unlabelled" in state else labels
    metadata["annotations"] = {mo.TEMPLATE_HASH: mo.template_hash(milvus(image=image))}
    if owner:
        metadata["ownerReferences"] = [
            {"apiVersion": mo.API_VERSION, "kind": "Milvus", "name": start, "uid": owner, "controller": True}
        ]
    if "ending" in state:
        metadata["deletionTimestamp"] = NOW
    status["phase"] = "Failed" if "failed" in state else "Running" if "ready" in state else "Pending"
    status.setdefault("conditions", [{"type": "Ready", "status": "True" if "ready" in state else "False"}])
    return {"metadata": metadata, "status": status}


def actions(milvus: Obj, *pods: Obj, **options: Any) -> list[str]:
    held = {*options.pop("held", ()), *mo.strangers(milvus, pods)}
    return [f"{action.verb} {mo.name_of(action.pod)}" for action in mo.decide(milvus, pods, held=held, **options)]


def deep(levels: int) -> Any:
    inner: Any = {}
    for _ in range(levels):
        inner = {"a": inner}
    return inner


READY = [pod(f"x-{i}", "ready") for i in range(3)]
OLD = [pod(f"x-{i}", "ready", image="milvus:0") for i in range(3)]
STRANGER = pod("x-1", "ready", owner="uid-of-somebody")
STRANGER["metadata"]["ownerReferences"][0] |= {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web"}
LEAVING = pod("x-1", "ready", owner="uid-of-an-earlier-x")
ORPHAN = pod("x-1", "ready", owner=None)
LOOSE = pod("x-1", "ready")
LOOSE["metadata"]["ownerReferences"][0]["controller"] = False


@pytest.mark.parametrize(
    ("what", "replicas", "pods", "expected"),
    [
        ("nothing there", 3, [], ["create x-0", "create x-1", "create x-2"]),
        ("all there", 3, READY, []),
        ("none wanted", 0, [], []),
        ("one missing", 3, [READY[0], READY[2]], ["create x-1"]),
        ("surplus goes from the highest", 1, READY, ["delete x-2", "delete x-1"]),
        ("surplus that has failed goes too", 0, [pod("x-0", "failed")], ["delete x-0"]),
        ("an ending surplus needs nothing", 2, [*READY[:2], pod("x-2", "ending")], []),
        ("an ending pod is waited for", 2, [READY[0], pod("x-1", "ending")], []),
        ("a failed pod is deleted first", 1, [pod("x-0", "failed")], ["delete x-0"]),
        (
            "deletes come before creates",
            2,
            [pod("x-1", "failed"), pod("x-2", "ready")],
            ["delete x-2", "delete x-1", "create x-0"],
        ),
        ("a stranger is left alone", 3, [READY[0], STRANGER], ["create x-2"]),
        ("a stranger beyond the wanted is left alone", 1, [READY[0], STRANGER], []),
        ("a pod of an earlier x is waited for", 3, [READY[0], LEAVING], ["create x-2"]),
        ("an orphan is adopted", 3, [READY[0], ORPHAN, READY[2]], ["adopt x-1"]),
        ("a surplus orphan is adopted, to be deleted then", 1, [READY[0], ORPHAN], ["adopt x-1"]),
        ("an owner that is no controller is none", 3, [READY[0], LOOSE, READY[2]], ["adopt x-1"]),
        ("an ending orphan is waited for", 2, [READY[0], pod("x-1", "ending", owner=None)], []),
        ("a pod without labels gets them back", 1, [pod("x-0", "ready", "unlabelled")], ["label x-0"]),
        ("a nobody's pod with other labels is a stranger", 1, [pod("x-0", "ready", "unlabelled", owner=None)], []),
        ("names that are not made from ours are not ours", 0, [pod("x-y-0", "ready"), pod("x-01", "ready")], []),
    ],
)
def test_the_expected_actions(what: str, replicas: int, pods: list[Obj], expected: list[str]) -> None:
    assert actions(milvus(replicas), *pods) == expected, what
    assert sorted(actions(milvus(replicas), *reversed(pods))) == sorted(expected), (
        "the order of the list must not matter"
    )


@pytest.mark.parametrize(
    ("what", "pods", "expected"),
    [
        ("one Ready pod at a time, from the highest", OLD, ["delete x-2"]),
        ("the next when the last is Ready", [*OLD[:2], READY[2]], ["delete x-1"]),
        ("not while the last is coming", [*OLD[:2], pod("x-2")], []),
        ("not while the last is going", [*OLD[:2], pod("x-2", "ending", image="milvus:0")], []),
        ("not while one is missing", OLD[:2], ["create x-2"]),
        ("broken ones go first, all at once", [OLD[0], pod("x-1", image="milvus:0"), pod("x-2", image="milvus:0")],
         ["delete x-2", "delete x-1"]),
        ("a broken new one blocks, a Ready old one stays", [*OLD[:2], pod("x-2", image="milvus:1")], []),
        ("rolling back past broken ones", [READY[0], READY[1], pod("x-2", image="milvus:broken")], ["delete x-2"]),
        ("a failed old one goes at once", [*OLD[:2], pod("x-2", "failed", image="milvus:0")], ["delete x-2"]),
        ("no Ready one together with those that are surplus", [*OLD, pod("x-3", "ready")], ["delete x-3"]),
        ("broken ones go before what is missing comes", [pod("x-0", image="milvus:0"), OLD[2]], ["delete x-0", "create x-1"]),
        ("the end of a roll", READY, []),
    ],
)  # fmt: skip
def test_the_steps_of_a_roll(what: str, pods: list[Obj], expected: list[str]) -> None:
    assert actions(milvus(3), *pods, replace=False) == expected, what


def test_a_stranger_does_not_block_a_roll() -> None:
    assert actions(milvus(3), OLD[0], STRANGER, OLD[2]) == ["delete x-2"]
    assert actions(milvus(3), OLD[0], READY[2], held={"x-1"}) == ["delete x-0"]


def test_only_a_pod_of_an_earlier_milvus_of_this_name_goes_by_itself() -> None:
    another = pod("x-1", "ready", owner="uid-of-y")
    another["metadata"]["ownerReferences"][0]["name"] = "y"
    assert mo.strangers(milvus(3), [LEAVING]) == {}
    assert "belongs to Milvus y" in mo.strangers(milvus(3), [another])["x-1"].message


def test_nothing_is_given_up_for_a_template_that_was_not_vetted() -> None:
    assert actions(milvus(3), *OLD, vetted=False) == ["vet x-2"]
    assert actions(milvus(2), pod("x-0", "failed", image="milvus:0"), vetted=False) == ["vet x-0", "create x-1"]
    assert actions(milvus(3), *READY, vetted=False) == []


def test_text_that_is_no_mapping_is_said() -> None:
    reconciled = mo.status_of(milvus(1, milvusSpec="this is milvus spec"), READY[:1], None, NOW)["conditions"][1]
    assert (reconciled["status"], reconciled["reason"]) == ("True", "SpecIsText")
    assert "kept as the annotation zilliz.com/milvus-spec" in reconciled["message"]


def test_a_failed_pod_waits_for_the_back_off() -> None:
    assert actions(milvus(1), pod("x-0", "failed"), replace=False) == []
    assert actions(milvus(1), pod("x-0", "failed", image="milvus:0"), replace=False) == ["delete x-0"]


def test_the_fingerprint_covers_the_users_fields_and_no_others() -> None:
    assert mo.template_hash(milvus()) == "b6a521d9532c84ad"  # a new version must not restart pods
    assert mo.template_hash(milvus(replicas=9)) == mo.template_hash(milvus())
    assert mo.template_hash(milvus(milvusSpec=None)) == mo.template_hash(milvus())
    assert mo.template_hash(milvus(image="milvus:2")) != mo.template_hash(milvus())
    assert mo.template_hash(milvus(milvusSpec="a: b")) != mo.template_hash(milvus())
    assert mo.template_hash(milvus(pod={"spec": {}})) != mo.template_hash(milvus())
    assert mo.template_hash(milvus(storage={"size": "1Gi"})) == mo.template_hash(milvus())
    there, back = {"metadata": {}, "spec": {"a": 1, "b": 2}}, {"spec": {"b": 2, "a": 1}, "metadata": {}}
    assert mo.template_hash(milvus(pod=there)) == mo.template_hash(milvus(pod=back)), "in any order"


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (milvus(image=None), "spec.image must be the name of an image, not empty"),
        (milvus(image=""), "spec.image must be the name of an image, not empty"),
        (milvus(image=3.14), "spec.image must be the name of an image, not 3.14"),
        (milvus(replicas=-1), "spec.replicas must be a whole number from 0 to 1000, not -1"),
        (milvus(replicas=2**31), "spec.replicas must be a whole number from 0 to 1000, not 2147483648"),
        (milvus(replicas=True), "spec.replicas must be a whole number from 0 to 1000, not true"),
        (milvus(replicas="3"), "spec.replicas must be a whole number from 0 to 1000, not text"),
        (milvus(milvusSpec={"a": 1}), "spec.milvusSpec must be text"),
        (milvus(milvusSpec=["a"]), "spec.milvusSpec must be text"),
        (
            milvus(milvusSpec="a: [{b: c}]"),
            "spec.milvusSpec, line 1: a list of maps or lists; only one of scalars can be set",
        ),
        (milvus(pod="text"), "spec.pod must be a mapping, not text"),
        (milvus(pod={"spec": [1]}), "spec.pod.spec must be a mapping, not a list"),
        (milvus(pod={"metadata": {"labels": [1]}}), "spec.pod.metadata.labels must be a mapping, not a list"),
        (milvus(pod=deep(101)), "spec.pod is nested more than 100 levels deep"),
        (milvus(pod=deep(100_000)), "spec.pod is nested more than 100 levels deep"),
        (milvus(storage=5), "spec.storage must be a mapping, not 5"),
        (milvus(name="a.b"), "the name must be a DNS label of at most 52 characters: pod names are made from it"),
        (milvus(name="a" * 53), "the name must be a DNS label of at most 52 characters: pod names are made from it"),
        (milvus() | {"spec": "text"}, "spec.image must be the name of an image, not empty"),
        ({"metadata": milvus()["metadata"]}, "spec.image must be the name of an image, not empty"),
    ],
)
def test_a_spec_that_cannot_be_served_says_why(broken: Obj, message: str) -> None:
    with pytest.raises(mo.Invalid) as error:
        mo.decide(broken, READY)
    assert str(error.value) == message
    status = mo.status_of(broken, READY, None, NOW)
    assert [(c["status"], c["reason"], c["message"]) for c in status["conditions"]] == [
        ("False", "Invalid", message)
    ] * 2


def test_the_status_of_a_served_milvus() -> None:
    before = milvus(2) | {"status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "then"}]}}
    assert mo.status_of(before, [READY[1], READY[0]], None, NOW) == {
        "observedGeneration": 1,
        "replicas": 2,
        "readyReplicas": 2,
        "updatedReplicas": 2,
        "pods": ["x-0", "x-1"],
        "selector": "app.kubernetes.io/instance=x,app.kubernetes.io/managed-by=milvus-operator,"
        "app.kubernetes.io/name=milvus",
        "conditions": [
            {"type": "Ready", "status": "True", "observedGeneration": 1, "lastTransitionTime": "then",
             "reason": "Ready", "message": "2 of 2 pods are ready and up to date"},
            {"type": "Reconciled", "status": "True", "observedGeneration": 1, "lastTransitionTime": NOW,
             "reason": "Reconciled", "message": "the pods are as the spec asks, or on their way"},
        ],
    }  # fmt: skip


def waiting(reason: str, message: str = "") -> Obj:
    return pod("x-1", containerStatuses=[{"state": {"waiting": {"reason": reason, "message": message}}}])


def starting(init: Obj, reason: str) -> Obj:
    return pod(
        "x-1", initContainerStatuses=[{"state": init}], containerStatuses=[{"state": {"waiting": {"reason": reason}}}]
    )


@pytest.mark.parametrize(
    ("there", "reason", "message"),
    [
        (None, "Creating", "x-1: Creating"),
        (pod("x-1", "ending"), "Terminating", "x-1: Terminating"),
        (pod("x-1", "ready", image="milvus:0"), "Updating", "x-1: it has an earlier template"),
        (pod("x-1", "failed", reason="Evicted", message="low on disk"), "Evicted", "x-1: low on disk"),
        (pod("x-1", "failed"), "Failed", "x-1: Failed"),
        (waiting("ImagePullBackOff", "Back-off pulling"), "ImagePullBackOff", "x-1: Back-off pulling"),
        (waiting("CrashLoopBackOff"), "CrashLoopBackOff", "x-1: CrashLoopBackOff"),
        (pod("x-1", containerStatuses=[{"state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}]),
         "OOMKilled", "x-1: exit code 137"),
        (pod("x-1", conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                                 "message": "0/3 nodes are available"}]),
         "Unschedulable", "x-1: 0/3 nodes are available"),
        (pod("x-1", conditions=[]), "Pending", "x-1: Pending"),
        (starting({"waiting": {"reason": "ErrImagePull", "message": "no such image"}}, "PodInitializing"),
         "ErrImagePull", "x-1: no such image"),
        (starting({"terminated": {"reason": "Completed", "exitCode": 0}}, "CrashLoopBackOff"),
         "CrashLoopBackOff", "x-1: CrashLoopBackOff"),
    ],
)  # fmt: skip
def test_ready_speaks_in_the_pods_own_words(there: Obj | None, reason: str, message: str) -> None:
    pods = [READY[0], *([there] if there else [])]
    ready = mo.status_of(milvus(2), pods, None, NOW)["conditions"][0]
    assert (ready["status"], ready["reason"], ready["message"]) == (
        "False", reason, f"1 of 2 pods are ready and up to date; {message}",
    )  # fmt: skip


def test_a_real_trouble_is_shown_before_what_passes() -> None:
    pods = [pod("x-0", "ending"), waiting("ImagePullBackOff")]
    assert mo.status_of(milvus(3), pods, None, NOW)["conditions"][0]["reason"] == "ImagePullBackOff"


def test_what_was_refused_is_said_in_both_conditions() -> None:
    problem = mo.Words("QuotaExceeded", "pods is forbidden: exceeded quota")
    conditions = mo.status_of(milvus(2), [READY[0]], problem, NOW)["conditions"]
    assert [(c["status"], c["reason"]) for c in conditions] == [("False", "QuotaExceeded")] * 2
    assert conditions[1]["message"] == "pods is forbidden: exceeded quota"
    refused = mo.status_of(milvus(3), OLD, mo.Words("Invalid", "cpu: must be less than the limit"), NOW)["conditions"][
        0
    ]
    assert refused["reason"] == "Invalid", "a template that is refused is not on its way"


def test_status_counts_pods_that_exist_and_are_not_ending() -> None:
    status = mo.status_of(milvus(3), [READY[0], pod("x-1", "failed"), pod("x-2", "ending")], None, NOW)
    assert (status["replicas"], status["readyReplicas"], status["pods"]) == (2, 1, ["x-0", "x-1"])


def test_a_status_of_any_shape_is_replaced() -> None:
    for strange in ("text", [1], {"conditions": "none"}, {"conditions": [1, {"type": 3}, {"type": {}}]},
                    {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Ready", "lastTransitionTime": 3}]}):  # fmt: skip
        assert mo.status_of(milvus(1) | {"status": strange}, READY[:1], None, NOW)["readyReplicas"] == 1


def test_a_longer_wait_each_time_and_none_after_a_quiet_while() -> None:
    memory = mo.Memory()
    delays = []
    for _ in range(8):
        memory.replaced.wait_longer(now=1000)
        delays.append(memory.replaced.until - 1000)
    for _ in range(5):
        memory.hold({"x-0": mo.Words("QuotaExceeded", "")}, now=1000)
    assert memory.refused.until == 1010, "the refusals of one try are one"
    assert delays == [10, 20, 40, 80, 160, 300, 300, 300]
    memory.recall(milvus(), now=1599)
    assert memory.replaced.until == 1300
    memory.recall(milvus(), now=1600)
    assert memory.replaced.delay == 0


def test_only_pods_that_are_replaced_count_for_the_back_off() -> None:
    for replicas, waits in ((3, True), (2, False)):
        plan = mo.Plan(milvus(replicas=replicas), [*READY[:2], pod("x-2", "failed")], mo.Memory())
        action = plan.next()
        assert action
        assert (action.verb, mo.name_of(action.pod)) == ("delete", "x-2")
        assert not plan.memory.replaced.delay, "nothing is deleted yet"
        plan.succeeded(action, None)
        assert bool(plan.memory.replaced.delay) == waits


def test_a_roll_does_not_count_for_the_back_off() -> None:
    plan = mo.Plan(milvus(), OLD, mo.Memory(vetted=mo.template_hash(milvus())))
    action = plan.next()
    assert action
    assert (action.verb, mo.name_of(action.pod)) == ("delete", "x-2")
    plan.succeeded(action, None)
    assert not plan.memory.replaced.delay


def test_a_pod_that_has_changed_is_left_to_the_next_pass() -> None:
    for code in (404, 409):
        plan = mo.Plan(milvus(replicas=2), READY, mo.Memory())
        action = plan.next()
        assert action
        assert (action.verb, mo.name_of(action.pod)) == ("delete", "x-2")
        plan.failed(action, mo.ApiError(code, "it has changed"))
        assert plan.next() is None


def test_a_name_that_is_taken_and_free_in_turn_is_tried_a_few_times() -> None:
    plan = mo.Plan(milvus(replicas=1), [], mo.Memory())
    verbs: list[str] = []
    while (action := plan.next()) and len(verbs) < 100:
        verbs.append(action.verb)
        if action.verb == "create":
            plan.failed(action, mo.ApiError(409, "it exists", {"reason": "AlreadyExists"}))
        else:
            plan.succeeded(action, None)
    assert verbs == ["create", "look"] * mo.Plan.ROUNDS


def test_what_has_succeeded_is_refused_no_more() -> None:
    """Also when another write of its pass fails, and nothing more is decided."""
    plan = mo.Plan(milvus(replicas=2), [], mo.Memory(held={"x-0": mo.Words("Forbidden", "not x-0")}))
    first, second = plan.next(), plan.next()
    assert first
    assert second
    assert [mo.name_of(first.pod), mo.name_of(second.pod)] == ["x-1", "x-0"]
    plan.succeeded(second, pod("x-0"))
    plan.failed(first, mo.ApiError(500, "not now"))
    assert plan.next() is None
    assert plan.outcome()[1] == mo.Words("APIError", "not now", "FailedCreate")


def test_what_is_refused_again_is_the_last_to_be_tried() -> None:
    memory, problem = mo.Memory(), mo.Words("Forbidden", "")
    memory.hold({"x-0": problem, "x-1": problem}, now=1000)
    memory.hold({"x-0": problem}, now=2000)
    assert list(memory.held) == ["x-1", "x-0"]


@pytest.mark.parametrize("order", [("x-0", "x-1"), ("x-1", "x-0")])
def test_of_several_refusals_the_same_is_said_in_any_order(order: tuple[str, ...]) -> None:
    held = {name: mo.Words("Forbidden", f"not {name}") for name in order}
    plan = mo.Plan(milvus(replicas=2), [], mo.Memory(held=held))
    assert plan.outcome()[1] == mo.Words("Forbidden", "not x-0")


def test_what_waits_for_its_time_is_not_at_rest() -> None:
    memory = mo.Memory(settled=("1", "2"))
    assert memory.is_at_rest(("1", "2"), now=1000)
    assert not memory.is_at_rest(("1", "3"), now=1000)
    memory.hold({"x-0": mo.Words("Forbidden", "")}, now=1000)
    assert memory.is_at_rest(("1", "2"), now=1009)
    assert not memory.is_at_rest(("1", "2"), now=1010)


def test_a_changed_spec_is_tried_at_once() -> None:
    memory = mo.Memory(generation=1, held={"x-0": mo.Words("QuotaExceeded", "")})
    memory.refused.wait_longer(now=1000)
    memory.recall(milvus(), now=1009)
    assert memory.held
    changed = milvus()
    changed["metadata"]["generation"] = 2
    memory.recall(changed, now=1009)
    assert not memory.held


def test_deep_json_is_cut_where_it_is_deep() -> None:
    deep = b'{"items":[{"a":' + b'{"b":[' * 5000 + b"1" + b"]}" * 5000 + b',"c":"]}\\"{"},{"d":[1,{"e":null}]}]}'
    first, second = mo.parse(mo.shallow(deep))["items"]
    assert (first["c"], second) == (']}"{', {"d": [1, {"e": None}]})
    assert mo.parse(deep)["items"][1] == second
