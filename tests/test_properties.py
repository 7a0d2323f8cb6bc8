"""Properties of the pure functions, for any pods, any spec and any text.

Each run draws new examples; a failure prints the decorator that repeats it.
"""

import copy
import logging
import re
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import milvus_operator as mo
from tests.lib.objects import CURRENT, WORDS, Obj, decided, milvus, named, new_status, pod
from tests.lib.world import World
from tests.lib.world import milvus as created

drawn = settings(derandomize=False, deadline=None, database=None, print_blob=True)

# --- Pods of any kind, in any state ---
NAMES = ["x-0", "x-1", "x-2", "x-3", "x-4", "x-01", "x-y-1"]
STATES = yaml.safe_load("""
    - {}
    - initContainerStatuses: [state: {waiting: {reason: PodInitializing}}]
    - containerStatuses: [state: {waiting: {reason: ImagePullBackOff}}]
    - {containerStatuses: [ready: true], conditions: [{type: Ready, status: "False"}]}
    - conditions: [{type: PodScheduled, status: "False"}]
    """)


@st.composite
def any_pod(draw: st.DrawFn) -> Obj:
    words = draw(st.lists(st.sampled_from(WORDS), max_size=2))
    status = draw(st.sampled_from(STATES))
    return pod(draw(st.sampled_from(NAMES)), *words, **status)


any_pods = st.lists(any_pod(), max_size=9, unique_by=mo.name_of)
replicas = st.integers(0, 5)
reasons = st.sampled_from(["NameConflict", "Invalid", "APIError", "Pending"])
whys = st.builds(mo.Why, reasons, st.text())
any_problems = st.dictionaries(replicas, whys)


@drawn
@given(any_pods, replicas, any_problems)
def test_neither_the_order_nor_what_is_not_kept_of_a_pod_matters(
    pods: list[Obj], count: int, problems: mo.Problems
) -> None:
    x = milvus(count, storage={"size": "1Gi"})
    kept = [mo.slim_pod(pod) for pod in reversed(pods)]
    actions = decided(x, pods)
    for action, other in zip(actions, decided(x, kept), strict=True):
        assert action._replace(obj=other.obj) == other
    assert new_status(x, kept, problems) == new_status(x, pods, problems)


@drawn
@given(any_pods, replicas)
def test_only_our_pods_change_and_one_ready_pod_at_a_time(pods: list[Obj], count: int) -> None:
    x = milvus(count)
    there = named(x, pods)
    mine = mo.Observed(x, there, {}, False, 0).mine
    actions = decided(x, pods)
    others = [action.ordinal for action in actions if action.verb != "adopt"]
    assert len({*others}) == len(others)
    serving = []
    for verb, ordinal, one, _ in actions:
        assert verb == "create" or not mo.is_ending(one)
        if verb == "create":
            assert ordinal < count
            assert ordinal not in mine
        elif verb == "adopt":
            assert one == there[ordinal]
            assert mo.is_orphan(x, one) or mo.owns(x, one)
        else:
            assert one == mine[ordinal]
            assert (verb == "delete") == (ordinal >= count)
            assert verb != "restart" or not mo.is_ready(one)
        if verb == "replace" and mo.may_serve(one):
            serving.append(ordinal)
            assert mo.template_hash_of(one) != CURRENT
    assert len(serving) <= 1
    assert not serving or all(mo.may_serve(mine[ordinal]) for ordinal in range(count))


# --- A spec of any shape ---
FIELDS = """containers env ports volumes volumeMounts name value mountPath containerPort labels
    metadata spec"""
VALUES = yaml.safe_load(
    "[null, true, 9223372036854775808, 0.5, '', milvus, data, 19530, /var/lib/milvus]"
)
fields = st.sampled_from(FIELDS.split())
any_value = st.recursive(
    st.sampled_from(VALUES) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(fields, inner),
    max_leaves=12,
)
overlays = st.fixed_dictionaries({"spec": any_value, "metadata": any_value})
specs = st.fixed_dictionaries({"image": st.just("a"), "pod": overlays})


@settings(drawn, max_examples=200)
@given(any_value | specs)
def test_a_spec_of_any_shape_delays_no_other_and_overrides_nothing_that_the_operator_relies_on(
    any_spec: Any,
) -> None:
    world = World(created("x"), created("y"))
    x = world.server.objects["milvuses", "test", "x"]
    x["spec"] = copy.deepcopy(any_spec)
    world.passes(2)
    assert world.reason("y") == "Reconciled"
    assert all(line.startswith("milvus test/x: ") for line in world.warnings)
    for sent in world.requests("create", "pods"):
        body = sent.body
        if sent.name != "y-0":
            assert sent.name.startswith("x-")
            assert body.keys() == {"apiVersion", "kind", "metadata", "spec"}
            assert body["metadata"].pop("ownerReferences") == [mo.owner_reference(x)]
            assert mo.has_our_label(x, body)
            assert mo.template_hash_of(body) == mo.spec_of(mo.slim_milvus(x)).template_hash
            assert body["metadata"].keys() == {"name", "namespace", "labels", "annotations"}


# --- Text that may be a password ---
MARKS = [*": :=-?,{}[]'&*!%|>#<\n\t\r\0\ud800é", '"', ": ", "- ", "? ", "---", "...", "<<"]
PIECES = ["hunter2"] * 4 + ["a", "proxy.port", "PROXY_PORT", *MARKS]


@settings(drawn, max_examples=300)
@given(st.lists(st.sampled_from(PIECES), max_size=20).map("".join))
def test_messages_about_any_text_never_quote_it(text: str) -> None:
    """The text may contain passwords, and more people can read statuses and events than specs."""
    for condition in new_status(milvus(milvusSpec=text), [])["conditions"]:
        assert "hunter2" not in condition["message"]


@drawn
@given(st.text())
def test_a_log_line_is_one_line_without_control_characters(text: str) -> None:
    record = logging.makeLogRecord({"msg": text})
    for line in (mo.text_line(record), mo.json_line(record)):
        assert not re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", line)
