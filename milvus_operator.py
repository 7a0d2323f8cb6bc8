#!/usr/bin/env python3
"""Keeps the pods of every Milvus resource running: a Kubernetes operator in one file.

It polls. A *pass* lists the Milvus resources with their pods, claims and Services, and makes a
*visit* to each Milvus: it decides what to do (pure functions over plain dicts), does it, and writes
the status. The next pass sees the effect of its writes.

Between passes it keeps what was tried, and when; the rest could be computed again. Names are fixed,
every delete carries a UID, and everything is looked up again before it is deleted. So a write that
is lost or repeated does no harm, and the process may end at any moment.

A *milvus* is a resource of kind Milvus, and a *claim* a PersistentVolumeClaim, both as dicts.
Read from the top: the loop and a visit, then what they call."""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import json
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from http.server import ThreadingHTTPServer
from math import inf
from posixpath import normpath
from typing import Any, NamedTuple

import click
import prometheus_client as metrics
import urllib3
import yaml
from kubernetes import config
from kubernetes.client import ApiClient, ApiException, Configuration
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.resource import Resource
from kubernetes.utils import parse_quantity

__version__ = "0.1.0"

Obj = dict[str, Any]  # a Kubernetes object or a part of one, as in its JSON
Objs = dict[int, Obj]  # pods or claims of a Milvus, by ordinal

GROUP = "zilliz.com"
VERSION = "v1"
KIND = "Milvus"
PLURAL = "milvuses"
API_VERSION = f"{GROUP}/{VERSION}"
MANAGER = "milvus-polling-operator"

MILVUS_LABEL = f"{GROUP}/milvus"  # on everything it makes; it relies on no other label
TEMPLATE_HASH = f"{GROUP}/template-hash"  # annotation: the fingerprint of the user's own fields

PASSES = metrics.Counter("milvus_operator_passes", "Passes by result", ["result"])
PASS_SECONDS = metrics.Histogram("milvus_operator_pass_duration_seconds", "Duration of a pass")
MILVUSES = metrics.Gauge("milvus_operator_milvuses", "Milvus resources by state", ["state"])
STATES = metrics.Gauge("milvus_operator_milvus_state", "Its state", ["namespace", "name", "state"])

log = logging.getLogger("milvus_operator")


class Why(NamedTuple):
    """The reason and the message of a condition."""

    reason: str
    message: str = ""


class InvalidSpec(Exception):
    """The spec of a Milvus cannot be used; the text tells its owner why."""


class Unusable(click.ClickException):
    """The configuration cannot be used; the text tells why, in one line."""

    exit_code = 2


# ---------- The loop: list, visit, wait ----------

# In seconds.
ACTING = 8  # no visit and no action of a pass starts later than this after its lists
SHORTEST_PAUSE = 1  # from the start of a pass to the start of the next
LONGEST_OUTAGE_DELAY = 30  # while nothing at all can be listed
SLACK = 40  # the loop counts as stuck when it is later than its interval and time-out by this

MOST_PASSES = 20  # of --once

ADVICE = {  # by HTTP status code
    401: " (the credentials are rejected: log in again)",
    403: " (see the role in deploy.yaml)",
    404: " (install the CRD: kubectl apply -f crd.yaml)",
}


@dataclass
class Operator:
    """Manages Milvus resources: `run()` for ever, or `run_once()`."""

    api: Api
    reload: Callable[[], ApiClient]  # loads the configuration anew; raises Unusable
    namespaces: Sequence[str | None]  # None: all
    interval: float  # seconds from the start of a pass to the next, while nothing changes
    workers: int

    def __post_init__(self) -> None:
        self.pool = ThreadPoolExecutor(self.workers)
        self.visits: dict[str | None, list[Visit]] = {}  # by namespace; they hold the memories
        self.outages: dict[str, str] = {}  # what the last pass could not do, and why
        self.has_served = False  # whether any pass has listed everything
        self.last_change = self.api.clock()  # when a pass last did something
        self.has_listed = False  # whether the last pass could list any namespace
        self.must_reload = False  # whether the credentials were rejected, or nobody answered
        self.list_seconds = 0.0
        self.outage_delay = 0.0

    def is_alive(self) -> bool:
        """Whether the loop makes progress, as it does even while the server is down: requests end
        by their time-outs."""
        idle = self.api.clock() - self.api.progressed
        return idle < self.interval + self.api.timeout + SLACK

    def run(self) -> None:
        """Make passes for ever."""
        gc.freeze()  # what was imported is never garbage: looking at it took a fifth of the CPU
        while True:
            started = self.api.clock()
            self.run_pass()
            time.sleep(max(0, started + self.pause() - self.api.clock()))

    def run_once(self) -> bool:
        """Make passes until two do nothing; for a dry run, one. Returns whether all is well."""
        idle_passes = 0
        for _ in range(MOST_PASSES):
            idle_passes = 0 if self.run_pass() else idle_passes + 1
            if idle_passes == 2 or self.api.dry_run:
                break
            time.sleep(FIRST_DELAY)  # then what has failed is tried again
        return not self.outages and all(visit.memory.is_well for visit in self.all_visits())

    def run_pass(self) -> int:
        """Make one pass. Returns how many changes it made."""
        clock = self.api.clock
        started = clock()
        self.api.start_pass()
        before = self.outages
        self.outages = {}
        changes = 0
        try:
            # 1. List everything.
            visits = self.list_everything()
            listed = clock()
            self.list_seconds = listed - started

            # 2. Visit each Milvus, and wait for all of these visits.
            visits.sort(key=lambda visit: visit.turn)
            list(self.pool.map(lambda visit: visit.make(listed + ACTING), visits))
            changes = sum(visit.changes for visit in visits)
        except Unusable as error:
            self.outages["the configuration cannot be loaded"] = error.message
        except Exception as error:  # a bug must not end the loop
            self.outages["a pass failed"] = unexpected(error)

        # 3. Report, and see when the next pass is due.
        self.report(before, changes, clock() - started)
        longer = min(max(1, 2 * self.outage_delay), LONGEST_OUTAGE_DELAY)
        self.outage_delay = 0 if self.has_listed else longer
        if changes:
            self.last_change = clock()
        return changes

    def list_everything(self) -> list[Visit]:
        """A visit for each Milvus in the namespaces that could be listed. Raises Unusable."""
        found: list[Visit] = []
        self.has_listed = False
        if self.must_reload:
            self.api.use(self.reload())
            self.must_reload = False
        for namespace in self.namespaces:
            try:
                self.visits[namespace] = self.list_namespace(namespace)
                self.has_listed = True
                found += self.visits[namespace]
            except ApiError as error:  # a failed list is not an empty list
                what = f"cannot list {f'namespace {namespace}' if namespace else 'the cluster'}"
                # Without an answer, or when a plugin for credentials failed, which looks anonymous.
                if error.code in (0, 401) or "system:anonymous" in str(error):
                    self.must_reload = True
                    what = f"requests to {self.api.server} fail"
                self.outages[what] = f"{error}{ADVICE.get(error.code, '')}"
        return found

    def list_namespace(self, namespace: str | None) -> list[Visit]:
        """A visit for each Milvus that is not being deleted. Raises ApiError."""
        # Pods come first: a Milvus that was listed before its pods may have been scaled up since,
        # and they would seem to be surplus. A claim of a user's own may have no label.
        api = self.api
        pods = by_ordinal(api.list_all(api.pods, namespace))
        claims = by_ordinal(api.list_all(api.claims, namespace, selector=None))
        services = {full_name(one) for one in api.list_all(api.services, namespace, selector=None)}
        known = {identity_of(old.milvus): old.memory for old in self.visits.get(namespace, [])}
        visits = []
        for milvus in api.list_all(api.milvuses, namespace, selector=None):
            if not is_ending(milvus):
                memory = known.get(identity_of(milvus)) or new_memory(milvus)
                seen = Observed(
                    milvus,
                    memory.spec,
                    pods=pods[full_name(milvus)],
                    claims=claims[full_data_name(milvus)],
                    has_service=full_name(milvus) in services,
                )
                visits.append(Visit(api, seen, memory))
        return visits

    def pause(self) -> float:
        """Seconds from the start of the last pass to the next: an eighth of the time since anything
        was done, so that a roll waits for its pods, not for passes; at least five times what the
        lists took; at most the interval."""
        if self.outage_delay:
            return self.outage_delay
        quiet = self.api.clock() - self.last_change
        return min(self.interval, max(SHORTEST_PAUSE, 5 * self.list_seconds, quiet / 8))

    def report(self, before: dict[str, str], changes: int, seconds: float) -> None:
        """Report a pass in the log and in the metrics; `before` it, there were these outages."""
        for what in self.outages.keys() - before.keys():
            log.error("%s: %s", what, self.outages[what])
        for what in before.keys() - self.outages.keys():
            log.info("resolved: %s", what)
        visits = self.all_visits()
        if not self.outages and not self.has_served:
            self.has_served = True
            log.info("ready: %d Milvus resource(s) listed", len(visits))
        level = logging.INFO if changes else logging.DEBUG
        text = "pass finished in %.2f s: %d Milvus resource(s), %d change(s)"
        log.log(level, text, seconds, len(visits), changes)

        PASSES.labels("failure" if self.outages else "success").inc()
        PASS_SECONDS.observe(seconds)
        states = Counter(visit.memory.state for visit in visits)
        for state in ("ready", "progressing", "failed"):
            MILVUSES.labels(state).set(states[state])
        STATES.clear()
        for visit in visits:
            milvus = visit.milvus
            STATES.labels(namespace_of(milvus), name_of(milvus), visit.memory.state).set(1)

    def all_visits(self) -> list[Visit]:
        return [visit for visits in self.visits.values() for visit in visits]


