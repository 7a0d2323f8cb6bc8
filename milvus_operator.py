#!/usr/bin/env python3
"""Keeps the pods of every Milvus resource running: a Kubernetes operator in one file.

    python milvus_operator.py          # serve the namespace of the kubeconfig's current context
    python milvus_operator.py -A       # serve all namespaces

It polls. Every few seconds it makes one pass:

1. list the pods that carry our label, then the Milvus resources, page by page;
2. index the pods by the UID of their owner;
3. decide for each Milvus, with pure functions over plain dicts, which pods to create,
   delete, adopt or label, and what its status says;
4. write that with a few workers, round robin, so that no Milvus waits for another;
5. wait for the next pass.

Nothing is kept between passes but back-off times. Names are fixed, every delete carries a
UID and every decision starts from fresh lists, so a write that is lost, repeated or made by
a second copy of the operator does no harm.

In the names below a *milvus* is one resource of kind Milvus, a *pod* one pod, both as the
dicts of their JSON; an *ordinal* is the number at the end of a pod's name.
"""

from __future__ import annotations

import functools
import hashlib
import http.client
import io
import json
import logging
import math
import os
import random
import re
import signal
import socket
import ssl
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import click
import urllib3
import yaml
from kubernetes import config as kubeconfig_loader
from kubernetes.client import ApiClient, Configuration
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.resource import Resource

__version__ = "0.1.0"

Obj = dict[str, Any]  # a Kubernetes object, or a part of one, as its JSON says it

# --------------------------------------------------------------------------------------
# Constants
# --------------------------------------------------------------------------------------

GROUP, VERSION, KIND, PLURAL = "zilliz.com", "v1", "Milvus", "milvuses"
API_VERSION = f"{GROUP}/{VERSION}"

NAME_LABEL = "app.kubernetes.io/name"
INSTANCE_LABEL = "app.kubernetes.io/instance"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
POD_INDEX_LABEL = "apps.kubernetes.io/pod-index"
MANAGER = "milvus-operator"
TEMPLATE_HASH = f"{GROUP}/template-hash"  # annotation: the fingerprint of the user's own fields
MILVUS_SPEC = f"{GROUP}/milvus-spec"  # annotation: spec.milvusSpec, word for word

CONTAINER = "milvus"  # the container that runs Milvus
DATA = "/var/lib/milvus"
MAX_REPLICAS = 1000
MAX_NAME = 52  # so that <name>-<ordinal> is a host name and <name> a label, with room to spare
MAX_SPEC, MAX_SPEC_DEPTH, MAX_SETTINGS = 65536, 32, 1000  # bytes, levels and settings of spec.milvusSpec
MAX_POD_DEPTH = 100  # levels of nesting in spec.pod; a real pod has about fifteen
MAX_DEPTH = 200  # levels of nesting that are read of an API server's answer
PAGE = 500  # objects in one page of a list
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")

# What makes a Milvus of one container, by the names of its configuration, as environment variables.
DEFAULTS = {
    "DEPLOY_MODE": "STANDALONE",
    "ETCD_USE_EMBED": "true",
    "ETCD_DATA_DIR": f"{DATA}/etcd",
    "ETCD_CONFIG_PATH": "/milvus/configs/advanced/etcd.yaml",
    "ETCD_ENDPOINTS": "localhost:2479",
    "COMMON_STORAGETYPE": "local",
    "MQ_TYPE": "rocksmq",
    "COMMON_GRACEFULSTOPTIMEOUT": "5",  # seconds; half an hour by default, far beyond a pod's grace period
    # The components find each other at these addresses. They share a container, and with the pod's
    # address, which changes, a new pod on kept data waits until the sessions of the old one run out.
    **{f"{component}_IP": "127.0.0.1" for component in (
        "ROOTCOORD", "DATACOORD", "QUERYCOORD", "INDEXCOORD", "PROXY",
        "DATANODE", "INDEXNODE", "QUERYNODE", "STREAMINGNODE",
    )},
}  # fmt: skip
PORTS = {"milvus": 19530, "metrics": 9091}
FIXED = {"proxyport": "proxy.port", "metricsport": "metrics.port"}  # settings that are the pod's, not the user's

# Reasons of the Reconciled condition.
NAME_CONFLICT, QUOTA_EXCEEDED, INVALID = "NameConflict", "QuotaExceeded", "Invalid"
FORBIDDEN, API_ERROR = "Forbidden", "APIError"
# Words of a pod that is on its way; any other word is shown before these.
PASSING = {"Creating", "ContainerCreating", "PodInitializing", "Pending", "Updating", "Terminating"}

YAML_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # scalars as written: `off` stays `off`
log = logging.getLogger("milvus_operator")


class Problem(NamedTuple):
    """Why a Milvus could not be served: the reason and message of its Reconciled condition."""

    reason: str
    message: str


class Invalid(Exception):
    """The spec of a Milvus can't be served; the text says why, for its owner."""


# --------------------------------------------------------------------------------------
# Readers of unstructured objects
# --------------------------------------------------------------------------------------


def name_of(obj: Obj) -> str:
    return str(obj["metadata"]["name"])


def namespace_of(obj: Obj) -> str:
    return str(obj["metadata"]["namespace"])


def uid_of(obj: Obj) -> str:
    return str(obj["metadata"]["uid"])


def full_name(obj: Obj) -> str:
    return f"{namespace_of(obj)}/{name_of(obj)}"


def labels_of(obj: Obj) -> Obj:
    return obj["metadata"].get("labels") or {}


def controller_of(obj: Obj) -> Obj | None:
    """The owner reference whose `controller` is true; an object has at most one."""
    owners = obj["metadata"].get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("controller")), None)


def owner_uid(obj: Obj) -> str | None:
    owner = controller_of(obj)
    return owner["uid"] if owner else None


def is_ending(obj: Obj) -> bool:
    return bool(obj["metadata"].get("deletionTimestamp"))


def is_finished(pod: Obj) -> bool:
    """Failed or Succeeded: its containers have ended and will not start again."""
    return phase_of(pod) in ("Failed", "Succeeded")


def is_active(pod: Obj) -> bool:
    return not is_ending(pod) and not is_finished(pod)


def is_ready(pod: Obj) -> bool:
    conditions = pod.get("status", {}).get("conditions") or []
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return ready and is_active(pod)


def phase_of(pod: Obj) -> str:
    return str(pod.get("status", {}).get("phase") or "Pending")


def template_hash_of(pod: Obj) -> str | None:
    return (pod["metadata"].get("annotations") or {}).get(TEMPLATE_HASH)


def mapping(value: Any) -> Obj:
    """The value if it is a mapping, else an empty one: a Milvus may be of any shape."""
    return value if isinstance(value, dict) else {}


# --------------------------------------------------------------------------------------
# The core: what a Milvus wants, what to do about what there is, and what its status says.
# No clock, no network and no log in here.
# --------------------------------------------------------------------------------------


def replicas_of(milvus: Obj) -> int:
    """How many pods are wanted.

    Raises Invalid when the spec can't be served. With our CRD the API server has checked
    most of it before; the original CRD checks nothing but the types.
    """
    spec, name = mapping(milvus.get("spec")), name_of(milvus)
    image, text, pod = spec.get("image"), spec.get("milvusSpec"), spec.get("pod")
    replicas = 1 if spec.get("replicas") is None else spec["replicas"]
    if len(name) > MAX_NAME or not DNS_LABEL.fullmatch(name):
        raise Invalid(f"the name must be a DNS label of at most {MAX_NAME} characters: pod names are made from it")
    if not isinstance(image, str) or not image:
        raise Invalid(f"spec.image must be the name of an image, not {short(image)}")
    if not isinstance(replicas, int) or isinstance(replicas, bool) or not 0 <= replicas <= MAX_REPLICAS:
        raise Invalid(f"spec.replicas must be a whole number from 0 to {MAX_REPLICAS}, not {short(replicas)}")
    if text is not None and not isinstance(text, str):
        raise Invalid(f"spec.milvusSpec must be text, not {short(text)}")
    if pod is not None and deeper_than(MAX_POD_DEPTH, pod):
        raise Invalid(f"spec.pod is nested more than {MAX_POD_DEPTH} levels deep")
    for path in ("storage", "pod", "pod.spec", "pod.metadata", "pod.metadata.labels", "pod.metadata.annotations"):
        value: Any = spec
        for key in path.split("."):
            value = mapping(value).get(key)
        if value is not None and not isinstance(value, dict):
            raise Invalid(f"spec.{path} must be a mapping, not {short(value)}")
    settings_of(milvus)
    return replicas


