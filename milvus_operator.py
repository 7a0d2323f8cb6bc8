#!/usr/bin/env python3
"""Keeps the pods of every Milvus resource running: a Kubernetes operator in one file.

    python milvus_operator.py          # manage the namespace of the kubeconfig's current context
    python milvus_operator.py -A       # manage all namespaces

It polls. A *pass* lists the pods that carry our label, then the Milvus resources. Pure functions
over plain dicts decide what each Milvus needs. Workers, which are threads, carry it out: they
create and delete pods, then write the status and events. The operator does not guess what a write
has changed: the next pass lists again, and soon, because something changed.

What is kept between passes saves work, spaces out retries, and remembers a delete whose response
was lost: until that is settled, no other Ready pod is replaced. Names are fixed, every delete
carries a UID, and every decision starts from fresh lists, so a write that is lost or repeated does
no harm.

In the names below, a *milvus* is one resource of kind Milvus and a *pod* is one pod, both as dicts,
as in their JSON. To learn how an operator works, read `decide` and then `Operator.run_pass`.
"""

from __future__ import annotations

import os
import signal

# Importing takes a while, and process 1 of a container must not ignore signals.
if __name__ == "__main__":
    for _signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(_signum, lambda *_: os._exit(0))

import concurrent.futures
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
import tempfile
import threading
import time
import traceback
import urllib.parse
import urllib.request
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from typing import Any, ClassVar, NamedTuple

import click
import prometheus_client as metrics
import urllib3
import yaml
from kubernetes import config as kubeconfig_loader
from kubernetes.client import ApiClient, ApiException, Configuration
from kubernetes.config import ConfigException
from kubernetes.config.kube_config import KubeConfigLoader, KubeConfigMerger
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.resource import Resource

__version__ = "0.1.0"

Obj = dict[str, Any]  # a Kubernetes object or a part of one, as in its JSON

# ---------- Constants ----------

GROUP, VERSION, KIND, PLURAL = "zilliz.com", "v1", "Milvus", "milvuses"
API_VERSION = f"{GROUP}/{VERSION}"
MANAGER = "milvus-polling-operator"

NAME_LABEL = "app.kubernetes.io/name"
INSTANCE_LABEL = "app.kubernetes.io/instance"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
POD_INDEX_LABEL = "apps.kubernetes.io/pod-index"
OUR_LABELS = (NAME_LABEL, INSTANCE_LABEL, MANAGED_BY_LABEL)
CLAIM_LABEL = f"{GROUP}/milvus"
TEMPLATE_HASH = f"{GROUP}/template-hash"  # annotation: the fingerprint of the user's own fields

MAX_REPLICAS = 1000
MAX_NAME = 52  # so that <name>-<ordinal> is a host name and <name> a label, with room to spare
MAX_SPEC_DEPTH = 100  # levels of nesting in a spec; a real one has about fifteen
MAX_DEPTH = 200  # levels that are read of a response too deep for Python; what is deeper is null
FIRST_PAGE, PAGE = 10, 80  # objects in the first page of a list, and at most in another
PAGE_BYTES = 4 << 20  # what a page should weigh at most
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
MERGE_PATCH = "application/merge-patch+json"  # custom resources reject the client's default
# Where a pod finds its credentials.
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"

# Reasons of the Reconciled condition.
RECONCILED, SPEC_IS_TEXT, API_ERROR = "Reconciled", "SpecIsText", "APIError"
NAME_CONFLICT, QUOTA_EXCEEDED = "NameConflict", "QuotaExceeded"
INVALID, FORBIDDEN = "Invalid", "Forbidden"
STALLED = {NAME_CONFLICT, QUOTA_EXCEEDED, INVALID, FORBIDDEN}  # they stay until someone acts
# Reasons of the Ready condition: what is waited for, which is no failure.
CLAIM_TERMINATING, NAMESPACE_TERMINATING = "ClaimTerminating", "NamespaceTerminating"
PENDING = "Pending"
WAITING = {CLAIM_TERMINATING, NAMESPACE_TERMINATING, PENDING}
# Reasons for not being Ready that usually pass on their own; any other reason is shown first.
PASSING = WAITING | {
    "Creating",
    "Waiting",
    "ContainerCreating",
    "PodInitializing",
    "ContainersNotReady",  # they run, and may still be starting
    "Updating",
    "Terminating",
}
STATES = ("ready", "progressing", "failed")  # of a Milvus, in the metrics

# Metrics. The client library adds its own about this process: memory, CPU, open files.
PASSES = metrics.Counter(
    "milvus_operator_passes", "Passes by result: success or failure", ["result"]
)
PASS_SECONDS = metrics.Histogram(
    "milvus_operator_pass_duration_seconds",
    "Duration of a pass",
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120),
)
REQUESTS = metrics.Counter(
    "milvus_operator_api_requests", "Requests to the API server", ["verb", "resource", "code"]
)
MILVUSES = metrics.Gauge(
    "milvus_operator_milvuses", "Milvus resources by state: ready, progressing or failed", ["state"]
)
SINCE_GOOD_PASS = metrics.Gauge(
    "milvus_operator_seconds_since_good_pass", "Seconds since the last successful pass"
)

log = logging.getLogger("milvus_operator")


class Reason(NamedTuple):
    """The reason and the message of a condition."""

    reason: str
    message: str = ""


class Invalid(Exception):
    """The spec of a Milvus cannot be used; the text tells its owner why."""


# ---------- Readers of unstructured objects ----------


def name_of(obj: Obj) -> str:
    return str(obj["metadata"]["name"])


def namespace_of(obj: Obj) -> str:
    return str(obj["metadata"]["namespace"])


def uid_of(obj: Obj) -> str:
    return str(obj["metadata"]["uid"])


def version_of(obj: Obj) -> str:
    return str(obj["metadata"]["resourceVersion"])


def full_name(obj: Obj) -> str:
    return f"{namespace_of(obj)}/{name_of(obj)}"


def generation_of(milvus: Obj) -> int:
    return int(milvus["metadata"].get("generation", 0))


def labels_of(obj: Obj) -> Obj:
    return obj["metadata"].get("labels") or {}


def controller_of(obj: Obj) -> Obj:
    """The owner reference whose `controller` is true (at most one), or an empty mapping."""
    owners = obj["metadata"].get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("controller")), {})


def owner_uid(obj: Obj) -> str | None:
    return controller_of(obj).get("uid")


def is_ending(obj: Obj) -> bool:
    return bool(obj["metadata"].get("deletionTimestamp"))


def phase_of(pod: Obj) -> str:
    return str(pod.get("status", {}).get("phase") or "Pending")


def is_finished(pod: Obj) -> bool:
    """Failed or Succeeded: its containers have ended and will not start again."""
    return phase_of(pod) in ("Failed", "Succeeded")


def conditions_of(obj: Obj) -> list[Obj]:
    conditions = mapping(obj.get("status")).get("conditions")
    if not isinstance(conditions, list):
        return []
    return [condition for condition in conditions if isinstance(condition, dict)]


def condition_of(obj: Obj, kind: str) -> Obj:
    """The condition of this type in its status, or an empty mapping."""
    return next((item for item in conditions_of(obj) if item.get("type") == kind), {})


def is_ready(pod: Obj) -> bool:
    ready = condition_of(pod, "Ready").get("status") == "True"
    return ready and not is_ending(pod) and not is_finished(pod)


def template_hash_of(pod: Obj) -> str | None:
    return (pod["metadata"].get("annotations") or {}).get(TEMPLATE_HASH)


def mapping(value: Any) -> Obj:
    """The value if it is a mapping, else an empty one: some CRDs allow any shape."""
    return value if isinstance(value, dict) else {}


def pick(obj: Obj, keys: Iterable[str]) -> Obj:
    """The part of the mapping that has these keys."""
    return {key: value for key in keys if (value := obj.get(key)) is not None}


# ---------- The kind: what would be replaced to run something other than Milvus ----------

CONTAINER = "milvus"  # the name of its container
DATA = "/var/lib/milvus"  # where it keeps its data
FS_GROUP = 999  # the group of Milvus images that do not run as root
PORTS = {"milvus": 19530, "metrics": 9091}
FIXED = {"proxyport": "proxy.port", "metricsport": "metrics.port"}  # settings of those two ports
MAX_TEXT, MAX_TEXT_DEPTH = 64 << 10, 32  # bytes and levels of spec.milvusSpec
MAX_SETTINGS, MAX_SETTINGS_BYTES = 1000, 256 << 10  # how many settings, and their size
YAML_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # scalars as written: `off` stays `off`

# The components share the container and find each other here. If they registered the pod's address,
# which changes, a new pod on existing data would wait until the old sessions expire.
COMPONENTS = (
    "ROOTCOORD DATACOORD QUERYCOORD INDEXCOORD PROXY DATANODE INDEXNODE QUERYNODE STREAMINGNODE"
)
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
    **{f"{component}_IP": "127.0.0.1" for component in COMPONENTS.split()},
}


class Spec(NamedTuple):
    """The spec of a Milvus, read and checked once for each pass."""

    replicas: int
    settings: dict[str, str] | None  # by dotted name; None: milvusSpec is text that sets nothing
    template_hash: str  # the fingerprint of image, milvusSpec and pod
    invalid: str = ""  # what is wrong with it; then the rest says nothing


def spec_of(milvus: Obj) -> Spec:
    """Read the spec. Raises Invalid: an older CRD may check nothing."""
    spec, name = mapping(milvus.get("spec")), name_of(milvus)
    if len(name) > MAX_NAME or not DNS_LABEL.fullmatch(name):
        raise Invalid(f"the name must be a DNS label of at most {MAX_NAME} characters")
    for key, shape in {"image": str, "milvusSpec": str, "storage": dict, "pod": dict}.items():
        if not isinstance(spec.get(key), shape | None):
            raise Invalid(f"spec.{key} must be a {'string' if shape is str else 'mapping'}")
    if not spec.get("image"):
        raise Invalid("spec.image is required")
    replicas = spec.get("replicas")
    if replicas is None:
        replicas = 1
    if type(replicas) is not int or not 0 <= replicas <= MAX_REPLICAS:
        raise Invalid(f"spec.replicas must be a whole number from 0 to {MAX_REPLICAS}")
    if is_deeper_than(MAX_SPEC_DEPTH, spec):
        raise Invalid(f"the spec is nested more than {MAX_SPEC_DEPTH} levels deep")
    # What the user wrote, not the resulting pod: a newer operator must not restart any pod.
    written = json.dumps(pick(spec, ("image", "milvusSpec", "pod")), sort_keys=True)
    fingerprint = hashlib.sha256(written.encode()).hexdigest()[:16]
    return Spec(replicas, settings_of(spec.get("milvusSpec") or ""), fingerprint)


def is_deeper_than(levels: int, value: Any) -> bool:
    """Whether mappings and lists are nested more than this many levels deep."""
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list) or not value:
        return False
    return levels == 0 or any(is_deeper_than(levels - 1, part) for part in value)


def new_container(image: str, settings: dict[str, str]) -> Obj:
    """A standalone Milvus server with these settings. It has five minutes to start."""
    metrics_port = PORTS["metrics"]
    healthz = {"httpGet": {"path": "/healthz", "port": metrics_port}, "timeoutSeconds": 5}
    alive = {"tcpSocket": {"port": metrics_port}, "timeoutSeconds": 5}
    return {
        "name": CONTAINER,
        "image": image,
        "args": ["milvus", "run", "standalone"],
        "env": environment(settings),
        "ports": [{"name": name, "containerPort": number} for name, number in PORTS.items()],
        "startupProbe": healthz | {"periodSeconds": 5, "failureThreshold": 60},
        "readinessProbe": healthz | {"periodSeconds": 10, "failureThreshold": 3},
        "livenessProbe": alive | {"periodSeconds": 15},
        "resources": {"requests": {"cpu": "250m", "memory": "1Gi"}},
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": [{"name": "data", "mountPath": DATA}],
    }