def unexpected(error: Exception) -> str:
    """About an exception that nobody foresaw. Its text may hold secrets: show only its places."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    places = " < ".join(f"{frame.name}:{frame.lineno}" for frame in frames)
    return f"unexpected {type(error).__name__}, please report this bug: {places}"


# ---------- A visit: one Milvus in one pass ----------

NEED_FRESH_LOOK = ("adopt", "delete", "replace")  # whatever touches a pod that is there


@dataclass
class Visit:
    """What the lists show of a Milvus, and what is done about it."""

    api: Api
    seen: Observed
    memory: Memory
    deadline: float = inf  # after which no action begins
    changes: int = 0  # that were made
    news: dict[tuple[str, str], list[str]] = field(default_factory=dict)  # what was done, and why

    @property
    def milvus(self) -> Obj:
        return self.seen.milvus

    @property
    def turn(self) -> tuple[bool, bool]:
        """What visits are sorted by: known ones first, then new ones, failed ones last, so that
        neither a burst nor a slow webhook keeps a lost database waiting."""
        is_new = not condition_of(self.milvus, "Ready")
        return self.memory.state == "failed", is_new

    def make(self, deadline: float) -> None:
        """Serve the Milvus, if there is still time. No object, whatever it contains, may end the
        loop."""
        self.deadline = deadline
        try:
            if self.api.clock() < deadline:
                self.reconcile()
        except Exception as error:
            self.memory.state = "failed"
            self.log_line(logging.ERROR, unexpected(error))

    def reconcile(self) -> None:
        """Serve the Milvus."""
        memory = self.memory
        now = self.api.clock()

        # 1. Decide what to do.
        actions = [] if memory.why_invalid else list(decide(self.seen))

        # 2. The lists may be seconds old, so look again before touching a pod that is there, and
        # decide anew. If that look fails, those actions have failed, and wait below.
        risky = [a for a in actions if a.verb in NEED_FRESH_LOOK and not memory.waits(a.key, now)]
        if risky:
            try:
                self.look_again()
                actions = list(decide(self.seen))
            except ApiError as failed:
                for action in risky:
                    memory.remember(action.key, self.api.clock(), failed.why)

        # 3. Do what does not have to wait. What fails for one pod will probably fail for the
        # others, except a conflict.
        failing = set[str]()
        for action in actions:
            waits = action.verb in failing or memory.waits(action.key, now)
            if not waits and self.api.clock() < self.deadline:
                error = self.attempt(action.key, self.carry_out, action)
                if error and error.code != 409:
                    failing.add(action.verb)
        memory.forget(action.key for action in actions)
        self.announce_news()

        # 4. Write the status, if it is not as listed.
        self.update_status(now)

    def look_again(self) -> None:
        """See the objects as they are now. Raises ApiError, also if the spec has changed."""
        api, milvus = self.api, self.milvus
        namespace = namespace_of(milvus)
        pods = by_ordinal(api.list_all(api.pods, namespace, selector_of(milvus)))
        claims = by_ordinal(api.list_all(api.claims, namespace, selector=None))
        fresh = api.get(api.milvuses, milvus)
        keys = ("uid", "generation")  # a deletion raises the generation, too
        if pick(fresh["metadata"], keys) != pick(milvus["metadata"], keys):
            raise ApiError(Why("APIError", "the Milvus has changed since it was listed"), 409)
        self.seen = dataclasses.replace(
            self.seen, pods=pods[full_name(milvus)], claims=claims[full_data_name(milvus)]
        )

    def attempt(self, key: Key, do: Callable[..., Any], *args: Any) -> ApiError | None:
        """Try something, and remember what came of it."""
        try:
            do(*args)
        except ApiError as error:
            self.memory.remember(key, self.api.clock(), error.why)
            return error
        self.memory.remember(key, self.api.clock())
        return None

    def carry_out(self, action: Action) -> None:
        verbs = {
            "adopt": self.adopt,
            "delete": self.delete,
            "create": self.create,
            "claim": self.create_claim,
            "replace": self.replace,
            "grow": self.grow,
            "expose": self.expose,
        }
        verbs[action.verb](action)

    # --- The verbs of actions; they raise ApiError ---

    def adopt(self, action: Action) -> None:
        """Set the owner of an orphan."""
        others = action.obj["metadata"].get("ownerReferences") or []
        owners = {"ownerReferences": [*others, owner_reference(self.milvus)]}
        adopted = self.api.patch(self.api.pods, action.obj, {"metadata": owners})
        self.update_seen(action, slim(adopted))
        self.record_change("Adopted", "pod", action.obj, action.because)

    def delete(self, action: Action) -> None:
        self.api.delete(action.obj)
        ending = action.obj["metadata"] | {"deletionTimestamp": timestamp()}
        self.update_seen(action, action.obj | {"metadata": ending})
        self.record_change("Deleted", "pod", action.obj, action.because)

    def replace(self, action: Action) -> None:
        """Delete a pod, after a dry run has shown that the API server would accept the new one."""
        self.api.check(new_pod(self.milvus, self.seen.spec, action.ordinal))
        self.delete(action)

    def create(self, action: Action) -> None:
        """Create a pod, and only then its claim: a pod that is refused must not cost a volume."""
        pod = new_pod(self.milvus, self.seen.spec, action.ordinal)
        made = self.create_new("pod", self.api.pods, pod) or self.api.get(self.api.pods, pod)
        if not is_owned(self.milvus, made):
            text = f"pod {name_of(pod)} exists, but has another owner, or lacks the label"
            advice = "delete it if nobody needs it, or create the Milvus under another name"
            text = f"{text} {selector_of(self.milvus)}: {advice}"
            raise ApiError(Why("NameConflict", text), 409)
        self.update_seen(action, slim(made))
        if self.seen.spec.storage and action.ordinal not in self.seen.claims:
            self.create_claim(action)

    def create_claim(self, action: Action) -> None:
        claim = new_claim(self.milvus, self.seen.spec, action.ordinal)
        self.create_new("claim", self.api.claims, claim)

    def grow(self, action: Action) -> None:
        """Ask for a larger volume; the claim's status says whether it arrives."""
        requests = {"storage": self.seen.spec.storage["size"]}
        self.api.patch(self.api.claims, action.obj, {"spec": {"resources": {"requests": requests}}})
        self.record_change("Expanding", "claim", action.obj, action.because)

    def expose(self, action: Action) -> None:
        """Create the Service; somebody else's of that name is left alone."""
        self.create_new("service", self.api.services, new_service(self.milvus))

    def create_new(self, kind: str, resource: Resource, obj: Obj) -> Obj | None:
        """Create an object; None: its name is taken."""
        try:
            made = self.api.create(resource, obj)
        except ApiError as error:
            if error.status_reason == "AlreadyExists":
                return None
            raise
        self.record_change("Created", kind, obj)
        return made

    def update_seen(self, action: Action, pod: Obj) -> None:
        """See what has become of a pod, so that the status of this visit says it."""
        self.seen = dataclasses.replace(self.seen, pods=self.seen.pods | {action.ordinal: pod})

    # --- What is said ---

    def update_status(self, now: float) -> None:
        """Write the status, if it is not as listed, and announce what is new in the condition
        Reconciled. If the server drops a part of it, as for an older CRD, it is written again less
        and less often."""
        memory = self.memory
        unannounced = {"status": "True", "message": MATCHING}
        old = condition_of(self.milvus, "Reconciled") or unannounced
        problems = memory.problems(is_told=old["status"] == "False")
        status = status_of(self.seen, memory.why_invalid, problems)
        memory.state = state_of(status)
        if contains(self.milvus["status"], status) or memory.waits(STATUS, now):
            return
        change = {"status": status}
        error = self.attempt(STATUS, self.api.patch, self.api.milvuses.status, self.milvus, change)
        if error:
            if memory.tries[STATUS].failures == 2:  # once, not each time
                self.log_line(logging.WARNING, f"the status update failed: {error}")
            return
        # The same status again: a part of it was dropped. Then its delay goes on growing.
        if status != memory.written:
            memory.written = status
            del memory.tries[STATUS]
        self.changes += 1
        new = condition_of(change, "Reconciled")
        if new["message"] != old["message"]:
            self.announce(new["reason"], new["message"], is_warning=new["status"] == "False")

    def record_change(self, reason: str, kind: str, obj: Obj, because: str = "") -> None:
        self.changes += 1
        self.news.setdefault((reason, because), []).append(f"{kind} {name_of(obj)}")

    def announce_news(self) -> None:
        """Log the changes of each kind, and send an event for them."""
        for (reason, because), objects in self.news.items():
            text = f"{reason.lower()} {', '.join(objects)}"
            self.announce(reason, f"{text}: {because}" if because else text)

    def announce(self, reason: str, text: str, is_warning: bool = False) -> None:
        self.log_line(logging.WARNING if is_warning else logging.INFO, text)
        self.api.send_event(new_event(self.milvus, reason, text, is_warning))

    def log_line(self, level: int, text: str) -> None:
        about = pick(self.milvus["metadata"], ("namespace", "name"))
        dry = " (dry run)" if self.api.dry_run else ""
        log.log(level, "milvus %s: %s%s", full_name(self.milvus), text, dry, extra={"about": about})


def identity_of(milvus: Obj) -> tuple[str, int]:
    """Its memory is kept by this: a new spec, which may be the cure, starts afresh."""
    return uid_of(milvus), milvus["metadata"]["generation"]


def new_memory(milvus: Obj) -> Memory:
    try:
        return Memory(spec_of(milvus))
    except InvalidSpec as error:
        text = str(error)
    except Exception as error:  # an older CRD may not check types
        text = f"a field of the spec is missing, or has the wrong type ({type(error).__name__})"
    return Memory(Spec(), text)


# ---------- Retries: when to try again ----------

