"""What Milvus 2.6 and 3.0 read of a generated pod, by their own code: a stock milvus.yaml, our files
over it, variables over both, and the file of the embedded etcd.

Their images can run only where there is a registry; but the code that reads settings and starts the
embedded etcd is in Go modules of its own. The test builds a program of a page from them.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import milvus_operator as mo
from local import controlplane
from tests.lib import kubelet
from tests.lib.kit import TOP, Obj
from tests.lib.objects import milvus

VERSIONS = {"v2": "v2.6.20", "v3": "v3.0.0"}
SOURCE = TOP / "tests/milvus_settings/main.go.txt"

# A member of each kind of group: their names are part of what Milvus looks up.
GROUPS = {
    "proxy.accessLog.formatters.": ("mine.format", "$method_name"),
    "kafka.consumer.": ("client.id", "c"),
    "kafka.producer.": ("client.id", "p"),
    "knowhere.": ("DISKANN.build.max_degree", "57"),
    "credential.": ("mine.apikey", "k"),
    "function.textEmbedding.providers.": ("openai.enable", "false"),
    "autoindex.params.tuning.": ("a", "b"),
}
OVERLAY = [
    {"name": "COMMON_SECURITY_DEFAULTROOTPASSWORD", "value": "secret"},
    {"name": "mq.type", "value": "kafka"},
    {"name": "kafka.brokerList", "value": "a:9092"},
]


# What an owner may write, and no YAML parser of Milvus may choke on: it would drop all of its files.
ODD = [
    "a: 1\na_b: 2\nA.c: 3",
    "1: a\n2.5: b\ntrue: c\nnull: d\n~: e",
    "a: ~\nb: null\nc:\nd: ''",
    "a: [1, two, 3.0, null, on, ~]\nb: []\nc: {}",
    "a: on\nb: Y\nc: oFF\nd: 'no'",
    "a: 0o17\nb: 017\nc: 0x1F\nd: 0b11\ne: 1_000\nf: +12\ng: -0",
    "a: .inf\nb: -.INF\nc: .nan\nd: 1e3\ne: 1.5e+300\nf: 1e400",
    "a: 12:30:45\nb: 190:20:30.15\nc: 127.0.0.1:2379",
    "a: 2001-12-14t21:59:43.10-05:00\nb: 2002-12-14\nc: 2002-99-99",
    "a: 123456789012345678901234567890",
    "# by hand\r\na: 1\r\nb:\r\n  c: 2\r\n",
    "\ufeffa: 1\nb: 2",
    "---\na: 1\n...\n",
    "--- # a comment\na: 1",
    "a: &anchor 1\nb: &other {c: 2}",
    "a: |\n  two\n  lines\nb: >-\n  a\n  b\nc: |2+\n    more\n\n",
    "a: 'it''s'\nb: \"tab\\t \\u263a \\x41 \\N\"",
    "名前: é😀\né: 1",
    "a: $(HOME) $$ ${X} {{y}} %s `z`",
    "? a\n: 1\n? b\n:\n  c: 2",
    "a:\n- 1\n-  two\nb:\n  - x",
    "{a: 1, b: {c: [2, 3], d: }}",
    "{a: 1, b}",
    '{"a":1,"b":{"c":"d"}}',
    "a b c: d e f\n'x: y': z",
    "a: b#c\nb: 'x' # y\nc: x - y",
    "a:    1\nb:\t2",
    "a: =\nb: <<\nc: '*x'\nd: '&y'\ne: '!z'",
    "a: " + "x" * 30_000,
    "{a: " * 50 + "1" + "}" * 50,
    "path: /nowhere\nhome: /nowhere\nld_library_path: /nowhere",
    "",
    "# only a comment",
    "{}",
    "these words set nothing",
]


def documented() -> dict[str, str]:
    """Each setting of each milvusSpec in samples and documents, and its value."""
    texts = [path.read_text() for path in sorted((TOP / "samples").glob("*.yaml"))]
    for path in [TOP / "README.md", *sorted((TOP / "docs").glob("*.md"))]:
        texts += re.findall(r"^```yaml\n(.*?)^```$", path.read_text(), re.M | re.S)
    found = dict[str, str]()
    for text in texts:
        for obj in yaml.safe_load_all(text):
            spec = obj.get("spec") or {}
            if obj.get("kind") == "Milvus":
                found |= mo.spec_of(milvus(**{"replicas": 1} | spec)).settings
    assert len(found) > 10
    return found


def build(module: str) -> Path:
    """The program for a version of Milvus; made once."""
    version = VERSIONS[module]
    folder = controlplane.caches() / f"milvus-settings-{version}"
    program = folder / "settings"
    source = SOURCE.read_text().replace("VERSION", module)
    if not program.exists() or (folder / "main.go").read_text() != source:
        folder.mkdir(parents=True, exist_ok=True)
        required = f"require github.com/milvus-io/milvus/pkg/{module} {version}"
        (folder / "main.go").write_text(source)
        (folder / "go.mod").write_text(f"module settings\n\ngo 1.26\n\n{required}\n")
        env = os.environ | controlplane.GO_ENV | {"GOFLAGS": "-mod=mod"}
        for command in (["mod", "tidy"], ["build", "-o", str(program), "."]):
            go = [controlplane.find_go(), *command]
            done = subprocess.run(go, cwd=folder, env=env, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr[-2000:]
    return program


def read_by(
    program: Path, home: Path, spec: Obj, settings: list[str], groups: list[str], etcd: bool = False
) -> Any:
    """What the program reads where it has the variables and the files of a pod."""
    there = milvus(1, storage={"size": "1Gi"}, **spec)
    pod = mo.new_pod(there, mo.spec_of(there), 0)
    for path, text in kubelet.files(pod).items():
        if not path.endswith(mo.USER_FILE):
            text = text.replace(mo.CONFIGS, str(home)).replace(mo.DATA, str(home))
        (home / Path(path).name).write_bytes(text.encode())
    env = {"HOME": str(home), "MILVUSCONF": str(home)} | kubelet.variables(pod)
    asked = json.dumps({"settings": settings, "groups": groups, "etcd": etcd})
    done = subprocess.run(
        [program], env=env, cwd=home, input=asked, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr[-2000:]
    start = done.stdout.index('{"groups":')  # before it, Milvus may complain of a value
    return json.loads(done.stdout[start:].splitlines()[0])


@pytest.mark.slow
@pytest.mark.timeout(1800)  # the first run builds for some minutes
@pytest.mark.parametrize("module", VERSIONS)
def test_milvus_reads_what_was_meant(module: str, tmp_path: Path, installed: Path) -> None:
    program = build(module)
    shutil.copy(installed / "configs/milvus.yaml", tmp_path)  # of 2.3, as in an image

    # 1. Every default of ours over the stock file, and the file of etcd.
    found = read_by(program, tmp_path, {}, [*mo.DEFAULTS], [], etcd=True)
    for name, value in mo.DEFAULTS.items():
        if value.startswith("/"):
            assert found["settings"][name].startswith(str(tmp_path)), name
        else:
            assert found["settings"][name] == value, name
    assert float(found["quota"]) == 4 << 30

    # 2. Every setting of samples and documents, over ours.
    settings = documented()
    text = yaml.safe_dump(settings)
    found = read_by(program, tmp_path, {"milvusSpec": text}, [*settings], [])
    assert found["settings"] == settings

    # 3. One member of each kind of group.
    members = {f"{prefix}{name}": value for prefix, (name, value) in GROUPS.items()}
    spec: Obj = {"milvusSpec": yaml.safe_dump(members)}
    found = read_by(program, tmp_path, spec, ["mq.type"], [*GROUPS])
    for prefix, (name, value) in GROUPS.items():
        assert found["groups"][prefix].get(name) == value, prefix
    assert found["settings"]["mq.type"] == "rocksmq", "only an address chooses another queue"

    # 4. What YAML 1.1 calls true.
    words = {"common.security.authorizationEnabled": "on", "proxy.accessLog.enable": "y"}
    text = "".join(f"{name}: {word}\n" for name, word in words.items())
    found = read_by(program, tmp_path, {"milvusSpec": text}, [*words], [])
    assert found["settings"] == dict.fromkeys(words, "true")

    # 5. Variables of the overlay, over all files.
    spec = {
        "milvusSpec": "mq.type: pulsar\ncommon.security.defaultRootPassword: another",
        "pod": {"spec": {"containers": [{"name": "milvus", "env": OVERLAY}]}},
    }
    names = {"common.security.defaultRootPassword": "secret", "mq.type": "kafka"}
    names["kafka.brokerList"] = "a:9092"
    assert read_by(program, tmp_path, spec, [*names], [])["settings"] == names


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("module", VERSIONS)
def test_no_text_that_is_accepted_makes_milvus_drop_its_files(
    module: str, tmp_path: Path, installed: Path
) -> None:
    """Then our defaults would be gone, too: for such a server, the data lies elsewhere."""
    program = build(module)
    shutil.copy(installed / "configs/milvus.yaml", tmp_path)
    for text in ODD:
        found = read_by(program, tmp_path, {"milvusSpec": text}, ["mq.type"], [])
        assert found["settings"]["mq.type"] == "rocksmq", text

    def read_anyway(text: str) -> str:
        (tmp_path / "user.yaml").write_text(text)
        env = {"HOME": str(tmp_path), "MILVUSCONF": str(tmp_path)}
        asked = json.dumps({"settings": ["mq.type"], "groups": [], "etcd": False})
        done = subprocess.run([program], env=env, input=asked, capture_output=True, text=True)
        return done.stdout

    assert '"mq.type":"rocksmq"' not in read_anyway("a: !!int abc"), "this test would see it"
    assert '"mq.type":"kafka"' in read_anyway("mq: {type: kafka}")
    twice = "mq: {type: kafka}\nmq: {other: 1}"  # which the operator refuses
    assert '"mq.type":"rocksmq"' in read_anyway(twice), "the first section is gone"
