"""A Milvus with bad input gets one clear message, whatever the input is, and no other Milvus is affected."""

from __future__ import annotations

import json
import random
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import milvus_operator as mo
from tests.lib.kit import Command, Kube, StillClock, make_pass, new_operator, original_crd, settle
from tests.lib.wire import Wire

LEVELS = (90, 150, 900, 985, 2000, 4000, 8000)
REASONS = {
    "Reconciled",
    "SpecIsText",
    "NameConflict",
    "QuotaExceeded",
    "Invalid",
    "Forbidden",
    "APIError",
}


def nested(levels: int, start: str = '{"a":', end: str = "}") -> str:
    return start * levels + "1" + end * levels


def laughs() -> str:
    lines = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    return "\n".join(lines)


TEXTS = {
    "not YAML": "a: b: c: [",
    "a tab": "a:\n\tb: 1",
    "a billion laughs": laughs(),
    "an alias of itself": "a: &a\n  b: *a",
    "10,000 levels of flow": "{a: " * 10000 + "1" + "}" * 10000,
    "10,000 levels of lists": "a: " + "[" * 10000 + "]" * 10000,
    "10,000 levels of dashes": "a:\n" + "- " * 10000 + "x",
    "10,000 levels that never end": "{a: " * 10000,
    "an integer of 5,000 digits": "a: " + "9" * 5000,
    "a tag that runs a command": "a: !!python/object/apply:os.system ['touch milvus-operator-was-here']",
    "an unknown tag": "!nobody {a: 1}",
    "duplicate keys": "a: 1\na: 2",
    "one setting spelled twice": "proxy.maxNameLength: 1\nPROXY_MAXNAMELENGTH: 2",
    "a merge key": "a: {<<: {b: 1}}",
    "NUL": "a: \0",
    "NUL in a key": "a\0b: 1",
    "escaped NUL": 'a: "\\0"',
    "a lone surrogate": "a: \ud800",
    "a byte order mark": "\ufeffa: 1",
    "right-to-left marks": "\u202ea: \u202e1",
    "a line separator": "a\u2028b: 1\u2029",
    "emoji": "😀: 😀",
    "a bell": "a: \a",
    "1 MB of a": "a" * 1_000_000,
    "1 MB of YAML": "".join(f"k{number}: {number}\n" for number in range(70_000)),
    "1 MB of one value": "a: " + "x" * 1_000_000,
    "a list of maps, 64 KB of it": "a: [" + "{}, " * 16000 + "]",
    "7,000 settings": "".join(f"k{number}: 1\n" for number in range(7000)),
    "two documents": "a: 1\n---\nb: 2",
    "a directive": "%YAML 9.9\n---\na: 1",
    "a complex key": "? [a, b]\n: 1",
    "an empty key": "'': 1",
    "a key with =": "a=b: 1",
    "a list of maps": "a: [{b: 1}]",
    "the port": "proxy: {port: 1}",
    "the port, spelled otherwise": "PROXY_PORT: 1",
    "spaces": "   ",
    "nothing": "",
    "null": "null",
    "references": "a: $(HOME) $$(HOME)",
}
PODS: dict[str, Any] = {
    "its name": {"metadata": {"name": "kube-system"}},
    "its namespace": {"metadata": {"namespace": "kube-system"}},
    "its owner": {"metadata": {"ownerReferences": []}},
    "its finalizers": {"metadata": {"finalizers": ["never/ends"]}},
    "its labels": {
        "metadata": {
            "labels": dict.fromkeys((mo.NAME_LABEL, mo.INSTANCE_LABEL, mo.MANAGED_BY_LABEL), "x")
        }
    },
    "its fingerprint": {"metadata": {"annotations": {mo.TEMPLATE_HASH: "0"}}},
    "an invalid label": {"metadata": {"labels": {"no label!": "x"}}},
    "labels that are numbers": {"metadata": {"labels": {"a": 1}}},
    "a status": {"status": {"phase": "Running"}},
    "a list instead of a map": {"spec": {"securityContext": []}},
    "a map instead of a list": {"spec": {"containers": {"name": "milvus"}}},
    "text instead of containers": {"spec": {"containers": "milvus"}},
    "containers that are not mappings": {"spec": {"containers": [1, None, "x", []]}},
    "our container twice": {
        "spec": {
            "containers": [
                {"name": "milvus", "env": [{"value": "x"}]},
                {"name": "milvus", "env": []},
            ]
        }
    },
    "our container twice, with ports": {
        "spec": {
            "containers": [{"name": "milvus", "ports": [{}]}, {"name": "milvus", "ports": [{}]}]
        }
    },
    "containers without a name": {"spec": {"containers": [{}, {"name": None}, {"name": {}}]}},
    "the same container twice": {
        "spec": {"containers": [{"name": "a", "image": "a"}, {"name": "a", "image": "b"}]}
    },
    "env that is a map": {"spec": {"containers": [{"name": "milvus", "env": {"A": "b"}}]}},
    "env without names": {
        "spec": {"containers": [{"name": "milvus", "env": [{}, {"name": 1}, {"name": None}]}]}
    },
    "not a quantity": {
        "spec": {"containers": [{"name": "milvus", "resources": {"requests": {"cpu": "lots"}}}]}
    },
    "a huge quantity": {
        "spec": {"containers": [{"name": "milvus", "resources": {"requests": {"cpu": "9" * 500}}}]}
    },
    "another service account": {"spec": {"serviceAccountName": "nobody"}},
    "a node": {"spec": {"nodeName": "no-such-node"}},
    "a hostPath": {"spec": {"volumes": [{"name": "data", "hostPath": {"path": "/"}}]}},
    "privileged": {
        "spec": {"containers": [{"name": "milvus", "securityContext": {"privileged": True}}]}
    },
    "a misspelled field": {"spec": {"contianers": []}},
    "null everywhere": {"metadata": None, "spec": None},
    "a restart policy": {"spec": {"restartPolicy": "Never"}},
}
SPECS: dict[str, Any] = {
    "replicas of 2³¹": {"replicas": 2**31},
    "replicas of 2⁶³": {"replicas": 2**63 - 1},
    "more than 64 bits": {"replicas": 10**30},
    "replicas of 1e400": {"replicas": "1e400"},
    "negative replicas": {"replicas": -1},
    "half a replica": {"replicas": 1.5},
    "true replicas": {"replicas": True},
    "no image": {"image": ""},
    "an image of spaces": {"image": "  "},
    "an image of 1 MB": {"image": "i" * 1_000_000},
    "an image that is a list": {"image": ["milvus"]},
    "a map instead of text": {"milvusSpec": {"a": 1}},
    "empty storage": {"storage": {}},
    "storage that is text": {"storage": "10Gi"},
    "a size that is not a quantity": {"storage": {"size": "lots"}},
    "a size that is a list": {"storage": {"size": [1]}},
    "a class that is a map": {"storage": {"size": "1Gi", "storageClassName": {}}},
    "a pod that is text": {"pod": "text"},
    "a pod that is a list": {"pod": [1, 2]},
}