# In seconds. Whatever has to be done again, because it failed or because something undoes it, is
# done after 1 s, 2 s, 4 s …
FIRST_DELAY = 1
LONGEST_DELAY = 30
QUIET = 60  # after so long without another try, delays start afresh

MAX_REPLICAS = 1000
SERVICE = MAX_REPLICAS  # stands for the Service in place of an ordinal, and sorts after all of them
Key = tuple[str, int]  # a verb, and an ordinal or SERVICE
STATUS: Key = ("status", SERVICE)  # the write of the status
Problems = Mapping[int, Why]  # what has failed, by ordinal or SERVICE


class Try(NamedTuple):
    """The last time that something was tried, and what came of it."""

    tried: float
    delay: float  # before it may be tried again
    problem: Why | None  # why it failed; None: it was done
    failures: int  # in a row


@dataclass
class Memory:
    """What is remembered of a Milvus, while its spec stays the same. If it is lost, something is
    tried once more."""

    spec: Spec
    why_invalid: str = ""  # what is wrong with the spec
    state: str = "progressing"  # or ready, or failed: what the metrics say
    tries: dict[Key, Try] = field(default_factory=dict)
    written: Obj = field(default_factory=dict)  # the status that was written last

    def remember(self, key: Key, now: float, problem: Why | None = None) -> None:
        last = self.tries.get(key, Try(-inf, 0, None, 0))
        delay: float = FIRST_DELAY
        if now < last.tried + QUIET:
            delay = min(2 * last.delay, LONGEST_DELAY)
        failures = last.failures + 1 if problem else 0
        self.tries[key] = Try(now, delay, problem, failures)

    def waits(self, key: Key, now: float) -> bool:
        return key in self.tries and now < self.tries[key].tried + self.tries[key].delay

    def forget(self, needed: Iterable[Key]) -> None:
        """Forget what failed and is not to be done any more."""
        kept = {STATUS, *needed}
        self.tries = {key: one for key, one in self.tries.items() if not one.problem or key in kept}

    def problems(self, is_told: bool) -> Problems:
        """What has failed, by ordinal. A first failure may resolve itself, so it counts only if the
        condition Reconciled is False already, which must not flap."""
        least = 1 if is_told else 2
        return {
            ordinal: last.problem
            for (verb, ordinal), last in self.tries.items()
            if last.problem and last.failures >= least and verb != "status"
        }

    @property
    def is_well(self) -> bool:
        return self.state != "failed" and not any(last.problem for last in self.tries.values())


# ---------- Decide: what to do; it knows no network and no log ----------

OUTDATED = "its template has changed"
PROBING = 300  # seconds, as our startup probe allows: until then, an unready pod is not broken


class Action(NamedTuple):
    """Something to do, by a method of `Visit`. To replace a pod is to delete it after a dry run: a
    later pass creates the new one."""

    verb: str
    ordinal: int  # or SERVICE
    obj: Obj  # the pod or claim as it was seen; empty for what is to be created
    because: str = ""

    @property
    def key(self) -> Key:
        return self.verb, self.ordinal


@dataclass(frozen=True)
class Observed:
    """A Milvus, and the objects that have its names, as far as a visit knows them. What is derived
    is computed once, because at 1,000 replicas it takes time."""

    milvus: Obj
    spec: Spec
    pods: Objs  # whoever owns them
    claims: Objs  # whoever made them
    has_service: bool

    @cached_property
    def owned(self) -> Objs:
        """Those of the pods that this Milvus owns, and finds by its label."""
        return {o: pod for o, pod in sorted(self.pods.items()) if is_owned(self.milvus, pod)}

    @cached_property
    def outdated(self) -> Objs:
        """The desired pods of another template. A pod without a fingerprint counts as current:
        whatever strips it would strip the next pod's, and the roll would never end."""
        right = (None, self.spec.template_hash)
        pods = self.owned.items()
        return {o: pod for o, pod in pods if self.wants(o) and template_hash_of(pod) not in right}

    @cached_property
    def blocked(self) -> dict[int, Why]:
        """The desired ordinals whose claims are gone, going, or without their volumes. Only the pod
        that is there still reaches the data, so it stays; no new one is made meanwhile."""
        found = {}
        for ordinal in range(self.spec.replicas):
            if trouble := self.trouble_with_claim(ordinal):
                text = f"claim {claim_name(self.milvus, ordinal)} {trouble}"
                advice = "no pod is made or replaced; set its volume's reclaim policy to Retain now"
                found[ordinal] = Why("ClaimLost", f"{text}: {advice}")
        return found

    def trouble_with_claim(self, ordinal: int) -> str:
        claim, pod = self.claims.get(ordinal), self.owned.get(ordinal)
        if not self.spec.storage:
            return ""  # then claims are not ours
        if claim and is_ending(claim):
            return "is being deleted"
        if claim and phase_of(claim) == "Lost":
            return "is Lost"
        if not claim and pod and phase_of(pod) != "Pending":  # it had a claim when it began
            return "is gone"
        return ""

    def wants(self, ordinal: int) -> bool:
        return ordinal < self.spec.replicas


def decide(seen: Observed) -> Iterator[Action]:
    """Everything that should be done, in the order in which it is done: pods that are surplus or
    have ended are deleted before others are created, because that makes room in a quota."""
    yield from adoptions(seen)
    yield from deletions(seen)
    yield from creations(seen)
    yield from replacements(seen)
    yield from enlargements(seen)
    if not seen.has_service:
        yield Action("expose", SERVICE, {})


def adoptions(seen: Observed) -> Iterator[Action]:
    for ordinal, pod in sorted(seen.pods.items()):
        if is_orphan(seen.milvus, pod) and not is_ending(pod):
            yield Action("adopt", ordinal, pod, "it has our label, but no controller")


def deletions(seen: Observed) -> Iterator[Action]:
    """Delete pods that are surplus, or have ended."""
    for ordinal, pod in seen.owned.items():
        if is_ending(pod):
            continue
        if not seen.wants(ordinal):
            yield Action("delete", ordinal, pod, f"spec.replicas is {seen.spec.replicas}")
        elif is_finished(pod) and ordinal not in seen.blocked:
            yield Action("delete", ordinal, pod, why_not_ready(pod).reason)


def creations(seen: Observed) -> Iterator[Action]:
    """Create pods that are missing, and the claims of pods that have none."""
    owned, blocked = seen.owned, seen.blocked
    for ordinal in range(seen.spec.replicas):
        if ordinal not in owned and ordinal not in blocked:
            other = seen.pods.get(ordinal)
            is_awaited = other and (is_ending(other) or is_orphan(seen.milvus, other))
            if not is_awaited:
                # If somebody else's pod has the name, this fails, and the failure is reported.
                yield Action("create", ordinal, {})
    for ordinal, pod in owned.items():
        lacks_claim = seen.spec.storage and seen.wants(ordinal) and ordinal not in seen.claims
        if lacks_claim and ordinal not in blocked and not is_over(pod):
            yield Action("claim", ordinal, {})


def replacements(seen: Observed) -> Iterator[Action]:
    """Replace pods whose template is outdated. Those that are broken go at once: a roll must
    not wait for them (kubernetes/kubernetes#67250). Of the others, the one with the highest ordinal
    goes, while every desired pod is Ready, and new ones have been so for minReadySeconds."""
    due = {o: pod for o, pod in seen.outdated.items() if o not in seen.blocked}
    if seen.spec.updates_on_delete or not due:
        return
    for ordinal, pod in due.items():
        if is_broken(pod):
            yield Action("replace", ordinal, pod, OUTDATED)
    if all(is_settled(o, seen) for o in range(seen.spec.replicas)):
        ordinal = max(due)
        yield Action("replace", ordinal, due[ordinal], OUTDATED)


def is_broken(pod: Obj) -> bool:
    """Whether it serves nobody, and will not soon by itself."""
    if is_over(pod) or is_ready(pod):
        return False
    containers = containers_of(pod)
    if not containers or any("running" not in (one.get("state") or {}) for one in containers):
        return True
    # On a node that fell silent, containers are still listed as ready: they may serve, and may come
    # back. When a kubelet restarts, its pods look unready until their next probes
    # (kubernetes/kubernetes#100277).
    are_ready = all(container.get("ready") for container in containers)
    return not are_ready and seconds_since_ready_changed(pod) >= PROBING


def is_settled(ordinal: int, seen: Observed) -> bool:
    """Whether a roll need not wait for this ordinal: it has been Ready for long enough."""
    pod = seen.owned.get(ordinal)
    if not pod or not is_ready(pod):
        return False
    # minReadySeconds applies only to new pods.
    return ordinal in seen.outdated or seconds_since_ready_changed(pod) >= seen.spec.min_ready


def enlargements(seen: Observed) -> Iterator[Action]:
    """Enlarge claims with our label that request less than the spec. Before a claim is Bound, it
    cannot be changed."""
    size = seen.spec.storage.get("size")
    for ordinal, claim in sorted(seen.claims.items()):
        is_bound = phase_of(claim) == "Bound" and not is_ending(claim)
        if size and is_bound and seen.wants(ordinal) and is_labelled(seen.milvus, claim):
            requested = claim["spec"]["resources"]["requests"]["storage"]
            if parse_quantity(requested) < parse_quantity(size):
                yield Action("grow", ordinal, claim, f"spec.storage.size is {size}")


def by_ordinal(objects: Iterable[Obj]) -> defaultdict[str, Objs]:
    """Pods or claims by full name without the ordinal, then by ordinal."""
    found = defaultdict[str, Objs](dict)
    for obj in objects:
        base, _, ordinal = full_name(obj).rpartition("-")
        if ordinal.isdecimal() and str(int(ordinal)) == ordinal:
            found[base][int(ordinal)] = obj
    return found


