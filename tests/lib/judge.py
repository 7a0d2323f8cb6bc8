"""The judge of the fault tests. It reads raw JSON, and uses no code of the operator, and no clock.

It hears on the wire what the operator asks for and, at the end, reads all that the API server has
stored, in the order of the revisions. What the operator should have done at each moment is left to
the tests in memory. Here, whatever fails, it is harm if

- the operator makes a request that it should never make, such as a delete of a pod without its UID,
  a patch of a claim that changes more than the size that it asks for, or a patch of a pod that
  changes more than the owner of an orphan;
- anything happens to the pods of strangers, to claims, or to the Milvus in QUIET, which no user
  touches;
- a Ready pod of the Milvus ROLLED, of which users change only the image, ends while another of its
  pods is not Ready;
- a pod ends that neither the operator, nor a user, nor the end of its owner took.
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any
from urllib.parse import parse_qs, urlsplit

Obj = dict[str, Any]
Change = tuple[int, str, Obj]  # revision; ADDED, MODIFIED or DELETED; the object
QUIET = re.compile(r"(data-)?(still|stored)([-.].*)?")
ROLLED = {f"rolled-{number}" for number in range(3)}
STRANGER = "stranger:1"  # the image of other people's pods
GROWTH = re.compile(
    r'{"metadata": {"resourceVersion": "\d+"}, "spec": {"resources": {"requests": {"storage": "\w+"}}}}'
)
REQUESTS = {
    "POST pods", "DELETE pods", "PATCH pods", "POST persistentvolumeclaims",
    "PATCH persistentvolumeclaims", "PATCH milvuses/status", "POST events",
}  # fmt: skip


def name_of(obj: Obj) -> str:
    return str(obj["metadata"]["name"])


def uid_of(obj: Obj) -> str:
    return str(obj["metadata"]["uid"])


def owner_of(pod: Obj) -> Obj:
    """Its controller reference, or an empty mapping."""
    owners = pod["metadata"].get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("controller")), {})


def is_ending(obj: Obj) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def is_ready(pod: Obj) -> bool:
    status = pod.get("status") or {}
    conditions = status.get("conditions") or []
    ready = any((c["type"], c["status"]) == ("Ready", "True") for c in conditions)
    return ready and not is_ending(pod) and status["phase"] == "Running"


def fault_of_request(kind: str, body: Obj) -> str:
    """What is wrong with a request that writes, whatever there is in the cluster."""
    metadata = body.get("metadata") or {}
    if kind not in REQUESTS:
        return "no operator makes this request"
    if kind == "DELETE pods" and not body.get("preconditions", {}).get("uid"):
        return "without a UID"
    if kind == "PATCH pods":
        keys = {"uid", "resourceVersion", "ownerReferences"}
        if body.keys() != {"metadata"} or metadata.keys() != keys:
            return f"no patch may change this: {body}"
    if kind == "PATCH persistentvolumeclaims" and not GROWTH.fullmatch(json.dumps(body)):
        return f"no patch may change this: {body}"
    if kind == "PATCH milvuses/status" and not metadata.get("resourceVersion"):
        return "without a version"
    return ""


class Judge:
    def __init__(self) -> None:
        self.faults: list[str] = []
        self.seen: Counter[str] = Counter()
        self.deleted: set[str] = set()  # the UIDs of the pods that the operator has deleted

    def asks(self, verb: str, target: str, content: bytes) -> None:
        """A request has arrived."""
        url, body = urlsplit(target), json.loads(content or b"{}")
        if verb == "GET" or "dryRun" in parse_qs(url.query):
            return
        path = url.path.partition("/namespaces/")[2].split("/")
        kind = " ".join([verb, "/".join(path[1:2] + path[3:])])
        if fault := fault_of_request(kind, body):
            self.faults.append(f"{verb} {url.path}: {fault}")
        self.seen[kind] += 1
        if kind == "DELETE pods":
            self.deleted.add(str(body.get("preconditions", {}).get("uid")))

    def harm(self, changes: Iterable[Change], by_users: Collection[str] = ()) -> list[str]:
        """All harm. `by_users` are the UIDs of pods that users have deleted."""
        harm, now = [*self.faults], dict[tuple[str, str], Obj]()
        for _, what, obj in sorted(changes, key=lambda change: change[0]):
            kind, name, is_gone = obj["kind"], name_of(obj), what == "DELETED"
            before = now.pop((kind, name), None)
            if before:
                fault = fault_of(before, obj, is_gone)
                if kind == "Pod" and not is_ending(before) and (is_gone or is_ending(obj)):
                    fault = fault or self.fault_of_end(before, now, {*by_users})
                harm += [f"{kind} {name}: {fault}"] if fault else []
            if not is_gone:
                now[kind, name] = obj
        return harm

    def fault_of_end(self, pod: Obj, now: dict[tuple[str, str], Obj], by_users: set[str]) -> str:
        """What is wrong with the end of a pod; `now` is what else there is."""
        owner = now.get(("Milvus", owner_of(pod).get("name", "")))
        if not owner or uid_of(owner) != owner_of(pod)["uid"] or is_ending(owner):
            return ""
        if uid_of(pod) not in self.deleted | by_users:
            return "nobody had asked for its end"
        if name_of(pod) in ROLLED and is_ready(pod):
            self.seen["Ready pods rolled"] += 1
            others = {name: now.get(("Pod", name)) for name in ROLLED - {name_of(pod)}}
            if down := [name for name, other in others.items() if not other or not is_ready(other)]:
                return f"it was taken while {down} were not Ready"
        return ""


def fault_of(before: Obj, obj: Obj, is_gone: bool) -> str:
    """What is wrong with a change of an object, whoever has made it."""
    if obj["kind"] == "PersistentVolumeClaim":
        return "a claim was deleted" if is_gone or is_ending(obj) else ""
    if QUIET.fullmatch(name_of(obj)):
        return "no user touched it"
    if obj["kind"] == "Pod" and obj["spec"]["containers"][0]["image"] == STRANGER:
        for key in ("labels", "annotations", "ownerReferences", "deletionTimestamp"):
            if obj["metadata"].get(key) != before["metadata"].get(key):
                return f"a stranger's {key} changed"
        return "a stranger was deleted" if is_gone else ""
    return ""