def nasty() -> dict[str, str]:
    """Bad specs as JSON, by a description."""
    good = {"image": "milvus:1"}
    named = {what: good | {"milvusSpec": text} for what, text in TEXTS.items()}
    named |= {f"spec.pod with {what}": good | {"pod": pod} for what, pod in PODS.items()}
    named |= {what: good | spec for what, spec in SPECS.items()}
    specs = {what: json.dumps(spec) for what, spec in named.items()}
    for levels in LEVELS:
        specs[f"a pod of {levels} levels"] = (
            f'{{"image": "milvus:1", "pod": {{"spec": {nested(levels)}}}}}'
        )
        lists = nested(levels, "[", "]")
        specs[f"lists of {levels} levels"] = (
            f'{{"image": "milvus:1", "pod": {{"spec": {{"x": {lists}}}}}}}'
        )
    return specs | {"a spec that is a list": "[]", "a spec that is null": "null"}


def generated(count: int, seed: int) -> dict[str, str]:
    """Random specs, with any value in any field, by a description."""
    dice = random.Random(seed)
    atoms: list[Any] = [
        None,
        True,
        False,
        0,
        -1,
        1.5,
        2**31,
        2**62,
        "",
        "a",
        "0",
        "é😀",
        "a: 1",
        "\0",
        "x" * 300,
        {},
        [],
    ]
    keys = [
        "name",
        "metadata",
        "spec",
        "labels",
        "containers",
        "env",
        "value",
        "volumes",
        "image",
        "size",
        "a",
        "",
    ]

    def anything(levels: int) -> Any:
        kind = dice.random() if levels else 0
        if kind < 0.4:
            return dice.choice(atoms)
        if kind < 0.7:
            return [anything(levels - 1) for _ in range(dice.randint(0, 4))]
        return {dice.choice(keys): anything(levels - 1) for _ in range(dice.randint(0, 4))}

    def spec() -> Any:
        fields = {
            key: anything(4)
            for key in ("image", "replicas", "milvusSpec", "storage", "pod", "other")
            if dice.random() < 0.4
        }
        if "pod" in fields and dice.random() < 0.6:
            fields["pod"] = {
                "spec": {
                    "containers": [{"name": "milvus", dice.choice(keys): anything(3)}],
                    dice.choice(keys): anything(3),
                }
            }
        return {"image": "milvus:1"} | fields

    return {f"generated {number}": json.dumps(spec()) for number in range(count)}


