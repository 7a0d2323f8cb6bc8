"""The judge of the fault tests reports planted harm, and accepts everything that is right."""

from __future__ import annotations

import json
from typing import Any

import pytest

import milvus_operator as mo
from tests.lib.judge import STRANGER, Copy, History, Judge

Obj = dict[str, Any]
CLAIM: Obj = {"kind": "PersistentVolumeClaim", "metadata": {"name": "data-m-0", "uid": "claim"}}


def milvus(name: str = "m", **spec: Any) -> Obj:
    metadata = {"name": name, "namespace": "ns", "uid": f"of-{name}"}
    return {"kind": "Milvus", "metadata": metadata, "spec": {"replicas": 3, "image": "a:1"} | spec}


def pod(number: int, ready: bool = True, phase: str = "Running", **metadata: Any) -> Obj:
    """A pod of the first template."""
    made = mo.new_pod(milvus(), mo.spec_of(milvus()), number)
    made["metadata"] |= {"uid": f"pod-{number}"} | metadata
    conditions = [{"type": "Ready", "status": str(ready)}]
    return made | {"status": {"phase": phase, "conditions": conditions}}


STRANGERS: Obj = {
    "kind": "Pod",
    "metadata": {"name": "m-2", "uid": "s"},
    "spec": {"containers": [{"image": STRANGER}]},
}
PODS = [pod(0), pod(1), pod(2)]
NEW = milvus(image="a:2")


class Story:
    """What is stored, and what a copy of the operator asks for, one revision after another."""

    def __init__(self, *objects: Obj, alone: bool = True) -> None:
        self.judge, self.revision = Judge(), 0
        self.copy = Copy(self.judge, alone)
        self.changes: list[tuple[int, str, Obj]] = []
        self.store(*objects).lists()

    def store(self, *objects: Obj, what: str = "MODIFIED") -> Story:
        for obj in objects:
            self.revision += 1
            self.changes.append((self.revision, what, obj))
        return self

    def lists(self) -> Story:
        for kind in ("PodList", "MilvusList"):
            page = {"kind": kind, "metadata": {"resourceVersion": str(self.revision)}}
            self.copy.gets(json.dumps(page).encode())
        return self

    def asks(self, request: str, body: Obj | None = None, done: bool = True) -> Story:
        verb, path = request.split()
        target, content = f"/api/v1/namespaces/ns/{path}", json.dumps(body or {}).encode()
        self.copy.asks(verb, target, content).is_done = done
        return self

    def creates(self, owner: Obj, number: int) -> Story:
        return self.asks("POST pods", mo.new_pod(owner, mo.spec_of(owner), number))

    def deletes(self, number: int, done: bool = True, **conditions: Any) -> Story:
        conditions = {"uid": f"pod-{number}"} | conditions
        self.asks(f"DELETE pods/m-{number}", {"preconditions": conditions}, done)
        return self.store(pod(number), what="DELETED") if done else self

    def harm(self, *by_users: str) -> list[str]:
        return self.judge.sentence(History(self.changes), by_users)


