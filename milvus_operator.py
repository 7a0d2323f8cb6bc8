#!/usr/bin/env python3
"""Keeps the pods of every Milvus resource running: a Kubernetes operator in one file.

    python milvus_operator.py          # serve the namespace of the kubeconfig's current context
    python milvus_operator.py -A       # serve all namespaces

It polls. Every few seconds it makes one pass: it lists the pods that carry our label, then the Milvus resources, and
serves each Milvus that is not at rest. Pure functions over plain dicts decide what to do about its pods; the operator
does it and decides again, based on the answers. Then it writes the statuses that have changed, and events.

Nothing has to be remembered between passes: names are fixed, every delete carries a UID, and every decision
starts from fresh lists. So a write that is lost, repeated, or made by a second copy of the operator does no harm.

In the names below, a *milvus* is one resource of kind Milvus and a *pod* is one pod, both as dicts, as in their JSON. A
*stranger* is somebody else's pod that has one of our names. To *vet* a template is to ask the API server whether it
would accept a pod made from it. To *disrupt* a pod is to delete it while it is Ready. To learn how an operator
works, read `decide` in the core, then `Operator.serve_pods` in the loop. The shell, between them, can wait.
"""

from __future__ import annotations

import os
import signal

if __name__ == "__main__":  # imports take a while, and process 1 of a container ignores signals that it does not handle
    for _signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(_signum, lambda *_: os._exit(0))

import contextlib
import functools
import gc
import hashlib
import json
import logging.handlers
import math
import random
import re
import socket
import socketserver
import ssl
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, NoReturn

import click
import prometheus_client as metrics
import urllib3
import yaml
from kubernetes import config as kubeconfig_loader
from kubernetes.client import ApiClient, ApiException, Configuration
from kubernetes.config import ConfigException
from kubernetes.config.kube_config import KubeConfigMerger
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.resource import Resource

__version__ = "0.1.0"

Obj = dict[str, Any]  # a Kubernetes object or a part of one, as in its JSON

# ---------- Constants ----------

GROUP, VERSION, KIND, PLURAL = "zilliz.com", "v1", "Milvus", "milvuses"
API_VERSION = f"{GROUP}/{VERSION}"

NAME_LABEL, INSTANCE_LABEL = "app.kubernetes.io/name", "app.kubernetes.io/instance"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
POD_INDEX_LABEL = "apps.kubernetes.io/pod-index"
MANAGER = "milvus-operator"
TEMPLATE_HASH = f"{GROUP}/template-hash"  # annotation: the fingerprint of the user's own fields
MILVUS_SPEC = f"{GROUP}/milvus-spec"  # annotation: spec.milvusSpec when it is not a YAML mapping

CONTAINER, DATA = "milvus", "/var/lib/milvus"  # the container that runs Milvus, and where it keeps its data
MAX_REPLICAS = 1000
MAX_NAME = 52  # so that <name>-<ordinal> is a host name and <name> a label, with room to spare
MAX_SPEC, MAX_SPEC_DEPTH, MAX_SETTINGS = 65536, 32, 1000  # bytes, levels and settings of spec.milvusSpec
MAX_POD_DEPTH = 100  # levels of nesting in spec.pod; a real pod has about fifteen
MAX_DEPTH = 200  # levels of nesting that are read from an answer; anything deeper becomes null
MERGE_PATCH = "application/merge-patch+json"  # custom resources have no strategic merge patch, the client's default
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"  # where a pod finds its own credentials
PAGE = 150  # objects in one page of a list
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")

# The environment variables that make one container a complete, standalone Milvus.
DEFAULTS = {
    "DEPLOY_MODE": "STANDALONE",
    "ETCD_USE_EMBED": "true",
    "ETCD_DATA_DIR": f"{DATA}/etcd",
    "ETCD_CONFIG_PATH": "/milvus/configs/advanced/etcd.yaml",
    "ETCD_ENDPOINTS": "localhost:2479",
    "COMMON_STORAGETYPE": "local",
    "MQ_TYPE": "rocksmq",
    "COMMON_GRACEFULSTOPTIMEOUT": "5",  # seconds; Milvus's own default is half an hour
    # The components share the container and find each other here. If they registered the pod's address, which changes,
    # a new pod on existing data would wait until the old sessions expire.
    **{f"{component}_IP": "127.0.0.1" for component in (
        "ROOTCOORD", "DATACOORD", "QUERYCOORD", "INDEXCOORD", "PROXY",
        "DATANODE", "INDEXNODE", "QUERYNODE", "STREAMINGNODE",
    )},
}  # fmt: skip
PORTS = {"milvus": 19530, "metrics": 9091}
FIXED = {"proxyport": "proxy.port", "metricsport": "metrics.port"}  # settings that users cannot change

# Reasons of the Reconciled condition.
RECONCILED, SPEC_IS_TEXT, API_ERROR = "Reconciled", "SpecIsText", "APIError"
NAME_CONFLICT, QUOTA_EXCEEDED, INVALID, FORBIDDEN = "NameConflict", "QuotaExceeded", "Invalid", "Forbidden"
STALLED = {NAME_CONFLICT, QUOTA_EXCEEDED, INVALID, FORBIDDEN}  # reasons that stay until somebody acts
CLAIM_TERMINATING = "ClaimTerminating"  # a reason of the Ready condition: a pod waits until an old claim is gone
STATES = ("ready", "progressing", "failed")  # of a Milvus, in the metrics
# Reasons for not being Ready that usually pass on their own; any other reason is shown first.
PASSING = {"Creating", "ContainerCreating", "PodInitializing", "Pending", "Updating", "Terminating"}

# Metrics. The client library adds its own about this process: memory, CPU, open files.
PASSES = metrics.Counter("milvus_operator_passes", "Passes, by result: success or failure", ["result"])
PASS_SECONDS = metrics.Histogram("milvus_operator_pass_duration_seconds", "Duration of a pass",
                                 buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120))  # fmt: skip
REQUESTS = metrics.Counter("milvus_operator_api_requests", "Requests to the API server", ["verb", "resource", "code"])
MILVUSES = metrics.Gauge("milvus_operator_milvuses", f"Milvus resources: {', '.join(STATES)}", ["state"])
SINCE_GOOD_PASS = metrics.Gauge("milvus_operator_seconds_since_good_pass", "Seconds since the last good pass")

YAML_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # scalars as written: `off` stays `off`
log = logging.getLogger("milvus_operator")


class Words(NamedTuple):
    """The reason and message of a condition or an event."""

    reason: str
    message: str
    trouble: tuple[str, str] | None = None  # a shared cause, logged once: its key, and the line to log


class Invalid(Exception):
    """The spec of a Milvus cannot be served; the text tells its owner why."""


# ---------- Readers of unstructured objects ----------


def reader(key: str) -> Callable[[Obj], str]:
    return lambda obj: str(obj["metadata"][key])


name_of, namespace_of, uid_of, version_of = map(reader, ("name", "namespace", "uid", "resourceVersion"))


def full_name(obj: Obj) -> str:
    return f"{namespace_of(obj)}/{name_of(obj)}"


def generation_of(milvus: Obj) -> int:
    return int(milvus["metadata"].get("generation", 0))


def labels_of(obj: Obj) -> Obj:
    return obj["metadata"].get("labels") or {}


def controller_of(obj: Obj) -> Obj:
    """The owner reference whose `controller` is true (an object has at most one), or an empty mapping."""
    return next((owner for owner in obj["metadata"].get("ownerReferences") or [] if owner.get("controller")), {})


def owner_uid(obj: Obj) -> str | None:
    return controller_of(obj).get("uid")


def is_ending(obj: Obj) -> bool:
    return bool(obj["metadata"].get("deletionTimestamp"))


def is_finished(pod: Obj) -> bool:
    """Failed or Succeeded: its containers have ended and will not start again."""
    return phase_of(pod) in ("Failed", "Succeeded")


def condition_of(obj: Obj, kind: str) -> Obj:
    """The condition of this type in its status, or an empty mapping."""
    conditions = mapping(obj.get("status")).get("conditions")
    some = conditions if isinstance(conditions, list) else []
    return next((condition for condition in some if mapping(condition).get("type") == kind), {})


def is_ready(pod: Obj) -> bool:
    return condition_of(pod, "Ready").get("status") == "True" and not is_ending(pod) and not is_finished(pod)


def phase_of(pod: Obj) -> str:
    return str(pod.get("status", {}).get("phase") or "Pending")


def template_hash_of(pod: Obj) -> str | None:
    return (pod["metadata"].get("annotations") or {}).get(TEMPLATE_HASH)


def mapping(value: Any) -> Obj:
    """The value if it is a mapping, else an empty mapping: under some CRDs a Milvus may have any shape."""
    return value if isinstance(value, dict) else {}


def pick(obj: Obj, keys: Iterable[str]) -> Obj:
    """The part of the mapping that has these keys."""
    return {key: value for key in keys if (value := obj.get(key)) is not None}


# ---------- The core: what a Milvus needs, what to do, what its status says; no clock, no network, no log ----------


# --- What the spec asks for ---
def replicas_of(milvus: Obj) -> int:
    """How many pods are wanted. Raises Invalid if the spec cannot be served: the original CRD checks nothing."""
    spec, name = mapping(milvus.get("spec")), name_of(milvus)
    replicas = spec.get("replicas")
    if len(name) > MAX_NAME or not DNS_LABEL.fullmatch(name):
        raise Invalid(f"the name must be a DNS label of at most {MAX_NAME} characters: pod names are made from it")
    for key, shape in {"image": str, "milvusSpec": str, "storage": dict, "pod": dict}.items():
        if not isinstance(spec.get(key), shape | None):
            raise Invalid(f"spec.{key} must be a {'string' if shape is str else 'mapping'}")
    if not spec.get("image"):
        raise Invalid("spec.image must be the name of an image")
    if replicas is not None and (type(replicas) is not int or not 0 <= replicas <= MAX_REPLICAS):
        raise Invalid(f"spec.replicas must be a whole number from 0 to {MAX_REPLICAS}")
    if deeper_than(MAX_POD_DEPTH, spec.get("pod")):
        raise Invalid(f"spec.pod is nested more than {MAX_POD_DEPTH} levels deep")
    settings_of(milvus)
    return 1 if replicas is None else replicas