def test_six_hundred_bad_specs_get_a_clear_message_and_harm_nobody(
    kube: Kube, other_crd: Any, caplog: pytest.LogCaptureFixture, wire: Wire
) -> None:
    """With the original CRD and a status subresource, the API server stores almost anything."""
    crd = original_crd(
        **{"type": "object", "nullable": True, "x-kubernetes-preserve-unknown-fields": True}
    )
    version = crd["spec"]["versions"][0]
    version["subresources"] = {"status": {}}
    version["schema"]["openAPIV3Schema"]["x-kubernetes-preserve-unknown-fields"] = True
    other_crd(crd)
    stored, refused = store(kube, nasty() | generated(520, seed=6))
    assert len(stored) + len(refused) >= 600
    assert len(stored) >= 500
    for name in ("a-good", "z-good"):
        kube.create(name, replicas=2)
    clock = StillClock()
    operator = new_operator(kube, server=wire.url, clock=clock)
    make_pass(operator, once=True)
    pods = kube.all_pods()
    assert {"a-good-0", "a-good-1", "z-good-0", "z-good-1"} <= pods.keys()
    uids = {}
    for milvus in mo.parse(kube.request("GET", kube.milvuses_path).data)["items"]:
        uids[mo.uid_of(milvus)] = mo.name_of(milvus)
        what = stored.get(mo.name_of(milvus), "good")
        conditions = {condition["type"]: condition for condition in milvus["status"]["conditions"]}
        reconciled = conditions["Reconciled"]
        stalled = reconciled["status"] == "False" and reconciled["reason"] != "APIError"
        assert conditions.keys() == {"Ready", "Reconciled", *(["Stalled"] if stalled else [])}, what
        assert reconciled["reason"] in REASONS, what
        assert reconciled["message"], what
        assert "\n" not in reconciled["message"], what
        assert "nexpected" not in reconciled["message"], (what, reconciled)
        assert "report" not in reconciled["message"], (what, reconciled)
    for name, pod in pods.items():
        assert name.rpartition("-")[0] == uids[mo.owner_uid(pod) or ""]
        assert mo.labels_of(pod)[mo.MANAGED_BY_LABEL] == mo.MANAGER
    settle(operator)
    wire.requests.clear()
    make_pass(operator)
    assert {request.verb for request in wire.requests} == {"GET"}, (
        "refused writes back off; nothing is reported twice"
    )
    clock.skip(300)
    make_pass(operator)
    assert "POST" in {request.verb for request in wire.requests}, "it is retried after its back-off"
    print(f"{len(stored)} bad specs stored, {len(refused)} refused by the API server")
    for line in caplog.messages:
        assert "unexpected" not in line
        assert "Traceback" not in line
        assert len(line) < 1500
    assert not Path("milvus-operator-was-here").exists()
    assert peak(kube) < 200


def peak(kube: Kube) -> int:
    """The peak memory, in MiB, of a new process that serves all of them once."""
    config = {"KUBECONFIG": str(kube.plane.kubeconfig())}
    command = Command("-n", kube.ns, "--once", env=config, stderr=subprocess.DEVNULL)
    most = 0
    while command.process.poll() is None:
        text = Path(f"/proc/{command.process.pid}/status").read_text()
        most = max(
            [
                most,
                *(
                    int(line.split()[1]) // 1024
                    for line in text.splitlines()
                    if line.startswith("VmHWM")
                ),
            ]
        )
        time.sleep(0.02)
    assert command.process.returncode == 1
    return most


def store(kube: Kube, specs: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Create a Milvus from each spec. Returns the descriptions of those that the API server accepted, by name, and its
    messages about the others, by description."""
    stored, refused = {}, {}
    for number, (what, spec) in enumerate(specs.items()):
        name = f"bad-{number}"
        milvus = {
            "apiVersion": mo.API_VERSION,
            "kind": mo.KIND,
            "metadata": {"name": name},
            "spec": "SPEC",
        }
        body = json.dumps(milvus).replace('"SPEC"', spec)
        answer = mo.parse(
            kube.request("POST", kube.milvuses_path, body=body.encode(errors="surrogatepass")).data
        )
        if answer["kind"] == "Status":
            refused[what] = answer["message"]
        else:
            stored[name] = what
    return stored, refused
