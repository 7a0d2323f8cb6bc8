"""The judge of the fault tests. It reads raw JSON, uses none of the operator's code, and depends on no timing.

It judges in two ways, and either of them is enough to convict.

**Each write, by what its own copy of the operator had read** (`Judge` and `Copy`). Every copy has its own wire, which
tells the judge about each request when it arrives, and about each answer when it is delivered in full. What a copy
knows in one pass is a `Pass`: the pods and then the Milvus resources that it listed, and the answers that it has had
since. Each write is judged by a single Pass, and so by a single version of the Milvus:

- If the write names a version, by the Pass that contains this version: of the pod, for a patch and for a delete of a
  pod that is not Ready; of the Milvus, for a status.
- If the write continues another one, by the Pass of that one: a pod follows its claim, and the delete of a Ready pod
  follows its announcement. So work that outlives its pass is judged by the lists that it began with.
- Otherwise, by the last Pass whose lists were complete when the write arrived: when a pass is cut short, the operator
  begins no new write, and waits for a moment before it lists again.

The Milvus in that Pass must not be ending, and the write must be one of these:

- creating a pod: its ordinal is wanted, it has the template, labels and owner that the Milvus calls for, no pod of its
  name is known, and its claim, if it has one, is known to exist;
- deleting a pod: the delete carries the UID of a pod that the Milvus owns and that is surplus (its ordinal is not
  wanted), finished (Failed or Succeeded), or made from another template than that of the Milvus. If the pod is not
  Ready, the delete carries its version, because it may be Ready by now. If the pod is Ready, it was announced in the
  status, in a patch of the current version of the Milvus, and only the latest announcement counts. If the pod is
  Ready, wanted and not finished, all other wanted ordinals exist and are Ready, except those whose names a stranger was
  seen to hold;
- patching a pod: only to give an owner to an orphan that carries our labels, after the Milvus was read once more, or
  to restore the labels that a wanted pod of ours has lost;
- creating a claim: for a wanted ordinal of a Milvus with storage, whose pod does not exist or waits for the claim;
- writing a status: it counts and names the pods that the copy knows;
- creating an event.

Nothing at all may be written about the Milvus resources in QUIET, which no user touches.

**All copies together, in the order of the API server's revisions** (`History`), whatever each of them knew: they never
take down a second Ready pod of a Milvus. A pod is *taken* if an operator deletes it while it is Ready and, at the
revision of that delete, wanted. It stays taken until its ordinal is Ready again or no longer wanted, and until then no
other pod may be taken. So a lasting scale-down may delete any number of pods, but after a scale-down that was reverted,
only the one delete that was already in progress may still happen. And no wanted Ready pod may even be announced while
another wanted ordinal, whose Ready pod an operator has deleted for whatever reason, is not Ready again.
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
QUIET = re.compile(
    r"(data-)?(still|stored)([-.].*)?"
)  # Milvus resources that no user touches, their pods and claims
STRANGER = "stranger:1"  # the image of other people's pods
FINGERPRINT = "zilliz.com/template-hash"
HEARD = 10  # how many passes of each copy are kept, because writes may outlive their pass


# --------------------------------------------------------------------------------------
# Readers
# --------------------------------------------------------------------------------------


def reader(key: str) -> Callable[[Obj], str]:
    return lambda obj: str(obj["metadata"][key])


name_of, uid_of, version_of = map(reader, ("name", "uid", "resourceVersion"))


def labels_of(obj: Obj) -> Obj:
    return obj["metadata"].get("labels") or {}


def owner_of(pod: Obj) -> Obj:
    """Its controller reference, or an empty mapping."""
    return next(
        (
            owner
            for owner in pod["metadata"].get("ownerReferences") or []
            if owner.get("controller")
        ),
        {},
    )


def is_ending(obj: Obj) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def is_finished(pod: Obj) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded")


def condition_of(pod: Obj, kind: str) -> Obj:
    return next(
        (c for c in (pod.get("status") or {}).get("conditions") or [] if c["type"] == kind), {}
    )


def is_ready(pod: Obj) -> bool:
    return (
        condition_of(pod, "Ready").get("status") == "True"
        and not is_ending(pod)
        and not is_finished(pod)
    )


def ordinal(name: str) -> int:
    return int(name.rpartition("-")[2])


def wanted(milvus: Obj) -> list[str]:
    """The names of the pods that a Milvus wants."""
    return [f"{name_of(milvus)}-{number}" for number in range(milvus["spec"]["replicas"])]


def asked_for(milvus: Obj) -> Obj:
    """The template that a Milvus calls for: only the fields that the users in the tests change."""
    spec = milvus["spec"]
    settings, pod = yaml.safe_load(spec.get("milvusSpec") or "{}"), spec.get("pod") or {}
    return {"image": spec["image"], "level": settings.get("log", {}).get("level"),
            "mark": pod.get("metadata", {}).get("annotations", {}).get("mark")}  # fmt: skip


def shown_by(pod: Obj) -> Obj:
    """The same fields of the template that a pod was made from."""
    container = next(one for one in pod["spec"]["containers"] if one["name"] == "milvus")
    level = next((one["value"] for one in container["env"] if one["name"] == "log.level"), None)
    return {
        "image": container["image"],
        "level": level,
        "mark": pod["metadata"]["annotations"].get("mark"),
    }


def selector_for(name: str) -> Obj:
    """The labels that all pods of a Milvus share, from the name of one of them."""
    return {"app.kubernetes.io/name": "milvus", "app.kubernetes.io/instance": name.rpartition("-")[0],
            "app.kubernetes.io/managed-by": "milvus-operator"}  # fmt: skip


def labels_for(name: str) -> Obj:
    return selector_for(name) | {"apps.kubernetes.io/pod-index": str(ordinal(name))}


def reference_to(milvus: Obj) -> Obj:
    return {"apiVersion": "zilliz.com/v1", "kind": "Milvus", "name": name_of(milvus), "uid": uid_of(milvus),
            "controller": True, "blockOwnerDeletion": True}  # fmt: skip


# --------------------------------------------------------------------------------------
# Each write, by what its own copy had read
# --------------------------------------------------------------------------------------


class Judge:
    """What all copies share: the harm that was found, and how often each kind of write was judged."""

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
            except Exception as error:  # otherwise a bug in the judge would hide all harm
                self.harm.append(f"{asked}: the judge failed: {error!r}")


class Asked:
    """A request: its verb and resource, the name of its object, and the Pass that it is judged by."""

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
        self.over = False  # whether it has been handled, with or without an answer

    def __repr__(self) -> str:
        return f"{self.kind} {self.name}"


class Pass:
    """What a copy knows in one pass: what it listed, and the answers that it has had since."""

    def __init__(self, pods: list[Obj], milvuses: list[Obj]) -> None:
        self.pods: dict[str, Obj] = {}  # by name
        self.ready: set[str] = (
            set()
        )  # the UIDs of pods that were Ready in any version that was read
        self.milvuses = {name_of(milvus): milvus for milvus in milvuses}
        self.versions = {(name_of(milvus), version_of(milvus)) for milvus in milvuses}
        self.claiming: dict[
            str, Asked
        ] = {}  # by the name of a pod yet to be created, the last request about its claim
        self.claimed: set[str] = set()  # the names of pods whose claims exist
        for pod in pods:
            self.learn(pod)

    def learn(self, pod: Obj) -> None:
        self.pods[name_of(pod)] = pod
        if is_ready(pod):
            self.ready.add(uid_of(pod))

    def knows(self, name: str, uid: str, version: str | None) -> bool:
        """Whether it contains this pod, in this version if one is given."""
        pod = self.pods.get(name)
        return pod is not None and uid_of(pod) == uid and version in (None, version_of(pod))

    def milvus_for(self, name: str) -> Obj:
        """The Milvus whose name the name of the pod begins with."""
        milvus = self.milvuses.get(name.rpartition("-")[0])
        assert milvus, "its Milvus is not listed"
        assert not is_ending(milvus), "its Milvus is ending"
        return milvus

    def milvus_of(self, pod: Obj) -> Obj:
        """The Milvus that owns a pod."""
        milvus, owner = self.milvus_for(name_of(pod)), owner_of(pod)
        assert owner.get("uid") == uid_of(milvus), (
            f"owned by {owner}: {short(milvus)}, {short(pod)}"
        )
        return milvus

    def owned_by(self, milvus: Obj) -> list[Obj]:
        """The pods of a Milvus that are not ending, in order."""
        mine = [
            pod
            for pod in self.pods.values()
            if owner_of(pod).get("uid") == uid_of(milvus) and not is_ending(pod)
        ]
        return sorted(mine, key=lambda pod: ordinal(name_of(pod)))


class Copy:
    """One copy of the operator: what it has read, and whether that justifies each of its writes."""

    def __init__(self, judge: Judge) -> None:
        self.judge, self.passes = judge, list[Pass]()
        self.pages: dict[str, list[Obj]] = {}  # the pages so far of the lists that are being read
        self.looks: dict[str, list[Obj]] = defaultdict(list)  # a Milvus, read before an adoption
        self.held: set[str] = set()  # the names that strangers were seen to hold
        self.creating: dict[
            str, Pass
        ] = {}  # by the name of a pod, the Pass in which it or its claim was last made
        self.under_way: list[
            tuple[Pass, str]
        ] = []  # claims in progress when the last lists began, by pod name
        self.announced: dict[
            str, tuple[str, Pass]
        ] = {}  # by the UID of a Milvus, that of its Ready pod

    def asks(self, verb: str, target: str, body: bytes = b"") -> Asked:
        """A request has arrived."""
        asked = Asked(verb, target, body)
        with self.judge.judging(asked):
            if asked.kind == "GET pods" and asked.given:
                asked.rests_on = self.creating[asked.name]
            elif asked.kind == "GET pods" and "continue" not in asked.query:  # the lists begin
                claims = [
                    (one, name, last) for one in self.passes for name, last in one.claiming.items()
                ]
                self.under_way = [(one, name) for one, name, last in claims if not last.over]
            elif asked.kind == "GET persistentvolumeclaims":
                name = asked.name.removeprefix("data-")
                asked.rests_on = self.creating[name] = self.claiming(name)
                asked.rests_on.claiming[name] = asked
            elif asked.writes:
                about = asked.body.get("regarding", {}).get("name") or asked.name
                assert not QUIET.fullmatch(about), "no user has touched it"
                assert asked.kind in JUDGED, "the operator never makes this request"
                JUDGED[asked.kind](self, asked)
        return asked

    def gets(self, asked: Asked, code: int, body: bytes) -> None:
        """An answer is delivered in full."""
        try:
            answer = json.loads(body)
        except ValueError:
            return
        with self.judge.judging(asked):
            if code == 404 and asked.kind == "GET pods":
                asked.rests_on.pods.pop(asked.name, None)
            if code < 300 and "dryRun" not in asked.query:
                (self.listed if asked.kind.startswith("GET") and not asked.given else self.learns)(
                    asked, answer
                )

    def learns(self, asked: Asked, answer: Obj) -> None:
        """Record what an answer about one object says."""
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
        """Record a page of a list. The last page of Milvus resources begins a new Pass."""
        if not str(page.get("kind")).endswith("List"):
            return
        kind = asked.kind.removeprefix("GET ")
        self.pages[kind] = (self.pages[kind] if "continue" in asked.query else []) + (
            page["items"] or []
        )
        if kind == "milvuses" and not page["metadata"].get("continue"):
            for one in self.passes:
                one.claiming = {
                    name: asked
                    for name, asked in one.claiming.items()
                    if (one, name) in self.under_way
                }
            self.passes = [
                *self.passes[1 - HEARD :],
                Pass(self.pages["pods"], self.pages["milvuses"]),
            ]
            self.judge.seen["passes"] += 1

    def last(self, fits: Callable[[Pass], Any] = lambda one: True) -> Pass:
        """The last Pass that fits."""
        fit = next((one for one in reversed(self.passes) if fits(one)), None)
        assert fit, "nothing that was read justifies it"
        return fit

    def claiming(self, name: str) -> Pass:
        """The Pass in which the claim of this pod was requested, if the pod is yet to be created; else the last one."""
        return next((one for one in reversed(self.passes) if name in one.claiming), self.last())

    def creates(self, asked: Asked) -> None:
        pod, name = asked.body, asked.name
        stored = any("persistentVolumeClaim" in volume for volume in pod["spec"]["volumes"])
        now = self.claiming(name) if stored else self.last()
        if (
            name in now.pods
        ):  # a create that was stalled until after the next lists; the server refuses it
            now = next((one for one in reversed(self.passes) if name not in one.pods), now)
        asked.rests_on = self.creating[name] = now
        now.claiming.pop(name, None)
        milvus = now.milvus_of(pod)
        assert name in wanted(milvus), f"not wanted: {short(milvus)}"
        assert name not in now.pods, f"a pod of that name exists: {short(now.pods[name])}"
        assert shown_by(pod) == asked_for(milvus), (
            f"another template: {shown_by(pod)}, {short(milvus)}"
        )
        assert pod["metadata"]["ownerReferences"] == [reference_to(milvus)]
        assert labels_for(name).items() <= labels_of(pod).items()
        shown = self.judge.templates.setdefault(
            pod["metadata"]["annotations"][FINGERPRINT], shown_by(pod)
        )
        assert shown == shown_by(pod), f"the fingerprint belongs to {shown}"
        assert list(self.judge.templates.values()).count(shown) == 1, (
            "one template has two fingerprints"
        )
        if milvus["spec"].get("storage"):
            assert {"name": "data", "persistentVolumeClaim": {"claimName": f"data-{name}"}} in pod[
                "spec"
            ]["volumes"]
            assert name in now.claimed, "its claim does not exist"
        self.judge.seen["pods created"] += 1

    def claims(self, asked: Asked) -> None:
        now, claim = self.last(), asked.body
        name = asked.name.removeprefix("data-")
        asked.rests_on = self.creating[name] = now
        milvus = now.milvus_for(name)
        assert name in wanted(milvus), f"not wanted: {short(milvus)}"
        storage = milvus["spec"].get("storage") or {}
        assert claim["spec"]["resources"]["requests"]["storage"] == storage.get("size"), (
            f"its storage is {storage}"
        )
        if name in now.pods:
            now.milvus_of(now.pods[name])
            said = condition_of(now.pods[name], "PodScheduled").get("message", "")
            assert asked.name in said, "its pod is not waiting for it"
        now.claiming[name] = asked
        self.judge.seen["claims"] += 1

    def deletes(self, asked: Asked) -> None:
        conditions = asked.body.get("preconditions") or {}
        uid, version = conditions.get("uid"), conditions.get("resourceVersion")
        assert uid, "a delete without a UID"
        milvus, now = next(
            ((m, now) for m, (pod, now) in self.announced.items() if pod == uid), ("", None)
        )
        if now:
            asked.rests_on = now
            del self.announced[milvus]
            self.judge.seen["deletes of Ready pods"] += 1
            return
        now = asked.rests_on = self.last(lambda one: one.knows(asked.name, uid, version))
        pod = now.pods[asked.name]
        assert version, f"it may be Ready by now, and was not announced: {short(pod)}"
        assert not is_ready(pod), f"it is Ready, and was not announced: {short(pod)}"
        self.judge.seen[
            f"deletes of pods that are {self.reason(now, now.milvus_of(pod), pod)}, not Ready"
        ] += 1

    def says(self, asked: Asked) -> None:
        """A status, or the announcement of the Ready pod that is to be deleted next."""
        status, version = asked.body["status"], asked.body["metadata"].get("resourceVersion")
        assert version, "a status without a version"
        now = asked.rests_on = self.last(lambda one: (asked.name, version) in one.versions)
        milvus, said = now.milvuses[asked.name], announcement(asked.body)
        assert not is_ending(milvus), "it is ending"
        mine = now.owned_by(milvus)
        if said:
            self.announced.pop(uid_of(milvus), None)
            pod = next((pod for pod in mine if uid_of(pod) == said), None)
            assert pod, f"{said} is not one of {[short(pod) for pod in mine]}"
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
        assert told == truth, f"it says {told}, but {truth} was read"
        self.judge.seen["statuses"] += 1

    def reason(self, now: Pass, milvus: Obj, pod: Obj) -> str:
        """Why a pod of this Milvus is deleted."""
        name = name_of(pod)
        if name not in wanted(milvus):
            return "surplus"
        if is_finished(pod):
            return "finished"
        assert shown_by(pod) != asked_for(milvus), (
            f"wanted and up to date: {short(pod)}, {short(milvus)}"
        )
        if uid_of(pod) in now.ready:
            there = {
                name_of(one)
                for one in now.owned_by(milvus)
                if uid_of(one) in now.ready and not is_finished(one)
            }
            others = {*wanted(milvus)} - there
            assert others <= self.held, f"{others - self.held} are not Ready: {short(pod)}"
        return "outdated"

    def patches(self, asked: Asked) -> None:
        metadata, name = dict(asked.body["metadata"]), asked.name
        uid, version = metadata.pop("uid", None), metadata.pop("resourceVersion", None)
        assert uid, "a patch without a UID"
        assert version, "a patch without a version"
        now = asked.rests_on = self.last(lambda one: one.knows(name, uid, version))
        pod, milvus = now.pods[name], now.milvus_for(name)
        assert not is_ending(pod), "it is ending"
        if owner_of(pod):
            now.milvus_of(pod)
            assert name in wanted(milvus), f"not wanted: {short(milvus)}"
            assert not labels_for(name).items() <= labels_of(pod).items(), (
                "it already has its labels"
            )
            right: Obj = {"labels": labels_for(name)}
        else:
            assert selector_for(name).items() <= labels_of(pod).items(), (
                f"a stranger's: {short(pod)}"
            )
            assert self.looks[name_of(milvus)], "the Milvus was not read once more"
            looked = self.looks[name_of(milvus)].pop()
            assert uid_of(looked) == uid_of(milvus), "the Milvus has been replaced"
            assert not is_ending(looked), "the Milvus is ending"
            right = {"ownerReferences": [reference_to(milvus)]}
        assert {**asked.body, "metadata": metadata} == {"metadata": right}, (
            f"no patch may change this: {asked.body}"
        )
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
    """The UID of the pod that a patch of a status announces, or an empty string."""
    status = body.get("status") or {}
    return (
        str(status["disruptedPod"]).partition(" ")[0] if status.keys() == {"disruptedPod"} else ""
    )


def short(obj: Obj) -> str:
    if "containers" not in obj["spec"]:
        return f"Milvus {name_of(obj)} at {version_of(obj)}, {len(wanted(obj))} × {asked_for(obj)}"
    return f"pod {name_of(obj)} {obj['metadata'].get('uid')}, {shown_by(obj)}, {'' if is_ready(obj) else 'not '}Ready"


# --------------------------------------------------------------------------------------
# All copies together
# --------------------------------------------------------------------------------------


class History:
    """Replays what the API server says has happened; raises AssertionError at the first harm. `by_users` are the UIDs
    of pods that users deleted, which they may do at any time. The garbage collector deletes no wanted pod."""

    def __init__(self, by_users: set[str]) -> None:
        self.by_users = by_users
        self.wanted: dict[str, int] = defaultdict(
            int
        )  # how many pods are wanted, by the UID of the Milvus
        self.announced: dict[str, str] = {}  # status.disruptedPod, by the same
        self.pods: dict[str, Obj] = {}  # by UID
        self.owners: dict[str, str] = {}  # by the UID of a pod, its last owner: users may orphan it
        # By the UID of the Milvus, the ordinals whose Ready pod an operator deleted and that are not Ready again. Those
        # that are taken were wanted at that time, and have been ever since.
        self.taken: dict[str, set[int]] = defaultdict(set)
        self.missing: dict[str, set[int]] = defaultdict(set)
        self.seen: Counter[str] = Counter()

    def milvus(self, kind: str, milvus: Obj) -> None:
        uid, ends = uid_of(milvus), kind == "DELETED" or is_ending(milvus)
        assert uid not in self.wanted or not QUIET.fullmatch(name_of(milvus)), (
            f"no user touched it: {milvus}"
        )
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
                assert pod["metadata"].get(key) == was.get(key), (
                    f"a stranger's {key} changed: {pod}"
                )
            assert kind != "DELETED", f"a stranger was deleted: {pod}"
            self.pods[uid_of(pod)] = pod
            return
        assert not before or not QUIET.fullmatch(name_of(pod)), f"no user touched it: {pod}"
        owner = self.owners[uid_of(pod)] = owner_of(pod).get("uid") or self.owners.get(
            uid_of(pod), ""
        )
        number, ends = ordinal(name_of(pod)), kind == "DELETED" or is_ending(pod)
        self.pods[uid_of(pod)] = pod
        if not before:
            self.seen["created"] += 1
        elif ends and is_ready(before) and uid_of(pod) not in self.by_users:
            self.missing[owner].add(number)
            if number < self.wanted[owner]:
                down = self.taken[owner] - {number}
                assert not down, (
                    f"it was deleted while {down} were not Ready again: {short(before)}"
                )
                self.taken[owner].add(number)
                self.seen["taken"] += 1
        if is_ready(pod) and not ends:
            self.taken[owner].discard(number)
            self.missing[owner].discard(number)
        if kind == "DELETED":
            del self.pods[uid_of(pod)]
