"""Properties of the pure functions, for any pods, any spec and any text.

Each run draws new examples; a failure prints the decorator that repeats it.
"""

import copy
import json
import logging
import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import milvus_operator as mo
from tests.lib.objects import CURRENT, WORDS, Obj, decided, milvus, new_status, pod, read, taken

drawn = settings(derandomize=False, deadline=None, database=None, print_blob=True)

# --- Pods of any kind, in any state ---
NAMES = [*(f"x-{i}" for i in range(6)), "x-01", "x-y", "x-y-1", "y-1"]
UNSCHEDULED = {"type": "PodScheduled", "status": "False", "message": '"data-x-1" not found'}
STATES: list[Obj] = [
    {},
    {"phase": None, "conditions": None},
    {"initContainerStatuses": [{"state": {"waiting": {"reason": "PodInitializing"}}}]},
    {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]},
    {"conditions": [UNSCHEDULED]},
]


@st.composite
def a_pod(draw: st.DrawFn) -> Obj:
    words = draw(st.lists(st.sampled_from(WORDS), max_size=2))
    status = draw(st.sampled_from([{}, {}, *STATES]))
    return pod(draw(st.sampled_from(NAMES)), *words, **status)


some_pods = st.lists(a_pod(), max_size=9, unique_by=mo.name_of)
replicas = st.integers(0, 6)
reasons = ["NameConflict", "QuotaExceeded", "Invalid", "Forbidden", "APIError", "ClaimTerminating"]
some_words = st.builds(mo.Reason, st.sampled_from(reasons), st.text())
some_problems = st.dictionaries(st.sampled_from(NAMES), some_words)
back_offs = st.sets(st.integers(0, 5))
wanted = milvus()


@drawn
@given(some_pods, replicas, some_problems, st.randoms())
def test_neither_the_order_nor_what_is_not_kept_of_a_pod_matters(
    pods: list[Obj], count: int, problems: dict[str, mo.Reason], dice: Any
) -> None:
    served = milvus(count)
    kept, names = [mo.slim_pod(pod) for pod in pods], list(problems)
    dice.shuffle(kept)
    dice.shuffle(names)
    told = [
        [(action.verb, action.ordinal, action.reason) for action in decided(served, some)]
        for some in (pods, kept)
    ]
    assert sorted(told[0]) == sorted(told[1])
    one, other = ([action for action in some if action[0] != "adopt"] for some in told)
    assert one == other
    assert taken(served, kept) == taken(served, pods)
    shuffled = {name: problems[name] for name in names}
    assert new_status(served, kept, **shuffled) == new_status(served, pods, **problems)


@drawn
@given(some_pods, replicas)
def test_only_pods_of_ours_are_written_to_and_each_one_once(pods: list[Obj], count: int) -> None:
    actions = decided(milvus(count), pods)
    assert len({action.ordinal for action in actions}) == len(actions)
    names = {mo.name_of(pod) for pod in pods}
    for action in actions:
        if action.verb == "create":
            assert action.ordinal < count
            assert f"x-{action.ordinal}" not in names
            continue
        assert f"x-{action.ordinal}" == mo.name_of(action.pod)
        assert not mo.is_ending(action.pod)
        if action.verb == "adopt":
            assert mo.controller_of(action.pod) == {}
            assert mo.selector_of(wanted).items() <= mo.labels_of(action.pod).items()
        else:
            assert mo.owner_uid(action.pod) == "uid-of-x"
            assert (action.verb == "delete") == (action.ordinal >= count)


@drawn
@given(some_pods, replicas, back_offs, st.booleans())
def test_one_ready_pod_at_a_time_and_only_while_all_others_are_ready(
    pods: list[Obj], count: int, backing_off: set[int | str], may_restart: bool
) -> None:
    failed = dict.fromkeys(backing_off, mo.BackOff(until=1))
    ended = {*map(mo.uid_of, pods)} if may_restart else ()
    chosen = mo.choose(decided(milvus(count), pods), failed, (), ended, 0)
    assert not backing_off & {action.ordinal for action in chosen}
    assert may_restart or "restart" not in [action.verb for action in chosen]
    replaced = [action for action in chosen if action.verb in ("restart", "replace")]
    for disrupted in filter(lambda action: mo.is_ready(action.pod), replaced):
        assert mo.template_hash_of(disrupted.pod) != CURRENT
        held = taken(milvus(count), pods)
        others = {f"x-{ordinal}" for ordinal in range(count)} - {mo.name_of(disrupted.pod)} - held
        ready = {mo.name_of(pod) for pod in mo.members(wanted, pods).values() if mo.is_ready(pod)}
        assert others <= ready - {mo.name_of(action.pod) for action in chosen}


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
def test_a_spec_of_any_shape_is_served_or_invalid(any_spec: Any) -> None:
    """What the operator relies on cannot be overridden."""
    there = milvus() | {"spec": any_spec}
    before, spec = copy.deepcopy(there), read(there)
    conditions = new_status(there, [])["conditions"]
    assert all(one["message"] for one in conditions)
    assert (len(conditions) == 3) == bool(spec.invalid)
    if not spec.invalid:
        plain, made = mo.new_pod(wanted, spec, 1), mo.new_pod(there, spec, 1)
        json.dumps(made)
        assert made.keys() == plain.keys()
        assert made["metadata"].keys() == plain["metadata"].keys()
        for key in ("name", "namespace", "ownerReferences"):
            assert made["metadata"][key] == plain["metadata"][key]
        assert mo.labels_of(plain).items() <= mo.labels_of(made).items()
        assert mo.template_hash_of(made) == spec.template_hash
    assert there == before, "nothing of the Milvus is changed in place"


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
            assert 1 <= int(line[1]) <= len(re.findall(r"\r\n|\r|\n", text)) + 1


@drawn
@given(st.text())
def test_a_log_line_is_one_line_without_control_characters(text: str) -> None:
    record = logging.LogRecord("n", logging.INFO, "f", 1, "%s", (text,), None)
    for line in (mo.text_line(record), mo.json_line(record)):
        assert not re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", line)
