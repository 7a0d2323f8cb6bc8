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

Nothing is kept between passes but back-off times, and the last lists so that what has not
changed is not parsed and decided again. Names are fixed, every delete carries a
UID and every decision starts from fresh lists, so a write that is lost, repeated or made by
a second copy of the operator does no harm.

In the names below a *milvus* is one resource of kind Milvus, a *pod* one pod, both as the
dicts of their JSON; an *ordinal* is the number at the end of a pod's name; a *stranger* is
somebody else's pod under a name of ours; to *vet* a pod is to ask the API server whether it
would accept it.

To learn how an operator works, read the core (what to do about the pods, and why), then the
loop (when, and what if it fails). The shell, between them, can wait.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
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
import socketserver
import ssl
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler
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
from prometheus_client import Counter, Gauge, Histogram, exposition

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
HOST = socket.gethostname()  # the pod's name, in a cluster
TEMPLATE_HASH = f"{GROUP}/template-hash"  # annotation: the fingerprint of the user's own fields
MILVUS_SPEC = f"{GROUP}/milvus-spec"  # annotation: spec.milvusSpec, word for word

CONTAINER = "milvus"  # the container that runs Milvus
DATA = "/var/lib/milvus"
MAX_REPLICAS = 1000
MAX_NAME = 52  # so that <name>-<ordinal> is a host name and <name> a label, with room to spare
MAX_SPEC, MAX_SPEC_DEPTH, MAX_SETTINGS = 65536, 32, 1000  # bytes, levels and settings of spec.milvusSpec
MAX_POD_DEPTH = 100  # levels of nesting in spec.pod; a real pod has about fifteen
MAX_DEPTH = 200  # levels of nesting that are read of an API server's answer
PAGE = 300  # objects in one page of a list: 2 MB of pods
GRACE = 0.25  # seconds that a pass waits at its end for the writes under way: a Milvus with one sits out the next pass
STRICT = ("fieldValidation", "Strict")  # a misspelt field is refused, not dropped
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
FORBIDDEN, API_ERROR, SPEC_IS_TEXT = "Forbidden", "APIError", "SpecIsText"
STATES = ("ready", "progressing", "failed")  # of a Milvus, in the metrics
# Words of a pod that is on its way; any other word is shown before these.
PASSING = {"Creating", "ContainerCreating", "PodInitializing", "Pending", "Updating", "Terminating"}

# Metrics. The client library's own of this process (memory, CPU, open files) come with them.
PASSES = Counter("milvus_operator_passes", "Passes, by result: success, or failure of the operator", ["result"])
PASS_SECONDS = Histogram("milvus_operator_pass_duration_seconds", "Duration of a pass",
                         buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120))  # fmt: skip
REQUESTS = Counter("milvus_operator_api_requests", "Requests to the API server", ["verb", "resource", "code"])
ACTIONS = Counter("milvus_operator_pod_actions", "Pods that were created, deleted …", ["action"])
MILVUSES = Gauge("milvus_operator_milvuses", "Milvus resources, by state: ready, progressing or failed", ["state"])
PODS = Gauge("milvus_operator_pods", "Pods, by state: wanted, present or ready", ["state"])
SINCE_GOOD_PASS = Gauge("milvus_operator_seconds_since_good_pass", "Since the end of the last pass without failure")

YAML_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # scalars as written: `off` stays `off`
log = logging.getLogger("milvus_operator")


class Words(NamedTuple):
    """What is said of a Milvus or a pod: the reason and message of a condition or an event."""

    reason: str
    message: str
    event: str = ""  # the reason of the event, where that is another
    shared: bool = False  # a problem of all alike (no server, a missing right), which is said once for all


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


# --- What the spec asks for ---


def replicas_of(milvus: Obj) -> int:
    """How many pods are wanted. Raises Invalid when the spec can't be served."""
    if flaw := next(flaws_of(milvus), None):
        raise Invalid(flaw)
    settings_of(milvus)
    replicas: int | None = milvus["spec"].get("replicas")
    return 1 if replicas is None else replicas


def flaws_of(milvus: Obj) -> Iterator[str]:
    """What is wrong with the spec. Our CRD has most of it checked before; the original one checks types alone."""
    spec, name = mapping(milvus.get("spec")), name_of(milvus)
    image, replicas, pod = spec.get("image"), spec.get("replicas"), mapping(spec.get("pod"))
    metadata = mapping(pod.get("metadata"))
    if len(name) > MAX_NAME or not DNS_LABEL.fullmatch(name):
        yield f"the name must be a DNS label of at most {MAX_NAME} characters: pod names are made from it"
    if not isinstance(image, str) or not image:
        yield f"spec.image must be the name of an image, not {short(image)}"
    if replicas is not None and (type(replicas) is not int or not 0 <= replicas <= MAX_REPLICAS):
        yield f"spec.replicas must be a whole number from 0 to {MAX_REPLICAS}, not {short(replicas)}"
    if not isinstance(spec.get("milvusSpec"), str | None):
        yield "spec.milvusSpec must be text"
    if deeper_than(MAX_POD_DEPTH, pod):
        yield f"spec.pod is nested more than {MAX_POD_DEPTH} levels deep"
    for path, value in {
        "storage": spec.get("storage"),
        "pod": spec.get("pod"),
        "pod.spec": pod.get("spec"),
        "pod.metadata": pod.get("metadata"),
        "pod.metadata.labels": metadata.get("labels"),
        "pod.metadata.annotations": metadata.get("annotations"),
    }.items():
        if not isinstance(value, dict | None):
            yield f"spec.{path} must be a mapping, not {short(value)}"


def deeper_than(levels: int, value: Any) -> bool:
    """Whether mappings and lists are nested in more levels; without recursion, which is what deep ones break."""
    layer = [value]
    for _ in range(levels + 1):
        layer = [part for outer in layer for part in parts_of(outer)]
        if not layer:
            return False
    return True


def parts_of(value: Any) -> Iterable[Any]:
    """The values of a mapping, the items of a list, nothing of anything else."""
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def short(value: Any) -> str:
    """The value for a message to people: a number, else its type. Texts may be secret."""
    if value in (None, ""):
        return "empty"
    if isinstance(value, (int, float)):
        return json.dumps(value)[:40]
    return "text" if isinstance(value, str) else "a mapping" if isinstance(value, dict) else "a list"


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


# --- The pod, and its claim ---