def deeper_than(levels: int, value: Any) -> bool:
    """Whether mappings and lists are nested more than this many levels deep."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (levels == 0 and len(parts) > 0) or any(deeper_than(levels - 1, part) for part in parts)


def template_hash(milvus: Obj) -> str:
    """The fingerprint of what the user wrote, not of the resulting pod: a newer operator must not restart any pod."""
    written = pick(milvus["spec"], ("image", "milvusSpec", "pod"))
    return hashlib.sha256(json.dumps(written, sort_keys=True).encode()).hexdigest()[:16]


def pod_name(milvus: Obj, ordinal: int) -> str:
    return f"{name_of(milvus)}-{ordinal}"


def claim_name(pod: Obj) -> str:
    return f"data-{name_of(pod)}"


def ordinal_of(milvus: Obj, pod: Obj) -> int | None:
    """The pod's ordinal, or None if its name is not <this Milvus's name>-<ordinal>."""
    start, _, end = name_of(pod).rpartition("-")
    return int(end) if start == name_of(milvus) and end.isdecimal() and str(int(end)) == end else None


def selector_of(milvus: Obj) -> dict[str, str]:
    """The labels that all pods of a Milvus share."""
    return {NAME_LABEL: "milvus", INSTANCE_LABEL: name_of(milvus), MANAGED_BY_LABEL: MANAGER}


def pod_labels(milvus: Obj, ordinal: int) -> dict[str, str]:
    return selector_of(milvus) | {POD_INDEX_LABEL: str(ordinal)}


def owner_reference(milvus: Obj) -> Obj:
    reference = {"apiVersion": API_VERSION, "kind": KIND, "name": name_of(milvus), "uid": uid_of(milvus)}
    return reference | {"controller": True, "blockOwnerDeletion": True}


# --- The pod, and its claim ---
def new_pod(milvus: Obj, ordinal: int) -> Obj:
    """The pod of this ordinal as it is sent to the API server: the generated pod with spec.pod laid over it."""
    pod, spec, settings = name_only(milvus, ordinal), milvus["spec"], settings_of(milvus)
    over, storage = mapping(spec.get("pod")), {"persistentVolumeClaim": {"claimName": claim_name(pod)}}
    metadata = mapping(over.get("metadata"))
    text = {} if settings is not None else {MILVUS_SPEC: spec["milvusSpec"]}
    ours = {
        "hostname": name_of(pod),
        "subdomain": name_of(milvus),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # a Service named proxy would set PROXY_PORT, which Milvus reads
        "terminationGracePeriodSeconds": 60,
        "securityContext": {"fsGroup": 999},  # the group of Milvus images that do not run as root
        "containers": [new_container(spec["image"], settings or {})],
        "volumes": [{"name": "data"} | (storage if spec.get("storage") else {"emptyDir": {}})],
    }
    pod["metadata"] |= {
        "labels": mapping(metadata.get("labels")) | pod_labels(milvus, ordinal),
        "annotations": mapping(metadata.get("annotations")) | {TEMPLATE_HASH: template_hash(milvus)} | text,
        "ownerReferences": [owner_reference(milvus)],
    }
    return {"apiVersion": "v1", "kind": "Pod"} | pod | {"spec": overlay(ours, mapping(over.get("spec")))}


def name_only(milvus: Obj, ordinal: int) -> Obj:
    """A pod that does not exist yet: its name and namespace."""
    return {"metadata": {"name": pod_name(milvus, ordinal), "namespace": namespace_of(milvus)}}


def new_container(image: str, settings: dict[str, str]) -> Obj:
    """A standalone Milvus with these settings. It has five minutes to start, and is not Ready until it has."""
    healthz = {"httpGet": {"path": "/healthz", "port": "metrics"}, "timeoutSeconds": 5}
    return {
        "name": CONTAINER,
        "image": image,
        "args": ["milvus", "run", "standalone"],
        "env": environment(DEFAULTS, settings),
        "ports": [{"name": port, "containerPort": number} for port, number in PORTS.items()],
        "startupProbe": healthz | {"periodSeconds": 5, "failureThreshold": 60},
        "readinessProbe": healthz | {"periodSeconds": 10, "failureThreshold": 3},
        "livenessProbe": {"tcpSocket": {"port": "metrics"}, "timeoutSeconds": 5, "periodSeconds": 15},
        "resources": {"requests": {"cpu": "250m", "memory": "1Gi"}},
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": [{"name": "data", "mountPath": DATA}],
    }


def new_claim(milvus: Obj, pod: Obj) -> Obj | None:
    """The PersistentVolumeClaim of a pod. It has no owner, so the data outlives the pod and the Milvus."""
    storage = milvus["spec"].get("storage")
    if not storage:
        return None
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": storage.get("size")}}}
    labels = pod_labels(milvus, ordinal_of(milvus, pod) or 0)
    metadata = {"name": claim_name(pod), "namespace": namespace_of(milvus), "labels": labels}
    spec |= pick(storage, ["storageClassName"])
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


# --- Settings: spec.milvusSpec as environment variables ---
def settings_of(milvus: Obj) -> dict[str, str] | None:
    """The settings in spec.milvusSpec by dotted name; None if it is not a YAML mapping. Raises Invalid."""
    return parse_settings(milvus["spec"].get("milvusSpec") or "{}")


def invalid(line: int, text: str) -> Invalid:
    """An error on this line (from 0) of spec.milvusSpec. The user's text is never quoted: it may contain passwords."""
    return Invalid(f"spec.milvusSpec, line {line + 1}: {text}")


@functools.lru_cache(maxsize=128)
def parse_settings(text: str) -> dict[str, str] | None:
    """The settings of a YAML mapping, flattened to dotted names; None for any other text. Raises Invalid."""
    if len(text.encode(errors="replace")) > MAX_SPEC:
        raise Invalid(f"spec.milvusSpec is longer than {MAX_SPEC // 1024} KiB")
    try:
        if not is_harmless_mapping(text):
            return None
        settings = list(flatten(yaml.compose(text, YAML_LOADER)))
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        mark, bad = getattr(error, "problem_mark", None), yaml.reader.Reader.NON_PRINTABLE.search(text)
        line = min(mark.line, text.rstrip().count("\n")) if mark else text.count("\n", 0, bad.start() if bad else 0)
        raise invalid(line, "not valid YAML" if mark else "a character that YAML does not allow") from None
    if len(settings) > MAX_SETTINGS:
        raise Invalid(f"spec.milvusSpec has {len(settings)} settings; the limit is {MAX_SETTINGS}")
    lines: dict[str, int] = {}
    for name, _, line in settings:
        key = setting(name)
        if key in FIXED:
            raise invalid(line, f"{FIXED[key]} cannot be changed: the ports of the pod depend on it")
        if key in lines:
            raise invalid(line, f"the same setting as on line {lines[key] + 1}")
        lines[key] = line
    return {name: value for name, value, _ in settings}


def is_harmless_mapping(text: str) -> bool:
    """Whether the text is a YAML mapping. It is read event by event, because PyYAML's composer recurses and expands
    aliases. Raises Invalid."""
    depth, tops = 0, list[bool]()
    for event in yaml.parse(text, YAML_LOADER):
        line = event.start_mark.line if event.start_mark else 0
        if isinstance(event, yaml.NodeEvent):
            if depth == 0:
                tops.append(isinstance(event, yaml.MappingStartEvent))
            if any(tops) and event.anchor is not None:  # an alias has one too
                raise invalid(line, "anchors and aliases are not allowed: write the value instead")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_SPEC_DEPTH:
            raise invalid(line, f"more than {MAX_SPEC_DEPTH} levels of nesting")
    return any(tops) or not tops  # empty text is an empty mapping


def flatten(mapping_node: Any, prefix: str = "") -> Iterator[tuple[str, str, int]]:
    """Each setting below a mapping node: its dotted name, its value as written, its line. Raises Invalid."""
    for key, node in mapping_node.value if mapping_node else ():
        line = key.start_mark.line
        if not isinstance(key, yaml.ScalarNode) or not key.value:
            raise invalid(line, "a key must be a string that is not empty")
        if isinstance(node, yaml.MappingNode):
            yield from flatten(node, f"{prefix}{key.value}.")
        elif isinstance(node, yaml.ScalarNode):
            yield prefix + key.value, node.value, line
        elif all(isinstance(item, yaml.ScalarNode) for item in node.value):
            yield prefix + key.value, ",".join(item.value for item in node.value), line
        else:
            raise invalid(line, "a list may hold only scalars, not mappings or lists")


MILVUS_PREFIX = re.compile(r"(MILVUS_CONF_)?((?i:milvus)\.)?")
NO_SEPARATORS = str.maketrans("", "", "_./")


def setting(name: str) -> str:
    """The setting that Milvus reads from a variable of this name: PROXY_PORT and milvus.proxy.port are the same."""
    return MILVUS_PREFIX.sub("", name, count=1).translate(NO_SEPARATORS).lower()


def environment(defaults: dict[str, str], settings: dict[str, str]) -> list[Obj]:
    """The variables of both; if both have the same setting, the user's wins. Kubernetes reads $$ as one $."""
    theirs = {setting(name) for name in settings}
    chosen = {name: value for name, value in defaults.items() if setting(name) not in theirs} | settings
    return [{"name": name, "value": value.replace("$", "$$")} for name, value in chosen.items()]


# --- spec.pod, laid over the pod ---
MERGE_KEYS = {"containers": "name", "volumes": "name", "volumeMounts": "mountPath", "ports": "containerPort"}
ALTERNATIVES = {"exec", "httpGet", "tcpSocket", "grpc"}  # a probe has exactly one of these


def overlay(ours: Obj, over: Obj) -> Obj:
    """A mapping laid over ours: mappings merge, lists of named things merge by key, anything else replaces."""
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
    """A list of named things laid over ours. A variable or a volume is replaced as a whole: it has only one source."""
    if kind == "env":
        theirs = {setting(str(item.get("name"))) for item in over}
        return [item for item in ours if setting(item["name"]) not in theirs] + over
    if kind not in MERGE_KEYS:
        return over
    key = MERGE_KEYS[kind]
    merged, rest, met = {item[key]: item for item in ours}, [], set()
    for item in over:
        name = item.get(key)
        if isinstance(name, str | int) and name in merged and name not in met:
            merged[name] = item if kind == "volumes" else overlay(merged[name], item)
            met.add(name)
        else:
            rest.append(item)  # the API server refuses duplicates
    return [*merged.values(), *rest]


# --- Whose pod it is ---
def members(milvus: Obj, pods: Iterable[Obj]) -> dict[int, Obj]:
    """The pods that this Milvus owns, by ordinal. Ownership is a UID; a name proves nothing."""
    owned = (pod for pod in pods if owner_uid(pod) == uid_of(milvus))
    return {ordinal: pod for pod in owned if (ordinal := ordinal_of(milvus, pod)) is not None}


def is_orphan(milvus: Obj, pod: Obj) -> bool:
    """Whether it is our pod and has lost its owner, as after `kubectl delete --cascade=orphan`."""
    ours = ordinal_of(milvus, pod) is not None and selector_of(milvus).items() <= labels_of(pod).items()
    return ours and not controller_of(pod) and not is_ending(pod)


