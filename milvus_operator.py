#!/usr/bin/env python3
"""Keeps the pods of every Milvus resource running: a Kubernetes operator in one file.

It polls. A *pass* lists the pods, their claims and Services, and the Milvus resources, and makes a
*visit* to each Milvus that has changed, or for which work is left. A visit decides what to do (pure
functions over plain dicts), does it, says what was done, and writes the status. The pass waits for
all of its visits, reports, and sleeps. The next pass sees the effect of its writes.

Names are fixed, every delete carries a UID, and what cannot be undone is looked at once more before
it is done. So a write that is lost or repeated does no harm, and a restart, which forgets what is
kept in memory, is safe: docs/design.md says what it may cost.

In the names below, a *milvus* is a resource of kind Milvus, and a *claim* a PersistentVolumeClaim,
both as dicts. To learn how it works, read first, in this order: `Operator.run_pass`,
`Visit.reconcile`, `decide`, `tidy`, `complete`, `roll`, `Visit.carry_out`, `Visit.attempt`,
`status_of` and `new_pod`. The rest supports these, and handles failures.
"""

from __future__ import annotations

import os
import signal
import sys

# Importing takes a while, and process 1 of a container must not ignore signals meanwhile. The exit
# code is 1 with --once, because nothing has been done, and otherwise 0.
if __name__ == "__main__":
    _words = ("1", "true", "t", "yes", "y", "on")  # as click reads them
    _is_once = os.environ.get("MILVUS_OPERATOR_ONCE", "").lower() in _words
    _code = 1 if _is_once or "--once" in sys.argv else 0
    for _signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(_signum, lambda *_: os._exit(_code))

import dataclasses
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
import urllib.parse
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from functools import cached_property
from http.server import ThreadingHTTPServer
from math import inf
from posixpath import normpath
from types import MappingProxyType
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
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

__version__ = "0.1.0"

# A Kubernetes object or a part of one, as in its JSON. A listed object keeps only some of its keys;
# a Milvus has `written_spec` in place of `spec`, a claim `size`: see `slim_milvus`, `slim_claim`.
Obj = dict[str, Any]
Objs = dict[int, Obj]  # pods or claims of a Milvus, by ordinal

# ---------- Constants ----------

GROUP = "zilliz.com"
VERSION = "v1"
KIND = "Milvus"
PLURAL = "milvuses"
API_VERSION = f"{GROUP}/{VERSION}"
MANAGER = "milvus-polling-operator"

NAME_LABEL = "app.kubernetes.io/name"
INSTANCE_LABEL = "app.kubernetes.io/instance"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
POD_INDEX_LABEL = "apps.kubernetes.io/pod-index"
MILVUS_LABEL = f"{GROUP}/milvus"  # finds what is ours; the labels above are for people
MADE_BY = f"{GROUP}/operator-version"  # annotation: of the operator that made the pod
TEMPLATE_HASH = f"{GROUP}/template-hash"  # annotation: the fingerprint of the user's own fields

# Reasons of the conditions.
RECONCILED = "Reconciled"
SPEC_IS_TEXT = "SpecIsText"
INVALID = "Invalid"
FORBIDDEN = "Forbidden"
NAME_CONFLICT = "NameConflict"
QUOTA_EXCEEDED = "QuotaExceeded"
API_ERROR = "APIError"
SERVICE_EXISTS = "ServiceExists"
NAMESPACE_TERMINATING = "NamespaceTerminating"
TEMPLATE_UNKNOWN = "TemplateUnknown"
CLAIM_LOST = "ClaimLost"
CLAIM_TERMINATING = "ClaimTerminating"
STALLED = {NAME_CONFLICT, QUOTA_EXCEEDED, INVALID, FORBIDDEN}  # they stay until someone acts
# With these, Reconciled is True: nothing has failed.
SUCCESSES = {RECONCILED, SPEC_IS_TEXT, SERVICE_EXISTS, NAMESPACE_TERMINATING}
WAITING = "Waiting"  # for something else; makes Reconciled False only after LASTING seconds
# Reasons that usually go away by themselves. The condition Ready names the first pod that has
# another reason; if there is none, the first one that is not ready.
TRANSIENT = {
    WAITING,
    NAMESPACE_TERMINATING,
    "Pending",  # the phase of a pod
    "Creating",
    "Updating",
    "Terminating",
    "ContainerCreating",
    "PodInitializing",
    "ContainersNotReady",
}

CREATED = "Created"  # the reason of an event

# The states of a Milvus in the metrics.
READY = "ready"
PROGRESSING = "progressing"
FAILED = "failed"

# Sizes.
MAX_SPEC = 128 << 10  # bytes of a spec, or of the status of a Milvus, as JSON
MAX_REPLICAS = 1000
SERVICE = MAX_REPLICAS  # stands for the Service in place of an ordinal, and sorts after all of them

# Metrics. The client library adds its own about this process: memory, CPU, open files.
PASSES = metrics.Counter("milvus_operator_passes", "Passes by result", ["result"])
PASS_SECONDS = metrics.Histogram("milvus_operator_pass_duration_seconds", "Duration of a pass")
MILVUSES = metrics.Gauge("milvus_operator_milvuses", "Milvus resources by state", ["state"])

log = logging.getLogger("milvus_operator")


class Why(NamedTuple):
    """The reason and the message of a condition."""

    reason: str
    message: str = ""


class Invalid(Exception):
    """The spec of a Milvus cannot be used; the text tells its owner why."""


class Unusable(click.ClickException):
    """The configuration cannot be used; the text tells why, in one line."""

    exit_code = 2


# ---------- Readers of unstructured objects ----------

INIT_CONTAINERS = "initContainerStatuses"  # in the status of a pod
CONTAINERS = "containerStatuses"


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
    annotations = pod["metadata"].get("annotations") or {}
    return annotations.get(TEMPLATE_HASH) or None


def phase_of(obj: Obj) -> str:
    return obj["status"].get("phase", "Unknown")


def conditions_of(obj: Obj) -> list[Obj]:
    return obj.get("status", {}).get("conditions") or []


def condition_of(obj: Obj, type_: str) -> Obj:
    """The condition of this type in its status, or an empty mapping."""
    return next((item for item in conditions_of(obj) if item["type"] == type_), {})


def contains(obj: Obj, part: Mapping[str, Any]) -> bool:
    """Whether a mapping has all of these keys, with these values."""
    return part.items() <= obj.items()


def has_begun(pod: Obj) -> bool:
    """Whether any of its containers may have run, so that its volumes were mounted. A pod stays
    Pending until its init containers have ended, and as long as one container has never started,
    though others may run."""
    if phase_of(pod) != "Pending":
        return True
    both = [one for part in (INIT_CONTAINERS, CONTAINERS) for one in pod["status"].get(part) or []]
    states = [one.get(key) or {} for one in both for key in ("state", "lastState")]
    return any("running" in state or "terminated" in state for state in states)


def is_ending(obj: Obj) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def is_finished(pod: Obj) -> bool:
    """Failed or Succeeded: its containers have ended and will not start again."""
    return phase_of(pod) in ("Failed", "Succeeded")


def is_over(pod: Obj) -> bool:
    """Whether it is being deleted, or has ended."""
    return is_ending(pod) or is_finished(pod)


def is_ready(pod: Obj) -> bool:
    return not is_over(pod) and condition_of(pod, "Ready").get("status") == "True"


def may_serve(pod: Obj) -> bool:
    """Whether it is Ready, or looks unready only because its node fell silent: then the node
    controller sets the condition to False, and leaves the containers ready. A kubelet that waits
    for a readiness gate does the same, but gives a reason: such a pod serves nobody."""
    if is_over(pod):
        return False
    if is_ready(pod):
        return True
    if condition_of(pod, "Ready").get("reason") == "ReadinessGatesNotReady":
        return False
    containers = pod["status"].get(CONTAINERS) or []
    # An init container that has done its work is ready; one that goes on, a sidecar, may not be.
    others = pod["status"].get(INIT_CONTAINERS) or []
    return bool(containers) and all(one.get("ready") for one in (*containers, *others))


def all_run(pod: Obj) -> bool:
    """Whether each of its containers runs, Ready or not."""
    containers = pod["status"].get(CONTAINERS) or []
    return bool(containers) and all("running" in (one.get("state") or {}) for one in containers)


def pick(obj: Obj, keys: Iterable[str]) -> Obj:
    """The part of the mapping that has these keys, without those that are null."""
    return {key: obj[key] for key in keys if obj.get(key) is not None}


def why_not_ready(pod: Obj) -> Why:
    """Why a pod is not Ready, in the words of its status, or else its phase."""
    status = pod["status"]
    phase = phase_of(pod)
    if is_ending(pod):
        held_by = ", ".join(pod["metadata"].get("finalizers") or [])
        text = f"it waits for its finalizers: {held_by}" if held_by else ""
        return Why("Terminating", text)
    if is_finished(pod):
        return why_in(status, phase)
    otherwise = "NotReady" if phase == "Running" else phase  # if nobody says why
    for part in (INIT_CONTAINERS, CONTAINERS):
        for container in status.get(part) or []:
            for state in (container.get("state") or {}).values():  # waiting, running or terminated
                if state.get("reason") not in (None, "Completed"):
                    return why_in(state, otherwise)
    for type_ in ("PodScheduled", "Ready"):
        condition = condition_of(pod, type_)
        if condition.get("status", "True") != "True":
            return why_in(condition, otherwise)
    return Why(otherwise)


def why_in(state: Obj, otherwise: str) -> Why:
    """The reason and the message in a part of a status."""
    return Why(state.get("reason") or otherwise, state.get("message") or "")


# ---------- The kind: what would be replaced to run something other than Milvus ----------

APP = "milvus"  # the value of the pods' name label
CONTAINER = "milvus"  # the name of the container
DATA = "/var/lib/milvus"  # the folder of all of its data
CONFIGS = "/milvus/configs"  # the folder of its configuration, in Milvus's images
CONFIG_VOLUME = "operator-config"
FS_GROUP = 999  # the group of Milvus images that do not run as root
PORTS = {"milvus": 19530, "metrics": 9091}

# The files that a pod has beside the milvus.yaml of its image. Milvus reads that one, then
# default.yaml, then user.yaml, then variables; what comes later wins. The text of each file is an
# annotation of the pod, so that no ConfigMap is needed.
DEFAULT_FILE = "default.yaml"  # ours
USER_FILE = "user.yaml"  # spec.milvusSpec, word for word
ETCD_FILE = "etcd.yaml"  # read by the embedded etcd
FILES = (DEFAULT_FILE, USER_FILE, ETCD_FILE)
# As in the Milvus project's own script: with its own defaults, etcd would be full at 2 GiB, and
# Milvus does not start then. It listens on this host only.
ETCD_CONFIG = """\
listen-client-urls: http://127.0.0.1:2379
advertise-client-urls: http://127.0.0.1:2379
quota-backend-bytes: 4294967296
auto-compaction-mode: revision
auto-compaction-retention: '1000'
"""

# What makes one container a complete, standalone Milvus: the settings of default.yaml. They are not
# in the fingerprint (see `fingerprint`), so that a change of them reaches only new pods.
DEFAULTS = {
    "etcd.use.embed": "true",
    "etcd.data.dir": f"{DATA}/etcd",
    "etcd.config.path": f"{CONFIGS}/{ETCD_FILE}",
    "etcd.endpoints": "127.0.0.1:2379",
    "common.storageType": "local",
    "common.gracefulStopTimeout": "5",  # seconds; Milvus's own default is half an hour
    "localStorage.path": f"{DATA}/data",
    "mq.type": "rocksmq",
    "rocksmq.path": f"{DATA}/rdb_data",
}
# The components share the container, and find each other at 127.0.0.1. If they registered the pod's
# address, which changes, a new pod on existing data would wait until the old sessions expire.
COMPONENTS = (
    "rootCoord",
    "dataCoord",
    "queryCoord",
    "indexCoord",
    "proxy",
    "dataNode",
    "indexNode",
    "queryNode",
    "streamingNode",
)
DEFAULTS |= {f"{component}.ip": "127.0.0.1" for component in COMPONENTS}

# External services. A row is (address, setting, value): if the user sets the address to something
# outside the pod, default.yaml sets the setting to the value. Of two queues, the first row counts,
# as in Milvus. Only these addresses count: pulsar.maxMessageSize is for all queues, and
# woodpecker.storage is set before a queue is switched to woodpecker.
EXTERNAL_SERVICES = (
    ("minio.address", "common.storageType", "remote"),
    ("etcd.endpoints", "etcd.use.embed", "false"),
    ("pulsar.address", "mq.type", "pulsar"),
    ("kafka.brokerList", "mq.type", "kafka"),
)
# What is not outside the pod: no value, or local addresses. A complete milvus.yaml, which somebody
# may have pasted, contains both.
NOTHING = "(|~|null)"
LOCAL = r"(\w+://)?(localhost|127\.[0-9.]+|\[::1\])(:[0-9]+)?"
LOCAL_ADDRESSES = re.compile(f"{NOTHING}|{LOCAL}(,{LOCAL})*", re.IGNORECASE)


def new_container(image: str) -> Obj:
    """A standalone Milvus server. It has five minutes to start."""
    port = PORTS["metrics"]
    healthz = {"httpGet": {"path": "/healthz", "port": port}, "timeoutSeconds": 5}
    return {
        "name": CONTAINER,
        "image": image,
        "args": ["milvus", "run", "standalone"],
        "env": [{"name": "DEPLOY_MODE", "value": "STANDALONE"}],  # 2.6 reads it from nowhere else
        "ports": [{"name": name, "containerPort": number} for name, number in PORTS.items()],
        "startupProbe": healthz | {"periodSeconds": 5, "failureThreshold": 60},
        "readinessProbe": healthz,  # every 10 seconds; the third failure counts
        # TCP: a slow etcd or disk can fail /healthz, and a restart would make that worse.
        "livenessProbe": {"tcpSocket": {"port": port}, "timeoutSeconds": 5, "periodSeconds": 15},
        "resources": {"requests": {"cpu": "250m", "memory": "1Gi"}},
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": [{"name": "data", "mountPath": DATA}, *file_mounts()],
    }


def file_mounts() -> list[Obj]:
    """One by one, so that the image's own files in this folder stay."""
    return [
        {"name": CONFIG_VOLUME, "mountPath": f"{CONFIGS}/{name}", "subPath": name, "readOnly": True}
        for name in FILES
    ]


def canonical(name: str) -> str:
    """The name of a setting as Milvus compares it (formatKey and EnvSource of its pkg/config):
    `minio.address`, `milvus.minio/Address`, MINIO_ADDRESS, MILVUS_CONF_MINIO_ADDRESS are one.
    tests/test_milvus_settings.py compares it with Milvus's own code."""
    return re.sub("[_./]", "", name).lower().removeprefix("milvusconf").removeprefix("milvus")


def defaults_for(theirs: Mapping[str, str | None]) -> dict[str, str]:
    """The settings of default.yaml for a user who has set these, by canonical name; None: the value
    is not known here, as from a Secret. An unknown address counts as outside the pod: if it were
    taken for local, an empty etcd would start beside the user's own."""
    elsewhere = {
        name
        for name, value in theirs.items()
        if value is None or not LOCAL_ADDRESSES.fullmatch(value)
    }
    chosen: dict[str, str] = {}
    for address, setting, choice in EXTERNAL_SERVICES:
        if canonical(address) in elsewhere:
            chosen.setdefault(setting, choice)
    return DEFAULTS | chosen


# ---------- Objects that the operator makes ----------


