#!/usr/bin/env python3
"""Keeps the pods of every Milvus resource running: a Kubernetes operator in one file.

It polls. A *pass* lists the pods, then their claims, then the Milvus resources. Each Milvus that
has changed, or has something left to do, gets a *visit* from a worker thread. A visit decides what
to do (pure functions over plain dicts), carries it out, and says what was done; if there was
nothing to do, it writes the status. The next pass sees the effect of its writes.

What is kept between passes saves work and spaces out retries. Names are fixed, every delete carries
a UID, and every decision starts from fresh lists, so a write that is lost or repeated does no harm.

In the names below, a *milvus* is a resource of kind Milvus, and a *claim* a PersistentVolumeClaim,
both as dicts. Start reading at `decide`, then `Operator.run_pass` and `Visit.serve`.
"""

from __future__ import annotations

import os
import signal

# Importing takes a while, and process 1 of a container must not ignore signals meanwhile.
if __name__ == "__main__":
    for _signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(_signum, lambda *_: os._exit(0))

import gc
import hashlib
import json
import logging
import random
import re
import socket
import ssl
import tempfile
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import ThreadingHTTPServer
from math import inf
from typing import Any, NamedTuple

import click
import prometheus_client as metrics
import urllib3
import yaml
from kubernetes.client import ApiClient, ApiException, Configuration
from kubernetes.config import ConfigException, load_incluster_config
from kubernetes.config.kube_config import KubeConfigLoader, KubeConfigMerger
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.resource import Resource
from kubernetes.utils import parse_quantity

__version__ = "0.1.0"

Obj = dict[str, Any]  # a Kubernetes object or a part of one, as in its JSON
Objs = dict[int, Obj]  # pods or claims of a Milvus, by ordinal

# ---------- Constants ----------

GROUP = "zilliz.com"
VERSION = "v1"
KIND = "Milvus"
PLURAL = "milvuses"
API_VERSION = f"{GROUP}/{VERSION}"
MANAGER = "milvus-polling-operator"
IN_POD = "KUBERNETES_SERVICE_HOST"  # an environment variable that every container has
NAMESPACE_FILE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"  # in every container

NAME_LABEL = "app.kubernetes.io/name"
INSTANCE_LABEL = "app.kubernetes.io/instance"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
POD_INDEX_LABEL = "apps.kubernetes.io/pod-index"
CLAIM_LABEL = f"{GROUP}/milvus"
SELECTING = (NAME_LABEL, INSTANCE_LABEL, MANAGED_BY_LABEL)  # the labels of a Milvus's selector
TEMPLATE_HASH = f"{GROUP}/template-hash"  # annotation: the fingerprint of the user's own fields

MAX_SPEC = 128 << 10  # bytes of a spec as JSON
MAX_DEPTH = 100  # levels of nesting that are kept of a response that is too deep for Python
PAGE = 80  # objects in a page of a list, at most
PAGE_BYTES = 4 << 20  # a heavier page of several objects is asked for again, smaller

# Reasons of the Reconciled condition.
RECONCILED = "Reconciled"
SPEC_IS_TEXT = "SpecIsText"
INVALID = "Invalid"
FORBIDDEN = "Forbidden"
NAME_CONFLICT = "NameConflict"
QUOTA_EXCEEDED = "QuotaExceeded"
API_ERROR = "APIError"
STALLED = {NAME_CONFLICT, QUOTA_EXCEEDED, INVALID, FORBIDDEN}  # they stay until someone acts
PENDING = "Pending"  # waiting for something: shown in Ready, but not a failure to reconcile
# Reasons for not being Ready that usually pass on their own: the condition shows others first.
PASSING = {PENDING, "Creating", "Updating", "Terminating"}
PASSING |= {"ContainerCreating", "PodInitializing", "ContainersNotReady"}  # the kubelet's words
EXISTS = "AlreadyExists"  # a reason in the API server's Status object
STRIPPED = "Stripped"  # a reason of our own: admission has changed a pod

# Metrics. The client library adds its own about this process: memory, CPU, open files.
PASSES = metrics.Counter("milvus_operator_passes", "Passes by result", ["result"])
PASS_SECONDS = metrics.Histogram("milvus_operator_pass_duration_seconds", "Duration of a pass")
MILVUSES = metrics.Gauge("milvus_operator_milvuses", "Milvus resources by state", ["state"])

log = logging.getLogger("milvus_operator")


class Reason(NamedTuple):
    """The reason and the message of a condition."""

    reason: str
    message: str = ""


class Invalid(Exception):
    """The spec of a Milvus cannot be used; the text tells its owner why."""


# ---------- Readers of unstructured objects ----------


def name_of(obj: Obj) -> str:
    return obj["metadata"]["name"]


def namespace_of(obj: Obj) -> str:
    return obj["metadata"]["namespace"]


def full_name(obj: Obj) -> str:
    return f"{namespace_of(obj)}/{name_of(obj)}"


def uid_of(obj: Obj) -> str:
    return obj["metadata"]["uid"]


def labels_of(obj: Obj) -> Obj:
    return obj["metadata"].get("labels", {})


def controller_of(obj: Obj) -> Obj:
    """The owner reference whose `controller` is true (at most one), or an empty mapping."""
    owners = obj["metadata"].get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("controller")), {})


def template_hash_of(pod: Obj) -> str | None:
    return pod["metadata"].get("annotations", {}).get(TEMPLATE_HASH)


def is_ending(obj: Obj) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def is_finished(pod: Obj) -> bool:
    """Failed or Succeeded: its containers have ended and will not start again."""
    return pod["status"].get("phase") in ("Failed", "Succeeded")


def conditions_of(obj: Obj) -> list[Obj]:
    return obj.get("status", {}).get("conditions") or []


def condition_of(obj: Obj, kind: str) -> Obj:
    """The condition of this type in its status, or an empty mapping."""
    return next((item for item in conditions_of(obj) if item["type"] == kind), {})


def is_ready(pod: Obj) -> bool:
    ready = condition_of(pod, "Ready").get("status") == "True"
    return ready and not is_ending(pod) and not is_finished(pod)


def may_serve(pod: Obj) -> bool:
    """Whether it is Ready, or merely cannot report that it is: if a node falls silent, the node
    controller sets the pod's condition to False, but leaves its containers ready."""
    # There are none yet, or slim_pod() has dropped those of a Ready pod.
    containers = pod["status"].get("containerStatuses") or [{}]
    are_ready = all(container.get("ready") for container in containers)
    return is_ready(pod) or (are_ready and not is_finished(pod))


def pick(obj: Obj, keys: Iterable[str]) -> Obj:
    """The part of the mapping that has these keys, without those that are null."""
    return {key: obj[key] for key in keys if obj.get(key) is not None}


# ---------- The kind: what would be replaced to run something other than Milvus ----------

APP = "milvus"  # the value of the pods' name label
CONTAINER = "milvus"  # the name of the container
DATA = "/var/lib/milvus"  # where it keeps its data
FS_GROUP = 999  # the group of Milvus images that do not run as root
PORTS = {"milvus": 19530, "metrics": 9091}
FIXED = {"proxyport", "metricsport"}  # as `setting` returns them
MILVUS_PREFIX = re.compile(r"^(MILVUS_CONF_)?((?i:milvus)\.)?")  # Milvus drops both from a key
MAX_NESTING = 32  # levels in spec.milvusSpec
MAX_SETTINGS = 1000
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


@dataclass(frozen=True)
class Spec:
    """The spec of a Milvus, read and checked once for each visit."""

    image: str = ""
    replicas: int = 1
    storage: Obj = field(default_factory=dict)
    pod: Obj = field(default_factory=dict)  # the overlay
    settings: dict[str, str] | None = None  # by dotted name; None: milvusSpec is text
    template_hash: str = ""  # the fingerprint of image, milvusSpec and pod
    invalid: str = ""  # what is wrong with it; then nothing else is set


def spec_of(milvus: Obj) -> Spec:
    """Read the spec. Raises Invalid or, as an older CRD does not check types, anything else."""
    if "spec" not in milvus:  # slim_object() has left it out
        raise Invalid(f"the spec is missing, nested too deeply, or over {MAX_SPEC >> 10} KiB long")
    # What the user wrote: neither a newer operator nor a larger storage.size may restart a pod.
    template = pick(milvus["spec"], ("image", "milvusSpec", "pod"))
    written = json.dumps(template, sort_keys=True)
    spec = Spec(
        **pick(milvus["spec"], ("image", "replicas", "storage", "pod")),
        settings=settings_of(template.get("milvusSpec", "")),
        template_hash=hashlib.sha256(written.encode()).hexdigest()[:16],
    )
    if not 0 <= spec.replicas <= 1000:
        raise Invalid("spec.replicas must be from 0 to 1000")
    new_pod(milvus, spec, 0)  # fail now, not half-way, if spec.pod cannot be laid over a pod
    return spec