def environment(settings: dict[str, str]) -> list[Obj]:
    """The variables: the user's settings, and our defaults for the others."""
    theirs = {setting(name) for name in settings}
    defaults = {name: value for name, value in DEFAULTS.items() if setting(name) not in theirs}
    variables = defaults | settings
    # Kubernetes reads $$ as one $.
    return [{"name": name, "value": value.replace("$", "$$")} for name, value in variables.items()]


MILVUS_PREFIX = re.compile(r"(MILVUS_CONF_)?((?i:milvus)\.)?")
NO_SEPARATORS = str.maketrans("", "", "_./")


def setting(name: str) -> str:
    """The setting that Milvus reads from a variable: PROXY_PORT and milvus.proxy.port are one."""
    return MILVUS_PREFIX.sub("", name, count=1).translate(NO_SEPARATORS).lower()


def invalid(line: int, text: str) -> Invalid:
    """An error on this line (from 0) of spec.milvusSpec, which may hold secrets: never quote it."""
    return Invalid(f"spec.milvusSpec, line {line + 1}: {text}")


@functools.lru_cache(maxsize=128)
def settings_of(text: str) -> dict[str, str] | None:
    """The settings of a YAML mapping by dotted name; None for text that is no mapping and sets
    nothing. Raises Invalid."""
    if len(text.encode(errors="replace")) > MAX_TEXT:
        raise Invalid(f"spec.milvusSpec is longer than {MAX_TEXT >> 10} KiB")
    try:
        check_shape(text)
        node = yaml.compose(text, YAML_LOADER)
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        mark = getattr(error, "problem_mark", None)
        if mark:
            line = min(mark.line, text.rstrip().count("\n"))
            raise invalid(line, "it is not valid YAML") from None
        bad = yaml.reader.Reader.NON_PRINTABLE.search(text)
        line = text.count("\n", 0, bad.start() if bad else 0)
        raise invalid(line, "it contains a character that YAML does not allow") from None
    if node is None or isinstance(node, yaml.MappingNode):
        return flat_settings(node)
    if sign := re.search("[:=]", text):
        line = text.count("\n", 0, sign.start())
        text = "this looks like a setting, but the text is not a YAML mapping: write `name: value`"
        raise invalid(line, text)
    return None


def check_shape(text: str) -> None:
    """Check depth and anchors event by event, because the composer recurses and expands aliases."""
    depth = 0
    for event in yaml.parse(text, YAML_LOADER):
        line = event.start_mark.line if event.start_mark else 0
        if isinstance(event, yaml.NodeEvent) and event.anchor is not None:  # an alias has one too
            raise invalid(line, "anchors and aliases are not allowed: write the value instead")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_TEXT_DEPTH:
            raise invalid(line, f"it has more than {MAX_TEXT_DEPTH} levels of nesting")


def flat_settings(node: yaml.Node | None) -> dict[str, str]:
    """The settings below a mapping node, checked. Raises Invalid."""
    settings = dict[str, str]()
    lines = dict[str, int]()
    size = 0
    for name, value, line in flatten(node):
        key = setting(name)
        if key in FIXED:
            text = f"{FIXED[key]} cannot be changed: the ports of the pod depend on it"
            raise invalid(line, text)
        if key in lines:
            raise invalid(line, f"it sets the same setting as line {lines[key] + 1}")
        if not re.fullmatch("[ -<>-~]+", name):
            raise invalid(line, "a key must consist of printable ASCII characters other than =")
        settings[name] = value
        lines[key] = line
        size += len(name) + len(value.encode(errors="replace"))
        if size > MAX_SETTINGS_BYTES or len(settings) > MAX_SETTINGS:
            limits = f"{MAX_SETTINGS} settings, {MAX_SETTINGS_BYTES >> 10} KiB"
            raise invalid(line, f"there are more settings than allowed ({limits})")
    return settings


def flatten(mapping_node: Any, prefix: str = "") -> Iterator[tuple[str, str, int]]:
    """Each setting below a mapping node: its dotted name, its value as written, its line."""
    for key, node in mapping_node.value if mapping_node else ():
        line = key.start_mark.line
        if not isinstance(key, yaml.ScalarNode) or not key.value:
            raise invalid(line, "a key must be a non-empty string")
        name = prefix + key.value
        if isinstance(node, yaml.MappingNode):
            yield from flatten(node, f"{name}.")
        elif isinstance(node, yaml.ScalarNode):
            yield name, node.value, line
        elif all(isinstance(item, yaml.ScalarNode) for item in node.value):
            yield name, ",".join(item.value for item in node.value), line
        else:
            raise invalid(line, "a list may hold only scalars, not mappings or lists")


# ---------- The core: what to do and what to say; it knows no clock, network or log ----------


# --- Names, labels, owners ---
def pod_name(milvus: Obj, ordinal: int) -> str:
    return f"{name_of(milvus)}-{ordinal}"


def claim_name(milvus: Obj, ordinal: int) -> str:
    return f"data-{pod_name(milvus, ordinal)}"


def ordinal_of(milvus: Obj, pod: Obj) -> int | None:
    """The pod's ordinal, or None if its name is not <this Milvus's name>-<ordinal>."""
    start, _, end = name_of(pod).rpartition("-")
    if start != name_of(milvus) or not end.isdecimal() or str(int(end)) != end:
        return None
    return int(end)


def selector_of(milvus: Obj) -> dict[str, str]:
    """The labels that all pods of a Milvus share."""
    return {
        NAME_LABEL: CONTAINER,
        INSTANCE_LABEL: name_of(milvus),
        MANAGED_BY_LABEL: MANAGER,
    }


def reference_to(milvus: Obj) -> Obj:
    names = {"name": name_of(milvus), "uid": uid_of(milvus)}
    return {"apiVersion": API_VERSION, "kind": KIND} | names


def owner_reference(milvus: Obj) -> Obj:
    return reference_to(milvus) | {"controller": True, "blockOwnerDeletion": True}


# --- The pod, and its claim ---
def new_pod(milvus: Obj, spec: Spec, ordinal: int) -> Obj:
    """The pod of this ordinal as it is sent: the generated pod with spec.pod laid over it."""
    over = mapping(milvus["spec"].get("pod"))
    metadata = mapping(over.get("metadata"))
    volume: Obj = {"name": "data", "emptyDir": {}}
    if milvus["spec"].get("storage"):
        claim = {"claimName": claim_name(milvus, ordinal)}
        volume = {"name": "data", "persistentVolumeClaim": claim}
    generated = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # a Service named proxy would set PROXY_PORT
        "terminationGracePeriodSeconds": 60,
        "securityContext": {"fsGroup": FS_GROUP},
        "containers": [new_container(milvus["spec"]["image"], spec.settings or {})],
        "hostname": pod_name(milvus, ordinal),
        "subdomain": name_of(milvus),
        "volumes": [volume],
    }
    ours = selector_of(milvus) | {POD_INDEX_LABEL: str(ordinal)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(milvus, ordinal),
            "namespace": namespace_of(milvus),
            "labels": mapping(metadata.get("labels")) | ours,
            "annotations": mapping(metadata.get("annotations"))
            | {TEMPLATE_HASH: spec.template_hash},
            "ownerReferences": [owner_reference(milvus)],
        },
        "spec": overlay(generated, mapping(over.get("spec"))),
    }


def new_claim(milvus: Obj, ordinal: int) -> Obj:
    """The PersistentVolumeClaim of a pod. It has no owner, so the data outlives pod and Milvus."""
    storage = milvus["spec"]["storage"]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": claim_name(milvus, ordinal),
            "namespace": namespace_of(milvus),
            "labels": {CLAIM_LABEL: name_of(milvus)},
        },
        "spec": pick(storage, ["storageClassName"])
        | {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": storage.get("size")}},
        },
    }


# --- spec.pod, laid over the generated pod ---
MERGE_KEYS = {
    "containers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
}
ALTERNATIVES = {"exec", "httpGet", "tcpSocket", "grpc"}  # a probe has exactly one of these


def overlay(ours: Obj, over: Obj) -> Obj:
    """A mapping laid over ours: mappings and lists of named things merge, all else is replaced."""
    merged = dict(ours)
    if ALTERNATIVES & over.keys():
        for key in ALTERNATIVES - over.keys():
            merged.pop(key, None)
    for key, value in over.items():
        mine = merged.get(key)
        if value is None and key in MERGE_KEYS:  # a list whose items are commented out
            continue
        if isinstance(mine, dict) and isinstance(value, dict):
            merged[key] = overlay(mine, value)
        elif isinstance(mine, list) and isinstance(value, list):
            merged[key] = overlay_list(key, mine, value)
        else:
            merged[key] = value
    return merged


def overlay_list(kind: str, ours: list[Any], over: list[Any]) -> list[Any]:
    """A list of named things laid over ours. A variable or a volume has only one source, so it is
    replaced as a whole."""
    key = MERGE_KEYS.get(kind)
    if not key or not all(isinstance(mapping(item).get(key), str | int) for item in ours + over):
        return over
    if kind == "env":
        theirs = {setting(str(item[key])) for item in over}
        return [item for item in ours if setting(str(item[key])) not in theirs] + over
    merged, added = {item[key]: item for item in ours}, list[Obj]()
    for item in over:
        name = item[key]
        if name not in merged:
            added.append(item)
        elif kind == "volumes":
            merged[name] = item
        else:
            merged[name] = overlay(merged[name], item)
    return [*merged.values(), *added]


# --- Whose pod it is ---
def members(milvus: Obj, pods: Iterable[Obj]) -> dict[int, Obj]:
    """The pods that this Milvus owns, by ordinal. Ownership is a UID; a name proves nothing."""
    owned = dict[int, Obj]()
    for pod in pods:
        ordinal = ordinal_of(milvus, pod)
        if owner_uid(pod) == uid_of(milvus) and ordinal is not None:
            owned[ordinal] = pod
    return owned


def group(pods: list[Obj]) -> dict[tuple[str, str], list[Obj]]:
    """The pods by namespace and name without the ordinal, which is the name of their Milvus."""
    groups = defaultdict[tuple[str, str], list[Obj]](list)
    for pod in pods:
        groups[namespace_of(pod), name_of(pod).rpartition("-")[0]].append(pod)
    return groups


def has_labels(milvus: Obj, pod: Obj) -> bool:
    return selector_of(milvus).items() <= labels_of(pod).items()


def is_orphan(milvus: Obj, pod: Obj) -> bool:
    """Whether it is our pod and has lost its owner, as after `kubectl delete --cascade=orphan`."""
    ours = ordinal_of(milvus, pod) is not None and has_labels(milvus, pod)
    return ours and not controller_of(pod) and not is_ending(pod)


def conflict_with(milvus: Obj, spec: Spec, pod: Obj) -> Reason | None:
    """What to tell the user about a pod that has a desired name, unless it is fine or will go."""
    owner, name, ordinal = controller_of(pod), name_of(pod), ordinal_of(milvus, pod)
    is_desired = ordinal is not None and ordinal < spec.replicas
    if not is_desired or is_ending(pod) or is_orphan(milvus, pod):
        return None
    if owner.get("uid") == uid_of(milvus):
        if has_labels(milvus, pod):
            return None
        labels = " ".join(f"{key}={value}" for key, value in selector_of(milvus).items())
        command = f"kubectl label --overwrite -n {namespace_of(milvus)} pod {name} {labels}"
        return Reason(NAME_CONFLICT, f"pod {name} has lost its labels; restore them: {command}")
    group = str(owner.get("apiVersion")).partition("/")[0]
    is_milvus = group == GROUP and owner.get("kind") == KIND
    if is_milvus and owner.get("name") == name_of(milvus):
        return None  # another UID: an earlier Milvus of that name; the garbage collector deletes it
    whose = f"belongs to {owner.get('kind')} {owner.get('name')}" if owner else "has no controller"
    kind = owner.get("kind", "pod")
    advice = f"create the Milvus under another name or, if nobody needs that {kind}, delete it"
    text = f"pod {name} already exists and {whose}, so the operator does not touch it: {advice}"
    return Reason(NAME_CONFLICT, f"{text} (the operator retries within 5 minutes)")


