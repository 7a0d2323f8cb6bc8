"""The judge of the fault tests reports planted harm, and accepts everything that is right."""

import json
from typing import Any, Self

import pytest

from tests.lib.judge import ROLLED, STRANGER, Judge, Obj


def milvus(name: str, **metadata: Any) -> Obj:
    return {"kind": "Milvus", "metadata": {"name": name, "uid": f"of-{name}"} | metadata}


def pod(name: str, ready: bool = True, image: str = "milvus:1", **metadata: Any) -> Obj:
    owner = name.rpartition("-")[0]
    owners = [{"controller": True, "name": owner, "uid": f"of-{owner}"}]
    return {
        "kind": "Pod",
        "metadata": {"name": name, "uid": f"uid-of-{name}", "ownerReferences": owners} | metadata,
        "spec": {"containers": [{"image": image}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]},
    }


class Story:
    """What is stored, one revision after another, and what the operator asks for meanwhile."""

    def __init__(self, *objects: Obj) -> None:
        self.judge, self.changes = Judge(), list[tuple[int, str, Obj]]()
        self.store(*objects)

    def store(self, *objects: Obj, what: str = "MODIFIED") -> Self:
        self.changes += [(len(self.changes) + i, what, obj) for i, obj in enumerate(objects)]
        return self

    def lose(self, *objects: Obj) -> Self:
        return self.store(*objects, what="DELETED")

    def asks(self, request: str, **body: Any) -> Self:
        verb, path = request.split()
        self.judge.asks(verb, f"/api/v1/namespaces/ns/{path}", json.dumps(body).encode())
        return self

    def deletes(self, *pods: Obj) -> Self:
        for pod in pods:
            name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
            self.asks(f"DELETE pods/{name}", preconditions={"uid": uid}).lose(pod)
        return self


X, STILL, ROLL = milvus("x"), milvus("still"), milvus("rolled")
POD, ENDING, BY_USER = pod("x-0"), pod("x-0", deletionTimestamp="now"), pod("x-0", uid="by-a-user")
ONE, OTHER, THIRD = map(pod, sorted(ROLLED))
DOWN, ALSO_DOWN = pod("rolled-2", ready=False), pod("rolled-1", ready=False)
NEW = pod("rolled-2", uid="new")
GUEST, CLAIM = pod("x-2", image=STRANGER), X | {"kind": "PersistentVolumeClaim"}
OWNER = {"uid": "x", "resourceVersion": "1", "ownerReferences": []}
HARM = [
    ("without a UID", Story().asks("DELETE pods/x-0", preconditions={})),
    ("no operator makes", Story().asks("DELETE persistentvolumeclaims/data-x-0")),
    ("no operator makes", Story().asks("PATCH pods/x-0/status", status={})),
    ("no patch may", Story().asks("PATCH pods/x-0", metadata=OWNER | {"labels": {}})),
    ("no patch may", Story().asks("PATCH pods/x-0", metadata={"ownerReferences": []})),
    ("no patch may", Story().asks("PATCH pods/x-0", metadata=OWNER, spec={})),
    ("without a version", Story().asks("PATCH milvuses/x/status", status={})),
    ("a claim was deleted", Story(CLAIM).lose(CLAIM)),
    ("a stranger was deleted", Story(GUEST).lose(GUEST)),
    ("ownerReferences changed", Story(GUEST, pod("x-2", image=STRANGER, ownerReferences=[]))),
    ("no user touched it", Story(STILL, pod("still-0")).deletes(pod("still-0"))),
    ("no user touched it", Story(STILL, STILL)),
    ("nobody had asked", Story(X, POD).lose(POD)),
    ("nobody had asked", Story(X, POD).store(ENDING)),
    ("while ['rolled-2']", Story(ROLL, ONE, OTHER, THIRD).deletes(THIRD, OTHER)),
    ("while ['rolled-2']", Story(ROLL, ONE, OTHER, DOWN).deletes(OTHER)),
]
RIGHT = {
    "a roll": Story(ROLL, ONE, OTHER, THIRD).deletes(THIRD).store(NEW).deletes(OTHER),
    "what is not Ready goes first": Story(ROLL, ONE, ALSO_DOWN, DOWN).deletes(DOWN, ALSO_DOWN),
    "an adoption": Story(X).asks("PATCH pods/x-1", metadata=OWNER),
    "a delete that takes its time": Story(X, POD)
    .asks("DELETE pods/x-0", preconditions={"uid": "uid-of-x-0"})
    .store(ENDING)
    .lose(ENDING),
    "a dry run": Story().asks("POST services?dryRun=All"),
    "the garbage collector, when the owner is gone": Story(X, POD).lose(X, POD),
    "... when it is ending": Story(milvus("x", deletionTimestamp="now"), POD).lose(POD),
    "a delete by a user": Story(X, BY_USER).lose(BY_USER),
    "a new Milvus of that name": Story(milvus("x", uid="new"), POD).lose(POD),
}


@pytest.mark.parametrize(("words", "story"), HARM)
def test_the_judge_reports_harm(words: str, story: Story) -> None:
    assert words in "".join(story.judge.harm(story.changes))


@pytest.mark.parametrize("name", RIGHT)
def test_the_judge_accepts_what_is_right(name: str) -> None:
    assert RIGHT[name].judge.harm(RIGHT[name].changes, ["by-a-user"]) == []