def new_container(image: str, settings: dict[str, str]) -> Obj:
    """A standalone Milvus server with these settings. It has five minutes to start."""
    port = PORTS["metrics"]
    healthz = {"httpGet": {"path": "/healthz", "port": port}, "timeoutSeconds": 5}
    return {
        "name": CONTAINER,
        "image": image,
        "args": ["milvus", "run", "standalone"],
        "env": environment(settings),
        "ports": [{"name": name, "containerPort": number} for name, number in PORTS.items()],
        "startupProbe": healthz | {"periodSeconds": 5, "failureThreshold": 60},
        "readinessProbe": healthz,  # every 10 seconds; the third failure counts
        "livenessProbe": {"tcpSocket": {"port": port}, "timeoutSeconds": 5, "periodSeconds": 15},
        "resources": {"requests": {"cpu": "250m", "memory": "1Gi"}},
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": [{"name": "data", "mountPath": DATA}],
    }


def environment(settings: dict[str, str]) -> list[Obj]:
    """The variables: our defaults, and the user's settings, which Milvus reads by dotted names."""
    theirs = {setting(name) for name in settings}
    defaults = {name: value for name, value in DEFAULTS.items() if setting(name) not in theirs}
    return [
        {"name": name, "value": value.replace("$", "$$")}  # Kubernetes reads $$ as one $
        for name, value in (defaults | settings).items()
    ]


def setting(name: str) -> str:
    """The setting that Milvus reads from a variable: PROXY_PORT and milvus.proxy.port are one."""
    return re.sub("[_./]", "", MILVUS_PREFIX.sub("", name)).lower()


def invalid_at(mark: Any, text: str) -> Invalid:
    """An error at a mark of spec.milvusSpec, which may hold secrets: never quote it."""
    return Invalid(f"spec.milvusSpec, line {mark.line + 1 if mark else 1}: {text}")


def settings_of(text: str) -> dict[str, str] | None:
    """The settings of a YAML mapping by dotted name; None: it is text. Raises Invalid."""
    try:
        check_shape(text)
        node = yaml.compose(text, YAML_LOADER)
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # also for odd characters
        mark = getattr(error, "problem_mark", None)
        raise invalid_at(mark, "it is not valid YAML") from None
    if node is None:
        return {}
    if isinstance(node, yaml.MappingNode):
        return flat_settings(node)
    if re.search("[:=]", text):  # it looks like settings
        raise invalid_at(node.start_mark, "it is not a YAML mapping: write `name: value`")
    return None


def check_shape(text: str) -> None:
    """Check depth and anchors event by event, because the composer recurses and expands aliases."""
    depth = 0
    for event in yaml.parse(text, YAML_LOADER):
        mark = event.start_mark
        if isinstance(event, yaml.NodeEvent) and event.anchor is not None:  # an alias has one too
            raise invalid_at(mark, "anchors and aliases are not allowed: write the value instead")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_NESTING:
            raise invalid_at(mark, f"it has more than {MAX_NESTING} levels of nesting")


def flat_settings(node: yaml.MappingNode) -> dict[str, str]:
    """The settings below a mapping node, checked. Raises Invalid."""
    settings = dict[str, str]()
    marks = dict[str, Any]()  # of each setting
    for name, value, mark in flatten(node):
        key = setting(name)
        if key in FIXED:
            raise invalid_at(mark, "leave out proxy.port and metrics.port: the ports are fixed")
        if key in marks:
            raise invalid_at(mark, f"it sets the same setting as line {marks[key].line + 1}")
        # From space to ~, but without =: what the name of an environment variable may contain.
        if not re.fullmatch("[ -<>-~]{1,256}", name):
            raise invalid_at(mark, "a key must be short, printable ASCII text without =")
        if len(settings) == MAX_SETTINGS:
            raise invalid_at(mark, f"there are more than {MAX_SETTINGS} settings")
        settings[name] = value
        marks[key] = mark
    return settings


def flatten(node: yaml.MappingNode, prefix: str = "") -> Iterator[tuple[str, str, Any]]:
    """Each setting below a mapping node: its dotted name, its value as written, its mark."""
    for key, value in node.value:
        mark = key.start_mark
        if not isinstance(key, yaml.ScalarNode) or not key.value:
            raise invalid_at(mark, "a key must be a non-empty string")
        name = prefix + key.value
        if isinstance(value, yaml.MappingNode):
            yield from flatten(value, f"{name}.")
        elif isinstance(value, yaml.ScalarNode):
            yield name, value.value, mark
        elif all(isinstance(item, yaml.ScalarNode) for item in value.value):
            yield name, ",".join(item.value for item in value.value), mark
        else:
            raise invalid_at(mark, "a list may hold only scalars, not mappings or lists")


# ---------- The core: what to do and what to say; it knows no clock, network or log ----------


def pod_name(milvus: Obj, ordinal: int) -> str:
    return f"{name_of(milvus)}-{ordinal}"


def selector_of(milvus: Obj) -> dict[str, str]:
    """The labels that all pods of a Milvus share."""
    return {NAME_LABEL: APP, INSTANCE_LABEL: name_of(milvus), MANAGED_BY_LABEL: MANAGER}


def selector_text(milvus: Obj) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(selector_of(milvus).items()))


def has_our_labels(milvus: Obj, pod: Obj) -> bool:
    return selector_of(milvus).items() <= labels_of(pod).items()


def reference_to(milvus: Obj) -> Obj:
    return {"apiVersion": API_VERSION, "kind": KIND, "name": name_of(milvus), "uid": uid_of(milvus)}


def owner_reference(milvus: Obj) -> Obj:
    return reference_to(milvus) | {"controller": True, "blockOwnerDeletion": True}


# --- The pod, and its claim ---
def new_pod(milvus: Obj, spec: Spec, ordinal: int) -> Obj:
    """The pod of this ordinal as it is sent: the generated pod with spec.pod laid over it."""
    metadata = pick(spec.pod.get("metadata") or {}, ("labels", "annotations"))
    volume: Obj = {"emptyDir": {}}
    if spec.storage.get("size") is not None:  # raises if it is not a mapping, before any write
        volume = {"persistentVolumeClaim": {"claimName": f"data-{pod_name(milvus, ordinal)}"}}
    generated = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # a Service named proxy would set PROXY_PORT
        "terminationGracePeriodSeconds": 60,
        "securityContext": {"fsGroup": FS_GROUP},
        "containers": [new_container(spec.image, spec.settings or {})],
        "hostname": pod_name(milvus, ordinal),
        "subdomain": name_of(milvus),
        "volumes": [{"name": "data"} | volume],
    }
    ours = {
        "name": pod_name(milvus, ordinal),
        "namespace": namespace_of(milvus),
        "labels": selector_of(milvus) | {POD_INDEX_LABEL: str(ordinal)},
        "annotations": {TEMPLATE_HASH: spec.template_hash},
        "ownerReferences": [owner_reference(milvus)],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": overlay(metadata, ours),  # ours wins
        "spec": overlay(generated, spec.pod.get("spec") or {}),  # the user's wins
    }


def new_claim(milvus: Obj, spec: Spec, ordinal: int) -> Obj:
    """The PersistentVolumeClaim of a pod. It has no owner, so the data outlives pod and Milvus."""
    resources = {"requests": {"storage": spec.storage.get("size")}}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": f"data-{pod_name(milvus, ordinal)}",
            "namespace": namespace_of(milvus),
            "labels": {CLAIM_LABEL: name_of(milvus)},
        },
        "spec": pick(spec.storage, ["storageClassName"])
        | {"accessModes": ["ReadWriteOnce"], "resources": resources},
    }


def relied_on(pod: Obj) -> tuple[Any, ...]:
    """What the operator recognizes its pods by; admission may have stripped it from a new one."""
    owner = controller_of(pod).get("uid")
    return owner, template_hash_of(pod), pick(labels_of(pod), SELECTING)


# --- spec.pod, laid over the generated pod ---
MERGE_KEYS = {"containers": "name", "env": "name", "volumes": "name"}
MERGE_KEYS |= {"volumeMounts": "mountPath", "ports": "containerPort"}


