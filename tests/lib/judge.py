"""The judge of the fault tests. It uses no rules of the operator, only readers, and no clock.

It hears of each request that the wire forwards, before the API server does. Whatever fails, it is
harm if the operator

- makes a request that REQUESTS does not allow, such as a delete without a UID;
- deletes or adopts a pod of another owner;
- writes to the Milvus in QUIET, which no user touches, or to their pods and claims;
- deletes a Ready pod of the Milvus ROLLED, of which users change only the image, while another of
  its pods is not Ready.
"""

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import milvus_operator as mo
from tests.lib.front import target_of

Obj = dict[str, Any]
QUIET = re.compile(r"(data-)?(still|stored)(-.*)?")
ROLLED = {f"rolled-{number}" for number in range(3)}
OTHERS_IMAGE = "web:1"  # the image of pods of other owners
OWNED = r'"ownerReferences": \[{[^]]*"controller": true, "kind": "Milvus"[^]]*"uid": "\w'
NO_PATCH = "no patch may change this"
# What an operator may ask for: what the body, as sorted JSON, must contain, or else what is wrong.
REQUESTS = {
    "POST pods": (OWNED, "without an owner"),
    "POST persistentvolumeclaims": ("^(?!.*ownerReferences)", "it would be deleted with its owner"),
    "POST services": (OWNED, "without an owner"),
    "POST events": ("", ""),
    "DELETE pods": (r'"preconditions": {[^}]*"uid": "\w', "without a UID"),
    "PATCH milvuses/status": (r'^{"metadata": {[^}]*"resourceVersion": "\w', "without a version"),
    "PATCH pods": (
        r'^{"metadata": {"ownerReferences": \[[^]]*\], '
        r'"resourceVersion": "\w+", "uid": "[^"]+"}}$',
        NO_PATCH,
    ),
    "PATCH persistentvolumeclaims": (
        r'^{"metadata": {"resourceVersion": "\d+"}, "spec": {"resources": '
        r'{"requests": {"storage": "\w+"}}}}$',
        NO_PATCH,
    ),
}
UNKNOWN = ("(?!)", "no operator makes this request")  # a pattern that matches nothing


def is_ready(pod: Obj) -> bool:
    status = pod["status"]
    said = {one["type"]: one["status"] for one in status.get("conditions") or []}
    return said.get("Ready") == "True" and status["phase"] == "Running" and not mo.is_ending(pod)


def image_of(pod: Obj) -> str:
    return pod["spec"]["containers"][0]["image"]


class Judge:
    def __init__(self, all_pods: Callable[[], dict[str, Obj]]) -> None:
        self.all_pods = all_pods  # those that there are now, by name
        self.harm = list[str]()
        self.seen = Counter[str]()

    def hear(self, verb: str, target: str, content: bytes) -> None:
        """A request of the operator, which the API server has not seen yet."""
        path, _, query = target.partition("?")
        if verb == "GET" or "dryRun" in query:
            return
        _, resource, _, _, name = target_of(verb, path)
        body = json.loads(content or b"{}")
        kind = f"{verb} {resource}"
        self.seen[kind] += 1
        pattern, fault = REQUESTS.get(kind, UNKNOWN)
        if re.search(pattern, json.dumps(body, sort_keys=True)):
            name = name or body["metadata"].get("name", "")
            fault = "no user touched it" if QUIET.fullmatch(name) else ""
            if kind in ("DELETE pods", "PATCH pods"):
                fault = fault or self.fault_of(verb, name, body)
        if fault:
            self.harm.append(f"{verb} {path}: {fault}: {body}")

    def fault_of(self, verb: str, name: str, body: Obj) -> str:
        """What is wrong with a write to this pod."""
        pods = self.all_pods()
        pod = pods.get(name, {"metadata": {}})
        meant = body.get("preconditions") or mo.pick(body["metadata"], ("uid", "resourceVersion"))
        if pod["metadata"] | meant != pod["metadata"]:
            return ""  # the API server rejects it
        owner = mo.controller_of(pod).get("kind")
        # A user may have orphaned it since the operator has listed it.
        allowed = ["Milvus", None] if verb == "DELETE" else [None]
        if owner not in allowed or not pod["metadata"].get("labels"):
            return "a pod of another owner"
        if verb == "DELETE" and name in ROLLED and is_ready(pod):
            self.seen["Ready pods rolled"] += 1
            ready = {name for name, pod in pods.items() if is_ready(pod)}
            if not ready >= ROLLED:
                return f"while {[*ROLLED - ready]} were not Ready"
        return ""
