"""The peer: the bring-up as a kopf handler, with the client of kopf's documentation."""

from contextlib import suppress
from typing import Any

import kopf
from kubernetes import config
from kubernetes.client import ApiClient, ApiException, Configuration, CoreV1Api

import milvus_operator as mo

WORKERS = 16
client = Configuration()
config.load_kube_config(client_configuration=client)
client.connection_pool_maxsize = WORKERS
api = CoreV1Api(ApiClient(client))


@kopf.on.startup()
def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
    settings.execution.max_workers = WORKERS
    settings.posting.enabled = False


@kopf.on.resume(mo.GROUP, mo.VERSION, mo.PLURAL)
@kopf.on.create(mo.GROUP, mo.VERSION, mo.PLURAL)
def create_pods(body: kopf.Body, namespace: str, **_: Any) -> None:
    milvus = dict(body)
    spec = mo.spec_of(milvus)
    for ordinal in range(spec.replicas):
        with suppress(ApiException):  # it exists already
            api.create_namespaced_pod(namespace, mo.new_pod(milvus, spec, ordinal))
