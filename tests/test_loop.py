"""The loop: the real operator against an API server in memory, which is told what goes wrong."""

import threading
from typing import Any

import pytest
from kubernetes.client import ApiClient
from prometheus_client import REGISTRY
from urllib3.exceptions import ReadTimeoutError

import milvus_operator as mo
from tests.server import NAMESPACE, Obj, Rejected, Request
from tests.world import World, at_rest, lost, milvus, pod

STORAGE: Any = {"storage": {"size": "1Gi"}}


# --- The life of a Milvus ---


def test_missing_pods_claims_and_the_service_are_made_in_one_pass() -> None:
    world = World(milvus(replicas=2, **STORAGE))
    world.passes()
    assert world.writes() == [
        "create pods x-0",
        "create persistentvolumeclaims data-x-0",
        "create pods x-1",
        "create persistentvolumeclaims data-x-1",
        "create services x",
        "patch milvuses/status x",
    ]
    assert world.condition("Ready").startswith("False Pending: 0 of 2 pods are ready")


def test_at_rest_nothing_is_written() -> None:
    world = at_rest(milvus(replicas=2, **STORAGE))
    world.passes(5)
    assert world.writes(events=True) == []
    assert world.condition("Ready") == "True Ready: 2 of 2 pods are ready"


def test_a_lost_pod_comes_back_and_the_status_says_so_in_the_same_pass() -> None:
    world = at_rest(milvus(replicas=2))
    world.remove("pods", "x-1")
    world.passes()
    assert world.writes() == ["create pods x-1", "patch milvuses/status x"]
    assert "x-1: Pending" in world.condition("Ready")


def test_an_evicted_pod_is_deleted_and_then_created() -> None:
    world = at_rest(milvus())
    world.server.set_pod("x-0", phase="Failed", reason="Evicted")
    world.live(2)
    writes = [write for write in world.writes() if "pods" in write]
    assert writes == ["delete pods x-0", "create pods x-0"]


def test_a_roll_replaces_one_pod_at_a_time_from_the_highest() -> None:
    world = at_rest(milvus(replicas=3, updateStrategy={"minReadySeconds": 0}))
    world.change(image="milvus:2")
    for _ in range(20):
        world.live()
        ready = [one for one in world.server.all_of("pods") if mo.is_ready(one)]
        assert len(ready) >= 2
    deleted = [write for write in world.writes() if write.startswith("delete")]
    assert deleted == ["delete pods x-2", "delete pods x-1", "delete pods x-0"]
    assert world.condition("Ready") == "True Ready: 3 of 3 pods are ready"


def test_a_milvus_that_is_being_deleted_gets_nothing_new() -> None:
    world = at_rest(milvus() | {"metadata": milvus()["metadata"] | {"finalizers": ["a/b"]}})
    world.remove("milvuses", "x")
    world.remove("pods", "x-0")
    world.passes(3)
    assert world.writes() == []


# --- Safety ---


def test_every_delete_carries_a_uid_and_of_an_unready_pod_the_version() -> None:
    world = at_rest(milvus(replicas=3))
    world.server.set_pod("x-2", phase="Pending", conditions=[])
    pods = {name: world.get("pods", name)["metadata"] for name in ("x-1", "x-2")}
    world.change(replicas=1)
    world.passes()
    bodies = {one.name: one.body for one in world.server.journal if one.verb == "delete"}
    unready = {key: pods["x-2"][key] for key in ("uid", "resourceVersion")}
    assert bodies["x-1"] == {"preconditions": {"uid": pods["x-1"]["uid"]}}
    assert bodies["x-2"] == {"preconditions": unready}


def test_before_a_delete_pods_claims_and_milvus_are_looked_at_again() -> None:
    """Meanwhile the Milvus was scaled up again, so there is nothing to delete."""
    world = at_rest(milvus(replicas=2))
    world.change(replicas=1)

    def scale_up(request: Request) -> None:
        world.change(replicas=2)

    world.server.when("list services", scale_up, times=1)
    listed = world.get("milvuses", "x")
    world.server.when("list milvuses", lambda request: as_list(listed), times=1)
    world.passes(3)
    assert not any(write.startswith("delete") for write in world.writes())


def as_list(milvus: Obj) -> Obj:
    return {"kind": "MilvusList", "metadata": {"resourceVersion": "1"}, "items": [milvus]}