def is_labelled(milvus: Obj, obj: Obj) -> bool:
    labels = obj["metadata"].get("labels") or {}
    return labels.get(MILVUS_LABEL) == name_of(milvus)


def is_owned(milvus: Obj, pod: Obj) -> bool:
    """Ownership is a UID, not a name."""
    return is_labelled(milvus, pod) and controller_of(pod).get("uid") == uid_of(milvus)


def is_orphan(milvus: Obj, pod: Obj) -> bool:
    return not controller_of(pod) and is_labelled(milvus, pod)


# ---------- Say: status, conditions and events ----------

MATCHING = "nothing has failed; the condition Ready says how the pods are"
UNTIL_CORRECTED = "until this is corrected, its pods are left as they are"
OURS = ("Ready", "Reconciled", "Stalled")  # conditions


def status_of(seen: Observed, why_invalid: str, problems: Problems) -> Obj:
    """The status of a Milvus; `why_invalid` says what is wrong with its spec."""
    milvus = seen.milvus
    present = [pod for pod in seen.owned.values() if not is_ending(pod)]
    if why_invalid:
        why = Why("Invalid", f"{why_invalid}; {UNTIL_CORRECTED}")
        conditions = [
            new_condition(milvus, "Ready", False, why),
            new_condition(milvus, "Reconciled", False, why),
            new_condition(milvus, "Stalled", True, why),  # for kstatus: waiting will not help
        ]
    else:
        conditions = conditions_of(seen, {**problems, **seen.blocked})
    listed = milvus["status"].get("conditions") or []
    others = [condition for condition in listed if condition.get("type") not in OURS]
    current = [pod for pod in present if template_hash_of(pod) == seen.spec.template_hash]
    return {
        "observedGeneration": milvus["metadata"]["generation"],
        "replicas": len(present),
        "readyReplicas": sum(map(is_ready, present)),
        "updatedReplicas": len(current),
        "pods": [name_of(pod) for pod in present],
        "selector": selector_of(milvus),
        "conditions": conditions + others,
    }


def conditions_of(seen: Observed, problems: Problems) -> list[Obj]:
    wanted = [pod for ordinal, pod in seen.owned.items() if seen.wants(ordinal)]
    text = f"{sum(map(is_ready, wanted))} of {seen.spec.replicas} pods are ready"
    if seen.outdated:
        text += f", {len(seen.outdated)} outdated"
    ready = Why("Ready", text)
    obstacle = next(obstacles(seen, problems), None)
    if obstacle:
        ordinal, why = obstacle
        pod = pod_name(seen.milvus, ordinal)
        ready = Why(why.reason, f"{text}; {pod}: {why.message or why.reason}")
    reconciled = Why("Reconciled", MATCHING)
    if problems:
        reconciled = problems[min(problems)]
    return [
        new_condition(seen.milvus, "Ready", not obstacle, ready),
        new_condition(seen.milvus, "Reconciled", not problems, reconciled),
    ]


def obstacles(seen: Observed, problems: Problems) -> Iterator[tuple[int, Why]]:
    """The ordinals that keep Ready from being true, and why. Outdated ones come last, because a
    roll waits until the others are Ready."""
    for ordinal in range(seen.spec.replicas):
        pod = seen.owned.get(ordinal)
        if not pod:
            yield ordinal, problems.get(ordinal, Why("Creating", "it does not exist yet"))
        elif not is_ready(pod):
            yield ordinal, why_not_ready(pod)
    for ordinal, pod in seen.outdated.items():
        if is_ready(pod) and not seen.spec.updates_on_delete:
            yield ordinal, problems.get(ordinal, Why("Updating", OUTDATED))


def new_condition(milvus: Obj, type_: str, is_true: bool, why: Why) -> Obj:
    """A condition in the standard form. Its time changes only with its status."""
    old = condition_of(milvus, type_)
    is_same = old.get("status") == str(is_true)
    return {
        "type": type_,
        "status": str(is_true),
        "observedGeneration": milvus["metadata"]["generation"],
        "lastTransitionTime": old["lastTransitionTime"] if is_same else timestamp(),
        "reason": why.reason,
        "message": why.message[:1024],
    }


def state_of(status: Obj) -> str:
    milvus = {"status": status}
    if condition_of(milvus, "Reconciled")["status"] == "False":
        return "failed"
    return "ready" if condition_of(milvus, "Ready")["status"] == "True" else "progressing"


def new_event(milvus: Obj, reason: str, note: str, is_warning: bool) -> Obj:
    """An event for `kubectl describe`."""
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": f"{name_of(milvus)}-", "namespace": namespace_of(milvus)},
        "regarding": reference_to(milvus) | {"namespace": namespace_of(milvus)},
        "type": "Warning" if is_warning else "Normal",
        "reason": reason,
        "action": "Reconcile",
        "note": note.encode()[:1024].decode(errors="ignore"),
        "eventTime": timestamp("microseconds"),
        "reportingController": f"{GROUP}/{MANAGER}",
        "reportingInstance": socket.gethostname(),
    }


def timestamp(precision: str = "seconds") -> str:
    """The time as Kubernetes writes it: RFC 3339, in UTC."""
    return datetime.now(UTC).isoformat(timespec=precision).replace("+00:00", "Z")


# ---------- The pod: everything that is specific to Milvus ----------

CONTAINER = "milvus"  # the name of the container
DATA = "/var/lib/milvus"  # the folder of all of its data
CONFIGS = "/milvus/configs"  # the folder of its configuration, in Milvus's images
CONFIG_VOLUME = "operator-config"
FS_GROUP = 999  # the group of Milvus images that do not run as root
PORTS = {"milvus": 19530, "metrics": 9091}

# What the rest of the pod relies on. Milvus reads the milvus.yaml of its image, then default.yaml,
# then user.yaml, then variables; what comes later wins, so no setting in milvusSpec changes these.
VARIABLES = {
    "DEPLOY_MODE": "STANDALONE",
    "PROXY_PORT": str(PORTS["milvus"]),
    "METRICS_PORT": str(PORTS["metrics"]),
    "ETCD_DATA_DIR": f"{DATA}/etcd",
    "LOCALSTORAGE_PATH": f"{DATA}/data",
    "ROCKSMQ_PATH": f"{DATA}/rdb_data",
    "NATSMQ_SERVER_STOREDIR": f"{DATA}/nats",
    "WOODPECKER_STORAGE_ROOTPATH": f"{DATA}/woodpecker",
}

# The files that a pod has beside the milvus.yaml of its image. The text of each is an annotation of
# the pod, so that no ConfigMap is needed.
DEFAULT_FILE = "default.yaml"  # ours
USER_FILE = "user.yaml"  # spec.milvusSpec, word for word
ETCD_FILE = "etcd.yaml"  # read by the embedded etcd
FILES = (DEFAULT_FILE, USER_FILE, ETCD_FILE)
# As in the Milvus project's own script: by its own defaults, etcd would be full at 2 GiB, and then
# Milvus does not start. It listens on this host only.
ETCD_CONFIG = """\
listen-client-urls: http://127.0.0.1:2379
advertise-client-urls: http://127.0.0.1:2379
quota-backend-bytes: 4294967296
auto-compaction-mode: revision
auto-compaction-retention: '1000'
"""

# What makes one container a complete, standalone Milvus: the settings of default.yaml. They are not
# in the fingerprint, so that a change of them reaches only new pods.
DEFAULTS = {
    "etcd.use.embed": "true",
    "etcd.config.path": f"{CONFIGS}/{ETCD_FILE}",
    "etcd.endpoints": "127.0.0.1:2379",
    "common.storageType": "local",
    "common.gracefulStopTimeout": "5",  # seconds; Milvus's own default is half an hour
    "mq.type": "rocksmq",
}
# The components share the container, and find each other at 127.0.0.1. If they registered the pod's
# address, which changes, a new pod on existing data would wait until the old sessions expire.
COMPONENTS = "rootCoord dataCoord queryCoord indexCoord proxy dataNode indexNode queryNode"
DEFAULTS |= {f"{name}.ip": "127.0.0.1" for name in [*COMPONENTS.split(), "streamingNode"]}

# External services. A row is (address, setting, value): if the user sets the address to something
# outside the pod, default.yaml sets the setting to the value. Of two queues, the later row counts.
EXTERNAL_SERVICES = (
    ("minio.address", "common.storageType", "remote"),
    ("etcd.endpoints", "etcd.use.embed", "false"),
    ("kafka.brokerList", "mq.type", "kafka"),
    ("pulsar.address", "mq.type", "pulsar"),
)
# What is not outside the pod, such as nothing. A milvus.yaml that somebody pasted is full of these.
_LOCAL = r"(\w+://)?(localhost|127\.[0-9.]+|\[::1\])(:[0-9]+)?"
LOCAL_ADDRESSES = re.compile(rf"(|~|null)|{_LOCAL}(,\s*{_LOCAL})*", re.IGNORECASE)


def new_pod(milvus: Obj, spec: Spec, ordinal: int) -> Obj:
    """The pod of this ordinal as it is sent: the generated pod with spec.pod laid over it. Raises
    InvalidSpec."""
    generated: Obj = {
        # So that a list in the place of one of these is refused.
        "metadata": {"labels": labels_for_people(milvus, ordinal), "annotations": {}},
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,  # a Service named proxy would set PROXY_PORT
            "terminationGracePeriodSeconds": 60,
            "securityContext": {"fsGroup": FS_GROUP},
            "containers": [new_container(spec.image)],
            "volumes": [data_volume(milvus, spec, ordinal)],
        },
    }
    pod = overlay(generated, spec.pod, "spec")
    defaults = defaults_for(set_by_user(spec, pod))
    texts = {
        DEFAULT_FILE: "".join(f"{setting}: {value}\n" for setting, value in defaults.items()),
        USER_FILE: spec.user_file,
        ETCD_FILE: ETCD_CONFIG,
    }
    ours = {
        "name": pod_name(milvus, ordinal),
        "namespace": namespace_of(milvus),
        "labels": our_label(milvus),
        "annotations": {TEMPLATE_HASH: spec.template_hash}
        | {f"{GROUP}/{file}": text for file, text in texts.items()},
        "ownerReferences": [owner_reference(milvus)],
    }
    ours_in_spec = {
        "volumes": [*(pod["spec"].get("volumes") or []), config_volume()],
        "hostname": pod_name(milvus, ordinal),  # by these two, the Service gives the pod a name
        "subdomain": name_of(milvus),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        # Here ours win.
        "metadata": overlay(pick(pod["metadata"], ("labels", "annotations")), ours, "metadata"),
        "spec": pod["spec"] | ours_in_spec,
    }