def strangers(milvus: Obj, pods: Iterable[Obj]) -> dict[str, Words]:
    """The pods that have a wanted name and are not ours, each with what to tell the user. Raises Invalid."""
    wanted, found = {pod_name(milvus, ordinal) for ordinal in range(replicas_of(milvus))}, dict[str, Words]()
    for pod in pods:
        owner, name = controller_of(pod), name_of(pod)
        ours = (owner.get("kind"), owner.get("name")) == (KIND, name_of(milvus))  # or of an earlier namesake
        if name in wanted and not ours and not is_ending(pod) and not is_orphan(milvus, pod):
            whose = f"{owner.get('kind')} {owner.get('name')}" if owner else "somebody else"
            advice = "delete that pod (this is noticed within 5 minutes) or use another name for the Milvus"
            found[name] = Words(NAME_CONFLICT, f"pod {name} belongs to {whose} and is left alone: {advice}")
    return found


# --- What to do ---
DONE = {"create": "created", "delete": "deleted", "adopt": "adopted", "label": "labelled"}
WRITTEN = (*DONE.values(), "status update(s)")  # in the order of the log


class Action(NamedTuple):
    """One write: the verb (a key of DONE, or vet or claim), the pod (to create one, its name only), and the reason."""

    verb: str
    pod: Obj
    reason: str

    @property
    def disrupts(self) -> bool:
        return self.verb == "delete" and is_ready(self.pod)


class Limits(NamedTuple):
    """What decide() cannot see in the objects."""

    replace: bool = True  # whether Failed and Succeeded pods may be replaced now
    vetted: bool = True  # whether the API server accepts the current template; until it does, no pod is deleted for it
    held: Collection[str] = ()  # the names that strangers have
    skip: Collection[str] = ()  # the names of pods to leave alone for now
    disruptable: Collection[str] | None = None  # UIDs of pods that may be deleted although Ready; None: all


def decide(milvus: Obj, pods: Collection[Obj], limits: Limits = Limits()) -> list[Action]:  # noqa: B008  # immutable
    """What to do now, in order. `pods` are those of the Milvus and those that have one of its names. Raises Invalid."""
    replicas, fingerprint, may = replicas_of(milvus), template_hash(milvus), limits.disruptable
    mine, taken = members(milvus, pods), {*limits.held, *map(name_of, pods)}
    surplus = [mine[ordinal] for ordinal in sorted(mine, reverse=True) if ordinal >= replicas]
    deletes = [Action("delete", pod, f"surplus: {replicas} wanted") for pod in surplus if not is_ending(pod)]
    repairs = [Action("adopt", pod, "orphan with our labels") for pod in pods if is_orphan(milvus, pod)]
    steps: list[Action] = []  # of the roll
    for ordinal in range(replicas):
        pod = mine.get(ordinal)
        if not pod:
            pod = name_only(milvus, ordinal)
            repairs += [Action("create", pod, "missing")] if name_of(pod) not in taken else []
        elif is_finished(pod) and not is_ending(pod):
            stale = template_hash_of(pod) != fingerprint
            if limits.replace or stale:  # a pod of an earlier template is deleted only once the current one is vetted
                words = dict.fromkeys((phase_of(pod), words_of(pod).reason))  # Failed: Evicted
                (steps if stale else deletes).append(Action("delete", pod, ": ".join(words)))
        elif not is_ending(pod):
            repairs += repairs_of(milvus, pod, ordinal)
    wanted = [ordinal for ordinal in range(replicas) if pod_name(milvus, ordinal) not in limits.held]
    steps += roll(mine, wanted, fingerprint, limits)
    deletes, steps = ([a for a in some if name_of(a.pod) not in limits.skip] for some in (deletes, steps))
    if deletes and any(step.disrupts for step in steps):
        steps = []  # one thing at a time: no Ready pod is rolled while others are deleted
    if steps and not limits.vetted:
        steps = [Action("vet", steps[0].pod, "the template has changed")]
    deletes = [a for a in deletes + steps if not a.disrupts or may is None or uid_of(a.pod) in may]
    skip = {*limits.skip, *(name_of(action.pod) for action in deletes)}
    return deletes + [action for action in repairs if name_of(action.pod) not in skip]


def repairs_of(milvus: Obj, pod: Obj, ordinal: int) -> Iterator[Action]:
    """What a pod of ours needs if it has lost its labels or its claim."""
    said = condition_of(pod, "PodScheduled").get("message") or ""  # in the scheduler's words
    if not pod_labels(milvus, ordinal).items() <= labels_of(pod).items():
        yield Action("label", pod, "lost its labels")
    elif any(f'"{claim_name(pod)}" {what}' in said for what in ("not found", "is being deleted")):
        yield Action("claim", pod, "missing")


def roll(mine: dict[int, Obj], wanted: Collection[int], fingerprint: str, limits: Limits) -> list[Action]:
    """The next step in replacing pods of an earlier template: like a StatefulSet, from the highest ordinal and one
    Ready pod at a time. Unlike a StatefulSet, it first deletes all that are not Ready: they serve nobody, and a roll
    that waits for a broken pod gets stuck, even when it is rolled back (kubernetes/kubernetes#67250)."""
    running = [mine[i] for i in sorted(wanted, reverse=True) if i in mine]
    running = [pod for pod in running if not is_ending(pod) and not is_finished(pod)]
    stale = [pod for pod in running if template_hash_of(pod) != fingerprint and name_of(pod) not in limits.skip]
    broken = [pod for pod in stale if not is_ready(pod)]
    if not all(i in mine and is_ready(mine[i]) for i in wanted):
        return [Action("delete", pod, "earlier template, not Ready") for pod in broken]
    next_ones = (pod for pod in stale if limits.disruptable is None or uid_of(pod) in limits.disruptable)
    return [Action("delete", pod, "earlier template") for pod in next_ones][:1]


def announced_of(milvus: Obj) -> str:
    """What status.disruptedPod says: the UID of the Ready pod that was last announced, and when; or an empty string."""
    return str(mapping(milvus.get("status")).get("disruptedPod") or "")


def disruptable(pods: Iterable[Obj], announced: str, newer: bool) -> set[str]:
    """The UIDs of the pods that may be deleted now although they are Ready.

    Several copies of the operator never take down two Ready pods at once: each announces its pod first, in a write
    that fails if the Milvus has changed since it was listed. If an announced pod is still in the list, then the list
    is older than its delete, or the copy that announced it has died; either way, only that pod may be deleted. A list
    that is not `newer` than the last change of the Milvus may not show such a delete yet."""
    there = {uid_of(pod) for pod in pods if not is_ending(pod)}
    return set() if not newer else {announced} if announced in there else there


# --- What the status and the events say ---
def words_of(pod: Obj) -> Words:
    """Why a pod is not Ready, in the words of its status, or else its phase."""
    status = pod.get("status") or {}
    if is_ending(pod):
        return Words("Terminating", "")
    if is_finished(pod):
        return Words(status.get("reason") or phase_of(pod), status.get("message") or "")
    for container in (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or []):
        state = container.get("state") or {}
        if waiting := state.get("waiting"):
            return Words(waiting.get("reason") or "Waiting", waiting.get("message") or "")
        if (ended := state.get("terminated")) and ended.get("exitCode"):
            return Words(ended.get("reason") or "Error", f"exit code {ended['exitCode']}")
    for condition in (condition_of(pod, kind) for kind in ("PodScheduled", "Ready")):
        if condition and condition["status"] != "True":
            return Words(condition.get("reason") or phase_of(pod), condition.get("message") or "")
    return Words(phase_of(pod), "")


def readiness(milvus: Obj, mine: dict[int, Obj], problems: dict[str, Words]) -> tuple[bool, Words]:
    """Whether every wanted pod exists, is up to date and Ready, and what the Ready condition says. Raises Invalid."""
    replicas, fingerprint, waiting = replicas_of(milvus), template_hash(milvus), dict[str, Words]()
    for ordinal in range(replicas):
        name, pod = pod_name(milvus, ordinal), mine.get(ordinal)
        if pod is None:
            problem = problems.get(name) or problems.get("create") or Words("Creating", "")
            waiting[name] = problem if problem.reason == CLAIM_TERMINATING else Words(problem.reason, "")
        elif not is_ready(pod):
            waiting[name] = words_of(pod)
        elif template_hash_of(pod) != fingerprint:
            refused = problems.get(name) or problems.get("vet")
            waiting[name] = Words(refused.reason, "") if refused else Words("Updating", "made from an earlier template")
    ready = f"{replicas - len(waiting)} of {replicas} pods are ready and up to date"
    if not waiting:
        return True, Words("Ready", ready)
    name = next((name for name, words in waiting.items() if words.reason not in PASSING), next(iter(waiting)))
    return False, Words(waiting[name].reason, f"{ready}; {name}: {waiting[name].message or waiting[name].reason}")


def reconciliation(milvus: Obj, problems: dict[str, Words]) -> Words:
    """What the Reconciled condition says; of several refusals, always the first by name. Raises Invalid."""
    usual = Words(RECONCILED, "the pods match the spec or are being brought in line with it")
    if settings_of(milvus) is None:
        kept = f"it is kept in the pods' annotation {MILVUS_SPEC} and changes no settings"
        usual = Words(SPEC_IS_TEXT, f"spec.milvusSpec is not a YAML mapping: {kept}")
    return next((problems[key] for key in sorted(problems) if problems[key].reason != CLAIM_TERMINATING), usual)


def status_of(milvus: Obj, pods: Iterable[Obj], problems: dict[str, Words], now: str) -> Obj:
    """The status of a Milvus. `problems` says what failed, by pod or verb; `now` is the time, in RFC 3339."""
    mine, updated = members(milvus, pods), 0
    there = [mine[ordinal] for ordinal in sorted(mine) if not is_ending(mine[ordinal])]
    try:
        ready, words = readiness(milvus, mine, problems)
        reconciled, fingerprint = reconciliation(milvus, problems), template_hash(milvus)
        updated = sum(template_hash_of(pod) == fingerprint for pod in there)
    except Invalid as error:
        ready, words, reconciled = False, Words(INVALID, str(error)), Words(INVALID, str(error))
    said = {"Ready": (ready, words), "Reconciled": (reconciled.reason in (RECONCILED, SPEC_IS_TEXT), reconciled)}
    if reconciled.reason in STALLED:
        said["Stalled"] = (True, reconciled)
    counts = {"replicas": len(there), "readyReplicas": sum(map(is_ready, there)), "updatedReplicas": updated}
    return counts | {
        "observedGeneration": generation_of(milvus),
        "pods": [name_of(pod) for pod in there],
        "selector": ",".join(f"{key}={value}" for key, value in sorted(selector_of(milvus).items())),
        "conditions": [new_condition(milvus, kind, *words, now) for kind, words in said.items()],
    }