def test_a_pod_that_became_ready_since_the_lists_is_not_replaced_as_broken() -> None:
    world = at_rest(milvus(replicas=2))
    world.server.set_pod("x-0", phase="Pending", conditions=[])
    world.server.set_pod("x-1", phase="Pending", conditions=[])
    world.change(image="milvus:2")
    world.server.when("list services", lambda request: world.server.run_pods(), times=1)
    world.passes()
    deleted = [write for write in world.writes() if write.startswith("delete")]
    assert deleted == ["delete pods x-1"], "as the first of a roll, not both as broken"


def test_a_failed_look_does_nothing_and_is_told_when_it_fails_twice() -> None:
    world = at_rest(milvus(replicas=2))
    world.change(replicas=1)
    world.server.reject("get milvuses", 500, "the look failed")
    world.passes(2, seconds=2)
    assert not any(write.startswith("delete") for write in world.writes())
    assert world.condition("Reconciled") == "False APIError: the look failed"


@pytest.mark.parametrize("plural", ["pods", "persistentvolumeclaims", "services", "milvuses"])
def test_a_failed_list_is_not_an_empty_list(plural: str) -> None:
    world = at_rest(milvus(replicas=2, **STORAGE))
    world.server.reject(f"list {plural}", 500, "no list")
    world.passes(3)
    assert world.writes() == []
    assert any("no list" in line for line in world.lines)


def test_a_page_that_fails_is_not_the_end_of_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mo, "PAGE", 2)
    world = at_rest(milvus(replicas=5))

    def fail(request: Request) -> None:
        if "continue" in request.query:
            raise Rejected(410, "Expired", "too old")

    world.passes()
    assert world.writes() == [], "five pods are three pages"
    world.server.when("list pods", fail)
    world.passes(3)
    assert world.writes() == []


STRANGERS = [pod("x-0", "strange"), pod("x-1", "earlier"), pod("x-2", "orphan", "unlabelled")]


@pytest.mark.parametrize("stranger", STRANGERS, ids=lambda pod: mo.name_of(pod))
def test_somebody_else_s_pod_is_never_touched_and_the_others_go_on(stranger: Obj) -> None:
    world = World(milvus(replicas=3), stranger)
    before = world.get("pods", mo.name_of(stranger))
    world.live(5)
    assert mo.uid_of(world.get("pods", mo.name_of(stranger))) == mo.uid_of(before)
    assert world.names() == ["x-0", "x-1", "x-2"]
    touched = [write for write in world.writes() if write.startswith(("delete", "patch pods"))]
    assert touched == []
    assert world.condition("Reconciled").startswith("False NameConflict: pod")


def test_an_orphan_with_our_label_is_adopted_with_its_other_owners() -> None:
    other = {"kind": "ConfigMap", "name": "a", "uid": "b"}
    orphan = pod("x-0", "orphan")
    orphan["metadata"]["ownerReferences"] = [other]
    world = World(milvus(), orphan)
    world.passes()
    owners = world.get("pods", "x-0")["metadata"]["ownerReferences"]
    assert owners == [other, mo.owner_reference(world.get("milvuses", "x"))]
    assert "create pods x-0" not in world.writes()


def test_a_service_of_somebody_else_is_left_alone() -> None:
    world = at_rest(milvus())
    world.server.ask("patch", "services", "x", {"metadata": {"labels": None}})
    world.passes(3)
    assert world.writes() == []


def test_two_copies_by_mistake_do_no_harm() -> None:
    world = World(milvus(replicas=3, updateStrategy={"minReadySeconds": 0}))
    first, second = world.operator, world.new_operator()
    for number in range(60):
        world.operator = second if number % 2 else first
        world.live()
        if number == 20:
            world.change(image="milvus:2")
    assert world.names() == ["x-0", "x-1", "x-2"]
    deleted = [write for write in world.writes() if write.startswith("delete")]
    assert deleted == ["delete pods x-2", "delete pods x-1", "delete pods x-0"]
    assert world.condition("Reconciled").startswith("True")


def test_a_replacement_that_the_server_would_refuse_costs_no_pod() -> None:
    world = at_rest(milvus())
    world.change(pod={"spec": {"nodeSelektor": {"a": "b"}}})
    world.server.reject("create pods", 422, 'unknown field "spec.nodeSelektor"')
    world.passes(3, seconds=2)
    assert not any(write.startswith("delete") for write in world.writes())
    text = 'False Invalid: in a dry run: unknown field "spec.nodeSelektor"'
    assert world.condition("Reconciled") == text


def test_an_invalid_spec_touches_nothing() -> None:
    world = at_rest(milvus(replicas=2))
    world.change(milvusSpec="proxy: {", replicas=1)
    world.remove("pods", "x-1")
    world.passes(3)
    assert world.writes() == ["patch milvuses/status x"]
    assert world.condition("Ready").startswith("False Invalid: spec.milvusSpec, line 1")
    world.change(milvusSpec="", replicas=2)
    world.settle()
    assert world.condition("Ready") == "True Ready: 2 of 2 pods are ready"
    assert world.condition("Stalled") == ""