@dataclass(frozen=True)
class Spec:
    """The spec of a Milvus, read and checked once for each visit: see `spec_of`."""

    image: str = ""
    replicas: int = 1
    storage: Obj = field(default_factory=dict)
    pod: Obj = field(default_factory=dict)  # the overlay, without what changes nothing
    settings: dict[str, str] = field(default_factory=dict)  # of milvusSpec, by dotted name
    user_file: str = ""  # the text of user.yaml
    is_text: bool = False  # whether milvusSpec is text, which sets nothing
    updates_on_delete: bool = False  # whether outdated pods stay until somebody deletes them
    min_ready: int = 10  # seconds that a new pod must have been Ready before a roll goes on
    template_hash: str = ""  # the fingerprint of image, milvusSpec and pod
    invalid: str = ""  # what is wrong with it; then `decide` is not asked, and no pod is outdated


def pod_name(milvus: Obj, ordinal: int) -> str:
    return f"{name_of(milvus)}-{ordinal}"


def claim_name(milvus: Obj, ordinal: int) -> str:
    return f"data-{pod_name(milvus, ordinal)}"


def our_label(milvus: Obj) -> dict[str, str]:
    """The label that the pods, the claims and the Service of a Milvus have."""
    return {MILVUS_LABEL: name_of(milvus)}


def selector_of(milvus: Obj) -> str:
    return f"{MILVUS_LABEL}={name_of(milvus)}"


def labels_for_people(milvus: Obj, ordinal: int) -> dict[str, str]:
    """For people and their selectors. Nothing here relies on them: policies rewrite such labels."""
    return {
        NAME_LABEL: APP,
        INSTANCE_LABEL: name_of(milvus),
        MANAGED_BY_LABEL: MANAGER,
        POD_INDEX_LABEL: str(ordinal),
    }


def reference_to(milvus: Obj) -> Obj:
    return {"apiVersion": API_VERSION, "kind": KIND, "name": name_of(milvus), "uid": uid_of(milvus)}


def owner_reference(milvus: Obj) -> Obj:
    return reference_to(milvus) | {"controller": True, "blockOwnerDeletion": True}


def new_pod(milvus: Obj, spec: Spec, ordinal: int) -> Obj:
    """The pod of this ordinal as it is sent: the generated pod with spec.pod laid over it. Raises
    Invalid."""
    generated: Obj = {
        "metadata": {"labels": {}, "annotations": {}},  # so that a list in their place is Invalid
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,  # a Service named proxy would set PROXY_PORT
            "terminationGracePeriodSeconds": 60,
            "securityContext": {"fsGroup": FS_GROUP},
            "containers": [new_container(spec.image)],
            "volumes": [data_volume(milvus, spec, ordinal)],
        },
    }
    merged = overlay(generated, spec.pod, "spec.pod")  # the user's wins
    theirs = spec.pod.get("spec", {})
    account = theirs.get("serviceAccountName") or theirs.get("serviceAccount")
    if account and "automountServiceAccountToken" not in theirs:
        del merged["spec"]["automountServiceAccountToken"]  # to name one is to ask for its token
    ours = {
        "name": pod_name(milvus, ordinal),
        "namespace": namespace_of(milvus),
        "labels": our_label(milvus) | labels_for_people(milvus, ordinal),
        "annotations": {TEMPLATE_HASH: spec.template_hash, MADE_BY: __version__}
        | new_files(spec, merged),
        "ownerReferences": [owner_reference(milvus)],
    }
    ours_in_spec = {
        "volumes": [*merged["spec"]["volumes"], config_volume()],
        "hostname": pod_name(milvus, ordinal),  # by these two, the Service gives the pod a name
        "subdomain": name_of(milvus),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": overlay(pick(merged["metadata"], ("labels", "annotations")), ours),  # ours wins
        "spec": merged["spec"] | ours_in_spec,
    }


def new_files(spec: Spec, pod: Obj) -> dict[str, str]:
    """The texts of the files, by annotation."""
    defaults = defaults_for(set_by_user(spec, pod))
    lines = [f"{setting}: {value}\n" for setting, value in defaults.items()]
    texts = {DEFAULT_FILE: "".join(lines), USER_FILE: spec.user_file, ETCD_FILE: ETCD_CONFIG}
    return {annotation_of(file): text for file, text in texts.items()}


def annotation_of(file: str) -> str:
    return f"{GROUP}/{file}"


def data_volume(milvus: Obj, spec: Spec, ordinal: int) -> Obj:
    source: Obj = {"emptyDir": {}}
    if spec.storage:
        source = {"persistentVolumeClaim": {"claimName": claim_name(milvus, ordinal)}}
    return {"name": "data"} | source


def config_volume() -> Obj:
    """The files, from the annotations of the pod."""
    files = [
        {"path": file, "fieldRef": {"fieldPath": f"metadata.annotations['{annotation_of(file)}']"}}
        for file in FILES
    ]
    return {"name": CONFIG_VOLUME, "downwardAPI": {"items": files}}


def server_of(pod: Obj) -> Obj:
    """The container that runs Milvus."""
    return next(one for one in pod["spec"]["containers"] if one.get("name") == CONTAINER)


def variables_of(pod: Obj) -> dict[str, str | None]:
    """The variables in `env`, but not those of `envFrom`; None: the value is not known here."""
    found: dict[str, str | None] = {}
    for item in server_of(pod).get("env") or []:
        value = str(item.get("value") or "")
        is_known = "valueFrom" not in item and "$(" not in value
        found[str(item.get("name"))] = value if is_known else None
    return found


def set_by_user(spec: Spec, pod: Obj) -> dict[str, str | None]:
    """What the user sets, by canonical name. Of a setting and a variable, the variable counts."""
    theirs = spec.settings | variables_of(pod)
    return {canonical(name): value for name, value in theirs.items()}


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
# A probe has one of these.
HANDLERS = ("exec", "grpc", "httpGet", "tcpSocket")


def overlay(base: Obj, over: Obj, path: str = "") -> Obj:
    """A mapping laid over another, in which null removes a key. Two things replace ours instead of
    being merged: `resources`, because Kubernetes takes a limit alone as the request, too, so ours
    must not stay beside it; and a probe's handler, because a probe may have only one. Raises
    Invalid with the path of what is wrong."""
    if not isinstance(over, dict):
        raise Invalid(f"{path} must be a mapping")
    merged = dict(base)
    if path.endswith("Probe") and pick(over, HANDLERS):
        merged = {key: value for key, value in base.items() if key not in HANDLERS}
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(below, list) and key in MERGE_KEYS:
            named = [] if value is None else value  # an `env:` that is left empty names nothing
            merged[key] = overlay_list(key, below, named, f"{path}.{key}")
        elif value is None:
            merged.pop(key, None)
        elif isinstance(below, dict) and key != "resources":
            merged[key] = overlay(below, value, f"{path}.{key}")
        else:
            merged[key] = value
    return merged


def overlay_list(list_name: str, ours: list[Obj], over: list[Any], path: str) -> list[Any]:
    """A list laid over ours: those of ours that it does not name; then its items, each merged with
    ours of the same name. Raises Invalid."""
    if not isinstance(over, list):
        raise Invalid(f"{path} must be a list")
    ours_by_name = {identity(list_name, item): item for item in ours}
    merged = []
    for number, item in enumerate(over):
        if not isinstance(item, dict):
            raise Invalid(f"{path}[{number}] must be a mapping")
        same = ours_by_name.get(identity(list_name, item), {})
        is_whole = list_name in WHOLE
        merged.append(item if is_whole else overlay(same, item, f"{path}[{number}]"))
    named = {identity(list_name, item) for item in over}
    return [item for name, item in ours_by_name.items() if name not in named] + merged


def identity(list_name: str, item: Obj) -> str:
    """What an item of such a list is recognized by."""
    if list_name == "volumeMounts":
        return path_of(item)
    value = str(item.get(MERGE_KEYS[list_name]))
    if list_name == "ports":  # as in Kubernetes: one number may be a port of TCP and one of UDP
        return f"{value}/{item.get('protocol', 'TCP')}"
    return value


def path_of(mount: Obj) -> str:
    """Where it is mounted: for a kubelet, `data` and `//data/` are `/data`."""
    return normpath("/" + str(mount.get("mountPath")).lstrip("/"))


# ---------- The spec: read it, and refuse what Milvus cannot forgive ----------

# More YAML events than any real configuration has; a setting takes two. It bounds the time that
# parsing takes.
MAX_EVENTS = 5000
YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the fast one, if there is one
TEXT = "tag:yaml.org,2002:str"
# The settings that the ports of the pod rely on, by canonical name.
FIXED = {
    canonical("proxy.port"): str(PORTS["milvus"]),
    canonical("metrics.port"): str(PORTS["metrics"]),
}
# The parts of the data. The first setting decides where a part is: for these of its values, in the
# folder in the pod that the other setting names; for any other value, outside the pod.
PARTS = {
    "vectors": ("common.storageType", {"local": "localStorage.path"}),
    # What is true for Milvus, which parses it by Go's strconv.ParseBool.
    "etcd": ("etcd.use.embed", dict.fromkeys(("true", "t", "1"), "etcd.data.dir")),
    "queue": (
        "mq.type",
        {
            "rocksmq": "rocksmq.path",
            "default": "rocksmq.path",
            "natsmq": "natsmq.server.storeDir",
            "woodpecker": "woodpecker.storage.rootPath",  # unless in the bucket: see `places_of`
        },
    ),
}
# Vectors and etcd are of no use without each other. A row is (part, other, setting): if `other`
# outlives the pod, `part` must, too. The setting would move `part` out of the pod.
MUST_OUTLIVE = (("etcd", "vectors", "etcd.endpoints"), ("vectors", "etcd", "minio.address"))
SETTINGS_PATHS = {
    "/milvus",
    CONFIGS,
    # etcd.yaml may be the user's own: see docs/configuration.md.
    *(f"{CONFIGS}/{name}" for name in ("milvus.yaml", DEFAULT_FILE, USER_FILE)),
}
END_WITH_POD = {"emptyDir", "ephemeral", "csi"}  # sources of volumes


def spec_of(milvus: Obj) -> Spec:
    """Read the spec of a Milvus. Raises Invalid; or anything else, because an older CRD does not
    check types."""
    if "written_spec" not in milvus:
        raise Invalid(f"the spec is missing, nested too deeply, or over {MAX_SPEC >> 10} KiB long")
    fields = json.loads(milvus["written_spec"])
    text = fields.get("milvusSpec") or ""
    tree = tree_of(text)
    is_mapping = tree is None or isinstance(tree, yaml.MappingNode)
    # Words are accepted, and set nothing: the first example had "this is milvus spec" here.
    if not is_mapping and re.search("[:=]", text):  # but this looks like settings
        raise invalid_at(tree.start_mark, "it is not a YAML mapping: write `name: value`")
    settings = settings_of(tree) if tree and is_mapping else {}
    over = fields.get("pod") or {}
    if not isinstance(over, dict):
        raise Invalid("spec.pod must be a mapping")
    over = without_empty(pick(over, ("metadata", "spec")))
    strategy = fields.get("updateStrategy") or {}
    spec = Spec(
        **pick(fields, ("image", "replicas", "storage")),
        pod=over,
        settings={name: value_of(items) for name, items in settings.items()},
        user_file=text if is_mapping else "",
        is_text=not is_mapping,
        updates_on_delete=strategy.get("type") == "OnDelete",
        min_ready=int(strategy.get("minReadySeconds", Spec.min_ready)),
        template_hash=fingerprint(fields, settings, over),
    )
    if spec.replicas not in range(MAX_REPLICAS + 1):
        raise Invalid(f"spec.replicas must be from 0 to {MAX_REPLICAS}")
    refuse_dangers(milvus, spec)
    if spec.storage:
        parse_quantity(spec.storage["size"])  # raises if it is not a quantity
    return spec


def without_empty(over: Obj) -> Obj:
    """An overlay without its empty mappings, which change nothing. Those inside a list are kept:
    there, they may mean something."""
    kept = {key: without_empty(v) if isinstance(v, dict) else v for key, v in over.items()}
    return {key: value for key, value in kept.items() if value != {}}


# --- spec.milvusSpec: it may hold secrets, so no message quotes it ---
Scalars = list[Any]  # the YAML nodes of a setting: one, or the items of a list


def invalid_at(mark: Any, text: str) -> Invalid:
    """An error at a mark of the YAML parser; None: at the start."""
    return Invalid(f"spec.milvusSpec, line {mark.line + 1 if mark else 1}: {text}")


def tree_of(text: str) -> Any:
    """The YAML node of a text; None: it is empty. Raises Invalid."""
    try:
        for number, event in enumerate(yaml.parse(text, YAML_LOADER)):
            if number == MAX_EVENTS:
                raise invalid_at(event.start_mark, f"it has more than {MAX_EVENTS // 2} settings")
            if advice := why_unreadable(event, text):
                raise invalid_at(event.start_mark, advice)
        return yaml.compose(text, YAML_LOADER)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        raise invalid_at(mark, "it is not one valid YAML document") from None


def why_unreadable(event: Any, text: str) -> str:
    """What is wrong with an event that PyYAML reads, and Milvus (yaml.v2) may not: then Milvus
    ignores all of its configuration files. It could read aliases, but those can take gigabytes."""
    written = text[event.start_mark.index : event.end_mark.index]
    is_alias = isinstance(event, yaml.AliasEvent)
    if is_alias or any(getattr(event, name, None) for name in ("tag", "tags", "version")):
        return "aliases, tags and directives are not allowed: write plain values instead"
    if isinstance(event, yaml.ScalarEvent):
        # A `\/` after an even number of backslashes.
        if event.style == '"' and re.search(r"(?<!\\)(\\\\)*\\/", written):
            return "Milvus cannot read the escape \\/: write / instead"
        if not event.style and re.search("[?\ufeff]", event.value):  # such as in {a: b?}
            return "a question mark, or a byte order mark, must be in quotes"
    return ""


def settings_of(tree: Any) -> dict[str, Scalars]:
    """The settings of a mapping, by their dotted names. Raises Invalid."""
    found: dict[str, Scalars] = {}
    lines: dict[str, int] = {}  # of each setting, by its canonical name
    for name, items, mark in flatten(tree):
        key = canonical(name)
        if key in lines:
            raise invalid_at(mark, f"it sets the same setting as line {lines[key]}")
        if key in FIXED and value_of(items) != FIXED[key]:
            advice = "to move a port, set PROXY_PORT, or METRICS_PORT and the probes, in spec.pod"
            raise invalid_at(mark, f"leave out proxy.port and metrics.port: {advice}")
        found[name] = items
        lines[key] = mark.line + 1
    return found


def flatten(tree: Any, prefix: str = "") -> Iterator[tuple[str, Scalars, Any]]:
    """Each setting of a mapping: its dotted name, its scalars, the mark of its key. Raises Invalid:
    also if a section is there twice, because Milvus drops the first."""
    lines: dict[str, int] = {}  # of each key
    for key, value in tree.value:
        mark = key.start_mark
        if not isinstance(key, yaml.ScalarNode) or key.value in ("", "<<"):
            raise invalid_at(mark, "a key must be the name of a setting, and not <<")
        if key.value in lines:
            raise invalid_at(mark, f"it repeats the key of line {lines[key.value]}")
        lines[key.value] = mark.line + 1
        name = prefix + key.value
        if isinstance(value, yaml.MappingNode):
            yield from flatten(value, f"{name}.")
            continue
        items = value.value if isinstance(value, yaml.SequenceNode) else [value]
        if not all(isinstance(item, yaml.ScalarNode) for item in items):
            raise invalid_at(mark, "a list may hold only scalars, not mappings or lists")
        yield name, items, mark


def value_of(items: Scalars) -> str:
    """The value of a setting as it is written, except that a list is joined by commas, as Milvus
    does, and that a word is `true` if yaml.v2, which Milvus uses, takes it for that."""
    return ",".join("true" if is_yes(item) else item.value for item in items)


