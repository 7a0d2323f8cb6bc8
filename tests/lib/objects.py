"""Milvus resources and pods as plain dicts, for the tests of the pure functions.

A pod is Ready, of the current template and owned by the Milvus `x`, unless words say otherwise:
pods("x-0, x-1 old, x-2 old starting").
"""

from collections.abc import Iterable
from types import MappingProxyType
from typing import Any

import yaml

import milvus_operator as mo

Obj = dict[str, Any]
NOW = "2026-01-01T00:00:00Z"


def by_kind(manifest: str) -> dict[str, Obj]:
    """The objects of a manifest, which has one of each kind."""
    return {obj["kind"]: obj for obj in yaml.safe_load_all(manifest)}


def milvus(replicas: Any = 3, name: str = "x", image: Any = "milvus:1", **spec: Any) -> Obj:
    metadata: Obj = {"name": name, "namespace": "ns", "uid": f"uid-of-{name}"}
    metadata |= {"resourceVersion": "1", "generation": 1}
    return {"metadata": metadata, "spec": {"image": image, "replicas": replicas} | spec}


# --- As in the loop ---
def read(milvus: Obj) -> mo.Spec:
    """Its spec, or what is wrong with it."""
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
    failed: mo.BackOffs = MappingProxyType({}),
) -> list[mo.Action]:
    stored = named(milvus, claims, "data-")
    return [*mo.decide(milvus, read(milvus), named(milvus, pods), stored, failed)]


def new_status(milvus: Obj, pods: list[Obj], problems: mo.Problems = MappingProxyType({})) -> Obj:
    """The status that is written; `problems` is by ordinal."""
    return mo.status_of(milvus, read(milvus), named(milvus, pods), problems, NOW)


# --- Pods ---
OURS = mo.owner_reference(milvus())
WEB = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "uid-of-web"}
OWNERS = {
    "loose": OURS | {"controller": False},
    "earlier": OURS | {"uid": "uid-of-an-earlier-x"},
    "of-y": OURS | {"name": "y", "uid": "uid-of-y"},
    "of-milvus.io": OURS | {"apiVersion": "milvus.io/v1beta1", "uid": "uid-of-another-kind"},
    "stranger": OURS | WEB,
}
PHASES = {"starting": "Pending", "failed": "Failed", "succeeded": "Succeeded"}
LACKING = {"orphan": "ownerReferences", "unlabelled": "labels", "bare": "annotations"}
LABELS = {"unmanaged": mo.MANAGED_BY_LABEL, "unnumbered": mo.POD_INDEX_LABEL}  # lacking, too
WORDS = (*OWNERS, *PHASES, *LACKING, *LABELS, "old", "ending", "silent")
CURRENT, OLD = (read(milvus(image=image)).template_hash for image in ("milvus:1", "milvus:0"))


def pod(name: str, *words: str, **status: Any) -> Obj:
    """A pod that these words describe; `status` replaces parts of its status. One that has ended
    still has the condition Ready; one that is silent runs, and its node does not report."""
    assert {*words} <= {*WORDS}, words
    start, _, ordinal = name.rpartition("-")
    labels = mo.selector_of(milvus(name=start)) | {mo.POD_INDEX_LABEL: ordinal}
    metadata: Obj = {"name": name, "namespace": "ns", "uid": f"uid-of-{name}", "labels": labels}
    metadata |= {"resourceVersion": "1", "ownerReferences": [OURS]}
    metadata["annotations"] = {mo.TEMPLATE_HASH: OLD if "old" in words else CURRENT}
    phase = "Running"
    for word in words:
        phase = PHASES.get(word, phase)
        labels.pop(LABELS.get(word, ""), None)
        if word in OWNERS:
            metadata["ownerReferences"] = [OWNERS[word]]
    for word in LACKING.keys() & {*words}:
        del metadata[LACKING[word]]
    if "ending" in words:
        metadata["deletionTimestamp"] = NOW
    is_ready = phase != "Pending" and "silent" not in words
    found: Obj = {"phase": phase, "conditions": [{"type": "Ready", "status": str(is_ready)}]}
    if "silent" in words:
        found["containerStatuses"] = [{"ready": True, "state": {"running": {}}}]
    return {"metadata": metadata, "status": found | status}


def pods(text: str) -> list[Obj]:
    return [pod(*one.split()) for one in text.split(",") if one]


def claim(name: str, size: str = "1Gi", phase: str = "Bound", *words: str) -> Obj:
    """A claim of our label that asks for this size; `words` as of a pod."""
    spec = {"resources": {"requests": {"storage": size}}}
    return pod(name, *words) | {"spec": spec, "status": {"phase": phase}}