# --- One bad object never stops the others ---


def test_an_exception_in_one_visit_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    decide = mo.decide

    def fail(seen: mo.Observed) -> Any:
        if mo.name_of(seen.milvus) == "bad":
            raise RuntimeError("secret")
        return decide(seen)

    monkeypatch.setattr(mo, "decide", fail)
    world = World(milvus("bad"), milvus("x"))
    world.passes()
    assert world.names() == ["x-0"]
    assert any("unexpected RuntimeError, please report this bug: fail" in x for x in world.lines)
    assert not any("secret" in line for line in world.lines)


def test_a_spec_that_lacks_what_the_crd_cannot_ask_for_stops_no_other() -> None:
    container = {"name": "milvus", "volumeMounts": [{"name": "data"}]}
    world = World(milvus("odd", pod={"spec": {"containers": [container]}}), milvus("x"))
    world.passes()
    assert world.names() == ["x-0"]
    assert "(KeyError)" in world.condition("Reconciled", "odd")


def test_a_slow_webhook_for_one_keeps_no_other_waiting() -> None:
    """It takes ten seconds for each request, and a pass begins nothing after eight."""
    slow = [milvus(f"slow{number}") for number in range(5)]
    world = World(*slow)

    def wait(request: Request) -> None:
        if request.name.startswith("slow"):
            world.server.now += 10
            raise ReadTimeoutError(None, "", "")  # type: ignore[arg-type]

    world.server.when("create pods", wait)
    world.passes(10)
    world.add(milvus("x"))
    before = world.server.now
    world.passes()
    assert world.names() == ["x-0"]
    assert world.server.now - before < 20
    assert "APIError: no answer within 10 s" in world.condition("Reconciled", "slow0")


def test_known_ones_come_before_new_ones_and_failing_ones_last() -> None:
    world = World(milvus("failing"), milvus("known"))
    world.server.reject("create pods failing-0", 422, "no")
    world.passes(5)
    world.add(milvus("another"))
    visits = sorted(world.operator.list_everything(), key=lambda visit: visit.turn)
    assert [mo.name_of(visit.milvus) for visit in visits] == ["known", "another", "failing"]


# --- Retries ---


def test_what_failed_is_tried_later_and_later_and_told_when_it_failed_twice() -> None:
    world = World(milvus())
    world.server.reject("create pods", 403, 'pods "x-0" is forbidden: no')
    world.passes()
    assert world.condition("Reconciled").startswith("True")
    world.passes(150)
    assert world.times("create pods") == [1, 2, 4, 8, 16, 30, 30, 30]
    assert world.condition("Reconciled") == 'False Forbidden: pods "x-0" is forbidden: no'
    warnings = [line for line in world.lines if line.startswith("WARNING")]
    assert len(warnings) == 1
    world.server.rules.clear()
    world.passes(30)
    assert world.condition("Reconciled").startswith("True Reconciled")


def test_a_pod_that_ends_again_and_again_is_restarted_later_and_later() -> None:
    world = at_rest(milvus())
    for _ in range(100):
        if "x-0" in world.names():
            world.server.set_pod("x-0", phase="Failed", reason="OutOfcpu")
        world.passes()
        world.server.end_pods()
    assert max(world.times("delete pods")) >= 30


def test_a_new_spec_is_tried_at_once() -> None:
    world = World(milvus())
    world.server.reject("create pods", 422, "bad image", times=6)
    world.passes(40)
    world.forget()
    world.change(image="milvus:2")
    world.passes()
    assert world.writes()[0] == "create pods x-0"


def test_each_ordinal_waits_on_its_own() -> None:
    world = World(milvus(replicas=2), pod("x-0", "strange"))
    world.passes(20)
    world.server.run_pods()
    world.forget()
    world.remove("pods", "x-1")
    world.passes()
    assert "create pods x-1" in world.writes()


def test_what_the_server_throttles_failed_like_any_and_is_not_asked_again_in_that_pass() -> None:
    world = World(milvus(replicas=3))
    world.server.reject("create pods", 429, "slow down", times=1)
    world.passes()
    assert world.names() == []
    world.passes(2)
    assert world.names() == ["x-0", "x-1", "x-2"]