def new_container(image: str) -> Obj:
    """A standalone Milvus server. It has five minutes to start."""
    port = PORTS["metrics"]
    healthz = {"httpGet": {"path": "/healthz", "port": port}, "timeoutSeconds": 5}
    mounts = [{"name": "data", "mountPath": DATA}]
    # One by one, so that the image's own files in this folder stay.
    mounts += [
        {"name": CONFIG_VOLUME, "mountPath": f"{CONFIGS}/{name}", "subPath": name} for name in FILES
    ]
    return {
        "name": CONTAINER,
        "image": image,
        "args": ["milvus", "run", "standalone"],
        "env": [{"name": name, "value": value} for name, value in VARIABLES.items()],
        "ports": [{"name": name, "containerPort": number} for name, number in PORTS.items()],
        "startupProbe": healthz | {"periodSeconds": 5, "failureThreshold": 60},
        "readinessProbe": healthz,  # every 10 seconds; the third failure counts
        # TCP: a slow etcd or disk can fail /healthz, and a restart would make that worse.
        "livenessProbe": {"tcpSocket": {"port": port}, "timeoutSeconds": 5, "periodSeconds": 15},
        "resources": {"requests": {"cpu": "250m", "memory": "1Gi"}},
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": mounts,
    }


def data_volume(milvus: Obj, spec: Spec, ordinal: int) -> Obj:
    if spec.storage:
        source = {"persistentVolumeClaim": {"claimName": claim_name(milvus, ordinal)}}
        return {"name": "data"} | source
    return {"name": "data", "emptyDir": {}}


def config_volume() -> Obj:
    """The files, from the annotations of the pod."""
    files = [
        {"path": file, "fieldRef": {"fieldPath": f"metadata.annotations['{GROUP}/{file}']"}}
        for file in FILES
    ]
    return {"name": CONFIG_VOLUME, "downwardAPI": {"items": files}}


def defaults_for(theirs: Settings) -> dict[str, str]:
    """The settings of default.yaml, given the user's own. An unknown address counts as
    outside the pod: if it were taken for local, an empty etcd would start beside the user's own."""
    chosen = {}
    for address, setting, value in EXTERNAL_SERVICES:
        where = theirs.get(canonical(address), "")
        if where is None or not LOCAL_ADDRESSES.fullmatch(where):
            chosen[setting] = value
    return DEFAULTS | chosen


# --- Its claim, its Service, and their names ---


def pod_name(milvus: Obj, ordinal: int) -> str:
    return f"{name_of(milvus)}-{ordinal}"


def claim_name(milvus: Obj, ordinal: int) -> str:
    return f"data-{pod_name(milvus, ordinal)}"


def full_data_name(milvus: Obj) -> str:
    """The full name of its claims, without the ordinal."""
    return f"{namespace_of(milvus)}/data-{name_of(milvus)}"


def our_label(milvus: Obj) -> dict[str, str]:
    """The label that the pods, the claims and the Service of a Milvus have."""
    return {MILVUS_LABEL: name_of(milvus)}


def selector_of(milvus: Obj) -> str:
    return f"{MILVUS_LABEL}={name_of(milvus)}"


def labels_for_people(milvus: Obj, ordinal: int) -> dict[str, str]:
    """For people and their selectors. Nothing here relies on them: policies rewrite such labels."""
    return {
        "app.kubernetes.io/name": "milvus",
        "app.kubernetes.io/instance": name_of(milvus),
        "app.kubernetes.io/managed-by": MANAGER,
        "apps.kubernetes.io/pod-index": str(ordinal),
    }


def reference_to(milvus: Obj) -> Obj:
    return {"apiVersion": API_VERSION, "kind": KIND, "name": name_of(milvus), "uid": uid_of(milvus)}


def owner_reference(milvus: Obj) -> Obj:
    return reference_to(milvus) | {"controller": True}


def new_claim(milvus: Obj, spec: Spec, ordinal: int) -> Obj:
    """The PersistentVolumeClaim of a pod. It has no owner, so the data outlives pod and Milvus."""
    wanted = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": spec.storage["size"]}},
    }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": claim_name(milvus, ordinal),
            "namespace": namespace_of(milvus),
            "labels": our_label(milvus),
        },
        "spec": wanted | pick(spec.storage, ["storageClassName"]),
    }


def new_service(milvus: Obj) -> Obj:
    """The headless Service of a Milvus x: the DNS name `x` leads to its Ready pods, `x-0.x` to one.
    Once it is there, it is never changed."""
    ports = [{"name": name, "port": number} for name, number in PORTS.items()]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name_of(milvus),
            "namespace": namespace_of(milvus),
            "labels": our_label(milvus),
            "ownerReferences": [owner_reference(milvus)],
        },
        "spec": {"clusterIP": "None", "selector": our_label(milvus), "ports": ports},
    }


# --- spec.pod, laid over the generated pod ---

# What the items of these lists are merged by; other lists are replaced.
MERGE_KEYS = {
    "containers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
}
# Items of these lists are replaced as a whole: merged, a variable could have both `value` and
# `valueFrom`, and a volume two sources, which the API server rejects.
WHOLE = ("env", "volumes")


def overlay(base: Obj, over: Any, name: str) -> Obj:
    """The mapping `over` laid over `base`: what it has wins, and null removes a key. `resources`
    are replaced as a whole, because Kubernetes takes a limit without a request for the request.
    Raises InvalidSpec with the `name` of what is wrong."""
    if not isinstance(over, dict):
        raise InvalidSpec(f"{name} in spec.pod must be a mapping")
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(below, list) and key in MERGE_KEYS:
            merged[key] = overlay_list(below, value or [], key)
        elif value is None:
            merged.pop(key, None)
        elif isinstance(below, dict) and key != "resources":
            merged[key] = overlay(below, value, key)
        else:
            merged[key] = value
    return merged


def overlay_list(base: list[Obj], over: Any, name: str) -> list[Obj]:
    """A list laid over another: first the items of `base` that `over` does not name, then those of
    `over`, each merged with the item of the same name. Raises InvalidSpec."""
    if not isinstance(over, list) or not all(isinstance(item, dict) for item in over):
        raise InvalidSpec(f"{name} in spec.pod must be a list of mappings")
    key = MERGE_KEYS[name]
    if name == "volumeMounts":
        over = [with_plain_path(mount) for mount in over]
    by_key = {item[key]: item for item in base}
    named = [item.get(key) for item in over]
    merged = [item for item in base if item[key] not in named]
    for item in over:
        below = {} if name in WHOLE else by_key.get(item.get(key), {})
        merged.append(overlay(below, item, name))
    return merged


def with_plain_path(mount: Obj) -> Obj:
    """A mount with its path as a kubelet reads it: `/a//b/` is `/a/b`."""
    path = str(mount.get("mountPath", "")).lstrip("/")
    return mount | {"mountPath": normpath(f"/{path}")} if path else mount


# ---------- The spec: what a user may ask for ----------

Settings = Mapping[str, str | None]  # by canonical name; None: the value is not known here


@dataclass(frozen=True)
class Spec:
    """The spec of a Milvus, read and checked: see `spec_of`."""

    image: str = ""
    replicas: int = 1
    storage: Obj = field(default_factory=dict)
    pod: Obj = field(default_factory=dict)  # the overlay
    settings: dict[str, str] = field(default_factory=dict)  # of milvusSpec, by canonical name
    user_file: str = ""  # the text of user.yaml
    updates_on_delete: bool = False  # whether outdated pods stay until somebody deletes them
    min_ready: int = 10  # seconds that a new pod must have been Ready before a roll goes on
    template_hash: str = ""  # the fingerprint of image, milvusSpec and pod


def spec_of(milvus: Obj) -> Spec:
    """Read the spec of a Milvus. Raises InvalidSpec."""
    fields = milvus["spec"]
    text = fields.get("milvusSpec") or ""
    parsed = parse_settings(text)
    settings = dict(flatten(parsed))
    strategy = fields.get("updateStrategy") or {}
    pod = {key: value for key, value in (fields.get("pod") or {}).items() if value}
    spec = Spec(
        **pick(fields, ("image", "replicas", "storage")),
        pod=pod,
        settings=settings,
        user_file=text if parsed else "",
        updates_on_delete=strategy.get("type") == "OnDelete",
        min_ready=strategy.get("minReadySeconds", Spec.min_ready),
        template_hash=fingerprint(fields["image"], settings, pod),
    )
    refuse_dangers(milvus, spec)
    return spec


def fingerprint(*template: Any) -> str:
    """A hash of what the user's own fields mean. Only when it changes are pods replaced, so it
    leaves out `storage`, which can grow, and all that `new_pod` adds: a new version of the operator
    replaces no pods. test_a_new_version_of_the_operator_replaces_no_pods pins some hashes."""
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:16]


# --- milvusSpec ---

MAX_EVENTS = 5000  # of YAML, two for each setting: it bounds the time of parsing, and the depth
BaseLoader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # the fast one, if there is one