def new_condition(milvus: Obj, kind: str, true: bool, said: Words, now: str) -> Obj:
    """A condition. Its time changes only with its status. The message of a refusal changes only with its reason or the
    spec, because messages vary from one try to the next."""
    generation, before = generation_of(milvus), condition_of(milvus, kind)
    new = {"type": kind, "status": str(true), "observedGeneration": generation, "lastTransitionTime": now}
    new |= {"reason": re.sub(r"[^A-Za-z0-9_,:]", "", said.reason) or "Unknown", "message": said.message[:1024]}
    if before.get("status") == str(true) and isinstance(before.get("lastTransitionTime"), str):
        new["lastTransitionTime"] = before["lastTransitionTime"]
    same = before.get("reason") == new["reason"] and before.get("observedGeneration") == generation
    if same and kind != "Ready" and said.reason in (QUOTA_EXCEEDED, FORBIDDEN, API_ERROR):
        new["message"] = str(before.get("message"))
    return new


def new_event(milvus: Obj, reason: str, message: str, warning: bool, names: list[str], now: str) -> Obj:
    """An event for `kubectl describe` about a Milvus and these pods; `now` has microseconds."""
    pods = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if names[10:] else "")
    note, namespace = f"{pods}: {message}" if pods else message, namespace_of(milvus)
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": f"{name_of(milvus)}-", "namespace": namespace},
        "regarding": pick(owner_reference(milvus), ("apiVersion", "kind", "name", "uid")) | {"namespace": namespace},
        "type": "Warning" if warning else "Normal",
        "reason": reason,
        "action": "Reconcile",
        "note": note.encode(errors="replace")[:1024].decode(errors="ignore"),
        "eventTime": now,
        "reportingController": f"{GROUP}/{MANAGER}",
        "reportingInstance": socket.gethostname(),  # the pod's name, in a cluster
    }


# ---------- The shell: the only part that knows about HTTP ----------


def by_gvr(api: ApiClient, group: str, version: str, kind: str, plural: str, **options: Any) -> Resource:
    """A resource of the dynamic client, without its discovery requests and its cache file."""
    client = DynamicClient(api, discoverer=lambda client, cache_file: None)
    prefix, options = ("apis" if group else "api"), {"namespaced": True} | options
    return Resource(prefix, group, version, kind, name=plural, client=client, **options)


def milvuses(api: ApiClient) -> Resource:
    """The Milvus resources: to create, get, list, patch and delete them from code."""
    subresources = {"status": {"kind": KIND, "name": f"{PLURAL}/status", "namespaced": True}}
    return by_gvr(api, GROUP, VERSION, KIND, PLURAL, subresources=subresources)


def pods(api: ApiClient) -> Resource:
    """The pods: to create, get, list, patch and delete them from code."""
    return by_gvr(api, "", "v1", "Pod", "pods")


class ApiError(Exception):
    """A request that failed: the HTTP code (0: no valid answer), the message, the server's reason, the shared cause."""

    def __init__(self, code: int, message: str, reason: str = "", trouble: tuple[str, str] | None = None) -> None:
        super().__init__(message)
        self.code, self.reason, self.trouble = code, reason, trouble
        self.is_taken = reason == "AlreadyExists"  # there is an object with that name
        self.is_conflict = code == 409 and reason not in ("AlreadyExists", CLAIM_TERMINATING)  # something has changed
        self.is_stranger = code == 401 or "system:anonymous" in message  # the server does not accept our credentials
        self.is_transient = code in (0, 401, 409, 429) or code >= 500  # the same request may succeed soon

    @classmethod
    def of(cls, error: ApiException) -> ApiError:
        """From the client's exception, whose body is a Status object when the API server wrote it."""
        status = attempt(lambda: parse((error.body or "").encode()))[0] or {}
        message = status.get("message") or error.reason or f"HTTP {error.status}"
        return cls(error.status or 0, " ".join(str(message).split())[:1000], str(status.get("reason") or ""))

    def words(self) -> Words:
        """What it means for the Milvus concerned."""
        forbidden = QUOTA_EXCEEDED if "exceeded quota" in str(self) else FORBIDDEN
        reason = {400: INVALID, 422: INVALID, 403: forbidden}.get(self.code, API_ERROR)
        return Words(self.reason if self.reason == CLAIM_TERMINATING else reason, str(self), self.trouble)


def attempt(job: Callable[[], Any]) -> tuple[Any, ApiError | None]:
    """The job's result, or how it failed: nothing that an answer or an object contains may end the loop."""
    try:
        return job(), None
    except ApiError as error:
        return None, error
    except Exception as error:  # its text may contain anything, so only its type and place are shown
        frame = traceback.extract_tb(error.__traceback__)[-1]
        text = f"unexpected {type(error).__name__} in {frame.name}, line {frame.lineno}: please report this"
        return None, ApiError(0, text, "Unexpected", (text, text))


# --- The bytes of an answer (skip this on a first reading) ---
JSON_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]')
ITEMS, BETWEEN = re.compile(rb'"items"\s*:\s*\['), re.compile(r"[\s,]*")


def shallow(body: bytes) -> bytes:
    """The JSON with null in place of anything nested deeper than MAX_DEPTH levels."""
    kept, depth, start = [], 0, 0
    for token in JSON_TOKEN.finditer(body):
        if token[0] in b"[{":
            depth += 1
            if depth == MAX_DEPTH + 1:
                kept += [body[start : token.start()], b"null"]
        elif token[0] in b"]}":
            if depth == MAX_DEPTH + 1:
                start = token.end()
            depth -= 1
    return b"".join([*kept, body[start:]])


def parse(body: bytes) -> Obj:
    """The JSON object as a dict. One object nested too deeply for Python must not hide the rest of its list."""
    try:
        with contextlib.suppress(RecursionError):
            return mapping(json.loads(body))
        return mapping(json.loads(shallow(body)))
    except (ValueError, RecursionError):
        raise ApiError(0, "the answer is not JSON: is this a Kubernetes API server?") from None


def items_of(items: bytes, slim: Callable[[Obj], Obj]) -> list[Obj]:
    """What slim() keeps of each item. Parsed one by one, because a whole page takes ten times its size in memory."""
    text, at, decode, found = str(items, "utf-8", "replace").strip(), 0, json.JSONDecoder().raw_decode, list[Obj]()
    try:
        while at < len(text):
            item, end = decode(text, at)
            found.append(slim(item))
            at = BETWEEN.match(text, end).end()  # type: ignore[union-attr]  # it also matches the empty string
        return found
    except (ValueError, RecursionError):  # not JSON, or an item is nested too deeply
        return list(map(slim, parse(shallow(b'{"items":[%b]}' % items))["items"]))


IDENTITY = ("name", "namespace", "uid", "resourceVersion", "generation", "deletionTimestamp", "finalizers")
OWNER = ("apiVersion", "kind", "name", "uid", "controller")
OUR_LABELS = (NAME_LABEL, INSTANCE_LABEL, MANAGED_BY_LABEL, POD_INDEX_LABEL)
POD_STATUS = ("phase", "reason", "message", "conditions", "initContainerStatuses", "containerStatuses")
READY_STATUS = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


def slim_milvus(milvus: Obj) -> Obj:
    """The parts of a Milvus that are used here."""
    return {"metadata": pick(milvus["metadata"], IDENTITY)} | pick(milvus, ("spec", "status"))


def slim_pod(pod: Obj) -> Obj:
    """The parts of a pod that are used here, about a fifth of it, because all pods are in memory at once."""
    metadata, owner = pick(pod["metadata"], IDENTITY), controller_of(pod)
    metadata["labels"] = pick(labels_of(pod), OUR_LABELS)
    metadata["annotations"] = pick(pod["metadata"].get("annotations") or {}, [TEMPLATE_HASH])
    metadata["ownerReferences"] = [pick(owner, OWNER)] if owner else []
    status = READY_STATUS if is_ready(pod) else pick(pod.get("status") or {}, POD_STATUS)
    return {"metadata": metadata, "status": status}