def test_a_write_whose_answer_is_lost_does_no_harm() -> None:
    world = World(milvus(replicas=2, **STORAGE))
    for what in ("create pods", "create persistentvolumeclaims", "create services"):
        world.server.when(what, lost(world.server), times=1)
    world.passes(10)
    world.settle()
    assert world.names() == ["x-0", "x-1"]
    assert world.names("persistentvolumeclaims") == ["data-x-0", "data-x-1"]
    world.change(replicas=1)
    world.server.when("delete pods", lost(world.server), times=1)
    world.server.when("patch milvuses/status", lost(world.server), times=1)
    world.settle()
    assert world.names() == ["x-0"]
    assert world.condition("Ready") == "True Ready: 1 of 1 pods are ready"


def test_a_page_of_html_with_200_is_not_believed() -> None:
    world = at_rest(milvus(replicas=2))
    for verb in ("list pods", "list milvuses"):
        world.server.when(verb, lambda request: b"<html>It works!</html>", times=2)
    world.remove("pods", "x-1")
    world.passes(10)
    assert world.names() == ["x-0", "x-1"]
    assert not any(write.startswith("delete") for write in world.writes())


def test_a_conflict_for_one_pod_holds_up_no_other_in_that_pass() -> None:
    world = World(milvus(replicas=3), pod("x-0", "strange"))
    world.passes()
    assert world.names() == ["x-0", "x-1", "x-2"]


def test_no_action_begins_later_than_eight_seconds_after_the_lists() -> None:
    world = World(milvus(replicas=9))

    def wait(request: Request) -> None:
        world.server.now += 3

    world.server.when("create pods", wait)
    world.passes()
    assert world.names() == ["x-0", "x-1", "x-2"]


def test_lists_that_take_longer_than_a_pass_may_act_are_followed_by_actions() -> None:
    world = World(milvus())

    def wait(request: Request) -> None:
        world.server.now += 9

    world.server.when("list services", wait)
    world.passes()
    assert world.names() == ["x-0"]


def test_a_change_since_the_lists_is_a_conflict_for_a_patch() -> None:
    world = World(milvus(), pod("x-0", "orphan"))
    world.server.when("patch pods", lambda request: world.server.set_pod("x-0"), times=1)
    world.passes()
    assert "ownerReferences" not in world.get("pods", "x-0")["metadata"]
    world.passes(2)
    assert mo.is_owned(world.get("milvuses", "x"), world.get("pods", "x-0"))


def test_a_problem_that_somebody_else_solved_is_forgotten() -> None:
    world = at_rest(milvus(**STORAGE))
    bound = {"status": {"phase": "Bound"}}
    world.server.ask("patch", "persistentvolumeclaims/status", "data-x-0", bound)
    world.server.reject("patch persistentvolumeclaims", 403, "no expansion")
    world.change(storage={"size": "2Gi"})
    world.passes(5)
    assert world.condition("Reconciled") == "False Forbidden: no expansion"
    larger = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}
    world.server.ask("patch", "persistentvolumeclaims", "data-x-0", larger)
    world.passes()
    assert world.condition("Reconciled").startswith("True")


def test_after_a_restart_a_problem_that_was_told_does_not_flap() -> None:
    world = World(milvus())
    world.server.reject("create pods", 403, "no")
    world.passes(5)
    world.forget()
    world.operator = world.new_operator()
    world.passes(5)
    assert world.condition("Reconciled") == "False Forbidden: no"
    assert world.writes(events=True) == ["create pods x-0"] * 3


# --- The status ---


def test_a_status_that_somebody_changed_is_written_again() -> None:
    world = at_rest(milvus())
    world.server.ask("patch", "milvuses/status", "x", {"status": {"readyReplicas": 7}})
    world.passes()
    assert world.get("milvuses", "x")["status"]["readyReplicas"] == 1


def test_what_was_done_and_what_failed_are_events_and_log_lines() -> None:
    world = World(milvus(replicas=2))
    world.server.reject("create services", 403, "services is forbidden")
    world.passes(3)
    notes = [(one["reason"], one["note"]) for one in world.server.all_of("events")]
    assert ("Created", "created pod x-0, pod x-1") in notes
    assert ("Forbidden", "services is forbidden") in notes
    assert [reason for reason, _ in notes] == ["Created", "Forbidden"], "once, and no more"
    assert "INFO milvus test/x: created pod x-0, pod x-1" in world.lines
    assert "WARNING milvus test/x: services is forbidden" in world.lines


