"""The judge of the fault tests. It reads raw JSON, and uses no code of the operator, and no clock.

A `Copy` hears on its wire what one copy of the operator asks for, and the revisions of the lists
that it has read. A `History` is all that the API server has stored, by revision. Together they say
what a copy knew when it wrote. It does harm if it

- makes a request that no operator should make, such as a delete of a pod without its UID, any
  change to a claim, or a patch of a pod that changes more than the owner of an orphan;
- creates a pod that its Milvus did not ask for, as the Milvus was in one of its last lists;
- deletes a pod that was not owned by its Milvus, or was wanted, up to date and not finished;
- deletes a Ready pod of an earlier template while another wanted pod was not Ready, or after it had
  deleted another Ready pod since it had read those lists. This is promised for a single copy only.

Besides, nothing may happen to the pods of strangers, to claims, and to the Milvus in QUIET, which
no user touches, and no pod may go that neither a copy, nor a user, nor the end of its owner took.
"""

from __future__ import annotations

import bisect
import functools
import json
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import yaml

Obj = dict[str, Any]
Change = tuple[int, str, Obj]  # revision; ADDED, MODIFIED or DELETED; the object
QUIET = re.compile(r"(data-)?(still|stored)([-.].*)?")
STRANGER = "stranger:1"  # the image of other people's pods
FINGERPRINT = "zilliz.com/template-hash"
HEARD = 10  # how many lists of each copy are kept, because writes may outlive their pass


# --- Readers ---
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


def is_finished(pod: Obj) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded")


def is_ready(pod: Obj) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    ready = any((c["type"], c["status"]) == ("Ready", "True") for c in conditions)
    return ready and not is_ending(pod) and not is_finished(pod)


def parts_of(name: str) -> tuple[str, int]:
    """The name of the Milvus, and the ordinal, in the name of a pod."""
    milvus, _, number = name.rpartition("-")
    return milvus, int(number)


def wanted(milvus: Obj) -> list[str]:
    """The names of the pods that a Milvus wants."""
    return [f"{name_of(milvus)}-{number}" for number in range(milvus["spec"]["replicas"])]


def asked_for(milvus: Obj) -> Obj:
    """The template that a Milvus calls for: only the fields that the users in the tests change."""
    spec = milvus["spec"]
    settings, pod = yaml.safe_load(spec.get("milvusSpec") or "{}"), spec.get("pod") or {}
    mark = pod.get("metadata", {}).get("annotations", {}).get("mark")
    level = settings.get("log", {}).get("level")
    return {"image": spec["image"], "level": level, "mark": mark}


def shown_by(pod: Obj) -> Obj:
    """The same fields of the template that a pod was made from."""
    container = next(one for one in pod["spec"]["containers"] if one["name"] == "milvus")
    level = next((one["value"] for one in container["env"] if one["name"] == "log.level"), None)
    mark = pod["metadata"]["annotations"].get("mark")
    return {"image": container["image"], "level": level, "mark": mark}


def labels_for(name: str) -> Obj:
    """The labels of our pod of this name."""
    milvus, number = parts_of(name)
    ours = {"name": "milvus", "instance": milvus, "managed-by": "milvus-polling-operator"}
    labels = {f"app.kubernetes.io/{key}": value for key, value in ours.items()}
    return labels | {"apps.kubernetes.io/pod-index": str(number)}


# --- What the copies ask for ---
class Look(NamedTuple):
    """The revisions of the lists that a pass has read."""

    pods: int
    milvuses: int


@dataclass
class Asked:
    """A request that writes."""

    kind: str
    name: str
    body: Obj
    looks: list[Look]
    is_done: bool = False  # whether the API server has said so

    @property
    def conditions(self) -> Obj:
        return self.body.get("preconditions") or {}


class Judge:
    """What all copies share."""

    def __init__(self) -> None:
        self.harm: list[str] = []
        self.seen: Counter[str] = Counter()
        self.templates: dict[str, Obj] = {}  # by fingerprint
        self.copies: list[Copy] = []

    def sentence(self, history: History, by_users: Collection[str] = ()) -> list[str]:
        """All harm. `by_users` are the UIDs of pods that users have deleted."""
        by_copies = set[str]()
        for copy in self.copies:
            by_copies |= {asked.conditions.get("uid", "") for asked in copy.deletes}
            self.weigh(copy.creates, history.check_create)
            self.weigh(copy.deletes, functools.partial(history.check_delete, copy))
        return self.harm + history.harm({*by_users} | by_copies)

    def weigh(self, asked: list[Asked], check: Callable[[Asked], str]) -> None:
        for one in asked:
            try:
                self.seen[check(one)] += 1
            except AssertionError as error:
                self.harm.append(f"{one.name}: {error}")


