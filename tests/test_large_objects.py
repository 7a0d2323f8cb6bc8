"""Large objects: their size harms nobody."""

from __future__ import annotations

import json
import tracemalloc

import milvus_operator as mo
from tests.lib.world import World, pod

BIG = 1_300_000  # bytes; etcd takes up to 1.5 MiB


def test_a_hundred_and_fifty_large_pods_are_listed_within_300_mib() -> None:
    """A process without any pods has less than 100 MiB."""
    annotations = {f"key-{number}": "x" * 1000 for number in range(BIG // 1000)}
    labels = {mo.MANAGED_BY_LABEL: mo.MANAGER}
    world = World()
    for number in range(150):
        world.add(pod(f"x-{number}", labels=labels, annotations=annotations))
    assert len(json.dumps(world.server.all_of("pods")[0])) > BIG
    tracemalloc.start()
    world.passes(2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "pass over 0 Milvus resource(s) and 150 pod(s)" in world.log[0]
    assert peak < 200 << 20