class Loader(BaseLoader):  # type: ignore[misc,valid-type]
    """All values as text, so that `1` and `'1'` are the same. A section may be there only once: of
    two, Milvus would silently drop the first, even one that turns on a login."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Obj:
        mapping = super().construct_mapping(node, deep)
        keys = set[str]()
        for key, _ in node.value:
            if key.value in keys:
                raise invalid_line(key.start_mark.line + 1, "this section or setting appears twice")
            keys.add(key.value)
        return mapping


def invalid_line(line: int, text: str) -> InvalidSpec:
    return InvalidSpec(f"spec.milvusSpec, line {line}: {text}")


def parse_settings(text: str) -> Obj:
    """The settings in a text, nested as they are written. Words such as "this is milvus spec" set
    nothing. It may hold secrets, so no message quotes it. Raises InvalidSpec."""
    line = 1
    events: Iterable[Any] = yaml.parse(text, Loader)
    try:
        for number, event in enumerate(events):
            line = event.start_mark.line + 1
            if number == MAX_EVENTS:
                raise InvalidSpec(f"spec.milvusSpec has more than {MAX_EVENTS // 2} settings")
            # Milvus ignores all of its files if a tag does not fit. Aliases can take gigabytes.
            if isinstance(event, yaml.AliasEvent) or getattr(event, "tag", None):
                raise invalid_line(
                    line, "aliases and tags (& * !) are not allowed: write plain values"
                )
        settings = yaml.load(text, Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if mark := getattr(error, "problem_mark", None):  # perhaps behind the last line
            line = min(mark.line, text.rstrip().count("\n")) + 1
        raise invalid_line(line, "this is not a single, valid YAML document") from None
    if settings is None or isinstance(settings, dict):
        return settings or {}
    if re.search("[:=]", text):  # it looks like settings
        raise InvalidSpec("spec.milvusSpec is not a YAML mapping: write `name: value`")
    return {}


def flatten(settings: Obj, prefix: str = "") -> Iterator[tuple[str, str]]:
    """The canonical name of each setting, and its value. Lists are joined, as in Milvus."""
    for key, value in settings.items():
        name = f"{prefix}{key}"
        # No name that is read here is so long, and a thousand of them could take gigabytes.
        if len(name) > 100:
            continue
        if isinstance(value, dict):
            yield from flatten(value, f"{name}.")
        elif isinstance(value, list):
            yield canonical(name), ",".join(map(str, value))
        else:
            yield canonical(name), value


def canonical(name: str) -> str:
    """The name of a setting as Milvus compares it: `minio.address`, MINIO_ADDRESS and
    MILVUS_CONF_MINIO_ADDRESS are one (formatKey and EnvSource of its pkg/config)."""
    plain = re.sub("[_./]", "", name).lower()
    return plain.removeprefix("milvusconf").removeprefix("milvus")  # also milvus.minio.address


def set_by_user(spec: Spec, pod: Obj) -> Settings:
    """What the user sets in spec.milvusSpec or, which wins, by variables."""
    found: dict[str, str | None] = {**spec.settings}
    for variable in server_of(pod).get("env") or []:
        name, value = variable.get("name", ""), str(variable.get("value") or "")
        if VARIABLES.get(name) != value:  # else it is ours
            is_known = "valueFrom" not in variable and "$(" not in value
            found[canonical(name)] = value if is_known else None
    return found


# --- What is refused, because data would be lost ---

# The variable that names the folder of each part of the data.
FOLDERS = {"vectors": "LOCALSTORAGE_PATH", "etcd": "ETCD_DATA_DIR", "queue": "ROCKSMQ_PATH"}
# Values of stock files that may stay, because ours win.
STOCK = {"", "~", "null", "default", "default.etcd"}
ENDS_WITH_POD = {"name", "emptyDir", "ephemeral", "csi"}  # keys of volumes
TRUE = ("true", "t", "1", "yes", "y", "on")


def refuse_dangers(milvus: Obj, spec: Spec) -> None:
    """Refuse what would lose data, or mix that of two pods: Milvus deletes each file that its etcd
    does not know. Raises InvalidSpec."""
    ordinal = MAX_REPLICAS  # no pod has it, so no volume of the user's own can be its claim
    pod = new_pod(milvus, spec, ordinal)
    refuse_overrides(spec, pod)
    outside = outside_of(spec, pod)
    places = {
        part: place_of(pod, variable, data_volume(milvus, spec, ordinal))
        for part, variable in FOLDERS.items()
        if part not in outside
    }
    ending = [part for part, place in places.items() if place.ends_with_pod]
    shared = [part for part, place in places.items() if place.is_shared] + sorted(outside)
    if spec.storage and ending:
        text = f"the data of {ending[0]} would end with the pod, although spec.storage is set"
        raise InvalidSpec(f"{text}: mount nothing else at {places[ending[0]].path}")
    # All may end together, and the queue alone may be elsewhere.
    if ending and not {"vectors", "etcd"} <= {*ending}:
        text = f"the data of {' and '.join(ending)} would end with the pod, and the rest of it is"
        advice = "create a Milvus with spec.storage, or move all three out of the pod"
        raise InvalidSpec(f"{text} useless alone: {advice}")
    if spec.replicas > 1 and shared:
        text = f"all replicas would share their {shared[0]}, and delete each other's data"
        advice = "set spec.replicas to 1, and create one Milvus for each place"
        raise InvalidSpec(f"{text}: {advice}")


def refuse_overrides(spec: Spec, pod: Obj) -> None:
    """Refuse what must not be changed. Raises InvalidSpec."""
    for name, value in VARIABLES.items():
        theirs = spec.settings.get(canonical(name), "")
        if theirs not in STOCK and normpath(theirs) != value:  # `/a/` is `/a`
            text = f"spec.milvusSpec must not change what the variable {name} sets ({value})"
            advice = "leave it out, or set the variable, and what relies on it, in spec.pod"
            raise InvalidSpec(f"{text}: {advice}")
    if server_of(pod).get("envFrom"):  # an address may be among them
        text = "spec.pod must not have envFrom in the container milvus"
        raise InvalidSpec(f"{text}: list each variable in env, with valueFrom")
    if pod["spec"].get("terminationGracePeriodSeconds") == 0:
        text = "spec.pod.spec.terminationGracePeriodSeconds must not be 0"
        raise InvalidSpec(f"{text}: a new pod would use the volume before the old one has ended")
    files = {CONFIGS, *(f"{CONFIGS}/{name}" for name in ("milvus.yaml", DEFAULT_FILE, USER_FILE))}
    for mount in mounts_of(pod):
        if mount["mountPath"] in files and mount["name"] != CONFIG_VOLUME:
            text = f"spec.pod mounts settings of its own at {mount['mountPath']}"
            raise InvalidSpec(f"{text}: write them in spec.milvusSpec")


def outside_of(spec: Spec, pod: Obj) -> set[str]:
    """The parts of the data that are not in the pod."""
    theirs = set_by_user(spec, pod)
    settings = {canonical(name): value for name, value in defaults_for(theirs).items()}
    settings |= {name: value for name, value in theirs.items() if value is not None}
    queue = settings[canonical("mq.type")].lower()
    if queue == "woodpecker":
        queue = settings.get(canonical("woodpecker.storage.type"), "minio")  # its own default
    is_outside = {
        "vectors": settings[canonical("common.storageType")] != "local",
        "etcd": settings[canonical("etcd.use.embed")].lower() not in TRUE,
        "queue": queue in ("pulsar", "kafka", "minio"),
    }
    return {part for part, is_so in is_outside.items() if is_so}


class Place(NamedTuple):
    """Where a part of the data is in the pod."""

    path: str  # of the mount
    ends_with_pod: bool
    is_shared: bool  # by all replicas


def place_of(pod: Obj, variable: str, ours: Obj) -> Place:
    """The place of the folder that this variable names; `ours` is the volume of the generated pod.
    One that comes from a Secret is assumed to be below DATA. Raises InvalidSpec."""
    variables = {one.get("name"): one.get("value") or DATA for one in server_of(pod)["env"]}
    folder = normpath(variables.get(variable, DATA))
    mounts = mounts_of(pod)
    above = [mount for mount in mounts if f"{folder}/".startswith(f"{mount['mountPath']}/")]
    mount: Obj = max(above, key=lambda mount: len(mount["mountPath"]), default={"name": None})
    volume = next((v for v in pod["spec"]["volumes"] if v["name"] == mount["name"]), None)
    if not volume:
        raise InvalidSpec(f"no volume is mounted at {folder}: mount the one named data at {DATA}")
    ends_with_pod = volume.keys() <= ENDS_WITH_POD
    is_separate = ends_with_pod or volume == ours or "$(" in mount.get("subPathExpr", "")
    return Place(mount["mountPath"], ends_with_pod, not is_separate)


# ---------- Readers of unstructured objects ----------


def name_of(obj: Obj) -> str:
    return obj["metadata"]["name"]


def namespace_of(obj: Obj) -> str:
    return obj["metadata"]["namespace"]


def full_name(obj: Obj) -> str:
    return f"{namespace_of(obj)}/{name_of(obj)}"


def uid_of(obj: Obj) -> str:
    return obj["metadata"]["uid"]


def controller_of(obj: Obj) -> Obj:
    """The owner reference whose `controller` is true (at most one), or an empty mapping."""
    owners = obj["metadata"].get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("controller")), {})


def template_hash_of(pod: Obj) -> str | None:
    return (pod["metadata"].get("annotations") or {}).get(TEMPLATE_HASH)


def phase_of(obj: Obj) -> str:
    return obj["status"].get("phase", "Unknown")


def condition_of(obj: Obj, type_: str) -> Obj:
    """The condition of this type in its status, or an empty mapping."""
    conditions = obj["status"].get("conditions") or []
    return next((item for item in conditions if item.get("type") == type_), {})


def containers_of(pod: Obj) -> list[Obj]:
    """What its status says of its containers."""
    return pod["status"].get("containerStatuses") or []


def is_ending(obj: Obj) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def is_finished(pod: Obj) -> bool:
    """Failed or Succeeded: its containers have ended and will not start again."""
    return phase_of(pod) in ("Failed", "Succeeded")


def is_over(pod: Obj) -> bool:
    return is_ending(pod) or is_finished(pod)


def is_ready(pod: Obj) -> bool:
    return not is_over(pod) and condition_of(pod, "Ready").get("status") == "True"


def seconds_since_ready_changed(pod: Obj) -> float:
    """Since its condition Ready last changed, by the node's clock; inf: not known."""
    since = condition_of(pod, "Ready").get("lastTransitionTime")
    if not since:
        return inf
    return (datetime.now(UTC) - datetime.fromisoformat(since)).total_seconds()


