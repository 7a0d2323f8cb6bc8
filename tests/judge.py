"""The judge of the fault tests. It reads raw JSON, uses nothing of the operator's code, and knows no time windows.

It judges twice, and each of the two is enough to convict.

**Each write by what its own copy had read** (`Judge` and `Copy`). Every copy of the operator talks through a wire of
its own, which tells the judge each request when it arrives and each answer when it is handed over whole. What a copy
knows in one pass is a `Pass`: the pods and then the Milvus resources that it listed, and its own answers since. All
parts of a judgement are made upon one Pass, so upon one version of the Milvus. Which one:

- What a write carries says what it rests on: the Pass that holds the version of the pod that a patch, or a delete of a
  pod that is not Ready, names; the Pass that holds the version of the Milvus that a status names.
- A write that continues another rests on the Pass of that one: a pod that follows its claim, the delete of a Ready
  pod that follows its announcement. So work that outlives its pass is judged by the lists that it began with.
- Any other write rests on the last Pass, whose lists were complete before it arrived: when a pass is cut short, an
  operator begins nothing more, and waits for a moment before it lists anew.

By that Pass, whose Milvus must not be ending, a write is right when it is one of these:

- a pod: its ordinal is wanted, it shows the template, labels and owner of the Milvus, no pod of its name is known,
  and its claim, if it has one, was answered for;
- a delete: it names the UID, and that very pod is owned by the Milvus and is surplus (its ordinal is not wanted), or
  finished (Failed or Succeeded), or shows another template than the Milvus asks for. If it is not Ready, the delete
  names the version, because the pod may be Ready by now. If it is Ready, it was announced before, in the status and
  upon the present version of the Milvus, and of no two announcements does the first count. If it is Ready, wanted and
  not finished, all other wanted ordinals are there and Ready, except those whose names a stranger was seen to hold;
- a patch of a pod: nothing but an owner for an orphan that carries our labels, after one more look at the Milvus, or
  the labels that a wanted pod of ours has lost;
- a claim: for a wanted ordinal of a Milvus with storage, whose pod is not there or waits for it;
- a status: it counts and names the pods as they are known;
- an event.

Nothing at all is written about the Milvus resources of QUIET, which nobody touches.

**All copies together, in the order of the API server's revisions** (`History`), whoever has which excuse: an operator
never takes down a second Ready pod of a Milvus. A pod is *taken* by a delete of an operator, when it was Ready and, at
the revision of that delete, wanted; it stays so until its ordinal is Ready again or is not wanted. While one is taken,
no other is. So a lasting scale-down may delete any number of pods, but after a scale-down that was taken back only the
one delete that was on its way may still hit. And no wanted Ready pod is so much as announced while another wanted
ordinal, whose Ready pod an operator has deleted for whatever reason, is not Ready again.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

Obj = dict[str, Any]
QUIET = re.compile(r"(data-)?(still|stored)([-.].*)?")  # the names of the Milvus that nobody touches, and of theirs
STRANGER = "stranger:1"  # the image of pods of other people
FINGERPRINT = "zilliz.com/template-hash"
HEARD = 10  # passes that are kept of each copy, for what is still under way


# --------------------------------------------------------------------------------------
# Readers
# --------------------------------------------------------------------------------------


def reader(key: str) -> Callable[[Obj], str]:
    return lambda obj: str(obj["metadata"][key])


name_of, uid_of, version_of = map(reader, ("name", "uid", "resourceVersion"))


def labels_of(obj: Obj) -> Obj:
    return obj["metadata"].get("labels") or {}


def owner_of(pod: Obj) -> Obj:
    """Its controller reference, or an empty one."""
    return next((owner for owner in pod["metadata"].get("ownerReferences") or [] if owner.get("controller")), {})


def is_ending(obj: Obj) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def is_finished(pod: Obj) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded")


def condition_of(pod: Obj, kind: str) -> Obj:
    return next((c for c in (pod.get("status") or {}).get("conditions") or [] if c["type"] == kind), {})


def is_ready(pod: Obj) -> bool:
    return condition_of(pod, "Ready").get("status") == "True" and not is_ending(pod) and not is_finished(pod)


def ordinal(name: str) -> int:
    return int(name.rpartition("-")[2])


def wanted(milvus: Obj) -> list[str]:
    """The names of the pods that a Milvus wants."""
    return [f"{name_of(milvus)}-{number}" for number in range(milvus["spec"]["replicas"])]


def asked_for(milvus: Obj) -> Obj:
    """The template, in the few words of which the users here make one."""
    spec = milvus["spec"]
    settings, pod = yaml.safe_load(spec.get("milvusSpec") or "{}"), spec.get("pod") or {}
    return {"image": spec["image"], "level": settings.get("log", {}).get("level"),
            "mark": pod.get("metadata", {}).get("annotations", {}).get("mark")}  # fmt: skip


def shown_by(pod: Obj) -> Obj:
    """The same of the template from which a pod was made."""
    container = next(one for one in pod["spec"]["containers"] if one["name"] == "milvus")
    level = next((one["value"] for one in container["env"] if one["name"] == "log.level"), None)
    return {"image": container["image"], "level": level, "mark": pod["metadata"]["annotations"].get("mark")}


def selector_for(name: str) -> Obj:
    """The labels of a pod of ours, by its name, that all pods of its Milvus carry."""
    return {"app.kubernetes.io/name": "milvus", "app.kubernetes.io/instance": name.rpartition("-")[0],
            "app.kubernetes.io/managed-by": "milvus-operator"}  # fmt: skip


def labels_for(name: str) -> Obj:
    return selector_for(name) | {"apps.kubernetes.io/pod-index": str(ordinal(name))}


def reference_to(milvus: Obj) -> Obj:
    return {"apiVersion": "zilliz.com/v1", "kind": "Milvus", "name": name_of(milvus), "uid": uid_of(milvus),
            "controller": True, "blockOwnerDeletion": True}  # fmt: skip


# --------------------------------------------------------------------------------------
# Each write by what its own copy had read
# --------------------------------------------------------------------------------------


class Judge:
    """What all copies have in common: the harm that was found, and what was judged how often."""

    def __init__(self) -> None:
        self.harm: list[str] = []
        self.seen: Counter[str] = Counter()
        self.templates: dict[str, Obj] = {}  # by fingerprint
        self.lock = threading.Lock()

    @contextlib.contextmanager
    def judging(self, asked: Asked) -> Iterator[None]:
        with self.lock:
            try:
                yield
            except AssertionError as error:
                self.harm.append(f"{asked}: {error}")
            except Exception as error:  # a judge that stumbles would accuse nobody
                self.harm.append(f"{asked}: the judge failed: {error!r}")


class Asked:
    """A request: its verb and resource, the name that it is about, and the Pass that it rests on."""

    def __init__(self, verb: str, target: str, body: bytes) -> None:
        url = urlsplit(target)
        self.body: Obj = json.loads(body or b"{}")
        self.query = parse_qs(url.query)
        _, _, path = url.path.partition("/namespaces/")
        _, resource, self.given, part = [*path.split("/"), "", "", ""][:4]
        self.kind = f"{verb} {resource}" + (f"/{part}" if part else "")
        self.name = self.given or str(self.body.get("metadata", {}).get("name") or "")
        self.writes = verb != "GET" and "dryRun" not in self.query
        self.rests_on = Pass([], [])
        self.over = False  # whether it has been dealt with, answered or not

    def __repr__(self) -> str:
        return f"{self.kind} {self.name}"


class Pass:
    """What a copy knows in one pass: what it listed, and its own answers since."""

    def __init__(self, pods: list[Obj], milvuses: list[Obj]) -> None:
        self.pods: dict[str, Obj] = {}  # by name
        self.ready: set[str] = set()  # the UIDs of those that were Ready in one of the versions that it read
        self.milvuses = {name_of(milvus): milvus for milvus in milvuses}
        self.versions = {(name_of(milvus), version_of(milvus)) for milvus in milvuses}
        self.claiming: dict[
            str, Asked
        ] = {}  # by the name of a pod that is to follow, what was asked for its claim last
        self.claimed: set[str] = set()  # the pods whose claims are there
        for pod in pods:
            self.learn(pod)

    def learn(self, pod: Obj) -> None:
        self.pods[name_of(pod)] = pod
        if is_ready(pod):
            self.ready.add(uid_of(pod))

    def knows(self, name: str, uid: str, version: str | None) -> bool:
        """Whether it has this pod, in this version, if one is given."""
        pod = self.pods.get(name)
        return pod is not None and uid_of(pod) == uid and version in (None, version_of(pod))

    def milvus_for(self, name: str) -> Obj:
        """The Milvus that a pod has its name from."""
        milvus = self.milvuses.get(name.rpartition("-")[0])
        assert milvus, "its Milvus is not listed"
        assert not is_ending(milvus), "its Milvus is ending"
        return milvus

    def milvus_of(self, pod: Obj) -> Obj:
        """The Milvus that owns a pod."""
        milvus, owner = self.milvus_for(name_of(pod)), owner_of(pod)
        assert owner.get("uid") == uid_of(milvus), f"owned by {owner}: {short(milvus)}, {short(pod)}"
        return milvus

    def owned_by(self, milvus: Obj) -> list[Obj]:
        """The pods of a Milvus that are not ending, in order."""
        mine = [pod for pod in self.pods.values() if owner_of(pod).get("uid") == uid_of(milvus) and not is_ending(pod)]
        return sorted(mine, key=lambda pod: ordinal(name_of(pod)))


class Copy:
    """One copy of the operator: what it has read, and whether each write of it is right by that."""

    def __init__(self, judge: Judge) -> None:
        self.judge, self.passes = judge, list[Pass]()
        self.pages: dict[str, list[Obj]] = {}  # of the lists that are being read
        self.looks: dict[str, list[Obj]] = defaultdict(list)  # at a Milvus, before an adoption
        self.held: set[str] = set()  # the names that strangers were seen to hold
        self.creating: dict[str, Pass] = {}  # by the name of a pod, the Pass in which it or its claim was made last
        self.under_way: list[tuple[Pass, str]] = []  # with which claims, when the last lists began
        self.announced: dict[str, tuple[str, Pass]] = {}  # the UID of a Ready pod, by that of its Milvus

    def asks(self, verb: str, target: str, body: bytes = b"") -> Asked:
        """A request has arrived."""
        asked = Asked(verb, target, body)
        with self.judge.judging(asked):
            if asked.kind == "GET pods" and asked.given:
                asked.rests_on = self.creating[asked.name]
            elif asked.kind == "GET pods" and "continue" not in asked.query:  # the lists begin
                claims = [(one, name, last) for one in self.passes for name, last in one.claiming.items()]
                self.under_way = [(one, name) for one, name, last in claims if not last.over]
            elif asked.kind == "GET persistentvolumeclaims":
                name = asked.name.removeprefix("data-")
                asked.rests_on = self.creating[name] = self.claiming(name)
                asked.rests_on.claiming[name] = asked
            elif asked.writes:
                about = asked.body.get("regarding", {}).get("name") or asked.name
                assert not QUIET.fullmatch(about), "nobody has touched it"
                assert asked.kind in JUDGED, "no operator writes this"
                JUDGED[asked.kind](self, asked)
        return asked

    def gets(self, asked: Asked, code: int, body: bytes) -> None:
        """An answer is handed over whole."""
        try:
            answer = json.loads(body)
        except ValueError:
            return
        with self.judge.judging(asked):
            if code == 404 and asked.kind == "GET pods":
                asked.rests_on.pods.pop(asked.name, None)
            if code < 300 and "dryRun" not in asked.query:
                (self.listed if asked.kind.startswith("GET") and not asked.given else self.learns)(asked, answer)

    def learns(self, asked: Asked, answer: Obj) -> None:
        """From an answer about one object."""
        now, name = asked.rests_on, asked.name
        if asked.kind == "GET milvuses":
            self.looks[name].append(answer)
        elif asked.kind.endswith("persistentvolumeclaims") and not is_ending(answer):
            now.claimed.add(name.removeprefix("data-"))
        elif asked.kind == "DELETE pods" and name in now.pods:
            left, pod = answer["metadata"], now.pods.pop(name)
            if left["deletionGracePeriodSeconds"] or pod["metadata"].get("finalizers"):
                now.pods[name] = pod | {"metadata": pod["metadata"] | {"deletionTimestamp": "now"}}
        elif asked.kind in ("POST pods", "PATCH pods", "GET pods"):
            now.learn(answer)
            if not owner_of(answer) and not selector_for(name).items() <= labels_of(answer).items():
                self.held.add(name)
        elif said := announcement(asked.body):
            now.versions.add((name, version_of(answer)))
            self.announced[uid_of(answer)] = said, now

    def listed(self, asked: Asked, page: Obj) -> None:
        """A page of a list; with the last one of the Milvus resources a pass begins."""
        if not str(page.get("kind")).endswith("List"):
            return
        kind = asked.kind.removeprefix("GET ")
        self.pages[kind] = (self.pages[kind] if "continue" in asked.query else []) + (page["items"] or [])
        if kind == "milvuses" and not page["metadata"].get("continue"):
            for one in self.passes:
                one.claiming = {name: asked for name, asked in one.claiming.items() if (one, name) in self.under_way}
            self.passes = [*self.passes[1 - HEARD :], Pass(self.pages["pods"], self.pages["milvuses"])]
            self.judge.seen["passes"] += 1

    def last(self, fits: Callable[[Pass], Any] = lambda one: True) -> Pass:
        """The last Pass that fits."""
        fit = next((one for one in reversed(self.passes) if fits(one)), None)
        assert fit, "it rests on nothing that was read"
        return fit

    def claiming(self, name: str) -> Pass:
        """The Pass in which the claim of this pod was asked for, if its pod has not followed yet; else the last one."""
        return next((one for one in reversed(self.passes) if name in one.claiming), self.last())

    def creates(self, asked: Asked) -> None:
        pod, name = asked.body, asked.name
        stored = any("persistentVolumeClaim" in volume for volume in pod["spec"]["volumes"])
        now = asked.rests_on = self.creating[name] = self.claiming(name) if stored else self.last()
        now.claiming.pop(name, None)
        milvus = now.milvus_of(pod)
        assert name in wanted(milvus), f"not wanted: {short(milvus)}"
        assert name not in now.pods, f"there is one: {short(now.pods[name])}"
        assert shown_by(pod) == asked_for(milvus), f"another template: {shown_by(pod)}, {short(milvus)}"
        assert pod["metadata"]["ownerReferences"] == [reference_to(milvus)]
        assert labels_for(name).items() <= labels_of(pod).items()
        shown = self.judge.templates.setdefault(pod["metadata"]["annotations"][FINGERPRINT], shown_by(pod))
        assert shown == shown_by(pod), f"the fingerprint is that of {shown}"
        assert list(self.judge.templates.values()).count(shown) == 1, "one template has two fingerprints"
        if milvus["spec"].get("storage"):
            assert {"name": "data", "persistentVolumeClaim": {"claimName": f"data-{name}"}} in pod["spec"]["volumes"]
            assert name in now.claimed, "its claim is not there"
        self.judge.seen["pods created"] += 1

    def claims(self, asked: Asked) -> None:
        now, claim = self.last(), asked.body
        name = asked.name.removeprefix("data-")
        asked.rests_on = self.creating[name] = now
        milvus = now.milvus_for(name)
        assert name in wanted(milvus), f"not wanted: {short(milvus)}"
        storage = milvus["spec"].get("storage") or {}
        assert claim["spec"]["resources"]["requests"]["storage"] == storage.get("size"), f"its storage is {storage}"
        if name in now.pods:
            now.milvus_of(now.pods[name])
            said = condition_of(now.pods[name], "PodScheduled").get("message", "")
            assert asked.name in said, "its pod does not wait for it"
        now.claiming[name] = asked
        self.judge.seen["claims"] += 1

    def deletes(self, asked: Asked) -> None:
        conditions = asked.body.get("preconditions") or {}
        uid, version = conditions.get("uid"), conditions.get("resourceVersion")
        assert uid, "a delete without a UID"
        milvus, now = next(((m, now) for m, (pod, now) in self.announced.items() if pod == uid), ("", None))
        if now:
            asked.rests_on = now
            del self.announced[milvus]
            self.judge.seen["deletes of Ready pods"] += 1
            return
        now = asked.rests_on = self.last(lambda one: one.knows(asked.name, uid, version))
        pod = now.pods[asked.name]
        assert version, f"it may be Ready by now, and was not announced: {short(pod)}"
        assert not is_ready(pod), f"it is Ready, and was not announced: {short(pod)}"
        self.judge.seen[f"deletes of pods that are {self.reason(now, now.milvus_of(pod), pod)}, not Ready"] += 1

    def says(self, asked: Asked) -> None:
        """A status, or the announcement of the Ready pod that is to be deleted next."""
        status, version = asked.body["status"], asked.body["metadata"].get("resourceVersion")
        assert version, "a status upon no version"
        now = asked.rests_on = self.last(lambda one: (asked.name, version) in one.versions)
        milvus, said = now.milvuses[asked.name], announcement(asked.body)
        assert not is_ending(milvus), "it is ending"
        mine = now.owned_by(milvus)
        if said:
            self.announced.pop(uid_of(milvus), None)
            pod = next((pod for pod in mine if uid_of(pod) == said), None)
            assert pod, f"{said} is none of {[short(pod) for pod in mine]}"
            self.judge.seen[f"Ready pods announced as {self.reason(now, milvus, pod)}"] += 1
            return
        truth = {
            "observedGeneration": milvus["metadata"]["generation"],
            "pods": [name_of(pod) for pod in mine],
            "replicas": len(mine),
            "readyReplicas": sum(map(is_ready, mine)),
            "updatedReplicas": sum(shown_by(pod) == asked_for(milvus) for pod in mine),
        }
        told = {key: status.get(key) for key in truth}
        assert told == truth, f"{told} is said, {truth} was read"
        self.judge.seen["statuses"] += 1

    def reason(self, now: Pass, milvus: Obj, pod: Obj) -> str:
        """Why a pod of this Milvus is deleted."""
        name = name_of(pod)
        if name not in wanted(milvus):
            return "surplus"
        if is_finished(pod):
            return "finished"
        assert shown_by(pod) != asked_for(milvus), f"wanted and up to date: {short(pod)}, {short(milvus)}"
        if uid_of(pod) in now.ready:
            there = {name_of(one) for one in now.owned_by(milvus) if uid_of(one) in now.ready and not is_finished(one)}
            others = {*wanted(milvus)} - there
            assert others <= self.held, f"{others - self.held} are not Ready: {short(pod)}"
        return "outdated"

    def patches(self, asked: Asked) -> None:
        metadata, name = dict(asked.body["metadata"]), asked.name
        uid, version = metadata.pop("uid", None), metadata.pop("resourceVersion", None)
        assert uid, "a patch without a UID"
        assert version, "a patch upon no version"
        now = asked.rests_on = self.last(lambda one: one.knows(name, uid, version))
        pod, milvus = now.pods[name], now.milvus_for(name)
        assert not is_ending(pod), "it is ending"
        if owner_of(pod):
            now.milvus_of(pod)
            assert name in wanted(milvus), f"not wanted: {short(milvus)}"
            assert not labels_for(name).items() <= labels_of(pod).items(), "it has its labels"
            right: Obj = {"labels": labels_for(name)}
        else:
            assert selector_for(name).items() <= labels_of(pod).items(), f"a stranger's: {short(pod)}"
            assert self.looks[name_of(milvus)], "without one more look at the Milvus"
            looked = self.looks[name_of(milvus)].pop()
            assert uid_of(looked) == uid_of(milvus), "the Milvus is another one by now"
            assert not is_ending(looked), "the Milvus is ending"
            right = {"ownerReferences": [reference_to(milvus)]}
        assert {**asked.body, "metadata": metadata} == {"metadata": right}, f"not to be changed so: {asked.body}"
        self.judge.seen[f"patches of {next(iter(right))}"] += 1


JUDGED: dict[str, Callable[[Copy, Asked], None]] = {
    "POST pods": Copy.creates,
    "DELETE pods": Copy.deletes,
    "PATCH pods": Copy.patches,
    "POST persistentvolumeclaims": Copy.claims,
    "PATCH milvuses/status": Copy.says,
    "POST events": lambda copy, asked: None,
}


def announcement(body: Obj) -> str:
    """The UID of the pod that a patch of a status announces."""
    status = body.get("status") or {}
    return str(status["disruptedPod"]).partition(" ")[0] if status.keys() == {"disruptedPod"} else ""


def short(obj: Obj) -> str:
    if "containers" not in obj["spec"]:
        return f"Milvus {name_of(obj)} at {version_of(obj)}, {len(wanted(obj))} × {asked_for(obj)}"
    return f"pod {name_of(obj)} {obj['metadata'].get('uid')}, {shown_by(obj)}, {'' if is_ready(obj) else 'not '}Ready"


# --------------------------------------------------------------------------------------
# All copies together
# --------------------------------------------------------------------------------------


class History:
    """Replays what the API server says has happened; raises AssertionError at the first harm. `by_users` are the UIDs
    of the pods that users deleted: they may do as they like. The garbage collector deletes no wanted pod."""

    def __init__(self, by_users: set[str]) -> None:
        self.by_users = by_users
        self.wanted: dict[str, int] = defaultdict(int)  # how many pods, by the UID of the Milvus
        self.announced: dict[str, str] = {}  # what its status says
        self.pods: dict[str, Obj] = {}  # by UID
        self.owners: dict[str, str] = {}  # of the pods, the last ones: users may orphan them
        # By the UID of the Milvus, the ordinals that are not Ready again, though the Ready pod went while it was
        # wanted, and has been ever since; or whenever that was.
        self.taken: dict[str, set[int]] = defaultdict(set)
        self.missing: dict[str, set[int]] = defaultdict(set)
        self.seen: Counter[str] = Counter()

    def milvus(self, kind: str, milvus: Obj) -> None:
        uid, ends = uid_of(milvus), kind == "DELETED" or is_ending(milvus)
        assert uid not in self.wanted or not QUIET.fullmatch(name_of(milvus)), f"nobody touched it: {milvus}"
        self.wanted[uid] = 0 if ends else len(wanted(milvus))
        self.taken[uid] = {number for number in self.taken[uid] if number < self.wanted[uid]}
        said = str((milvus.get("status") or {}).get("disruptedPod", ""))
        if said and said != self.announced.get(uid):
            pod = self.pods.get(said.partition(" ")[0])
            if pod and is_ready(pod) and ordinal(name_of(pod)) < self.wanted[uid]:
                down = {number for number in self.missing[uid] if number < self.wanted[uid]}
                assert not down, f"announced while {down} were not Ready again: {short(pod)}"
                self.seen["wanted Ready pods announced"] += 1
        self.announced[uid] = said

    def pod(self, kind: str, pod: Obj) -> None:
        before = self.pods.get(uid_of(pod))
        if pod["spec"]["containers"][0]["image"] == STRANGER:
            was = (before or pod)["metadata"]
            for key in ("labels", "annotations", "ownerReferences", "deletionTimestamp"):
                assert pod["metadata"].get(key) == was.get(key), f"a stranger's {key} changed: {pod}"
            assert kind != "DELETED", f"a stranger was deleted: {pod}"
            self.pods[uid_of(pod)] = pod
            return
        assert not before or not QUIET.fullmatch(name_of(pod)), f"nobody touched it: {pod}"
        owner = self.owners[uid_of(pod)] = owner_of(pod).get("uid") or self.owners.get(uid_of(pod), "")
        number, ends = ordinal(name_of(pod)), kind == "DELETED" or is_ending(pod)
        self.pods[uid_of(pod)] = pod
        if not before:
            self.seen["created"] += 1
        elif ends and is_ready(before) and uid_of(pod) not in self.by_users:
            self.missing[owner].add(number)
            if number < self.wanted[owner]:
                down = self.taken[owner] - {number}
                assert not down, f"it went while {down} were not Ready again: {short(before)}"
                self.taken[owner].add(number)
                self.seen["taken"] += 1
        if is_ready(pod) and not ends:
            self.taken[owner].discard(number)
            self.missing[owner].discard(number)
        if kind == "DELETED":
            del self.pods[uid_of(pod)]