def is_yes(scalar: Any) -> bool:
    """PyYAML takes `y` for text, so this does not ask for the tag."""
    return not scalar.style and scalar.value.lower() in ("y", "yes", "on", "true")


# Values that YAML takes for numbers or truth values, and that mean the same in quotes.
SAME_IF_QUOTED = re.compile(r"true|false|-?(0|[1-9][0-9]*)(\.[0-9]*[1-9])?")


def meaning_of(scalar: Any) -> str:
    """A text that is the same for two scalars only if they mean the same: `1` and `'1'`, but not
    `on` and `'on'`, because YAML reads the former as true."""
    is_same_if_quoted = scalar.tag == TEXT or SAME_IF_QUOTED.fullmatch(scalar.value)
    return scalar.value if is_same_if_quoted else f"{scalar.tag} {scalar.value}"


def fingerprint(fields: Obj, settings: Mapping[str, Scalars], over: Obj) -> str:
    """A hash of what these fields mean, except that names of settings count as they are written.
    Only when it changes are pods replaced. So it leaves out `storage`, which can grow, and what
    `new_pod` adds: a new version of the operator replaces no pods. If the hash of a spec changed,
    the pods of all who have such a spec would be replaced:
    test_a_new_version_of_the_operator_replaces_no_pods pins some hashes."""
    meant = {name: ",".join(map(meaning_of, items)) for name, items in settings.items()}
    template = pick(fields, ["image"]) | {"settings": meant, "pod": over}
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:16]


# --- Where the data is ---
class Place(NamedTuple):
    """Where a part of the data is."""

    setting: str  # that says so
    volume: Obj  # of the pod; empty: the data is elsewhere

    @property
    def ends_with_pod(self) -> bool:
        """Also if the volume has no source: then it is an emptyDir."""
        return bool(self.volume) and self.volume.keys() <= {"name", *END_WITH_POD}


def refuse_dangers(milvus: Obj, spec: Spec) -> None:
    """Refuse what would lose data, or mix that of two pods: Milvus deletes each file that its etcd
    does not know. Raises Invalid."""
    pod = new_pod(milvus, spec, 0)
    refuse_overrides(pod)
    if spec.storage and data_volume(milvus, spec, 0) not in pod["spec"]["volumes"]:
        text = "spec.pod has a volume named data, although spec.storage makes one of that name"
        raise Invalid(f"{text}: give the volume in spec.pod another name")
    places = places_of(spec, pod)
    of_another = places_of(spec, new_pod(milvus, spec, 1)) if spec.replicas > 1 else {}
    for part, place in places.items():
        setting = place.setting
        if place.ends_with_pod and spec.storage:
            text = f"{setting} is on a volume that ends with the pod, although spec.storage is set"
            raise Invalid(f"{text}: mount the volume named data there, or leave out spec.storage")
        # Equal places are one: an external service, or a volume with the same source. Claims of
        # their own differ: data-x-0, data-x-1.
        is_shared = place == of_another.get(part) and not place.ends_with_pod
        if is_shared:
            text = f"all replicas would have their {part} in the same place ({setting})"
            advice = "set spec.replicas to 1, and create one Milvus in a place of its own for each"
            raise Invalid(f"{text}, and delete each other's data: {advice}")
    for part, other, elsewhere in MUST_OUTLIVE:
        one, two = places.get(part), places.get(other)
        if one and two and one.ends_with_pod and not two.ends_with_pod:
            text = f"the {part} would be deleted with the pod, but the {other} would not"
            advice = f"set {elsewhere} if you already have such a service"
            text += ", and neither is of use without the other"
            raise Invalid(f"{text}: {advice}; if all is new, set spec.storage")


def refuse_overrides(pod: Obj) -> None:
    """Refuse what spec.pod must not change. Raises Invalid."""
    if pod["spec"].get("terminationGracePeriodSeconds") == 0:
        text = "spec.pod.spec.terminationGracePeriodSeconds must not be 0"
        raise Invalid(f"{text}: a new pod would use the volume before the old one has ended")
    server = server_of(pod)
    if "workingDir" in server or "MILVUSCONF" in variables_of(pod):
        text = "spec.pod must not set workingDir or MILVUSCONF"
        raise Invalid(f"{text}: Milvus would not find its settings in {CONFIGS}")
    for mount in server["volumeMounts"]:
        path = path_of(mount)
        if path in SETTINGS_PATHS and mount not in file_mounts():
            text = f"spec.pod mounts settings at {path}, where the operator cannot judge them"
            raise Invalid(f"{text}: write them in spec.milvusSpec")


def places_of(spec: Spec, pod: Obj) -> dict[str, Place]:
    """Where each part of the data is. Those whose place is not known here are left out. Raises
    Invalid."""
    settings = settings_in_force(spec, pod)
    places: dict[str, Place] = {}
    is_woodpecker_local = settings.get(canonical("woodpecker.storage.type")) == "local"
    for part, (decider, folders) in PARTS.items():
        choice = settings.get(canonical(decider), "").lower()
        if choice in folders and (choice != "woodpecker" or is_woodpecker_local):
            folder = folders[choice]
            places[part] = Place(folder, volume_of(folder, settings, pod))
        elif canonical(decider) in settings:
            places[part] = Place(decider, {})
    return places


def settings_in_force(spec: Spec, pod: Obj) -> dict[str, str]:
    """What Milvus reads in a pod, by canonical name; without what only a Secret, a ConfigMap or the
    kubelet knows."""
    theirs = set_by_user(spec, pod)
    ours = {canonical(name): value for name, value in defaults_for(theirs).items()}
    return {name: value for name, value in (ours | theirs).items() if value is not None}


def volume_of(setting: str, settings: Mapping[str, str], pod: Obj) -> Obj:
    """The volume that a folder for data is on. Raises Invalid."""
    # "default" is Milvus's word for its own folder below DATA. A folder that is not known here is
    # taken for that, too.
    path = normpath(settings.get(canonical(setting), "default"))
    if path == "default":
        path = f"{DATA}/data"
    if not path.startswith(f"{DATA}/"):
        text = f"{setting} must be a folder below {DATA}, because a volume is mounted there"
        raise Invalid(f"{text}: leave the setting out, or mount a volume of your own at {DATA}")
    mounts = {path_of(mount): mount for mount in server_of(pod)["volumeMounts"]}
    above = [folder for folder in mounts if f"{path}/".startswith(f"{folder}/")]
    mounted = mounts[max(above, key=len)].get("name") if above else ""
    for volume in pod["spec"]["volumes"]:
        if volume.get("name") == mounted:
            return volume
    raise Invalid(f"no volume is mounted at {DATA}: mount one, such as the one named data")


# ---------- Decide: what to do; it knows no clock, network or log ----------

# What may back off: a verb and the ordinal that it is about, or None if it is about none.
Key = tuple[str, int | None]
STATUS: Key = ("status update", None)
# While this backs off, because a write was not answered, no other action for that Milvus is tried:
# each of its pods would time out, one after another.
ANSWER: Key = ("answer", None)
RefusedKeys = Set[Key]  # of refused writes whose delay has not ended
Problems = Mapping[int, Why]  # what has failed, by ordinal or SERVICE

OUTDATED = "its template has changed"
ORPHANED = "found without a controller, but with the label of this Milvus"


# The states of a claim that block its pod. `Observed.blocked` can't find "gone": a claim that is
# not listed may just lack our label. `Visit.require_claim` reads it by its name.
BLOCKING = ("Terminating", "Lost", "gone")


class ReadyState(NamedTuple):
    """How ready a pod is. If two of different passes are equal, nothing changed in between."""

    uid: str
    status: str  # of its condition Ready
    since: str  # the time of that condition, by the clock of the node, which may be wrong
    may_serve: bool


class Action(NamedTuple):
    """Something to do; the verbs are methods of `Visit`. Three of them delete a pod: `delete`,
    because it is surplus; `restart`, because it has ended; `replace`, because its template is
    outdated. A later pass creates what is missing then. `require_claim` changes nothing: it fails
    if the claim of a pod is gone."""

    verb: str
    ordinal: int  # or SERVICE
    # The pod or claim as listed. Empty for what is to be created: that is made when it is sent,
    # because a thousand large pods at once would take gigabytes.
    obj: Obj
    because: str = ""

    @property
    def key(self) -> Key:
        return self.verb, self.ordinal


@dataclass(frozen=True)
class Observed:
    """A Milvus, and the objects that have its names, as the lists of a pass show them."""

    milvus: Obj
    named: Objs  # the listed pods that have its names, whoever owns them
    claims: Objs  # those with our label
    lacks_service: bool  # False if that is not known
    time: float  # when the pods were listed, in seconds of the loop's clock
    maybe_deleted: Set[int] = frozenset()  # whose delete got no answer: it may still take effect
    spec: Spec = Spec()
    first_seen: Mapping[ReadyState, float] = field(default_factory=dict)  # when each was first seen

    @cached_property
    def mine(self) -> Objs:
        """Those of the pods that this Milvus owns and finds by its label."""
        return {o: pod for o, pod in self.named.items() if is_ours(self.milvus, pod)}

    @cached_property
    def outdated(self) -> list[int]:
        """The desired ordinals whose pods are outdated."""
        desired = range(self.spec.replicas)
        mine = self.mine
        return [o for o in desired if o in mine and is_outdated(mine[o], self.spec)]

    @cached_property
    def blocked(self) -> dict[int, Why]:
        """The desired ordinals whose claims are being deleted, or have lost their volumes. If the
        pod is there, only that pod still reaches the data: it is left alone. If not, none is
        created until the claim is gone, too."""
        if not self.spec.storage:
            return {}  # then claims are not ours
        found = {}
        for ordinal in sorted(self.claims.keys() & range(self.spec.replicas)):
            claim = self.claims[ordinal]
            state = state_of_claim(claim)
            if state in BLOCKING:
                found[ordinal] = why_claim_blocks(name_of(claim), state, self.mine.get(ordinal))
        return found


def by_ordinal(objects: Iterable[Obj]) -> defaultdict[str, Objs]:
    """Pods or claims by full name without the ordinal, then by ordinal."""
    found = defaultdict[str, Objs](dict)
    for obj in objects:
        if match := re.fullmatch("(.+)-(0|[1-9][0-9]*)", full_name(obj)):
            base, ordinal = match.groups()
            found[base][int(ordinal)] = obj
    return found


def owns(milvus: Obj, pod: Obj) -> bool:
    """Ownership is a UID."""
    return controller_of(pod).get("uid") == uid_of(milvus)


def has_our_label(milvus: Obj, obj: Obj) -> bool:
    return contains(obj["metadata"].get("labels") or {}, our_label(milvus))


def is_ours(milvus: Obj, pod: Obj) -> bool:
    return owns(milvus, pod) and has_our_label(milvus, pod)


def is_orphan(milvus: Obj, pod: Obj) -> bool:
    return has_our_label(milvus, pod) and not controller_of(pod)


def is_outdated(pod: Obj, spec: Spec) -> bool:
    """Whether it is of another template. If the spec is invalid, or the pod has no fingerprint,
    that is not known. If such a pod were replaced, whatever removed the fingerprint would do so
    again, for ever."""
    return not spec.invalid and template_hash_of(pod) not in (None, spec.template_hash)


def is_up_to_date(pod: Obj, spec: Spec) -> bool:
    """Whether it is of this template. An invalid spec has none, so that no pod is of it."""
    return template_hash_of(pod) == spec.template_hash


def state_of_claim(claim: Obj) -> str:
    return "Terminating" if is_ending(claim) else phase_of(claim)


def why_claim_blocks(name: str, state: str, pod: Obj | None) -> Why:
    """What is wrong with a claim that is Terminating, Lost or gone; `pod` is the one that uses
    it."""
    reason = CLAIM_TERMINATING if state == "Terminating" else CLAIM_LOST
    if pod and has_begun(pod) and not is_over(pod):
        text = f"claim {name} is {state}, and only its pod still reaches the data"
        advice = "back it up, or set the volume's reclaim policy to Retain, before the pod ends"
        return Why(reason, f"{text}: {advice}")
    will_go = state == "Terminating" and (not pod or is_ending(pod))  # nothing of ours keeps it
    if will_go:
        return Why(WAITING, f"claim {name} is being deleted; a new pod waits until it is gone")
    text = f"claim {name} is {state}, and its pod is not running"
    # What to delete: a Lost claim; otherwise the old pod, which holds a Terminating claim, or waits
    # for one that is gone.
    holder = "claim" if state == "Lost" else "pod"
    advice = f"if nobody needs that data, delete the {holder}"
    # As Milvus does with an empty etcd: see `refuse_dangers`.
    effect = "the next pod starts empty, and deletes the vectors if they are in a bucket"
    return Why(reason, f"{text}: {advice}; {effect}")


def decide(seen: Observed, refused: RefusedKeys) -> Iterator[Action]:
    """Everything that should be done about the objects with our names, in the order in which it is
    done: pods that are surplus or have ended are deleted before others are created, because that
    makes room in a quota, and what can wait comes last."""
    spec = seen.spec
    yield from tidy(seen)
    yield from complete(seen)
    yield from roll(seen, refused)
    for ordinal, claim in sorted(seen.claims.items()):
        if spec.storage and ordinal < spec.replicas and may_grow(claim, spec):
            yield Action("grow", ordinal, claim, f"spec.storage.size is {spec.storage['size']}")
    if seen.lacks_service:
        yield Action("expose", SERVICE, {})


def tidy(seen: Observed) -> Iterator[Action]:
    """Adopt orphans, delete surplus pods, and those that have ended."""
    milvus, spec = seen.milvus, seen.spec
    for ordinal, pod in sorted(seen.named.items()):
        if is_ending(pod):
            continue
        if is_orphan(milvus, pod):
            yield Action("adopt", ordinal, pod, ORPHANED)
        elif ordinal not in seen.mine:
            continue  # a stranger: see `complete`
        elif ordinal >= spec.replicas:
            yield Action("delete", ordinal, pod, f"spec.replicas is {spec.replicas}")
        elif is_finished(pod) and ordinal not in seen.blocked:
            yield Action("restart", ordinal, pod, why_not_ready(pod).reason)


def complete(seen: Observed) -> Iterator[Action]:
    """Create the pods that are missing, once their old claims are gone; then the claims of those
    that have none."""
    milvus, spec = seen.milvus, seen.spec
    # Without strangers, somebody else's pods with our names: their create fails, and tells whose
    # they are.
    taken = {o for o, pod in seen.named.items() if is_ending(pod) or is_orphan(milvus, pod)}
    absent = {*range(spec.replicas)} - seen.mine.keys() - taken - seen.blocked.keys()
    for ordinal in sorted(absent):
        yield Action("create", ordinal, {})
    for ordinal, pod in sorted(seen.mine.items()):
        is_there = ordinal < spec.replicas and not is_over(pod)
        if spec.storage and is_there and ordinal not in seen.claims:
            # One that has begun had a claim, with data in it: perhaps that only lacks our label.
            yield Action("require_claim" if has_begun(pod) else "claim", ordinal, pod)


def may_grow(claim: Obj, spec: Spec) -> bool:
    """Whether a claim requests less than this, and is Bound: before that, it cannot be changed."""
    if is_ending(claim) or phase_of(claim) != "Bound":
        return False
    return parse_quantity(claim["size"]) < parse_quantity(spec.storage["size"])