def why_not_ready(pod: Obj) -> Why:
    """Why a pod is not Ready, in the words of its status, or else its phase."""
    status = pod["status"]
    phase = phase_of(pod)
    if is_ending(pod):
        return Why("Terminating")
    if is_finished(pod):
        return Why(status.get("reason") or phase, status.get("message") or "")
    otherwise = {"reason": "NotReady" if phase == "Running" else phase}
    told = next((part for part in troubles_of(pod) if part.get("reason")), otherwise)
    ends = [(one.get("lastState") or {}).get("terminated") or {} for one in containers_of(pod)]
    last = next((f" (last exit: {end['reason']})" for end in ends if end.get("reason")), "")
    return Why(told["reason"], f"{told.get('message') or ''}{last}")


def troubles_of(pod: Obj) -> Iterator[Obj]:
    """The states of its containers; then PodScheduled and Ready, if they are not true."""
    for container in (pod["status"].get("initContainerStatuses") or []) + containers_of(pod):
        for state in (container.get("state") or {}).values():  # waiting, running or terminated
            if state.get("reason") != "Completed":
                yield state
    for condition in (condition_of(pod, "PodScheduled"), condition_of(pod, "Ready")):
        if condition.get("status") != "True":
            yield condition


def server_of(pod: Obj) -> Obj:
    """The container that runs Milvus."""
    return next(one for one in pod["spec"]["containers"] if one.get("name") == CONTAINER)


def mounts_of(pod: Obj) -> list[Obj]:
    return server_of(pod).get("volumeMounts") or []


def pick(obj: Obj, keys: Iterable[str]) -> Obj:
    """The part of a mapping that has these keys, without those that are null."""
    return {key: obj[key] for key in keys if obj.get(key) is not None}


def contains(obj: Obj, part: Mapping[str, Any]) -> bool:
    """Whether a mapping has all of these keys, with these values."""
    return part.items() <= obj.items()


# ---------- The API: the only part that knows about HTTP ----------


def by_gvr(api: ApiClient, group: str, version: str, kind: str, name: str, **more: Any) -> Resource:
    """A resource of the dynamic client, without its discovery requests and its cache file."""
    client = DynamicClient(api, discoverer=lambda client, cache_file: None)
    prefix = "apis" if group else "api"
    return Resource(prefix, group, version, kind, name=name, namespaced=True, client=client, **more)


def milvuses(api: ApiClient) -> Resource:
    """The Milvus resources; other programs, too, can create, get, list, patch and delete them."""
    status = {"kind": KIND, "name": f"{PLURAL}/status", "namespaced": True}
    return by_gvr(api, GROUP, VERSION, KIND, PLURAL, subresources={"status": status})


def pods(api: ApiClient) -> Resource:
    """The pods; also for other programs."""
    return by_gvr(api, "", "v1", "Pod", "pods")


@dataclass(eq=False)  # an exception must have a hash
class ApiError(Exception):
    """A request that failed."""

    why: Why  # what it means for the Milvus concerned, in the server's words
    code: int = 0  # of HTTP; 0: there was no valid response
    status_reason: str = ""  # the `reason` of the server's Status object

    def __str__(self) -> str:
        return self.why.message


REASONS = {400: "Invalid", 403: "Forbidden", 422: "Invalid"}  # by HTTP status code


def rejection(error: ApiException) -> ApiError:
    """What a response means. Its body is a Status object if the API server wrote it."""
    try:
        status = dict(json.loads(error.body or ""))
    except (ValueError, TypeError):
        status = {}
    code = error.status or 0
    words = status.get("message") or error.reason or f"HTTP {code}"
    message = " ".join(str(words).split())[:1000]
    reason = REASONS.get(code, "APIError")
    if code == 403 and "is forbidden: exceeded quota: " in message:  # only its words tell
        reason = "QuotaExceeded"
    return ApiError(Why(reason, message), code, status.get("reason") or "")


ONE_REQUEST = 10  # seconds; a write, or a read of one object, that takes longer has failed
PAGE = 250  # objects in a page of a list


# What is read of objects.
METADATA = ("name", "namespace", "uid", "generation", "resourceVersion", "deletionTimestamp")
LISTS = ("conditions", "initContainerStatuses", "containerStatuses")  # of a status
CONDITION = ("type", "status", "reason", "message", "lastTransitionTime")
CONTAINER_STATUS = ("ready", "state", "lastState")


def slim(obj: Obj) -> Obj:
    """An object without what is never read. A Milvus keeps its whole spec and status."""
    metadata = pick(obj["metadata"], (*METADATA, "labels", "ownerReferences"))
    metadata["annotations"] = pick(obj["metadata"].get("annotations") or {}, [TEMPLATE_HASH])
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    if obj.get("kind") != KIND:
        spec = pick(spec, ["resources"])  # of a claim
        lists = pick(status, LISTS).items()
        status = pick(status, ("phase", "reason", "message"))
        for name, items in lists:
            status[name] = [pick(item, CONDITION + CONTAINER_STATUS) for item in items]
    return {"metadata": metadata, "spec": spec, "status": status}


