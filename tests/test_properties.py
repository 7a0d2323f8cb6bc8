"""Properties of the pure functions, for any pods, any spec and any text.

Each run draws new examples; a failure prints the decorator that repeats it.
"""

import copy
import logging
import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import milvus_operator as mo
from tests.lib.objects import CURRENT, WORDS, Obj, claim, decided, milvus, named, new_status, pod
from tests.lib.world import World
from tests.lib.world import milvus as created

drawn = settings(derandomize=False, deadline=None, database=None, print_blob=True)

# --- Pods of any kind, in any state ---
NAMES = [*(f"x-{i}" for i in range(6)), "x-01", "x-y", "x-y-1", "y-1"]
UNSCHEDULED = {"type": "PodScheduled", "status": "False"}
STATES: list[Obj] = [
    {"initContainerStatuses": [{"state": {"waiting": {"reason": "PodInitializing"}}}]},
    {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]},
    {"containerStatuses": [{"ready": True}], "conditions": [{"type": "Ready", "status": "False"}]},
    {"conditions": [UNSCHEDULED]},
]


@st.composite
def a_pod(draw: st.DrawFn) -> Obj:
    words = draw(st.lists(st.sampled_from(WORDS), max_size=2))
    status = draw(st.sampled_from([{}, {}, *STATES]))
    return pod(draw(st.sampled_from(NAMES)), *words, **status)


some_pods = st.lists(a_pod(), max_size=9, unique_by=mo.name_of)
replicas = st.integers(0, 6)
reasons = ["NameConflict", "QuotaExceeded", "Invalid", "Forbidden", "APIError", "Pending"]
some_words = st.builds(mo.Reason, st.sampled_from(reasons), st.text())
some_problems = st.dictionaries(st.integers(0, 5), some_words)
taken = mo.ApiError(409, "")
taken.why = mo.Reason("NameConflict")
errors = [mo.ApiError(403, "no"), mo.ApiError(0, "lost"), taken]
back_offs = st.builds(mo.BackOff, st.sampled_from([0, 1]), st.just(10), st.sampled_from(errors))
keys = st.tuples(st.sampled_from(["create", "restart", "replace", "delete"]), st.integers(0, 5))
failures = st.dictionaries(keys, back_offs, max_size=4)
claim_names = st.sampled_from(["data-x-0", "data-x-1"])
a_claim = st.builds(
    claim, claim_names, st.sampled_from(["1Gi", "1"]), st.sampled_from(["Bound", "Lost"])
)
some_claims = st.lists(a_claim)
wanted = milvus(storage={"size": "1Gi"})


@drawn
@given(some_pods, replicas, some_claims, some_problems, st.randoms())
def test_neither_the_order_nor_what_is_not_kept_of_a_pod_matters(
    pods: list[Obj], count: int, claims: Any, problems: dict[int, mo.Reason], dice: Any
) -> None:
    served = milvus(count, storage={"size": "1Gi"})
    kept = [mo.slim_pod(pod) for pod in pods]
    dice.shuffle(kept)
    one, other = (
        [(action.key, action.reason, action.is_due) for action in decided(served, some, claims)]
        for some in (pods, kept)
    )
    assert one == other
    assert new_status(served, kept, problems) == new_status(served, pods, problems)


@drawn
@given(some_pods, replicas, some_claims, failures)
def test_only_pods_of_ours_are_written_to_each_one_once(
    pods: list[Obj], count: int, claims: Any, failed: mo.BackOffs
) -> None:
    served = milvus(count, storage={"size": "1Gi"})
    actions = decided(served, pods, claims, failed)
    for grown in [action for action in actions if action.verb == "grow"]:
        assert grown.obj in claims
        assert grown.ordinal < count
        assert grown.obj["status"] == {"phase": "Bound"}
        assert grown.obj["spec"]["resources"]["requests"]["storage"] == "1", "of 1Gi"
    actions = [action for action in actions if action.verb != "grow"]
    assert len({action.ordinal for action in actions}) == len(actions)
    there = named(served, pods)
    for action in actions:
        pod = there.get(action.ordinal, {})
        assert not pod or not mo.is_ending(pod)
        if action.verb == "create":
            assert action.ordinal < count
            assert not pod or mo.owner_uid(pod) != "uid-of-x"
            continue
        assert pod == action.obj
        if action.verb == "adopt":
            assert mo.controller_of(pod) == {}
            assert mo.selector_of(wanted).items() <= mo.labels_of(pod).items()
        else:
            assert mo.owner_uid(pod) == "uid-of-x"
            assert (action.verb == "delete") == (action.ordinal >= count)


@drawn
@given(some_pods, replicas, failures)
def test_one_ready_pod_at_a_time_and_only_while_all_others_may_serve(
    pods: list[Obj], count: int, failed: mo.BackOffs
) -> None:
    """But for those whose names others hold, and those that cannot be deleted."""
    chosen = [one for one in decided(milvus(count), pods, failed=failed) if one.is_due]
    assert [one for one in chosen if one.verb == "restart" and mo.is_ready(one.obj)] == []
    replaced = [one for one in chosen if one.verb == "replace"]
    serving = [one for one in replaced if mo.may_serve(one.obj)]
    assert len(serving) <= 1
    for disrupted in serving:
        assert mo.template_hash_of(disrupted.obj) != CURRENT
        held = {o for (verb, o), one in failed.items() if one.why.reason == "NameConflict"}
        stuck = {ordinal for verb, ordinal in failed if verb == "replace"}
        others = {*range(count)} - {disrupted.ordinal} - held - stuck
        mine = mo.members(wanted, named(wanted, pods))
        assert others <= {ordinal for ordinal, pod in mine.items() if mo.may_serve(pod)}