# If several rows match, the last one applies.
# A pod that is desired and …              is replaced       a roll waits for it
#   missing, or a stranger has its name    no                yes
#   ending                                 no                yes
#   ended                                  no                yes
#   up to date and Ready                   no                until it has been so for
#                                                            minReadySeconds
#   up to date and not Ready               no                yes
#   outdated and Ready                     in its turn       no
#   outdated, its node fell silent         no                yes: it may serve, and may come back
#   outdated, not Ready, its containers    no                yes, for a minute: its kubelet may have
#   run                                                      restarted
#   outdated and serving nobody            at once           yes, unless it can't be replaced
#   outdated, running or ended, and its    no                only if its node fell silent; otherwise
#   claim will not stay                                      a person must act
# A pod that is surplus and …              is deleted        a roll waits for it
#   may serve, and is not ending yet       yes               yes, unless the API server refuses it
#   anything else                          yes               no
# While a delete may still take effect, no other pod that is Ready is replaced. The rows are tested
# by ACTIONS and by what follows it in tests/test_core.py.
def roll(seen: Observed, refused: RefusedKeys) -> Iterator[Action]:
    """Replace the pods whose template is outdated. Those that serve nobody go at once: a roll must
    not wait for a broken pod (kubernetes/kubernetes#67250). Of those that are Ready, the one with
    the highest ordinal goes, and only if no other pod is unavailable, or may be at any moment."""
    if seen.spec.updates_on_delete:
        return
    mine = seen.mine
    turns = [ordinal for ordinal in seen.outdated if ordinal not in seen.blocked]
    actions = {o: Action("replace", o, mine[o], OUTDATED) for o in turns}
    for ordinal, action in actions.items():
        if is_broken(mine[ordinal], seen):
            yield action
    if must_roll_wait(seen, refused):
        return
    for ordinal, action in reversed(actions.items()):
        is_another_unsure = bool(seen.maybe_deleted - {ordinal})
        if is_ready(mine[ordinal]) and action.key not in refused and not is_another_unsure:
            yield action
            return


def must_roll_wait(seen: Observed, refused: RefusedKeys) -> bool:
    """Whether a roll waits for any pod."""
    ordinals = {*range(seen.spec.replicas), *seen.mine}
    return any(is_waited_for(ordinal, seen, refused) for ordinal in ordinals)


def is_waited_for(ordinal: int, seen: Observed, refused: RefusedKeys) -> bool:
    """Whether a roll waits for this pod: see the table. A surplus one that may serve counts: this
    pass deletes it, and no pass may take down two pods that serve."""
    pod = seen.mine.get(ordinal)
    if not pod:
        return True
    if ordinal >= seen.spec.replicas:
        return may_serve(pod) and ("delete", ordinal) not in refused
    if not is_outdated(pod, seen.spec):
        return not is_ready(pod) or seconds_in_state(pod, seen) < seen.spec.min_ready
    if ordinal in seen.blocked and not is_ending(pod):
        return may_serve(pod) and not is_ready(pod)
    if is_broken(pod, seen):
        return ("replace", ordinal) not in refused
    return not is_ready(pod)


def ready_state_of(pod: Obj) -> ReadyState:
    ready = condition_of(pod, "Ready")
    since = ready.get("lastTransitionTime") or ""
    return ReadyState(uid_of(pod), ready.get("status", ""), since, may_serve(pod))


def age_of(state: ReadyState, now: datetime) -> float:
    """For how many seconds a pod has been Ready, by the clocks of its kubelet and of this host; if
    no time is given, for ever. If it is not Ready, 0: the time of its condition says nothing about
    its containers."""
    if state.status != "True":
        return 0
    if not state.since:
        return inf
    return max(0, (now - datetime.fromisoformat(state.since)).total_seconds())


def seconds_in_state(pod: Obj, seen: Observed) -> float:
    """For how long a pod has been Ready, or not Ready. A state that is not in `first_seen`, as
    after the fresh look in `Visit.replace`, counts as 0 seconds."""
    return seen.time - seen.first_seen.get(ready_state_of(pod), seen.time)


PROBING = 60  # seconds for which a pod that is not Ready, but runs, does not count as broken


def is_broken(pod: Obj, seen: Observed) -> bool:
    """Whether it starts or runs, but serves nobody, so that nothing is lost by replacing it. When a
    kubelet restarts, its pods look so until their next probes (kubernetes/kubernetes#100277)."""
    if may_serve(pod) or is_over(pod):
        return False
    return not all_run(pod) or seconds_in_state(pod, seen) >= PROBING


def why_name_is_taken(milvus: Obj, pod: Obj) -> Why:
    """Why a desired pod cannot be created: this pod already has its name. It has been read anew,
    because a listed one lacks the kind and the name of its owner."""
    name = name_of(pod)
    owner = controller_of(pod)
    # Three that resolve themselves.
    if is_ending(pod):
        return Why(WAITING, f"an earlier pod {name} is being deleted")
    if is_ours(milvus, pod) or is_orphan(milvus, pod):
        return Why(WAITING, f"pod {name} has come since the pods were listed")
    if is_of_namesake(milvus, owner):
        text = f"pod {name} belongs to an earlier Milvus of this name"
        return Why(WAITING, f"{text}: the garbage collector deletes it")
    if owns(milvus, pod):
        text = f"pod {name} of this Milvus has lost its label, so the operator does not find it"
        return Why(NAME_CONFLICT, f"{text}: give it the label {selector_of(milvus)}")
    whose = f"belongs to {owner['kind']} {owner['name']}" if owner else "has no controller"
    text = f"pod {name} already exists and {whose}, so the operator does not touch it"
    advice = "if nobody needs it, delete it; or create the Milvus under another name"
    if not owner:
        orphan = f"if it is an orphan of this Milvus, give it the label {selector_of(milvus)}"
        advice = f"{orphan}; {advice}"
    return Why(NAME_CONFLICT, f"{text}: {advice}")


def is_of_namesake(milvus: Obj, owner: Obj) -> bool:
    """Whether an owner is an earlier Milvus of this name."""
    keys = ("kind", "name")
    is_same = pick(owner, keys) == pick(reference_to(milvus), keys)
    is_of_our_group = owner.get("apiVersion", "").startswith(f"{GROUP}/")
    return is_same and is_of_our_group and owner.get("uid") != uid_of(milvus)


# ---------- Say: status, conditions and events; as pure as what decides ----------

# The message of Reconciled if all is well. To change the words is safe: it costs one status update
# and one event for each Milvus.
MATCHING = "the operator can do what the spec asks; the condition Ready says how the pods are"
OURS = ("Ready", "Reconciled", "Stalled")  # conditions


def readiness(seen: Observed, problems: Problems) -> tuple[bool, Why]:
    """Whether the Ready condition is true, and what it says."""
    spec = seen.spec
    unready = {}
    outdated = {}
    for ordinal in range(spec.replicas):
        pod = seen.mine.get(ordinal)
        if not pod:
            unready[ordinal] = problems.get(ordinal, Why("Creating", "it does not exist yet"))
        elif is_finished(pod):  # if it could not be restarted, that says more
            unready[ordinal] = problems.get(ordinal, why_not_ready(pod))
        elif not is_ready(pod):
            unready[ordinal] = why_not_ready(pod)
        elif not is_up_to_date(pod, spec):
            outdated[ordinal] = problems.get(ordinal, why_outdated(pod))
    text = f"{spec.replicas - len(unready)} of {spec.replicas} pods are ready"
    if not spec.updates_on_delete:
        unready |= outdated  # last, because a rolling update waits for the others
        text += f", {len(outdated)} of them outdated" if outdated else " and up to date"
    elif outdated:
        text += f"; outdated until somebody deletes them: {len(outdated)}"
    if not unready:
        return True, Why("Ready", text)
    stuck = [ordinal for ordinal, why in unready.items() if why.reason not in TRANSIENT]
    shown = next(iter(stuck or unready))
    reason, message = unready[shown]
    return False, Why(reason, f"{text}; {pod_name(seen.milvus, shown)}: {message or reason}")


def reconciliation(seen: Observed, problems: Problems, lasting: Set[str]) -> Why:
    """What the Reconciled condition says: the first failure of these; if there is none, the first
    of all."""
    spec = seen.spec
    found: list[Why] = []
    if spec.is_text:
        text = "spec.milvusSpec is not a YAML mapping, so it sets nothing"
        found.append(Why(SPEC_IS_TEXT, text))
    # Once any wait has lasted, fresh ones are told, too: else the message would jump between pods.
    tells_waits = WAITING in lasting
    found += [why for _, why in sorted(problems.items()) if why.reason != WAITING or tells_waits]
    for ordinal, pod in sorted(seen.mine.items()):
        if ordinal < spec.replicas and not is_over(pod) and not template_hash_of(pod):
            found.append(why_outdated(pod))
    for ordinal, claim in sorted(seen.claims.items()):
        if spec.storage and ordinal < spec.replicas and (why := why_it_cannot_grow(claim)):
            found.append(why)
    found.append(Why(RECONCILED, MATCHING))
    return next((why for why in found if why.reason not in SUCCESSES), found[0])


def why_outdated(pod: Obj) -> Why:
    """What is said of a pod that is outdated or, without a fingerprint, may be."""
    if template_hash_of(pod):
        return Why("Updating", OUTDATED)
    text = f"pod {name_of(pod)} has no annotation {TEMPLATE_HASH}"
    stop = "if a policy removes annotations, stop that"
    advice = f"{stop}; then delete the pod, but without spec.storage, its data goes with it"
    return Why(TEMPLATE_UNKNOWN, f"{text}, so it may not be up to date: {advice}")


def why_it_cannot_grow(claim: Obj) -> Why | None:
    """What a claim says if its driver can't give it the size that it requests."""
    states = claim["status"].get("allocatedResourceStatuses") or {}
    state = states.get("storage", "")
    error = condition_of(claim, "ControllerResizeError") or condition_of(claim, "NodeResizeError")
    if error.get("status") == "True" or state.endswith(("Infeasible", "Failed")):
        words = error.get("message") or state
        return Why(state or error["type"], f"claim {name_of(claim)} cannot grow: {words}")
    return None


def status_of(seen: Observed, problems: Problems, lasting: Set[str], now: str) -> Obj:
    """The status of a Milvus. `problems` says what has failed, and `lasting` which reasons have
    persisted for a while; `now` is a time in RFC 3339."""
    milvus, spec = seen.milvus, seen.spec
    problems = seen.blocked | dict(problems)
    present = [pod for _, pod in sorted(seen.mine.items()) if not is_ending(pod)]
    if spec.invalid:
        text = f"{spec.invalid}; until that is corrected, nothing is done about its pods"
        ready = reconciled = Why(INVALID, text)
        all_ready = False
    else:
        all_ready, ready = readiness(seen, problems)
        reconciled = reconciliation(seen, problems, lasting)
    generation = milvus["metadata"]["generation"]
    is_reconciled = reconciled.reason in SUCCESSES
    conditions = [
        new_condition(milvus, "Ready", all_ready, ready, now),
        new_condition(milvus, "Reconciled", is_reconciled, reconciled, now),
    ]
    # Once set for this generation, Stalled stays while the reason is one of STALLED: after a
    # restart, the operator does not know for how long it has failed.
    was_stalled = condition_of(milvus, "Stalled").get("observedGeneration") == generation
    is_stalled = spec.invalid or was_stalled or reconciled.reason in lasting
    if reconciled.reason in STALLED and is_stalled:
        conditions.append(new_condition(milvus, "Stalled", True, reconciled, now))
    others = [item for item in conditions_of(milvus) if item["type"] not in OURS]
    return {
        "observedGeneration": generation,
        "replicas": len(present),
        "readyReplicas": sum(map(is_ready, present)),
        "updatedReplicas": sum(is_up_to_date(pod, spec) for pod in present),
        "pods": [name_of(pod) for pod in present],
        "selector": selector_of(milvus),
        "conditions": conditions + others,
    }


def our_part(status: Obj) -> Obj:
    """A status without the conditions of others."""
    ours = [item for item in status.get("conditions") or [] if item["type"] in OURS]
    return status | {"conditions": ours}


def new_condition(milvus: Obj, type_: str, is_true: bool, why: Why, now: str) -> Obj:
    """A condition in the standard form. Its time changes only with its status."""
    old = condition_of(milvus, type_)
    is_same = old.get("status") == str(is_true)
    return {
        "type": type_,
        "status": str(is_true),
        "observedGeneration": milvus["metadata"]["generation"],
        "lastTransitionTime": old.get("lastTransitionTime", now) if is_same else now,
        "reason": why.reason,
        "message": why.message[:1024],
    }


def state_of(status: Obj) -> str:
    """The state of a Milvus, for the metrics."""
    if condition_of({"status": status}, "Reconciled")["status"] == "False":
        return FAILED
    is_true = condition_of({"status": status}, "Ready")["status"] == "True"
    return READY if is_true else PROGRESSING


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


def sentence(what: str, names: Sequence[str], because: str) -> str:
    """What has been changed about these pods or claims, for the log and for an event."""
    plural = "s" if len(names) > 1 else ""
    text = f"{what}{plural} {', '.join(names)}"
    return f"{text}: {because}" if because else text


# ---------- Retries: when to try again ----------


# In seconds.
FIRST_DELAY = 1  # before what has failed is tried again, or a pod is created again; it doubles
FIRST_PACE = 10  # before any other action that was done is done again; it doubles, too
LONGEST_DELAY = 60
LASTING = 30  # until then, what is missing may still arrive in the same `kubectl apply`
QUIET = 600  # after this long without another try, pacing starts afresh


# The life of a write, in which a visit tries to do something about one pod or claim, or the status.
#
#   what comes of it             what is remembered        what later passes do
#   done                         when; of a delete or a    it, if it is due again, after 10 s,
#                                status, nothing           20 s, 40 s, then a minute; a create
#                                                          after 1 s, 2 s, 4 s, 8 s, then 10 s
#   REFUSED: the API server      the problem               it again, after 1 s, 2 s, 4 s … a minute;
#   has said no                                            a roll takes another pod meanwhile
#   LOST: there was no answer,   the problem, also under   it again, after what has not failed
#   or "later" (429)             ANSWER
#     and it was a delete        also the pod's UID, in    a roll waits for a minute, even after a
#                                `Api.unanswered`          new spec: the delete may take effect
#   OBJECTED: its dry run was    the problem               it again, after 1 s, 2 s …; a roll
#   refused                                                waits, as another would be refused, too
#   STALE: the lists were old    nothing, unless it was    what is to do by new lists; after an
#                                an answer (Conflict …):   answer, in 1 s, 2 s …: a webhook may say
#                                then the problem          so for ever
#
# Forgotten: what is done; a failure, once there is nothing left to do; pacing, after ten quiet
# minutes. A new spec, which may be the cure, forgets everything except lost deletes, and when a pod
# was replaced or restarted. A status is done when a list shows it.
class Try(NamedTuple):
    """The last time that something was tried, and what came of it."""

    tried: float  # when
    delay: float  # seconds before it may be tried again
    problem: Why | None = None  # why it failed; None: it was done
    since: float = 0  # when it began to fail for this reason
    is_refused: bool = False  # then `roll` goes on to another pod; else it yields this one again

    @property
    def until(self) -> float:
        return self.tried + self.delay