def new_pod(milvus: Obj, ordinal: int) -> Obj:
    """The pod of this ordinal, as it is sent to the API server: ours, with spec.pod laid over it."""
    spec, name = milvus["spec"], pod_name(milvus, ordinal)
    over, settings = mapping(spec.get("pod")), settings_of(milvus)
    metadata = mapping(over.get("metadata"))
    annotations = {TEMPLATE_HASH: template_hash(milvus)}
    if settings is None:
        annotations[MILVUS_SPEC] = spec["milvusSpec"]
    claim = {"persistentVolumeClaim": {"claimName": f"data-{name}"}}
    ours = {
        "hostname": name,
        "subdomain": name_of(milvus),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # a Service named proxy would set PROXY_PORT, which Milvus reads
        "terminationGracePeriodSeconds": 60,
        "securityContext": {"fsGroup": 999},  # the user of images that don't run as root
        "containers": [new_container(spec["image"], settings or {})],
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


def new_container(image: str, settings: dict[str, str]) -> Obj:
    """A standalone Milvus with these settings. It may take five minutes to start, and is not Ready before."""
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


# --- Settings: spec.milvusSpec as environment variables ---


def settings_of(milvus: Obj) -> dict[str, str] | None:
    """The settings in spec.milvusSpec by their dotted names; None when it is text of another kind. Raises Invalid."""
    return parse_settings(milvus["spec"].get("milvusSpec") or "{}").values


def syntax_error(milvus: Obj) -> int:
    """The line of spec.milvusSpec that is no YAML, or 0. Raises Invalid."""
    return parse_settings(milvus["spec"].get("milvusSpec") or "{}").broken_line


def invalid(node: Any, text: str) -> Invalid:
    """What is wrong with spec.milvusSpec and where; never its text, which may hold passwords."""
    return Invalid(f"spec.milvusSpec, line {node.start_mark.line + 1}: {text}")


class Settings(NamedTuple):
    values: dict[str, str] | None  # by dotted name; None for text that is no YAML mapping
    broken_line: int = 0  # where the text is no YAML at all


@functools.lru_cache(maxsize=128)
def parse_settings(text: str) -> Settings:
    """The settings of a YAML mapping, flattened to dotted names. Raises Invalid for a mapping that can't be served."""
    if len(text.encode(errors="replace")) > MAX_SPEC:
        raise Invalid(f"spec.milvusSpec is longer than {MAX_SPEC // 1024} KiB")
    try:
        if not is_harmless_mapping(text):
            return Settings(None)
        nodes = list(flatten(yaml.compose(text, YAML_LOADER)))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line if error.problem_mark else 0
        return Settings(None, min(line, text.rstrip().count("\n")) + 1)  # an open bracket is seen after the last line
    except (yaml.YAMLError, ValueError):  # characters that YAML does not allow
        return Settings(None, 1)
    check_settings(nodes)
    return Settings({name: value_of(node) for name, node in nodes})


def check_settings(nodes: list[tuple[str, Any]]) -> None:
    """Raise Invalid for too many settings, for one that is the pod's, and for one that is there twice."""
    if len(nodes) > MAX_SETTINGS:
        raise Invalid(f"spec.milvusSpec has {len(nodes)} settings; {MAX_SETTINGS} is the most")
    lines: dict[str, int] = {}
    for name, node in nodes:
        key = setting(name)
        if key in FIXED:
            raise invalid(node, f"{FIXED[key]} is the pod's and can't be changed")
        if key in lines:
            raise invalid(node, f"the same setting as in line {lines[key]}")
        lines[key] = node.start_mark.line + 1


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
                raise invalid(event, "an anchor or alias: write its value instead")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_SPEC_DEPTH:
            raise invalid(event, f"more than {MAX_SPEC_DEPTH} levels of nesting")
    return True


def flatten(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The dotted name of each setting below a mapping node, and its node. Raises Invalid."""
    for key, value in node.value if node else ():
        if not isinstance(key, yaml.ScalarNode) or not key.value:
            raise invalid(key, "a key that is no name")
        if isinstance(value, yaml.MappingNode):
            yield from flatten(value, f"{prefix}{key.value}.")
        else:
            yield prefix + key.value, value


def value_of(node: Any) -> str:
    """A scalar as it is written, a list of scalars joined with commas. Raises Invalid."""
    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    if not all(isinstance(item, yaml.ScalarNode) for item in node.value):
        raise invalid(node, "a list of maps or lists; only one of scalars can be set")
    return ",".join(item.value for item in node.value)


NO_SEPARATORS = str.maketrans("", "", "_./")


def setting(name: str) -> str:
    """What an environment variable's name comes to for Milvus: PROXY_PORT and proxy.port are one setting."""
    return name.translate(NO_SEPARATORS).lower()


def environment(defaults: dict[str, str], settings: dict[str, str]) -> list[Obj]:
    """The variables of both, those of the user instead of ours for the same setting.

    Kubernetes takes $(NAME) for a reference to another variable, and $$ for a $.
    """
    theirs = {setting(name) for name in settings}
    chosen = {name: value for name, value in defaults.items() if setting(name) not in theirs} | settings
    return [{"name": name, "value": value.replace("$", "$$")} for name, value in chosen.items()]


# --- spec.pod, laid over the pod ---


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
    merged, rest, met = {item[key]: item for item in ours}, [], set()
    for item in over:
        name = item.get(key)
        if isinstance(name, (str, int)) and name in merged and name not in met:
            merged[name] = item if kind == "volumes" else overlay(merged[name], item)
            met.add(name)
        else:
            rest.append(item)  # the API server refuses what is there twice
    return [*merged.values(), *rest]


# --- Whose pod it is ---


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


def strangers(milvus: Obj, pods: Iterable[Obj]) -> dict[str, Words]:
    """The pods that hold a wanted name and are not ours, with what to tell the user."""
    wanted = {pod_name(milvus, ordinal) for ordinal in range(replicas_of(milvus))}
    found: dict[str, Words] = {}
    for pod in pods:
        ours = owner_uid(pod) == uid_of(milvus) or is_orphan(milvus, pod)
        if name_of(pod) in wanted and not ours and not is_leaving(milvus, pod):
            owner = controller_of(pod)
            whose = f"belongs to {owner.get('kind')} {owner.get('name')}" if owner else "was made by somebody else"
            advice = "delete it, which is seen within 5 min, or name the Milvus otherwise"
            message = f"the pod {name_of(pod)} {whose}: it is left alone; {advice}"
            found[name_of(pod)] = Words(NAME_CONFLICT, message)
    return found


# --- What to do ---


DONE = {"create": "created", "delete": "deleted", "adopt": "adopted", "label": "labelled"}


RIGHTS = {  # that an action of this kind needs, and proves
    "create": ("create pods", f"update {PLURAL}/finalizers"),
    "delete": ("delete pods",),
    "adopt": (f"get {PLURAL}", "patch pods"),
    "label": ("patch pods",),
    "look": ("get pods",),
    "vet": ("create pods",),
}


class Action(NamedTuple):
    """One write: what to do (a key of DONE, or `vet`), the pod that it is about, and why.

    To vet a pod is to ask the API server whether it would accept it as it would be made now.
    A pod to be created is only a name here; what is in it, new_pod() says when its turn comes.
    """

    verb: str
    pod: Obj
    reason: str


def name_only(milvus: Obj, ordinal: int) -> Obj:
    """The pod of this ordinal, which is not there yet."""
    return {"metadata": {"name": pod_name(milvus, ordinal), "namespace": namespace_of(milvus)}}


def decide(
    milvus: Obj, pods: Collection[Obj], *, replace: bool = True, held: Collection[str] = (), vetted: bool = True
) -> list[Action]:
    """What to do now about the pods of a Milvus, in the order of doing.

    `pods` are those that it owns and those that carry its name as their instance label;
    `replace` says whether Failed and Succeeded pods may be replaced yet; `held` are the names
    that strangers hold; `vetted` says whether the API server accepts the present template:
    before that no pod is given up for it. Raises Invalid.
    """
    replicas, fingerprint = replicas_of(milvus), template_hash(milvus)
    mine = members(milvus, pods)
    taken = {*held, *map(name_of, pods)}
    surplus = [mine[ordinal] for ordinal in sorted(mine, reverse=True) if ordinal >= replicas]
    deletes = [Action("delete", pod, f"surplus: {replicas} wanted") for pod in surplus if not is_ending(pod)]
    others = [Action("adopt", pod, "orphan with our labels") for pod in pods if is_orphan(milvus, pod)]
    steps: list[Action] = []  # of the roll
    for ordinal in range(replicas):
        pod = mine.get(ordinal)
        if pod is None:
            if pod_name(milvus, ordinal) not in taken:
                others.append(Action("create", name_only(milvus, ordinal), "missing"))
        elif is_finished(pod) and not is_ending(pod):
            stale = template_hash_of(pod) != fingerprint
            if replace or stale:  # an earlier template is given up only when the present one is vetted
                words = dict.fromkeys((phase_of(pod), words_of(pod).reason))  # Failed: Evicted
                (steps if stale else deletes).append(Action("delete", pod, ": ".join(words)))
        elif not is_ending(pod) and not pod_labels(milvus, ordinal).items() <= labels_of(pod).items():
            others.append(Action("label", pod, "lost its labels"))
    if not syntax_error(milvus):  # a slip of the pen must not set a running database back to the defaults
        steps += roll(mine, [i for i in range(replicas) if pod_name(milvus, i) not in held], fingerprint)
    if deletes and any(is_ready(step.pod) for step in steps):
        steps = []  # one thing after the other: no Ready pod goes with those that are surplus
    if steps and not vetted:
        steps = [Action("vet", steps[0].pod, "the template has changed")]
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


# --- What the status and the events say ---


def words_of(pod: Obj) -> Words:
    """Why a pod isn't Ready, in its own words, else in those of its phase."""
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
    for condition in status.get("conditions") or []:
        if condition["type"] in ("PodScheduled", "Ready") and condition["status"] != "True":
            return Words(condition.get("reason") or phase_of(pod), condition.get("message") or "")
    return Words(phase_of(pod), "")


def readiness(milvus: Obj, mine: dict[int, Obj], problem: Words | None) -> tuple[bool, Words]:
    """Whether every wanted pod is there, up to date and Ready, and what the Ready condition says. Raises Invalid."""
    replicas, fingerprint, line = replicas_of(milvus), template_hash(milvus), syntax_error(milvus)
    missing, stale = problem or Words("Creating", ""), problem or Words("Updating", "it has an earlier template")
    if line:
        stale = Words("SyntaxError", f"it keeps its template for the syntax error in line {line} of spec.milvusSpec")
    waiting: list[tuple[str, Words]] = []
    for ordinal in range(replicas):
        pod = mine.get(ordinal)
        if pod is None:
            waiting.append((pod_name(milvus, ordinal), missing))
        elif not is_ready(pod):
            waiting.append((name_of(pod), words_of(pod)))
        elif template_hash_of(pod) != fingerprint:
            waiting.append((name_of(pod), stale))
    ready = f"{replicas - len(waiting)} of {replicas} pods are ready and up to date"
    if not waiting:
        return True, Words("Ready", ready)
    name, words = next((w for w in waiting if w[1].reason not in PASSING), waiting[0])
    return False, Words(words.reason, f"{ready}; {name}: {words.message or words.reason}")


def reconciliation(milvus: Obj) -> Words:
    """What the Reconciled condition says when nothing was refused. Raises Invalid."""
    if settings_of(milvus) is not None:
        return Words("Reconciled", "the pods are as the spec asks, or on their way")
    kept = f"it is kept as the annotation {MILVUS_SPEC} and sets nothing"
    if line := syntax_error(milvus):
        broken = f"it has a syntax error in line {line}, for which no pod is replaced, and new pods have the defaults"
        return Words(SPEC_IS_TEXT, f"spec.milvusSpec is no YAML: {broken}: {kept}")
    return Words(SPEC_IS_TEXT, f"spec.milvusSpec is no YAML mapping: {kept}")


def status_of(milvus: Obj, pods: Iterable[Obj], problem: Words | None, now: str) -> Obj:
    """The status of a Milvus; `now` is the time of any condition that changes, in RFC 3339.

    `problem` says what the API server refused, if anything. The result equals the present
    status when there is nothing to write.
    """
    mine = members(milvus, pods)
    there = [mine[ordinal] for ordinal in sorted(mine) if not is_ending(mine[ordinal])]
    try:
        ready, words = readiness(milvus, mine, problem)
        reconciled, fingerprint = problem or reconciliation(milvus), template_hash(milvus)
        updated = sum(template_hash_of(pod) == fingerprint for pod in there)
    except Invalid as error:
        ready, words, updated = False, Words(INVALID, str(error)), 0
        problem = reconciled = words
    return {
        "observedGeneration": milvus["metadata"]["generation"],
        "replicas": len(there),
        "readyReplicas": sum(map(is_ready, there)),
        "updatedReplicas": updated,
        "pods": [name_of(pod) for pod in there],
        "selector": ",".join(f"{key}={value}" for key, value in sorted(selector_of(milvus).items())),
        "conditions": [
            new_condition(milvus, "Ready", ready, words, now),
            new_condition(milvus, "Reconciled", problem is None, reconciled, now),
        ],
    }


def conditions_of(milvus: Obj) -> list[Obj]:
    """Those in its present status, which under the original CRD may be of any shape."""
    found = mapping(milvus.get("status")).get("conditions")
    return [condition for condition in found if isinstance(condition, dict)] if isinstance(found, list) else []


def new_condition(milvus: Obj, kind: str, true: bool, said: Words, now: str) -> Obj:
    """A condition, whose lastTransitionTime changes only with its status."""
    status = str(true)
    same = [c for c in conditions_of(milvus) if (c.get("type"), c.get("status")) == (kind, status)]
    return {
        "type": kind,
        "status": status,
        "observedGeneration": milvus["metadata"]["generation"],
        "lastTransitionTime": next(
            (c["lastTransitionTime"] for c in same if isinstance(c.get("lastTransitionTime"), str)), now
        ),
        "reason": re.sub(r"[^A-Za-z0-9_,:]", "", said.reason) or "Unknown",
        "message": said.message[:1024],
    }


def new_event(milvus: Obj, reason: str, note: str, warning: bool, now: str) -> Obj:
    """What `kubectl describe` tells of a Milvus, as an object of events.k8s.io/v1; `now` with microseconds."""
    name, namespace = name_of(milvus), namespace_of(milvus)
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": f"{name}-", "namespace": namespace},
        "type": "Warning" if warning else "Normal",
        "reason": reason,
        "note": note.encode(errors="replace")[:1024].decode(errors="ignore"),
        "regarding": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "namespace": namespace,
            "name": name,
            "uid": uid_of(milvus),
        },
        "action": "Reconcile",
        "eventTime": now,
        "reportingController": f"{GROUP}/{MANAGER}",
        "reportingInstance": HOST,
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
# And how OwnerReferencesPermissionEnforcement does.
NO_FINALIZERS = "cannot set blockOwnerDeletion"


class ApiError(Exception):
    """A request that failed: the server's HTTP code, 0 when there was no proper answer, and one line of text.

    General ones (no answer, 401) and denied rights (403) are troubles of the operator, said once
    for all. Any other is told of its Milvus. What is transient is tried in the next pass; what
    was refused (400, 403, 404, 422) rests before.
    """

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
    def is_taken(self) -> bool:
        """Whether a create failed because there is an object of that name."""
        return self.status.get("reason") == "AlreadyExists"

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed in the next pass; otherwise it was refused."""
        return self.code in (0, 401, 409, 429) or self.code >= 500

    def denied(self, namespace: str | None) -> str | None:
        """The right that is missing, as verb, resource and place, when the request was refused for that."""
        if self.code != 403:
            return None
        if NO_FINALIZERS in str(self):
            return f"update {PLURAL}/finalizers in {place(namespace)}"
        right = DENIED.search(str(self))
        return f"{right[1]} {right[2]} in {place(right[3])}" if right else None

    @property
    def is_general(self) -> bool:
        """Whether it hits whatever is asked of the server: it can't be reached, or it does not know us."""
        return self.code == 401 or (self.code == 0 and not self.status)

    def problem(self, verb: str) -> Words:
        """What it means for the Milvus that it hit; `verb` is that of the action."""
        reason = INVALID if self.code in (400, 422) else API_ERROR
        if self.code == 403:
            reason = QUOTA_EXCEEDED if "exceeded quota" in str(self) else FORBIDDEN
        return Words(reason, str(self), f"Failed{verb.capitalize()}", self.is_general or bool(self.denied(None)))


def right_to_status(milvus: Obj) -> str:
    return f"patch {PLURAL}/status in {namespace_of(milvus)}"


@contextlib.contextmanager
def tolerating(harmless: Callable[[ApiError], bool]) -> Iterator[None]:
    """Go on after an error that is no harm; raise any other."""
    try:
        yield
    except ApiError as error:
        if not harmless(error):
            raise


def attempt(job: Callable[[], Any]) -> tuple[Any, ApiError | None]:
    """What a job returned, or how it failed: whatever an answer or an object holds, nothing ends the loop."""
    try:
        return job(), None
    except ApiError as error:
        return None, error
    except Exception as error:  # an answer that is JSON, but not what an API server says
        return None, unexpected(error)


def unexpected(error: Exception) -> ApiError:
    """An error that nothing foresaw. Its text may hold anything, so only its kind and place are told."""
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    where = f"{trace.tb_frame.f_code.co_name}, line {trace.tb_lineno}" if trace else "nowhere"
    return ApiError(0, f"unexpected {type(error).__name__} in {where}: please report it", {"reason": "Unexpected"})


def place(namespace: str | None) -> str:
    return f"namespace {namespace}" if namespace else "all namespaces"


# --- The bytes of an answer, bounded in time, depth and memory (to be skipped on a first reading) ---


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
        self.fp = io.BufferedReader(Bounded(self.fp.detach(), sock), 1 << 16)


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


def parse(body: bytes) -> Obj:
    """The JSON object as a dict. One object nested too deeply for Python must not hide all others of its list."""
    try:
        try:
            return mapping(json.loads(body))
        except RecursionError:
            return mapping(json.loads(shallow(body)))
    except (ValueError, RecursionError):
        raise ApiError(0, "the answer is not JSON: is this a Kubernetes API server?") from None


def split(body: bytes) -> tuple[Obj, memoryview]:
    """A list without its items, and the JSON of these, without the brackets."""
    start, end = body.find(b'"items":[') + len('"items":['), body.rfind(b"]")
    try:
        return mapping(json.loads(body[:start] + body[end:])), memoryview(body)[start:end]
    except (ValueError, RecursionError):  # not as the API server writes it; a wrong cut leaves a bracket open
        page = parse(body)
        return page, memoryview(json.dumps(page.get("items") or []).encode())[1:-1]


def items_of(items: memoryview, slim: Callable[[Obj], Obj]) -> Iterator[Obj]:
    """What slim() keeps of the items of a list, parsed one by one: a whole page takes ten times its bytes."""
    text = str(items, "utf-8", "replace")
    at, number, decode = 0, 0, json.JSONDecoder().raw_decode
    try:
        while at < len(text):
            item, end = decode(text, at)
            if text[end : end + 1] not in (",", ""):
                raise ValueError
            yield slim(item)
            at, number = end + 1, number + 1
    except (ValueError, RecursionError):  # not as the API server writes it, or an item that is nested too deeply
        yield from map(slim, parse(shallow(b'{"items":[%b]}' % bytes(items)))["items"][number:])


IDENTITY = ("name", "namespace", "uid", "resourceVersion", "generation", "deletionTimestamp", "finalizers")
OWNER = ("apiVersion", "kind", "name", "uid", "controller")
OUR_LABELS = (NAME_LABEL, INSTANCE_LABEL, MANAGED_BY_LABEL, POD_INDEX_LABEL)
POD_STATUS = ("phase", "reason", "message", "conditions", "initContainerStatuses", "containerStatuses")
READY_STATUS = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


def slim_milvus(milvus: Obj) -> Obj:
    """What is read here of a Milvus."""
    fields = {key: shared(milvus[key]) for key in ("spec", "status") if key in milvus}
    return {"metadata": pick(milvus["metadata"], IDENTITY)} | fields


def slim_pod(pod: Obj) -> Obj:
    """What is read here of a pod, a fifth of it: all pods are in memory at once."""
    metadata, owner = pick(pod["metadata"], IDENTITY), controller_of(pod)
    annotations = pick(pod["metadata"].get("annotations") or {}, [TEMPLATE_HASH])
    metadata["labels"] = pick(labels_of(pod), OUR_LABELS)
    metadata["annotations"] = one_dict(*annotations.items())
    if owner:
        metadata["ownerReferences"] = [one_dict(*pick(owner, OWNER).items())]
    return {
        "metadata": metadata,
        "status": READY_STATUS if is_ready(pod) else pick(pod.get("status") or {}, POD_STATUS),
    }


def pick(mapping: Obj, keys: Iterable[str]) -> Obj:
    """These keys of a mapping, as far as it has them."""
    return {key: shared(value) for key in keys if (value := mapping.get(key)) is not None}


def shared(value: Any) -> Any:
    """An equal value whose texts are in memory once, for most come a thousand times."""
    if isinstance(value, str):
        return one_text(value) if len(value) < 100 else value
    if isinstance(value, dict):
        return {one_text(key): shared(part) for key, part in value.items()}
    return [shared(part) for part in value] if isinstance(value, list) else value


@functools.lru_cache(maxsize=8192)
def one_text(text: str) -> str:
    """The first of equal texts. (What sys.intern() keeps, some versions of Python keep for ever.)"""
    return text


@functools.lru_cache(maxsize=1024)
def one_dict(*pairs: tuple[str, Any]) -> Obj:
    """The dict of these pairs; the pods of a Milvus, which are listed one after the other, have one together."""
    return dict(pairs)


class Cluster:
    """The requests to one API server. Every method raises ApiError."""

    def __init__(self, api: ApiClient, timeout: float = 30, dry_run: bool = False) -> None:
        api.rest_client.pool_manager.pool_classes_by_scheme = BOUNDED_POOLS
        self.milvuses, self.pods = milvuses(api), pods(api)
        self.claims = by_gvr(api, "", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
        self.events = by_gvr(api, "events.k8s.io", "v1", "Event", "events")
        self.namespaces = by_gvr(api, "", "v1", "Namespace", "namespaces", namespaced=False)
        self.timeout, self.dry_run, self.would = timeout, dry_run, "dry run, not really: " if dry_run else ""
        self.server = re.sub("//.*@", "//", api.configuration.host)  # without a password
        self.pages: dict[tuple[Resource, str | None], dict[bytes, list[Obj]]] = {}  # of the last lists, by digest

    def explain(self, error: ApiError, what: str, namespace: str | None) -> str:
        """One line on a request that failed for all: what happened, and what to do."""
        if error.code == 0:
            return f"cannot reach {self.server}: {error}"
        if error.code == 401:
            return f"{self.server} does not accept the credentials (401): log in again, or renew the kubeconfig's token"
        if right := error.denied(namespace):
            return f"not allowed to {right}: grant this right to the operator"
        if mapping(error.status.get("details")).get("kind") == "namespaces":
            return f"{place(namespace)} does not exist: nothing is served there until it is created"
        if error.code == 404:
            return f"{self.server} knows no {PLURAL}.{GROUP}: install the CRD with `kubectl apply -f crd.yaml`"
        return f"cannot {what} in {place(namespace)}: HTTP {error.code}: {error}"

    def request(self, verb: str, resource: Resource, **arguments: Any) -> Obj:
        """Send one request of the dynamic client; returns the answer as a dict."""
        return parse(self.fetch(verb, resource, **arguments))

    def fetch(self, verb: str, resource: Resource, **arguments: Any) -> bytes:
        """Send one request of the dynamic client and count it; returns the body of the answer."""
        code = "error"
        try:
            code, body = self.send(getattr(resource, verb), **arguments)
            return body
        except ApiError as error:
            code = str(error.code or code)
            raise
        finally:
            REQUESTS.labels("list" if verb == "get" and "name" not in arguments else verb, resource.name, code).inc()

    def send(self, call: Callable[..., Any], **arguments: Any) -> tuple[str, bytes]:
        """Returns the code and the body of the answer."""
        try:
            response = call(serialize=False, _request_timeout=self.timeout, **arguments)
            return str(response.status), response.data
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

    def write(self, verb: str, resource: Resource, obj: Obj, **arguments: Any) -> Obj:
        """Send one request that changes an object, or with `dry_run` only asks whether it could."""
        if self.dry_run:
            arguments["dry_run"] = "All"
        if verb == "patch":
            arguments["name"] = name_of(obj)
        return self.request(verb, resource, namespace=namespace_of(obj), **arguments)

    def list_all(
        self,
        resource: Resource,
        namespace: str | None,
        heard: Callable[[], None],
        slim: Callable[[Obj], Obj],
        **selectors: str,
    ) -> list[Obj]:
        """All objects of a list, page by page; fails if any of its pages does. `heard` is called after each.

        A page whose objects are, byte for byte, those of a page of the last time is not
        parsed again: the same objects are returned. So a quiet pass costs less than parsing.
        """
        before, pages = self.pages.get((resource, namespace), {}), dict[bytes, list[Obj]]()
        token, found = None, list[Obj]()
        while True:
            body = self.fetch("get", resource, namespace=namespace, limit=PAGE, _continue=token, **selectors)
            heard()
            page, items = split(body)
            digest = hashlib.blake2b(items).digest()
            if not str(page.get("kind")).endswith("List"):
                raise ApiError(0, "the answer is not a list: is this a Kubernetes API server?")
            pages[digest] = before[digest] if digest in before else list(items_of(items, slim))
            found += pages[digest]
            token = page["metadata"].get("continue")
            if not token:
                self.pages[resource, namespace] = pages
                return found

    def snapshot(self, namespace: str | None, heard: Callable[[], None]) -> tuple[list[Obj], list[Obj]]:
        """The pods that may be ours, and the Milvus resources.

        The pods come first: so a Milvus is never older than the pods that it is compared
        with, and a pod is never deleted for a wish that has changed since.
        """
        selector = f"{MANAGED_BY_LABEL}={MANAGER}"
        found = self.list_all(self.pods, namespace, heard, slim_pod, label_selector=selector)
        wanted = self.list_all(self.milvuses, namespace, heard, slim_milvus)
        if namespace and not found and not wanted:
            self.check_namespace(namespace)
        return found, wanted

    def check_namespace(self, namespace: str) -> None:
        """Raise when there is none of that name, which its lists don't tell; a right to ask is not needed."""
        with tolerating(lambda error: error.code != 404):
            self.request("get", self.namespaces, name=namespace)

    def carry_out(self, milvus: Obj, action: Action) -> Obj | None:
        """Do it; returns the pod as it is now, or None when there is none of that name."""
        return getattr(self, action.verb)(milvus, action.pod)  # type: ignore[no-any-return]  # one of those below

    def create(self, milvus: Obj, pod: Obj) -> Obj | None:
        """With storage its claim comes first: no claim, no pod."""
        pod = new_pod(milvus, ordinal_of(milvus, pod) or 0)
        if claim := new_claim(milvus, pod):
            with tolerating(lambda error: error.is_taken):
                self.write("create", self.claims, claim, body=claim)
                about_pod = fields(milvus, "missing") | {"pod": name_of(pod)}
                log.info("%screated claim %s: missing", self.would, full_name(claim), extra=about_pod)
        return slim_pod(self.write("create", self.pods, pod, body=pod, query_params=[STRICT]))

    def vet(self, milvus: Obj, pod: Obj) -> Obj | None:
        """Raise if the API server would refuse the pod as it would be made now: a dry run of its creation.

        The name is taken, by the pod that is to be replaced; that is checked last, so it means yes.
        """
        body, options = new_pod(milvus, ordinal_of(milvus, pod) or 0), {"dry_run": "All", "query_params": [STRICT]}
        with tolerating(lambda error: error.is_taken or error.problem("create").reason == QUOTA_EXCEEDED):
            self.request("create", self.pods, namespace=namespace_of(pod), body=body, **options)
        return None

    def look(self, milvus: Obj, pod: Obj) -> Obj | None:
        """What holds the name: ours without its labels, one that is leaving, or somebody else's."""
        with tolerating(lambda error: error.code == 404):
            return slim_pod(self.request("get", self.pods, namespace=namespace_of(pod), name=name_of(pod)))
        return None

    def delete(self, milvus: Obj, pod: Obj) -> Obj | None:
        """A pod that was not Ready when it was listed is deleted only if it has not changed: it may be Ready by now."""
        same = {"uid": uid_of(pod)}
        if not is_ready(pod):
            same["resourceVersion"] = pod["metadata"]["resourceVersion"]
        options: Obj = {"preconditions": same}
        if self.dry_run:  # in the body: with a body, the API server ignores ?dryRun=All and deletes
            options["dryRun"] = ["All"]
        with tolerating(lambda error: error.code == 404):
            left = self.request("delete", self.pods, namespace=namespace_of(pod), name=name_of(pod), body=options)
            metadata = mapping(left.get("metadata"))
            # The answer is the pod: gone with a grace period of 0, unless a finalizer keeps it, else on its way.
            at_once = metadata.get("deletionGracePeriodSeconds") == 0 and not self.dry_run
            if not at_once or pod["metadata"].get("finalizers"):
                return pod | {
                    "metadata": pod["metadata"] | {"deletionTimestamp": metadata.get("deletionTimestamp") or "now"}
                }
        return None

    def adopt(self, milvus: Obj, pod: Obj) -> Obj | None:
        """As the ReplicaSet controller, only after one more look: the pods of an owner that is gone are collected."""
        now = self.request("get", self.milvuses, namespace=namespace_of(milvus), name=name_of(milvus))
        if uid_of(now) != uid_of(milvus) or is_ending(now):
            raise ApiError(409, "the Milvus has changed")
        return self.patch_metadata(pod, {"ownerReferences": [owner_reference(milvus)]})  # merged with others by UID

    def label(self, milvus: Obj, pod: Obj) -> Obj | None:
        return self.patch_metadata(pod, {"labels": pod_labels(milvus, ordinal_of(milvus, pod) or 0)})

    def patch_metadata(self, pod: Obj, metadata: Obj) -> Obj | None:
        same = {"uid": uid_of(pod), "resourceVersion": pod["metadata"]["resourceVersion"]}
        return slim_pod(self.write("patch", self.pods, pod, body={"metadata": same | metadata}))

    def write_status(self, milvus: Obj, status: Obj) -> None:
        """Only if it has not changed: its UID is not checked here. It is 404 without a Milvus, or without a status."""
        body = {"metadata": {"resourceVersion": milvus["metadata"]["resourceVersion"]}, "status": status}
        with tolerating(lambda error: error.code == 404):
            self.write("patch", self.milvuses.status, milvus, body=body, content_type="application/merge-patch+json")
            return
        if not self.serves_status():
            crd = f"{PLURAL}.{GROUP}"
            raise ApiError(404, f"the CRD {crd} is an old one: no status is written until `kubectl apply -f crd.yaml`")

    def serves_status(self) -> bool:
        _, body = self.send(self.milvuses.client.request, method="get", path=f"/apis/{API_VERSION}")
        return any(resource["name"] == f"{PLURAL}/status" for resource in parse(body).get("resources") or [])

    def write_event(self, event: Obj, name: str, count: int) -> str:
        """Count the event of that name once more, or create it if it has none or is gone; returns its name."""
        if name:
            series = {"series": {"count": count, "lastObservedTime": event["eventTime"]}}
            with tolerating(lambda error: error.code == 404):
                told = {"metadata": event["metadata"] | {"name": name}}
                return name_of(self.write("patch", self.events, told, body=series))
        return name_of(self.write("create", self.events, event, body=event))


# --------------------------------------------------------------------------------------
# The loop
#
# In each pass a Plan for each Milvus decides, with the core, upon its listed pods and again
# upon the answers to its writes; the Workers send these. A plan is in `queue` while it writes
# about pods, then in `closing` until its status is dealt with; what events are to tell waits in
# `telling`. All but the requests happens in the main thread. Memory is what outlives a pass.
# --------------------------------------------------------------------------------------


class Stopped(BaseException):
    """SIGTERM or SIGINT came; raised wherever the main thread is, so that nothing delays it."""


@dataclass(slots=True)
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


class Tally(NamedTuple):
    """What the metrics count of a Milvus: its state, one of STATES, and its pods."""

    state: str = "progressing"
    wanted: int = 0
    present: int = 0
    ready: int = 0


class Trouble(NamedTuple):
    """What is wrong for more than one Milvus, when it was last seen, and until when nothing tries it again."""

    text: str
    seen: float
    until: float


class Story(NamedTuple):
    """What an event tells about a Milvus; the pods that it is about are told together."""

    reason: str
    why: str
    warning: bool = False


@dataclass(slots=True)
class Memory:
    """What is known of a Milvus from one pass to the next. None of it is needed to be correct."""

    generation: int = 0
    # What was refused, and what waits for its time.
    held: dict[str, Words] = field(default_factory=dict)  # what was refused, by pod, in the order of the next try
    refused: Backoff = field(default_factory=lambda: Backoff(10, 300))  # until then it rests
    replaced: Backoff = field(default_factory=lambda: Backoff(10, 300))  # until then a finished pod is not replaced
    no_status: Backoff = field(default_factory=lambda: Backoff(10, 300))  # until then its status is not written
    # How far it is.
    late: Words | None = None  # what failed after its pass was over
    served: float = 0  # when it had its last write: the one that waits longest goes first
    writing: int = 0  # writes under way: what the lists say of it may be old
    vetted: str = ""  # the fingerprint of the template that the API server accepts
    settled: tuple[str, ...] = ()  # the versions of the Milvus and its pods when nothing was left to do
    tally: Tally = field(default_factory=lambda: Tally())
    # What was told.
    said: Words | None = None  # in the log and by an event
    events: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict)  # name and count, by reason and note

    def recall(self, milvus: Obj, now: float) -> None:
        """Forget what is over: refusals of an earlier spec, replacements long ago."""
        if milvus["metadata"].get("generation", 0) != self.generation:
            self.generation = milvus["metadata"].get("generation", 0)
            self.held.clear()
            self.refused.forget()
            self.no_status.forget()
        if now >= self.replaced.since + 600:
            self.replaced.forget()

    def is_at_rest(self, versions: tuple[str, ...], now: float) -> bool:
        """Whether nothing was left to do at these versions, and nothing waits for its time."""
        return self.settled == versions and not (self.held and now >= self.refused.until)

    def hold(self, held: dict[str, Words], now: float) -> None:
        """Let what was refused rest, to be tried in this order; several refusals of one try are one."""
        self.held = {name: problem for name, problem in self.held.items() if name not in held} | held
        if now >= self.refused.until:
            self.refused.wait_longer(now)


def versions_of(milvus: Obj, pods: Collection[Obj]) -> tuple[str, ...]:
    """What changes whenever anything about a Milvus or its pods does."""
    return tuple(obj["metadata"]["resourceVersion"] for obj in (milvus, *pods))


class Plan:
    """The work on one Milvus in one pass, with a view of its pods that the answers to its writes keep up to date."""

    ROUNDS = 4  # of deciding upon the outcome of the round before: adopt, then vet, then delete, then create

    __slots__ = ("changed", "closed", "failure", "memory", "milvus", "pods", "rounds", "stories", "todo", "versions")

    def __init__(self, milvus: Obj, pods: Collection[Obj], memory: Memory) -> None:
        self.milvus, self.pods, self.memory = milvus, {name_of(pod): pod for pod in pods}, memory
        self.versions = versions_of(milvus, pods)
        self.todo: list[Action] = []
        self.rounds = 0
        self.failure = memory.late  # what ended the plan early, or one before it late
        self.changed: set[str] = set()  # pods that are not any more as they were listed
        self.stories: dict[Story, list[str]] = {}  # to be told by events, with the names of their pods
        self.closed = False  # no pod is left to write about, or the pass is over
        memory.late, memory.settled = None, ()

    def next(self) -> Action | None:
        """The next write, if there is one that need not wait for those under way."""
        if not self.todo and self.is_done:
            self.todo = self.decide()
        return self.todo.pop(0) if self.todo else None

    @property
    def is_done(self) -> bool:
        """Whether all writes have been answered, after next() has found no other."""
        return not self.todo and not self.memory.writing

    def decide(self) -> list[Action]:
        """The writes of the next round: what was refused rests, and is then the last to be tried."""
        memory, now = self.memory, time.monotonic()
        self.rounds += 1
        if self.failure or self.closed or self.rounds > self.ROUNDS:
            return []
        resting = dict(memory.held) if now < memory.refused.until else {}
        try:
            conflicts = self.conflicts(resting, now)
            may_replace, vetted = now >= memory.replaced.until, memory.vetted == template_hash(self.milvus)
            actions = decide(self.milvus, self.pods.values(), held=conflicts, replace=may_replace, vetted=vetted)
        except Invalid:
            return []  # its status says why
        if not resting:  # what is no longer to do is no longer held
            names = {name_of(action.pod) for action in actions} | conflicts
            memory.held = {name: problem for name, problem in memory.held.items() if name in names}
        actions = [action for action in actions if name_of(action.pod) not in resting.keys() | self.changed]
        order = {name: number for number, name in enumerate(memory.held, 1)}
        return sorted(actions, key=lambda action: order.get(name_of(action.pod), 0))

    def conflicts(self, resting: dict[str, Words], now: float) -> set[str]:
        """The names that strangers hold: those in view, and those that rest, for no list shows them. Raises Invalid."""
        found, ours = strangers(self.milvus, self.pods.values()), members(self.milvus, self.pods.values())
        hidden = {name for name, problem in resting.items() if problem.reason == NAME_CONFLICT}
        for name in hidden & {name_of(pod) for pod in ours.values()}:  # another copy has made it
            del self.memory.held[name]
            hidden.remove(name)
        if not found.keys() <= resting.keys():
            self.memory.hold(found, now)
        return hidden | found.keys()

    def replaces(self, action: Action) -> bool:
        """Whether it deletes a pod for another to take its place."""
        return action.verb == "delete" and (ordinal_of(self.milvus, action.pod) or 0) < replicas_of(self.milvus)

    def succeeded(self, action: Action, pod: Obj | None) -> None:
        """Take in what the API server answered: the pod as it is now, or that there is none."""
        self.memory.held.pop(name_of(action.pod), None)
        if action.verb == "vet":
            self.memory.vetted = template_hash(self.milvus)
            return
        self.pods.pop(name_of(action.pod), None)
        if pod:
            self.pods[name_of(pod)] = pod
        if action.verb in DONE:
            reason = "Replaced" if self.replaces(action) else DONE[action.verb].capitalize()
            now = time.monotonic()
            if reason == "Replaced" and is_finished(action.pod) and now >= self.memory.replaced.until:
                self.memory.replaced.wait_longer(now)  # once for those of one pass
            self.stories.setdefault(Story(reason, action.reason), []).append(name_of(action.pod))

    def failed(self, action: Action, error: ApiError) -> None:
        """Leave the rest to another pass; what was refused rests, and what was to follow with it."""
        if error.is_taken:
            self.todo.insert(0, Action("look", action.pod, "its name is taken"))
        elif error.code in (404, 409) and action.verb != "create":
            self.changed.add(name_of(action.pod))
        else:
            problem = error.problem({"vet": "update", "look": "create"}.get(action.verb, action.verb))
            self.failure = self.failure or problem
            if not error.is_transient:
                self.memory.hold({name_of(a.pod): problem for a in (*self.todo, action)}, time.monotonic())
            self.todo.clear()

    def outcome(self) -> tuple[Obj, Words | None]:
        """When all is done: the status, and what is to be said, most of all why the Milvus could not be served."""
        memory, held = self.memory, self.memory.held
        if not held and not self.failure:
            memory.refused.forget()
        problem = held[min(held)] if held else self.failure  # the first of what rests, so that it stays the same
        status = status_of(self.milvus, self.pods.values(), problem, timestamp())
        ready, reconciled = status["conditions"]
        if not problem and reconciled["reason"] != "Reconciled":
            problem = Words(reconciled["reason"], reconciled["message"])
        state = "failed" if reconciled["status"] == "False" else "ready" if ready["status"] == "True" else "progressing"
        wanted = memory.tally.wanted
        with contextlib.suppress(Invalid):
            wanted = replicas_of(self.milvus)
        memory.tally = Tally(state, wanted, status["replicas"], status["readyReplicas"])
        return status, problem


@dataclass
class Scope:
    """A namespace that is served, or all of them (None)."""

    namespace: str | None
    due: float = 0
    failures: Backoff = field(default_factory=lambda: Backoff(1, 30))
    memories: dict[str, Memory] = field(default_factory=dict)  # by the UID of the Milvus
    listed: bool = False  # whether its lists have been read once

    def __str__(self) -> str:
        return place(self.namespace)


Job = Callable[[], Any]
Outcome = Callable[[Any, ApiError | None], None]


class Workers:
    """Threads that do jobs and put down how each ended. Daemons: a request that hangs must not hold up the end."""

    def __init__(self, number: int) -> None:
        self.number, self.running = number, 0
        self.jobs: SimpleQueue[tuple[Job, Any] | None] = SimpleQueue()
        self.answers: SimpleQueue[tuple[Any, Any, ApiError | None]] = SimpleQueue()
        for _ in range(number):
            threading.Thread(target=self.work, daemon=True).start()

    def work(self) -> None:
        while task := self.jobs.get():
            job, what_for = task
            self.answers.put((what_for, *attempt(job)))

    def start(self, job: Job, what_for: Any) -> None:
        self.running += 1
        self.jobs.put((job, what_for))

    def answer(self, seconds: float | None = None) -> tuple[Any, Any, ApiError | None]:
        """What the next job to end was for, and what attempt() said of it. Raises Empty when none ends in time."""
        answer = self.answers.get(timeout=seconds)
        self.running -= 1
        return answer

    def close(self) -> None:
        """End the threads, as soon as their present jobs end."""
        for _ in range(self.number):
            self.jobs.put(None)


class Operator:
    """Serves Milvus resources: `run()` for ever, or one `run_pass()`."""

    def __init__(self, cluster: Cluster, namespaces: Iterable[str | None], interval: float, workers: int) -> None:
        self.cluster, self.interval = cluster, interval
        self.scopes = [Scope(namespace) for namespace in namespaces]
        self.troubles: dict[str, Trouble] = {}  # by what they are about; said once
        self.counts: dict[str, int] = defaultdict(int)  # of this pass
        self.turned = self.good = time.monotonic()  # when the loop last went on; when a pass last did all
        SINCE_GOOD_PASS.set_function(lambda: time.monotonic() - self.good)
        self.queue: deque[Plan] = deque()  # whose turn it is to write about pods; a plan may be in it several times
        self.closing: deque[Plan] = deque()  # those that are done with their pods, and whose status is to be written
        self.telling: deque[tuple[Obj, Memory, Story, list[str]]] = deque(maxlen=20_000)  # what events are to tell
        self.number = 0  # of this pass
        self.sent = 0  # writes so far
        self.pending = 0  # those of this pass that are under way
        self.writers = Workers(workers)
        self.listers = Workers(min(len(self.scopes), workers))  # writes that hang must not hold up the lists

    def close(self) -> None:
        self.writers.close()
        self.listers.close()

    def turn(self) -> None:
        self.turned = time.monotonic()

    def is_turning(self) -> bool:
        """Whether the loop goes on. A server that is down or slow does not stop it: each request has its time."""
        return time.monotonic() - self.turned < max(self.interval, 30) + self.cluster.timeout + 10

    def is_ready(self) -> bool:
        """Whether all that is to be served has been listed once."""
        return all(scope.listed for scope in self.scopes)

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
            gc.collect()
            time.sleep(max(0, min(scope.due for scope in self.scopes) - time.monotonic()))

    def run_pass(self, once: bool = False) -> bool:
        """Serve all scopes that are due; returns whether all of it went well.

        With `once` everything that can be done now is done, however long it takes; else the
        writing ends when the next pass is due, which goes on with fresh lists.
        """
        started = time.monotonic()
        self.drain(0)
        self.counts.clear()
        plans: list[Plan] = []
        due = [scope for scope in self.scopes if scope.due <= started]
        for scope in due:
            self.listers.start(functools.partial(self.cluster.snapshot, scope.namespace, self.turn), scope)
        for scope, lists, error in (self.listers.answer() for _ in due):
            self.turn()
            scope.due = started + self.interval
            if not error:
                made, error = attempt(functools.partial(self.plans, scope, *lists))
            if error:
                self.list_failed(scope, error)
            else:
                plans += made
        plans.sort(key=lambda plan: plan.memory.served)
        now = time.monotonic()
        self.work(plans, math.inf if once else now + max(self.interval, now - started))
        self.report(started)
        return not self.counts["failed"]

    def list_failed(self, scope: Scope, error: ApiError) -> None:
        self.counts["failed"] += 1
        now = time.monotonic()
        scope.failures.wait_longer(now)
        scope.due = now + scope.failures.delay * random.uniform(0.5, 1)
        self.trouble(f"list {scope}", self.cluster.explain(error, "list", scope.namespace))

    def plans(self, scope: Scope, found: list[Obj], wanted: list[Obj]) -> list[Plan]:
        """A plan for each Milvus that is not at rest and can be served now."""
        scope.failures.forget()
        scope.listed = True
        self.fine(f"list {scope}")
        uids = {uid_of(milvus) for milvus in wanted}
        scope.memories = {uid: scope.memories.get(uid) or Memory() for uid in uids}
        # By the UID of the owner, or for orphans and strangers by the name in their instance label.
        index: dict[Any, list[Obj]] = defaultdict(list)
        for pod in found:
            owner = owner_uid(pod)
            index[namespace_of(pod), owner if owner in uids else labels_of(pod).get(INSTANCE_LABEL)].append(pod)
        self.counts["milvus"] += len(wanted)
        self.counts["pods"] += len(found)
        plans = list[Plan]()
        for milvus in wanted:
            memory, namespace = scope.memories[uid_of(milvus)], namespace_of(milvus)
            pods = index.get((namespace, uid_of(milvus)), []) + index.get((namespace, name_of(milvus)), [])
            if memory.is_at_rest(versions_of(milvus, pods), time.monotonic()):
                self.counts["failed"] += memory.tally.state == "failed"
            elif not is_ending(milvus) and not memory.writing:  # else what was listed of it may be old
                memory.recall(milvus, time.monotonic())
                plans.append(Plan(milvus, pods, memory))
        return plans

    def work(self, plans: list[Plan], deadline: float) -> None:
        """Carry out the plans side by side, until all is done or the deadline has come.

        Round robin with the slow start of the ReplicaSet controller: a plan begins with one
        write, each success frees two more, a failure none. So nobody waits for a Milvus with
        much to do, and one whose writes are refused costs one request. Statuses come after
        the pods, but for one write in twenty; events come last.
        """
        told = now = time.monotonic()
        half = max(1, self.writers.number // 2)
        self.number, self.pending, self.queue = self.number + 1, 0, deque(plans)
        self.closing.clear()
        while True:
            self.turn()
            while self.writers.running < self.writers.number and time.monotonic() < deadline:
                if self.closing and (not self.queue or self.sent % 20 == 0):
                    self.close_plan(self.closing.popleft())
                elif self.queue:
                    self.go_on(self.queue.popleft())
                elif self.telling and self.writers.running < half:  # events that hang must not hold up pods
                    self.write_event(*self.telling.popleft())
                else:
                    break
            now = time.monotonic()
            waits = self.pending or ((self.queue or self.closing) and now < deadline)  # the latter for a free worker
            if now >= deadline + GRACE or not waits:
                break  # what hangs is left to itself; its Milvus waits for it, nobody else does
            if now - told >= 5:
                told = now
                gc.collect()
                log.info("writing: %s so far, %d Milvus to go", self.counted(), len({*self.queue, *self.closing}))
            with contextlib.suppress(Empty):
                self.record(*self.writers.answer(min(deadline + GRACE - now, 5)))
        self.end(plans)

    def end(self, plans: list[Plan]) -> None:
        """Leave what is not done, and the failures that are not told yet, to the next pass."""
        for plan in (*(plan for plan in plans if not plan.closed), *self.closing):
            plan.memory.late, plan.failure = plan.failure, None
            self.tell(plan)
            plan.todo.clear()
            plan.closed = True

    def go_on(self, plan: Plan) -> None:
        """Start the plan's next write, if it has one that need not wait."""
        action, error = attempt(plan.next)  # whatever is in it, one Milvus never harms another
        if error:
            plan.failure = error.problem("serve")
        if action:
            plan.memory.writing += 1
            plan.memory.served = time.monotonic()
            job = functools.partial(self.cluster.carry_out, plan.milvus, action)
            self.start(job, functools.partial(self.pod_written, plan, action))
        elif plan.is_done and not plan.closed:
            plan.closed = True
            self.closing.append(plan)

    def start(self, job: Job, outcome: Outcome) -> None:
        """Have a worker do the job; the main thread is told of its outcome."""
        self.sent += 1
        self.pending += 1
        self.writers.start(job, (self.number, outcome))

    def record(self, what_for: tuple[int, Outcome], answer: Any, error: ApiError | None) -> None:
        """Take in how a write ended."""
        number, outcome = what_for
        if number == self.number:
            self.pending -= 1
        if error and error.is_general:
            self.counts["unreachable"] += 1
            self.trouble("server", self.cluster.explain(error, "write", None))
        _, strange = attempt(functools.partial(outcome, answer, error))
        if strange:
            log.error("%s", strange)

    def pod_written(self, plan: Plan, action: Action, pod: Obj | None, error: ApiError | None) -> None:
        plan.memory.writing -= 1
        self.queue.extend([plan, plan])  # the slow start: each answer frees two more, and a failure ends the plan
        namespace, done = namespace_of(plan.milvus), DONE.get(action.verb)
        if error:
            plan.failed(action, error)
            if plan.closed:  # its pass is over: another one tells, before the same is tried again
                plan.memory.late = plan.failure
            self.counts["changed"] += bool(plan.changed)
            if right := error.denied(namespace):
                self.trouble(right, self.cluster.explain(error, right, namespace))
            return
        claims = action.verb == "create" and plan.milvus["spec"].get("storage")
        for right in (*RIGHTS[action.verb], *(["create persistentvolumeclaims"] if claims else [])):
            self.fine(f"{right} in {place(namespace)}")
        plan.succeeded(action, pod)
        if done:
            self.counts[done] += 1
            ACTIONS.labels(done).inc()
            about_pod = fields(plan.milvus, action.reason) | {"pod": name_of(action.pod)}
            log.info("%s%s pod %s: %s", self.cluster.would, done, full_name(action.pod), action.reason, extra=about_pod)
        if plan.closed:
            self.tell(plan)

    def close_plan(self, plan: Plan) -> None:
        """Write the status of a Milvus if it differs from the present one, and say what is new."""
        answer, error = attempt(plan.outcome)
        if error:
            self.say(plan, error.problem("serve"), failed=True)
            return
        status, said = answer
        reconciled = status["conditions"][1]
        known = reconciled in conditions_of(plan.milvus)  # said before this operator started
        self.say(plan, said, failed=reconciled["status"] == "False", known=known)
        present = mapping(plan.milvus.get("status"))
        if all(present.get(key) == value for key, value in status.items()):
            waits = any(map(is_finished, plan.pods.values()))  # until it may be replaced
            if plan.rounds == 1 and not plan.failure and not waits:  # a second round follows upon writes
                plan.memory.settled = plan.versions
        elif time.monotonic() >= plan.memory.no_status.until and self.may_try(right_to_status(plan.milvus)):
            plan.memory.writing += 1
            job = functools.partial(self.cluster.write_status, plan.milvus, status)
            self.start(job, functools.partial(self.status_written, plan))

    def status_written(self, plan: Plan, _: None, error: ApiError | None) -> None:
        """Take in the outcome of a status write."""
        memory, right, one = plan.memory, right_to_status(plan.milvus), f"the status of milvus {full_name(plan.milvus)}"
        memory.writing -= 1
        if not error:
            self.counts["statuses written"] += 1
            memory.no_status.forget()
            self.fine(one)
            self.fine(right)
        elif error.code == 404:
            self.trouble(right, str(error), 10)
        elif error.denied(namespace_of(plan.milvus)):
            self.counts["failed"] += 1
            self.trouble(right, self.cluster.explain(error, right, namespace_of(plan.milvus)), 10)
        elif error.code == 409:  # it is not any more as it was listed
            self.counts["changed"] += 1
        elif not error.is_general:
            self.counts["failed"] += 1
            self.trouble(one, f"cannot write {one}: {error}")
            if not error.is_transient:
                memory.no_status.wait_longer(time.monotonic())

    def tell(self, plan: Plan) -> None:
        """Have the plan's stories told when there is time: events are the last to be written."""
        self.telling.extend((plan.milvus, plan.memory, story, pods) for story, pods in plan.stories.items())
        plan.stories = {}

    def write_event(self, milvus: Obj, memory: Memory, story: Story, about: list[str]) -> None:
        """Write one event; the same again counts it up."""
        pods = ", ".join(about[:10]) + (f" and {len(about) - 10} more" if about[10:] else "")
        note = f"{pods}: {story.why}" if pods else story.why
        event = new_event(milvus, story.reason, note, story.warning, timestamp("microseconds"))
        name, count = memory.events.get((event["reason"], event["note"]), ("", 0))
        right = f"{'patch' if name else 'create'} events in {place(namespace_of(milvus))}"
        if not self.cluster.dry_run and self.may_try(right):  # else the log has said it
            job = functools.partial(self.cluster.write_event, event, name, count + 1)
            self.start(job, functools.partial(self.event_written, event, memory, right, count + 1))

    def event_written(
        self, event: Obj, memory: Memory, right: str, count: int, name: str, error: ApiError | None
    ) -> None:
        """Take in the outcome of an event. Nothing depends on it."""
        namespace = namespace_of(event)
        if not error:
            self.fine(right)
            memory.events[event["reason"], event["note"]] = name, count
            if len(memory.events) > 20:
                del memory.events[next(iter(memory.events))]
        elif error.denied(namespace):
            self.trouble(right, self.cluster.explain(error, right, namespace), 30)
        else:
            log.debug("no event for milvus %s/%s: %s", namespace, event["regarding"]["name"], error)

    def say(self, plan: Plan, said: Words | None, failed: bool, known: bool = False) -> None:
        """Say what is new about a Milvus, in the log and by an event, and when it is over."""
        self.counts["failed"] += failed
        memory, name = plan.memory, full_name(plan.milvus)
        before, memory.said = memory.said, said
        if said and said != before:
            warns = failed or (said.reason == SPEC_IS_TEXT and syntax_error(plan.milvus) > 0)
            if not said.shared and (failed or not known):
                level, extra = logging.WARNING if warns else logging.INFO, fields(plan.milvus, said.reason)
                log.log(level, "milvus %s: %s: %s", name, said.reason, said.message, extra=extra)
            if not known:
                plan.stories[Story(said.event or said.reason, said.message, warns)] = []
        elif before and not said and before.reason != SPEC_IS_TEXT:
            if not before.shared:
                log.info("milvus %s: all right again", name, extra=fields(plan.milvus, "Reconciled"))
            plan.stories[Story("Reconciled", "all right again")] = []
        self.tell(plan)

    def trouble(self, about: str, text: str, rest: float = 0) -> None:
        """Say what is wrong, when it is new, and let it rest for some seconds."""
        self.counts["troubles"] += 1
        if text not in (trouble.text for trouble in self.troubles.values()):
            log.error(text)
        now = time.monotonic()
        self.troubles[about] = Trouble(text, now, now + rest)

    def fine(self, about: str) -> None:
        """Say that a trouble is over, if there was one."""
        over = self.troubles.pop(about, None)
        if over and over.text not in (trouble.text for trouble in self.troubles.values()):
            log.info("works again, was: %s", over.text)

    def may_try(self, about: str) -> bool:
        """Whether what was in trouble may be tried again; one tries for all."""
        trouble, now = self.troubles.get(about), time.monotonic()
        if trouble and now < trouble.until:
            return False
        if trouble:
            self.troubles[about] = trouble._replace(until=now + 10)
        return True

    def counted(self) -> str:
        kinds = (*DONE.values(), "statuses written")
        done = [(number, kind) for kind in kinds if (number := self.counts[kind])]
        words = [f"{number} {kind if number > 1 else kind.replace('statuses', 'status')}" for number, kind in done]
        return ", ".join(words) or "nothing written"

    def report(self, started: float) -> None:
        """The pass, in the log and in the metrics."""
        if not self.counts["unreachable"]:
            self.fine("server")
        now = time.monotonic()
        well = not self.counts["troubles"] and not any(scope.failures.delay for scope in self.scopes)
        for about in [about for about, trouble in self.troubles.items() if now - trouble.seen > 600]:
            del self.troubles[about]  # what it was about is gone: all that is refused is tried again before
        level = logging.DEBUG if self.counted() == "nothing written" else logging.INFO
        size, dry = (self.counts["milvus"], self.counts["pods"]), "dry run, " if self.cluster.dry_run else ""
        log.log(level, "%spass over %d Milvus and %d pods: %s, %.2f s", dry, *size, self.counted(), now - started)
        self.good = now if well else self.good
        PASSES.labels("success" if well else "failure").inc()
        PASS_SECONDS.observe(now - started)
        tallies = [memory.tally for scope in self.scopes for memory in scope.memories.values()]
        for state in STATES:
            MILVUSES.labels(state).set(sum(tally.state == state for tally in tallies))
        for kind in ("wanted", "present", "ready"):
            PODS.labels(kind).set(sum(getattr(tally, kind) for tally in tallies))

    def drain(self, seconds: float) -> None:
        """Take in the outcome of writes that outlived their pass, waiting for it that long."""
        end = time.monotonic() + seconds
        with contextlib.suppress(Empty):
            while self.writers.running:
                self.record(*self.writers.answer(max(0, end - time.monotonic())))


def timestamp(precision: str = "seconds") -> str:
    """The time as Kubernetes writes it: RFC 3339, in UTC."""
    return datetime.now(timezone.utc).replace(tzinfo=None).isoformat(timespec=precision) + "Z"


LOG_FIELDS = ("namespace", "milvus", "pod", "reason")


def fields(milvus: Obj, reason: str) -> dict[str, str]:
    """What a log line is about, for those who read it as JSON."""
    return {"namespace": namespace_of(milvus), "milvus": name_of(milvus), "reason": reason}


# --------------------------------------------------------------------------------------
# Health and metrics over HTTP
# --------------------------------------------------------------------------------------


class Health(BaseHTTPRequestHandler):
    """`/healthz`: the loop turns. `/readyz`: all has been listed once. `/metrics`: for Prometheus."""

    operator: Operator
    timeout = 5  # seconds for a client to send its request

    def do_GET(self) -> None:
        path, kind = self.path.partition("?")[0], "text/plain"
        if path == "/metrics":
            code, body, kind = 200, exposition.generate_latest(), exposition.CONTENT_TYPE_PLAIN_0_0_4
        elif path in ("/healthz", "/readyz"):
            well = self.operator.is_turning() if path == "/healthz" else self.operator.is_ready()
            code, body = (200, b"ok\n") if well else (503, b"no\n")
        else:
            code, body = 404, b"see /healthz, /readyz, /metrics\n"
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Probes are no news."""


class HealthServer(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no news."""


@contextlib.contextmanager
def serve_health(operator: Operator, port: int | None) -> Iterator[None]:
    """Serve Health as long as the operator runs; in a pod to all, elsewhere to this machine alone."""
    if not port:
        yield
        return
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ
    if in_pod and socket.has_dualstack_ipv6():
        HealthServer.address_family = socket.AF_INET6
    host = "" if in_pod else "127.0.0.1"
    try:
        server = HealthServer((host, port), type("Health", (Health,), {"operator": operator}))
    except OSError as error:
        raise Unusable(f"cannot listen on port {port}: {error.strerror}; choose another with --health-port") from None
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


# --------------------------------------------------------------------------------------
# The command
# --------------------------------------------------------------------------------------

SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


class Unusable(click.ClickException):
    """There is no usable configuration."""

    exit_code = 2


class Client(ApiClient):
    def sanitize_for_serialization(self, obj: Any) -> Any:
        """The bodies are plain dicts already; walking through them twice is a tenth of what a create costs here."""
        return obj


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
            urllib3.disable_warnings()  # a kubeconfig that says insecure-skip-tls-verify means it
            if refresh := settings.refresh_api_key_hook:
                settings.refresh_api_key_hook = sparingly(refresh)
            return Client(settings), chosen["context"].get("namespace") or "default"
        if in_pod:
            kubeconfig_loader.load_incluster_config(settings)
            settings.refresh_api_key_hook = read_token  # type: ignore[assignment]  # it is typed as None, and called
            with open(f"{SERVICE_ACCOUNT}/namespace") as file:
                return Client(settings), file.read().strip() or "default"
    except Exception as error:  # the loader raises whatever a strange file makes it stumble on
        known = isinstance(error, ConfigException | OSError | yaml.YAMLError | urllib3.exceptions.HTTPError)
        text = " ".join(str(error).split()) if known else "it is not a kubeconfig"
        source = files if not in_pod else f"{files} or {SERVICE_ACCOUNT}"
        hint = f"`kubectl{f' --kubeconfig {path}' if path else ''} config get-contexts` shows what is there"
        raise Unusable(f"cannot use {source}: {text}; {hint}") from None
    raise Unusable(f"no kubeconfig at {files}: name one with --kubeconfig or KUBECONFIG")


def sparingly(refresh: Callable[[Configuration], None]) -> Callable[[Configuration], None]:
    """Renew the credentials of a kubeconfig once a second at most: before each request, that is a tenth of its cost."""
    due = 0.0

    def refresh_when_due(settings: Configuration) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + 1
            # In the copy it sets itself as the hook again; `api_key`, where it sets the token, both share.
            refresh(copy.copy(settings))
            for key, value in settings.api_key.items():
                settings.api_key[key] = value.strip()  # from a file it ends with a line break

    return refresh_when_due


def read_token(settings: Configuration) -> None:
    """Before each request: the kubelet rotates the token. The client's own way asks a clock that may jump back."""
    with open(f"{SERVICE_ACCOUNT}/token") as file:
        settings.api_key["BearerToken"] = f"Bearer {file.read().strip()}"


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


def set_up_process() -> None:
    """Signals stop the loop wherever it is, and garbage is collected when the loop says so."""
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, stop)
    gc.disable()  # half of a pass, for looking at objects that live on; Operator.run() collects between passes
    gc.freeze()  # what was imported is never looked at


class TextLines(logging.Formatter):
    """Lines for people, in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{timestamp()} {record.levelname:7} {' '.join(record.getMessage().split())}"


class JsonLines(logging.Formatter):
    """One JSON object a line, for collectors."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"timestamp": timestamp("milliseconds"), "level": record.levelname, "message": record.getMessage()}
        return json.dumps(line | {key: getattr(record, key) for key in LOG_FIELDS if hasattr(record, key)})


def start_log(verbose: bool, form: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
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
@click.option("--health-port", metavar="PORT", type=click.IntRange(1, 65535),
              help="Serve /healthz, /readyz and /metrics there.")  # fmt: skip
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True,
              help="Log lines for people, or JSON for collectors.")  # fmt: skip
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
    health_port: int | None,
    log_format: str,
    verbose: bool,
) -> None:
    """Keep the pods of every Milvus resource running.

    Every option also reads an environment variable MILVUS_OPERATOR_<OPTION>, for example
    MILVUS_OPERATOR_INTERVAL=10.
    """
    if namespaces and all_namespaces:
        raise click.UsageError("-n/--namespace and -A/--all-namespaces exclude each other.")
    start_log(verbose, log_format)
    set_up_process()
    operator = None
    try:
        api, default = connect(kubeconfig, context, connections=2 * workers)
        api.user_agent = f"{MANAGER}/{__version__}"
        operator = Operator(Cluster(api, timeout, dry_run), namespaces or [None if all_namespaces else default],
                            interval, workers)  # fmt: skip
        log.info("milvus-operator %s serves %s %s on %s%s", __version__, ", ".join(map(str, operator.scopes)),
                 "once" if once else f"every {interval:g} s", operator.cluster.server,
                 ", as a dry run" if dry_run else "")  # fmt: skip
        with serve_health(operator, health_port):
            if once:
                sys.exit(0 if operator.run_once() else 1)
            operator.run()
    except Stopped:
        if operator:
            operator.drain(4)
        log.info("stopped")


if __name__ == "__main__":
    main()
