"""The peer: the same job as a handler of kopf, with kopf's own defaults."""

import kopf
from kubernetes import config
from kubernetes.client import CoreV1Api

import milvus_operator as mo
from benchmarks.bare import status_of

config.load_kube_config()
api = CoreV1Api()


@kopf.on.create(mo.GROUP, mo.VERSION, mo.PLURAL)
def create(body: kopf.Body, patch: kopf.Patch, namespace: str, **_: object) -> None:
    milvus = dict(body)
    spec = mo.spec_of(milvus)
    for ordinal in range(spec.replicas):
        api.create_namespaced_pod(namespace, mo.new_pod(milvus, spec, ordinal))
        claim = mo.new_claim(milvus, spec, ordinal)
        api.create_namespaced_persistent_volume_claim(namespace, claim)
    api.create_namespaced_service(namespace, mo.new_service(milvus))
    for kind in ("pods", "claims", "service"):
        kopf.info(body, reason="Created", message=f"created {kind}")
    patch.status.update(status_of(milvus))