class Retries:
    """What is remembered of a Milvus. Callers pass the time, in seconds. Losing it costs one more
    try.

    With `tries_once` (--once, --dry-run), no action on a pod or claim is tried a second time for
    the same spec, except after a Conflict (`Visit.needs_delay`). The status is still written."""

    def __init__(self, tries_once: bool = False) -> None:
        self.tries_once = tries_once
        self.tries: dict[Key, Try] = {}  # the last of each

    def waits(self, key: Key, now: float) -> bool:
        return key in self.tries and now < self.tries[key].until

    def failed(
        self,
        key: Key,
        now: float,
        problem: Why,
        is_refused: bool = False,
        most: float = LONGEST_DELAY,
    ) -> None:
        """Wait for longer and longer, but for `most` seconds at most."""
        last = self.tries.get(key)
        since, last_delay = now, 0.0
        if last and last.problem:
            last_delay = last.delay
            if last.problem.reason == problem.reason:
                since = last.since
        delay = self.next_delay(FIRST_DELAY, last_delay, most)
        self.tries[key] = Try(now, delay, problem, since, is_refused)

    def succeeded(self, key: Key, now: float) -> None:
        verb, ordinal = key
        last = self.tries.pop(key, None)
        # What may have to be done for ever, as when something deletes each new pod, is paced. Not
        # `delete`: what is surplus again must not wait.
        if ordinal is not None and (verb != "delete" or self.tries_once):
            last_delay = last.delay if last and not last.problem else 0
            first, most = FIRST_PACE, LONGEST_DELAY
            if verb == "create":  # a lost pod must come back soon
                first, most = FIRST_DELAY, FIRST_PACE
            self.tries[key] = Try(now, self.next_delay(first, last_delay, most))

    def next_delay(self, first: float, last_delay: float, most: float) -> float:
        """How many seconds to wait after this try."""
        return inf if self.tries_once else min(max(first, 2 * last_delay), most)

    def for_another_spec(self) -> Retries:
        """What survives a new spec: when each pod was last replaced or restarted
        (test_two_managers_that_fight_over_an_image_restart_a_database_once_in_ten_seconds). A spec
        that is really new waits for no more than that."""
        kept = Retries(self.tries_once)
        for (verb, ordinal), last in self.tries.items():
            # With --once, a new spec is tried at once.
            if verb in ("replace", "restart") and not last.problem and not self.tries_once:
                kept.tries[verb, ordinal] = Try(last.tried, FIRST_PACE)
        return kept

    def keep_only(self, keys: set[Key], now: float) -> None:
        """Forget what failed and is no longer needed, and what was last tried long ago."""
        for key, last in list(self.tries.items()):
            is_moot = last.problem and key not in keys
            is_old = now >= last.tried + QUIET and now >= last.until
            if is_moot or is_old:
                del self.tries[key]

    def problems(self) -> Problems:
        """What has failed, by ordinal; of several problems of one, that of the first verb by name,
        so that the message does not flicker."""
        found: dict[int, Why] = {}
        for (_verb, ordinal), last in sorted(self.tries.items(), key=lambda item: item[0][0]):
            if last.problem and ordinal is not None:
                found.setdefault(ordinal, last.problem)
        return found

    def lasting(self, now: float) -> set[str]:
        """The reasons of what has been failing for a while, or will not be tried again."""
        return {
            last.problem.reason
            for (_verb, ordinal), last in self.tries.items()
            if last.problem and ordinal is not None
            if self.tries_once or now >= last.since + LASTING
        }

    def failed_at(self, key: Key) -> float:
        """When the last try failed; -inf: it did not."""
        last = self.tries.get(key)
        return last.tried if last and last.problem else -inf

    def has_failed(self, key: Key, now: float) -> bool:
        """Whether the last try failed, in a way that does not resolve itself, or for a while."""
        last = self.tries.get(key)
        if not last or not last.problem:
            return False
        return last.problem.reason != WAITING or self.tries_once or now >= last.since + LASTING

    def refused(self, now: float) -> RefusedKeys:
        """What the API server has refused, and is not to be tried again yet."""
        return {key for key, last in self.tries.items() if last.is_refused and now < last.until}

    def next(self, now: float) -> float:
        """When something may be tried again next."""
        return min((r.until for r in self.tries.values() if r.until > now), default=inf)


# ---------- The API: the only part that knows about HTTP ----------


def by_gvr(api: ApiClient, group: str, version: str, kind: str, name: str, **more: Any) -> Resource:
    """A resource of the dynamic client, without its discovery requests and its cache file."""
    # The client only stores its discoverer.
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


class Failure(Enum):
    """What the failure of a write means for later passes: see the table above `Try`."""

    STALE = "the decision was based on old lists"
    LOST = "there was no usable answer, so it may still take effect"
    OBJECTED = "its dry run was refused"
    REFUSED = "the API server, or a look at the claim, has said no"


@dataclass(eq=False)  # an exception must have a hash
class ApiError(Exception):
    """A request that failed, classified once, where it is made."""

    why: Why  # what it means for the Milvus concerned, in the server's words
    failure: Failure
    code: int = 0  # of HTTP; 0: there was no valid response
    status_reason: str = ""  # the `reason` of the server's Status object

    def __str__(self) -> str:
        return self.why.message

    @property
    def would_fail_for_all(self) -> bool:
        """Whether the same request for another pod of the Milvus would fail, too. Invalid
        does not count, because it may be about this one pod."""
        return self.code >= 500 or self.code == 403


QUOTA = re.compile(r'\S+ "[^"]*" is forbidden: exceeded quota: ')
SILENCE = ": perhaps an admission webhook is slow, or a load balancer has dropped the connection"
NOT_KUBERNETES = "the response did not come from a Kubernetes API server"


def no_answer(text: str) -> ApiError:
    message = " ".join(without_secrets(text).split())
    return ApiError(Why(API_ERROR, message[:1000]), Failure.LOST)


def stale(text: str) -> ApiError:
    return ApiError(Why(WAITING, text), Failure.STALE)


def status_in(body: Any) -> tuple[Obj, list[str]]:
    """The Status object that is the body of a response, and the reasons of its causes."""
    with suppress(ValueError, TypeError, AttributeError, RecursionError):  # it may be anything
        status = dict(json.loads(body))
        causes = (status.get("details") or {}).get("causes") or []
        return status, [cause.get("reason") for cause in causes]
    return {}, []


def rejection(error: ApiException) -> ApiError:
    """What a response means. Its body is a Status object if the API server wrote it."""
    code = error.status
    if not code:  # TLS has failed
        return no_answer(str(error.reason))
    status, causes = status_in(error.body)
    words = status.get("message") or error.reason or f"HTTP {code}"
    message = " ".join(str(words).split())[:1000]
    status_reason = status.get("reason") or ""
    failure = Failure.REFUSED
    reason = {400: INVALID, 422: INVALID, 403: FORBIDDEN}.get(code, API_ERROR)
    if status_reason in ("Conflict", "NotFound", "AlreadyExists"):
        failure, reason = Failure.STALE, WAITING
    elif NAMESPACE_TERMINATING in causes:
        reason = NAMESPACE_TERMINATING
    elif code == 429:  # it asks to come later
        failure, reason = Failure.LOST, WAITING
    elif code >= 500 and status_reason != "InternalError":
        # An InternalError is a refusal: a webhook has failed, and nothing was written.
        failure = Failure.LOST
    elif code == 403 and QUOTA.match(message):  # only its words tell
        reason = QUOTA_EXCEEDED
    return ApiError(Why(reason, message), failure, code, status_reason)


# In seconds.
ONE_REQUEST = 10  # a write, or a read of one object, that takes longer has failed
SERVER_TIMEOUT = 60  # after this long, an API server has given up a request that it did not answer
# Of lists.
PAGE = 250  # objects in a page, at most
PAGE_BYTES = 4 << 20  # a heavier page of several objects is asked for again, smaller

# --- What is kept of the lists ---
# In `{"apiVersion": …, "items": […], "metadata": {…}}`, whatever the order of the keys, the first
# "items" is the list's own, and the last bracket of the body ends it. Without the metadata, whose
# version changes all the time, a page can be recognized by its digest. tests/test_lists.py has odd
# pages.
ITEMS = re.compile(rb'"items"\s*:\s*(\[.*\])', re.DOTALL)
METADATA = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "deletionTimestamp",
    "finalizers",
)


Lists = dict[str, list[Obj]]  # what a pass lists, by plural, such as "pods"
Pages = dict[bytes, list[Obj]]  # the objects of a list, by the digests of its pages


class Listing(NamedTuple):
    """How to ask for a list."""

    resource: Resource
    selector: str
    slim: Callable[[Obj], Obj]  # what is kept of an object


# How much is kept of what others may make as long as they like.
MAX_TEXT = 64  # characters; no UID or hash is longer
MAX_FINALIZERS = 9


def slim(obj: Obj) -> Obj:
    """What is kept of any object: of what may be large, only what is read. To read something else,
    such as another annotation, add it here."""
    metadata = pick(obj["metadata"], METADATA)
    finalizers = metadata.get("finalizers") or []
    metadata["finalizers"] = finalizers[:MAX_FINALIZERS]
    ours = pick(obj["metadata"].get("annotations") or {}, [TEMPLATE_HASH])
    metadata["annotations"] = {key: text[:MAX_TEXT] for key, text in ours.items()}
    metadata["labels"] = pick(obj["metadata"].get("labels") or {}, [MILVUS_LABEL])
    owner = controller_of(obj)
    metadata["ownerReferences"] = (
        [{"controller": True, "uid": owner["uid"][:MAX_TEXT]}] if owner else []
    )
    status = obj.get("status")  # of any type, under an older CRD
    return {"metadata": metadata, "status": status if isinstance(status, dict) else {}}


def slim_pod(pod: Obj) -> Obj:
    """What is kept of a pod. Half of its status is about containers: images, mounts, resources."""
    slimmed = slim(pod)
    containers = {
        part: [pick(one, ("ready", "state", "lastState")) for one in statuses]
        for part, statuses in pick(slimmed["status"], (INIT_CONTAINERS, CONTAINERS)).items()
    }
    return slimmed | {"status": slimmed["status"] | containers}


def slim_claim(claim: Obj) -> Obj:
    """What is kept of a claim: of its spec, only the size that it requests."""
    requests = claim.get("spec", {}).get("resources", {}).get("requests", {})
    return slim(claim) | {"size": requests.get("storage")}


def slim_milvus(milvus: Obj) -> Obj:
    """What is kept of a Milvus, with its spec as JSON: as parsed dicts, some specs would take
    thirty times the memory. A spec or status that is too large, or nested too deeply to be written
    again, is left out."""
    slimmed = slim(milvus)
    if not short_json(slimmed["status"]):
        slimmed["status"] = {}
    if "spec" in milvus and (written := short_json(milvus["spec"])):
        slimmed["written_spec"] = written
    return slimmed


def short_json(value: Any) -> bytes:
    """As JSON; empty if that is too long, or if the value is nested too deeply."""
    with suppress(RecursionError):
        # Not the text: with one emoji in it, each of its characters takes four bytes.
        written = json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass")
        if len(written) <= MAX_SPEC:
            return written
    return b""


def split_page(body: bytes) -> tuple[bytes, str]:
    """The items of a page, as JSON, and the token of the next one; empty: it is the last one."""
    found = ITEMS.search(body)
    if not found:
        raise no_answer(NOT_KUBERNETES)
    start, end = found.span(1)
    rest = parse(body[:start] + b"[]" + body[end:])
    if not isinstance(rest.get("metadata"), dict):
        raise no_answer(NOT_KUBERNETES)
    return body[start:end], rest["metadata"].get("continue", "")


def parse(body: bytes) -> Any:
    """The JSON of a response; raises RecursionError, too, if it is nested too deeply."""
    try:
        return json.loads(body)
    except ValueError:
        raise no_answer(NOT_KUBERNETES) from None


def parse_object(body: bytes, *kinds: str) -> Obj:
    """The object in a response, of one of these kinds. Something else than an API server may
    respond with 200, too."""
    answer = parse(body)
    kind = answer.get("kind") if isinstance(answer, dict) else None
    if kind not in kinds:
        raise no_answer(NOT_KUBERNETES)
    return dict(answer)


