"""The judge of the fault tests. It uses no rules of the operator, only readers, and no clock.

It hears on the wire what the operator asks for and, at the end, reads all that the API server has
stored, in the order of the revisions. Whatever fails, it is harm if

- the operator makes a request that REQUESTS does not allow, such as a delete without a UID;
- anything happens to pods of other owners, to claims, or to the Milvus in QUIET, which no user
  touches;
- a Ready pod of the Milvus ROLLED, of which users change only the image, ends while another of its
  pods is not Ready;
- a pod ends that neither the operator nor the end of its owner took.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

import milvus_operator as mo
from tests.lib.front import target_of

Obj = dict[str, Any]
Objs = dict[tuple[str, str], Obj]  # by kind and name
Change = tuple[int, str, Obj]  # revision; ADDED, MODIFIED or DELETED; the object
QUIET = re.compile(r"(data-)?(still|stored)([-.].*)?")
ROLLED = {f"rolled-{number}" for number in range(3)}
OTHERS_IMAGE = "web:1"  # the image of pods of other owners
NO_PATCH = "no patch may change this"
# What an operator may ask for: what the body, as sorted JSON, must contain, or else what is wrong.
REQUESTS = {
    "POST pods": ("", ""),
    "POST persistentvolumeclaims": ("", ""),
    "POST events": ("", ""),
    "DELETE pods": (r'"preconditions": {[^}]*"uid": "\w', "without a UID"),
    "PATCH milvuses/status": (r'^{"metadata": {[^}]*"resourceVersion": "\w', "without a version"),
    "PATCH pods": (
        r'^{"metadata": {"ownerReferences": \[[^]]*\], "resourceVersion": "\w+", "uid": "[^"]+"}}$',
        NO_PATCH,
    ),
    "PATCH persistentvolumeclaims": (
        r'^{"metadata": {"resourceVersion": "\d+"}, "spec": {"resources": '
        r'{"requests": {"storage": "\w+"}}}}$',
        NO_PATCH,
    ),
}
UNKNOWN = ("(?!)", "no operator makes this request")  # a pattern that matches nothing


def is_ending(obj: Obj) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def is_ready(pod: Obj) -> bool:
    status = pod["status"]
    said = {one["type"]: one["status"] for one in status.get("conditions") or []}
    return said.get("Ready") == "True" and status["phase"] == "Running" and not is_ending(pod)


def image_of(pod: Obj) -> str:
    return pod["spec"]["containers"][0]["image"]


class Judge:
    def __init__(self) -> None:
        self.faults = list[str]()
        self.seen = Counter[str]()
        self.deleted = set[str]()  # the UIDs of the pods that the operator has deleted

    def asks(self, verb: str, target: str, content: bytes) -> None:
        """A request has arrived."""
        path, _, query = target.partition("?")
        if verb == "GET" or "dryRun" in query:
            return
        body = json.loads(content or b"{}")
        kind = f"{verb} {target_of(verb, path)[1]}"
        self.seen[kind] += 1
        pattern, fault = REQUESTS.get(kind, UNKNOWN)
        if not re.search(pattern, json.dumps(body, sort_keys=True)):
            self.faults.append(f"{verb} {path}: {fault}: {body}")
        elif kind == "DELETE pods":
            self.deleted.add(body["preconditions"]["uid"])

    def harm(self, changes: Iterable[Change]) -> list[str]:
        harm = [*self.faults]
        now: Objs = {}
        for _, what, obj in sorted(changes, key=lambda change: change[0]):
            key = obj["kind"], mo.name_of(obj)
            before = now.pop(key, None)
            is_gone = what == "DELETED"
            if before:
                fault = fault_of(before, obj, is_gone)
                if obj["kind"] == "Pod" and not is_ending(before) and (is_gone or is_ending(obj)):
                    fault = fault or self.fault_of_end(before, now)
                if fault:
                    harm.append(f"{' '.join(key)}: {fault}")
            if not is_gone:
                now[key] = obj
        return harm

    def fault_of_end(self, pod: Obj, now: Objs) -> str:
        """What is wrong with the end of a pod; `now` is what else there is."""
        name, uid = mo.name_of(pod), mo.uid_of(pod)
        owner = now.get(("Milvus", mo.controller_of(pod).get("name", "")))
        if not owner or mo.uid_of(owner) != mo.controller_of(pod)["uid"] or is_ending(owner):
            return ""
        if uid not in self.deleted:
            return "nobody had asked for its end"
        if name in ROLLED and is_ready(pod):
            self.seen["Ready pods rolled"] += 1
            others = ROLLED - {name}
            ready = {one for one in others if ("Pod", one) in now and is_ready(now["Pod", one])}
            if others != ready:
                return f"it was taken while {[*others - ready]} were not Ready"
        return ""


def fault_of(before: Obj, obj: Obj, is_gone: bool) -> str:
    """What is wrong with a change of an object, whoever has made it."""
    if obj["kind"] == "PersistentVolumeClaim":
        return "a claim was deleted" if is_gone or is_ending(obj) else ""
    if QUIET.fullmatch(mo.name_of(obj)):
        return "no user touched it"
    if obj["kind"] == "Pod" and image_of(obj) == OTHERS_IMAGE:
        kept = ("labels", "annotations", "ownerReferences", "deletionTimestamp")
        before_and_after = before["metadata"], obj["metadata"]
        was, now = (mo.pick(metadata, kept) for metadata in before_and_after)
        if is_gone or now != was:
            return "a pod of another owner changed"
    return ""