class Copy:
    """One copy of the operator, as its wire hears it."""

    def __init__(self, judge: Judge, alone: bool = True) -> None:
        self.judge, self.alone = judge, alone
        self.pods = 0  # the revision of the last list of pods
        self.looks: deque[Look] = deque(maxlen=HEARD)
        self.creates, self.deletes = list[Asked](), list[Asked]()
        judge.copies.append(self)

    def asks(self, verb: str, target: str, content: bytes) -> Asked:
        """A request has arrived."""
        url = urlsplit(target)
        body = json.loads(content or b"{}")
        _, _, path = url.path.partition("/namespaces/")
        _, resource, given, part = [*path.split("/"), "", "", ""][:4]
        kind = f"{verb} {resource}" + (f"/{part}" if part else "")
        name = given or str(body.get("metadata", {}).get("name") or "")
        asked = Asked(kind, name, body, list(self.looks))
        if verb == "GET" or "dryRun" in parse_qs(url.query):
            return asked
        if fault := self.fault_of(asked):
            self.judge.harm.append(f"{kind} {name}: {fault}")
        self.judge.seen[kind] += 1
        if kind == "POST pods":
            self.creates.append(asked)
        elif kind == "DELETE pods":
            self.deletes.append(asked)
        return asked

    def gets(self, content: bytes) -> None:
        """An answer is delivered in full."""
        try:
            page = json.loads(content)
            kind, metadata = page["kind"], page["metadata"]
        except (ValueError, KeyError):
            return
        if kind not in ("PodList", "MilvusList") or metadata.get("continue"):
            return
        revision = int(metadata["resourceVersion"])
        if kind == "PodList":
            self.pods = revision
        else:
            self.looks.append(Look(self.pods, revision))

    def fault_of(self, asked: Asked) -> str:
        """What is wrong with a request, whatever there is in the cluster."""
        name, metadata = asked.name, asked.body.get("metadata") or {}
        match asked.kind:
            case "POST pods":
                return self.fault_of_pod(asked)
            case "DELETE pods":
                return "" if asked.conditions.get("uid") else "without a UID"
            case "PATCH pods":
                keys = {"uid", "resourceVersion", "ownerReferences"}
                is_right = asked.body.keys() == {"metadata"} and metadata.keys() == keys
                return "" if is_right else f"no patch may change this: {asked.body}"
            case "POST persistentvolumeclaims":
                milvus = parts_of(name.removeprefix("data-"))[0]
                is_right = metadata.get("labels") == {"zilliz.com/milvus": milvus}
                is_right = is_right and "ownerReferences" not in metadata
                return "" if is_right else f"not its labels, or an owner: {metadata}"
            case "PATCH milvuses/status":
                return "" if metadata.get("resourceVersion") else "without a version"
            case "POST events":
                return ""
        return "no operator makes this request"

    def fault_of_pod(self, asked: Asked) -> str:
        pod, name = asked.body, asked.name
        if not labels_for(name).items() <= pod["metadata"]["labels"].items():
            return f"not its labels: {pod['metadata']['labels']}"
        shown, templates = shown_by(pod), self.judge.templates
        if templates.setdefault(pod["metadata"]["annotations"][FINGERPRINT], shown) != shown:
            return "two templates have one fingerprint"
        if list(templates.values()).count(shown) != 1:
            return "one template has two fingerprints"
        return ""