@dataclass
class Api:
    """The requests to one API server. The methods raise ApiError."""

    client: ApiClient
    timeout: float = 30  # for a list, in seconds
    dry_run: bool = False
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.progressed = self.clock()  # when a request last ended
        self.pages: dict[bytes, list[Obj]] = {}  # the objects in those of this pass, by digest
        self.old_pages: dict[bytes, list[Obj]] = {}  # in those of the pass before
        self.use(self.client)

    def start_pass(self) -> None:
        self.progressed = self.clock()
        self.old_pages = self.pages
        self.pages = {}

    def use(self, client: ApiClient) -> None:
        self.client = client
        self.server = client.configuration.host
        self.pods = pods(client)
        self.claims = by_gvr(client, "", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
        self.services = by_gvr(client, "", "v1", "Service", "services")
        self.milvuses = milvuses(client)
        self.events = by_gvr(client, "events.k8s.io", "v1", "Event", "events")

    def list_all(
        self, resource: Resource, namespace: str | None, selector: str | None = MILVUS_LABEL
    ) -> list[Obj]:
        """All objects of a list, slim, page by page."""
        found: list[Obj] = []
        options = {"label_selector": selector, "limit": PAGE, "_request_timeout": self.timeout}
        while True:
            # Without a resourceVersion, a list shows the effect of every write that has ended.
            try:
                body = self.send("get", resource, {"namespace": namespace}, **options)
                objects, options["_continue"] = self.read_page(body, f"{resource.kind}List")
            except ApiError as error:
                error.why = Why("APIError", f"cannot list {resource.name}: {error}")
                raise
            found += objects
            if not options["_continue"]:
                return found

    def read_page(self, body: bytes, kind: str) -> tuple[list[Obj], str]:
        """The objects in a page of a list, and what to continue with. A page that is as in the pass
        before is not parsed again, which saves most of the CPU time of a quiet pass. So nothing may
        ever change a listed dict."""
        # The metadata of a list, with a version that always changes, are before the items or behind
        # them, and have no lists in them. If the items are not found, all is parsed.
        before, bracket, rest = body.partition(b'"items":[')
        items, _, after = rest.rpartition(b"]")
        digest = hashlib.blake2b(items).digest()
        is_known = bool(bracket) and digest in self.old_pages
        page = parse(before + bracket + b"]" + after if is_known else body, kind)
        objects = self.old_pages[digest] if is_known else [slim(obj) for obj in page["items"]]
        self.pages[digest] = objects
        return objects, page["metadata"].get("continue", "")

    def request(self, verb: str, resource: Resource, target: Obj, **options: Any) -> Obj:
        """Send a request about one object; for a dry run, one that changes nothing. Returns the
        object in the response."""
        if self.dry_run and verb != "get":
            options["dry_run"] = "All"
        return parse(self.send(verb, resource, target, **options), resource.kind, "Status")

    def send(self, verb: str, resource: Resource, target: Obj, **options: Any) -> bytes:
        """Send a request about the target, the metadata of an object. Returns the response."""
        options |= pick(target, ("namespace", "name"))
        timeout = options.setdefault("_request_timeout", min(self.timeout, ONE_REQUEST))
        try:
            return bytes(getattr(resource, verb)(serialize=False, **options).data)
        except ApiException as error:
            raise rejection(error) from None
        except urllib3.exceptions.TimeoutError:
            raise ApiError(Why("APIError", f"no answer within {timeout:g} s")) from None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiError(Why("APIError", f"{type(error).__name__}: {error}")) from None
        finally:
            self.progressed = self.clock()

    def get(self, resource: Resource, obj: Obj) -> Obj:
        return self.request("get", resource, obj["metadata"])

    def create(self, resource: Resource, obj: Obj, **options: Any) -> Obj:
        """Create an object. The server rejects a misspelled field instead of dropping it."""
        strict = [("fieldValidation", "Strict")]
        options |= {"body": obj, "query_params": strict}
        return self.request("create", resource, obj["metadata"], **options)

    def patch(self, resource: Resource, obj: Obj, change: Obj) -> Obj:
        """Change an object, unless somebody else has changed it since it was listed."""
        metadata = pick(obj["metadata"], ["resourceVersion"]) | change.get("metadata", {})
        options = {
            "body": change | {"metadata": metadata},
            "content_type": "application/merge-patch+json",
        }
        return self.request("patch", resource, obj["metadata"], **options)

    def check(self, pod: Obj) -> None:
        """Find out by a dry run whether the API server would accept such a pod. The
        name is checked last, so AlreadyExists means that all else is fine. A quota is no objection:
        the old pod will make room."""
        try:
            self.create(self.pods, pod, dry_run="All")
        except ApiError as error:
            if error.status_reason != "AlreadyExists" and error.why.reason != "QuotaExceeded":
                error.why = Why(error.why.reason, f"in a dry run: {error.why.message}")
                raise

    def delete(self, pod: Obj) -> None:
        """Delete a pod, unless another has its name now. If it was not Ready when it was listed, it
        must not have changed since: it may have become Ready."""
        keys = ["uid"] if is_ready(pod) else ["uid", "resourceVersion"]
        body: Obj = {"preconditions": pick(pod["metadata"], keys)}
        if self.dry_run:  # in the body: if there is a body, the API server ignores ?dryRun=All
            body["dryRun"] = ["All"]
        self.request("delete", self.pods, pod["metadata"], body=body)

    def send_event(self, event: Obj) -> None:
        """Send an event. Nothing depends on it."""
        try:
            self.create(self.events, event)
        except ApiError as error:
            log.debug("an event was not sent: %s", error)


def parse(body: bytes, *kinds: str) -> Obj:
    """The object in a response: something other than an API server may respond with 200, too."""
    try:
        answer = json.loads(body)
        if answer["kind"] in kinds:
            return dict(answer)
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise ApiError(Why("APIError", "the response did not come from a Kubernetes API server"))


# ---------- The connection ----------

IN_POD = "KUBERNETES_SERVICE_HOST"  # an environment variable that every container has
NAMESPACE_FILE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"  # in every container


class Connection(NamedTuple):
    """What a configuration says."""

    client: ApiClient
    namespace: str  # the default one
    context: str | None  # of the kubeconfig; None: it is the pod's own


def connect(path: str | None, context: str | None, workers: int) -> Connection:
    """Load a kubeconfig or, in a pod without one, the pod's own configuration. Raises Unusable."""
    file = path or os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
    what = f"the kubeconfig {file}"
    configuration = Configuration()
    try:
        if IN_POD in os.environ and not (path or context or os.path.exists(file)):
            what = "the pod's service account"
            config.load_incluster_config(configuration)
            with open(NAMESPACE_FILE) as opened:
                return Connection(new_client(configuration, workers), opened.read().strip(), None)
        config.load_kube_config(file, context, configuration, persist_config=False)
        contexts, active = config.list_kube_config_contexts(file)
        chosen = next((one for one in contexts if one["name"] == context), active)
        namespace = chosen["context"].get("namespace") or "default"
        return Connection(new_client(configuration, workers), namespace, chosen["name"])
    except config.ConfigException as error:
        text = str(error).partition("/{")[0]  # behind that, the library quotes users
    except Exception as error:  # a malformed file may raise anything in the loader
        text = type(error).__name__
    raise Unusable(f"cannot use {what}: {text}")


def new_client(configuration: Configuration, workers: int) -> ApiClient:
    """The official client, set up for this operator."""
    configuration.connection_pool_maxsize = workers
    configuration.keep_alive = True  # load balancers silently drop idle connections
    configuration.retries = False  # the next pass is the retry
    client = ApiClient(configuration)
    client.user_agent = f"{MANAGER}/{__version__}"
    client.default_headers["Accept-Encoding"] = "gzip"  # less to decrypt
    return client


# ---------- Health and metrics over HTTP ----------


class Health(metrics.MetricsHandler):
    """`/healthz`: the loop makes progress. `/readyz`: all has been listed. `/metrics`."""

    operator: Operator
    timeout = 5  # seconds for a client to send its request

    def do_GET(self) -> None:
        path, _, _ = self.path.partition("?")
        if path == "/metrics":
            super().do_GET()
            return
        health = {"/healthz": self.operator.is_alive(), "/readyz": self.operator.has_served}
        code = (200 if health[path] else 503) if path in health else 404
        self.send_response(code)
        self.end_headers()
        self.wfile.write(f"{self.responses[code][0]}\n".encode())


class HealthServer(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that disconnects is not worth a log line."""


def start_health_server(operator: Operator, port: int) -> None:
    """Serve Health until the process ends: in a pod on all addresses, else on localhost. Raises
    Unusable."""
    Health.operator = operator
    address = "127.0.0.1"
    if IN_POD in os.environ:
        address = ""
        if socket.has_dualstack_ipv6():
            HealthServer.address_family = socket.AF_INET6
    try:
        server = HealthServer((address, port), Health)
    except OSError as error:
        raise Unusable(f"cannot listen on port {port}: {error.strerror}; choose another") from None
    threading.Thread(target=server.serve_forever, daemon=True).start()


# ---------- The command ----------


def text_line(record: logging.LogRecord) -> str:
    """One line; without control characters, which may be escape sequences of terminals."""
    message = re.sub(r"[\s\x00-\x1f\x7f-\x9f]+", " ", record.getMessage())
    return f"{timestamp()} {record.levelname:7} {message}"


def json_line(record: logging.LogRecord) -> str:
    """A line about a Milvus has its namespace and name as fields."""
    fields = {
        "timestamp": timestamp("milliseconds"),
        "level": record.levelname,
        "message": record.getMessage(),
    }
    return json.dumps(fields | getattr(record, "about", {}))


def start_log(verbose: bool, log_format: str) -> None:
    """Log lines of text for people, or of JSON for collectors; times are in UTC."""
    handler = logging.StreamHandler()
    handler.format = json_line if log_format == "json" else text_line  # type: ignore[method-assign]
    log.addHandler(handler)
    log.setLevel(logging.DEBUG if verbose else logging.INFO)
    logging.getLogger().addHandler(logging.NullHandler())  # libraries would log in other formats
    urllib3.disable_warnings()  # of `insecure-skip-tls-verify`, before each request


SECONDS = click.FloatRange(0.1, 86400)
CLICK = {"auto_envvar_prefix": "MILVUS_OPERATOR", "help_option_names": ["-h", "--help"]}


@click.command(context_settings=CLICK | {"show_default": True})
@click.option("-n", "--namespace", multiple=True, help="Namespace to manage; can be repeated.")
@click.option("-A", "--all-namespaces", is_flag=True, help="Manage all namespaces.")
@click.option("--interval", type=SECONDS, default=5.0, help="Most seconds between passes.")
@click.option("--once", is_flag=True, help="Do what can be done now, then exit with 0 or 1.")
@click.option("--dry-run", is_flag=True, help="Make one pass, and only log what would be done.")
@click.option("--kubeconfig", help="The kubeconfig file. Default: as kubectl finds it.")
@click.option("--context", help="The kubeconfig context. Default: the current one.")
@click.option("--timeout", type=SECONDS, default=30.0, help="Time-out of a list, in seconds.")
@click.option(
    "--workers", type=click.IntRange(1, 256), default=16, help="How many Milvus to serve at once."
)
@click.option("--health-port", type=click.IntRange(1, 65535), help="Port for health and metrics.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", help="Of lines.")
@click.option("-v", "--verbose", is_flag=True, help="Also log passes that changed nothing.")
@click.version_option(__version__, message=f"{MANAGER} %(version)s", allow_from_autoenv=False)
def main(
    namespace: tuple[str, ...],
    all_namespaces: bool,
    interval: float,
    once: bool,
    dry_run: bool,
    kubeconfig: str | None,
    context: str | None,
    timeout: float,
    workers: int,
    health_port: int | None,
    log_format: str,
    verbose: bool,
) -> None:
    """Keep the pods of every Milvus resource running.

    Without -n or -A, it manages the namespace of the kubeconfig's context or, in a pod, its own.
    Each option can also be set by a variable, such as MILVUS_OPERATOR_INTERVAL=10.
    """
    names = [one.strip() for one in ",".join(namespace).split(",")]  # a variable may list several
    chosen: list[str | None] = [one for one in dict.fromkeys(names) if one]
    if chosen and all_namespaces:
        raise click.UsageError("-A cannot be combined with -n or MILVUS_OPERATOR_NAMESPACE")
    is_once = once or dry_run
    # Every write is safe to cut short, and to repeat.
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: os._exit(1 if is_once else 0))
    # A spec may be nested ten thousand levels deep; by default, json would fail at a thousand, and
    # with that the whole list.
    sys.setrecursionlimit(20_000)
    start_log(verbose, log_format)
    connection = connect(kubeconfig, context, workers)
    namespaces = chosen or [None if all_namespaces else connection.namespace]

    def reload() -> ApiClient:
        return connect(kubeconfig, connection.context, workers).client

    api = Api(connection.client, timeout, dry_run)
    where = ", ".join(one or "all namespaces" for one in namespaces)
    dry = " (dry run)" if dry_run else ""
    start = f"{where}, every {interval:g} s, server {api.server}{dry}"
    log.info("%s %s: %s", MANAGER, __version__, start)
    operator = Operator(api, reload, namespaces, interval, workers)
    if health_port:
        start_health_server(operator, health_port)
    if not is_once:
        operator.run()
    os._exit(0 if operator.run_once() else 1)


if __name__ == "__main__":
    main()
