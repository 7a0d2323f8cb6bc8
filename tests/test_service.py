"""A headless Service for each Milvus, by whose name its databases are found."""

import pytest
import yaml

import milvus_operator as mo
from tests.lib.front import Obj
from tests.lib.world import World, at_rest, metric, milvus

NAMED = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {}}


def services(world: World) -> list[Obj]:
    return world.server.all_of("services")


def written(world: World) -> str:
    """The writes to pods, claims and Services, such as `create pods x-0`."""
    kinds = ("pods", "persistentvolumeclaims", "services")
    writes = [one for one in world.writes() if one.plural in kinds]
    return ", ".join(f"{one.verb} {one.plural} {one.name}" for one in writes)


def test_a_service_of_the_milvuses_name_is_made_after_its_pods() -> None:
    world = World(milvus(replicas=2))
    world.settle()
    assert written(world) == "create pods x-0, create pods x-1, create services x"
    (found,) = services(world)
    assert found["metadata"]["labels"] == {"zilliz.com/milvus": "x"}
    (owner,) = found["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("Milvus", "x", True)
    assert found["spec"] == yaml.safe_load("""
        {clusterIP: None, selector: {zilliz.com/milvus: x},
        ports: [{name: milvus, port: 19530}, {name: metrics, port: 9091}]}""")
    (pod, _) = world.server.all_of("pods")
    assert pod["spec"]["subdomain"] == "x", "so each pod has a name, too"
    assert world.events() == ["Created: created pods x-0, x-1; created service x"]


def test_a_service_that_is_gone_is_made_again_and_nothing_else_is_done() -> None:
    world = at_rest(milvus())
    world.remove("services", "x")
    world.settle()
    assert written(world) == "create services x"


def test_a_service_that_somebody_else_made_is_left_as_it_is() -> None:
    world = World(milvus())
    before = world.server.ask("create", "services", "x", NAMED)
    world.passes(100)
    assert services(world) == [before]
    assert world.pods() == ["x-0"]
    assert world.reason() == "ServiceExists"
    assert world.condition("x", "Reconciled")["status"] == "True", "nothing has failed"
    said = (
        "service x already exists without the label zilliz.com/milvus=x: if it leads to these "
        "pods, add the label; otherwise, clients that use this name reach something else"
    )
    assert world.message() == said
    assert world.events().count(f"ServiceExists: {said}") == 1
    assert world.warnings == []
    assert len(world.requests("create", "services")) < 14, "ever more rarely"
    told = world.server.all_of("pods")[0]["metadata"]["annotations"]
    world.patch("pods", "x-0", annotations=None)
    world.passes()
    assert world.reason() == "TemplateUnknown", "a failure is told first"
    world.patch("pods", "x-0", annotations=told)
    world.passes()
    assert world.reason() == "ServiceExists"
    world.remove("services", "x")
    world.run(70)
    assert world.reason() == "Reconciled"
    assert services(world) != [before], "its own, within about a minute"
    assert len(services(world)) == 1


REFUSALS = {
    "QuotaExceeded": (403, 'services "x" is forbidden: exceeded quota: a'),
    "Invalid": (422, 'Service "x" is invalid: spec.ports: too many'),
    "APIError": (500, "not now"),
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_a_service_that_is_refused_is_told_and_keeps_no_pod_down(reason: str) -> None:
    world = World(milvus(replicas=2, storage={"size": "1Gi"}))
    code, words = REFUSALS[reason]
    rule = world.server.reject(
        "create", "services", code, words, "InternalError" if code == 500 else ""
    )
    world.live(3)
    world.server.fail("x-1")
    world.run(40)
    world.live(3)
    assert world.pods() == ["x-0", "x-1"]
    assert world.reason(kind="Ready") == "Ready"
    assert (world.reason(), world.message()) == (reason, words)
    assert rule.hits <= 9
    world.server.reject("create", "pods", 422, "no", name="x-2")
    world.change("x", replicas=3)
    world.live(3)
    assert world.message() == "no", "a pod's problem is told before it"
    rule.times = 0
    world.server.rules.clear()
    world.change("x", replicas=2)
    world.settle()
    assert [mo.name_of(one) for one in services(world)] == ["x"]
    assert world.reason() == "Reconciled"


def test_a_role_that_may_not_list_services_is_one_outage_and_the_rest_goes_on() -> None:
    words = 'services is forbidden: User "a" cannot list resource "services"'
    world = World(milvus(replicas=2, storage={"size": "1Gi"}))
    rule = world.server.reject("list", "services", 403, words)
    failures = metric("passes_total", result="failure")
    world.run(60)
    world.server.run_pods()
    world.run(60)
    assert world.pods() == ["x-0", "x-1"]
    assert world.reason(kind="Ready") == "Ready"
    assert written(world).count("create persistentvolumeclaims") == 2
    assert services(world) == [], "a failed list is not an empty list"
    (line,) = world.warnings
    assert line == f"cannot list services in namespace test: {words} (see the role in deploy.yaml)"
    assert metric("passes_total", result="failure") > failures
    rule.times = 0
    world.run(20)
    assert [mo.name_of(one) for one in services(world)] == ["x"]
    assert "resolved: cannot list services in namespace test" in world.log


def test_an_invalid_milvus_gets_no_service() -> None:
    world = at_rest(milvus(milvusSpec="proxy.port: 1"))
    assert services(world) == []


def test_that_words_set_nothing_is_told_beside_a_service_of_somebody_else() -> None:
    world = World(milvus(milvusSpec="this is milvus spec"))
    world.server.ask("create", "services", "x", NAMED)
    assert world.operator.run_once(), "nothing has failed"
    assert world.reason() == "SpecIsText"


def test_the_answer_that_a_service_is_there_ends_the_wait_after_none() -> None:
    """A lost database must not wait because the Service got no answer before."""
    world = at_rest(milvus())
    world.remove("services", "x")
    silent = world.server.fault("create", "services", "timeout")
    world.run(150)
    silent.times = 0
    world.server.ask("create", "services", "x", NAMED)
    world.run(70)
    assert world.reason() == "ServiceExists"
    world.remove("pods", "x-0")
    world.server.fault("create", "pods", "reset", times=1)
    world.run(12)
    assert world.pods() == ["x-0"]


def test_a_service_with_the_label_of_another_milvus_is_somebody_elses() -> None:
    world = World(milvus())
    labelled = NAMED | {"metadata": {"name": "x", "labels": {mo.MILVUS_LABEL: "y"}}}
    world.server.ask("create", "services", "x", labelled)
    world.settle()
    assert world.reason() == "ServiceExists"