# --- What has happened ---
class History:
    """All changes of pods, Milvus resources and claims, in the order of their revisions."""

    def __init__(self, changes: Iterable[Change]) -> None:
        self.changes = sorted(changes, key=lambda change: change[0])
        self.versions: dict[tuple[str, str], list[tuple[int, Obj | None]]] = defaultdict(list)
        self.names: dict[str, str] = {}  # of pods, by UID
        self.ended: dict[str, tuple[int, Obj]] = {}  # by UID, when a pod ended, and as it was
        last = dict[str, Obj]()
        for revision, what, obj in self.changes:
            uid, is_pod = uid_of(obj), obj["kind"] == "Pod"
            left = None if what == "DELETED" else obj
            self.versions[obj["kind"], name_of(obj)].append((revision, left))
            if is_pod and uid not in self.ended and (what == "DELETED" or is_ending(obj)):
                self.ended[uid] = revision, last.get(uid, obj)
            if is_pod:
                self.names[uid] = name_of(obj)
            last[uid] = obj

    def at(self, revision: int, kind: str, name: str) -> Obj | None:
        """An object as it was at this revision."""
        versions = self.versions[kind, name]
        place = bisect.bisect_right(versions, revision, key=lambda version: version[0])
        return versions[place - 1][1] if place else None

    def milvus_of(self, asked: Asked, look: Look) -> Obj:
        milvus = self.at(look.milvuses, "Milvus", parts_of(asked.name)[0])
        assert milvus, "it had no Milvus"
        assert not is_ending(milvus), "its Milvus was ending"
        return milvus

    def one_of(self, asked: Asked, check: Callable[[Look], str]) -> str:
        """What justifies a write in one of the last lists of its copy."""
        errors = dict[str, None]()
        for look in reversed(asked.looks):
            try:
                return check(look)
            except AssertionError as error:
                errors[str(error)] = None
        raise AssertionError("; ".join(errors) or "nothing was listed")

    def check_create(self, asked: Asked) -> str:
        def check(look: Look) -> str:
            milvus = self.milvus_of(asked, look)
            assert asked.name in wanted(milvus), "not wanted"
            assert owner_of(asked.body)["uid"] == uid_of(milvus), "for another owner"
            assert shown_by(asked.body) == asked_for(milvus), "from another template"
            return "pods created"

        return self.one_of(asked, check)

    def check_delete(self, copy: Copy, asked: Asked) -> str:
        return self.one_of(asked, functools.partial(self.reason_to_delete, copy, asked))

    def reason_to_delete(self, copy: Copy, asked: Asked, look: Look) -> str:
        pod, milvus = self.at(look.pods, "Pod", asked.name), self.milvus_of(asked, look)
        assert pod, "it was not there"
        assert uid_of(pod) == asked.conditions["uid"], "it was another pod"
        assert owner_of(pod).get("uid") == uid_of(milvus), "it had another owner"
        versioned = "resourceVersion" in asked.conditions
        assert is_ready(pod) or versioned, "it was not Ready, but may be by now"
        if asked.name not in wanted(milvus):
            return "surplus pods deleted"
        if is_finished(pod):
            return "finished pods deleted"
        assert shown_by(pod) != asked_for(milvus), "it was wanted and up to date"
        if not is_ready(pod):
            return "outdated pods deleted, not Ready"
        if copy.alone:
            down = [name for name in wanted(milvus) if self.is_down(name, milvus, look)]
            assert not down, f"{down} were not Ready"
            gone = self.taken_since(look, asked, copy)
            assert not gone, f"{gone} had just been deleted"
        return "outdated pods deleted, Ready"

    def is_down(self, name: str, milvus: Obj, look: Look) -> bool:
        """Whether a pod of a Milvus was not Ready; a stranger may have its name."""
        pod = self.at(look.pods, "Pod", name)
        if pod and owner_of(pod).get("uid") == uid_of(milvus):
            return not is_ready(pod)
        return not pod or pod["spec"]["containers"][0]["image"] != STRANGER

    def taken_since(self, look: Look, asked: Asked, copy: Copy) -> list[str]:
        """The other Ready pods of its Milvus that the copy had deleted since it had read this."""
        never = (0, asked.body)
        if not asked.is_done:
            return []
        until, _ = self.ended.get(asked.conditions["uid"], never)
        taken = list[str]()
        for other in copy.deletes:
            ended, before = self.ended.get(other.conditions.get("uid", ""), never)
            if other.is_done and look.pods < ended < until and is_ready(before):
                taken.append(other.name)
        return [name for name in taken if parts_of(name)[0] == parts_of(asked.name)[0]]

    def harm(self, deleted: set[str]) -> list[str]:
        """What has happened that nobody may do; `deleted` are the UIDs that somebody deleted."""
        harm, last = list[str](), dict[str, Obj]()
        for revision, what, obj in self.changes:
            before = last.get(uid_of(obj))
            if before and (fault := self.fault_of(what, before, obj)):
                harm.append(f"{obj['kind']} {name_of(obj)}: {fault}")
            last[uid_of(obj)] = obj
            ended = self.ended.get(uid_of(obj))
            if obj["kind"] == "Pod" and ended and ended[0] == revision:
                owner = self.at(revision, "Milvus", owner_of(obj).get("name", ""))
                owned = owner and uid_of(owner) == owner_of(obj)["uid"] and not is_ending(owner)
                if owned and uid_of(obj) not in deleted:
                    harm.append(f"{name_of(obj)}: nobody had asked for its end")
        return harm

    def fault_of(self, what: str, before: Obj, obj: Obj) -> str:
        """What is wrong with a change of an object."""
        if obj["kind"] == "PersistentVolumeClaim":
            return "a claim was deleted" if what == "DELETED" or is_ending(obj) else ""
        if QUIET.fullmatch(name_of(obj)):
            return "no user touched it"
        if obj["kind"] == "Pod" and obj["spec"]["containers"][0]["image"] == STRANGER:
            for key in ("labels", "annotations", "ownerReferences", "deletionTimestamp"):
                if obj["metadata"].get(key) != before["metadata"].get(key):
                    return f"a stranger's {key} changed"
            return "a stranger was deleted" if what == "DELETED" else ""
        return ""