# --- The requests ---
class Cluster:
    """The requests to one API server. The methods raise ApiError. Credentials are renewed by files and plugins, so
    `connect` is called again once a minute, and before the next pass if the credentials were not accepted."""

    def __init__(self, connect: Callable[[], Connection], timeout: float = 30, dry_run: bool = False,
                 clock: Callable[[], float] = time.monotonic) -> None:  # fmt: skip
        self.connect, self.timeout, self.dry_run, self.clock = connect, timeout, dry_run, clock
        self.would = " (dry run)" if dry_run else ""
        self.pages: dict[tuple[str, str | None], dict[bytes, list[Obj]]] = {}  # of the last lists, by digest
        self.answered = self.connected = clock()  # when the last answer came, when `connect` was last called
        self.accepted = True  # False once the server has rejected the credentials
        self.use(connect())

    def use(self, connection: Connection) -> None:
        self.connection, api = connection, connection.api
        self.milvuses, self.pods = milvuses(api), pods(api)
        self.claims = by_gvr(api, "", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
        self.events = by_gvr(api, "events.k8s.io", "v1", "Event", "events")
        self.server = public(api.configuration.host)

    def reconnect(self) -> None:
        """Connect again if it is time to. The connections are kept as long as the credentials stay the same."""
        if self.accepted and self.clock() < self.connected + 60:
            return
        self.connected, self.accepted = self.clock(), True
        try:
            new = self.connect()
        except Unusable as error:  # a file is missing, or half written
            new = self.connection._replace(complaint=error.message)
        if new.credentials != self.connection.credentials and not new.complaint:
            self.use(new)
        self.connection = self.connection._replace(complaint=new.complaint)

    def request(self, verb: str, resource: Resource, namespace: str | None, read: Callable[[bytes], Any] = parse,
                **arguments: Any) -> Any:  # fmt: skip
        """Send one request with the dynamic client, and count it. Returns what `read` makes of the answer: a dict."""
        asked = "list" if verb == "get" and "name" not in arguments else verb
        if self.dry_run and verb in ("create", "patch"):
            arguments["dry_run"] = "All"
        code = "error"
        try:
            code, body = self.send(getattr(resource, verb), namespace=namespace, **arguments)
            return read(body)
        except ApiError as error:
            code = str(error.code or code)
            self.accepted = self.accepted and not error.is_stranger
            error.trouble = self.trouble(error, asked, resource.name, namespace)
            raise
        finally:
            REQUESTS.labels(asked, resource.name, code).inc()

    def send(self, call: Callable[..., Any], **arguments: Any) -> tuple[str, bytes]:
        """Return the code and the body of the answer."""
        try:
            response = call(serialize=False, _request_timeout=self.timeout, **arguments)
            return str(response.status), response.data
        except ApiException as error:
            raise ApiError.of(error) from None
        except (urllib3.exceptions.HTTPError, ConfigException, OSError) as error:
            late = isinstance(error, urllib3.exceptions.TimeoutError | TimeoutError)
            if late and not isinstance(error, urllib3.exceptions.NewConnectionError):
                raise ApiError(0, f"no answer within {self.timeout:g} s", "Timeout") from None
            text = str(error.args[-1] if error.args else type(error).__name__)
            raise ApiError(0, re.sub(r"^\S*Connection\(.*?\): ", "", public(text))) from None
        except ValueError:  # its text may contain the credentials
            raise ApiError(0, "the credentials contain characters that are not allowed in an HTTP header") from None
        finally:
            self.answered = self.clock()

    def trouble(self, error: ApiError, verb: str, resource: str, namespace: str | None) -> tuple[str, str] | None:
        """If the cause affects more than one object: its key, and one line that says what happened and what to do."""
        right, advice = f"{verb} {resource} in {place(namespace)}", self.connection.complaint
        if error.is_stranger:
            advice = advice or "log in again, or renew the token in the kubeconfig"
            return "credentials", f"{self.server} does not accept the credentials (401): {advice}"
        if error.code == 0 and (not error.reason or verb == "list"):
            return "server", f"cannot reach {self.server}: {error}"
        if verb == "list" and error.code == 404:
            crd = f"{PLURAL}.{GROUP}"
            return crd, f"{self.server} does not serve {crd}: install the CRD with `kubectl apply -f crd.yaml`"
        if "cannot set blockOwnerDeletion" in str(error):  # the words of OwnerReferencesPermissionEnforcement
            right = f"update {PLURAL}/finalizers in {place(namespace)}"
        elif f'cannot {verb} resource "{resource}"' not in str(error):  # the words of RBAC
            return (right, f"cannot {right}: HTTP {error.code}: {error}") if verb == "list" else None
        return right, f"not allowed to {right}: grant this right to the operator"

    def list_all(self, resource: Resource, namespace: str | None, slim: Callable[[Obj], Obj],
                 **selectors: str) -> tuple[list[Obj], int]:  # fmt: skip
        """All objects of a list, and its revision. A page that is the same as last time is not parsed again."""
        before, pages = self.pages.get((resource.name, namespace), {}), dict[bytes, list[Obj]]()
        found = list[Obj]()

        def read(body: bytes) -> Obj:
            items = ITEMS.search(body)
            start, end = (items.end(), body.rfind(b"]")) if items else (len(body), len(body))
            page, digest = parse(body[:start] + body[end:]), hashlib.blake2b(body[start:end]).digest()
            if not str(page.get("kind")).endswith("List"):
                raise ApiError(0, "the answer is not a list: is this a Kubernetes API server?")
            pages[digest] = before[digest] if digest in before else items_of(body[start:end], slim)
            found.extend(pages[digest])
            return mapping(page.get("metadata"))

        token = None
        while True:
            page = self.request("get", resource, namespace, read, limit=PAGE, _continue=token, **selectors)
            token = page.get("continue")
            if not token:
                self.pages[resource.name, namespace] = pages
                return found, int(page.get("resourceVersion") or 0)

    def snapshot(self, namespace: str | None) -> tuple[list[Obj], list[Obj], int]:
        """Pods that may be ours, Milvus resources (read last: no spec is older than a pod), and the pods' revision."""
        found, revision = self.list_all(self.pods, namespace, slim_pod, label_selector=f"{MANAGED_BY_LABEL}={MANAGER}")
        return found, self.list_all(self.milvuses, namespace, slim_milvus)[0], revision

    def create(self, milvus: Obj, pod: Obj) -> Obj:
        """With storage, the claim comes first: no claim, no pod."""
        self.claim(milvus, pod)
        return slim_pod(self.send_pod(milvus, pod))

    def send_pod(self, milvus: Obj, pod: Obj, **options: Any) -> Obj:
        """With `Strict` the server refuses a misspelled field, instead of dropping it."""
        body, options["query_params"] = new_pod(milvus, ordinal_of(milvus, pod) or 0), [("fieldValidation", "Strict")]
        return mapping(self.request("create", self.pods, namespace_of(pod), body=body, **options))

    def claim(self, milvus: Obj, pod: Obj) -> Obj:
        """Create the PersistentVolumeClaim of a pod that needs one, unless it exists. An ending one must go first."""
        body, namespace = new_claim(milvus, pod), namespace_of(pod)
        try:
            if body:
                self.request("create", self.claims, namespace, body=body)
                tell(logging.INFO, milvus, "missing", f"created claim {full_name(body)}{self.would}: missing", pod)
        except ApiError as error:  # even if the claim exists: the quota is checked before the name
            claim, unread = attempt(lambda: self.request("get", self.claims, namespace, name=claim_name(pod)))
            if not claim:
                told = unread if unread and (unread.trouble or (error.is_taken and unread.code != 404)) else error
                raise told from None
            if is_ending(claim):
                text = f"claim {claim_name(pod)} is being deleted; the pod is created when it is gone"
                raise ApiError(409, text, CLAIM_TERMINATING) from None
        return pod

    def vet(self, milvus: Obj, pod: Obj) -> Obj:
        """Raise if a dry run of creating the pod is refused. AlreadyExists means accepted: names are checked last."""
        try:
            self.send_pod(milvus, pod, dry_run="All")
        except ApiError as error:
            if not error.is_taken and error.words().reason != QUOTA_EXCEEDED:
                raise
        return pod

    def look(self, pod: Obj) -> Obj | None:
        """The pod that has a taken name, if any: ours without its labels, one that is ending, or somebody else's."""
        try:
            return slim_pod(self.request("get", self.pods, namespace_of(pod), name=name_of(pod)))
        except ApiError as error:
            if error.code != 404:
                raise
        return None

    def announce(self, milvus: Obj, pod: Obj) -> Obj:
        """Announce in the status which Ready pod is about to be deleted, if the Milvus has not changed. Returns the
        Milvus as it is afterwards."""
        if "status" not in milvus:
            return milvus  # as with the original CRD; there, only a single copy is safe
        announced = f"{uid_of(pod)} {timestamp('microseconds')}"  # always new, so that the resourceVersion changes
        return slim_milvus(self.patch_status(milvus, {"disruptedPod": announced}))

    def delete(self, milvus: Obj, pod: Obj) -> Obj | None:
        """Delete a pod. One that was not Ready is deleted only if it has not changed since: it may be Ready by now.
        Returns what is left of it, or None if it is gone."""
        body: Obj = {"preconditions": {"uid": uid_of(pod)}}
        if not is_ready(pod):
            body["preconditions"]["resourceVersion"] = version_of(pod)
        if self.dry_run:  # in the body: if there is a body, the API server ignores ?dryRun=All
            body["dryRun"] = ["All"]
        left = self.request("delete", self.pods, namespace_of(pod), name=name_of(pod), body=body)["metadata"]
        # With a grace period of 0 the pod in the answer is gone, unless a finalizer keeps it; otherwise it is ending.
        if left.get("deletionGracePeriodSeconds") == 0 and not self.dry_run and not pod["metadata"].get("finalizers"):
            return None
        return pod | {"metadata": pod["metadata"] | {"deletionTimestamp": left.get("deletionTimestamp") or "now"}}

    def adopt(self, milvus: Obj, pod: Obj) -> Obj:
        """Take over an orphan, after one more look at the owner, as the ReplicaSet controller does: the garbage
        collector deletes the pods of an owner that is gone."""
        now = self.request("get", self.milvuses, namespace_of(milvus), name=name_of(milvus))
        if is_ending(now) or uid_of(now) != uid_of(milvus):
            raise ApiError(409, "the Milvus has changed")
        return self.patch_metadata(pod, {"ownerReferences": [owner_reference(milvus)]})  # merges by UID

    def label(self, milvus: Obj, pod: Obj) -> Obj:
        return self.patch_metadata(pod, {"labels": pod_labels(milvus, ordinal_of(milvus, pod) or 0)})

    def patch_metadata(self, pod: Obj, metadata: Obj) -> Obj:
        body = {"metadata": metadata | {"uid": uid_of(pod), "resourceVersion": version_of(pod)}}
        return slim_pod(self.request("patch", self.pods, namespace_of(pod), name=name_of(pod), body=body))

    def patch_status(self, milvus: Obj, status: Obj) -> Obj:
        """Write the status, if the Milvus has not changed; a resourceVersion covers the UID, too."""
        body = {"metadata": {"resourceVersion": version_of(milvus)}, "status": status}
        return mapping(self.request("patch", self.milvuses.status, namespace_of(milvus), name=name_of(milvus),
                                    body=body, content_type=MERGE_PATCH))  # fmt: skip


def public(text: str) -> str:
    """The text without passwords in URLs."""
    return re.sub("//[^/ ]*@", "//", text)


def place(namespace: str | None) -> str:
    return f"namespace {namespace}" if namespace else "all namespaces"


# ---------- The loop: each Milvus that is not at rest is a job for one of the workers, which are threads ----------


class Rest(NamedTuple):
    """A back-off: until when something is not tried again, the delay, its verb, and why."""

    until: float = -math.inf
    delay: float = 0
    verb: str = ""
    words: Words = Words("", "")

    @classmethod
    def after(cls, before: Rest, first: float, most: float, now: float, verb: str = "") -> Rest:
        """Exponential back-off: `first` seconds, then twice as long each time, up to `most`."""
        delay = min(max(2 * before.delay, first), most)
        return cls(now + delay, delay, verb)


@dataclass
class Memory:
    """What is kept about a Milvus between passes. In brackets: what happens if it is lost, which is never harmful."""

    spec: tuple[int, bool] = (0, False)  # the generation that the rests belong to, and whether there is a status
    rests: dict[str, Rest] = field(default_factory=dict)  # by pod, or by verb for all pods (one more try)
    replaced: Rest = Rest()  # noqa: RUF009  # until then finished pods are not replaced (one more is)
    vetted: str = ""  # the fingerprint that the API server has accepted (it is asked again)
    announced: tuple[str, float] = ("", 0)  # status.disruptedPod, and since when (the wait is longer)
    flying: set[str] = field(default_factory=set)  # pods with a write in progress (it is repeated)
    settled: tuple[str, ...] = ()  # the resourceVersions when nothing was left to do (it is served again)
    wake: float = math.inf  # when it is served again even if nothing has changed
    served: float = -math.inf  # the time of the last write; who waits longest goes first (another does)
    state: str = "progressing"  # one of STATES, for the metrics (it is computed again)
    said: str = ""  # what was logged about the Reconciled condition (it is logged again)
    stories: dict[tuple[str, str, bool], list[str]] = field(default_factory=dict)  # to write as events (one is lost)

    def recall(self, milvus: Obj, versions: tuple[str, ...], now: float) -> None:
        """Forget refusals of an earlier spec or status, or from before a pod was gone, and replacements long ago."""
        spec = (generation_of(milvus), "status" in milvus)
        if spec != self.spec:
            self.spec, self.rests = spec, {}
        if len(versions) < len(self.settled):
            self.release(["create"])
        if now >= self.replaced.until - self.replaced.delay + 600:
            self.replaced = Rest()
        if announced_of(milvus) != self.announced[0]:
            self.announced = announced_of(milvus), now
        self.settled = ()

    def hold(self, key: str, verb: str, words: Words, transient: bool, now: float) -> None:
        """Begin or extend a rest. Several failures of one try count once. The words change only with the reason."""
        before, (first, most) = self.rests.get(key, Rest()), (1, 30) if transient else (10, 300)
        if now >= before.until:
            words = before.words if before.words.reason == words.reason else words
            self.rests[key] = Rest.after(before, first, most, now, verb)._replace(words=words)

    def release(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.rests.pop(key, None)

    def resting(self, now: float) -> set[str]:
        return {key for key, rest in dict(self.rests).items() if now < rest.until}


@dataclass
class Job:
    """One Milvus in one pass, with a view of its pods that each answer updates."""

    milvus: Obj
    pods: dict[str, Obj]  # by name
    memory: Memory
    newer: bool  # whether the pods were listed after the Milvus last changed, and none has been disrupted since
    versions: tuple[str, ...]
    changed: set[str] = field(default_factory=set)  # pods that have changed since they were listed
    failures: int = 0
    outdated: bool = False  # whether the Milvus has changed since it was listed
    lock: threading.Lock = field(default_factory=threading.Lock)  # of disruptions


@dataclass
class Pass:
    """One pass. Any thread appends to `happened` what it has done."""

    started: float
    workers: ThreadPoolExecutor
    deadline: float = math.inf  # after that, no new write begins
    spare: bool = False  # whether there are more workers than jobs
    done: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))  # counts finished jobs
    happened: list[str] = field(default_factory=list)
    troubles: dict[str, str] = field(default_factory=dict)  # failed lists, and unexpected errors

    def counted(self) -> str:
        """What was written, for the log."""
        count = Counter(self.happened)
        return ", ".join(f"{count[kind]} {kind}" for kind in WRITTEN if count[kind]) or "nothing written"