def deeper_than(levels: int, value: Any) -> bool:
    """Whether mappings and lists are nested in more levels; without recursion, which is what deep ones break."""
    layer = [value]
    for _ in range(levels + 1):
        layer = [
            part
            for outer in layer
            if isinstance(outer, (dict, list))
            for part in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not layer:
            return False
    return True


def short(value: Any) -> str:
    """The value for a message to people: its JSON when that is short, else its type."""
    if value in (None, ""):
        return "empty"
    if isinstance(value, (str, int, float)):
        return json.dumps(value)[:40]
    return "a mapping" if isinstance(value, dict) else "a list"


def template_hash(milvus: Obj) -> str:
    """The fingerprint of what the user wrote about the pods.

    It covers the user's fields, not the pod that is made of them: a new version of the
    operator, which may make another pod, must not restart databases.
    """
    spec = mapping(milvus.get("spec"))
    fields = {key: spec[key] for key in ("image", "milvusSpec", "pod") if spec.get(key) is not None}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]


def pod_name(milvus: Obj, ordinal: int) -> str:
    return f"{name_of(milvus)}-{ordinal}"


def ordinal_of(milvus: Obj, pod: Obj) -> int | None:
    """The pod's ordinal, or None when its name is not made from this Milvus's name."""
    start, _, end = name_of(pod).rpartition("-")
    if start != name_of(milvus) or not end.isdecimal():
        return None
    return int(end) if str(int(end)) == end else None


def selector_of(milvus: Obj) -> dict[str, str]:
    """The labels that all pods of a Milvus have in common."""
    return {NAME_LABEL: "milvus", INSTANCE_LABEL: name_of(milvus), MANAGED_BY_LABEL: MANAGER}


def pod_labels(milvus: Obj, ordinal: int) -> dict[str, str]:
    return selector_of(milvus) | {POD_INDEX_LABEL: str(ordinal)}


def owner_reference(milvus: Obj) -> Obj:
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": name_of(milvus),
        "uid": uid_of(milvus),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def new_pod(milvus: Obj, ordinal: int) -> Obj:
    """The pod of this ordinal, as it is sent to the API server: ours, with spec.pod laid over it."""
    spec, name, settings = milvus["spec"], pod_name(milvus, ordinal), settings_of(milvus)
    over = mapping(spec.get("pod"))
    metadata = mapping(over.get("metadata"))
    annotations = {TEMPLATE_HASH: template_hash(milvus)}
    if settings is None:
        annotations[MILVUS_SPEC] = spec["milvusSpec"]
    healthz = {"httpGet": {"path": "/healthz", "port": "metrics"}, "timeoutSeconds": 5}
    claim = {"persistentVolumeClaim": {"claimName": f"data-{name}"}}
    ours = {
        "hostname": name,
        "subdomain": name_of(milvus),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # a Service named proxy would set PROXY_PORT, which Milvus reads
        "terminationGracePeriodSeconds": 60,
        "securityContext": {"fsGroup": 999},  # the user of images that don't run as root
        "containers": [
            {
                "name": CONTAINER,
                "image": spec["image"],
                "args": ["milvus", "run", "standalone"],
                "env": environment(DEFAULTS, settings or {}),
                "ports": [{"name": port, "containerPort": number} for port, number in PORTS.items()],
                "startupProbe": healthz | {"periodSeconds": 5, "failureThreshold": 60},
                "readinessProbe": healthz | {"periodSeconds": 10, "failureThreshold": 3},
                "livenessProbe": {"tcpSocket": {"port": "metrics"}, "timeoutSeconds": 5, "periodSeconds": 15},
                "resources": {"requests": {"cpu": "250m", "memory": "1Gi"}},
                "securityContext": {"allowPrivilegeEscalation": False},
                "volumeMounts": [{"name": "data", "mountPath": DATA}],
            }
        ],
        "volumes": [{"name": "data"} | (claim if spec.get("storage") else {"emptyDir": {}})],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace_of(milvus),
            "labels": mapping(metadata.get("labels")) | pod_labels(milvus, ordinal),
            "annotations": mapping(metadata.get("annotations")) | annotations,
            "ownerReferences": [owner_reference(milvus)],
        },
        "spec": overlay(ours, mapping(over.get("spec"))),
    }


def new_claim(milvus: Obj, pod: Obj) -> Obj | None:
    """The PersistentVolumeClaim of a pod. It has no owner: the data outlive the pod and the Milvus."""
    storage = milvus["spec"].get("storage")
    if not storage:
        return None
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": storage.get("size")}}}
    if storage.get("storageClassName") is not None:
        spec["storageClassName"] = storage["storageClassName"]
    labels = pod_labels(milvus, ordinal_of(milvus, pod) or 0)
    metadata = {"name": f"data-{name_of(pod)}", "namespace": namespace_of(milvus), "labels": labels}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def settings_of(milvus: Obj) -> dict[str, str] | None:
    """The settings in spec.milvusSpec by their dotted names; None when it is text of another kind. Raises Invalid."""
    return parse_settings(milvus["spec"].get("milvusSpec") or "{}")


@functools.lru_cache(maxsize=4096)
def parse_settings(text: str) -> dict[str, str] | None:
    """The settings of a YAML mapping, flattened to dotted names; None when the text is none. Raises Invalid."""
    if len(text.encode(errors="replace")) > MAX_SPEC:
        raise Invalid(f"spec.milvusSpec is longer than {MAX_SPEC // 1024} KiB")
    try:
        if not is_harmless_mapping(text):
            return None
        pairs = list(flatten(yaml.compose(text, YAML_LOADER)))
    except (yaml.YAMLError, ValueError):
        return None
    if len(pairs) > MAX_SETTINGS:
        raise Invalid(f"spec.milvusSpec has {len(pairs)} settings; {MAX_SETTINGS} is the most")
    seen: dict[str, str] = {}
    for name, _ in pairs:
        key = setting(name)
        if key in FIXED:
            raise Invalid(f"spec.milvusSpec sets {name}: the ports are those of the pod and can't be changed there")
        if key in seen:
            raise Invalid(f"spec.milvusSpec has one setting twice: {seen[key]} and {name}")
        seen[key] = name
    return dict(pairs)


def is_harmless_mapping(text: str) -> bool:
    """Whether the text is a YAML mapping; looked at event by event, for PyYAML recurses, and expands aliases.

    Raises Invalid for a mapping with aliases or too many levels, YAMLError for text that is no YAML.
    """
    depth = 0
    for event in yaml.parse(text, YAML_LOADER):
        if isinstance(event, yaml.NodeEvent):
            if depth == 0 and not isinstance(event, yaml.MappingStartEvent):
                return False
            if event.anchor is not None:  # an alias has one too
                raise Invalid(f"spec.milvusSpec has an anchor or alias, {event.anchor}: write its value instead")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_SPEC_DEPTH:
            raise Invalid(f"spec.milvusSpec is nested more than {MAX_SPEC_DEPTH} levels deep")
    return True


