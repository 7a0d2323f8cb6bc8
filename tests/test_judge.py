"""The judge of the fault tests reports planted harm, and accepts everything that is right."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

import milvus_operator as mo
from tests.lib.judge import STRANGER, Copy, History, Judge, labels_for, reference_to

Obj = dict[str, Any]
GONE = {"metadata": {"deletionGracePeriodSeconds": 0}}


def milvus(version: int = 1, name: str = "m", **spec: Any) -> Obj:
    metadata = {
        "name": name,
        "namespace": "ns",
        "uid": f"of-{name}",
        "resourceVersion": str(version),
        "generation": 1,
    }
    return {"metadata": metadata, "spec": {"replicas": 3, "image": "milvus:1"} | spec}


def pod(
    number: int, of: Obj | None = None, ready: bool = True, phase: str = "Running", **metadata: Any
) -> Obj:
    made = mo.new_pod(of or milvus(), number)
    made["metadata"] |= {"uid": f"pod-{number}", "resourceVersion": "1"} | metadata
    return made | {
        "status": {"phase": phase, "conditions": [{"type": "Ready", "status": str(ready)}]}
    }


PODS = [pod(0), pod(1), pod(2)]
NEW = milvus(2, image="milvus:2")
ORPHAN = pod(1, ownerReferences=[])


class Talk:
    """The requests of a copy of the operator on its wire, and their answers."""

    def __init__(self) -> None:
        self.judge = Judge()
        self.copy = Copy(self.judge)

    def says(
        self, request: str, body: Obj | None = None, answer: Obj | None = None, code: int = 200
    ) -> Talk:
        verb, path = request.split()
        asked = self.copy.asks(
            verb, f"/api/v1/namespaces/ns/{path}", json.dumps(body or {}).encode()
        )
        self.copy.gets(asked, code, json.dumps(answer).encode())
        asked.over = True
        return self

    def lists(self, owner: Obj, *pods: Obj) -> Talk:
        self.says("GET pods?limit=9", answer={"kind": "PodList", "metadata": {}, "items": pods})
        return self.says(
            "GET milvuses?limit=9", answer={"kind": "MilvusList", "metadata": {}, "items": [owner]}
        )

    def creates(self, owner: Obj, number: int) -> Talk:
        return self.says("POST pods", mo.new_pod(owner, number), pod(number, owner, ready=False))

    def claims(self, owner: Obj, number: int) -> Talk:
        claim = mo.new_claim(owner, {"metadata": {"name": f"m-{number}"}})
        return self.says("POST persistentvolumeclaims", claim, claim)

    def patches(self, one: Obj, **metadata: Any) -> Talk:
        named = {
            "uid": one["metadata"]["uid"],
            "resourceVersion": one["metadata"]["resourceVersion"],
        }
        return self.says(
            f"PATCH pods/{one['metadata']['name']}", {"metadata": metadata | named}, one
        )

    def reports(self, owner: Obj, **status: Any) -> Talk:
        return self.says(
            "PATCH milvuses/m/status",
            {
                "metadata": {"resourceVersion": owner["metadata"]["resourceVersion"]},
                "status": status,
            },
            owner
            | {
                "metadata": owner["metadata"]
                | {"resourceVersion": owner["metadata"]["resourceVersion"] + "0"}
            },
        )

    def deletes(self, one: Obj, **conditions: Any) -> Talk:
        conditions = {"uid": one["metadata"]["uid"]} | conditions
        return self.says(
            f"DELETE pods/{one['metadata']['name']}", {"preconditions": conditions}, GONE
        )

    def takes(self, owner: Obj, one: Obj) -> Talk:
        """Announce a Ready pod and delete it."""
        return self.reports(owner, disruptedPod=f"{one['metadata']['uid']} now").deletes(one)


STORED = milvus(storage={"size": "1Gi"})
COUNTS = {
    "observedGeneration": 1,
    "pods": ["m-0", "m-1"],
    "replicas": 2,
    "readyReplicas": 2,
    "updatedReplicas": 2,
}
HARM: dict[str, tuple[str, Talk]] = {
    "outdated for a while": ("wanted and up to date", Talk().lists(milvus(1), *PODS).lists(NEW, *PODS).lists(milvus(3), *PODS).takes(milvus(3), PODS[2])),
    "outdated for a while, not Ready": ("wanted and up to date", Talk().lists(NEW, pod(2, ready=False)).lists(milvus(3), pod(2, ready=False)).deletes(PODS[2], resourceVersion="1")),
    "made from an old template": ("another template", Talk().lists(milvus()).lists(NEW).lists(milvus(3)).creates(NEW, 0)),
    "wanted only by an earlier spec": ("not wanted", Talk().lists(milvus(1)).lists(milvus(2, image="milvus:2", replicas=1)).creates(NEW, 2)),
    "a name that is taken": ("a pod of that name exists", Talk().lists(milvus(), *PODS).creates(milvus(), 1)),
    "rolled while another is missing": ("{'m-0'} are not Ready", Talk().lists(NEW, *PODS[1:]).takes(NEW, PODS[2])),
    "rolled while another is not Ready": ("{'m-0'} are not Ready", Talk().lists(NEW, pod(0, ready=False), *PODS[1:]).takes(NEW, PODS[2])),
    "not announced": ("it may be Ready", Talk().lists(NEW, *PODS).deletes(PODS[2])),
    "Ready, not announced": ("it is Ready", Talk().lists(NEW, *PODS).deletes(PODS[2], resourceVersion="1")),
    "announced twice": ("it may be Ready", Talk().lists(milvus(replicas=0), *PODS).takes(milvus(replicas=0), PODS[2]).deletes(PODS[1])),
    "announced on an old version": ("nothing that was read", Talk().lists(NEW, *PODS).takes(milvus(), PODS[2])),
    "no UID": ("without a UID", Talk().lists(NEW, *PODS).deletes(PODS[2], uid=None)),
    "never read": ("nothing that was read", Talk().lists(NEW, *PODS).deletes(pod(2, uid="another"))),
    "a stranger is deleted": ("owned by {}", Talk().lists(NEW, pod(2, ready=False, ownerReferences=[])).deletes(PODS[2], resourceVersion="1")),
    "an owner for a pod that has one": ("it already has its labels", Talk().lists(NEW, *PODS).patches(pod(0), ownerReferences=[reference_to(NEW)])),
    "labels that are there": ("it already has its labels", Talk().lists(NEW, *PODS).patches(pod(0), labels=labels_for("m-0"))),
    "other labels": ("no patch may change this", Talk().lists(NEW, pod(0, labels={})).patches(pod(0), labels=labels_for("m-0") | {"a": "b"})),
    "adopted without a look": ("was not read once more", Talk().lists(milvus(), ORPHAN).patches(ORPHAN, ownerReferences=[reference_to(NEW)])),
    "a stranger is adopted": ("a stranger's", Talk().lists(milvus(), pod(1, labels={}, ownerReferences=[])).says("GET milvuses/m", answer=milvus()).patches(ORPHAN, ownerReferences=[reference_to(NEW)])),
    "a claim for an unwanted ordinal": ("not wanted", Talk().lists(STORED).claims(STORED, 3)),
    "a claim without storage": ("its storage is {}", Talk().lists(milvus()).claims(STORED, 0)),
    "no claim": ("its claim does not exist", Talk().lists(STORED).creates(STORED, 0)),
    "a wrong count": ("'readyReplicas': 2", Talk().lists(milvus(), *PODS).reports(milvus(), **COUNTS)),
    "a status of an earlier generation": ("'observedGeneration': 0", Talk().lists(milvus(), *PODS[:2]).reports(milvus(), **COUNTS | {"observedGeneration": 0})),
    "its Milvus is ending": ("its Milvus is ending", Talk().lists(milvus() | {"metadata": milvus()["metadata"] | {"deletionTimestamp": "now"}}).creates(milvus(), 0)),
    "a Milvus that no user touched": ("no user has touched it", Talk().lists(milvus(name="still")).creates(milvus(name="still"), 0)),
    "its claim": ("no user has touched it", Talk().says("POST persistentvolumeclaims/data-stored-0")),
    "another write": ("never makes this request", Talk().says("DELETE persistentvolumeclaims/data-m-0")),
}  # fmt: skip


@pytest.mark.parametrize("name", HARM)
def test_the_judge_reports_harm(name: str) -> None:
    words, talk = HARM[name]
    assert words in "".join(talk.judge.harm)


RIGHT: dict[str, Talk] = {
    "a roll": Talk().lists(NEW, *PODS).takes(NEW, PODS[2]),
    "a roll of pods that are not Ready, all at once": Talk().lists(NEW, pod(1, ready=False), pod(2, ready=False)).deletes(PODS[2], resourceVersion="1").deletes(PODS[1], resourceVersion="1").creates(NEW, 1),
    "a roll beside a stranger": Talk().lists(NEW, *PODS[:2]).says("POST pods", mo.new_pod(NEW, 2), {"reason": "AlreadyExists"}, 409).says("GET pods/m-2", answer=pod(2, labels={}, ownerReferences=[])).takes(NEW, PODS[1]),
    "a finished pod": Talk().lists(milvus(), pod(1, phase="Failed")).deletes(PODS[1], resourceVersion="1").creates(milvus(), 1),
    "a scale-down": Talk().lists(milvus(1, replicas=0), *PODS).takes(milvus(1, replicas=0), PODS[2]).takes(milvus(10, replicas=0), PODS[1]),
    "a claim and its pod": Talk().lists(STORED).claims(STORED, 0).creates(STORED, 0),
    "reading the pod after reading its claim": Talk().lists(STORED).claims(STORED, 0).says("GET persistentvolumeclaims/data-m-0", code=500).says("GET pods/m-0", code=404),
    "an adoption": Talk().lists(milvus(), ORPHAN).says("GET milvuses/m", answer=milvus()).patches(ORPHAN, ownerReferences=[reference_to(milvus())]),
    "labels that were lost": Talk().lists(milvus(), pod(1, labels={})).patches(pod(1), labels=labels_for("m-1")),
    "a status": Talk().lists(milvus(), *PODS[:2]).reports(milvus(), **COUNTS),
    "a status after a pod": Talk().lists(milvus(), PODS[0]).creates(milvus(), 1).reports(milvus(), **COUNTS | {"readyReplicas": 1}),
    "a dry run": Talk().says("POST pods?dryRun=All", mo.new_pod(milvus(name="still"), 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_the_judge_accepts_what_is_right(name: str) -> None:
    assert RIGHT[name].judge.harm == []


def test_a_pod_may_follow_a_claim_that_was_in_progress_when_the_next_lists_began() -> None:
    talk, pods = Talk().lists(STORED), "/api/v1/namespaces/ns/persistentvolumeclaims"
    claim = json.dumps(mo.new_claim(STORED, PODS[2])).encode()
    asked = talk.copy.asks("POST", pods, claim)
    talk.lists(milvus(2, replicas=0, storage={"size": "1Gi"}))
    talk.copy.gets(asked, 201, claim)
    assert talk.creates(STORED, 2).judge.harm == []
    assert talk.claims(STORED, 1).judge.harm


# All copies together -------------------------------------------------------------------


def event(number: int, ready: bool = True, kind: str = "MODIFIED") -> tuple[str, Obj]:
    return kind, pod(number, ready=ready)


def said(owner: Obj, number: int) -> Obj:
    return owner | {"status": {"disruptedPod": f"pod-{number} now"}}


def stranger(kind: str = "MODIFIED", **metadata: Any) -> tuple[str, Obj]:
    return kind, {
        "metadata": {"name": "m-9", "uid": "s"} | metadata,
        "spec": {"containers": [{"image": STRANGER}]},
    }


NONE, TWO = milvus(replicas=0), milvus(replicas=2)
TOGETHER: dict[str, tuple[str, list[Obj | tuple[str, Obj]]]] = {
    "three after a short scale-down to 0": (
        "it was deleted while {2} were", [NONE, milvus(), *(event(number, kind="DELETED") for number in (2, 1, 0))],
    ),
    "two, one of them surplus": ("it was deleted while {2}", [TWO, milvus(), event(2, kind="DELETED"), event(1, kind="DELETED")]),
    "two by a roll": ("it was deleted while {2}", [NEW, event(2, kind="DELETED"), event(2, False), event(1, kind="DELETED")]),
    "announced while one is missing": (
        "announced while {2}", [TWO, event(2, kind="DELETED"), milvus(), said(milvus(), 1)],
    ),
    "a stranger is deleted": ("a stranger was deleted", [stranger(), stranger("DELETED")]),
    "a stranger's labels": ("a stranger's labels changed", [stranger(), stranger(labels={"a": "b"})]),
    "a stranger's owner": ("a stranger's ownerReferences changed", [stranger(), stranger(ownerReferences=[])]),
    "a Milvus that no user touched": ("no user touched it", [milvus(name="still"), milvus(name="still")]),
    "its pod": ("no user touched it", [("ADDED", pod(0, milvus(name="stored")))] * 2),
}  # fmt: skip


def replay(history: History, happened: list[Obj | tuple[str, Obj]]) -> None:
    for one in [milvus(), *(event(number, kind="ADDED") for number in range(3)), *happened]:
        if isinstance(one, tuple):
            history.pod(*one)
        else:
            history.milvus("MODIFIED", one)


@pytest.mark.parametrize("name", TOGETHER)
def test_the_history_reports_harm(name: str) -> None:
    words, happened = TOGETHER[name]
    with pytest.raises(AssertionError, match=re.escape(words)):
        replay(History(set()), happened)


def test_the_history_accepts_what_is_right() -> None:
    by_users = History({"pod-0"})
    replay(by_users, [NEW, event(2, kind="DELETED"), event(0, kind="DELETED")])
    one_by_one = History(set())
    replay(
        one_by_one,
        [
            NEW,
            event(2, kind="DELETED"),
            event(2, kind="ADDED"),
            said(NEW, 1),
            event(1, kind="DELETED"),
        ],
    )
    assert one_by_one.seen["taken"] == 2
    scale_down = History(set())
    replay(
        scale_down,
        [
            NONE,
            event(2, kind="DELETED"),
            event(1, kind="DELETED"),
            milvus(),
            event(0, kind="DELETED"),
        ],
    )
    assert scale_down.seen["taken"] == 1