class Operator:
    """Serves Milvus resources: `run()` forever, `run_once()`, or a single `run_pass()`."""

    ROUNDS = 6  # of deciding again, based on the answers: adopt, label, vet, delete, create, and one spare
    GRACE = 0.25  # seconds that a pass waits at its end for writes in progress

    def __init__(self, cluster: Cluster, namespaces: Iterable[str | None], interval: float, workers: int) -> None:
        self.cluster, self.interval, self.workers, self.clock = cluster, interval, workers, cluster.clock
        self.namespaces = list(namespaces)
        self.memories: dict[str | None, dict[str, Memory]] = {}  # by the namespace that was listed, then by UID
        self.unlisted = Rest()  # while lists fail
        self.troubles: dict[str, str] = {}  # that have been logged and are not resolved
        self.turned = self.good = self.clock()  # when the loop last made progress; when the last good pass ended
        self.stopping = self.warned = False
        SINCE_GOOD_PASS.set_function(lambda: self.clock() - self.good)

    def is_turning(self) -> bool:
        """Whether the loop makes progress. It does even if the server is down or slow: each request has a timeout."""
        last = max(self.turned, self.cluster.answered)
        return self.clock() - last < max(self.interval, 30) + self.cluster.timeout + 10

    def is_ready(self) -> bool:
        """Whether every namespace has been listed at least once."""
        return self.memories.keys() >= {*self.namespaces}

    def run_once(self) -> bool:
        """Do everything that can be done now, again if something changed meanwhile; returns whether all went well."""
        for _ in range(5):
            happened = self.run_pass(once=True).happened
            if "changed" not in happened:
                return "failed" not in happened
        return False

    def run(self) -> NoReturn:
        """Make a pass whenever one is due, forever: sooner while some lists fail, later while all of them do."""
        while True:
            this, wait = self.run_pass(), self.interval
            gc.collect()
            if delay := self.unlisted.delay * random.uniform(0.5, 1):
                wait = min(wait, delay) if "listed" in this.happened else delay
            time.sleep(max(0, this.started + wait - self.clock()))

    def run_pass(self, once: bool = False) -> Pass:
        """Serve all namespaces. No new write begins once the next pass is due, except with `once`."""
        this = Pass(self.clock(), ThreadPoolExecutor(self.workers))
        self.cluster.reconnect()
        jobs = self.list_jobs(this)
        this.spare, listed = len(jobs) < self.workers, self.clock()
        if not once:
            this.deadline = max(this.started + self.interval, listed + (listed - this.started))
        for job in sorted(jobs, key=lambda job: job.memory.served):
            this.workers.submit(self.work, this, job, self.serve_pods, self.write_status, self.write_events)
        self.wait_for(this, len(jobs), this.deadline + self.GRACE)
        this.workers.shutdown(wait=False)
        self.report(this)
        return this

    def list_jobs(self, this: Pass) -> list[Job]:
        """A job for each Milvus that is not at rest."""
        jobs = list[Job]()
        for made, error in this.workers.map(lambda one: attempt(lambda: self.jobs_of(this, one)), self.namespaces):
            self.turned = self.clock()
            jobs += made or []
            this.happened.append("failed" if error else "listed")
            this.troubles |= [error.trouble] if error and error.trouble else []
        self.unlisted = Rest.after(self.unlisted, 1, 30, self.clock()) if this.troubles else Rest()
        return jobs

    def jobs_of(self, this: Pass, namespace: str | None) -> list[Job]:
        """The jobs from the lists of one namespace, or of all. Raises ApiError."""
        jobs = list[Job]()
        found, wanted, revision = self.cluster.snapshot(namespace)
        uids, known, now = {uid_of(milvus) for milvus in wanted}, self.memories.get(namespace, {}), self.clock()
        memories = self.memories[namespace] = {uid: known.get(uid) or Memory() for uid in uids}
        # By the owner's UID or, for orphans and strangers, by the name in the instance label.
        index: dict[Any, list[Obj]] = defaultdict(list)
        for pod in found:
            owner = owner_uid(pod)
            index[namespace_of(pod), owner if owner in uids else labels_of(pod).get(INSTANCE_LABEL)].append(pod)
        this.happened += ["milvus"] * len(wanted) + ["pod"] * len(found)
        for milvus in wanted:
            memory, where = memories[uid_of(milvus)], namespace_of(milvus)
            pods = index.get((where, uid_of(milvus)), []) + index.get((where, name_of(milvus)), [])
            versions = (str("status" in milvus), *map(version_of, (milvus, *pods)))  # some CRDs have no status
            if memory.settled == versions and now < memory.wake:
                this.happened += ["failed"] * (memory.state == "failed")
            elif not is_ending(milvus):
                memory.recall(milvus, versions, now)
                newer = revision >= int(version_of(milvus))
                jobs.append(Job(milvus, {name_of(pod): pod for pod in pods}, memory, newer, versions))
        return jobs

    def wait_for(self, this: Pass, left: int, end: float) -> None:
        """Wait until all jobs are done, or until `end`. What still hangs then is left alone, and so is its pod."""
        told = self.clock()
        while left and (now := self.clock()) < end:
            self.turned = now
            if now - told >= 5:
                told = now
                gc.collect()
                log.info("in progress: %s so far, %d Milvus left", this.counted(), left)
            left -= this.done.acquire(timeout=min(end - now, 1))

    def work(self, this: Pass, job: Job, *stages: Callable[[Pass, Job], None]) -> None:
        """Run one stage of a job. If it wrote anything, the job then goes to the back of the queue, so that everybody's
        pods come before the statuses. One in twenty goes on at once: a long burst must not delay all statuses."""
        if not stages or self.is_over(this):
            this.done.release()
            return
        _, error = attempt(functools.partial(stages[0], this, job))
        if error and not self.is_over(this):  # whatever it contains, one Milvus never harms another
            this.happened.append("failed")
            this.troubles[full_name(job.milvus)] = f"milvus {full_name(job.milvus)}: {error}"
        if job.memory.served < this.started or len(this.happened) % 20 == 0:
            self.work(this, job, *stages[1:])
        else:
            this.workers.submit(self.work, this, job, *stages[1:])

    def serve_pods(self, this: Pass, job: Job) -> None:
        """Decide what to do about its pods, do it, and decide again based on the answers. Stop after eight failures."""
        for _ in range(self.ROUNDS):
            todo, size = self.actions(job), 1
            if not todo:
                return
            while todo:
                batch, todo = todo[:size], todo[size:]
                act = functools.partial(self.act, this, job)
                list(this.workers.map(act, batch) if len(batch) > 1 else map(act, batch))
                if self.is_over(this):
                    job.memory.served = -math.inf  # first in the next pass
                    return
                if job.failures >= 8 and this.deadline < math.inf:
                    return
                size *= 2 if this.spare else 1  # as in the ReplicaSet controller, so that refusals cost few requests
        this.happened.append("changed")

    def actions(self, job: Job) -> list[Action]:
        """The actions that do not rest; those that failed before come last. A rest ends if its action is not needed."""
        memory, milvus, pods, now = job.memory, job.milvus, job.pods.values(), self.clock()
        try:
            found, wanted = strangers(milvus, pods), {pod_name(milvus, i) for i in range(replicas_of(milvus))}
        except Invalid:
            return []  # the status says why
        resting, fingerprint, (announced, since) = memory.resting(now), template_hash(milvus), memory.announced
        conflicts = {key for key, rest in dict(memory.rests).items() if rest.words.reason == NAME_CONFLICT}
        announced = announced.partition(" ")[0] if now < since + 60 else ""
        limits = Limits(
            replace=now >= memory.replaced.until,
            vetted=memory.vetted == fingerprint,
            held=found.keys() | (conflicts & resting & wanted) - job.pods.keys(),  # some are not in the lists
            skip=job.changed,
        )
        if memory.rests:
            todo = decide(milvus, pods, limits)
            stale = [name_of(pod) for pod in members(milvus, pods).values() if template_hash_of(pod) != fingerprint]
            live = {(key, a.verb) for a in todo for key in (name_of(a.pod), a.verb)}
            live |= {(key, verb) for verb in ("delete", "vet") for key in (verb, *stale) if stale}
            live |= {(name, "create") for name in limits.held} | {("status", "status"), ("events", "events")}
            memory.release([key for key, rest in dict(memory.rests).items() if (key, rest.verb) not in live])
        skip = memory.resting(now) | memory.flying | job.changed
        limits = limits._replace(skip=skip, disruptable=disruptable(pods, announced, job.newer))
        todo = [action for action in decide(milvus, pods, limits) if action.verb not in skip]
        return sorted(todo, key=lambda action: name_of(action.pod) in memory.rests)

    def act(self, this: Pass, job: Job, action: Action) -> None:
        """Carry out one action, and record its outcome in the job and the memory."""
        memory, name, now = job.memory, name_of(action.pod), self.clock()
        if self.is_over(this) or action.verb in memory.resting(now) or (action.disrupts and job.outdated):
            return  # too late, or an action of this kind has just been refused for all
        memory.served = now
        memory.flying.add(name)
        answer, error = attempt(functools.partial(self.perform, job, action))
        memory.flying.discard(name)
        if error:
            self.failed(this, job, action, error)
            return
        pod, done = answer
        job.pods.pop(name, None)
        job.pods |= {name: pod} if pod else {}
        if done:
            memory.release((name, action.verb))
            self.succeeded(this, job, action)
        elif pod:
            for words in strangers(job.milvus, [pod]).values():
                memory.hold(name, "create", words, False, self.clock())

    def perform(self, job: Job, action: Action) -> tuple[Obj | None, bool]:
        """The pod as it is now, or None if no pod has that name; and whether the action is done."""
        try:
            if not action.disrupts:
                return getattr(self.cluster, action.verb)(job.milvus, action.pod), True
            with job.lock:  # one at a time: each announcement needs the resourceVersion of the last
                began = self.clock()
                job.milvus, job.newer = self.cluster.announce(job.milvus, action.pod), False
                if self.clock() > began + 20:  # other copies wait only a minute for this delete
                    raise ApiError(409, "the announcement took too long")
                return self.cluster.delete(job.milvus, action.pod), True
        except ApiError as error:
            if action.verb != "create" or not error.is_taken:
                raise
            return self.cluster.look(action.pod), False

    def succeeded(self, this: Pass, job: Job, action: Action) -> None:
        memory, verb = job.memory, action.verb
        if verb == "vet":
            memory.vetted = template_hash(job.milvus)
        if verb == "claim":
            job.changed.add(name_of(action.pod))  # now it is the scheduler's turn
        if verb not in DONE:
            return
        reason = DONE[verb].capitalize()
        if verb == "delete" and (ordinal_of(job.milvus, action.pod) or 0) < replicas_of(job.milvus):
            reason = "Replaced"
            if is_finished(action.pod) and self.clock() >= memory.replaced.until:
                memory.replaced = Rest.after(memory.replaced, 10, 300, self.clock())
        memory.stories.setdefault((reason, action.reason, False), []).append(name_of(action.pod))
        this.happened.append(DONE[verb])
        text = f"{DONE[verb]} pod {full_name(action.pod)}{self.cluster.would}: {action.reason}"
        tell(logging.INFO, job.milvus, action.reason, text, action.pod)

    def failed(self, this: Pass, job: Job, action: Action, error: ApiError) -> None:
        """After a conflict, decide again; after another error, back off: for one pod, or for all actions of a kind."""
        memory, name, words, verb = job.memory, name_of(action.pod), error.words(), action.verb
        if error.is_conflict or (error.code == 404 and verb in ("delete", "adopt", "label")):
            this.happened.append("changed")
            job.outdated = job.outdated or action.disrupts
            if verb != "create":  # because then a quota has changed, not the pod
                job.changed.add(name)
            return
        if action.disrupts and error.code not in (0, 502, 503, 504):  # the pod is still there, so others need not wait
            memory.announced = announced_of(job.milvus), -math.inf
        all_alike = verb == "vet" or (error.trouble and error.code) or words.reason == QUOTA_EXCEEDED
        memory.hold(verb if all_alike else name, verb, words, error.is_transient, self.clock())
        job.failures += words.reason != CLAIM_TERMINATING

    def write_status(self, this: Pass, job: Job) -> None:
        """Write the status of a Milvus if it has changed, and report what is new."""
        memory, milvus, pods = job.memory, job.milvus, job.pods.values()
        problems = {key: rest.words for key, rest in dict(memory.rests).items() if key not in ("status", "events")}
        with contextlib.suppress(Invalid):
            problems |= strangers(milvus, pods)
        status = status_of(milvus, pods, problems, timestamp())
        ready, reconciled = (condition["status"] == "True" for condition in status["conditions"][:2])
        memory.state = "failed" if not reconciled else "ready" if ready else "progressing"
        this.happened += ["failed"] * (not reconciled)
        if not any(words.trouble for words in problems.values()):
            self.say(job, status["conditions"][1])
        present = mapping(milvus.get("status"))
        if all(present.get(key) == value for key, value in status.items()):
            memory.release(["status"])
            self.settle(this, job)
            return
        if "status" in memory.resting(self.clock()) | memory.flying:
            this.happened += ["failed"] * ("status" in milvus)
            return
        memory.flying.add("status")
        _, error = attempt(functools.partial(self.cluster.patch_status, milvus, status))
        memory.flying.discard("status")
        if error and error.code == 404 and "status" not in milvus:  # as with the original CRD
            memory.hold("status", "status", Words("", ""), False, self.clock())
            if not self.warned:
                log.warning("the CRD %s.%s has no status: `kubectl apply -f crd.yaml` adds it", PLURAL, GROUP)
            self.warned = True
        elif error and (error.is_conflict or error.code == 404):
            this.happened.append("changed")
        elif error:
            text = f"cannot write the status of milvus {full_name(milvus)}"
            error.trouble = error.trouble or (text, f"{text}: {error}")
            this.happened.append("failed")
            memory.hold("status", "status", error.words(), error.is_transient, self.clock())
        else:
            this.happened.append(WRITTEN[-1])
            memory.release(["status"])

    def settle(self, this: Pass, job: Job) -> None:
        """If everything is done and reported, it is at rest until something about it changes, or a rest ends."""
        memory = job.memory
        idle = memory.served < this.started and not memory.flying and (not memory.stories or "events" in memory.rests)
        if idle and job.newer:
            rests = (memory.replaced, *dict(memory.rests).values())
            times = (memory.announced[1] + 60, *(rest.until for rest in rests))
            memory.settled = job.versions
            memory.wake = min((time for time in times if time > this.started), default=math.inf)

    def say(self, job: Job, reconciled: Obj) -> None:
        """Report a new condition of a Milvus in the log and as an event, and also when it is resolved."""
        memory, before, warning = job.memory, job.memory.said, reconciled["status"] == "False"
        reason, message = reconciled["reason"], reconciled["message"]
        known = reconciled == condition_of(job.milvus, "Reconciled")
        memory.said = "" if reason == RECONCILED else f"{reason}: {message}"
        if memory.said == before:
            return
        if not memory.said:
            message, known = f"no longer {before.partition(':')[0]}", False
        if warning or not known:  # if it is known, another copy has logged it, or this one before a restart
            level = logging.WARNING if warning else logging.INFO
            tell(level, job.milvus, reason, f"milvus {full_name(job.milvus)}: {reason}: {message}")
        if not known:
            memory.stories[reason, message, warning] = []

    def write_events(self, this: Pass, job: Job) -> None:
        """Write the events of a Milvus. Nothing depends on them."""
        memory = job.memory
        while memory.stories and not self.is_over(this) and "events" not in memory.resting(self.clock()):
            story = next(iter(dict(memory.stories)))
            names = memory.stories.pop(story, [])
            event = new_event(job.milvus, *story, names, timestamp("microseconds"))
            create = functools.partial(self.cluster.request, "create", self.cluster.events, namespace_of(job.milvus))
            _, error = attempt(functools.partial(create, body=event)) if not self.cluster.dry_run else (None, None)
            memory.release(["events"])
            if error and error.trouble:
                memory.stories[story] = names[-10:]
                memory.hold("events", "events", error.words(), False, self.clock())

    def report(self, this: Pass) -> None:
        """Report the pass in the log and in the metrics."""
        memories = self.all_memories()
        rests = (rest.words.trouble for memory in memories for rest in dict(memory.rests).values())
        troubles = dict(this.troubles) | dict(trouble for trouble in rests if trouble)
        for key in troubles.keys() - self.troubles.keys():
            log.error(troubles[key])
        for key in self.troubles.keys() - troubles.keys():
            log.info("resolved: %s", self.troubles[key])
        self.troubles = {key: self.troubles.get(key, text) for key, text in troubles.items()}
        now, counted, count = self.clock(), this.counted(), Counter(this.happened)
        self.good = self.good if troubles else now
        level = logging.DEBUG if counted == "nothing written" else logging.INFO
        log.log(level, "pass over %d Milvus and %d pods%s: %s, %.2f s", count["milvus"], count["pod"],
                self.cluster.would, counted, now - this.started)  # fmt: skip
        PASSES.labels("failure" if troubles else "success").inc()
        PASS_SECONDS.observe(now - this.started)
        states = Counter(memory.state for memory in memories)
        for state in STATES:
            MILVUSES.labels(state).set(states[state])

    def all_memories(self) -> list[Memory]:
        return [memory for some in list(self.memories.values()) for memory in list(some.values())]

    def is_over(self, this: Pass) -> bool:
        """Whether no new write may begin."""
        return self.stopping or self.clock() >= this.deadline

    def finish(self) -> None:
        """Begin no new write, and give those in progress four seconds, including those of earlier passes."""
        self.stopping, end = True, self.clock() + 4
        while self.clock() < end and any(memory.flying for memory in self.all_memories()):
            time.sleep(0.05)