def overlay(base: Obj, over: Obj) -> Obj:
    """A mapping laid over another, in which null removes a key."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if value is None:
            merged.pop(key, None)
        elif isinstance(below, dict) and isinstance(value, dict):
            merged[key] = overlay(below, value)
        elif isinstance(below, list) and isinstance(value, list) and key in MERGE_KEYS:
            merged[key] = overlay_list(key, below, value)
        else:
            merged[key] = value
    return merged


def overlay_list(key: str, base: list[Obj], over: list[Any]) -> list[Any]:
    """A list of named things laid over ours: first those of ours that it does not name."""

    def id_of(item: Any) -> str:
        name = str(item.get(MERGE_KEYS[key]))
        return setting(name) if key == "env" else name

    below = {id_of(item): item for item in base}
    merged = []
    for item in over:
        covered = below.pop(id_of(item), None)
        if covered is None or key in ("env", "volumes"):  # merged, they would have two sources
            merged.append(item)
        else:
            merged.append(overlay(covered, item))
    return [*below.values(), *merged]


def by_ordinal(objects: Iterable[Obj]) -> dict[str, Objs]:
    """Pods or claims by full name without the ordinal, then by ordinal."""
    found = defaultdict[str, Objs](dict)
    for obj in objects:
        if match := re.fullmatch("(.+)-(0|[1-9][0-9]*)", full_name(obj)):
            found[match[1]][int(match[2])] = obj
    return found


def members(milvus: Obj, pods: Objs) -> Objs:
    """Those of the pods with our names that this Milvus owns. Ownership is a UID."""
    uid = uid_of(milvus)
    return {o: pod for o, pod in pods.items() if controller_of(pod).get("uid") == uid}


def why_name_is_taken(milvus: Obj, pod: Obj) -> Reason:
    """Why a desired pod cannot be created: this pod already has its name."""
    name = name_of(pod)
    owner = controller_of(pod)
    is_namesake = owner.get("name") == name_of(milvus)
    # A pod of an earlier Milvus will be gone, a new one of ours listed, an orphan adopted.
    if is_ending(pod) or (has_our_labels(milvus, pod) and (is_namesake or not owner)):
        return Reason(PENDING, f"pod {name} was created a moment ago, or is being deleted")
    whose = f"belongs to {owner['kind']} {owner['name']}" if owner else "has no controller"
    text = f"pod {name} already exists and {whose}, so the operator does not touch it"
    labels = f"if it is a pod of this Milvus, give it the labels {selector_text(milvus)}"
    advice = "if nobody needs it, delete it; or create the Milvus under another name"
    return Reason(NAME_CONFLICT, f"{text}: {labels}; {advice}")


# --- What to do ---
Key = tuple[str, int]  # what may fail and back off: a verb and an ordinal
Outage = tuple[str, str]  # what affects more than one Milvus, and the details
Problems = Mapping[int, Reason]  # what has failed, by ordinal


class Action(NamedTuple):
    """Something to do. Three of the verbs delete a pod: `delete`, because it is surplus; `restart`,
    because it has ended or its claim is gone; `replace`, because its template is outdated. A later
    pass creates what is missing then. The others: `create` a pod, `adopt` one, `grow` a claim."""

    verb: str
    ordinal: int
    obj: Obj  # the pod or the claim; empty if there is none
    reason: str = ""
    is_due: bool = True  # if not, it waits for other pods, but plan() keeps its back-off

    @property
    def key(self) -> Key:
        return self.verb, self.ordinal


class BackOff(NamedTuple):
    """The time before which something is not done again, the delay, and its error, if it failed."""

    until: float = -inf
    delay: float = 0
    error: ApiError | None = None

    @property
    def refusal(self) -> str:
        """Why it was refused; empty if it was not, was lost, or failed because the list was old."""
        if not self.error or self.error.is_lost or self.error.why.reason == PENDING:
            return ""
        return self.error.why.reason


BackOffs = Mapping[Key, BackOff]
NO_BACK_OFF = BackOff()
OUTDATED = "the template is outdated"
MATCHING = "the pods match the spec or are being brought in line with it"


def decide(milvus: Obj, spec: Spec, pods: Objs, claims: Objs, failed: BackOffs) -> Iterator[Action]:
    """Everything that should be done about the pods and claims with our names."""
    mine = members(milvus, pods)
    kept = {ordinal for ordinal, claim in claims.items() if is_ending(claim)}
    yield from roll(spec, mine, kept, failed)
    for ordinal in sorted({*pods, *range(spec.replicas)}):
        # There may be no pod, one of ours, an orphan, or one of another owner or earlier Milvus.
        pod = pods.get(ordinal, {})
        claim = claims.get(ordinal, {})
        is_mine = ordinal in mine
        is_desired = ordinal < spec.replicas
        if pod and is_ending(pod):
            continue  # its claim may wait, too
        if is_mine and not is_desired:
            yield Action("delete", ordinal, pod, f"spec.replicas is {spec.replicas}")
        elif pod and has_our_labels(milvus, pod) and not controller_of(pod):
            yield Action("adopt", ordinal, pod, "no controller, but the labels of this Milvus")
        elif is_desired and not is_mine and ordinal not in kept:
            yield Action("create", ordinal, {})  # even if a pod of another owner has the name
        elif is_mine and not is_outdated(pod, spec):  # else it is a case for roll()
            is_unscheduled = condition_of(pod, "PodScheduled").get("status") == "False"
            if is_finished(pod):
                yield Action("restart", ordinal, pod, why_not_ready(pod).reason)
            elif is_unscheduled and spec.storage and not claim:
                # It may have been created without storage; carry_out() creates the claim first.
                yield Action("restart", ordinal, pod, "the claim is gone")
        if is_desired and "spec" in claim and may_grow(claim, spec):
            yield Action("grow", ordinal, claim, f"spec.storage.size is {spec.storage['size']}")


def may_grow(claim: Obj, spec: Spec) -> bool:
    """Whether a claim requests less than this, and is Bound: before that, it cannot be changed."""
    size = claim["spec"]["resources"]["requests"]["storage"]
    is_smaller = parse_quantity(size) < parse_quantity(spec.storage.get("size", 0))
    return is_smaller and claim["status"].get("phase") == "Bound" and not is_ending(claim)


def is_outdated(pod: Obj, spec: Spec) -> bool:
    return template_hash_of(pod) != spec.template_hash


def roll(spec: Spec, mine: Objs, kept: set[int], failed: BackOffs) -> Iterator[Action]:
    """The pods to replace because their template is outdated. Those that serve nobody go at once: a
    roll must not wait for a broken pod (kubernetes/kubernetes#67250). Those that may serve go one
    at a time, from the highest ordinal, and only while all pods that are up to date are Ready; but
    not those of `kept`: their claims are being deleted, and their data would go with them."""
    outdated = [
        ordinal
        for ordinal, pod in sorted(mine.items(), reverse=True)
        if ordinal < spec.replicas and is_outdated(pod, spec) and not is_ending(pod)
    ]
    serving = [ordinal for ordinal in outdated if may_serve(mine[ordinal])]
    for ordinal in outdated:
        if ordinal not in serving:
            yield Action("replace", ordinal, mine[ordinal], OUTDATED)
    refused = {key: back_off for key, back_off in failed.items() if back_off.refusal}
    # All others must be Ready, except broken pods whose delete is refused, and names others hold.
    must_be_ready = {*range(spec.replicas)} - {*serving}
    for (verb, ordinal), back_off in refused.items():
        if back_off.refusal == NAME_CONFLICT or (verb == "replace" and ordinal in outdated):
            must_be_ready.discard(ordinal)
    # No Ready surplus pod may be left, because it is deleted in this pass.
    surplus = [o for o in mine if o >= spec.replicas and ("delete", o) not in refused]
    ready = {ordinal for ordinal, pod in mine.items() if is_ready(pod)}
    is_due = must_be_ready <= ready and ready.isdisjoint(surplus)
    # From the highest ordinal, and the same pod until it is done; but refused deletes go last.
    serving.sort(key=lambda ordinal: refused.get(("replace", ordinal), NO_BACK_OFF).until)
    for ordinal in serving:
        if ordinal not in kept:
            yield Action("replace", ordinal, mine[ordinal], OUTDATED, is_due)
            is_due = False  # one at a time; the others keep their back-offs


# --- What the status and the events say ---
def why_not_ready(pod: Obj) -> Reason:
    """Why a pod is not Ready, in the words of its status, or else its phase."""
    status = pod["status"]
    phase = status.get("phase", "Unknown")
    if is_ending(pod):
        return Reason("Terminating")
    if is_finished(pod):
        return Reason(status.get("reason") or phase, status.get("message") or "")
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(kind) or []:
            for state in container.get("state", {}).values():  # waiting, running or terminated
                if state.get("reason") not in (None, "Completed"):
                    return Reason(state["reason"], state.get("message") or "")
    for kind in ("PodScheduled", "Ready"):
        condition = condition_of(pod, kind)
        if condition.get("status", "True") != "True":
            return Reason(condition.get("reason") or phase, condition.get("message") or "")
    return Reason(phase)


def readiness(milvus: Obj, spec: Spec, mine: Objs, problems: Problems) -> Reason:
    """What the Ready condition says; the reason is Ready if it is true."""
    unready = {}
    outdated = {}
    for ordinal in range(spec.replicas):
        pod = mine.get(ordinal)
        if not pod:
            unready[ordinal] = problems.get(ordinal, Reason("Creating", "it is not created yet"))
        elif not is_ready(pod):
            unready[ordinal] = why_not_ready(pod)
        elif is_outdated(pod, spec):
            outdated[ordinal] = problems.get(ordinal, Reason("Updating", OUTDATED))
    unready |= outdated  # after those that a rolling update waits for
    text = f"{spec.replicas - len(unready)} of {spec.replicas} pods are ready and up to date"
    if not unready:
        return Reason("Ready", text)
    ordinal = min(unready, key=lambda ordinal: unready[ordinal].reason in PASSING)
    reason, message = unready[ordinal]
    return Reason(reason, f"{text}; {pod_name(milvus, ordinal)}: {message or reason}")


def reconciliation(spec: Spec, problems: Problems) -> Reason:
    """What the Reconciled condition says; of several problems, that of the lowest ordinal."""
    for _, problem in sorted(problems.items()):
        if problem.reason != PENDING:
            return problem
    if spec.settings is None:
        return Reason(SPEC_IS_TEXT, "spec.milvusSpec is not a YAML mapping, so it sets nothing")
    return Reason(RECONCILED, MATCHING)


def status_of(milvus: Obj, spec: Spec, pods: Objs, problems: Problems, now: str) -> Obj:
    """The status of a Milvus. `problems` says what has failed; `now` is a time in RFC 3339."""
    mine = members(milvus, pods)
    present = [pod for _, pod in sorted(mine.items()) if not is_ending(pod)]
    ready = readiness(milvus, spec, mine, problems)
    reconciled = reconciliation(spec, problems)
    if spec.invalid:
        ready = reconciled = Reason(INVALID, spec.invalid)
    is_reconciled = reconciled.reason in (RECONCILED, SPEC_IS_TEXT)
    conditions = [
        new_condition(milvus, "Ready", ready.reason == "Ready", ready, now),
        new_condition(milvus, "Reconciled", is_reconciled, reconciled, now),
    ]
    if reconciled.reason in STALLED:
        conditions.append(new_condition(milvus, "Stalled", True, reconciled, now))
    ours = ("Ready", "Reconciled", "Stalled")
    others = [item for item in conditions_of(milvus) if item["type"] not in ours]
    return {
        "observedGeneration": milvus["metadata"]["generation"],
        "replicas": len(present),
        "readyReplicas": sum(map(is_ready, present)),
        "updatedReplicas": sum(not is_outdated(pod, spec) for pod in present),
        "pods": [name_of(pod) for pod in present],
        "selector": selector_text(milvus),
        "conditions": conditions + others,
    }


def new_condition(milvus: Obj, kind: str, is_true: bool, why: Reason, now: str) -> Obj:
    """A condition in the standard form. Its time changes only with its status."""
    before = condition_of(milvus, kind)
    is_same = before.get("status") == str(is_true)
    return {
        "type": kind,
        "status": str(is_true),
        "observedGeneration": milvus["metadata"]["generation"],
        "lastTransitionTime": before["lastTransitionTime"] if is_same else now,
        "reason": why.reason,
        "message": why.message[:1024],
    }


def new_event(milvus: Obj, reason: str, note: str, is_warning: bool) -> Obj:
    """An event for `kubectl describe`, without its time and reporter."""
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": f"{name_of(milvus)}-", "namespace": namespace_of(milvus)},
        "regarding": reference_to(milvus) | {"namespace": namespace_of(milvus)},
        "type": "Warning" if is_warning else "Normal",
        "reason": reason,
        "action": "Reconcile",
        "note": note.encode(errors="replace")[:1024].decode(errors="ignore"),
        "reportingController": f"{GROUP}/{MANAGER}",
    }


# What each verb has done; the others: deleted pod.
DONE = {"create": "created pod", "adopt": "adopted pod", "grow": "grew claim"}


def sentence(done: str, names: list[str], reason: str) -> str:
    """What has been done to these pods or claims, for the log and for an event."""
    plural = "s" if len(names) > 1 else ""
    text = f"{done}{plural} {', '.join(names)}"
    return f"{text}: {reason}" if reason else text


# ---------- The shell: the only part that knows about HTTP ----------


def by_gvr(api: ApiClient, group: str, version: str, kind: str, name: str, **more: Any) -> Resource:
    """A resource of the dynamic client, without its discovery requests and its cache file."""
    more["client"] = DynamicClient(api, discoverer=lambda client, cache_file: None)
    prefix = "apis" if group else "api"
    return Resource(prefix, group, version, kind, name=name, namespaced=True, **more)


def milvuses(api: ApiClient) -> Resource:
    """The Milvus resources: to create, get, list, patch and delete them from code."""
    status = {"kind": KIND, "name": f"{PLURAL}/status", "namespaced": True}
    return by_gvr(api, GROUP, VERSION, KIND, PLURAL, subresources={"status": status})


def pods(api: ApiClient) -> Resource:
    """The pods: to create, get, list, patch and delete them from code."""
    return by_gvr(api, "", "v1", "Pod", "pods")


class ApiError(Exception):
    """A request that failed, with the server's words."""

    def __init__(self, code: int, message: str, reason: str = "") -> None:
        super().__init__(" ".join(message.split())[:1000])
        self.code = code  # of HTTP; 0: there was no valid response
        self.reason = reason  # of the server's Status object
        self.outage: Outage | None = None  # if more than one Milvus is affected
        why = {400: INVALID, 422: INVALID, 403: FORBIDDEN}.get(code, API_ERROR)
        if self.denial.startswith("exceeded quota: "):
            why = QUOTA_EXCEEDED
        elif self.denial.startswith("unable to create new content in namespace"):
            why = PENDING
        self.why = Reason(why, str(self))  # what it means for the Milvus concerned

    @property
    def is_lost(self) -> bool:
        """Whether no answer came, so that a write may still take effect, or only "later" (429). A
        webhook's denial, with whatever code, is an answer; so is its failure (InternalError)."""
        is_answer = self.reason == "InternalError" or "denied the request" in str(self)
        return (self.code in (0, 429) or self.code >= 500) and not is_answer

    @property
    def denial(self) -> str:
        """Why the API server itself, not a webhook, forbids it: `pods "x-0" is forbidden: …`"""
        words = re.match(r'[a-z0-9.-]+(?: "[^"]*")? is forbidden: (.*)', str(self))
        return words[1] if words and self.code == 403 else ""


def api_error(error: ApiException) -> ApiError:
    """From the client's exception, whose body is a Status object if the API server wrote it."""
    status: Obj = {}
    with suppress(ValueError, TypeError, RecursionError):
        status = dict(json.loads(error.body or "{}"))
    message = status.get("message") or error.reason or f"HTTP {error.status}"
    return ApiError(error.status or 0, str(message), status.get("reason") or "")


def unexpected(error: Exception) -> ApiError:
    """From an exception that nobody foresaw. Its text may hold secrets: show only its places."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    places = " < ".join(f"{frame.name}:{frame.lineno}" for frame in frames)
    text = f"unexpected {type(error).__name__}, please report this bug: {places}"
    return ApiError(500, text, "InternalError")


# --- The bytes of a response (skip this on a first reading) ---
JSON_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]')
NOT_KUBERNETES = "the response did not come from a Kubernetes API server"
ITEMS = re.compile(rb'"items"\s*:\s*(\[.*\])', re.DOTALL)


def split_list(body: bytes) -> tuple[Obj, memoryview]:
    """The metadata of a list, and the JSON of its items."""
    items = ITEMS.search(body)
    if not items:
        raise ApiError(0, NOT_KUBERNETES)
    start, end = items.span(1)
    (rest,) = parse(b"[%b[]%b]" % (body[:start], body[end:]))
    return rest["metadata"], memoryview(body)[start:end]  # copying it would slow a quiet pass


def parse(items: bytes) -> list[Obj]:
    """A JSON array of objects. One that is too deep for Python must not hide the others."""
    try:
        with suppress(RecursionError):
            return list(json.loads(items))
        return list(json.loads(shallow(items)))
    except ValueError:
        raise ApiError(0, NOT_KUBERNETES) from None


def shallow(items: bytes) -> bytes:
    """The JSON array with text, which the API server rejects, in place of what is too deep."""
    kept = []
    depth = start = 0
    for token in JSON_TOKEN.finditer(items):
        if token[0] in b"[{":
            depth += 1
            if depth == MAX_DEPTH:
                kept += [items[start : token.start()], b'"it is nested too deeply"']
        elif token[0] in b"]}":
            if depth == MAX_DEPTH:
                start = token.end()
            depth -= 1
    return b"".join([*kept, items[start:]])


IDENTITY = ("name", "namespace", "uid", "resourceVersion", "generation", "deletionTimestamp")
READY_STATUS = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


def slim_object(obj: Obj) -> Obj:
    """The parts of a Milvus or a claim that are used here; a spec that is too large is left out."""
    slim = {"metadata": pick(obj["metadata"], IDENTITY)} | pick(obj, ["status"])
    with suppress(RecursionError):
        if len(json.dumps(obj.get("spec"))) <= MAX_SPEC:
            slim |= pick(obj, ["spec"])
    return slim


def slim_pod(pod: Obj) -> Obj:
    """The parts of a pod that are used here, about a fifth: all pods are kept in memory."""
    metadata = pick(pod["metadata"], IDENTITY)
    metadata["labels"] = pick(labels_of(pod), SELECTING)
    metadata["annotations"] = {TEMPLATE_HASH: template_hash_of(pod)}
    metadata["ownerReferences"] = [controller_of(pod)]
    status = READY_STATUS if is_ready(pod) else pod.get("status") or {}
    return {"metadata": metadata, "status": status}


class Unusable(click.ClickException):
    """There is no usable configuration."""

    exit_code = 2


Connection = tuple[ApiClient, str, str | None]  # with the default namespace and the context


def connect(path: str | None, connections: int, context: str | None) -> Connection:
    """Load a kubeconfig or, in a pod without one, the pod's own configuration. Raises Unusable."""
    file = path or os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
    settings = Configuration()
    settings.connection_pool_maxsize = connections
    try:
        if any(map(os.path.exists, file.split(os.pathsep))):
            return from_kubeconfig(file, settings, context)
        if IN_POD in os.environ and not (path or context):
            load_incluster_config(settings)
            with open(NAMESPACE_FILE) as namespace:
                return new_client(settings), namespace.read().strip(), None
        text = "there is no such file; give one with --kubeconfig or KUBECONFIG"
    except (ConfigException, OSError) as error:
        text = without_secrets(str(error))
    except Exception as error:  # a malformed file may raise anything in the loader
        text = f"it is not valid ({type(error).__name__})"
    raise Unusable(f"cannot use the kubeconfig {file}: {text}")


def from_kubeconfig(file: str, settings: Configuration, context: str | None) -> Connection:
    merged = KubeConfigMerger(file).config
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        loader = KubeConfigLoader(merged, context, config_base_path=None, temp_file_path=folder)
        chosen = loader.current_context
        user = merged["users"].get_with_name(chosen["context"].get("user"), safe=True)
        entry = (user and user.value.get("user")) or {}
        if "as" in entry:
            raise ConfigException("impersonation (`as`) is not supported")
        loader.load_and_set(settings)  # if an exec plugin fails, it goes on without credentials
        if "exec" in entry and not (settings.api_key or settings.cert_file):
            raise ConfigException("the exec plugin gave no credentials; see what kubectl says")
        namespace = chosen["context"].get("namespace") or "default"
        return new_client(settings), namespace, chosen["name"]


def new_client(settings: Configuration) -> ApiClient:
    settings.retries = False  # the next pass is the retry; urllib3's would multiply the timeout
    tls = ssl.create_default_context(cafile=settings.ssl_ca_cert)
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT  # older clusters' certificates do not pass it
    tls.check_hostname = settings.verify_ssl  # the client sets verify_mode itself
    if settings.cert_file:
        tls.load_cert_chain(settings.cert_file, settings.key_file, password="")  # never ask for one
    api = ApiClient(settings)
    # `tls` has read these files, which may be temporary: the client must not read them again.
    no_files = dict.fromkeys(("ca_certs", "cert_file", "key_file"))
    api.rest_client.pool_manager.connection_pool_kw |= no_files | {"ssl_context": tls}
    # It would copy each body; without that, a create takes a tenth less CPU.
    api.sanitize_for_serialization = lambda obj: obj  # type: ignore[method-assign]
    api.user_agent = f"{MANAGER}/{__version__}"
    api.set_default_header("Accept-Encoding", "gzip")  # decrypting lists is much of a quiet pass
    return api


def without_secrets(text: str) -> str:
    """The text without passwords in URLs, cut before a user's entry, as in `…/users/{'token': …`"""
    return re.sub("//[^/ ]*@", "//", text).partition("/{")[0]


@dataclass
class Cluster:
    """The requests to one API server. The methods raise ApiError."""

    connect: Callable[[str | None], Connection]
    context: str | None = None  # of the kubeconfig; chosen once, at the start
    timeout: float = 30
    dry_run: bool = False
    clock: Callable[[], float] = time.monotonic
    stopping: bool = False  # then no new write begins

    def __post_init__(self) -> None:
        self.dry_run_note = " (dry run)" if self.dry_run else ""
        self.pages = defaultdict[Any, dict[bytes, list[Obj]]](dict)  # of the last lists
        self.progressed = self.clock()  # when a request last ended, or a pass began
        self.changed = self.clock()  # when a list last showed something new
        self.load()

    def load(self) -> None:
        api, self.namespace, self.context = self.connect(self.context)
        self.settings = api.configuration
        self.hook = self.settings.refresh_api_key_hook  # renews a token that has expired
        self.is_rejected = False  # whether the credentials or TLS have failed
        self.milvuses = milvuses(api)
        self.pods = pods(api)
        self.claims = by_gvr(api, "", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
        self.events = by_gvr(api, "events.k8s.io", "v1", "Event", "events")
        self.lists = [
            (self.pods, slim_pod, f"{MANAGED_BY_LABEL}={MANAGER}"),
            (self.claims, slim_object, CLAIM_LABEL),  # after pods: a listed pod's claim is there
            (self.milvuses, slim_object, ""),  # last: never older than the pods
        ]
        self.server = without_secrets(self.settings.host)

    def renew(self) -> None:
        """Load the configuration anew if the server has rejected it, and renew the token: once per
        pass, because before each request, as the client does it, takes a third of the CPU time."""
        if self.is_rejected:
            self.load()
        try:
            if self.hook:
                self.hook(self.settings)
        except (ConfigException, OSError) as error:
            raise Unusable(without_secrets(str(error))) from None
        # Else the client would run it before each request. A hook may set itself again.
        self.settings.refresh_api_key_hook = None
        keys = self.settings.api_key.items()  # a token's file ends with a newline
        self.settings.api_key = {key: value.strip() for key, value in keys}

    def request(
        self, verb: str, resource: Resource, target: Obj, most: int | None = None, **options: Any
    ) -> bytes:
        """Send a request about the target, a whole object or its metadata with namespace and name.
        Returns the response, or only its first `most` bytes."""
        if self.stopping and verb != "get":
            raise ApiError(0, "the operator is stopping")
        where = pick(target["metadata"], ("namespace", "name"))
        asked = "list" if verb == "get" and "name" not in where else verb
        asked = f"{asked} {resource.name} in {place(where.get('namespace'))}"
        if self.dry_run and verb != "get":
            options["dry_run"] = "All"
        options |= where | {"serialize": False, "_request_timeout": self.timeout}
        try:
            response = getattr(resource, verb)(**options)
            body = bytes(response.read(most))
            response.close()
            return body
        except ApiException as error:
            failed = api_error(error)
            self.is_rejected |= not error.status  # 0: TLS has failed; the certificates may be new
        except (urllib3.exceptions.HTTPError, OSError) as error:
            failed = ApiError(0, without_secrets(f"{type(error).__name__}: {error}"))
        finally:
            self.progressed = self.clock()
        failed.outage = self.outage(failed, asked)
        raise failed

    def outage(self, error: ApiError, asked: str) -> Outage | None:
        """What affects more than one Milvus: a missing permission, or rejected credentials."""
        if error.code == 401 and "denied" not in str(error):  # as webhooks and policies say
            self.is_rejected = True
            return f"{self.server} rejects the credentials", "log in again, or renew the token"
        if error.denial.startswith(('User "', "cannot set blockOwnerDeletion")):
            return f"not allowed to {asked}", f"{error} (see the role in deploy.yaml)"
        if error.code and asked.startswith("list"):
            is_missing = error.code == 404 and PLURAL in asked
            advice = " (install the CRD with `kubectl apply -f crd.yaml`)" if is_missing else ""
            return f"cannot {asked}", f"{error}{advice}"
        return None

    def list_all(
        self, namespace: str | None, resource: Resource, slim: Callable[[Obj], Obj], label: str
    ) -> list[Obj]:
        """All objects of a list. A page that weighs too much is asked for again, smaller; one that
        is the same as in the last list is not parsed again."""
        known = self.pages[resource.name, namespace]
        pages = {}
        target = {"metadata": {"namespace": namespace}}
        options: Obj = {"label_selector": label, "limit": PAGE}
        while True:
            most = PAGE_BYTES if options["limit"] > 1 else None
            body = self.request("get", resource, target, most, **options)
            if len(body) == most:
                options["limit"] = max(1, options["limit"] // 4)
                continue
            metadata, items = split_list(body)
            digest = hashlib.blake2b(items).digest()
            pages[digest] = known.get(digest) or [slim(item) for item in parse(bytes(items))]
            if not metadata.get("continue"):
                break
            options["_continue"] = metadata["continue"]
            options["limit"] = min(2 * options["limit"], PAGE)
        if pages.keys() != known.keys():
            self.changed = self.clock()
        self.pages[resource.name, namespace] = pages
        return [item for objects in pages.values() for item in objects]

    def create(self, pod: Obj, **options: Any) -> None:
        """Create a pod. The server rejects a misspelled field instead of dropping it: `Strict`."""
        options["query_params"] = [("fieldValidation", "Strict")]
        answer = self.request("create", self.pods, pod, body=pod, **options)
        self.expect(pod, answer)

    def expect(self, pod: Obj, body: bytes) -> None:
        """Check that admission has not stripped a pod of what it is recognized by."""
        if relied_on(parse(b"[%b]" % body)[0]) != relied_on(pod):
            text = f"the owner reference, a label or the annotation {TEMPLATE_HASH} of pod"
            advice = "exempt the pods of this Milvus, and delete those that have been changed"
            raise ApiError(422, f"admission removes {text} {name_of(pod)}: {advice}", STRIPPED)

    def grow(self, claim: Obj, size: str | int) -> None:
        """Ask for a larger volume, if the claim has not changed."""
        body = {"metadata": pick(claim["metadata"], ["resourceVersion"])}
        body["spec"] = {"resources": {"requests": {"storage": size}}}
        self.request("patch", self.claims, claim, body=body)

    def check(self, pod: Obj) -> None:
        """Find out by a dry run, under another name, whether the API server accepts such a pod.
        A taken name or an exceeded quota does not count: the old pod will make room."""
        renamed = overlay(pod, {"metadata": {"name": f"{name_of(pod)}-check"}})
        try:
            self.create(renamed, dry_run="All")
        except ApiError as error:
            if error.reason != EXISTS and error.why.reason != QUOTA_EXCEEDED:
                raise

    def delete(self, pod: Obj) -> None:
        """Delete a pod. If it was not Ready, it must not have changed: it may be Ready by now."""
        keys = ["uid"] if is_ready(pod) else ["uid", "resourceVersion"]
        body: Obj = {"preconditions": pick(pod["metadata"], keys)}
        if self.dry_run:  # in the body: if there is a body, the API server ignores ?dryRun=All
            body["dryRun"] = ["All"]
        self.request("delete", self.pods, pod, body=body)

    def adopt(self, milvus: Obj, pod: Obj) -> None:
        """Set the owner of an orphan. Its Milvus, which was listed later, is not being deleted."""
        metadata = pick(pod["metadata"], ("uid", "resourceVersion"))
        metadata["ownerReferences"] = [owner_reference(milvus)]
        patch = {"metadata": metadata}
        answer = self.request("patch", self.pods, pod, body=patch)
        self.expect(overlay(pod, patch), answer)

    def patch_status(self, milvus: Obj, status: Obj) -> None:
        """Write the status if the Milvus has not changed; a resourceVersion covers the UID, too."""
        body = {"metadata": pick(milvus["metadata"], ["resourceVersion"]), "status": status}
        merge = "application/merge-patch+json"  # custom resources reject the client's default
        self.request("patch", self.milvuses.status, milvus, body=body, content_type=merge)

    def create_event(self, event: Obj) -> None:
        """Create an event now, from this host; in a cluster, that is the operator's pod."""
        here = {"reportingInstance": socket.gethostname(), "eventTime": timestamp("microseconds")}
        self.request("create", self.events, event, body=event | here)


def place(namespace: str | None) -> str:
    return f"namespace {namespace}" if namespace else "all namespaces"


def timestamp(precision: str = "seconds") -> str:
    """The time as Kubernetes writes it: RFC 3339, in UTC."""
    return datetime.now(UTC).isoformat(timespec=precision).replace("+00:00", "Z")


# ---------- The loop: list, visit, wait ----------

CONFLICT_DELAY = 4  # three conflicts, with 1, 2 and 4 seconds, are no failure: the lists were old
QUIET = 600  # seconds without a try after which its back-off starts again from the first delay
MAX_NEWS = 10  # events of one Milvus that are kept while none can be written

STATUS_UPDATED = "updated status"  # what a pass counts, besides what was done to pods and claims
# What may back off, besides actions.
STATUS: Key = ("status update", -1)
EVENT: Key = ("event", -1)
VISIT: Key = ("visit", -1)  # an unexpected error in the visit itself: only recorded, never waits


def next_delay(before: BackOff, error: ApiError | None, now: float) -> float:
    """How many seconds to back off now: longer than before, unless that was long ago."""
    began = before.until - before.delay
    if now >= began + QUIET or (error and not before.error):
        before = NO_BACK_OFF  # a failure does not inherit the delay of successes
    is_long = not error or error.why.reason in STALLED
    first, most = (10, 300) if is_long else (1, 30)
    return min(max(first, 2 * before.delay), most)


@dataclass
class Memory:
    """What is kept about a Milvus between passes; in brackets: what happens if it is lost."""

    generation: int = 0  # that the back-offs belong to (they are forgotten)
    back_offs: dict[Key, BackOff] = field(default_factory=dict)  # (one more try)
    # Its versions if nothing was left to do; ("half-way",), which equals no versions, if a deleted
    # pod must be created again: that goes first (one more visit).
    settled: tuple[str, ...] = ()
    wake: float = 0  # when it is visited even if unchanged, as a back-off ends (one more visit)
    state: str = "progressing"  # the other states: ready, failed (it is computed again)
    news: list[Obj] = field(default_factory=list)  # events to write (nobody hears of them)


@dataclass
class Pass:
    """One pass over all Milvus resources."""

    started: float
    is_once: bool  # whether each write is tried only once
    listed: float = 0  # when the lists had arrived
    deadline: float = 0  # after which no action begins
    has_listed: bool = False  # whether any list has succeeded
    unlisted: int = 0  # namespaces of which a list has failed
    failed: int = 0  # Milvus resources that could not be served
    is_cut: bool = False  # whether something is left that the next pass can do at once
    outages: dict[str, str] = field(default_factory=dict)  # what affects several; the details
    outcomes: list[str] = field(default_factory=list)  # what workers have done


@dataclass
class Visit:
    """One Milvus in one pass: what the lists show of it, and what a worker does about it."""

    this: Pass
    cluster: Cluster
    memory: Memory
    milvus: Obj
    pods: Objs
    claims: Objs
    spec: Spec = Spec()
    done: dict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))

    @property
    def versions(self) -> tuple[str, ...]:
        objects = (self.milvus, *self.pods.values(), *self.claims.values())
        return tuple(obj["metadata"]["resourceVersion"] for obj in objects)

    @property
    def is_needed(self) -> bool:
        """Whether something has changed, or was left to do."""
        return self.memory.settled != self.versions or self.this.listed >= self.memory.wake

    def serve(self) -> None:
        """Serve one Milvus: decide, carry out, and say what was done. If nothing was done, write
        status and events: otherwise the lists are out of date, and the next visit writes them."""
        memory = self.memory
        memory.settled = ()  # so that it is visited again if this visit fails
        blocked = set[str]()  # verbs that would fail again; the next pass tries another ordinal
        is_complete = True
        for action in self.plan():
            if not action.is_due or self.waits(action.key) or action.verb in blocked:
                continue
            if self.cluster.clock() >= self.this.deadline:
                self.this.is_cut = True
                is_complete = False
                break
            error = self.attempt(action.key, self.carry_out, action)
            if error and (error.is_lost or error.outage or error.why.reason == QUOTA_EXCEEDED):
                blocked.add(action.verb)
                is_complete = False
        for (done, reason), names in self.done.items():
            self.this.outcomes += [done] * len(names)
            self.say(done.split()[0].capitalize(), sentence(done, names, reason))
        says_status = not self.done or blocked or self.cluster.dry_run
        if says_status:
            self.write_status()
            self.write_events()
        # Back-offs that are over have had their turn in this visit.
        waiting = [b.until for b in memory.back_offs.values() if b.until >= self.this.listed]
        memory.wake = min(waiting, default=inf)
        if not is_complete:
            memory.wake = self.this.listed  # in the next pass, who has waited longest first
        elif says_status:
            memory.settled = self.versions

    def plan(self) -> list[Action]:
        """Read the spec and decide. What has failed before comes last."""
        memory = self.memory
        relevant = {STATUS, EVENT, VISIT}
        generation = self.milvus["metadata"]["generation"]
        if memory.generation != generation:
            memory.generation = generation
            memory.back_offs = {k: b for k, b in memory.back_offs.items() if k in relevant}
        actions = []
        try:
            self.spec = spec_of(self.milvus)
            actions = [*decide(self.milvus, self.spec, self.pods, self.claims, memory.back_offs)]
        except Invalid as error:
            self.spec = Spec(invalid=str(error))
        except Exception as error:  # as an older CRD does not check types
            text = "a field of the spec has the wrong type, or is nested too deeply"
            self.spec = Spec(invalid=f"{text} ({unexpected(error)})")
        # Forget what failed and is no longer to do; what was done and may repeat stays.
        relevant |= {action.key for action in actions}
        memory.back_offs = {
            key: back_off
            for key, back_off in memory.back_offs.items()
            if key in relevant or not back_off.error
        }
        return sorted(actions, key=lambda action: action.key in memory.back_offs)

    def waits(self, key: Key) -> bool:
        return self.this.listed < self.memory.back_offs.get(key, NO_BACK_OFF).until

    def carry_out(self, action: Action) -> None:
        cluster = self.cluster
        verb, ordinal, obj, reason, _ = action
        if verb == "restart" and not is_finished(obj) and not self.create_claim(ordinal):
            return  # its claim is there, unlabelled or newer than the list; this backs off
        if verb == "replace":
            # Of the first ordinal, so that all are refused with the same words.
            cluster.check(new_pod(self.milvus, self.spec, 0))
        if verb == "create":
            self.create(ordinal)
        elif verb == "adopt":
            cluster.adopt(self.milvus, obj)
        elif verb == "grow":
            cluster.grow(obj, self.spec.storage["size"])
        else:
            cluster.delete(obj)
            if verb != "delete":
                self.memory.settled = ("half-way",)
        name = name_of(obj) if obj else pod_name(self.milvus, ordinal)
        self.done[DONE.get(verb, "deleted pod"), reason].append(name)

    def create(self, ordinal: int) -> None:
        """Create a pod, after its claim: no claim, no pod."""
        pod = new_pod(self.milvus, self.spec, ordinal)
        if self.spec.storage and ordinal not in self.claims:
            self.create_claim(ordinal)
        try:
            self.cluster.create(pod)
        except ApiError as error:
            if error.reason != EXISTS:
                raise
            before = self.memory.back_offs.get(("create", ordinal), NO_BACK_OFF).error
            if before and before.reason == STRIPPED:
                raise before from None  # the pod that has the name is ours, stripped
            (taken,) = parse(b"[%b]" % self.cluster.request("get", self.cluster.pods, pod))
            error.why = why_name_is_taken(self.milvus, taken)
            raise

    def create_claim(self, ordinal: int) -> bool:
        """Make sure that a claim exists; returns whether it was created."""
        claim = new_claim(self.milvus, self.spec, ordinal)
        try:
            # One without our label is not listed, and a quota is checked before the name.
            self.cluster.request("get", self.cluster.claims, claim)
            return False
        except ApiError as error:
            if error.code != 404:
                raise
        self.cluster.request("create", self.cluster.claims, claim, body=claim)
        self.done["created claim", ""].append(name_of(claim))
        return True

    def attempt(self, key: Key, task: Callable[..., Any], *arguments: Any) -> ApiError | None:
        """Record what came of the task. Nothing that an object contains may end the loop."""
        error = None
        try:
            task(*arguments)
        except ApiError as failed:
            failed.__traceback__ = failed.__context__ = None  # they would keep the whole request
            error = failed
        except Exception as failed:
            error = unexpected(failed)
        self.record(key, error)
        return error

    def record(self, key: Key, error: ApiError | None) -> None:
        """Record what came of a write. What has failed, or may repeat for ever, backs off."""
        back_offs = self.memory.back_offs
        before = back_offs.pop(key, NO_BACK_OFF)
        may_repeat = key[0] in ("restart", "replace", "adopt", "grow") and not self.cluster.dry_run
        if self.cluster.stopping or not (error or may_repeat):
            return
        now = self.cluster.clock()
        delay = next_delay(before, error, now)
        until = inf if self.this.is_once else now + delay
        if error:
            # Something has changed since it was listed, so that the next pass knows better.
            is_stale = error.reason in ("Conflict", "NotFound") and delay <= CONFLICT_DELAY
            if is_stale:
                error.why = Reason(PENDING, str(error))
                until = now
            if is_stale or error.is_lost:  # which may have taken effect
                self.this.is_cut = True
        back_offs[key] = BackOff(until, delay, error)
        if error and key in (STATUS, VISIT) and error.why.reason != PENDING:
            self.memory.state = "failed"
            # An outage is said by report(), and a failure only when it is new.
            if not error.outage and (not before.error or before.error.why.reason == PENDING):
                log.warning("milvus %s: the %s failed: %s", full_name(self.milvus), key[0], error)

    def say(self, reason: str, note: str, is_warning: bool = False) -> None:
        """Say something in the log, and in an event later."""
        self.memory.news.append(new_event(self.milvus, reason, note, is_warning))
        del self.memory.news[:-MAX_NEWS]
        level = logging.WARNING if is_warning else logging.INFO
        log.log(level, "milvus %s: %s%s", full_name(self.milvus), note, self.cluster.dry_run_note)

    def write_status(self) -> None:
        """Write the status if it has changed; say what is new in the Reconciled condition."""
        memory = self.memory
        if self.waits(STATUS):
            return
        problems = {
            ordinal: error.why
            for (_, ordinal), (_, _, error) in memory.back_offs.items()
            if ordinal >= 0 and error
        }
        status = status_of(self.milvus, self.spec, self.pods, problems, timestamp())
        ready, reconciled = status["conditions"][:2]
        memory.state = "ready" if ready["status"] == "True" else "progressing"
        if reconciled["status"] == "False":
            memory.state = "failed"
        if status.items() <= self.milvus.get("status", {}).items():
            memory.back_offs.pop(STATUS, None)
            return
        if self.attempt(STATUS, self.cluster.patch_status, self.milvus, status):
            return
        self.this.outcomes.append(STATUS_UPDATED)
        before = condition_of(self.milvus, "Reconciled")
        # That a new Milvus is fine is no news.
        if reconciled["message"] != before.get("message", MATCHING):
            self.say(reconciled["reason"], reconciled["message"], memory.state == "failed")

    def write_events(self) -> None:
        """Write what is new as events, on which nothing depends."""
        news = self.memory.news
        while news and not self.waits(EVENT):
            if self.attempt(EVENT, self.cluster.create_event, news[0]):
                break
            del news[0]


@dataclass
class Operator:
    """Manages Milvus resources: `run()` forever, `run_once()`, or a single `run_pass()`."""

    cluster: Cluster
    namespaces: Sequence[str | None]  # None: all
    interval: float  # seconds
    workers: int

    def __post_init__(self) -> None:
        self.clock = self.cluster.clock
        # What has failed may hang the next time: it gets a quarter of the workers at most.
        quarter = max(1, self.workers // 4)
        self.first_tries = ThreadPoolExecutor(max(1, self.workers - quarter))
        self.second_tries = ThreadPoolExecutor(quarter) if self.workers > 1 else self.first_tries
        self.tasks: dict[Future[Any], str] = {}  # of the workers; the UID of the Milvus
        self.memories = defaultdict[Any, dict[str, Memory]](dict)  # by namespace, then by UID
        self.is_ready = False  # whether all lists of a pass have succeeded
        self.outages: dict[str, str] = {}  # that have been logged and have not ended
        self.list_delay = 0.0  # seconds to wait while no list succeeds

    def is_alive(self) -> bool:
        """Whether the loop makes progress: even if the server is down, as requests time out."""
        idle = self.clock() - self.cluster.progressed
        return idle < self.interval + self.cluster.timeout + 40

    def run(self) -> bool:
        """Make passes until the operator is to stop."""
        while not self.cluster.stopping:
            this = self.run_pass()
            gc.collect()
            time.sleep(max(0, this.started + self.next_pass(this) - self.clock()))
        return True

    def run_once(self) -> bool:
        """Make passes until one gets nothing done; returns whether all went well."""
        while True:
            this = self.run_pass(is_once=True)
            if not this.is_cut and not {*this.outcomes} - {STATUS_UPDATED}:
                return not (this.failed or this.unlisted)

    def run_pass(self, is_once: bool = False) -> Pass:
        """List everything, visit each Milvus that has something to do, wait, and report."""
        this = Pass(self.clock(), is_once)
        self.cluster.progressed = this.started
        try:
            self.cluster.renew()
            tasks = []
            for visit in self.observe(this):
                has_failed = any(b.error for b in visit.memory.back_offs.values())
                pool = self.second_tries if has_failed else self.first_tries
                task = pool.submit(visit.attempt, VISIT, visit.serve)
                self.tasks[task] = uid_of(visit.milvus)
                if not has_failed:
                    tasks.append(task)
            self.finish(this, tasks)
        except Unusable as error:
            this.outages["the configuration cannot be loaded"] = error.message
            this.unlisted += 1
        except Exception as error:  # no thread or no memory was left: the next pass may find some
            this.outages["a pass failed"] = str(unexpected(error))
            this.unlisted += 1
        self.report(this)
        return this

    def next_pass(self, this: Pass) -> float:
        """Seconds from its start to the next: few after a change, so that a roll waits for pods."""
        if self.list_delay:
            return self.list_delay * random.uniform(0.5, 1)
        quiet = self.clock() - self.cluster.changed
        return min(self.interval, max(0.5, 5 * (this.listed - this.started), quiet / 2))

    def observe(self, this: Pass) -> list[Visit]:
        """List everything. Returns the visits: what has changed, then what has waited longest."""
        # Before the lists: what still runs then may change what they show.
        self.tasks = {task: uid for task, uid in self.tasks.items() if not task.done()}
        busy = {*self.tasks.values()}
        this.is_cut = bool(busy)
        visits = []
        for namespace in self.namespaces:
            visits += self.list_namespace(this, namespace)
        this.listed = self.clock()
        this.deadline = this.listed + min(max(5, 5 * (this.listed - this.started)), 10)
        if self.cluster.dry_run:  # it changes nothing, so one pass must say it all
            this.deadline += 1e6
        self.list_delay = 0 if this.has_listed else min(max(1, 2 * self.list_delay), 30)
        self.is_ready |= not this.unlisted
        needed = [v for v in visits if v.is_needed and uid_of(v.milvus) not in busy]
        return sorted(needed, key=lambda v: (v.memory.settled in ((), v.versions), v.memory.wake))

    def list_namespace(self, this: Pass, namespace: str | None) -> list[Visit]:
        """List a namespace, or all. Returns a visit for each Milvus."""
        lists = []
        try:
            for kind in self.cluster.lists:
                lists.append(self.cluster.list_all(namespace, *kind))
                this.has_listed = True
        except ApiError as error:  # a failed list is not an empty list
            outage = error.outage or (f"requests to {self.cluster.server} fail", str(error))
            this.outages |= [outage]
            this.unlisted += 1
            return []
        pods, claims, milvuses = lists
        pods_of = by_ordinal(pods)
        claims_of = by_ordinal(claims)
        known = self.memories[namespace]
        visits = []
        for milvus in milvuses:
            if not is_ending(milvus):
                memory = known.get(uid_of(milvus)) or Memory()
                named = pods_of[full_name(milvus)]
                stored = claims_of[f"{namespace_of(milvus)}/data-{name_of(milvus)}"]
                visits.append(Visit(this, self.cluster, memory, milvus, named, stored))
        self.memories[namespace] = {uid_of(visit.milvus): visit.memory for visit in visits}
        return visits

    def finish(self, this: Pass, first_tries: list[Future[Any]]) -> None:
        """Wait for first tries to the deadline, and a second more for current writes: a Milvus that
        is still visited misses the next pass. Second tries may hang; they get until that is due."""
        wait(first_tries, this.deadline - self.clock())
        for task in first_tries:
            task.cancel()
        wait(first_tries, 1)
        wait(list(self.tasks), this.listed + self.next_pass(this) - self.clock())
        for task in self.tasks:  # each: one that began later would act on old lists
            if task.cancel() or not task.done():  # cancelled, also above, or still running
                this.is_cut = True

    def report(self, this: Pass) -> None:
        """Report a pass in the log and in the metrics."""
        memories = [memory for known in self.memories.values() for memory in known.values()]
        states = Counter(memory.state for memory in memories)
        this.failed = states["failed"]
        back_offs = [b for memory in memories for b in list(memory.back_offs.values())]
        this.outages |= [b.error.outage for b in back_offs if b.error and b.error.outage]
        for what in this.outages.keys() - self.outages.keys():
            log.error("%s: %s", what, this.outages[what])
        for what in self.outages.keys() - this.outages.keys():
            log.info("resolved: %s", what)
        self.outages = this.outages
        seconds = self.clock() - this.started
        done = ", ".join(f"{what}: {count}" for what, count in Counter(this.outcomes).items())
        total = f"{len(memories)} Milvus resource(s) in {seconds:.2f} s{self.cluster.dry_run_note}"
        level = logging.INFO if done else logging.DEBUG
        log.log(level, "pass over %s: %s", total, done or "nothing to do")
        PASSES.labels("failure" if this.outages else "success").inc()
        PASS_SECONDS.observe(seconds)
        for state in ("ready", "progressing", "failed"):
            MILVUSES.labels(state).set(states[state])


# ---------- Health and metrics over HTTP ----------


class Health(metrics.MetricsHandler):
    """`/healthz`: the loop makes progress. `/readyz`: all has been listed. Other paths: metrics."""

    operator: Operator
    timeout = 5  # seconds for a client to send its request

    def do_GET(self) -> None:
        checks = {"/healthz": self.operator.is_alive(), "/readyz": self.operator.is_ready}
        if self.path not in checks:
            super().do_GET()
            return
        code = 200 if checks[self.path] else 503
        self.send_response(code)
        self.end_headers()
        self.wfile.write(f"{self.responses[code][0]}\n".encode())


class HealthServer(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that disconnects is not worth a log line."""


def serve_health(operator: Operator, port: int) -> None:
    """Serve Health until the process ends: in a pod on all addresses, else on localhost."""
    Health.operator = operator
    in_pod = IN_POD in os.environ
    if in_pod and socket.has_dualstack_ipv6():
        HealthServer.address_family = socket.AF_INET6
    try:
        server = HealthServer(("" if in_pod else "127.0.0.1", port), Health)
    except OSError as error:
        text = f"cannot listen on port {port}: {error.strerror}"
        raise Unusable(f"{text}; choose another with --health-port") from None
    threading.Thread(target=server.serve_forever, daemon=True).start()


# ---------- The command ----------


def seconds(context: click.Context, option: click.Parameter, value: float) -> float:
    if not 0 < value <= 1e8:  # what a clock can wait for; neither `inf` nor `nan`
        raise click.BadParameter("must be a number of seconds greater than 0, at most 1e8")
    return value


def text_line(record: logging.LogRecord) -> str:
    """One line; without control characters, which may be escape sequences of terminals."""
    message = re.sub(r"[\s\x00-\x1f\x7f-\x9f]+", " ", record.getMessage())
    return f"{timestamp()} {record.levelname:7} {message}"


def json_line(record: logging.LogRecord) -> str:
    origin = {"timestamp": timestamp("milliseconds"), "level": record.levelname}
    return json.dumps(origin | {"message": record.getMessage()})


def start_log(verbose: bool, log_format: str) -> None:
    """Log lines of text for people, or of JSON for collectors; times are in UTC."""
    handler = logging.StreamHandler()
    handler.format = json_line if log_format == "json" else text_line  # type: ignore[method-assign]
    log.addHandler(handler)
    log.setLevel(logging.DEBUG if verbose else logging.INFO)
    logging.getLogger().addHandler(logging.NullHandler())  # libraries would log in other formats
    urllib3.disable_warnings()  # of `insecure-skip-tls-verify`, before each request


def run_until_signal(operator: Operator, run: Callable[[], bool]) -> int:
    """Run the loop in a thread of its own, as signal handlers run in the main one. After a signal,
    writes in progress get four seconds; a second one ends the process. Returns the exit code."""

    def stop(signum: int, _: Any) -> None:
        if operator.cluster.stopping:
            os._exit(128 + signum)
        operator.cluster.stopping = True

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, stop)
    loop = ThreadPoolExecutor(1).submit(run)
    while not operator.cluster.stopping:
        if wait([loop], timeout=0.2).done:
            return 0 if loop.result() else 1
    wait(list(operator.tasks), timeout=4)
    log.info("stopped")
    return 0


SETTINGS = {"auto_envvar_prefix": "MILVUS_OPERATOR", "help_option_names": ["-h", "--help"]}


@click.command(context_settings=SETTINGS | {"show_default": True})
@click.option("-n", "--namespace", multiple=True, help="Namespace to manage; can be repeated.")
@click.option("-A", "--all-namespaces", is_flag=True, help="Manage all namespaces.")
@click.option("--interval", default=5.0, callback=seconds, help="Longest time between two passes.")
@click.option("--once", is_flag=True, help="Do what can be done now, then exit; 1 means failure.")
@click.option("--dry-run", is_flag=True, help="Log what would be done; write nothing.")
@click.option("--kubeconfig", help="The kubeconfig file. Default: as kubectl finds it.")
@click.option("--context", help="The kubeconfig context. Default: the current one.")
@click.option("--timeout", default=30.0, callback=seconds, help="Seconds to wait for a response.")
@click.option("--workers", type=click.IntRange(1, 256), default=16, help="Concurrent writes.")
@click.option("--health-port", type=click.IntRange(1, 65535), help="Port for health and metrics.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text")
@click.option("-v", "--verbose", is_flag=True, help="Also log passes in which nothing was written.")
@click.version_option(__version__, message=f"{MANAGER} %(version)s", allow_from_autoenv=False)
def main(
    namespace: tuple[str, ...],
    all_namespaces: bool,
    once: bool,
    health_port: int | None,
    kubeconfig: str | None,
    workers: int,
    interval: float,
    **options: Any,
) -> None:
    """Keep the pods of every Milvus resource running.

    Without -n or -A, it manages the namespace of the kubeconfig's context or, in a pod, its own.
    Each option is also an environment variable, such as MILVUS_OPERATOR_INTERVAL=10.
    """
    names = ",".join(namespace).split(",")  # OLM joins them by commas, too
    managed: list[str | None] = [name for name in dict.fromkeys(names) if name]
    if managed and all_namespaces:
        raise click.UsageError("-A cannot be combined with -n or MILVUS_OPERATOR_NAMESPACE")
    start_log(options.pop("verbose"), options.pop("log_format"))
    threading.stack_size(16 << 20)  # for deep JSON
    gc.disable()  # it takes half of a pass; Operator.run() collects between passes instead
    gc.freeze()  # leave the imports out of every collection
    cluster = Cluster(lambda context: connect(kubeconfig, workers, context), **options)
    if not managed:
        # OLM sets the variable to an empty text for all namespaces.
        everywhere = all_namespaces or os.environ.get("MILVUS_OPERATOR_NAMESPACE") == ""
        managed = [None if everywhere else cluster.namespace]
    operator = Operator(cluster, managed, interval, workers)
    where = f"{', '.join(map(place, managed))}, every {interval:g} s, server {cluster.server}"
    log.info("%s %s: %s%s", MANAGER, __version__, where, cluster.dry_run_note)
    try:
        if health_port:
            serve_health(operator, health_port)
        code = run_until_signal(operator, operator.run_once if once else operator.run)
    except RuntimeError as error:
        raise Unusable(f"cannot start a thread: {error}") from None
    os._exit(code)  # a request that hangs must not delay the exit


if __name__ == "__main__":
    main()