def lacks(sent: Obj, pod: Obj) -> str:
    """What the operator relies on and admission has removed or changed; empty if nothing."""
    if owner_uid(pod) != owner_uid(sent):
        return "the owner reference"
    if not pick(labels_of(sent), OUR_LABELS).items() <= labels_of(pod).items():
        return "the labels"
    if template_hash_of(pod) != template_hash_of(sent):
        return f"the annotation {TEMPLATE_HASH}"
    return ""


# --- What to do ---
class Action(NamedTuple):
    """One write. The verbs: create; adopt; delete, because the pod is surplus; restart and replace,
    which delete a pod so that it is created anew: it has ended, its claim is gone, or its template
    is outdated."""

    verb: str
    ordinal: int
    pod: Obj  # empty if there is none
    reason: str = ""


DONE = {"create": "created", "adopt": "adopted"} | dict.fromkeys(
    ("delete", "restart", "replace"), "deleted"
)
OUTDATED = "outdated template"


def decide(milvus: Obj, spec: Spec, pods: Collection[Obj], stuck: set[str]) -> list[Action]:
    """Everything that should be done, in order. `pods` are those of the Milvus and those that have
    one of its names; a roll does not wait for pods named in `stuck`, unless they are updated."""
    mine, present = members(milvus, pods), {*map(name_of, pods)}
    actions = list[Action]()
    for ordinal in sorted(mine, reverse=True):
        if ordinal >= spec.replicas and not is_ending(mine[ordinal]):
            reason = f"spec.replicas is {spec.replicas}"
            actions.append(Action("delete", ordinal, mine[ordinal], reason))
    for pod in pods:
        orphan = ordinal_of(milvus, pod)
        if orphan is not None and is_orphan(milvus, pod):
            reason = "it has no controller, but the name and labels of a pod of this Milvus"
            actions.append(Action("adopt", orphan, pod, reason))
    running = dict[int, Obj]()
    for ordinal in range(spec.replicas):
        current = mine.get(ordinal)
        if current is None:
            if pod_name(milvus, ordinal) not in present:
                actions.append(Action("create", ordinal, {}))
        elif is_ending(current):
            continue
        elif reason := why_restart(milvus, ordinal, current):
            is_outdated = template_hash_of(current) != spec.template_hash
            verb = "replace" if is_outdated else "restart"
            actions.append(Action(verb, ordinal, current, reason))
        else:
            running[ordinal] = current
    ready = {name_of(pod) for pod in mine.values() if is_ready(pod)}
    desired = {pod_name(milvus, ordinal) for ordinal in range(spec.replicas)}
    updated = {name_of(pod) for pod in mine.values() if template_hash_of(pod) == spec.template_hash}
    all_ready = desired <= ready | (stuck - updated)
    return actions + roll(running, spec.template_hash, all_ready)


def why_restart(milvus: Obj, ordinal: int, pod: Obj) -> str:
    """Why a pod must be deleted and created anew, whatever its template; empty if it need not."""
    if is_finished(pod):
        reason = why_not_ready(pod).reason
        return phase_of(pod) if reason == phase_of(pod) else f"{phase_of(pod)} ({reason})"
    if not milvus["spec"].get("storage"):
        return ""
    unscheduled = str(condition_of(pod, "PodScheduled").get("message"))  # in the scheduler's words
    claim = claim_name(milvus, ordinal)
    if any(f'"{claim}" {what}' in unscheduled for what in ("not found", "is being deleted")):
        return f"claim {claim} is gone or being deleted"
    return ""


def roll(running: dict[int, Obj], template_hash: str, all_ready: bool) -> list[Action]:
    """The pods to replace because their template is outdated: as a StatefulSet does, from the
    highest ordinal, and Ready ones only while all are Ready. Unlike a StatefulSet, it replaces pods
    that are not Ready first: they serve nobody, and a roll that waits for a broken pod is stuck,
    even when it is rolled back (kubernetes/kubernetes#67250)."""
    actions = list[Action]()
    for ordinal in sorted(running, reverse=True):
        pod = running[ordinal]
        if template_hash_of(pod) != template_hash and (all_ready or not is_ready(pod)):
            actions.append(Action("replace", ordinal, pod, OUTDATED))
    return actions


class BackOff(NamedTuple):
    """Until when something is not tried again, the delay, and why."""

    until: float = -math.inf
    delay: float = 0
    why: Reason = Reason("")
    outage: str = ""
    what: str = ""  # the kind of write to a pod that failed: one of DONE's values
    lost: bool = False  # whether its response was, so that the write may still take effect
    conflicts: int = 0  # since it last succeeded

    def longer(self, first: float, most: float, now: float) -> BackOff:
        """The next one: `first` seconds, then twice as long each time, up to `most`."""
        delay = min(max(2 * self.delay, first), most)
        return BackOff(now + delay, delay, conflicts=self.conflicts)


NEVER_FAILED = BackOff()


def choose(
    actions: list[Action],
    back_offs: Mapping[int | str, BackOff],
    leaving: Collection[str],
    ended: Collection[str],
    now: float,
) -> list[Action]:
    """Which of these actions may be carried out now; what failed before comes last. `leaving` are
    the UIDs of Ready pods that may go at any moment: while one may, no other is replaced. `ended`
    are those of the pods that may be restarted."""
    past = {action.ordinal: back_offs.get(action.ordinal, NEVER_FAILED) for action in actions}
    chosen, steps = list[Action](), list[Action]()
    for action in sorted(actions, key=lambda a: (past[a.ordinal].until, a.verb == "create")):
        # One Ready pod at a time is replaced, and none while others are deleted, or may be.
        if action.verb == "replace" and is_ready(action.pod):
            steps.append(action)
        elif action.verb == "restart" and uid_of(action.pod) not in ended:
            continue
        elif past[action.ordinal].until <= now:
            chosen.append(action)
    if any(action.verb == "delete" and is_ready(action.pod) for action in chosen):
        return chosen
    if leaving:
        steps = [step for step in steps if uid_of(step.pod) in leaving]
    allowed = [step for step in steps if past[step.ordinal].until <= now]
    return sorted(chosen + allowed[:1], key=lambda action: past[action.ordinal].until)


# --- What the status and the events say ---
def why_not_ready(pod: Obj) -> Reason:
    """Why a pod is not Ready, in the words of its status, or else its phase."""
    status = pod.get("status") or {}
    if is_ending(pod):
        return Reason("Terminating")
    if is_finished(pod):
        return Reason(status.get("reason") or phase_of(pod), status.get("message") or "")
    containers = (status.get("initContainerStatuses") or []) + (
        status.get("containerStatuses") or []
    )
    for container in containers:
        state = container.get("state") or {}
        waiting, ended = state.get("waiting"), state.get("terminated")
        if waiting:
            return Reason(waiting.get("reason") or "Waiting", waiting.get("message") or "")
        if ended and ended.get("exitCode"):
            return Reason(ended.get("reason") or "Error", f"exit code {ended['exitCode']}")
    for kind in ("PodScheduled", "Ready"):
        condition = condition_of(pod, kind)
        if condition and condition["status"] != "True":
            unknown = "NotReady" if phase_of(pod) == "Running" else phase_of(pod)
            return Reason(condition.get("reason") or unknown, condition.get("message") or "")
    return Reason(phase_of(pod))


def readiness(milvus: Obj, spec: Spec, mine: dict[int, Obj], problems: dict[str, Reason]) -> Reason:
    """What the Ready condition says; the reason is Ready if it is true."""
    unready = dict[str, Reason]()
    for ordinal in range(spec.replicas):
        name, pod = pod_name(milvus, ordinal), mine.get(ordinal)
        problem = problems.get(name)
        if pod is None:
            unready[name] = problem or Reason("Creating", "it is being created")
        elif not is_ready(pod):
            unready[name] = why_not_ready(pod)
        elif template_hash_of(pod) != spec.template_hash:
            unready[name] = problem or Reason("Updating", OUTDATED)
    ready = f"{spec.replicas - len(unready)} of {spec.replicas} pods are ready and up to date"
    if not unready:
        return Reason("Ready", ready)
    name = min(unready, key=lambda name: unready[name].reason in PASSING)  # the first of them
    reason, message = unready[name]
    if reason == "Ready":  # whatever a pod says of itself
        reason = "NotReady"
    return Reason(reason, f"{ready}; {name}: {message or reason}")


def reconciliation(spec: Spec, problems: dict[str, Reason]) -> Reason:
    """What the Reconciled condition says; of several problems, always the first by name."""
    for name in sorted(problems):
        reason, message = problems[name]
        if reason not in WAITING:
            return Reason(reason, f"pod {name}: {message}" if reason == API_ERROR else message)
    if spec.settings is None:
        return Reason(SPEC_IS_TEXT, "spec.milvusSpec is not a YAML mapping, so it sets nothing")
    return Reason(RECONCILED, "the pods match the spec or are being brought in line with it")


def status_of(
    milvus: Obj, spec: Spec, pods: Iterable[Obj], problems: dict[str, Reason], now: str
) -> Obj:
    """The status of a Milvus. `problems` says what failed, by pod; `now` is a time in RFC 3339."""
    mine = members(milvus, pods)
    present = [mine[ordinal] for ordinal in sorted(mine) if not is_ending(mine[ordinal])]
    ready = readiness(milvus, spec, mine, problems)
    reconciled = reconciliation(spec, problems)
    if spec.invalid:
        ready = reconciled = Reason(INVALID, spec.invalid)
    updated = sum(template_hash_of(pod) == spec.template_hash for pod in present)
    is_reconciled = reconciled.reason in (RECONCILED, SPEC_IS_TEXT)
    conditions = [
        new_condition(milvus, "Ready", ready.reason == "Ready", ready, now),
        new_condition(milvus, "Reconciled", is_reconciled, reconciled, now),
    ]
    if reconciled.reason in STALLED:
        conditions.append(new_condition(milvus, "Stalled", True, reconciled, now))
    ours = ("Ready", "Reconciled", "Stalled")
    others = [item for item in conditions_of(milvus) if item.get("type") not in ours]
    conditions += [item for item in others if not is_deeper_than(MAX_SPEC_DEPTH, item)]
    return {
        "observedGeneration": generation_of(milvus),
        "replicas": len(present),
        "readyReplicas": sum(map(is_ready, present)),
        "updatedReplicas": updated,
        "pods": [name_of(pod) for pod in present],
        "selector": ",".join(
            f"{key}={value}" for key, value in sorted(selector_of(milvus).items())
        ),
        "conditions": conditions,
    }


def new_condition(milvus: Obj, kind: str, is_true: bool, why: Reason, now: str) -> Obj:
    """A condition in the standard form. Its time changes only with its status."""
    before = condition_of(milvus, kind)
    since = before.get("lastTransitionTime")
    if before.get("status") != str(is_true) or not isinstance(since, str):
        since = now
    return {
        "type": kind,
        "status": str(is_true),
        "observedGeneration": generation_of(milvus),
        "lastTransitionTime": since,
        "reason": re.sub(r"[^A-Za-z0-9_,:]", "", why.reason)[:1024] or "Unknown",
        "message": why.message[:1024],
    }


def new_event(milvus: Obj, reason: str, note: str, is_warning: bool, now: str) -> Obj:
    """An event for `kubectl describe`; `now` has microseconds."""
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            "generateName": f"{name_of(milvus)}-",
            "namespace": namespace_of(milvus),
        },
        "regarding": reference_to(milvus) | {"namespace": namespace_of(milvus)},
        "type": "Warning" if is_warning else "Normal",
        "reason": reason,
        "action": "Reconcile",
        "note": note.encode(errors="replace")[:1024].decode(errors="ignore"),
        "eventTime": now,
        "reportingController": f"{GROUP}/{MANAGER}",
        "reportingInstance": socket.gethostname(),  # the pod's name, in a cluster
    }


# ---------- The shell: the only part that knows about HTTP ----------


def by_gvr(
    api: ApiClient, group: str, version: str, kind: str, plural: str, **options: Any
) -> Resource:
    """A resource of the dynamic client, without its discovery requests and its cache file."""
    client = DynamicClient(api, discoverer=lambda client, cache_file: None)
    prefix, options = ("apis" if group else "api"), {"namespaced": True} | options
    return Resource(prefix, group, version, kind, name=plural, client=client, **options)