@dataclass
class Api:
    """The requests to one API server. The methods raise ApiError."""

    client: ApiClient
    reload: Callable[[], ApiClient]  # loads the configuration anew; raises Unusable
    renew: Callable[[Any], None]  # renews a token that has expired; raises Unusable
    timeout: float = 30  # for a list, in seconds
    dry_run: bool = False
    clock: Callable[[], float] = time.monotonic
    stopping: threading.Event = field(default_factory=threading.Event)  # no write begins any more
    deadline: float = inf  # after which no action on a pod, a claim or a Service begins

    def __post_init__(self) -> None:
        self.dry_run_note = " (dry run)" if self.dry_run else ""
        self.pages = defaultdict[Any, Pages](dict)  # of the last lists
        self.progressed = self.clock()  # when a request last ended, or a pass began
        self.changed = self.clock()  # when a list last showed something new
        self.unanswered: dict[str, float] = {}  # when a delete got lost, by the pod's UID
        self.use(self.client)

    def use(self, client: ApiClient) -> None:
        self.client = client
        self.must_reload = False  # the configuration, before the next pass
        self.server = without_secrets(client.configuration.host)
        self.pods = pods(client)
        self.claims = by_gvr(client, "", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
        self.services = by_gvr(client, "", "v1", "Service", "services")
        self.milvuses = milvuses(client)
        self.events = by_gvr(client, "events.k8s.io", "v1", "Event", "events")
        # In this order: a Milvus that was listed before its pods may have been scaled up since, and
        # they would seem to be surplus.
        self.listings = (
            Listing(self.pods, MILVUS_LABEL, slim_pod),
            Listing(self.claims, MILVUS_LABEL, slim_claim),
            Listing(self.services, MILVUS_LABEL, slim),
            Listing(self.milvuses, "", slim_milvus),
        )

    def log_in(self) -> None:
        """Before each pass: load the configuration anew if a list was not answered or the server
        has rejected the credentials, and renew a token that has expired. Raises Unusable."""
        if self.must_reload:
            self.use(self.reload())
        try:
            self.renew(self.client)
        except Unusable:
            self.must_reload = True
            raise

    def may_act(self) -> bool:
        return self.clock() < self.deadline and not self.stopping.is_set()

    def list_all(self, namespace: str | None, listing: Listing) -> list[Obj]:
        """All objects of a list of a pass. A page that is the same as in the last list is not
        parsed again, which saves most of the CPU time of a quiet pass. So passes share the listed
        dicts: nothing may ever change one."""
        known = self.pages[listing.resource.name, namespace]
        pages = self.get_pages(namespace, listing, known, self.timeout)
        if pages.keys() != known.keys():
            self.changed = self.clock()
        self.pages[listing.resource.name, namespace] = pages
        return [obj for objects in pages.values() for obj in objects]

    def list_now(self, milvus: Obj) -> Objs:
        """The pods that have the names of a Milvus and its label, as they are at this moment."""
        listing = Listing(self.pods, selector_of(milvus), slim_pod)
        pages = self.get_pages(namespace_of(milvus), listing, {}, ONE_REQUEST)
        return by_ordinal(obj for objects in pages.values() for obj in objects)[full_name(milvus)]

    def get_pages(
        self, namespace: str | None, listing: Listing, known: Pages, timeout: float
    ) -> Pages:
        """A list, page by page. A page that weighs too much, or is nested too deeply for Python, is
        asked for again, smaller; an object that alone is too deep is left out."""
        pages: Pages = {}
        token = ""
        limit = PAGE
        while True:
            # Without a resourceVersion, a list shows the effect of every write that has ended.
            body = self.request(
                "get",
                listing.resource,
                {"namespace": namespace},
                timeout=timeout,
                most=PAGE_BYTES + 1 if limit > 1 else None,
                label_selector=listing.selector or None,
                limit=limit,
                _continue=token or None,
            )
            if limit > 1 and len(body) > PAGE_BYTES:
                limit = max(1, limit // 4)
                continue
            items, following = split_page(body)
            digest = hashlib.blake2b(items).digest()
            objects = known.get(digest)
            if objects is None:
                with suppress(RecursionError):
                    objects = [listing.slim(obj) for obj in parse(items)]
            if objects is None and limit > 1:
                limit = max(1, limit // 4)
                continue
            if objects is None:
                what = f"one of the {listing.resource.name} in {scope(namespace)}"
                log.warning("%s is nested too deeply, and is skipped", what)
                objects = []
            pages[digest] = objects  # in order; pages of equal digest can only be empty ones
            token = following
            if not token:
                return pages
            if 2 * len(body) <= PAGE_BYTES:  # else the next page might be too heavy again
                limit = min(2 * limit, PAGE)

    def request(
        self,
        verb: str,
        resource: Resource,
        target: Obj,
        timeout: float = ONE_REQUEST,
        most: int | None = None,
        **options: Any,
    ) -> bytes:
        """Send a request about the target, the metadata of an object with its namespace and name.
        Returns the response, or only its first `most` bytes."""
        options |= pick(target, ("namespace", "name"))
        options["serialize"] = False
        options["_request_timeout"] = min(self.timeout, timeout)
        try:
            response = getattr(resource, verb)(**options)
            body = bytes(response.read(most))
            response.close()  # if it was not read to its end, so is the connection
            return body
        except ApiException as error:
            raise rejection(error) from None
        except urllib3.exceptions.ReadTimeoutError:
            text = f"Read timed out after {options['_request_timeout']:g} s"
            raise no_answer(text + ("" if verb == "get" else SILENCE)) from None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise no_answer(f"{type(error).__name__}: {error}") from None
        finally:
            if resource is not self.events:  # they are sent beside the loop
                self.progressed = self.clock()

    def write(self, verb: str, resource: Resource, target: Obj, **options: Any) -> Obj:
        """Send a write; returns the object of the response."""
        if self.stopping.is_set():
            raise stale("the operator is about to stop")
        if self.dry_run:
            options["dry_run"] = "All"
        body = self.request(verb, resource, target, **options)
        return parse_object(body, resource.kind, "Status")  # after a delete, it may be either

    def find(self, resource: Resource, obj: Obj) -> Obj | None:
        """The object of that name, if there is one."""
        try:
            return parse_object(self.request("get", resource, obj["metadata"]), resource.kind)
        except ApiError as error:
            if error.status_reason == "NotFound":
                return None
            raise

    def create(self, resource: Resource, obj: Obj, **options: Any) -> None:
        """Create an object. The server rejects a misspelled field instead of dropping it."""
        strict = [("fieldValidation", "Strict")]
        self.write("create", resource, obj["metadata"], body=obj, query_params=strict, **options)

    def patch(self, resource: Resource, obj: Obj, change: Obj, **options: Any) -> Obj:
        """Change an object, unless somebody else has changed it since it was listed."""
        metadata = pick(obj["metadata"], ["resourceVersion"]) | change.get("metadata", {})
        body = change | {"metadata": metadata}
        return self.write("patch", resource, obj["metadata"], body=body, **options)

    def write_status(self, milvus: Obj, status: Obj) -> None:
        merge = "application/merge-patch+json"  # custom resources reject the client's default
        answer = self.patch(self.milvuses.status, milvus, {"status": status}, content_type=merge)
        if not contains(answer.get("status") or {}, status):
            raise no_answer("the API server has not kept it: is the CRD an older one?")

    def check(self, pod: Obj) -> None:
        """Find out by a dry run whether the API server accepts such a pod. Whether the name is
        taken is what it checks last, so AlreadyExists means that it accepts the rest. An exceeded
        quota is no objection, because the old pod will make room."""
        try:
            self.create(self.pods, pod, dry_run="All")
        except ApiError as error:
            if error.status_reason == "AlreadyExists" or error.why.reason == QUOTA_EXCEEDED:
                return
            if error.code and error.failure is not Failure.LOST:
                error.failure = Failure.OBJECTED  # it is not the delete that was refused
                error.why = Why(error.why.reason, f"in a dry run: {error.why.message}")
            raise

    def delete(self, pod: Obj) -> None:
        """Delete a pod. If it was not Ready when it was listed, it must not have changed since: it
        may have become Ready (test_a_pod_that_became_ready_since_it_was_listed…)."""
        keys = ["uid"] if is_ready(pod) else ["uid", "resourceVersion"]
        body: Obj = {"preconditions": pick(pod["metadata"], keys)}
        if self.dry_run:  # in the body: if there is a body, the API server ignores ?dryRun=All
            body["dryRun"] = ["All"]
        try:
            self.write("delete", self.pods, pod["metadata"], body=body)
        except ApiError as error:
            if error.failure is Failure.LOST and error.code != 429:  # which is an answer
                self.unanswered[uid_of(pod)] = self.clock()
            raise

    def maybe_deleted(self) -> Set[str]:
        """The UIDs of pods of which a delete got no answer, and may still take effect."""
        oldest = self.clock() - SERVER_TIMEOUT
        self.unanswered = {uid: sent for uid, sent in self.unanswered.items() if sent > oldest}
        return self.unanswered.keys()

    def send(self, event: Obj) -> None:
        """Send an event from this host; in a cluster, that is the operator's pod. Nothing depends
        on it."""
        try:
            self.create(self.events, event | {"reportingInstance": socket.gethostname()})
        except ApiError as error:
            log.debug("an event of milvus %s was not sent: %s", event["regarding"]["name"], error)


def without_secrets(text: str) -> str:
    """The text without passwords in URLs, and cut at `/{`, where the client library quotes a
    kubeconfig, as in `…/users/{'token': …`"""
    return re.sub(r"//\S*@", "//", text).partition("/{")[0]


def scope(namespace: str | None) -> str:
    return f"namespace {namespace}" if namespace else "all namespaces"


def timestamp(precision: str = "seconds") -> str:
    """The time as Kubernetes writes it: RFC 3339, in UTC."""
    return datetime.now(UTC).isoformat(timespec=precision).replace("+00:00", "Z")


# ---------- Reconcile: one Milvus ----------

# Who touches what. A pass makes each visit in one task of the pool and waits for all of them, so
# passes never overlap, and no two threads ever serve the same Milvus. A visit is given all that it
# needs. What the next one must know is returned as an Outcome, which the loop keeps; all those of a
# Milvus share one Retries. Events are sent by a thread of their own, which outlives passes. All
# that threads share is the Api: there, a request notes when it has ended, and a delete if it got no
# answer. So there are no locks.


class Change(NamedTuple):
    """A kind of change that a visit has made, and why."""

    reason: str  # of its event, such as Created
    kind: str  # pod, claim, service or status
    because: str = ""

    @property
    def words(self) -> str:
        return f"{self.reason.lower()} {self.kind}"


class Outcome(NamedTuple):
    """What came of a visit. If it is lost, everything is tried once more."""

    retries: Retries
    state: str = PROGRESSING
    told: str = ""  # the message about its state that was last told, in the log and by an event
    # Whether it changed something but wrote no status, so that the next one must.
    owes_status: bool = False
    written: Mapping[str, Any] = MappingProxyType({})  # our part of the status, until it is listed
    has_more: bool = False  # whether it left actions to the next one, or the spec is a new one
    # When the next visit is made, even if nothing changes. A visit for which there was no time
    # keeps this, so that it goes earlier in the next pass.
    due: float = inf
    versions: Sequence[Any] = ()  # of what it has seen
    first_seen: Mapping[ReadyState, float] = MappingProxyType({})  # see `Observed`


# Seconds by which others go first: see `Visit.turn`.
BEHIND = 30
FAR_BEHIND = 60


@dataclass
class Visit:
    """One Milvus in one pass: what the lists show of it, and what is done about it."""

    api: Api
    seen: Observed
    last: Outcome  # of the visit before
    began: float = 0.0
    made: dict[Change, list[str]] = field(default_factory=lambda: defaultdict(list))  # names
    events: list[Obj] = field(default_factory=list)  # to be sent
    due: float = inf
    has_more: bool = False
    has_changed: bool = False  # the Milvus, since it was listed

    def __post_init__(self) -> None:
        self.milvus = self.seen.milvus
        self.outcome = self.last  # of the last visit, until `run_pass` knows that of this one
        self.retries = self.last.retries
        self.written = self.last.written

    @property
    def versions(self) -> Sequence[Any]:
        objects = [self.milvus, *self.seen.named.values(), *self.seen.claims.values()]
        versions = [obj["metadata"]["resourceVersion"] for obj in objects]
        return self.seen.lacks_service, self.seen.maybe_deleted, versions

    @property
    def is_needed(self) -> bool:
        """Whether it is due, or something has changed. To visit all would take several times the
        CPU time in a quiet pass."""
        return self.last.due <= self.api.clock() or self.last.versions != self.versions

    def turn(self, now: float) -> float:
        """The time by which visits are sorted: who waits longest goes first. But a database that
        was lost does not wait for a thousand new ones, and new ones do not wait for those that
        have failed. The first status of a new one may wait half a minute for the pods of others."""
        came = min(self.last.due, now)
        if self.last.state == FAILED:
            return came + FAR_BEHIND
        is_new = not conditions_of(self.milvus) and not self.last.has_more
        # One that was visited, and only lacks its first status, goes behind for half a minute. Then
        # its whole wait counts: else all later pods would pass it
        # (test_in_a_burst_pods_go_before_statuses_for_half_a_minute_and_changes_before_both).
        has_waited = bool(self.last.versions) and now >= came + BEHIND
        return came + BEHIND if is_new and not has_waited else came

    def make(self) -> Outcome:
        """Reconcile, if there is still time. Nothing that an object contains may end the loop."""
        self.began = self.api.clock()
        if not self.api.may_act():
            return self.last._replace(due=min(self.last.due, self.began))
        try:
            return self.reconcile()
        except Exception as error:
            text = unexpected(error)
            if text != self.last.told:
                self.log(logging.ERROR, text)
            if not self.events:  # else they have been said
                self.say_changes()
            self.due = self.began + LONGEST_DELAY
            return self.new_outcome(FAILED, text, owes_status=True)
        finally:
            # The loop keeps the visit, and a spec that is read may be large.
            self.seen = dataclasses.replace(self.seen, spec=Spec())

    def reconcile(self) -> Outcome:
        """Serve one Milvus; to be read from top to bottom."""
        # 1. Decide what to do, and forget what is no longer needed. Steps 1 and 2 use the same
        #    `now`: if a delay ended in between, both a pod whose delete was refused and the one
        #    that `roll` has chosen in its place would be replaced.
        now = self.began
        spec = self.read_spec()
        self.seen = dataclasses.replace(self.seen, spec=spec, first_seen=self.new_first_seen())
        actions = [] if spec.invalid else list(decide(self.seen, self.retries.refused(now)))
        self.retries.keep_only(self.remembered(actions), now)
        if self.is_rolling():  # it may wait until pods have been Ready, or not Ready, for a while
            self.come_back(now + 1)

        # 2. Do what does not back off, up to a failure that the others would meet, too.
        if not self.retries.waits(ANSWER, now):
            self.carry_out(actions, now)

        # 3. Say what was changed.
        self.say_changes()

        # 4. Write the status. If anything was changed, the lists are out of date, so this is left
        #    to the next visit. That one writes it in any case: otherwise a Milvus for which
        #    something is done in each pass would never have a status.
        if self.made and not self.api.dry_run:
            self.come_back(self.api.clock())
            if not self.last.owes_status:
                return self.new_outcome(self.last.state, self.last.told, owes_status=True)
        problems, lasting = self.retries.problems(), self.retries.lasting(now)
        status = status_of(self.seen, problems, lasting, timestamp())
        told = self.tell_news(status)
        is_right = self.write_status(status)

        # 5. Return what came of it.
        state = FAILED if self.retries.has_failed(STATUS, now) else state_of(status)
        return self.new_outcome(state, told, owes_status=not is_right)

    def come_back(self, time: float) -> None:
        """Make the next visit at this time, though nothing changes; or sooner, if that is due."""
        self.due = min(self.due, time)

    def read_spec(self) -> Spec:
        try:
            return spec_of(self.milvus)
        except Invalid as error:
            return Spec(invalid=str(error))
        except Exception as error:  # as an older CRD does not check types
            text = "a field of the spec has the wrong type, or is nested too deeply"
            return Spec(invalid=f"{text}; if neither: {unexpected(error)}")

    def new_first_seen(self) -> dict[ReadyState, float]:
        """When each pod was first seen Ready, or not Ready, without a break. In the first visit,
        nobody has looked before: then the kubelet says for how long a pod has been Ready, though
        its clock may be wrong."""
        found = dict.fromkeys(map(ready_state_of, self.seen.mine.values()), self.seen.time)
        if not self.last.versions:
            now = datetime.now(UTC)
            found = {key: at - age_of(key, now) for key, at in found.items()}
        return {key: self.last.first_seen.get(key, at) for key, at in found.items()}

    def is_rolling(self) -> bool:
        """Whether later visits of this process may replace pods."""
        rolls = not (self.seen.spec.updates_on_delete or self.retries.tries_once)
        return rolls and bool(self.seen.outdated)

    def remembered(self, actions: list[Action]) -> set[Key]:
        """The keys whose failures are kept: of what is to do, and of replacements, which `roll`
        leaves out while they are refused or not their turn."""
        waiting = [o for o in self.seen.outdated if not is_over(self.seen.mine[o])]
        turns = {("replace", ordinal) for ordinal in waiting}
        return {action.key for action in actions} | turns | {STATUS, ANSWER}

    def carry_out(self, actions: list[Action], now: float) -> None:
        """Do these; those that have failed come last, what failed longest ago first: one that
        hangs, or is throttled, must not hold up others."""
        failing = set[str]()  # verbs that would fail for each pod, such as create by a quota
        for action in sorted(actions, key=lambda action: self.retries.failed_at(action.key)):
            if action.verb in failing or self.retries.waits(action.key, now):
                continue
            if not self.api.may_act():
                # What is cut off keeps its place in the line.
                self.has_more = True
                self.come_back(min(self.last.due, now))
                break
            error = self.attempt(action)
            if not error or self.retries.tries_once:  # each has one try, whatever became of others
                continue
            if error.failure is Failure.LOST:
                break
            if error.would_fail_for_all:
                failing.add(action.verb)

    def attempt(self, action: Action) -> ApiError | None:
        """Try something, and remember what came of it: see the table above `Try`."""
        try:
            getattr(self, action.verb)(action)
        except ApiError as error:
            now = self.api.clock()
            self.come_back(now)  # for what this failure may have cut off
            if error.failure is Failure.LOST and not self.retries.tries_once:
                self.retries.failed(ANSWER, now, error.why)
            elif error.code:  # a refusal is an answer, too
                self.retries.succeeded(ANSWER, now)
            if self.needs_delay(error):
                is_refused = error.failure is Failure.REFUSED
                self.retries.failed(action.key, now, error.why, is_refused)
            return error
        now = self.api.clock()
        self.retries.succeeded(action.key, now)
        self.retries.succeeded(ANSWER, now)
        return None

    def needs_delay(self, error: ApiError) -> bool:
        """Whether to back off; what the next lists will show does not need that."""
        if error.failure is not Failure.STALE:
            return True
        if not error.code:  # a fresh look said no, or the operator is about to stop
            return False
        # An answer such as Conflict backs off. With --once, the next pass tries again (see
        # tests/test_once.py, conflicts): a quota answers so while it counts two pods at once, and
        # `run_once` gives up after three idle passes. A dry run would get the same answer again.
        return not self.retries.tries_once or self.api.dry_run

    def tell_news(self, status: Obj) -> str:
        """Say what is new in the Reconciled condition, even if the status cannot be written.
        Returns its message."""
        reconciled = condition_of({"status": status}, "Reconciled")
        message = reconciled["message"]
        is_warning = reconciled["status"] == "False"
        # What this process has told or, if it has told nothing yet, what an earlier one has
        # written. That a new Milvus is fine is no news.
        known = self.last.told or condition_of(self.milvus, "Reconciled").get("message", MATCHING)
        if message != known:
            self.say(reconciled["reason"], message, is_warning=is_warning)
        elif is_warning and self.retries.tries_once and not self.last.told:
            self.log(logging.WARNING, message)  # the reason why this run will fail, too
        return message

    def write_status(self, status: Obj) -> bool:
        """Write the status if it has changed. Returns whether it is right now, or there is none."""
        now = self.api.clock()
        listed = self.milvus["status"]
        written = self.written
        self.written = {}  # a list has shown it now, or not
        is_right = contains(listed, status)
        if is_right or (written and contains(our_part(listed), written)):
            self.retries.succeeded(STATUS, now)
        elif written:
            text = "what was written is not there; perhaps something else writes it, too"
            self.status_failed(ApiError(Why(WAITING, text), Failure.LOST))
        if is_right or self.retries.waits(STATUS, now):
            return is_right
        if not self.retries.tries_once:
            self.come_back(now)  # to see whether the next list shows it
        try:
            self.api.write_status(self.milvus, status)
        except ApiError as error:
            if self.retries.tries_once and error.status_reason == "NotFound":
                return True  # under an older CRD, there is none
            self.status_failed(error)
            return False
        if not self.retries.tries_once:
            self.written = our_part(status)
        # `say_changes` has run, so this appears only in the count of the pass.
        self.note("Updated", "status", self.milvus)
        return True

    def status_failed(self, error: ApiError) -> None:
        """Back off, and log a failure that does not resolve itself, once. After a Conflict, another
        try soon may succeed: somebody else has changed the Milvus."""
        now = self.api.clock()
        last_try = self.retries.failed_at(STATUS)
        was_told = self.retries.has_failed(STATUS, last_try)
        if self.needs_delay(error):
            most = FIRST_DELAY if error.status_reason == "Conflict" else LONGEST_DELAY
            self.retries.failed(STATUS, now, error.why, most=most)
        else:
            self.come_back(now)
        if self.retries.has_failed(STATUS, now) and not was_told:
            self.log(logging.WARNING, f"the status update failed: {error}")

    def say_changes(self) -> None:
        """Log each kind of change, and send an event for it. What was created shares one event: in
        a burst, events are most of the requests."""
        created = []
        for change, names in self.made.items():
            note = sentence(change.words, names, change.because)
            if change.reason == CREATED:
                created.append(note)
                self.log(logging.INFO, f"{note}{self.api.dry_run_note}")
            else:
                self.say(change.reason, note)
        if created:
            self.add_event(CREATED, "; ".join(created))

    def say(self, reason: str, note: str, is_warning: bool = False) -> None:
        """Say something in the log, and by an event."""
        self.add_event(reason, note, is_warning)
        level = logging.WARNING if is_warning else logging.INFO
        self.log(level, f"{note}{self.api.dry_run_note}")

    def add_event(self, reason: str, note: str, is_warning: bool = False) -> None:
        event = new_event(self.milvus, reason, note, is_warning)
        self.events.append(event | {"eventTime": timestamp("microseconds")})

    def log(self, level: int, text: str) -> None:
        about = pick(self.milvus["metadata"], ("namespace", "name"))
        log.log(level, "milvus %s: %s", full_name(self.milvus), text, extra={"about": about})

    def new_outcome(self, state: str, told: str, owes_status: bool) -> Outcome:
        return Outcome(
            retries=self.retries,
            state=state,
            told=told,
            owes_status=owes_status,
            written=self.written,
            has_more=self.has_more,
            due=min(self.due, self.retries.next(self.began)),
            versions=self.versions,
            first_seen=self.seen.first_seen,
        )

    def note(self, reason: str, kind: str, obj: Obj, because: str = "") -> None:
        self.made[Change(reason, kind, because)].append(name_of(obj))

    # --- The verbs of actions ---

    def create(self, action: Action) -> None:
        """Create a pod, and only then its claim: a pod that is refused must not cost a volume."""
        pod = new_pod(self.milvus, self.seen.spec, action.ordinal)
        if error := self.create_object("pod", self.api.pods, pod):
            taken = self.api.find(self.api.pods, pod)
            if not taken:
                raise error
            # Always REFUSED: if it were STALE, --once would try it again in each pass.
            why = why_name_is_taken(self.milvus, taken)
            raise ApiError(why, Failure.REFUSED, error.code)
        if self.seen.spec.storage and action.ordinal not in self.seen.claims:
            # If this fails, that counts as a failure of `create`, which backs off; and the next
            # pass finds a pod without a claim.
            self.claim(action)

    def create_object(self, kind: str, resource: Resource, obj: Obj) -> ApiError | None:
        """Create an object. Returns the error if its name is taken."""
        try:
            self.api.create(resource, obj)
        except ApiError as error:
            if error.status_reason == "AlreadyExists":
                return error
            raise
        self.note(CREATED, kind, obj)
        return None

    def claim(self, action: Action) -> None:
        """Create a claim, unless there is one without our label, which is not listed: somebody else
        has made it, and the pod uses it."""
        claim = new_claim(self.milvus, self.seen.spec, action.ordinal)
        self.create_object("claim", self.api.claims, claim)

    def expose(self, action: Action) -> None:
        """Create the Service. If there is one without our label, it is left as it is, and told."""
        service = new_service(self.milvus)
        if error := self.create_object("service", self.api.services, service):
            label = selector_of(self.milvus)
            text = f"service {name_of(service)} already exists without the label {label}"
            advice = "if it leads to these pods, add the label"
            otherwise = "otherwise, clients that use this name reach something else"
            why = Why(SERVICE_EXISTS, f"{text}: {advice}; {otherwise}")
            raise ApiError(why, Failure.REFUSED, error.code)

    def adopt(self, action: Action) -> None:
        """Set the owner of an orphan, after a fresh look whether the Milvus is still there: the
        garbage collector deletes the pods of one that is gone."""
        self.require_current()
        metadata = pick(action.obj["metadata"], ["uid"])
        metadata["ownerReferences"] = [owner_reference(self.milvus)]
        self.api.patch(self.api.pods, action.obj, {"metadata": metadata})
        self.note("Adopted", "pod", action.obj, action.because)

    def grow(self, action: Action) -> None:
        """Ask for a larger volume; whether it comes is said by the claim."""
        requests = {"storage": self.seen.spec.storage["size"]}
        change = {"spec": {"resources": {"requests": requests}}}
        self.api.patch(self.api.claims, action.obj, change)
        self.note("Expanding", "claim", action.obj, action.because)

    def require_current(self) -> None:
        """Read the Milvus, and raise an error if it has changed since it was listed. Once changed,
        it is not read again in this visit."""
        if not self.has_changed:
            keys = ("uid", "generation")  # a deletion raises the generation, too
            listed = pick(self.milvus["metadata"], keys)
            fresh = self.api.find(self.api.milvuses, self.milvus)
            self.has_changed = not fresh or pick(fresh["metadata"], keys) != listed
        if self.has_changed:
            raise stale("the Milvus has changed")

    def delete(self, action: Action) -> None:
        """Delete a surplus pod, after a fresh look whether it still is."""
        if has_begun(action.obj):  # else it holds no data
            self.require_current()
        self.remove(action)

    def remove(self, action: Action) -> None:
        self.api.delete(action.obj)
        self.note("Deleted", "pod", action.obj, action.because)

    def restart(self, action: Action) -> None:
        self.require_claim(action)
        self.remove(action)

    def replace(self, action: Action) -> None:
        """Delete a pod, after a dry run has shown that the API server would accept the new one, and
        a fresh look that nothing is lost by it: the lists of this pass may be half a minute old."""
        self.api.check(new_pod(self.milvus, self.seen.spec, action.ordinal))
        self.require_claim(action)
        self.require_current()
        if is_ready(action.obj):
            # What is seen for the first time has been Ready for no time: see `seconds_in_state`.
            fresh = dataclasses.replace(self.seen, named=self.api.list_now(self.milvus))
            if must_roll_wait(fresh, self.retries.refused(self.began)):
                raise stale("another pod is not available any more")
        self.remove(action)

    def require_claim(self, action: Action) -> None:
        """Raise an error if the claim of a pod is not there, or will not stay: then only this pod
        reaches the data. It may lack our label, so it is read by its name."""
        if not self.seen.spec.storage:
            return
        ours = new_claim(self.milvus, self.seen.spec, action.ordinal)
        claim = self.api.find(self.api.claims, ours)
        state = state_of_claim(claim) if claim else "gone"
        if state in BLOCKING:
            raise ApiError(why_claim_blocks(name_of(ours), state, action.obj), Failure.REFUSED)


def unexpected(error: Exception) -> str:
    """About an exception that nobody foresaw. Its text may hold secrets: show only its places."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    places = " < ".join(f"{frame.name}:{frame.lineno}" for frame in frames)
    return f"unexpected {type(error).__name__}, please report this bug: {places}"


# ---------- The loop: list, visit, wait ----------

# In seconds.
ACTING = 8  # a pass begins no action later than this after the last of its lists has arrived
SHORTEST_PAUSE = 0.1  # from the start of a pass to the start of the next
LAST_EVENTS = 5  # --once waits this long for events that have not been sent
LONGEST_LIST_DELAY = 30  # while nothing at all can be listed
REMINDER = 600  # an outage that lasts is logged again
# A loop that makes no progress for this much longer than a request may take is stuck. It is more
# than LONGEST_LIST_DELAY, or /healthz would fail while the API server is down.
SLACK = 40
MOST_EVENTS = 1000  # that wait to be sent; what comes then is lost


@dataclass
class Operator:
    """Manages Milvus resources: `run()` until it is to stop, or `run_once()`."""

    api: Api
    namespaces: Sequence[str | None]  # None: all
    interval: float  # seconds from the start of a pass to the next, while nothing changes
    pool: Executor  # for the visits
    sender: Executor  # for events: no visit and no pass waits for them

    def __post_init__(self) -> None:
        self.visits: dict[str | None, list[Visit]] = {}  # by namespace, of its last lists
        self.outages: dict[str, float] = {}  # those that last, and when each was last logged
        self.is_ready = False  # whether all lists of a pass have succeeded
        self.list_seconds = 0.0  # seconds that the last lists took
        self.has_listed = False  # whether any list of the last pass has succeeded
        self.list_delay = 0.0  # seconds to wait while none does
        self.tries_once = self.api.dry_run  # whether each write is tried only once
        self.sending: list[Future[None]] = []  # events that wait to be sent

    def is_alive(self) -> bool:
        """Whether the loop makes progress: even if the server is down, as requests time out."""
        idle = self.api.clock() - self.api.progressed
        return idle < self.interval + self.api.timeout + SLACK

    def run(self) -> bool:
        """Make passes until the operator is to stop."""
        clock = self.api.clock
        while not self.api.stopping.is_set():
            started = clock()
            self.run_pass()
            self.api.stopping.wait(max(0, started + self.pause() - clock()))
        return True

    def run_once(self) -> bool:
        """Make passes until nothing is left that can be done now. Gives up after three passes in a
        row that did nothing although something was due. Returns whether all went well."""
        self.tries_once = True
        idle = 0
        while idle < 3 and not self.api.stopping.is_set():
            changes = self.run_pass()
            if not self.unfinished():
                break
            idle = 0 if changes else idle + 1
        wait(self.sending, LAST_EVENTS)
        unfinished = self.unfinished()
        for visit in unfinished:
            visit.log(logging.WARNING, "there is more to do: run it again")
        has_failed = any(visit.outcome.state == FAILED for visit in self.all_visits())
        return self.has_listed and not (unfinished or has_failed or self.outages)

    def unfinished(self) -> list[Visit]:
        """The visits that are over, and have left something that can be done now."""
        now = self.api.clock()
        return [visit for visit in self.all_visits() if visit.outcome.due <= now]

    def run_pass(self) -> Counter[str]:
        """Make one pass. Returns a count of each kind of change."""
        started = self.api.clock()
        self.api.progressed = started
        outages: dict[str, str] = {}  # what affects several Milvus resources, and the details
        changes = Counter[str]()
        try:
            # 1. List everything.
            visits = self.list_everything(outages)
            listed = self.api.clock()
            self.list_seconds = listed - started

            # 2. Visit each Milvus that needs it, in turn.
            self.api.deadline = inf if self.tries_once else listed + ACTING
            needed = [visit for visit in visits if visit.is_needed]
            needed.sort(key=lambda visit: visit.turn(listed))
            for visit, outcome in zip(needed, self.pool.map(Visit.make, needed), strict=True):
                visit.outcome = outcome
                for change, names in visit.made.items():
                    changes[change.words] += len(names)
                self.send(visit.events)
        except Unusable as error:
            outages["the configuration cannot be loaded"] = error.message
        except Exception as error:  # nobody foresaw it, but it must not end the loop
            outages["a pass failed"] = unexpected(error)

        # 3. Report.
        self.report(outages, changes, self.api.clock() - started)
        return changes

    def send(self, events: Iterable[Obj]) -> None:
        """Hand events over to the sender."""
        self.sending = [one for one in self.sending if not one.done()]
        for event in events:
            if len(self.sending) < MOST_EVENTS:
                self.sending.append(self.sender.submit(self.api.send, event))
            else:
                log.debug(
                    "an event of milvus %s was not sent: too many wait", event["regarding"]["name"]
                )

    def list_everything(self, outages: dict[str, str]) -> list[Visit]:
        """A visit for each Milvus in the namespaces that could be listed. Raises Unusable."""
        self.has_listed = False
        self.api.log_in()
        visits: list[Visit] = []
        for namespace in self.namespaces:
            started = self.api.clock()
            lists = self.list_namespace(namespace, outages)
            if lists:  # a failed list is not an empty list
                self.visits[namespace] = self.new_visits(namespace, lists, started)
                visits += self.visits[namespace]
        return visits

    def list_namespace(self, namespace: str | None, outages: dict[str, str]) -> Lists:
        """The lists of a namespace, or of all. If that of Services fails, it is missing; if another
        fails, there are none."""
        lists: Lists = {}
        for listing in self.api.listings:
            try:
                lists[listing.resource.name] = self.api.list_all(namespace, listing)
                self.has_listed = True
            except ApiError as error:
                self.api.must_reload |= error.code in (0, 401)
                what, details = self.outage(namespace, listing, error)
                outages[what] = details
                if listing.resource is not self.api.services:
                    return {}
        return lists

    def outage(self, namespace: str | None, listing: Listing, error: ApiError) -> tuple[str, str]:
        """What the failure of a list is called, and the details."""
        if error.code == 401:
            details = "log in again, or renew the token; in a cluster, delete the operator's pod"
            return f"{self.api.server} rejects the credentials", details
        if error.code in (0, 429):  # 429: it throttles requests, whatever they are about
            return f"requests to {self.api.server} fail", str(error)
        plural = listing.resource.name
        advice = ""
        if error.code == 403:
            advice = " (see the role in deploy.yaml)"
        elif error.code == 404 and plural == PLURAL:
            advice = " (install the CRD with `kubectl apply -f crd.yaml`)"
        return f"cannot list {plural} in {scope(namespace)}", f"{error}{advice}"

    def new_visits(self, namespace: str | None, lists: Lists, time: float) -> list[Visit]:
        """A visit for each Milvus that is not being deleted; the lists began at this time."""
        pods_of = by_ordinal(lists["pods"])
        claims_of = by_ordinal(lists["persistentvolumeclaims"])
        unsure = self.api.maybe_deleted()
        service_of = {full_name(service): service for service in lists.get("services", [])}
        last = {uid_of(visit.milvus): visit for visit in self.visits.get(namespace, [])}
        now = self.api.clock()
        visits = []
        for milvus in lists[PLURAL]:
            if is_ending(milvus):
                continue
            named = pods_of[full_name(milvus)]
            claims = claims_of[f"{namespace_of(milvus)}/data-{name_of(milvus)}"]
            service = service_of.get(full_name(milvus))
            is_exposed = service is not None and has_our_label(milvus, service)
            seen = Observed(
                milvus=milvus,
                named=named,
                claims={o: one for o, one in claims.items() if has_our_label(milvus, one)},
                lacks_service="services" in lists and not is_exposed,
                time=time,
                maybe_deleted={o for o, pod in named.items() if uid_of(pod) in unsure},
            )
            outcome = self.last_outcome(milvus, last.get(uid_of(milvus)), now)
            visits.append(Visit(self.api, seen, outcome))
        return visits

    def last_outcome(self, milvus: Obj, visit: Visit | None, now: float) -> Outcome:
        """What came of its visit before. If the spec is new, most of that is forgotten, and a visit
        is due now."""
        if not visit:
            return Outcome(Retries(self.tries_once), due=now)
        if visit.milvus["metadata"]["generation"] == milvus["metadata"]["generation"]:
            return visit.outcome
        old = visit.outcome
        retries, due = old.retries.for_another_spec(), min(old.due, now)
        return old._replace(retries=retries, state=PROGRESSING, told="", due=due, has_more=True)

    def pause(self) -> float:
        """Seconds from the start of the last pass to the next: an eighth of the time since the last
        change, so that a roll waits for its pods, not for passes; at least five times what the
        lists took; at most the interval."""
        if self.list_delay:
            return self.list_delay * random.uniform(0.5, 1)
        quiet = self.api.clock() - self.api.changed
        return min(self.interval, max(SHORTEST_PAUSE, 5 * self.list_seconds, quiet / 8))

    def report(self, outages: dict[str, str], changes: Counter[str], seconds: float) -> None:
        """Report a pass in the log and in the metrics."""
        now = self.api.clock()
        logged = {what: self.outages.get(what, -inf) for what in outages}
        for what, details in outages.items():
            if now >= logged[what] + REMINDER:
                log.error("%s: %s", what, details)
                logged[what] = now
        for what in self.outages.keys() - outages.keys():
            log.info("resolved: %s", what)
        self.outages = logged
        longer = min(max(1, 2 * self.list_delay), LONGEST_LIST_DELAY)
        self.list_delay = 0 if self.has_listed else longer
        states = Counter(visit.outcome.state for visit in self.all_visits())
        if not outages and not self.is_ready:
            self.is_ready = True
            log.info("ready: %d Milvus resource(s) listed", states.total())
        for state in (READY, PROGRESSING, FAILED):
            MILVUSES.labels(state).set(states[state])
        PASSES.labels("failure" if outages else "success").inc()
        PASS_SECONDS.observe(seconds)
        counts = ", ".join(f"{what}: {count}" for what, count in changes.items())
        total = f"{states.total()} Milvus resource(s) in {seconds:.2f} s{self.api.dry_run_note}"
        level = logging.INFO if changes else logging.DEBUG
        log.log(level, "pass finished: %s: %s", total, counts or "nothing to do")

    def all_visits(self) -> list[Visit]:
        # As a list, because the health server asks, too, while a pass may add a namespace.
        return [visit for visits in list(self.visits.values()) for visit in visits]


# ---------- Workarounds for the client library ----------

IN_POD = "KUBERNETES_SERVICE_HOST"  # an environment variable that every container has
NAMESPACE_FILE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"  # in every container


IDLE = "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE"  # on macOS
KEEP_ALIVE = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),  # urllib3's own option
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, getattr(socket, IDLE), 30),  # seconds
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
]


class Connection(NamedTuple):
    """What a configuration says."""

    client: ApiClient
    namespace: str  # the default one
    context: str | None  # of the kubeconfig; None: it is the pod's own


def connect(path: str | None, context: str | None, connections: int) -> Connection:
    """Load a kubeconfig or, in a pod without one, the pod's own configuration. Raises Unusable."""
    file = path or os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
    what = f"the kubeconfig {file}"
    configuration = Configuration()
    configuration.connection_pool_maxsize = connections
    try:
        merged = KubeConfigMerger(file).config
        if merged:
            return from_kubeconfig(file, merged, context, configuration)
        if IN_POD in os.environ and not (path or context):
            what = "the pod's service account"
            load_incluster_config(configuration)
            with open(NAMESPACE_FILE) as namespace:
                return Connection(Client(configuration), namespace.read().strip(), None)
        text = "there is no such file; give one with --kubeconfig or KUBECONFIG"
    except Unusable:
        raise
    except ConfigException as error:
        text = without_secrets(str(error))
    except OSError as error:  # without the path: it may be a token, put where a path belongs
        text = f"it, or a file that it refers to (tokenFile …), cannot be read: {error.strerror}"
    except urllib3.exceptions.HTTPError as error:  # an OIDC token is renewed while loading
        text = f"its identity provider did not answer ({type(error).__name__})"
    except ImportError as error:
        text = f"it needs the Python module {error.name}, which is not installed"
        if error.name == "socks":
            text = "a SOCKS proxy-url needs the Python package PySocks, which is not installed"
    except Exception as error:  # a malformed file may raise anything in the loader
        text = f"it is not valid ({type(error).__name__})"
    raise Unusable(f"cannot use {what}: {text}")


def from_kubeconfig(
    file: str, merged: Any, context: str | None, configuration: Configuration
) -> Connection:
    """As `load_kube_config` does it, which would tell neither the namespace nor who the user is."""
    # The loader writes keys to files, which it would remove only at a regular exit. Client reads
    # them, so it is made before they are gone.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        active = context or first_context(file)
        if not active:
            raise ConfigException("no current-context is set: choose one with --context")
        loader: Any = KubeConfigLoader(merged, active, config_base_path=None, temp_file_path=folder)
        chosen = loader.current_context
        name = chosen["context"].get("user")
        named = merged["users"].get_with_name(name, safe=True)
        if name and not named:
            raise ConfigException("its context names a user that is not there")
        user = named["user"] if named else {}
        if "as" in user:  # the loader ignores it, and would act with the user's own, wider rights
            raise ConfigException("impersonation (`as`) is not supported")
        loader.load_and_set(configuration)
        # The loader goes on without credentials if an exec plugin fails, or if it does not know
        # their kind.
        has_credentials = configuration.api_key or configuration.cert_file
        if user and not has_credentials:
            raise ConfigException(
                "its user or exec plugin gave no credentials; see what kubectl says"
            )
        namespace = chosen["context"].get("namespace") or "default"
        return Connection(Client(configuration), namespace, chosen["name"])


def first_context(file: str) -> str | None:
    """Of several kubeconfigs, kubectl takes the first `current-context` that is set; the client
    library would take the last."""
    for path in file.split(os.pathsep):
        config = KubeConfigMerger(path).config
        if config and config.safe_get("current-context"):
            return config["current-context"]
    return None


class Client(ApiClient):
    """The official client, without what would harm the operator. This class relies on internals of
    the library versions in requirements.txt. Most is tested by tests/test_credentials.py,
    test_proxies.py and test_outages.py, which `make matrix` runs with the oldest and the newest."""

    def __init__(self, configuration: Configuration) -> None:
        # The next pass is the retry; urllib3's own would multiply the timeout.
        configuration.retries = False
        self.use_proxy(configuration)
        super().__init__(configuration)
        self.user_agent = f"{MANAGER}/{__version__}"
        # Decrypting the lists is much of a quiet pass, and compressed they are short.
        self.default_headers["Accept-Encoding"] = "gzip"
        # Load balancers drop connections that are idle, without a word.
        self.rest_client.pool_manager.connection_pool_kw["socket_options"] = KEEP_ALIVE
        # It would copy each body, and fail at one that is nested deeply.
        self.sanitize_for_serialization = lambda obj: obj  # type: ignore[method-assign]
        self.use_tls(configuration)
        self.hook = configuration.refresh_api_key_hook
        self.renew()

    def use_proxy(self, configuration: Configuration) -> None:
        """As kubectl: a password in the URL is sent to the proxy, and the scheme may be missing."""
        if configuration.proxy and "://" not in configuration.proxy:  # as in HTTPS_PROXY=proxy:3128
            configuration.proxy = f"http://{configuration.proxy}"
        proxy = urllib3.util.parse_url(configuration.proxy or "")
        if proxy.auth:
            auth = urllib.parse.unquote(proxy.auth)
            configuration.proxy_headers = urllib3.make_headers(proxy_basic_auth=auth)

    def use_tls(self, configuration: Configuration) -> None:
        """Certificates of older clusters do not pass the check VERIFY_X509_STRICT, which Python
        3.13 turned on; the client has no option for it."""
        tls = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
        tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
        tls.check_hostname = configuration.verify_ssl  # the client sets verify_mode itself
        if configuration.cert_file:
            no_question = ""  # instead of asking for a password at the terminal
            tls.load_cert_chain(configuration.cert_file, configuration.key_file, no_question)
        # `tls` has read these files, which may be temporary: they must not be read again.
        no_files = dict.fromkeys(("ca_certs", "cert_file", "key_file"))
        self.rest_client.pool_manager.connection_pool_kw |= no_files | {"ssl_context": tls}

    def renew(self) -> None:
        """Renew a token that has expired. The client would do it before each request, so that 16
        threads would run an exec plugin at once. Raises Unusable."""
        configuration = self.configuration
        try:
            if self.hook:
                self.hook(configuration)
        except (ConfigException, OSError) as error:
            raise Unusable(without_secrets(str(error))) from None
        configuration.refresh_api_key_hook = None  # again, because the hook sets itself anew
        # A token's file ends with a newline, which no header may contain.
        tokens = configuration.api_key.items()
        configuration.api_key = {key: token.strip() for key, token in tokens}


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
        codes = {
            "/healthz": 200 if self.operator.is_alive() else 503,
            "/readyz": 200 if self.operator.is_ready else 503,
        }
        code = codes.get(path, 404)
        self.send_response(code)
        self.end_headers()
        self.wfile.write(f"{self.responses[code][0]}\n".encode())


class Milvuses(Collector):
    """A metric with a sample for each Milvus, made when somebody asks."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator

    def collect(self) -> Iterator[metrics.Metric]:
        found = GaugeMetricFamily(
            "milvus_operator_milvus_state",
            "Each Milvus resource, with its state",
            labels=["namespace", "name", "state"],
        )
        for visit in self.operator.all_visits():
            milvus = visit.milvus
            found.add_metric([namespace_of(milvus), name_of(milvus), visit.outcome.state], 1)
        yield found


class HealthServer(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that disconnects is not worth a log line."""


def start_health_server(operator: Operator, port: int) -> None:
    """Serve Health until the process ends: in a pod on all addresses, else on localhost. Raises
    Unusable."""
    Health.operator = operator
    Health.registry = metrics.CollectorRegistry()
    Health.registry.register(metrics.REGISTRY)
    Health.registry.register(Milvuses(operator))
    address = "127.0.0.1"
    if IN_POD in os.environ:
        address = ""
        if socket.has_dualstack_ipv6():
            HealthServer.address_family = socket.AF_INET6
    try:
        server = HealthServer((address, port), Health)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    except OSError as error:
        text = f"cannot listen on port {port}: {error.strerror}"
        raise Unusable(f"{text}; choose another with --health-port") from None
    except RuntimeError as error:
        raise no_thread(error) from None


def no_thread(error: RuntimeError) -> Unusable:
    return Unusable(f"cannot start a thread: {error}; lower --workers")


# ---------- The command ----------


def check_seconds(context: click.Context, option: click.Parameter, value: float) -> float:
    if not 0 < value <= 1e8:  # longer waits overflow in Python; this also excludes inf and nan
        raise click.BadParameter("must be a number of seconds greater than 0, at most 1e8")
    return value


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


def start_pool(workers: int) -> Executor:
    """A pool with all of its threads started, so that none can fail to start in the middle of a
    pass. Raises Unusable."""
    pool = ThreadPoolExecutor(workers)
    gate = threading.Barrier(workers)
    try:
        list(pool.map(lambda _: gate.wait(), range(workers)))
    except RuntimeError as error:
        gate.abort()  # or those that have started would wait forever
        raise no_thread(error) from None
    return pool


STOPPING = 4  # seconds after a signal that requests which have begun may take


def run_until_signal(loop: Callable[[], bool], stopping: threading.Event, code_if_late: int) -> int:
    """Run the loop in a thread of its own: a signal handler runs in the main thread, and if the
    loop were there, in `stopping.wait()`, then `stopping.set()` might wait for the same lock
    forever. After a signal, current requests get STOPPING seconds; a second one ends the process.
    Returns the exit code."""

    def stop(signum: int, _: Any) -> None:
        if stopping.is_set():
            os._exit(128 + signum)
        stopping.set()
        signal.alarm(STOPPING)

    # Without a word: the log may be what is blocked, by a pipe that nobody reads.
    signal.signal(signal.SIGALRM, lambda *_: os._exit(code_if_late))
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, stop)
    is_good = start_pool(1).submit(loop).result()
    if stopping.is_set():
        log.info("stopped")
    return 0 if is_good else 1


CLICK = {"auto_envvar_prefix": "MILVUS_OPERATOR", "help_option_names": ["-h", "--help"]}


@click.command(context_settings=CLICK | {"show_default": True})
@click.option("-n", "--namespace", multiple=True, help="Namespace to manage; can be repeated.")
@click.option("-A", "--all-namespaces", is_flag=True, help="Manage all namespaces.")
@click.option(
    "--interval",
    default=5.0,
    callback=check_seconds,
    help="Seconds from pass to pass while nothing changes.",
)
@click.option("--once", is_flag=True, help="Do what can be done now, then exit with 0 or 1.")
@click.option("--dry-run", is_flag=True, help="Log what would be done; write nothing.")
@click.option("--kubeconfig", help="The kubeconfig file. Default: as kubectl finds it.")
@click.option("--context", help="The kubeconfig context. Default: the current one.")
@click.option(
    "--timeout", default=30.0, callback=check_seconds, help="Seconds to connect, and to read."
)
@click.option(
    "--workers",
    type=click.IntRange(1, 256),
    default=16,
    help="Milvus resources handled in parallel.",
)
@click.option("--health-port", type=click.IntRange(1, 65535), help="Port for health and metrics.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text")
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
    Each option is also an environment variable, such as MILVUS_OPERATOR_INTERVAL=10.
    """
    names = [name.strip() for name in ",".join(namespace).split(",")]
    chosen: list[str | None] = [name for name in dict.fromkeys(names) if name]
    if namespace and not chosen:
        raise click.UsageError("-n needs the name of a namespace; for all of them, use -A")
    if chosen and all_namespaces:
        raise click.UsageError("-A cannot be combined with -n or MILVUS_OPERATOR_NAMESPACE")
    start_log(verbose, log_format)
    log.info("%s %s: loading the configuration", MANAGER, __version__)
    connection = connect(kubeconfig, context, workers)
    # An empty variable means all namespaces, as for other operators; click ignores such a variable.
    everywhere = all_namespaces or os.environ.get("MILVUS_OPERATOR_NAMESPACE") == ""
    default = None if everywhere else connection.namespace
    managed = chosen or [default]

    def reload() -> ApiClient:
        return connect(kubeconfig, connection.context, workers).client

    api = Api(connection.client, reload, Client.renew, timeout, dry_run)
    where = f"{', '.join(map(scope, managed))}, every {interval:g} s, server {api.server}"
    log.info("%s %s: %s%s", MANAGER, __version__, where, api.dry_run_note)
    operator = Operator(api, managed, interval, start_pool(workers), start_pool(1))
    if health_port:
        start_health_server(operator, health_port)
    run = operator.run_once if once else operator.run
    code = run_until_signal(run, api.stopping, code_if_late=1 if once else 0)
    os._exit(code)  # a request that hangs must not delay the exit


if __name__ == "__main__":
    main()