VERSION: Obj = {"resourceVersion": "1"}
ENDING = {"deletionTimestamp": "now"}
CLAIMED: Obj = {"metadata": {"name": "data-m-0", "labels": {"zilliz.com/milvus": "m"}}}
HARM: dict[str, tuple[str, Story]] = {
    "outdated no longer": ("wanted and up to date", Story(milvus(), *PODS).deletes(2)),
    "of another Milvus": ("another owner", Story(NEW, pod(2, ownerReferences=[])).deletes(2)),
    "another pod": ("another pod", Story(NEW, *PODS).deletes(2, uid="x")),
    "never listed": ("it was not there", Story(NEW).deletes(2)),
    "its Milvus is ending": (
        "its Milvus was ending",
        Story(NEW | {"metadata": NEW["metadata"] | ENDING}, *PODS).deletes(2),
    ),
    "no UID": ("without a UID", Story(NEW, *PODS).deletes(2, uid=None)),
    "no version": ("may be by now", Story(NEW, pod(2, ready=False)).deletes(2)),
    "rolled while one is missing": ("['m-0'] were not", Story(NEW, *PODS[1:]).deletes(2)),
    "rolled while one is not Ready": (
        "['m-0'] were not Ready",
        Story(NEW, pod(0, ready=False), *PODS[1:]).deletes(2),
    ),
    "two at once": ("['m-2'] had just been", Story(NEW, *PODS).deletes(2).deletes(1)),
    "an old template": ("another template", Story(milvus(image="a:3")).creates(NEW, 0)),
    "an ordinal that is not wanted": ("not wanted", Story(milvus()).creates(milvus(), 3)),
    "a pod for nobody": ("it had no Milvus", Story().creates(milvus(), 0)),
    "a patch of labels": (
        "no patch may change this",
        Story(milvus(), *PODS).asks("PATCH pods/m-0", {"metadata": {"labels": {}} | VERSION}),
    ),
    "a claim with an owner": (
        "or an owner",
        Story().asks(
            "POST persistentvolumeclaims",
            {"metadata": CLAIMED["metadata"] | {"ownerReferences": []}},
        ),
    ),
    "a claim is deleted": ("no operator", Story().asks("DELETE persistentvolumeclaims/data-m-0")),
    "a status without a version": ("a version", Story().asks("PATCH milvuses/m/status")),
    "a claim is gone": ("was deleted", Story(CLAIM).store(CLAIM, what="DELETED")),
    "a stranger is gone": ("stranger was", Story(STRANGERS).store(STRANGERS, what="DELETED")),
    "a stranger is adopted": (
        "a stranger's ownerReferences changed",
        Story(STRANGERS).store(
            STRANGERS | {"metadata": STRANGERS["metadata"] | {"ownerReferences": [{}]}}
        ),
    ),
    "a quiet Milvus": ("no user touched it", Story(milvus("still")).store(milvus("still"))),
    "a pod that nobody asked for": (
        "nobody had asked",
        Story(milvus(), *PODS).store(PODS[0], what="DELETED"),
    ),
}


@pytest.mark.parametrize("name", HARM)
def test_the_judge_reports_harm(name: str) -> None:
    words, story = HARM[name]
    assert words in "".join(story.harm())


BACK = pod(2, uid="new", annotations={mo.TEMPLATE_HASH: "new"})
RIGHT: dict[str, Story] = {
    "a roll": Story(NEW, *PODS).deletes(2).store(BACK).lists().deletes(1),
    "a roll that is asked for twice": Story(NEW, *PODS).deletes(2, done=False).deletes(2),
    "a roll of all that are not Ready": Story(NEW, *(pod(i, ready=False) for i in range(3)))
    .deletes(2, **VERSION)
    .deletes(1, **VERSION),
    "a roll beside a stranger": Story(NEW, *PODS[:2], STRANGERS).deletes(1),
    "a finished pod": Story(milvus(), pod(1, phase="Failed")).deletes(1, **VERSION),
    "a scale-down": Story(milvus(replicas=0), *PODS).deletes(2).deletes(1).deletes(0),
    "a scale-down that is reverted": Story(milvus(replicas=0), *PODS).store(milvus()).deletes(2),
    "a create": Story(milvus()).creates(milvus(), 2),
    "a create that outlives its pass": Story(milvus()).store(NEW).lists().creates(milvus(), 2),
    "an adoption": Story(milvus()).asks(
        "PATCH pods/m-1", {"metadata": {"uid": "x", "ownerReferences": []} | VERSION}
    ),
    "a claim": Story(milvus()).asks("POST persistentvolumeclaims", CLAIMED),
    "two copies": Story(NEW, *PODS, alone=False).deletes(2).deletes(1),
    "a dry run": Story().asks("DELETE pods/m-0?dryRun=All"),
    "the garbage collector": Story(*PODS).store(PODS[0], what="DELETED"),
}


@pytest.mark.parametrize("name", RIGHT)
def test_the_judge_accepts_what_is_right(name: str) -> None:
    assert RIGHT[name].harm() == []


def test_a_user_may_delete_any_pod() -> None:
    assert Story(milvus(), *PODS).store(PODS[0], what="DELETED").harm("pod-0") == []
