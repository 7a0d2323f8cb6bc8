"""Milvus resources and pods as plain dicts, for the tests of the pure functions.

A pod is Ready, of the current template and owned by the Milvus `x`, unless words say otherwise:
pods("x-0, x-1 old, x-2 old starting").
"""

import dataclasses
from collections.abc import Iterable
from datetime import datetime
from types import MappingProxyType
from typing import Any

import yaml

import milvus_operator as mo
from tests.lib.server import merge

Obj = dict[str, Any]
NOW = "2026-01-01T00:00:00Z"
SECONDS = datetime.fromisoformat(NOW).timestamp()


def by_kind(manifest: str) -> dict[str, Obj]:
    """The objects of a manifest, which has one of each kind."""
    return {obj["kind"]: obj for obj in yaml.safe_load_all(manifest)}


def new_metadata(name: str) -> Obj:
    return {"name": name, "namespace": "ns", "uid": f"uid-of-{name}", "resourceVersion": "1"}


def milvus(replicas: Any = 3, name: str = "x", image: Any = "milvus:1", **spec: Any) -> Obj:
    """As in a list that the operator keeps."""
    found = {
        "metadata": new_metadata(name) | {"generation": 1},
        "spec": {"image": image, "replicas": replicas} | spec,
    }
    return mo.slim_milvus(found)


# --- As in the loop ---
def read(milvus: Obj) -> mo.Spec:
    """The spec of a Milvus, or what is wrong with it."""
    try:
        return mo.spec_of(milvus)
    except mo.Invalid as error:
        return mo.Spec(invalid=str(error))


def named(milvus: Obj, objects: Iterable[Obj], start: str = "") -> dict[int, Obj]:
    """Those of the pods that have its names, by ordinal; of claims with the start `data-`."""
    return mo.by_ordinal(objects)[f"ns/{start}{mo.name_of(milvus)}"]


def decided(
    milvus: Obj,
    pods: list[Obj],
    claims: Iterable[Obj] = (),
    refused: mo.RefusedKeys = frozenset(),
    lacks_service: bool = False,
) -> list[mo.Action]:
    mine = named(milvus, pods)
    stored = named(milvus, claims, "data-")
    seen = mo.Observed(milvus, mine, stored, lacks_service, SECONDS, spec=read(milvus))
    long_ago = {mo.ready_state_of(pod): 0.0 for pod in seen.mine.values()}
    return [*mo.decide(dataclasses.replace(seen, first_seen=long_ago), refused)]


def new_status(
    milvus: Obj,
    pods: list[Obj],
    problems: mo.Problems = MappingProxyType({}),
    claims: Iterable[Obj] = (),
    lasting: frozenset[str] = frozenset(mo.STALLED),
) -> Obj:
    """The status that is written; `problems` is by ordinal, and has lasted a while."""
    mine = named(milvus, pods)
    stored = named(milvus, claims, "data-")
    seen = mo.Observed(milvus, mine, stored, False, SECONDS, spec=read(milvus))
    return mo.status_of(seen, problems, lasting, NOW)


# --- Pods ---
OURS = mo.owner_reference(milvus())
CURRENT = read(milvus()).template_hash
OWNERS = {
    "loose": OURS | {"controller": False},
    "earlier": OURS | {"uid": "uid-of-an-earlier-x"},
    # The Milvus project's own operator has a kind of that name.
    "of-theirs": OURS | {"apiVersion": "milvus.io/v1beta1", "uid": "uid-of-theirs"},
    "of-y": OURS | {"name": "y", "uid": "uid-of-y"},
    "of-set": {"kind": "StatefulSet", "name": "x", "uid": "uid-of-set", "controller": True},
    "of-web": {"kind": "ReplicaSet", "name": "web", "uid": "uid-of-web", "controller": True},
}
METADATA: dict[str, Obj] = {
    "orphan": {"ownerReferences": None},
    "unlabelled": {"labels": None},
    "stolen": {"labels": {mo.MILVUS_LABEL: "y"}},
    "relabelled": {"labels": {mo.MANAGED_BY_LABEL: "platform", mo.INSTANCE_LABEL: None}},
    "bare": {"annotations": None},
    "old": {"annotations": {mo.TEMPLATE_HASH: "another"}},
    "ending": {"deletionTimestamp": NOW},
}
PHASES = {
    "starting": "Pending",
    "failed": "Failed",
    "succeeded": "Succeeded",
    "silent": "Running",
    "gated": "Running",
}
WORDS = [*OWNERS, *METADATA, *PHASES]


def pod(name: str, *words: str, **status: Any) -> Obj:
    """A pod that these words describe; `status` replaces parts of its status. One that has ended
    still has the condition Ready; one that is silent runs, and its node does not report; one that
    is gated runs, and its readiness gate is shut."""
    start, *_ = name.rpartition("-")
    metadata = new_metadata(name) | {
        "ownerReferences": [OURS],
        "labels": mo.our_label(milvus(name=start)),
        "annotations": {mo.TEMPLATE_HASH: CURRENT},
    }
    phase = "Running"
    for word in words:
        assert word in WORDS, word
        phase = PHASES.get(word, phase)
        metadata = merge(metadata, METADATA.get(word, {}))
        if word in OWNERS:
            metadata["ownerReferences"] = [OWNERS[word]]
    is_ready = not {"starting", "silent", "gated"} & {*words}
    ready = {"type": "Ready", "status": str(is_ready)}
    if "gated" in words:
        ready["reason"] = "ReadinessGatesNotReady"
    found: Obj = {"phase": phase, "conditions": [ready]}
    if {"silent", "gated"} & {*words}:
        found["containerStatuses"] = [{"ready": True, "state": {"running": {}}}]
    return {"metadata": metadata, "status": found | status}


def pods(text: str) -> list[Obj]:
    return [pod(*one.split()) for one in text.split(",") if one]


def claim(name: str, size: str = "1Gi", phase: str = "Bound") -> Obj:
    """A claim of our label that asks for this size."""
    found = pod(name) | {
        "spec": {"resources": {"requests": {"storage": size}}},
        "status": {"phase": phase},
    }
    return mo.slim_claim(found)