def test_every_milvus_is_in_the_metrics() -> None:
    world = at_rest(milvus("good"), milvus("bad", milvusSpec="a: ["))
    labels = {"namespace": NAMESPACE, "name": "bad", "state": "failed"}
    assert REGISTRY.get_sample_value("milvus_operator_milvus_state", labels) == 1
    for state, count in {"ready": 1, "progressing": 0, "failed": 1}.items():
        assert REGISTRY.get_sample_value("milvus_operator_milvuses", {"state": state}) == count
    passes = {"result": "success"}
    before = REGISTRY.get_sample_value("milvus_operator_passes_total", passes) or 0
    world.passes()
    assert REGISTRY.get_sample_value("milvus_operator_passes_total", passes) == before + 1
    world.change("bad", milvusSpec="")
    world.settle()
    assert REGISTRY.get_sample_value("milvus_operator_milvus_state", labels) is None


# --- Outages and the timer ---


def test_an_outage_is_one_line_when_it_begins_and_one_when_it_ends() -> None:
    world = at_rest(milvus())
    world.server.reject("list milvuses", 404, "404 page not found", times=5)
    world.passes(10)
    lines = [line for line in world.lines if not line.startswith("DEBUG")]
    advice = "(install the CRD: kubectl apply -f crd.yaml)"
    what = f"cannot list namespace {NAMESPACE}"
    failed = f"ERROR {what}: cannot list milvuses: 404 page not found {advice}"
    assert lines == [failed, f"INFO resolved: {what}"]


def test_one_namespace_that_fails_stops_no_other() -> None:
    world = World(milvus(), namespaces=["missing", NAMESPACE])

    def fail(request: Request) -> None:
        if request.namespace == "missing":
            raise Rejected(403, "Forbidden", "no")

    world.server.when("list", fail)
    world.settle()
    assert world.names() == ["x-0"]
    assert world.operator.outage_delay == 0


@pytest.mark.parametrize("code", [0, 401, 403])
def test_after_an_outage_the_configuration_is_loaded_anew(code: int) -> None:
    world = at_rest(milvus())
    loaded: list[ApiClient] = []

    def reload() -> ApiClient:
        loaded.append(world.client())
        return loaded[-1]

    world.operator.reload = reload
    text = 'User "system:anonymous" cannot list' if code == 403 else "Unauthorized"
    if code:
        world.server.reject("list pods", code, text, times=1)
    else:
        world.server.when("list pods", lost(world.server), times=1)
    world.passes()
    assert not loaded
    world.passes(2)
    assert len(loaded) == 1
    assert world.operator.outages == {}


def test_while_nothing_can_be_listed_passes_come_later_and_later() -> None:
    world = at_rest(milvus())
    world.server.reject("list", 500, "down")
    pauses = []
    for _ in range(7):
        world.passes()
        pauses.append(world.operator.pause())
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    world.server.rules.clear()
    world.passes()
    assert world.operator.pause() <= world.operator.interval


def test_passes_are_an_eighth_of_the_quiet_time_apart_within_bounds() -> None:
    world = at_rest(milvus())
    operator = world.operator
    operator.last_change = world.server.now - 4
    assert operator.pause() == 1
    operator.last_change = world.server.now - 24
    assert operator.pause() == 3
    operator.last_change = world.server.now - 1000
    assert operator.pause() == 5
    operator.last_change = world.server.now
    operator.list_seconds = 0.5
    assert operator.pause() == 2.5
    operator.list_seconds = 3
    assert operator.pause() == 5


def test_the_loop_is_alive_while_requests_end_and_is_not_when_it_hangs() -> None:
    world = at_rest(milvus())
    world.server.reject("list", 500, "down")
    world.passes(20, seconds=30)
    world.server.now += 40  # with the 30 above, as long as two lists may take
    assert world.operator.is_alive()
    world.server.now += 100
    assert not world.operator.is_alive()


# --- --once and --dry-run ---


@pytest.fixture
def _no_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)


@pytest.mark.usefixtures("_no_sleep")
def test_once_ends_well_when_all_was_done() -> None:
    world = World(milvus(replicas=2))
    assert world.operator.run_once()
    assert world.names() == ["x-0", "x-1"]


@pytest.mark.usefixtures("_no_sleep")
@pytest.mark.parametrize("what", ["create pods", "patch milvuses/status", "list pods"])
def test_once_ends_badly_when_something_failed(what: str) -> None:
    world = World(milvus())
    world.server.reject(what, 403, "no")
    assert not world.operator.run_once()


def test_many_workers_come_to_the_same_end() -> None:
    threads = threading.active_count()
    world = World(*(milvus(f"m{number}", replicas=2) for number in range(40)), workers=16)
    world.settle()
    assert len(world.names()) == 80
    assert threading.active_count() <= threads + 16