def flatten(node: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Each setting below a mapping node and its value, as written. Raises Invalid."""
    for key, value in node.value if node else ():
        if not isinstance(key, yaml.ScalarNode) or not key.value:
            raise Invalid(f"spec.milvusSpec has a key below {prefix.rstrip('.') or 'its root'} that is no name")
        name = prefix + key.value
        if isinstance(value, yaml.MappingNode):
            yield from flatten(value, f"{name}.")
        elif isinstance(value, yaml.ScalarNode):
            yield name, value.value
        elif all(isinstance(item, yaml.ScalarNode) for item in value.value):
            yield name, ",".join(item.value for item in value.value)
        else:
            raise Invalid(f"spec.milvusSpec: {name} is a list of maps or lists; only one of scalars can be set")


def setting(name: str) -> str:
    """What an environment variable's name comes to for Milvus: PROXY_PORT and proxy.port are one setting."""
    return re.sub("[_./]", "", name).lower()


def environment(defaults: dict[str, str], settings: dict[str, str]) -> list[Obj]:
    """The variables of both, those of the user instead of ours for the same setting.

    What Kubernetes would take for a reference to another variable is escaped.
    """
    theirs = {setting(name) for name in settings}
    chosen = {name: value for name, value in defaults.items() if setting(name) not in theirs} | settings
    return [{"name": name, "value": re.sub(r"\$(?=[$(])", "$$", value)} for name, value in chosen.items()]


MERGE_KEYS = {"containers": "name", "volumes": "name", "volumeMounts": "mountPath", "ports": "containerPort"}
ALTERNATIVES = {"exec", "httpGet", "tcpSocket", "grpc"}  # of which a probe has one


def overlay(ours: Obj, over: Obj) -> Obj:
    """A mapping laid over ours: mappings merge, lists of named things merge by their key, all else replaces."""
    replaced = ALTERNATIVES - over.keys() if ALTERNATIVES & over.keys() else set()
    merged = {key: value for key, value in ours.items() if key not in replaced}
    for key, value in over.items():
        mine = merged.get(key)
        if isinstance(mine, dict) and isinstance(value, dict):
            merged[key] = overlay(mine, value)
        elif isinstance(mine, list) and isinstance(value, list) and all(isinstance(item, dict) for item in value):
            merged[key] = overlay_list(key, mine, value)
        else:
            merged[key] = value
    return merged


def overlay_list(kind: str, ours: list[Obj], over: list[Obj]) -> list[Obj]:
    """A list of named things laid over ours. A variable or a volume is replaced as a whole: it has one source."""
    if kind == "env":
        theirs = {setting(str(item.get("name"))) for item in over}
        return [item for item in ours if setting(item["name"]) not in theirs] + over
    if kind not in MERGE_KEYS:
        return over
    key = MERGE_KEYS[kind]
    merged = {item[key]: item for item in ours}
    rest = []
    for item in over:
        name = item.get(key)
        if isinstance(name, (str, int)) and name in merged:
            merged[name] = item if kind == "volumes" else overlay(merged[name], item)
        else:
            rest.append(item)
    return [*merged.values(), *rest]


def members(milvus: Obj, pods: Iterable[Obj]) -> dict[int, Obj]:
    """The pods that this Milvus owns, by ordinal. Ownership is the UID; a name proves nothing."""
    owned = (pod for pod in pods if owner_uid(pod) == uid_of(milvus))
    return {ordinal: pod for pod in owned if (ordinal := ordinal_of(milvus, pod)) is not None}


def is_orphan(milvus: Obj, pod: Obj) -> bool:
    """A pod of ours that lost its owner, as after `kubectl delete --cascade=orphan`."""
    return (
        controller_of(pod) is None
        and not is_ending(pod)
        and ordinal_of(milvus, pod) is not None
        and selector_of(milvus).items() <= labels_of(pod).items()
    )


def is_leaving(milvus: Obj, pod: Obj) -> bool:
    """It will be gone by itself: it is ending, or of an earlier Milvus of this name, and another UID."""
    owner = controller_of(pod) or {}
    kind = (owner.get("apiVersion"), owner.get("kind"), owner.get("name"))
    return is_ending(pod) or kind == (API_VERSION, KIND, name_of(milvus))


def strangers(milvus: Obj, pods: Iterable[Obj]) -> dict[str, Problem]:
    """The pods that hold a wanted name and are not ours, with what to tell the user."""
    wanted = {pod_name(milvus, ordinal) for ordinal in range(replicas_of(milvus))}
    found = {}
    for pod in pods:
        ours = owner_uid(pod) == uid_of(milvus) or is_orphan(milvus, pod)
        if name_of(pod) in wanted and not ours and not is_leaving(milvus, pod):
            owner = controller_of(pod)
            whose = f"belongs to {owner.get('kind')} {owner.get('name')}" if owner else "was made by somebody else"
            message = f"the pod {name_of(pod)} {whose}: it is left alone; delete it, or name the Milvus otherwise"
            found[name_of(pod)] = Problem(NAME_CONFLICT, message)
    return found


DONE = {"create": "created", "delete": "deleted", "adopt": "adopted", "label": "labelled"}


class Action(NamedTuple):
    """One write: what to do (a key of DONE, or `vet`), the pod that it is about, and why.

    To vet a pod is to ask the API server whether it would accept it.
    """

    verb: str
    pod: Obj
    reason: str


def decide(
    milvus: Obj, pods: Collection[Obj], *, replace: bool = True, held: Collection[str] = (), vetted: bool = True
) -> list[Action]:
    """What to do now about the pods of a Milvus, in the order of doing.

    `pods` are those that it owns and those that carry its name as their instance label;
    `replace` says whether Failed and Succeeded pods may be replaced yet; `held` are names
    known to be held by strangers; `vetted` says whether the API server accepts the present
    template: before that no pod is given up for it. Raises Invalid.
    """
    replicas, fingerprint = replicas_of(milvus), template_hash(milvus)
    mine = members(milvus, pods)
    conflicts = {*held, *strangers(milvus, pods)}
    taken = conflicts.union(name_of(pod) for pod in pods)
    surplus = [mine[ordinal] for ordinal in sorted(mine, reverse=True) if ordinal >= replicas]
    deletes = [Action("delete", pod, f"surplus: {replicas} wanted") for pod in surplus if not is_ending(pod)]
    others = [Action("adopt", pod, "orphan with our labels") for pod in pods if is_orphan(milvus, pod)]
    steps: list[Action] = []  # of the roll
    for ordinal in range(replicas):
        pod = mine.get(ordinal)
        if pod is None:
            if pod_name(milvus, ordinal) not in taken:
                others.append(Action("create", new_pod(milvus, ordinal), "missing"))
        elif is_finished(pod) and not is_ending(pod):
            stale = template_hash_of(pod) != fingerprint
            if replace or stale:
                (steps if stale else deletes).append(Action("delete", pod, f"to be replaced: {words_of(pod).reason}"))
        elif not is_ending(pod) and not pod_labels(milvus, ordinal).items() <= labels_of(pod).items():
            others.append(Action("label", pod, "lost its labels"))
    steps += roll(mine, [i for i in range(replicas) if pod_name(milvus, i) not in conflicts], fingerprint)
    if deletes and any(is_ready(step.pod) for step in steps):
        steps = []  # one thing after the other: no Ready pod goes with those that are surplus
    if steps and not vetted:
        steps = [Action("vet", new_pod(milvus, ordinal_of(milvus, steps[0].pod) or 0), "the template has changed")]
    return deletes + steps + others


def roll(mine: dict[int, Obj], wanted: Collection[int], fingerprint: str) -> list[Action]:
    """The next step in replacing the pods that have an earlier template.

    As a StatefulSet it goes from the highest ordinal, one Ready pod at a time, the next when
    all are Ready again. Unlike one it first takes all that are not Ready: they serve nobody,
    and a roll that waits for a broken pod can't be rolled back (kubernetes/kubernetes#67250).
    """
    running = [mine[i] for i in sorted(wanted, reverse=True) if i in mine and is_active(mine[i])]
    stale = [pod for pod in running if template_hash_of(pod) != fingerprint]
    broken = [pod for pod in stale if not is_ready(pod)]
    if broken:
        return [Action("delete", pod, "earlier template, not Ready") for pod in broken]
    if stale and all(i in mine and is_ready(mine[i]) for i in wanted):
        return [Action("delete", stale[0], "earlier template")]
    return []


def words_of(pod: Obj) -> Problem:
    """Why a pod isn't Ready, in its own words, else in those of its phase."""
    status = pod.get("status") or {}
    if is_ending(pod):
        return Problem("Terminating", "")
    if is_finished(pod):
        return Problem(status.get("reason") or phase_of(pod), status.get("message") or "")
    for container in (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or []):
        state = container.get("state") or {}
        if waiting := state.get("waiting"):
            return Problem(waiting.get("reason") or "Waiting", waiting.get("message") or "")
        if (ended := state.get("terminated")) and ended.get("exitCode"):
            return Problem(ended.get("reason") or "Error", f"exit code {ended['exitCode']}")
    for condition in status.get("conditions") or []:
        if condition["type"] in ("PodScheduled", "Ready") and condition["status"] != "True":
            return Problem(condition.get("reason") or phase_of(pod), condition.get("message") or "")
    return Problem(phase_of(pod), "")


def readiness(milvus: Obj, mine: dict[int, Obj], replicas: int, problem: Problem | None) -> tuple[bool, Problem]:
    """Whether every wanted pod is there, up to date and Ready, and what the Ready condition says."""
    fingerprint = template_hash(milvus)
    missing = problem or Problem("Creating", "")
    waiting: list[tuple[str, Problem]] = []
    for ordinal in range(replicas):
        pod = mine.get(ordinal)
        if pod is None:
            waiting.append((pod_name(milvus, ordinal), missing))
        elif not is_ready(pod):
            waiting.append((name_of(pod), words_of(pod)))
        elif template_hash_of(pod) != fingerprint:
            waiting.append((name_of(pod), problem or Problem("Updating", "it has an earlier template")))
    ready = f"{replicas - len(waiting)} of {replicas} pods are ready and up to date"
    if not waiting:
        return True, Problem("Ready", ready)
    name, words = next((w for w in waiting if w[1].reason not in PASSING), waiting[0])
    return False, Problem(words.reason, f"{ready}; {name}: {words.message or words.reason}")


def status_of(milvus: Obj, pods: Iterable[Obj], problem: Problem | None, now: str) -> Obj:
    """The status of a Milvus; `now` is the time of any condition that changes, in RFC 3339.

    `problem` says what the API server refused, if anything. The result equals the present
    status when there is nothing to write.
    """
    mine = members(milvus, pods)
    there = [mine[ordinal] for ordinal in sorted(mine) if not is_ending(mine[ordinal])]
    try:
        ready, words = readiness(milvus, mine, replicas_of(milvus), problem)
        updated = sum(template_hash_of(pod) == template_hash(milvus) for pod in there)
    except Invalid as error:
        problem = Problem(INVALID, str(error))
        ready, words, updated = False, problem, 0
    reconciled = problem or Problem("Reconciled", "the pods are as the spec asks, or on their way")
    if not problem and settings_of(milvus) is None:
        message = f"spec.milvusSpec is no YAML mapping: it is kept as the annotation {MILVUS_SPEC} and sets nothing"
        reconciled = Problem("SpecIsText", message)
    present = mapping(milvus.get("status")).get("conditions")
    before: dict[str, Obj] = {}
    for last in present if isinstance(present, list) else []:
        if isinstance(last, dict) and all(isinstance(last.get(key), str) for key in ("type", "lastTransitionTime")):
            before[last["type"]] = last

    def condition(kind: str, true: bool, said: Problem) -> Obj:
        status, last = str(true), before.get(kind, {})
        return {
            "type": kind,
            "status": status,
            "observedGeneration": milvus["metadata"]["generation"],
            "lastTransitionTime": last["lastTransitionTime"] if last.get("status") == status else now,
            "reason": re.sub(r"[^A-Za-z0-9_,:]", "", said.reason) or "Unknown",
            "message": said.message[:1024],
        }

    return {
        "observedGeneration": milvus["metadata"]["generation"],
        "replicas": len(there),
        "readyReplicas": sum(map(is_ready, there)),
        "updatedReplicas": updated,
        "pods": [name_of(pod) for pod in there],
        "selector": ",".join(f"{key}={value}" for key, value in sorted(selector_of(milvus).items())),
        "conditions": [condition("Ready", ready, words), condition("Reconciled", problem is None, reconciled)],
    }


# --------------------------------------------------------------------------------------
# The shell: the only place that knows of HTTP. Resources by GVR through the dynamic client.
# --------------------------------------------------------------------------------------


def by_gvr(api: ApiClient, group: str, version: str, kind: str, plural: str, **options: Any) -> Resource:
    """A resource of the dynamic client, without the discovery requests and the cache file of `client.resources`."""
    client = DynamicClient(api, discoverer=lambda client, cache_file: None)
    prefix, options = ("apis" if group else "api"), {"namespaced": True} | options
    return Resource(prefix, group, version, kind, name=plural, client=client, **options)


def milvuses(api: ApiClient) -> Resource:
    """The Milvus resources, to create, get, list, patch and delete from code."""
    status = {"kind": KIND, "name": f"{PLURAL}/status", "namespaced": True}
    return by_gvr(api, GROUP, VERSION, KIND, PLURAL, subresources={"status": status})


def pods(api: ApiClient) -> Resource:
    """The pods, to create, get, list, patch and delete from code."""
    return by_gvr(api, "", "v1", "Pod", "pods")


# How RBAC says no: the verb, the resource, and the namespace if it isn't all of them.
DENIED = re.compile(r'cannot (\w+) resource "([^"]+)" in API group "[^"]*" (?:in the namespace "([^"]+)"|at the cl)')


class ApiError(Exception):
    """A request that failed: the server's HTTP code, 0 when there was no proper answer, and one line of text."""

    def __init__(self, code: int, message: str, status: Obj | None = None) -> None:
        super().__init__(message)
        self.code, self.status = code, status or {}

    @classmethod
    def of(cls, error: ApiException) -> ApiError:
        """From the client's exception, whose body is a Status object when the API server wrote it."""
        try:
            status = mapping(json.loads(error.body or ""))
        except (ValueError, RecursionError):
            status = {}
        message = status.get("message") or error.reason or f"HTTP {error.status}"
        return cls(error.status or 0, " ".join(str(message).split())[:1000], status)

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed in the next pass; otherwise it was refused."""
        return self.code in (0, 401, 409, 429) or self.code >= 500

    @property
    def denied(self) -> str | None:
        """The right that is missing, as verb, resource and place, when RBAC refused the request."""
        right = DENIED.search(str(self)) if self.code == 403 else None
        if not right:
            return None
        return f"{right[1]} {right[2]} in " + (f"namespace {right[3]}" if right[3] else "all namespaces")

    def problem(self) -> Problem:
        """The reason and message for the Milvus that it hit."""
        if self.code == 403:
            return Problem(QUOTA_EXCEEDED if "exceeded quota" in str(self) else FORBIDDEN, str(self))
        return Problem(INVALID if self.code in (400, 422) else API_ERROR, str(self))


class Bounded(io.RawIOBase):
    """The bytes of a response, which must all be there before the request's time is up.

    A socket's time-out bounds each read alone: a server that sends one byte a second would
    hold the loop for ever.
    """

    def __init__(self, raw: Any, sock: socket.socket) -> None:
        self.raw, self.sock = raw, sock
        self.end = time.monotonic() + (sock.gettimeout() or 0)  # every request has one

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self.end - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self.sock.settimeout(left)
        return self.raw.readinto(buffer)  # type: ignore[no-any-return]  # an untyped SocketIO

    def close(self) -> None:
        self.raw.close()
        super().close()


class BoundedResponse(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(Bounded(self.fp.detach(), sock))


def bounded(pool: Any) -> Any:
    """A class of urllib3 connection pools whose responses are bounded."""
    connection = type("Connection", (pool.ConnectionCls,), {"response_class": BoundedResponse})
    return type("Pool", (pool,), {"ConnectionCls": connection})


BOUNDED_POOLS = {"http": bounded(urllib3.HTTPConnectionPool), "https": bounded(urllib3.HTTPSConnectionPool)}

JSON_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]')


def shallow(body: bytes) -> bytes:
    """The JSON with whatever is nested deeper than MAX_DEPTH levels replaced by null."""
    kept, depth, start = [], 0, 0
    for token in JSON_TOKEN.finditer(body):
        if token[0] in b"[{":
            depth += 1
            if depth == MAX_DEPTH + 1:
                kept.append(body[start : token.start()])
        elif token[0] in b"]}":
            if depth == MAX_DEPTH + 1:
                kept.append(b"null")
                start = token.end()
            depth -= 1
    return b"".join([*kept, body[start:]])


def parse(body: bytes) -> Any:
    """The JSON as Python values. One object nested too deeply for Python must not hide all others of its list."""
    try:
        return json.loads(body)
    except RecursionError:
        return json.loads(shallow(body))


def slim(pod: Obj) -> Obj:
    """The parts of a pod that are read here, a tenth of it: all pods are in memory at once."""
    metadata = {key: value for key, value in pod["metadata"].items() if key != "managedFields"}
    return {"metadata": metadata, "status": pod.get("status") or {}}


class Cluster:
    """The requests to one API server. Every method raises ApiError."""

    def __init__(self, api: ApiClient, timeout: float = 30, dry_run: bool = False) -> None:
        api.rest_client.pool_manager.pool_classes_by_scheme = BOUNDED_POOLS
        self.milvuses, self.pods = milvuses(api), pods(api)
        self.claims = by_gvr(api, "", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
        self.namespaces = by_gvr(api, "", "v1", "Namespace", "namespaces", namespaced=False)
        self.timeout, self.dry_run, self.server = timeout, dry_run, api.configuration.host

    def request(self, call: Callable[..., Any], **arguments: Any) -> Obj:
        """Send one request of the dynamic client; returns the answer as a dict."""
        try:
            body = call(serialize=False, _request_timeout=self.timeout, **arguments).data
        except ApiException as error:
            raise ApiError.of(error) from None
        except (urllib3.exceptions.HTTPError, ConfigException, OSError) as error:
            late = isinstance(error, urllib3.exceptions.TimeoutError | TimeoutError)
            if late and not isinstance(error, urllib3.exceptions.NewConnectionError):
                raise ApiError(0, f"no answer within {self.timeout:g} s", {"reason": "Timeout"}) from None
            text = str(error.args[-1] if error.args else type(error).__name__)
            raise ApiError(0, re.sub(r"^\S*Connection\(.*?\): ", "", text)) from None
        except ValueError:  # its text may be the credentials
            raise ApiError(0, "the credentials have characters that no HTTP header can hold") from None
        try:
            return mapping(parse(body))
        except ValueError:
            raise ApiError(0, "the answer is not JSON: is this a Kubernetes API server?") from None

    def write(self, call: Callable[..., Any], **arguments: Any) -> Obj:
        """Send one request that changes something, or only asks whether it could."""
        return self.request(call, **arguments, **({"dry_run": "All"} if self.dry_run else {}))

    def list_all(self, resource: Resource, namespace: str | None, **selectors: str) -> Iterator[Obj]:
        """All objects of a list, page by page; fails if any of its pages does."""
        token = None
        while True:
            page = self.request(resource.get, namespace=namespace, limit=PAGE, _continue=token, **selectors)
            if not str(page.get("kind")).endswith("List"):
                raise ApiError(0, "the answer is not a list: is this a Kubernetes API server?")
            yield from page.get("items") or []
            token = page["metadata"].get("continue")
            if not token:
                return

    def snapshot(self, namespace: str | None) -> tuple[list[Obj], list[Obj]]:
        """The pods that may be ours, and the Milvus resources.

        The pods come first: so a Milvus is never older than the pods that it is compared
        with, and a pod is never deleted for a wish that has changed since.
        """
        selector = f"{MANAGED_BY_LABEL}={MANAGER}"
        found = [slim(pod) for pod in self.list_all(self.pods, namespace, label_selector=selector)]
        return found, list(self.list_all(self.milvuses, namespace))

    def namespace_exists(self, namespace: str) -> bool:
        """False only when the API server says so; a right to ask is not needed."""
        try:
            self.request(self.namespaces.get, name=namespace)
        except ApiError as error:
            return error.code != 404
        return True

    def carry_out(self, milvus: Obj, action: Action) -> Obj | None:
        """Do it; returns the pod as it is now, or None when there is none of that name."""
        return getattr(self, action.verb)(milvus, action.pod)  # type: ignore[no-any-return]  # one of those below

    def create(self, milvus: Obj, pod: Obj) -> Obj | None:
        """With storage its claim comes first: no claim, no pod."""
        if claim := new_claim(milvus, pod):
            try:
                self.write(self.claims.create, namespace=namespace_of(pod), body=claim)
            except ApiError as error:
                if error.status.get("reason") != "AlreadyExists":
                    raise
        return slim(self.write(self.pods.create, namespace=namespace_of(pod), body=pod))

    def vet(self, milvus: Obj, pod: Obj) -> Obj | None:
        """Whether the API server would accept the pod: it says that the name exists only after all other checks."""
        try:
            self.request(self.pods.create, namespace=namespace_of(pod), body=pod, dry_run="All")
        except ApiError as error:
            if error.status.get("reason") != "AlreadyExists" and error.problem().reason != QUOTA_EXCEEDED:
                raise
        return None

    def look(self, milvus: Obj, pod: Obj) -> Obj | None:
        """What holds the name: ours without its labels, one that is leaving, or somebody else's."""
        try:
            return slim(self.request(self.pods.get, namespace=namespace_of(pod), name=name_of(pod)))
        except ApiError as error:
            if error.code != 404:
                raise
            return None

    def delete(self, milvus: Obj, pod: Obj) -> Obj | None:
        """A pod that was not Ready when it was listed is deleted only if it has not changed: it may be Ready by now."""
        same = {"uid": uid_of(pod)}
        if not is_ready(pod):
            same["resourceVersion"] = pod["metadata"]["resourceVersion"]
        options: Obj = {"preconditions": same}
        if self.dry_run:  # in the body: with a body, the API server ignores ?dryRun=All and deletes
            options["dryRun"] = ["All"]
        try:
            left = self.request(self.pods.delete, namespace=namespace_of(pod), name=name_of(pod), body=options)
        except ApiError as error:
            if error.code != 404:
                raise
            return None
        gone = left.get("metadata", {}).get("deletionGracePeriodSeconds") == 0 and not self.dry_run
        ending = pod["metadata"] | {"deletionTimestamp": left.get("metadata", {}).get("deletionTimestamp") or "now"}
        return None if gone and not ending.get("finalizers") else pod | {"metadata": ending}

    def adopt(self, milvus: Obj, pod: Obj) -> Obj | None:
        """As the ReplicaSet controller, only after one more look: the pods of an owner that is gone are collected."""
        now = self.request(self.milvuses.get, namespace=namespace_of(milvus), name=name_of(milvus))
        if uid_of(now) != uid_of(milvus) or is_ending(now):
            raise ApiError(409, "the Milvus has changed")
        return self.patch_pod(pod, {"ownerReferences": [owner_reference(milvus)]})  # merged with others by their UID

    def label(self, milvus: Obj, pod: Obj) -> Obj | None:
        return self.patch_pod(pod, {"labels": pod_labels(milvus, ordinal_of(milvus, pod) or 0)})

    def patch_pod(self, pod: Obj, metadata: Obj) -> Obj | None:
        same = {"uid": uid_of(pod), "resourceVersion": pod["metadata"]["resourceVersion"]}
        body = {"metadata": same | metadata}
        return slim(self.write(self.pods.patch, namespace=namespace_of(pod), name=name_of(pod), body=body))

    def write_status(self, milvus: Obj, wanted: Obj) -> None:
        body = {"metadata": {"uid": uid_of(milvus)}, "status": wanted["status"]}
        name, namespace, merge = name_of(milvus), namespace_of(milvus), "application/merge-patch+json"
        try:
            self.write(self.milvuses.status.patch, namespace=namespace, name=name, body=body, content_type=merge)
        except ApiError as error:
            if error.code != 404 or not self.serves_status():
                raise
            # the Milvus is gone, and its status with it

    def serves_status(self) -> bool:
        """Whether the CRD has the status subresource: without it, the answer is 404 as for a Milvus that is gone."""
        served = self.request(self.milvuses.client.request, method="get", path=f"/apis/{API_VERSION}")
        return any(resource["name"] == f"{PLURAL}/status" for resource in served.get("resources") or [])


# --------------------------------------------------------------------------------------
# The loop
# --------------------------------------------------------------------------------------


class Stopped(BaseException):
    """SIGTERM or SIGINT came; raised wherever the main thread is, so that nothing delays it."""


@dataclass
class Backoff:
    """Waits of `first` seconds, then twice as long each time, up to `most`."""

    first: float
    most: float
    delay: float = 0
    since: float = -math.inf

    @property
    def until(self) -> float:
        return self.since + self.delay

    def wait_longer(self, now: float) -> None:
        self.delay, self.since = min(max(2 * self.delay, self.first), self.most), now

    def forget(self) -> None:
        self.delay = 0


@dataclass
class Memory:
    """What is known of a Milvus from one pass to the next. None of it is needed to be correct."""

    generation: int = 0
    held: dict[str, Problem] = field(default_factory=dict)  # by pod name: what was refused, until `refused` is over
    suspects: set[str] = field(default_factory=set)  # those that were tried and refused: the last to be tried again
    refused: Backoff = field(default_factory=lambda: Backoff(10, 300))
    replaced: Backoff = field(default_factory=lambda: Backoff(10, 300))
    served: float = 0  # when it had its last write: the one that waits longest goes first
    writing: int = 0  # writes under way: what the lists say of it may be old
    vetted: str = ""  # the fingerprint of the template that the API server accepts
    no_status: float = 0  # when to try again to write its status
    said: Problem | None = None  # the problem in the log

    def recall(self, milvus: Obj, now: float) -> None:
        """Forget what is over: refusals that may be tried again, replacements long ago."""
        generation = milvus["metadata"].get("generation", 0)
        if generation != self.generation:
            self.generation = generation
            self.held.clear()
            self.suspects.clear()
            self.refused.forget()
        if now >= self.refused.until:
            self.held.clear()
        if now >= self.replaced.since + 600:
            self.replaced.forget()

    def hold(self, held: dict[str, Problem], now: float) -> None:
        """Let what was refused rest; several refusals of one try are one."""
        self.held |= held
        if now >= self.refused.until:
            self.refused.wait_longer(now)


class Plan:
    """The work on one Milvus in one pass, with a view of its pods that the answers to its writes keep up to date."""

    ROUNDS = 4  # of deciding upon the outcome of the round before: adopt, then vet, then delete, then create

    def __init__(self, milvus: Obj, pods: Iterable[Obj], memory: Memory) -> None:
        self.milvus, self.pods, self.memory = milvus, {name_of(pod): pod for pod in pods}, memory
        self.todo: deque[Action] = deque()
        self.rounds = 0
        self.failure: Problem | None = None  # what ended the plan early
        self.told = False  # that failure was said for all that it hits
        self.changed: set[str] = set()  # pods that are not any more as they were listed
        self.finished = False

    def next(self) -> Action | None:
        """The next write that need not wait for those under way; the last one, once, is its status."""
        if not self.todo and not self.memory.writing and not self.finished:
            self.todo.extend(self.decide())
            if not self.todo:
                self.finished = True
                status = status_of(self.milvus, self.pods.values(), self.problem(), timestamp())
                return Action("write_status", self.milvus | {"status": status}, "")
        return self.todo.popleft() if self.todo else None

    def problem(self) -> Problem | None:
        """What keeps the Milvus from being served: the first of what rests, so that it stays the same."""
        held = self.memory.held
        if not held and not self.failure:
            self.memory.refused.forget()
            self.memory.suspects.clear()
        return held[min(held)] if held else self.failure

    def decide(self) -> list[Action]:
        """The writes of the next round, less what rests after a refusal."""
        memory, now, self.rounds = self.memory, time.monotonic(), self.rounds + 1
        if self.failure or self.rounds > self.ROUNDS:
            return []
        try:
            conflicts = strangers(self.milvus, self.pods.values())
            if not conflicts.keys() <= memory.held.keys():
                memory.hold(conflicts, now)
            held = [name for name, problem in memory.held.items() if problem.reason == NAME_CONFLICT]
            may_replace = now >= memory.replaced.until
            vetted = memory.vetted == template_hash(self.milvus)
            actions = decide(self.milvus, self.pods.values(), replace=may_replace, held=held, vetted=vetted)
        except Invalid:
            return []  # its status says why
        actions = [action for action in actions if name_of(action.pod) not in memory.held.keys() | self.changed]
        if any(action.verb == "delete" and is_finished(action.pod) for action in actions):
            memory.replaced.wait_longer(now)
        return sorted(actions, key=lambda action: name_of(action.pod) in memory.suspects)

    def succeeded(self, action: Action, pod: Obj | None) -> None:
        """Take in what the API server answered: the pod as it is now, or that there is none."""
        if action.verb == "vet":
            self.memory.vetted = template_hash(self.milvus)
            return
        self.pods.pop(name_of(action.pod), None)
        if pod:
            self.pods[name_of(pod)] = pod

    def failed(self, action: Action, error: ApiError) -> None:
        """Leave the rest to another pass; what was refused rests, and what was to follow with it."""
        if error.status.get("reason") == "AlreadyExists":
            self.todo.appendleft(Action("look", action.pod, "its name is taken"))
        elif error.code in (404, 409) and action.verb != "create":
            self.changed.add(name_of(action.pod))
        else:
            self.failure = self.failure or error.problem()
            if not error.is_transient:
                self.memory.suspects.add(name_of(action.pod))
                held = {name_of(a.pod): error.problem() for a in (action, *self.todo)}
                self.memory.hold(held, time.monotonic())
            self.todo.clear()


@dataclass
class Scope:
    """A namespace that is served, or all of them (None)."""

    namespace: str | None
    due: float = 0
    failures: Backoff = field(default_factory=lambda: Backoff(1, 30))
    memories: dict[str, Memory] = field(default_factory=dict)  # by the UID of the Milvus

    def __str__(self) -> str:
        return f"namespace {self.namespace}" if self.namespace else "all namespaces"


class Operator:
    """Serves Milvus resources: `run()` for ever, or one `run_pass()`."""

    def __init__(self, cluster: Cluster, namespaces: Iterable[str | None], interval: float, workers: int) -> None:
        self.cluster, self.interval, self.workers = cluster, interval, workers
        self.scopes = [Scope(namespace) for namespace in namespaces]
        self.troubles: dict[str, str] = {}  # what is wrong now, by what it is about; said once
        self.no_status: dict[str, float] = {}  # when to try again to write status, by namespace
        self.counts: dict[str, int] = defaultdict(int)  # of this pass
        self.running = 0  # writes under way
        self.results: SimpleQueue[tuple[Plan, Action, Obj | None, ApiError | None]] = SimpleQueue()
        # Daemons, for a request that hangs must not hold up the end; and some of them for the lists
        # alone, which writes that hang must not hold up either.
        self.jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        count = workers + min(len(self.scopes), workers)
        self.threads = [threading.Thread(target=self.worker, daemon=True) for _ in range(count)]
        for thread in self.threads:
            thread.start()

    def worker(self) -> None:
        while job := self.jobs.get():
            job()

    def close(self) -> None:
        """End the threads, as soon as their present requests end."""
        for _ in self.threads:
            self.jobs.put(None)

    def run_once(self) -> bool:
        """Do everything that can be done now, again where it changed meanwhile; returns whether all went well."""
        for _ in range(5):
            well = self.run_pass(once=True)
            if not self.counts["changed"]:
                return well
            for scope in self.scopes:
                scope.due = 0
        return False

    def run(self) -> NoReturn:
        """Make a pass whenever one is due, until Stopped."""
        while True:
            self.run_pass()
            time.sleep(max(0, min(scope.due for scope in self.scopes) - time.monotonic()))

    def run_pass(self, once: bool = False) -> bool:
        """Serve all scopes that are due; returns whether all of it went well.

        With `once` everything that can be done now is done, however long it takes; else the
        writing ends when the next pass is due, which goes on with fresh lists.
        """
        started = time.monotonic()
        self.counts.clear()
        self.drain(0)
        plans: list[Plan] = []
        due = [scope for scope in self.scopes if scope.due <= started]
        answers: SimpleQueue[tuple[Scope, tuple[list[Obj], list[Obj]] | ApiError]] = SimpleQueue()
        for scope in due:
            self.jobs.put(functools.partial(self.list_scope, scope, answers))
        for scope, answer in (answers.get() for _ in due):
            if isinstance(answer, ApiError):
                self.list_failed(scope, answer)
            else:
                scope.due = started + self.interval
                plans += self.plans(scope, *answer)
        plans.sort(key=lambda plan: plan.memory.served)
        now = time.monotonic()
        self.work(plans, math.inf if once else now + max(self.interval, now - started))
        self.report(started)
        return not self.counts["failed"]

    def list_scope(self, scope: Scope, answers: SimpleQueue[Any]) -> None:
        try:
            answers.put((scope, self.cluster.snapshot(scope.namespace)))
        except ApiError as error:
            answers.put((scope, error))
        except Exception as error:  # an answer that is JSON, but not what an API server says
            answers.put((scope, unexpected(error)))

    def list_failed(self, scope: Scope, error: ApiError) -> None:
        self.counts["failed"] += 1
        now = time.monotonic()
        scope.failures.wait_longer(now)
        scope.due = now + scope.failures.delay * random.uniform(0.5, 1)
        self.trouble(f"list {scope}", explain(error, f"list {scope}", self.cluster.server))

    def plans(self, scope: Scope, found: list[Obj], wanted: list[Obj]) -> Iterator[Plan]:
        """A plan for each Milvus that can be served now."""
        scope.failures.forget()
        self.fine(f"list {scope}")
        self.check_namespace(scope, bool(found or wanted))
        now, uids = time.monotonic(), {uid_of(milvus) for milvus in wanted}
        scope.memories = {uid: scope.memories.get(uid) or Memory() for uid in uids}
        index: dict[Any, list[Obj]] = defaultdict(list)
        for pod in found:
            owner = owner_uid(pod)
            index[namespace_of(pod), owner if owner in uids else labels_of(pod).get(INSTANCE_LABEL)].append(pod)
        self.counts["milvus"] += len(wanted)
        self.counts["pods"] += len(found)
        for milvus in wanted:
            memory = scope.memories[uid_of(milvus)]
            if not is_ending(milvus) and not memory.writing:  # else what was listed of it may be old
                memory.recall(milvus, now)
                namespace = namespace_of(milvus)
                yield Plan(milvus, index[namespace, uid_of(milvus)] + index[namespace, name_of(milvus)], memory)

    def check_namespace(self, scope: Scope, in_use: bool) -> None:
        """Say it when a namespace is empty because there is none of that name."""
        if in_use or not scope.namespace or self.cluster.namespace_exists(scope.namespace):
            self.fine(str(scope))
        else:
            self.counts["failed"] += 1
            self.trouble(str(scope), f"{scope} does not exist: nothing is served there until it is created")

    def work(self, plans: list[Plan], deadline: float) -> None:
        """Carry out the plans side by side, until all is done or the deadline has come.

        Round robin with the slow start of the ReplicaSet controller: a plan begins with one
        write, each success frees two more, a failure none. So nobody waits for a Milvus with
        much to do, and one whose writes are refused costs one request.
        """
        queue, ours, pending, told = deque(plans), set(plans), 0, time.monotonic()
        while True:
            while queue and self.running < self.workers and time.monotonic() < deadline:
                plan = queue.popleft()
                if action := self.next(plan):
                    self.start(plan, action)
                    pending += 1
            now = time.monotonic()
            if not pending or now >= deadline:
                return  # what hangs is left to itself; its Milvus waits for it, nobody else does
            if now - told >= 5:
                told = now
                log.info("writing: %s so far, %d Milvus to go", self.counted(), len(set(queue)))
            try:
                plan, action, pod, error = self.results.get(timeout=min(deadline - now, 5))
            except Empty:
                continue
            self.record(plan, action, pod, error)
            if plan in ours:
                pending -= 1
                queue.extend([plan] if error else [plan, plan])

    def next(self, plan: Plan) -> Action | None:
        """The plan's next write, if it has one and its status differs from the present one."""
        try:
            action = plan.next()
        except Exception as error:  # whatever is in it, one Milvus never harms another
            plan.finished = True
            self.tell(plan, unexpected(error).problem())
            return None
        if not action or action.verb != "write_status":
            return action
        reconciled = action.pod["status"]["conditions"][1]
        problem = Problem(reconciled["reason"], reconciled["message"])
        self.tell(plan, problem if reconciled["status"] == "False" else None)
        now, namespace = time.monotonic(), namespace_of(plan.milvus)
        present, status = mapping(plan.milvus.get("status")), action.pod["status"]
        resting = max(self.no_status.get(namespace, 0), plan.memory.no_status) > now
        if resting or all(present.get(key) == value for key, value in status.items()):
            return None
        if namespace in self.no_status:
            self.no_status[namespace] = now + 10  # one tries for all
        return action

    def start(self, plan: Plan, action: Action) -> None:
        self.running += 1
        plan.memory.writing += 1
        plan.memory.served = time.monotonic()
        self.jobs.put(functools.partial(self.attempt, plan, action))

    def attempt(self, plan: Plan, action: Action) -> None:
        """Do one write, in a worker's thread; all else happens in the main thread."""
        try:
            self.results.put((plan, action, self.cluster.carry_out(plan.milvus, action), None))
        except ApiError as error:
            self.results.put((plan, action, None, error))
        except Exception as error:  # without a result, the Milvus would wait for it for ever
            self.results.put((plan, action, None, unexpected(error)))

    def record(self, plan: Plan, action: Action, pod: Obj | None, error: ApiError | None) -> None:
        """Take in the outcome of a write."""
        self.running -= 1
        plan.memory.writing -= 1
        if error and (error.code == 401 or (error.code == 0 and not error.status)):
            plan.told = True
            self.counts["unreachable"] += 1
            self.trouble("server", explain(error, action.verb, self.cluster.server))
        if action.verb == "write_status":
            self.status_written(plan, error)
            return
        right = f"{action.verb} pods in {namespace_of(plan.milvus)}"
        if error:
            plan.failed(action, error)
            self.counts["changed"] += bool(plan.changed)
            if error.denied:
                self.trouble(right, explain(error, right, self.cluster.server))
        else:
            self.fine(right)
            plan.succeeded(action, pod)
            if action.verb in DONE:
                self.counts[DONE[action.verb]] += 1
                would = "dry run, not really: " if self.cluster.dry_run else ""
                log.info("%s%s pod %s: %s", would, DONE[action.verb], full_name(action.pod), action.reason)

    def status_written(self, plan: Plan, error: ApiError | None) -> None:
        """Take in the outcome of a status write. Where none can be written, one is tried every 10 s."""
        namespace, now = namespace_of(plan.milvus), time.monotonic()
        if error and error.code in (403, 404):
            self.no_status[namespace] = now + 10
            old = f"the CRD {PLURAL}.{GROUP} is an old one: no status is written until `kubectl apply -f crd.yaml`"
            right = f"patch {PLURAL}/status in {namespace}"
            text = old if error.code == 404 else explain(error, right, self.cluster.server)
            self.trouble(f"status {namespace}", text)
            self.counts["failed"] += error.code == 403
            return
        if not error or error.code in (400, 409, 422):  # one that knows of a status subresource
            self.no_status.pop(namespace, None)
            self.fine(f"status {namespace}")
        if not error:
            self.counts["statuses written"] += 1
        elif error.code != 409:  # else it has changed since, and the next pass sees it
            plan.memory.no_status = now if error.is_transient else now + 300
            if not plan.memory.said and not plan.told:
                self.tell(plan, Problem("its status can't be written", str(error)))

    def tell(self, plan: Plan, problem: Problem | None) -> None:
        """Say what keeps a Milvus from being served, once, and when it is over."""
        self.counts["failed"] += bool(problem)
        told = plan.told or bool(problem and DENIED.search(problem.message))  # for all that it hits
        if problem and problem != plan.memory.said and not told:
            log.warning("milvus %s: %s: %s", full_name(plan.milvus), *problem)
        elif plan.memory.said and not problem:
            log.info("milvus %s: all right again", full_name(plan.milvus))
        if not told:
            plan.memory.said = problem

    def trouble(self, about: str, text: str) -> None:
        """Say what is wrong, when it is new."""
        if text not in self.troubles.values():
            log.error(text)
        self.troubles[about] = text

    def fine(self, about: str) -> None:
        """Say that a trouble is over, if there was one."""
        text = self.troubles.pop(about, None)
        if text and text not in self.troubles.values():
            log.info("works again, was: %s", text)

    def counted(self) -> str:
        kinds = (*DONE.values(), "statuses written")
        done = [f"{self.counts[kind]} {kind}" for kind in kinds if self.counts[kind]]
        return ", ".join(done) or "nothing written"

    def report(self, started: float) -> None:
        if not self.counts["unreachable"]:
            self.fine("server")
        level = logging.DEBUG if self.counted() == "nothing written" else logging.INFO
        seconds, size = time.monotonic() - started, (self.counts["milvus"], self.counts["pods"])
        dry = "dry run, " if self.cluster.dry_run else ""
        log.log(level, "%spass over %d Milvus and %d pods: %s, %.2f s", dry, *size, self.counted(), seconds)

    def drain(self, seconds: float) -> None:
        """Take in the outcome of writes that outlived their pass, waiting for it that long."""
        end = time.monotonic() + seconds
        while self.running:
            try:
                self.record(*self.results.get(timeout=max(0, end - time.monotonic())))
            except Empty:
                return


def explain(error: ApiError, what: str, server: str) -> str:
    """One line on a request that failed for all: what happened, and what to do."""
    if error.code == 0:
        return f"cannot reach {server}: {error}; trying again"
    if error.code == 401:
        return f"{server} does not accept the credentials (401): log in again, or renew the token of the kubeconfig"
    if error.denied:
        return f"not allowed to {error.denied}: grant this right to the operator"
    if error.code == 404:
        return f"{server} knows no {PLURAL}.{GROUP}: install the CRD with `kubectl apply -f crd.yaml`"
    return f"cannot {what}: HTTP {error.code}: {error}; trying again"


def unexpected(error: Exception) -> ApiError:
    """An error that nothing foresaw. Its text may hold anything, so only its kind and place are told."""
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    place = f"{trace.tb_frame.f_code.co_name}, line {trace.tb_lineno}" if trace else "nowhere"
    return ApiError(0, f"unexpected {type(error).__name__} in {place}: please report it", {"reason": "Unexpected"})


def timestamp() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


# --------------------------------------------------------------------------------------
# The command
# --------------------------------------------------------------------------------------

SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


class Unusable(click.ClickException):
    """There is no usable configuration."""

    exit_code = 2


def connect(path: str | None, context: str | None, connections: int) -> tuple[ApiClient, str]:
    """The client and the default namespace, as kubectl finds them; in a pod without a kubeconfig, the pod's own."""
    settings = Configuration()
    settings.retries = False  # a pass is the retry, and urllib3's own would multiply the time-out
    settings.connection_pool_maxsize = connections
    files = path or os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ and not path and not context
    try:
        if any(map(os.path.exists, files.split(os.pathsep))):
            kubeconfig_loader.load_kube_config(files, context, settings, persist_config=False)
            contexts, current = kubeconfig_loader.list_kube_config_contexts(files)
            chosen = next(c for c in contexts if c["name"] == context) if context else current
            check(settings)
            return ApiClient(settings), chosen["context"].get("namespace") or "default"
        if in_pod:
            kubeconfig_loader.load_incluster_config(settings)
            with open(f"{SERVICE_ACCOUNT}/namespace") as file:
                return ApiClient(settings), file.read().strip() or "default"
    except Exception as error:  # the loader raises whatever a strange file makes it stumble on
        known = isinstance(error, ConfigException | OSError | yaml.YAMLError | urllib3.exceptions.HTTPError)
        text = " ".join(str(error).split()) if known else "it is not a kubeconfig"
        source = files if not in_pod else f"{files} or {SERVICE_ACCOUNT}"
        raise Unusable(f"cannot use {source}: {text}; `kubectl config get-contexts` shows what is there") from None
    raise Unusable(f"no kubeconfig at {files}: name one with --kubeconfig or KUBECONFIG")


def check(settings: Configuration) -> None:
    """Raise OSError when the certificates or the address of the server are none: no retry would mend that."""
    if settings.ssl_ca_cert or settings.ca_cert_data:
        ssl.create_default_context(cafile=settings.ssl_ca_cert, cadata=settings.ca_cert_data)
    if settings.cert_file:
        ssl.create_default_context().load_cert_chain(settings.cert_file, settings.key_file)
    url = urllib3.util.parse_url(settings.host)
    if url.scheme not in ("http", "https") or not url.host:
        raise OSError(f"its server {settings.host} is no http or https address")


def seconds(context: click.Context, option: click.Parameter, value: float) -> float:
    """A number of seconds from the command line: above 0, and no longer than a clock can wait."""
    if not 0 < value < math.inf:
        raise click.BadParameter("it must be a finite number of seconds above 0")
    return min(value, 1e8)


def namespace_names(context: click.Context, option: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    for name in value:
        if len(name) > 63 or not DNS_LABEL.fullmatch(name):
            raise click.BadParameter(f"{name!r} is not the name of a namespace")
    return tuple(dict.fromkeys(value))


def stop(signum: int, frame: FrameType | None) -> None:
    for either in (signal.SIGTERM, signal.SIGINT):
        signal.signal(either, signal.SIG_DFL)  # a second one ends it at once
    raise Stopped


def start_log(verbose: bool) -> None:
    """Lines for people, in UTC, to standard error."""
    form = logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
    form.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(form)
    log.addHandler(handler)
    log.setLevel(logging.DEBUG if verbose else logging.INFO)
    log.propagate = False
    logging.getLogger("urllib3").setLevel(logging.ERROR)


@click.command(
    context_settings={
        "help_option_names": ["-h", "--help"],
        "auto_envvar_prefix": "MILVUS_OPERATOR",
        "max_content_width": 100,
    }
)
@click.option("-n", "--namespace", "namespaces", metavar="NS", multiple=True, callback=namespace_names,
              envvar="MILVUS_OPERATOR_NAMESPACE",
              help="Serve this namespace; repeatable. Default: the context's; in a pod, the pod's own.")  # fmt: skip
@click.option("-A", "--all-namespaces", is_flag=True, help="Serve all namespaces.")
@click.option("--interval", metavar="SECONDS", type=float, default=5, show_default=True, callback=seconds,
              help="From the start of one pass to the start of the next.")  # fmt: skip
@click.option("--once", is_flag=True, help="Do all that can be done now, then exit: 0 when all went well, else 1.")
@click.option("--dry-run", is_flag=True, help="Say what would be done; write nothing.")
@click.option("--kubeconfig", metavar="PATH", help="The kubeconfig file. Default: as kubectl finds it.")
@click.option("--context", metavar="NAME", help="The kubeconfig context. Default: the current one.")
@click.option("--timeout", metavar="SECONDS", type=float, default=30, show_default=True, callback=seconds,
              help="For each request, from its start to its last byte.")  # fmt: skip
@click.option("--workers", metavar="N", type=click.IntRange(1, 256), default=16, show_default=True,
              help="How many writes at once.")  # fmt: skip
@click.option("-v", "--verbose", is_flag=True, help="Log the passes that did nothing, too.")
@click.version_option(__version__, message=f"{MANAGER} %(version)s", allow_from_autoenv=False)
def main(
    namespaces: tuple[str, ...],
    all_namespaces: bool,
    interval: float,
    once: bool,
    dry_run: bool,
    kubeconfig: str | None,
    context: str | None,
    timeout: float,
    workers: int,
    verbose: bool,
) -> None:
    """Keep the pods of every Milvus resource running.

    Every option also reads an environment variable MILVUS_OPERATOR_<OPTION>, for example
    MILVUS_OPERATOR_INTERVAL=10.
    """
    if namespaces and all_namespaces:
        raise click.UsageError("-n/--namespace and -A/--all-namespaces exclude each other.")
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, stop)
    start_log(verbose)
    operator = None
    try:
        api, default = connect(kubeconfig, context, connections=2 * workers)
        api.user_agent = f"{MANAGER}/{__version__}"
        operator = Operator(Cluster(api, timeout, dry_run), namespaces or [None if all_namespaces else default],
                            interval, workers)  # fmt: skip
        log.info("milvus-operator %s serves %s %s on %s%s", __version__, ", ".join(map(str, operator.scopes)),
                 "once" if once else f"every {interval:g} s", operator.cluster.server,
                 ", as a dry run" if dry_run else "")  # fmt: skip
        if once:
            sys.exit(0 if operator.run_once() else 1)
        operator.run()
    except Stopped:
        if operator:
            operator.drain(4)
        log.info("stopped")


if __name__ == "__main__":
    main()