def timestamp(precision: str = "seconds") -> str:
    """The time as Kubernetes writes it: RFC 3339, in UTC."""
    return datetime.now(UTC).replace(tzinfo=None).isoformat(timespec=precision) + "Z"


def tell(level: int, milvus: Obj, reason: str, text: str, pod: Obj | None = None) -> None:
    """Log a line about a Milvus, with fields for JSON logs."""
    fields = {"namespace": namespace_of(milvus), "milvus": name_of(milvus)}
    fields |= ({"pod": name_of(pod)} if pod else {}) | {"reason": reason}
    log.log(level, "%s", text, extra={"fields": fields})


# ---------- Health and metrics over HTTP ----------


class Health(metrics.MetricsHandler):
    """`/healthz`: the loop makes progress. `/readyz`: everything has been listed once. `/metrics`: for Prometheus."""

    operator: Operator
    timeout = 5  # seconds for a client to send its request

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            super().do_GET()
            return
        checks = {"/healthz": self.operator.is_turning, "/readyz": self.operator.is_ready}
        code = 404 if path not in checks else 200 if checks[path]() else 503
        self.send_response(code)
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        self.wfile.write({200: b"ok\n", 503: b"no\n", 404: b"see /healthz, /readyz, /metrics\n"}[code])


class HealthServer(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that disconnects is not worth a log line."""


def serve_health(operator: Operator, port: int) -> None:
    """Serve Health until the process ends: in a pod on all addresses, elsewhere on localhost. Raises Unusable."""
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ
    if in_pod and socket.has_dualstack_ipv6():
        HealthServer.address_family = socket.AF_INET6
    try:
        server = HealthServer(("" if in_pod else "127.0.0.1", port), type("Bound", (Health,), {"operator": operator}))
    except OSError as error:
        raise Unusable(f"cannot listen on port {port}: {error.strerror}; choose another with --health-port") from None
    threading.Thread(target=server.serve_forever, daemon=True).start()


# ---------- The command ----------


class Unusable(click.ClickException):
    """There is no usable configuration."""

    exit_code = 2


class Connection(NamedTuple):
    """A client, the default namespace, what both were made from, and what is wrong with the credentials, if any."""

    api: ApiClient
    namespace: str
    credentials: Any = None
    complaint: str = ""


def connect(path: str | None, context: str | None, connections: int) -> Connection:
    """Find the cluster as kubectl does; in a pod without a kubeconfig, its own cluster. Raises Unusable."""
    settings, stack, complaints = Configuration(), contextlib.ExitStack(), logging.handlers.BufferingHandler(100)
    files = path or os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ and not path and not context
    found = any(map(os.path.exists, files.split(os.pathsep)))
    if not found and not in_pod:
        raise Unusable(f"no kubeconfig at {files}: name one with --kubeconfig or KUBECONFIG")
    logging.root.addHandler(complaints)  # if an exec plugin fails, the loader only logs it
    try:
        if found:
            folder = stack.enter_context(tempfile.TemporaryDirectory())  # for certificates that the loader writes
            merged = KubeConfigMerger(files)  # it takes the last current-context of several files, kubectl the first
            currents = (one.get("current-context") for one in merged.config_files.values())
            context = context or next(filter(None, currents), None)
            kubeconfig_loader.load_kube_config(files, context, settings, False, folder)
            namespace = merged.config["contexts"].get_with_name(context)["context"].safe_get("namespace")
        else:
            kubeconfig_loader.load_incluster_config(settings)
            namespace = Path(SERVICE_ACCOUNT, "namespace").read_text().strip()
        said = " ".join(record.getMessage() for record in complaints.buffer)
        client, named = new_client(settings, connections), (settings.ssl_ca_cert, settings.cert_file, settings.key_file)
        options = settings.host, settings.api_key, settings.proxy, settings.verify_ssl, settings.tls_server_name
        made_from = options, [Path(file).read_bytes() for file in named if file]
        return Connection(client, namespace or "default", made_from, " ".join(said.split()))
    except ImportError:
        raise Unusable(f"cannot use {files}: a SOCKS proxy needs the package PySocks (pip install PySocks)") from None
    except Exception as error:  # a malformed file may raise anything in the loader
        known = isinstance(error, ConfigException | OSError | yaml.YAMLError | urllib3.exceptions.HTTPError)
        text = public(" ".join(str(error).split())) if known else "it is not a kubeconfig"
        source = f"{files} or {SERVICE_ACCOUNT}" if in_pod else files
        hint = f"`kubectl{f' --kubeconfig {path}' if path else ''} config get-contexts` shows what is there"
        raise Unusable(f"cannot use {source}: {text}; {hint}") from None
    finally:
        logging.root.removeHandler(complaints)
        stack.close()


def new_client(settings: Configuration, connections: int) -> ApiClient:
    """The client for these settings. Raises OSError, and ImportError without PySocks."""
    settings.retries = False  # the next pass is the retry; urllib3's own retries would multiply the timeout
    settings.connection_pool_maxsize = connections
    settings.refresh_api_key_hook = None  # Cluster.reconnect() does that once for all threads
    settings.api_key = {key: value.strip() for key, value in settings.api_key.items()}  # files end with a newline
    url = urllib3.util.parse_url(settings.host)
    if url.scheme not in ("http", "https") or not url.host:
        raise OSError(f"its server {settings.host} is not an http or https URL")
    urllib3.disable_warnings()  # insecure-skip-tls-verify was the user's choice
    tls = ssl.create_default_context(cafile=settings.ssl_ca_cert)
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT  # the default since 3.13; certificates of older clusters fail it
    if not settings.verify_ssl:
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    if settings.cert_file:
        tls.load_cert_chain(settings.cert_file, settings.key_file)
    api, files = ApiClient(settings), dict.fromkeys(("ca_certs", "cert_file", "key_file"))
    api.rest_client.pool_manager.connection_pool_kw |= files | {"ssl_context": tls}  # the context has read the files
    api.sanitize_for_serialization = lambda obj: obj  # type: ignore[method-assign]  # saves a tenth of the CPU of a create
    api.user_agent = f"{MANAGER}/{__version__}"
    api.set_default_header("Accept-Encoding", "gzip")  # decrypting lists is much of the cost of a quiet pass
    return api


def seconds(context: click.Context, option: click.Parameter, value: float) -> float:
    """A number of seconds from the command line: greater than 0, and no longer than a clock can wait."""
    if not 0 < value < math.inf:
        raise click.BadParameter("it must be a finite number of seconds greater than 0")
    return min(value, 1e8)


def namespace_names(context: click.Context, option: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    names = [name for text in value for name in text.strip(",").split(",")]  # OLM joins them with commas
    if bad := [name for name in names if len(name) > 63 or not DNS_LABEL.fullmatch(name)]:
        raise click.BadParameter(f"{bad[0]!r} is not the name of a namespace")
    return tuple(dict.fromkeys(names))


def end_on_signal(operator: Operator) -> None:
    """On SIGTERM or SIGINT, writes in progress get four seconds; a second signal ends the process at once. A thread
    does the waiting: a handler may run anywhere in the main thread, so it must neither wait nor raise."""
    signals: SimpleQueue[int] = SimpleQueue()  # its put() is reentrant

    def end() -> None:
        signals.get()
        threading.Thread(target=lambda: os._exit(128 + signals.get()), daemon=True).start()
        operator.finish()
        log.info("stopped")
        os._exit(0)  # a request that hangs must not delay the exit

    threading.Thread(target=end, daemon=True).start()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda signum, _: signals.put(signum))


def text_line(record: logging.LogRecord) -> str:
    return f"{timestamp()} {record.levelname:7} {' '.join(record.getMessage().split())}"


def json_line(record: logging.LogRecord) -> str:
    line = {"timestamp": timestamp("milliseconds"), "level": record.levelname, "message": record.getMessage()}
    return json.dumps(line | getattr(record, "fields", {}))


def start_log(verbose: bool, log_format: str) -> None:
    """Log lines of text for people, or of JSON for collectors; times are in UTC."""
    handler = logging.StreamHandler()
    handler.format = json_line if log_format == "json" else text_line  # type: ignore[method-assign]
    log.addHandler(handler)
    log.setLevel(logging.DEBUG if verbose else logging.INFO)
    log.propagate = False
    logging.getLogger("urllib3").setLevel(logging.ERROR)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "MILVUS_OPERATOR",
                                 "max_content_width": 100, "show_default": True})  # fmt: skip
@click.option("-n", "--namespace", "namespaces", metavar="NS", multiple=True, callback=namespace_names,
              envvar="MILVUS_OPERATOR_NAMESPACE",
              help="Serve this namespace; repeatable. Default: the context's or, in a pod, the pod's own.")  # fmt: skip
@click.option("-A", "--all-namespaces", is_flag=True, help="Serve all namespaces.")
@click.option("--interval", metavar="SECONDS", type=float, default=5, callback=seconds,
              help="Time from the start of one pass to the start of the next.")  # fmt: skip
@click.option("--once", is_flag=True, help="Do all that can be done now, then exit: 0 if all went well, else 1.")
@click.option("--dry-run", is_flag=True, help="Log what would be done; write nothing.")
@click.option("--kubeconfig", metavar="PATH", help="The kubeconfig file. Default: as kubectl finds it.")
@click.option("--context", metavar="NAME", help="The kubeconfig context. Default: the current one.")
@click.option("--timeout", metavar="SECONDS", type=float, default=30, callback=seconds,
              help="Timeout for connecting, and for each read of an answer.")  # fmt: skip
@click.option("--workers", metavar="N", type=click.IntRange(1, 256), default=16, help="How many writes run at once.")
@click.option("--health-port", metavar="PORT", type=click.IntRange(1, 65535), help="Serve /healthz, /readyz, /metrics.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text",
              help="Text is for people, JSON for log collectors.")  # fmt: skip
@click.option("-v", "--verbose", is_flag=True, help="Also log the passes that wrote nothing.")
@click.version_option(__version__, message=f"{MANAGER} %(version)s", allow_from_autoenv=False)
def main(
    namespaces: tuple[str, ...], all_namespaces: bool, interval: float, once: bool, dry_run: bool,
    kubeconfig: str | None, context: str | None, timeout: float, workers: int, health_port: int | None,
    log_format: str, verbose: bool,
) -> None:  # fmt: skip
    """Keep the pods of every Milvus resource running.

    Every option also reads an environment variable MILVUS_OPERATOR_<OPTION>, for example
    MILVUS_OPERATOR_INTERVAL=10.
    """
    if namespaces and all_namespaces:
        raise click.UsageError("-n/--namespace and -A/--all-namespaces cannot be used together.")
    start_log(verbose, log_format)
    threading.stack_size(16 << 20)  # with musl's 1 MiB, deep JSON would crash the threads that parse it
    gc.disable()  # it takes half of a pass; Operator.run() collects between passes instead
    gc.freeze()  # leave the imports out of every collection
    cluster = Cluster(functools.partial(connect, kubeconfig, context, 2 * workers), timeout, dry_run)
    everywhere = all_namespaces or "MILVUS_OPERATOR_NAMESPACE" in os.environ  # OLM sets it to an empty string
    served = namespaces or [None if everywhere else cluster.connection.namespace]
    operator = Operator(cluster, served, interval, workers)
    end_on_signal(operator)
    often = "once" if once else f"every {interval:g} s"
    log.info("milvus-operator %s serves %s %s on %s%s", __version__, ", ".join(map(place, served)), often,
             cluster.server, cluster.would)  # fmt: skip
    if health_port:
        serve_health(operator, health_port)
    if once:
        sys.exit(0 if operator.run_once() else 1)
    operator.run()


if __name__ == "__main__":
    main()
