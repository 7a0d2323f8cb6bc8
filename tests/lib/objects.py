"""Milvus resources and pods as plain dicts, for the tests of the pure functions.

A pod is Ready, of the current template and owned by the Milvus `x`, unless words say otherwise:
pods("x-0, x-1 old, x-2 old starting").
"""

from __future__ import annotations

from typing import Any

import milvus_operator as mo

Obj = dict[str, Any]
NOW = "2026-01-01T00:00:00Z"


def milvus(replicas: Any = 3, name: str = "x", image: Any = "milvus:1", **spec: Any) -> Obj:
    metadata = {"name": name, "namespace": "ns", "uid": f"uid-of-{name}", "generation": 1}
    return {
        "metadata": metadata | {"resourceVersion": "1"},
        "spec": {"image": image, "replicas": replicas} | spec,
    }


def read(milvus: Obj) -> mo.Spec:
    """Its spec or, as in the loop, what is wrong with it."""
    try:
        return mo.spec_of(milvus)
    except mo.Invalid as error:
        return mo.NO_SPEC._replace(invalid=str(error))


OURS = mo.owner_reference(milvus())
OWNERS: dict[str, list[Obj]] = {
    "orphan": [],
    "loose": [OURS | {"controller": False}],
    "earlier": [OURS | {"uid": "uid-of-an-earlier-x"}],
    "of-y": [OURS | {"name": "y", "uid": "uid-of-y"}],
    "of-milvus.io": [OURS | {"apiVersion": "milvus.io/v1beta1", "uid": "uid-of-another-kind"}],
    "stranger": [
        OURS | {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "uid-of-web"}
    ],
}
PHASES = {"starting": "Pending", "failed": "Failed", "succeeded": "Succeeded"}
LABELS = {"unlabelled": None, "unmanaged": mo.MANAGED_BY_LABEL, "unnumbered": mo.POD_INDEX_LABEL}
WORDS = (*OWNERS, *PHASES, *LABELS, "old", "bare", "ending")
CURRENT, OLD = (read(milvus(image=image)).template_hash for image in ("milvus:1", "milvus:0"))


def pod(name: str, *words: str, **status: Any) -> Obj:
    """A pod that these words describe; `status` replaces parts of its status."""
    start, _, ordinal = name.rpartition("-")
    labels = mo.selector_of(milvus(name=start)) | {mo.POD_INDEX_LABEL: ordinal}
    metadata: Obj = {"name": name, "namespace": "ns", "uid": f"uid-of-{name}", "labels": labels}
    metadata |= {"resourceVersion": "1", "ownerReferences": [OURS]}
    metadata["annotations"] = {mo.TEMPLATE_HASH: OLD if "old" in words else CURRENT}
    if "bare" in words:
        del metadata["annotations"]
    if "ending" in words:
        metadata["deletionTimestamp"] = NOW
    phase = "Running"
    for word in words:
        assert word in WORDS, word
        metadata["ownerReferences"] = OWNERS.get(word, metadata["ownerReferences"])
        phase = PHASES.get(word, phase)
        if word in LABELS:
            kept = {key: labels[key] for key in labels if LABELS[word] not in (None, key)}
            metadata["labels"] = kept
    ready = {"type": "Ready", "status": str(phase == "Running")}
    return {"metadata": metadata, "status": {"phase": phase, "conditions": [ready]} | status}


def pods(text: str) -> list[Obj]:
    return [pod(*one.split()) for one in text.split(",") if one]


def conditions(milvus: Obj, pods: list[Obj], **problems: mo.Reason) -> dict[str, tuple[str, ...]]:
    """Status, reason and message of each condition; `problems` is by pod, with _ for -."""
    found = {name.replace("_", "-"): problem for name, problem in problems.items()}
    status = mo.status_of(milvus, read(milvus), pods, found, NOW)
    return {
        one["type"]: (one["status"], one["reason"], one["message"]) for one in status["conditions"]
    }