# --- Claims of any kind ---
CLAIMS = "persistentvolumeclaims"
SIZES = {"512Mi": 0.5, "1Gi": 1, "1024Mi": 1, "2Gi": 2, "2147483649": 2.1, "1e12": 931.3}
some_sizes = st.sampled_from([*SIZES])
CLAIM_NAMES = ["data-x-0", "data-x-1", "data-x-2", "data-x-01", "data-y-0", "x-0"]
claim_traits = st.tuples(some_sizes, *[st.sampled_from([True, True, False])] * 3)


@settings(drawn, max_examples=60)
@given(
    st.lists(claim_traits, min_size=3, max_size=6),
    st.lists(st.tuples(some_sizes, replicas), min_size=1, max_size=3),
)
def test_no_claim_is_ever_deleted_made_smaller_or_patched_without_our_label(
    claims: list[Any], changes: list[Any]
) -> None:
    world = World(created("x", storage={"size": "1Gi"}))
    for name, (size, is_ours, is_bound, is_kept) in zip(CLAIM_NAMES, claims, strict=False):
        metadata = {"labels": {mo.CLAIM_LABEL: "x"} if is_ours else {}}
        resources = {"requests": {"storage": size}}
        world.server.ask(
            "create", CLAIMS, name, {"metadata": metadata, "spec": {"resources": resources}}
        )
        phase = "Bound" if is_bound else "Pending"
        world.server.ask("patch", f"{CLAIMS}/status", name, {"status": {"phase": phase}})
        if not is_kept:
            world.remove(CLAIMS, name)
    for size, count in changes:
        before = {claim["metadata"]["name"]: claim for claim in world.server.all_of(CLAIMS)}
        world.forget()
        world.change("x", storage={"size": size}, replicas=count)
        world.passes(4)
        world.server.run_pods()
        assert world.names("delete", CLAIMS) == []
        for one in world.requests("patch", CLAIMS):
            claim = before[one.name]
            assert mo.labels_of(claim) == {mo.CLAIM_LABEL: "x"}
            assert not mo.is_ending(claim)
            old, new = (obj["spec"]["resources"]["requests"] for obj in (claim, one.body))
            assert SIZES[new["storage"]] > SIZES[old["storage"]]


# --- A spec of any shape ---
FIELDS = ["containers", "env", "ports", "volumes", "volumeMounts", "name", "value", "mountPath"]
FIELDS += ["containerPort", "labels", "metadata", "spec"]
atoms = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False)
json_values = st.recursive(
    atoms | st.text() | st.sampled_from([mo.CONTAINER, "data", 19530, mo.DATA]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
items = st.lists(st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=3), max_size=3)
container = st.fixed_dictionaries({"name": st.just(mo.CONTAINER), "env": items, "ports": items})
pod_spec = json_values | st.fixed_dictionaries(
    {"containers": st.lists(container), "volumes": items}
)
any_pod = json_values | st.fixed_dictionaries({"spec": pod_spec, "metadata": json_values})
spec_fields = st.sampled_from(["image", "replicas", "milvusSpec", "storage", "pod", "other"])
any_spec = (
    json_values
    | st.dictionaries(spec_fields, json_values)
    | any_pod.map(lambda pod: {"image": "a", "pod": pod})
)


@settings(drawn, max_examples=200)
@given(any_spec)
def test_a_spec_of_any_shape_is_no_trouble_and_cannot_override_what_the_operator_relies_on(
    any_spec: Any,
) -> None:
    world = World(created("x"), created("y"))
    x = world.server.objects["milvuses", "test", "x"]
    x["spec"] = copy.deepcopy(any_spec)
    world.passes(2)
    assert world.reason("y") == "Reconciled"
    assert [line for line in world.troubles if not line.startswith("milvus test/x: ")] == []
    made = [one.body for one in world.requests("create", "pods") if one.name.startswith("x-")]
    for number, sent in enumerate(made):
        assert sent.keys() == {"apiVersion", "kind", "metadata", "spec"}
        metadata = sent["metadata"] | {"labels": None, "annotations": None}
        names = {"name": f"x-{number}", "namespace": "test", "labels": None, "annotations": None}
        assert metadata == names | {"ownerReferences": [mo.owner_reference(x)]}
        assert mo.selector_of(x).items() <= mo.labels_of(sent).items()
        assert mo.template_hash_of(sent) == mo.spec_of(x).template_hash


# --- Text that may be a password ---
MARKS = [*": :=-?,{}[]'&*!%|>#<\n\t\r\0\ud800é", '"', ": ", "- ", "? ", "---", "...", "<<"]
PIECES = ["hunter2"] * 4 + ["a", "proxy.port", "PROXY_PORT", *MARKS]


@settings(drawn, max_examples=300)
@given(st.lists(st.sampled_from(PIECES), max_size=20).map("".join))
def test_messages_about_any_text_never_quote_it(text: str) -> None:
    """The text may contain passwords, and more people can read statuses and events than specs."""
    there = milvus(milvusSpec=text)
    for condition in new_status(there, [])["conditions"]:
        assert "hunter2" not in condition["message"]
        if condition["reason"] == "Invalid":
            line = re.match(r"spec\.milvusSpec, line (\d+): ", condition["message"])
            assert line
            assert 1 <= int(line[1]) <= len(re.findall(r"\r\n|\r|\n", text)) + 2, "the end"


@drawn
@given(st.text())
def test_a_log_line_is_one_line_without_control_characters(text: str) -> None:
    record = logging.LogRecord("n", logging.INFO, "f", 1, "%s", (text,), None)
    for line in (mo.text_line(record), mo.json_line(record)):
        assert not re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", line)