def milvuses(api: ApiClient) -> Resource:
    """The Milvus resources: to create, get, list, patch and delete them from code."""
    status = {"kind": KIND, "name": f"{PLURAL}/status", "namespaced": True}
    return by_gvr(api, GROUP, VERSION, KIND, PLURAL, subresources={"status": status})


def pods(api: ApiClient) -> Resource:
    """The pods: to create, get, list, patch and delete them from code."""
    return by_gvr(api, "", "v1", "Pod", "pods")


# --- What a failed request means ---
class ApiError(Exception):
    """A request that failed, with the server's words."""

    def __init__(self, code: int, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.code = code  # of HTTP; 0: there was no valid response
        self.reason = reason  # of the server's Status object, or one of ours
        self.verb = ""  # of the request; `get` is not for lists
        self.resource = ""  # the plural name of what was requested
        self.outage = ""  # a line about a cause that affects more than one Milvus
        self.is_check = False  # whether a dry run of the template failed, which all pods share

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed soon: it backs off for a shorter time."""
        return self.code in (0, 401, 409, 429) or self.code >= 500

    @property
    def is_lost(self) -> bool:
        """Whether the response was lost, so that a write may still take effect. The API server's
        InternalError is a response: most often, a webhook has failed."""
        return self.code == 0 or (self.code >= 500 and self.reason != "InternalError")

    def why(self) -> Reason:
        """What it means for the Milvus concerned."""
        if self.reason in {*WAITING, NAME_CONFLICT}:
            return Reason(self.reason, str(self))
        denied = DENIED.match(str(self))
        if self.code == 403 and denied and denied["quota"]:
            return Reason(QUOTA_EXCEEDED, str(self))
        reasons = {400: INVALID, 422: INVALID, 403: FORBIDDEN}
        return Reason(reasons.get(self.code, API_ERROR), str(self))


# The API server's own words about a 403, anchored at their start: what follows may be a user's.
DENIED = re.compile(
    r'[a-z0-9.-]+(?: "[^"]*")? is forbidden: (?:'
    r"exceeded (?P<quota>quota): |"
    r'User "(?P<user>[^"]*)" cannot (?P<verb>[a-z]+) resource "(?P<resource>[a-z./]+)"|'
    r"cannot set (?P<owner>blockOwnerDeletion))"
)


def api_error(error: ApiException) -> ApiError:
    """From the client's exception, whose body is a Status object if the API server wrote it."""
    try:
        status = parse((error.body or "").encode())
    except ApiError:
        status = {}
    message = status.get("message") or error.reason or f"HTTP {error.status}"
    reason = str(status.get("reason") or "")
    if reason in {*WAITING, NAME_CONFLICT}:  # from a webhook: these are our own words
        reason = ""
    for cause in mapping(status.get("details")).get("causes") or []:
        if mapping(cause).get("reason") == NAMESPACE_TERMINATING:
            reason = NAMESPACE_TERMINATING
    return ApiError(error.status or 0, " ".join(str(message).split())[:1000], reason)


def unexpected(error: Exception) -> ApiError:
    """From an exception that nobody foresaw. Only its place is shown: its text may hold secrets."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(frame.filename).name}, line {frame.lineno}"
    failed = ApiError(0, f"unexpected {type(error).__name__} in {place}: please report this bug")
    failed.outage = str(failed)
    return failed


# --- The bytes of a response (skip this on a first reading) ---
JSON_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]')
ITEMS = re.compile(rb'"items"\s*:\s*\[')


def shallow(body: bytes) -> bytes:
    """The JSON with null in place of anything nested deeper than MAX_DEPTH levels."""
    kept, depth, start = list[bytes](), 0, 0
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


def parse(body: bytes, shape: type[Any] = dict) -> Any:
    """The JSON as a dict, or a list. One item nested too deeply for Python must not hide a list."""
    try:
        try:
            value = json.loads(body)
        except RecursionError:
            value = json.loads(shallow(body))
    except (ValueError, RecursionError):
        raise ApiError(0, "the response is not JSON: is this a Kubernetes API server?") from None
    return value if isinstance(value, shape) else shape()


IDENTITY = "name", "namespace", "uid", "resourceVersion", "generation", "deletionTimestamp"
OWNER = ("apiVersion", "kind", "name", "uid", "controller")
POD_STATUS = (
    "phase",
    "reason",
    "message",
    "conditions",
    "initContainerStatuses",
    "containerStatuses",
)
READY_STATUS = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


def slim_milvus(milvus: Obj) -> Obj:
    """The parts of a Milvus that are used here."""
    return {"metadata": pick(milvus["metadata"], IDENTITY)} | pick(milvus, ("spec", "status"))


def slim_pod(pod: Obj) -> Obj:
    """The parts of a pod that are used here: about a fifth, because all pods are kept in memory."""
    metadata, owner = pick(pod["metadata"], IDENTITY), controller_of(pod)
    metadata["labels"] = pick(labels_of(pod), OUR_LABELS)
    metadata["annotations"] = pick(pod["metadata"].get("annotations") or {}, [TEMPLATE_HASH])
    metadata["ownerReferences"] = [pick(owner, OWNER)] if owner else []
    status = READY_STATUS if is_ready(pod) else pick(pod.get("status") or {}, POD_STATUS)
    return {"metadata": metadata, "status": status}


# --- The connection ---
PLUGIN_RUNS = "the kubeconfig's exec plugin is still running; it may be waiting for a login"
PLUGIN_FAILED = "the kubeconfig's exec plugin failed; its own words are above"


class Unusable(click.ClickException):
    """There is no usable configuration."""

    exit_code = 2


class Connection(NamedTuple):
    """A client, and where it came from."""

    api: ApiClient
    namespace: str  # the default one
    context: str | None  # of the kubeconfig; chosen once, at the start
    files: Mapping[str, bytes]  # what was read, to notice changes
    expires: float = math.inf  # when the credentials do, in seconds since 1970
    complaint: str = ""  # what an exec plugin failed with


def connect(path: str | None, connections: int, context: str | None) -> Connection:
    """Find the cluster as kubectl does; in a pod without a kubeconfig, its own. Raises Unusable."""
    default = os.path.expanduser("~/.kube/config")
    names = path or os.environ.get("KUBECONFIG") or default
    is_file = any(map(os.path.exists, names.split(os.pathsep)))
    source = names if is_file else SERVICE_ACCOUNT
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ and not path and not context
    settings = Configuration()
    try:
        if is_file:
            return from_kubeconfig(settings, names, context, connections)
        if in_pod:
            return from_pod(settings, connections)
    except Unusable:
        raise
    except ImportError:
        text = "a SOCKS proxy needs the package PySocks (pip install PySocks)"
        raise Unusable(f"cannot use {source}: {text}") from None
    except urllib3.exceptions.LocationParseError:  # its text may hold a part of a password
        text = "its server or the proxy is not a valid URL"
        raise Unusable(f"cannot use {source}: {text}") from None
    except yaml.YAMLError as error:  # its text may quote a password
        text = f"it is not valid YAML {getattr(error, 'problem_mark', None) or ''}"
        raise Unusable(f"cannot use {source}: {' '.join(text.split())}") from None
    except (ConfigException, OSError, urllib3.exceptions.HTTPError) as error:
        text = without_secrets(" ".join(str(error).split()))
        raise Unusable(f"cannot use {source}: {text}") from None
    except Exception:  # a malformed file may raise anything in the loader
        raise Unusable(f"{names} is not a kubeconfig") from None
    raise Unusable(f"no kubeconfig at {names}: give one with --kubeconfig or KUBECONFIG")


def from_pod(settings: Configuration, connections: int) -> Connection:
    kubeconfig_loader.load_incluster_config(settings)
    settings.proxy = environment_proxy(settings.host)
    files = contents_of(f"{SERVICE_ACCOUNT}/{name}" for name in ("namespace", "token", "ca.crt"))
    namespace = files.get(f"{SERVICE_ACCOUNT}/namespace", b"default").decode().strip()
    return Connection(new_client(settings, connections), namespace, None, files)


def from_kubeconfig(
    settings: Configuration, names: str, context: str | None, connections: int
) -> Connection:
    merged = KubeConfigMerger(names)
    if not context:  # the merger takes the last current-context of several files, kubectl the first
        contexts = [file.get("current-context") for file in merged.config_files.values()]
        context = next(filter(None, contexts), None)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        loader = KubeConfigLoader(
            merged.config, context, config_base_path=None, temp_file_path=folder
        )
        said = logging.handlers.BufferingHandler(100)  # if a plugin fails, the loader only logs it
        said.setLevel(logging.ERROR)
        logging.root.addHandler(said)
        try:
            loader.load_and_set(settings)
        finally:
            logging.root.removeHandler(said)
        here = merged.config["contexts"].get_with_name(context)["context"]
        name = here.safe_get("user")
        named = merged.config["users"].get_with_name(name, safe=not name)
        user = mapping(named.value.get("user")) if named else {}
        if any(key.startswith("as") for key in user):
            raise Unusable(f"cannot use {names}: impersonation (`as`) is not supported")
        if getattr(loader, "proxy", None):
            settings.no_proxy = None  # as in kubectl, proxy-url comes first
        else:
            settings.proxy = environment_proxy(settings.host)
        files = [*merged.paths, settings.ssl_ca_cert, settings.cert_file, settings.key_file]
        if "tokenFile" in user:
            files.append(os.path.join(os.path.dirname(named.path), user["tokenFile"]))
        lasting = [file for file in files if file and not file.startswith(folder)]
        expiry = getattr(loader, "expiry", None)
        complaint = " ".join(record.getMessage() for record in said.buffer)
        if "'NoneType'" in complaint:  # on a terminal, the loader does not read what a plugin says
            complaint = PLUGIN_FAILED
        return Connection(
            new_client(settings, connections),
            here.safe_get("namespace") or "default",
            context,
            contents_of(lasting),
            expiry.timestamp() if expiry else math.inf,
            without_secrets(complaint),
        )


def contents_of(files: Iterable[str]) -> dict[str, bytes]:
    """What is in these files; nothing for one that cannot be read."""
    contents = dict[str, bytes]()
    for file in files:
        with contextlib.suppress(OSError):
            contents[file] = Path(file).read_bytes()
    return contents


def environment_proxy(host: str) -> str | None:
    """The proxy of the environment. As in kubectl, it is not ALL_PROXY, and not for localhost."""
    url = urllib3.util.parse_url(host)
    if re.fullmatch(r"localhost|127\..*|\[::1\]", url.host or ""):
        return None
    proxy = urllib.request.getproxies_environment().get(url.scheme or "")
    return f"http://{proxy}" if proxy and "://" not in proxy else proxy


def new_client(settings: Configuration, connections: int) -> ApiClient:
    """The client for these settings. Raises OSError, and ImportError without PySocks."""
    settings.retries = False  # the next pass is the retry; urllib3's would multiply the timeout
    settings.connection_pool_maxsize = connections
    settings.refresh_api_key_hook = None  # Cluster.reconnect() does that once for all threads
    # The files of keys end with a newline.
    settings.api_key = {key: value.strip() for key, value in settings.api_key.items()}
    url = urllib3.util.parse_url(settings.host)
    if url.scheme not in ("http", "https") or not url.host:
        raise OSError(f"its server {settings.host} is not an http or https URL")
    urllib3.disable_warnings()  # insecure-skip-tls-verify was the user's choice
    tls = ssl.create_default_context(cafile=settings.ssl_ca_cert)
    # Certificates of older clusters fail this default of Python 3.13.
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    tls.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the authority may be an intermediate one
    if not settings.verify_ssl:
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    if settings.cert_file:
        try:  # without a password, OpenSSL would ask for one on the terminal
            tls.load_cert_chain(settings.cert_file, settings.key_file, password="")
        except ssl.SSLError:
            text = "its client certificate and key are encrypted, incomplete, or do not match"
            raise OSError(text) from None
    proxy = urllib3.util.parse_url(settings.proxy or "")
    if proxy.auth and proxy.scheme in ("http", "https"):
        auth = urllib.parse.unquote(proxy.auth)
        settings.proxy_headers = urllib3.util.make_headers(proxy_basic_auth=auth)
    api = ApiClient(settings)
    files = dict.fromkeys(("ca_certs", "cert_file", "key_file"))  # the context has read them
    api.rest_client.pool_manager.connection_pool_kw |= files | {"ssl_context": tls}
    # It would copy each body; without that, a create takes a tenth less CPU.
    api.sanitize_for_serialization = lambda obj: obj  # type: ignore[method-assign]
    api.user_agent = f"{MANAGER}/{__version__}"
    api.set_default_header("Accept-Encoding", "gzip")  # decrypting lists is much of a quiet pass
    return api


def without_secrets(text: str) -> str:
    """The text without passwords in URLs, and without the entries of a kubeconfig, which the client
    library quotes."""
    text = re.sub(r"/\{'.*\}", "", text)
    return re.sub("//[^/ ]*@", "//", text)


# --- The requests ---
REMOVES = "a webhook or policy removes or changes what the operator relies on"
EXEMPT = "exempt the pods of this Milvus from it"


class Cluster:
    """The requests to one API server. The methods raise ApiError."""

    def __init__(
        self,
        connect: Callable[[str | None], Connection],
        context: str | None = None,
        timeout: float = 30,
        dry_run: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.connect = connect
        self.timeout = timeout
        self.dry_run = dry_run
        self.clock = clock
        self.would = " (dry run)" if dry_run else ""
        self.pages: dict[tuple[str, str | None], dict[bytes, list[Obj]]] = {}  # of the last lists
        self.answered = clock()  # when a response last came
        self.changed = clock()  # when a list last showed something new
        self.rejected = False  # whether the server has rejected the credentials
        self.renewal: Future[Connection] | None = None
        self.use(connect(context))
        self.renewing = self.connection.files  # the files' contents when the last one began

    def use(self, connection: Connection) -> None:
        self.connection, api = connection, connection.api
        self.milvuses, self.pods = milvuses(api), pods(api)
        self.claims = by_gvr(api, "", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
        self.events = by_gvr(api, "events.k8s.io", "v1", "Event", "events")
        self.server = without_secrets(api.configuration.host)

    def reconnect(self) -> None:
        """Renew the credentials if they were rejected or have expired, or if a file has changed. A
        thread does that: an exec plugin may wait for a login. The old ones are used meanwhile."""
        current, files = self.connection, contents_of(self.connection.files)
        is_current = files == current.files and time.time() < current.expires and not self.rejected
        if is_current and not self.renewal:
            if files != self.renewing:  # what was wrong with a file has been put right
                self.connection = current._replace(complaint="")
            return
        if not self.renewal or files != self.renewing:  # nobody waits for an earlier file's plugin
            self.renewing = files
            self.renewal = ThreadPoolExecutor(1).submit(self.connect, current.context)
            concurrent.futures.wait([self.renewal], timeout=1)
        complaint = PLUGIN_RUNS
        if self.renewal.done():
            try:
                new = self.renewal.result()
                complaint = new.complaint
            except Unusable as error:  # a file is missing, or half written
                complaint = error.message
            self.renewal, self.rejected = None, False
        if complaint:
            self.connection = current._replace(complaint=complaint)
        else:
            self.use(new)

    def request(self, verb: str, resource: Resource, target: Obj, **arguments: Any) -> Any:
        """Send a request with the dynamic client, and count it. The target's metadata says the
        namespace and the name. Returns what `read` makes of the response: by default, a dict."""
        metadata, read = target["metadata"], arguments.pop("read", parse)
        namespace, name = metadata.get("namespace"), metadata.get("name")
        asked = "list" if verb == "get" and not name else verb
        if self.dry_run and verb in ("create", "patch"):
            arguments["dry_run"] = "All"
        code = "error"
        try:
            arguments |= {"namespace": namespace, "name": name}
            code, body = self.send(getattr(resource, verb), **arguments)
            return read(body)
        except ApiError as error:
            code = str(error.code or code)
            error.verb, error.resource = asked, resource.name
            error.outage = self.outage(error, namespace)
            raise
        finally:
            REQUESTS.labels(asked, resource.name, code).inc()

    def send(self, call: Callable[..., Any], **arguments: Any) -> tuple[str, bytes]:
        """Return the code and the body of the response."""
        try:
            response = call(serialize=False, _request_timeout=self.timeout, **arguments)
            return str(response.status), response.data
        except ApiException as error:
            raise api_error(error) from None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            text = without_secrets(str(error.args[-1] if error.args else type(error).__name__))
            raise ApiError(0, re.sub(r"^\S*Connection\w*\(.*?\): ", "", text)) from None
        except ValueError:  # its text may contain the credentials
            text = "the credentials contain characters that are not allowed in an HTTP header"
            raise ApiError(0, text) from None
        finally:
            self.answered = self.clock()

    def outage(self, error: ApiError, namespace: str | None) -> str:
        """The line to log if the cause affects more than one Milvus: what is wrong, what to do."""
        where, resource = place(namespace), error.resource
        denied = DENIED.match(str(error)) if error.code == 403 else None
        if error.code == 401 or (denied and denied["user"] == "system:anonymous"):
            self.rejected = True
            advice = self.connection.complaint or "log in again, or renew the token"
            return f"{self.server} rejects the credentials: {advice}"
        if denied and (denied["verb"] or denied["owner"]):
            needed = f"{denied['verb']} {denied['resource']}"
            if denied["owner"]:
                needed = f"update {PLURAL}/finalizers"
            advice = "add this permission to the operator's role (see deploy.yaml)"
            return f"not allowed to {needed} in {where}: {advice}"
        if error.verb != "list":
            return ""
        if error.code == 0:
            return f"requests to {self.server} fail: {error}"
        if error.code == 404 and resource == PLURAL:
            advice = "install the CRD with `kubectl apply -f crd.yaml`"
            return f"{self.server} does not serve {PLURAL}.{GROUP}: {advice}"
        return f"cannot list {resource} in {where}: HTTP {error.code}: {error}"

    def list_all(
        self, resource: Resource, namespace: str | None, slim: Callable[[Obj], Obj], **selector: Any
    ) -> list[Obj]:
        """All objects of a list. The first page is small, because an object may weigh a megabyte. A
        page that is the same as in the last list is not parsed again."""
        key = resource.name, namespace
        known = self.pages.get(key, {})
        pages = dict[bytes, list[Obj]]()
        limit = FIRST_PAGE

        def read(body: bytes) -> Obj:
            nonlocal limit
            start = ITEMS.search(body)
            if not start:
                raise ApiError(0, "the response is not a list: is this a Kubernetes API server?")
            begin, end = start.end() - 1, body.rfind(b"]") + 1
            digest = hashlib.blake2b(memoryview(body)[begin:end]).digest()
            objects = known.get(digest)
            if objects is None:
                objects = [slim(item) for item in parse(body[begin:end], list)]
            pages[digest] = objects
            size = 1 + (end - begin) // (1 + len(objects))  # of an object; a page may be empty
            limit = min(2 * limit, PAGE, 1 + PAGE_BYTES // size)
            return mapping(parse(body[:begin] + b"[]" + body[end:]).get("metadata"))

        target = {"metadata": {"namespace": namespace}}
        token = None
        while token != "":
            selector |= {"limit": limit, "_continue": token}
            metadata = self.request("get", resource, target, read=read, **selector)
            token = metadata.get("continue") or ""
        if pages.keys() != known.keys():
            self.changed = self.clock()
        self.pages[key] = pages
        return [item for objects in pages.values() for item in objects]

    def snapshot(self, namespace: str | None) -> tuple[list[Obj], list[Obj]]:
        """Pods that may be ours, and the Milvus resources: last, so that no spec is older than the
        pods."""
        label = f"{MANAGED_BY_LABEL}={MANAGER}"
        found = self.list_all(self.pods, namespace, slim_pod, label_selector=label)
        return found, self.list_all(self.milvuses, namespace, slim_milvus)

    def create_claim(self, claim: Obj) -> bool:
        """Make sure that a claim exists; returns whether it was created."""
        try:
            present = self.request("get", self.claims, claim)
        except ApiError as error:
            if error.code != 404:
                raise
            self.request("create", self.claims, claim, body=claim)
            return True
        if is_ending(present):
            name = name_of(claim)
            text = f"claim {name} is being deleted, and the pod must wait until it is gone"
            raise ApiError(409, text, CLAIM_TERMINATING)
        return False

    def create(self, pod: Obj, **options: Any) -> None:
        """Create a pod. The server rejects a misspelled field instead of dropping it: `Strict`."""
        options["query_params"] = [("fieldValidation", "Strict")]
        if lacking := lacks(pod, self.request("create", self.pods, pod, body=pod, **options)):
            text = f"{REMOVES}, {lacking} of new pods: {EXEMPT}"
            raise ApiError(422, f"{text}, and delete those that it has changed")

    def check(self, pod: Obj) -> None:
        """Ask by a dry run, under another name, whether the API server would accept such a pod.
        A taken name and an exceeded quota do not count: the old pod will make room."""
        metadata = pod["metadata"] | {"name": f"{name_of(pod)}-check"}
        try:
            self.create(pod | {"metadata": metadata}, dry_run="All")
        except ApiError as error:
            if error.reason != "AlreadyExists" and error.why().reason != QUOTA_EXCEEDED:
                error.is_check = True
                raise

    def delete(self, pod: Obj) -> None:
        """Delete a pod. One that was not Ready is deleted only if it has not changed since, because
        it may be Ready by now."""
        body: Obj = {"preconditions": {"uid": uid_of(pod)}}
        if not is_ready(pod):
            body["preconditions"]["resourceVersion"] = version_of(pod)
        if self.dry_run:  # in the body: if there is a body, the API server ignores ?dryRun=All
            body["dryRun"] = ["All"]
        self.request("delete", self.pods, pod, body=body)

    def adopt(self, milvus: Obj, pod: Obj) -> None:
        """Adopt an orphan, after one more look at the owner, as the ReplicaSet controller does:
        the garbage collector deletes the pods of an owner that is gone."""
        now = self.request("get", self.milvuses, milvus)
        if is_ending(now) or uid_of(now) != uid_of(milvus):
            raise ApiError(409, "the Milvus has changed", "Conflict")
        metadata = pick(pod["metadata"], ("uid", "resourceVersion"))
        metadata["ownerReferences"] = [owner_reference(milvus)]
        adopted = self.request("patch", self.pods, pod, body={"metadata": metadata})
        if owner_uid(adopted) != uid_of(milvus):
            text = f"{REMOVES}, the owner reference of pod {name_of(pod)}: {EXEMPT}"
            raise ApiError(422, text)

    def patch_status(self, milvus: Obj, status: Obj) -> None:
        """Write the status if the Milvus has not changed; a resourceVersion covers the UID, too."""
        body = {"metadata": {"resourceVersion": version_of(milvus)}, "status": status}
        self.request("patch", self.milvuses.status, milvus, body=body, content_type=MERGE_PATCH)

    def create_event(self, event: Obj) -> None:
        self.request("create", self.events, event, body=event)


def place(namespace: str | None) -> str:
    return f"namespace {namespace}" if namespace else "all namespaces"


# ---------- The loop: observe, act, observe ----------

BATCH = 20  # actions that one worker carries out for one Milvus; other workers take the rest
MAX_ACTING = 10  # seconds from the start of a pass, or an interval, in which it acts on its lists
MAX_NEWS = 10  # events of one Milvus that are kept while none can be written
GRACE = 0.25  # seconds for the writes in progress at the end of a pass
MAX_FAILURES = 8  # of one Milvus in one pass; the next pass goes on
MAX_CONFLICTS = 10  # of one write; then it backs off like any other that fails
MAX_REQUEST = 60  # seconds after which the API server drops a request, by default
PATIENCE = 15  # seconds of back-off after which no roll waits for a pod that is not Ready
MAX_PASSES = 1000  # of --once, if someone keeps changing the same objects
HEAD_START = 30  # seconds by which a Milvus that was settled comes before those that wait
STATUS, EVENTS = "status", "events"  # what may back off, besides pods

# The API server's reasons of errors that say that something has changed.
PASSING_ERRORS = {"Conflict", "NotFound", "AlreadyExists"}

# What a pass counts; the log shows those that are WRITTEN.
CLAIM_CREATED, STATUS_UPDATED, CONFLICT = "claim(s) created", "status update(s)", "conflict(s)"
WRITTEN = ("created", "deleted", "adopted", CLAIM_CREATED, STATUS_UPDATED)


@dataclass
class Memory:
    """What is kept about a Milvus between passes; in brackets: what happens if it is lost. A worker
    may change it while the loop reads it, so iterate over copies."""

    generation: int = 0  # that the back-offs belong to (they are forgotten)
    back_offs: dict[int | str, BackOff] = field(default_factory=dict)  # by ordinal (one more try)
    restart: BackOff = NEVER_FAILED  # of restarting pods (one more is restarted)
    ended: set[str] = field(default_factory=set)  # UIDs of pods to restart meanwhile (they wait)
    leaving: dict[str, float] = field(default_factory=dict)  # by UID, until when (one more goes)
    accepted: str = ""  # the template hash that the API server has accepted (it is asked again)
    settled: tuple[str, ...] = ()  # its versions when all was done (it is looked at again)
    wake: float = math.inf  # when it is looked at again in any case
    since: float = math.inf  # when its turn should have come (it waits in another order)
    unreported: float = math.inf  # since when pods have changed without a status (it is written)
    state: str = "progressing"  # one of STATES, for the metrics (it is computed again)
    told: Reason | None = None  # what was last said of Reconciled (it is logged again)
    news: dict[tuple[str, str, bool], list[str]] = field(default_factory=dict)  # events (none)

    def back_off(self, key: int | str, error: ApiError, now: float, what: str = "") -> BackOff:
        """Back off after an error: for longer than the last time."""
        if what and self.waits(key, now):  # since it began, another worker has failed alike
            return self.back_offs[key]
        first, most = (1, 30) if error.is_transient else (10, 300)
        back_off = self.back_offs.get(key, NEVER_FAILED).longer(first, most, now)
        why = error.why()
        back_off = back_off._replace(why=why, outage=error.outage, what=what, lost=error.is_lost)
        self.back_offs[key] = back_off
        return back_off

    def forget(
        self, todo: Mapping[int | str, str], later: Collection[int | str], now: float
    ) -> None:
        """Forget what need not be done any more. If it may have to be done later, keep how long it
        backs off but, once that time is over, not why."""
        kept = dict[int | str, BackOff]()
        for key, back_off in self.back_offs.items():
            if todo.get(key) == back_off.what or (key in later and now < back_off.until):
                kept[key] = back_off
            elif key in later:
                kept[key] = back_off._replace(why=Reason(PENDING), outage="")
        self.back_offs = kept

    def waits(self, key: int | str, now: float) -> bool:
        return now < self.back_offs.get(key, NEVER_FAILED).until


@dataclass
class Pass:
    """One pass over all Milvus resources."""

    started: float
    listed: float = 0  # when the lists had come
    deadline: float = 0  # after which no write begins
    lists: int = 0  # how many did not fail
    milvuses: int = 0
    pods: int = 0
    outages: list[str] = field(default_factory=list)
    written: Counter[str] = field(default_factory=Counter)
    left: int = 0  # Milvus resources that the next pass goes on with, or a worker still has
    unfinished: bool = False  # whether the next pass has something to go on with


NO_SPEC = Spec(0, None, "")


@dataclass
class Job:
    """One Milvus in one pass, as the lists show it, and what to do about it."""

    this: Pass
    milvus: Obj
    pods: list[Obj]
    versions: tuple[str, ...]
    memory: Memory
    suspect: bool  # whether a write had no valid response, and may hang again
    spec: Spec = NO_SPEC
    conflicts: dict[str, Reason] = field(default_factory=dict)  # names that pods of others have
    actions: list[Action] = field(default_factory=list)  # everything that should be done
    todo: list[Action] = field(default_factory=list)  # what may be done now
    failures: int = 0
    changed: bool = False  # whether the pods are no longer as the lists show them
    unfinished: bool = False  # whether something was left to the next pass


def attempt(task: Callable[..., Any], *arguments: Any) -> tuple[Any, ApiError | None]:
    """The task's result, or how it failed: nothing that an object contains may end the loop."""
    try:
        return task(*arguments), None
    except ApiError as error:
        return None, error
    except Exception as error:
        return None, unexpected(error)


class Operator:
    """Manages Milvus resources: `run()` forever, `run_once()`, or a single `run_pass()`."""

    def __init__(
        self, cluster: Cluster, namespaces: Iterable[str | None], interval: float, workers: int
    ) -> None:
        self.cluster = cluster
        self.clock = cluster.clock
        self.interval = interval
        self.acting, self.batch, self.failures = min(interval, MAX_ACTING), BATCH, MAX_FAILURES
        if cluster.dry_run:  # no later pass could tell what is left
            self.acting, self.batch, self.failures = math.inf, 1 << 30, 1 << 30
        self.namespaces = list(namespaces)
        # What has failed may hang the next time: it gets a quarter of the workers at most.
        self.workers = ThreadPoolExecutor(workers)
        quarter = max(1, workers // 4)
        self.second_tries = ThreadPoolExecutor(quarter) if workers > 1 else self.workers
        self.slots = threading.Semaphore(workers)  # for the workers of both kinds
        self.listers = ThreadPoolExecutor(8)
        self.tasks: dict[Future[None], Job] = {}  # of the workers
        self.outcomes: deque[str] = deque()  # what workers have written since the last report
        self.memories: dict[str | None, dict[str, Memory]] = {}  # by namespace, as listed, and UID
        self.unlisted = NEVER_FAILED  # while no list succeeds
        self.outages: dict[str, str] = {}  # that have been logged and have not ended
        self.progressed = self.good = self.clock()  # when the loop moved; when a good pass ended
        self.stopping = False
        SINCE_GOOD_PASS.set_function(lambda: self.clock() - self.good)

    def is_alive(self) -> bool:
        """Whether the loop makes progress: even if the server is down, as requests time out."""
        idle = self.clock() - max(self.progressed, self.cluster.answered)
        return idle < max(self.interval, 30) + self.cluster.timeout + 10

    def is_ready(self) -> bool:
        """Whether every namespace has been listed at least once."""
        return self.memories.keys() >= {*self.namespaces}

    def run(self) -> None:
        """Make passes until `stopping`."""
        while not self.stopping:
            this = self.run_pass()
            gc.collect()
            due = this.started + self.next_pass(this)
            time.sleep(max(0, due - self.clock()))

    def run_once(self) -> bool:
        """Make passes until one changes nothing; returns whether all went well."""
        for _ in range(MAX_PASSES):
            this = self.run_pass()
            is_done = this.written.total() == this.written[STATUS_UPDATED] and not this.left
            if is_done or self.stopping or self.cluster.dry_run:
                break
            for memory in self.all_memories():  # what has failed is not retried
                for key, back_off in list(memory.back_offs.items()):
                    if back_off.delay:
                        memory.back_offs[key] = back_off._replace(until=math.inf)
        failed = any(memory.state == "failed" for memory in self.all_memories())
        return this.lists == len(self.namespaces) and not this.left and not failed

    def next_pass(self, this: Pass) -> float:
        """How many seconds after its start the next pass starts: soon after a change, so that a
        rolling update waits for pods and not for passes, and later when nothing changes."""
        if self.unlisted.delay:
            return self.unlisted.delay * random.uniform(0.5, 1)
        quiet = 0 if this.unfinished else self.clock() - self.cluster.changed
        listing = this.listed - this.started
        return min(self.interval, max(0.5, 5 * listing, quiet / 2))

    def run_pass(self) -> Pass:
        """Observe everything, and act where something is left to do."""
        this = Pass(self.clock())
        _, error = attempt(self.observe_and_act, this)
        if error:  # no thread or no memory was left: the next pass may have it
            this.outages += [*self.outages.values(), f"a pass failed: {error}"]
            this.lists = 0  # so that --once fails
        self.report(this)
        return this

    def observe_and_act(self, this: Pass) -> None:
        self.cluster.reconnect()
        busy = self.withdraw()  # before the lists, because what still runs changes what they show
        jobs = self.observe(this, busy)
        jobs.sort(key=lambda job: job.memory.since)
        for job in jobs:
            self.submit(job)
        self.wait_for_workers(this)
        left = {uid_of(job.milvus) for job in jobs if job.unfinished}
        this.unfinished = bool(left or self.trusted(this))
        left |= busy  # also what has ended since: the next pass sees what came of it
        left |= {uid_of(job.milvus) for job in self.pending().values()}
        this.left = len(left)

    def pending(self) -> dict[Future[None], Job]:
        """The tasks that have not ended."""
        return {task: job for task, job in self.tasks.copy().items() if not task.done()}

    def trusted(self, this: Pass) -> list[Future[None]]:
        """Those of this pass whose Milvus did not hang before."""
        pending = self.pending().items()
        return [task for task, job in pending if job.this is this and not job.suspect]

    def withdraw(self) -> set[str]:
        """Take back what no worker has begun. Returns the UIDs of what workers still have."""
        for task in list(self.tasks):
            if task.cancel() or task.done():
                del self.tasks[task]
        return {uid_of(job.milvus) for job in self.pending().values()}

    def wait_for_workers(self, this: Pass) -> None:
        """Wait until all is done, or until the deadline; for what hung before, until the next pass
        is due."""
        while not self.stopping:
            pending, trusted = self.pending(), self.trusted(this)
            until = this.started + self.next_pass(this)
            if trusted:
                until = this.deadline + GRACE
            self.progressed = self.clock()
            if not pending or self.progressed >= until:
                return
            timeout = min(5, until - self.progressed)
            if concurrent.futures.wait(trusted or pending, timeout).not_done:
                gc.collect()

    # --- Observe ---
    def observe(self, this: Pass, busy: set[str]) -> list[Job]:
        """List all namespaces, side by side. Returns a job for each Milvus that needs one."""
        snapshot = functools.partial(attempt, self.cluster.snapshot)
        lists = list(self.listers.map(snapshot, self.namespaces))
        self.progressed = this.listed = self.clock()
        # However slow the lists are, half of the time is for writes.
        this.deadline = max(this.started + self.acting, 2 * this.listed - this.started)
        jobs = list[Job]()
        for namespace, (found, error) in zip(self.namespaces, lists, strict=True):
            if error:
                this.outages.append(error.outage)
                continue
            pods, milvuses = found
            this.lists += 1
            this.pods += len(pods)
            this.milvuses += len(milvuses)
            known = self.memories.get(namespace, {})
            memories = {uid: known.get(uid) or Memory() for uid in map(uid_of, milvuses)}
            self.memories[namespace] = memories
            groups = group(pods)
            for milvus in milvuses:
                uid = uid_of(milvus)
                memory, mine = memories[uid], groups[namespace_of(milvus), name_of(milvus)]
                versions = tuple(map(version_of, (milvus, *mine)))
                is_settled = memory.settled == versions and this.listed < memory.wake
                if is_ending(milvus):
                    memory.state, memory.back_offs = "progressing", {}
                elif not is_settled and uid not in busy:
                    head_start = HEAD_START if memory.settled else 0
                    memory.since = min(memory.since, this.listed - head_start)
                    suspect = any(back_off.lost for back_off in memory.back_offs.values())
                    jobs.append(Job(this, milvus, mine, versions, memory, suspect))
        self.unlisted = NEVER_FAILED if this.lists else self.unlisted.longer(1, 30, this.listed)
        return jobs

    def plan(self, job: Job) -> None:
        """Read the spec, and find out what to do now."""
        memory, milvus, now = job.memory, job.milvus, job.this.listed
        if generation_of(milvus) != memory.generation:
            memory.generation = generation_of(milvus)
            before = memory.back_offs  # all is tried at once; until then, an outage has not ended
            memory.back_offs = {
                key: BackOff(outage=before[key].outage) for key in (STATUS, EVENTS) if key in before
            }
        if now >= memory.restart.until - memory.restart.delay + 600:
            memory.restart = NEVER_FAILED
        try:
            spec = job.spec = spec_of(milvus)
        except Invalid as error:
            job.spec = NO_SPEC._replace(invalid=str(error))
            return
        for pod in job.pods:
            if why := conflict_with(milvus, spec, pod):
                job.conflicts[name_of(pod)] = why
        mine = members(milvus, job.pods)
        job.actions = decide(milvus, spec, job.pods, self.stuck(job))
        todo: dict[int | str, str] = {STATUS: "", EVENTS: ""}
        todo |= {action.ordinal: DONE[action.verb] for action in job.actions}
        # A roll may come back to them.
        later = {i for i, pod in mine.items() if template_hash_of(pod) != spec.template_hash}
        memory.forget(todo, later, now)
        uids = {uid_of(pod) for pod in job.pods if not is_ending(pod)}
        leaving = memory.leaving.items()
        memory.leaving = {uid: until for uid, until in leaving if uid in uids and now < until}
        if now >= memory.restart.until:
            restarts = [action for action in job.actions if action.verb == "restart"]
            memory.ended = {uid_of(action.pod) for action in restarts}
        job.todo = choose(job.actions, memory.back_offs, memory.leaving, memory.ended, now)
        for start in range(self.batch, len(job.todo), self.batch):
            self.submit(job, start)

    def stuck(self, job: Job) -> set[str]:
        """The names of pods for which a roll does not wait: others hold them, or the API server has
        rejected for a while what is to be done about them."""
        mine = members(job.milvus, job.pods).values()
        stuck = job.conflicts.keys() - {*map(name_of, mine)}
        present = {name_of(pod) for pod in job.pods if not is_ending(pod)}
        for key, back_off in job.memory.back_offs.items():
            name = f"{name_of(job.milvus)}-{key}"
            is_hidden = back_off.why.reason == NAME_CONFLICT  # with a pod that is not in the lists
            is_rejected = back_off.what != DONE["create"] and back_off.delay >= PATIENCE
            if is_hidden or (name in present and is_rejected):
                stuck.add(name)
        return stuck

    # --- Act ---
    def submit(self, job: Job, start: int = 0) -> None:
        """Give a job to a worker, from this action on."""
        pool = self.second_tries if job.suspect else self.workers
        self.tasks[pool.submit(self.work, job, start)] = job

    def work(self, job: Job, start: int) -> None:
        """A worker's task: decide, carry out a batch of actions and, if there is none, report."""
        with self.slots:
            _, error = attempt(self.act_and_report, job, start)
        if error:
            job.memory.state = "failed"
            job.memory.back_off(STATUS, error, self.clock())
        if job.failures or not self.is_over(job):
            job.memory.since = math.inf

    def act_and_report(self, job: Job, start: int) -> None:
        memory = job.memory
        if start == 0 and not self.is_over(job):
            self.plan(job)
        is_overdue = start == 0 and self.clock() >= memory.unreported + self.acting
        if is_overdue and not self.is_over(job):  # its pods change in each pass
            self.write_status(job)
        for action in job.todo[start : start + self.batch]:
            if self.is_over(job) or job.failures >= self.failures:
                break
            # Another one's failure may count for it.
            if not memory.waits(action.ordinal, self.clock()):
                self.act(job, action)
        # The next pass sees what came of it, or has the time for it.
        is_later = job.changed or len(job.todo) > self.batch or self.is_over(job)
        if is_later:
            memory.unreported = min(memory.unreported, self.clock())
        elif not is_overdue:
            self.tell_all(job)
        is_cut = self.is_over(job) or job.failures >= self.failures or is_overdue
        if is_cut or (is_later and not job.changed) or self.may_go_on(job):
            job.unfinished = True
        elif not job.changed:
            self.settle(job)

    def may_go_on(self, job: Job) -> bool:
        """Whether what failed makes way for something else, such as another step of the roll."""
        if not job.failures or self.cluster.dry_run:
            return False
        memory = job.memory
        return bool(choose(job.actions, memory.back_offs, memory.leaving, (), self.clock()))

    def tell_all(self, job: Job) -> None:
        """Write the status and the events of a Milvus."""
        if not self.is_over(job):
            self.write_status(job)
            self.write_events(job)

    def is_over(self, job: Job) -> bool:
        """Whether no write may begin."""
        return self.stopping or self.clock() >= job.this.deadline

    def settle(self, job: Job) -> None:
        """Leave a Milvus alone until something about it changes, or a back-off ends."""
        memory = job.memory
        back_offs = [*dict(memory.back_offs).values(), memory.restart]
        times = [back_off.until for back_off in back_offs] + [*memory.leaving.values()]
        memory.wake = min((time for time in times if time > job.this.listed), default=math.inf)
        memory.settled = job.versions

    def act(self, job: Job, action: Action) -> None:
        """Carry out one action, and record what came of it."""
        memory = job.memory
        memory.settled = ()
        _, error = attempt(self.carry_out, job, action)
        if not error:
            memory.back_offs.pop(action.ordinal, None)
            job.changed = job.changed or not self.cluster.dry_run
            self.record_success(job, action)
        elif not self.is_conflict(job, action.ordinal, error, DONE[action.verb]):
            self.record_failure(job, action, error)

    def is_conflict(self, job: Job, key: int | str, error: ApiError, what: str = "") -> bool:
        """Whether something has changed, so that the next pass decides anew. After several, it is a
        failure like any other."""
        before = job.memory.back_offs.get(key, NEVER_FAILED)
        if error.reason not in PASSING_ERRORS or before.conflicts >= MAX_CONFLICTS:
            return False
        again = before._replace(what=what, conflicts=before.conflicts + 1)
        job.memory.back_offs[key] = again
        job.changed = True
        self.outcomes.append(CONFLICT)
        return True

    def carry_out(self, job: Job, action: Action) -> None:
        cluster, memory, spec = self.cluster, job.memory, job.spec
        if action.verb == "create":
            self.create(job, action.ordinal)
            memory.accepted = spec.template_hash
        elif action.verb == "adopt":
            cluster.adopt(job.milvus, action.pod)
        else:
            if action.verb == "replace" and memory.accepted != spec.template_hash:
                cluster.check(new_pod(job.milvus, spec, action.ordinal))
                memory.accepted = spec.template_hash
            cluster.delete(action.pod)

    def create(self, job: Job, ordinal: int) -> None:
        """Create a pod, after its claim: no claim, no pod."""
        cluster, milvus = self.cluster, job.milvus
        if milvus["spec"].get("storage"):
            claim = new_claim(milvus, ordinal)
            if cluster.create_claim(claim):
                self.outcomes.append(CLAIM_CREATED)
                tell(logging.INFO, milvus, f"created claim {full_name(claim)}{cluster.would}")
        pod = new_pod(milvus, job.spec, ordinal)
        _, error = attempt(cluster.create, pod)
        if error and error.reason == "AlreadyExists":
            self.name_is_taken(job, cluster.request("get", cluster.pods, pod), ordinal)
        if error:
            raise error

    def name_is_taken(self, job: Job, pod: Obj, ordinal: int) -> None:
        """Raise the error for a pod of this name that the lists do not show."""
        before = job.memory.back_offs.get(ordinal, NEVER_FAILED).why
        is_ours = owner_uid(pod) == uid_of(job.milvus) or template_hash_of(pod)
        if is_ending(pod):
            raise ApiError(409, f"pod {name_of(pod)} is being deleted", PENDING)
        if before.reason == INVALID and is_ours:
            raise ApiError(422, before.message)  # it still lacks what admission has removed
        if conflict := conflict_with(job.milvus, job.spec, pod):
            raise ApiError(403, conflict.message, NAME_CONFLICT)
        raise ApiError(409, "a pod of this name existed a moment ago", "Conflict")

    def record_success(self, job: Job, action: Action) -> None:
        memory, name = job.memory, pod_name(job.milvus, action.ordinal)
        is_first = job.this.listed >= memory.restart.until
        if action.verb == "restart" and is_first and not self.cluster.dry_run:
            memory.restart = memory.restart.longer(10, 300, self.clock())
        self.outcomes.append(DONE[action.verb])
        memory.news.setdefault((action.verb, action.reason, False), []).append(name)
        text = sentence(action.verb, [f"{namespace_of(job.milvus)}/{name}"], action.reason)
        tell(logging.INFO, job.milvus, f"{text}{self.cluster.would}", pod=name)

    def record_failure(self, job: Job, action: Action, error: ApiError) -> None:
        """Back off: for this pod, or for all whose action would be rejected alike."""
        memory = job.memory
        back_off = memory.back_off(action.ordinal, error, self.clock(), DONE[action.verb])
        job.failures += 1
        is_delete = back_off.what == DONE["delete"] and not error.is_check
        if is_delete and error.is_lost and is_ready(action.pod):
            memory.leaving[uid_of(action.pod)] = self.clock() + MAX_REQUEST
        memory.accepted = ""
        is_quota = back_off.why.reason == QUOTA_EXCEEDED
        is_write = error.resource == "pods" and error.verb != "get"
        if error.is_check or (is_write and (error.outage or is_quota)):
            for other in job.actions:
                if other.verb == action.verb:
                    memory.back_offs[other.ordinal] = back_off

    # --- Report ---
    def write_status(self, job: Job) -> None:
        """Write the status if it has changed."""
        memory, milvus, problems = job.memory, job.milvus, dict(job.conflicts)
        for key, back_off in dict(memory.back_offs).items():
            if isinstance(key, int) and back_off.why.message:
                problems[pod_name(milvus, key)] = back_off.why
        status = status_of(milvus, job.spec, job.pods, problems, timestamp())
        ready, reconciled = status["conditions"][:2]
        memory.state = "ready" if ready["status"] == "True" else "progressing"
        memory.unreported = math.inf
        present = mapping(milvus.get("status"))
        if all(present.get(key) == value for key, value in status.items()):
            memory.back_offs.pop(STATUS, None)
            self.tell_condition(job, reconciled)
        elif not memory.waits(STATUS, self.clock()):
            _, error = attempt(self.cluster.patch_status, milvus, status)
            self.record_status(job, error, reconciled)
        unwritten = memory.back_offs.get(STATUS, NEVER_FAILED).delay and "status" in milvus
        if reconciled["status"] == "False" or unwritten:
            memory.state = "failed"

    def record_status(self, job: Job, error: ApiError | None, reconciled: Obj) -> None:
        """Record what came of writing the status."""
        memory, milvus = job.memory, job.milvus
        if not error:
            memory.back_offs.pop(STATUS, None)
            self.outcomes.append(STATUS_UPDATED)
            self.tell_condition(job, reconciled)
        elif "status" not in milvus or not self.is_conflict(job, STATUS, error):
            before = memory.back_offs.get(STATUS, NEVER_FAILED).why
            is_new = before.reason != error.why().reason
            if error.code == 404:  # the Milvus is there: it was listed again
                advice = "update it with `kubectl apply -f crd.yaml`"
                error.outage = f"the CRD has no status subresource: {advice}"
            elif is_new and not error.outage and error.reason not in PASSING_ERRORS:
                text = f"cannot write the status of milvus {full_name(milvus)}: {error}"
                tell(logging.WARNING, milvus, text)
            memory.back_off(STATUS, error, self.clock())
            if not error.is_transient:  # else it is told when it has been written
                self.tell_condition(job, reconciled)

    def tell_condition(self, job: Job, reconciled: Obj) -> None:
        """Log a Reconciled condition that is new, and make it an event. A failure that an earlier
        operator has written is logged once more."""
        memory, listed = job.memory, condition_of(job.milvus, "Reconciled")
        reason: str = reconciled["reason"]
        message: str = reconciled["message"]
        is_warning = reconciled["status"] == "False"
        written = Reason(listed.get("reason", RECONCILED), listed.get("message", message))
        told, memory.told = memory.told, Reason(reason, message)
        before = told or written
        if before == memory.told and (told or not is_warning):
            return
        text = f"{reason}: {message}"
        if reason == RECONCILED:
            text = message = f"resolved: {before.reason}"
        level = logging.WARNING if is_warning else logging.INFO
        tell(level, job.milvus, f"milvus {full_name(job.milvus)}: {text}")
        if written != memory.told:
            memory.news[reason, message, is_warning] = []

    def write_events(self, job: Job) -> None:
        """Write what is new as events, on which nothing depends."""
        memory, milvus = job.memory, job.milvus
        for key in list(memory.news)[:-MAX_NEWS]:
            del memory.news[key]
        for key in list(memory.news):
            if self.is_over(job) or memory.waits(EVENTS, self.clock()):
                return
            reason, note, is_warning = key
            if names := memory.news[key]:
                reason, note = DONE[reason].capitalize(), sentence(reason, names, note)
            event = new_event(milvus, reason, note, is_warning, timestamp("microseconds"))
            _, error = attempt(self.cluster.create_event, event)
            if error and (error.outage or error.is_transient):
                memory.back_off(EVENTS, error, self.clock())
                return
            memory.back_offs.pop(EVENTS, None)
            del memory.news[key]

    def report(self, this: Pass) -> None:
        """Report a pass in the log and in the metrics."""
        while self.outcomes:
            this.written[self.outcomes.popleft()] += 1
        states = Counter[str]()
        for memory in self.all_memories():
            states[memory.state] += 1
            this.outages += (some.outage for some in list(memory.back_offs.values()) if some.outage)
        self.report_outages(this.outages)
        now, would = self.clock(), self.cluster.would
        counts = [f"{this.written[what]} {what}" for what in WRITTEN if this.written[what]]
        level = logging.INFO if counts else logging.DEBUG
        done = ", ".join(counts or ["nothing written"])
        left = f", {this.left} Milvus resource(s) left for the next pass" if this.left else ""
        total = f"{this.milvuses} Milvus resource(s) and {this.pods} pod(s){would}"
        log.log(level, "pass over %s: %s%s, %.2f s", total, done, left, now - this.started)
        if not this.outages:
            self.good = now
        PASSES.labels("failure" if this.outages else "success").inc()
        PASS_SECONDS.observe(now - this.started)
        for state in STATES:
            MILVUSES.labels(state).set(states[state])

    def report_outages(self, lines: list[str]) -> None:
        """Log what has begun and what has ended. Lines that agree up to the first ": " are one
        outage."""
        outages = {line.partition(": ")[0]: line for line in lines}
        for key, line in outages.items():
            if key not in self.outages:
                log.error(line)
        for key in self.outages:
            if key not in outages:
                log.info("resolved: %s", key)
        self.outages = outages

    def all_memories(self) -> list[Memory]:
        return [memory for some in list(self.memories.values()) for memory in list(some.values())]

    def finish(self) -> None:
        """Begin no new write, and give those in progress four seconds."""
        self.stopping = True
        concurrent.futures.wait(list(self.tasks), timeout=4)


def sentence(verb: str, names: list[str], reason: str) -> str:
    """What has been done to these pods, for the log and for an event."""
    is_one = len(names) == 1
    text = f"{DONE[verb]} {'pod' if is_one else 'pods'} {', '.join(names[:10])}"
    if len(names) > 10:
        text += f" and {len(names) - 10} more"
    if verb in ("restart", "replace"):
        text += f" in order to replace {'it' if is_one else 'them'}"
    return f"{text}: {reason}" if reason else text


def timestamp(precision: str = "seconds") -> str:
    """The time as Kubernetes writes it: RFC 3339, in UTC."""
    return datetime.now(UTC).replace(tzinfo=None).isoformat(timespec=precision) + "Z"


def tell(level: int, milvus: Obj, text: str, **fields: str) -> None:
    """Log a line about a Milvus, with fields for JSON logs."""
    fields |= {"namespace": namespace_of(milvus), "milvus": name_of(milvus)}
    log.log(level, "%s", text, extra={"fields": fields})


# ---------- Health and metrics over HTTP ----------

MAX_CLIENTS = 50


class Health(metrics.MetricsHandler):
    """`/healthz`: the loop makes progress. `/readyz`: all was listed. `/metrics`: Prometheus."""

    operator: Operator
    timeout = 5  # seconds for a client to send its request

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            super().do_GET()
            return
        checks = {
            "/healthz": (self.operator.is_alive, "the loop has made no progress for too long"),
            "/readyz": (self.operator.is_ready, "not every namespace has been listed yet"),
        }
        code, text = 404, "see /healthz, /readyz, /metrics"
        if path in checks:
            check, otherwise = checks[path]
            code, text = (200, "ok") if check() else (503, otherwise)
        self.send_response(code)
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        self.wfile.write(f"{text}\n".encode())


class HealthServer(socketserver.ThreadingTCPServer):
    """A thread for each client. If there are too many, the oldest is dropped: it may be idle."""

    allow_reuse_address = daemon_threads = True
    request_queue_size = 128
    clients: ClassVar[deque[socket.socket]] = deque()

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except OSError:
            time.sleep(0.1)  # without file handles, it would be asked again immediately
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        self.clients.append(request)
        if len(self.clients) > MAX_CLIENTS:
            with contextlib.suppress(OSError):  # it has been closed
                self.clients.popleft().shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that disconnects is not worth a log line."""


def serve_health(operator: Operator, port: int) -> None:
    """Serve Health until the process ends: in a pod on all addresses, else on localhost."""
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ
    if in_pod and socket.has_dualstack_ipv6():
        HealthServer.address_family = socket.AF_INET6
    address = ("" if in_pod else "127.0.0.1", port)
    try:
        server = HealthServer(address, type("Bound", (Health,), {"operator": operator}))
    except OSError as error:
        text = f"cannot listen on port {port}: {error.strerror}"
        raise Unusable(f"{text}; choose another with --health-port") from None
    threading.Thread(target=server.serve_forever, daemon=True).start()


# ---------- The command ----------


def seconds(context: click.Context, option: click.Parameter, value: float) -> float:
    """A number of seconds: greater than 0, and no longer than a clock can wait."""
    if not 0 < value < math.inf:
        raise click.BadParameter("must be a number of seconds greater than 0")
    return min(value, 1e8)


def namespace_names(
    context: click.Context, option: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...]:
    names = [
        name for text in value for name in text.strip(",").split(",")
    ]  # OLM joins them by commas
    for name in names:
        if len(name) > 63 or not DNS_LABEL.fullmatch(name):
            raise click.BadParameter(f"{name!r} is not a valid namespace name")
    return tuple(dict.fromkeys(names))


def end_on_signal(operator: Operator) -> None:
    """On SIGTERM or SIGINT, writes in progress get four seconds; a second signal ends the process
    immediately. A thread does the waiting: a handler may run anywhere in the main thread."""
    signals: SimpleQueue[int] = SimpleQueue()  # its put() is reentrant
    received = list[int]()

    def end() -> None:
        signals.get()
        operator.finish()
        with contextlib.suppress(RuntimeError):  # no thread can be started
            threading.Timer(0.5, os._exit, [0]).start()  # nobody may be reading the log
        log.info("stopped")
        os._exit(0)  # a request that hangs must not delay the exit

    def receive(signum: int, _: Any) -> None:
        if received:
            os._exit(128 + signum)
        received.append(signum)
        signals.put(signum)

    threading.Thread(target=end, daemon=True).start()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, receive)


def text_line(record: logging.LogRecord) -> str:
    """One line; without control characters, which may be escape sequences of terminals."""
    message = re.sub(r"[\s\x00-\x1f\x7f-\x9f]+", " ", record.getMessage())
    return f"{timestamp()} {record.levelname:7} {message}"


def json_line(record: logging.LogRecord) -> str:
    fields = {"timestamp": timestamp("milliseconds"), "level": record.levelname}
    fields["message"] = record.getMessage()
    return json.dumps(fields | getattr(record, "fields", {}))


def start_log(verbose: bool, log_format: str) -> None:
    """Log lines of text for people, or of JSON for collectors; times are in UTC."""
    handler = logging.StreamHandler()
    handler.format = json_line if log_format == "json" else text_line  # type: ignore[method-assign]
    log.addHandler(handler)
    log.setLevel(logging.DEBUG if verbose else logging.INFO)
    log.propagate = False
    logging.getLogger("urllib3").setLevel(logging.ERROR)


@click.command(
    context_settings={
        "help_option_names": ["-h", "--help"],
        "auto_envvar_prefix": "MILVUS_OPERATOR",
        "max_content_width": 100,
        "show_default": True,
    }
)
@click.option(
    "-n",
    "--namespace",
    "namespaces",
    metavar="NS",
    multiple=True,
    callback=namespace_names,
    envvar="MILVUS_OPERATOR_NAMESPACE",
    help="Namespace to manage; can be repeated. Default: the namespace of the kubeconfig's context "
    "or, in a pod, the pod's own.",
)
@click.option("-A", "--all-namespaces", is_flag=True, help="Manage all namespaces.")
@click.option(
    "--interval",
    metavar="SECONDS",
    type=float,
    default=5,
    callback=seconds,
    help="Seconds between the starts of two passes while nothing changes; after a change, the next "
    "pass comes sooner.",
)
@click.option(
    "--once",
    is_flag=True,
    help="Do everything that can be done now, then exit with code 0, or 1 if a list failed or the "
    "operator could not do what a Milvus asks for. Does not wait until pods are Ready, and does "
    "not finish a rolling update.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Log what would be done; write nothing. Needs the same permissions.",
)
@click.option(
    "--kubeconfig", metavar="PATH", help="The kubeconfig file. Default: as kubectl finds it."
)
@click.option("--context", metavar="NAME", help="The kubeconfig context. Default: the current one.")
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=float,
    default=30,
    callback=seconds,
    help="Timeout for connecting to the API server, and for each read of a response.",
)
@click.option(
    "--workers",
    metavar="N",
    type=click.IntRange(1, 256),
    default=16,
    help="Maximum number of concurrent writes.",
)
@click.option(
    "--health-port",
    metavar="PORT",
    type=click.IntRange(1, 65535),
    help="Serve /healthz, /readyz and /metrics on this port.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    help="Format of the log.",
)
@click.option("-v", "--verbose", is_flag=True, help="Also log passes in which nothing was written.")
@click.version_option(__version__, message=f"{MANAGER} %(version)s", allow_from_autoenv=False)
def main(
    namespaces: tuple[str, ...], all_namespaces: bool, interval: float, once: bool, **options: Any
) -> None:
    """Keep the pods of every Milvus resource running.

    It works in passes: a pass lists the resources and their pods, decides what to change, and
    changes it.

    Every option can also be set with an environment variable MILVUS_OPERATOR_<OPTION>, for example
    MILVUS_OPERATOR_INTERVAL=10.
    """
    if namespaces and all_namespaces:
        text = "-A/--all-namespaces cannot be combined with -n/--namespace"
        raise click.UsageError(f"{text} or MILVUS_OPERATOR_NAMESPACE")
    start_log(options["verbose"], options["log_format"])
    workers = options["workers"]
    threading.stack_size(16 << 20)  # with musl's 1 MiB, deep JSON would crash the parser
    gc.disable()  # it takes half of a pass; Operator.run() collects between passes instead
    gc.freeze()  # leave the imports out of every collection
    reconnect = functools.partial(connect, options["kubeconfig"], 2 * workers)
    cluster = Cluster(reconnect, options["context"], options["timeout"], options["dry_run"])
    everywhere = all_namespaces or "MILVUS_OPERATOR_NAMESPACE" in os.environ  # OLM: empty for all
    managed = namespaces or [None if everywhere else cluster.connection.namespace]
    operator = Operator(cluster, managed, interval, workers)
    often = "once" if once else f"a pass every {interval:g} s"
    where = ", ".join(map(place, managed))
    what = f"{where}, {often}, server {cluster.server}{cluster.would}"
    try:
        end_on_signal(operator)
        log.info("%s %s: %s", MANAGER, __version__, what)
        if options["health_port"]:
            serve_health(operator, options["health_port"])
    except RuntimeError as error:
        raise Unusable(f"cannot start a thread: {error}") from None
    if once:
        code = 0 if operator.run_once() else 1
        if not operator.stopping:
            os._exit(code)  # an exec plugin that waits must not delay the exit
    else:
        operator.run()
    threading.Event().wait()  # until the thread that got the signal has ended the process


if __name__ == "__main__":
    main()
