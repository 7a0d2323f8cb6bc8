"""What Milvus 2.6 and 3.0 read of a generated pod, by their own code: the variables, in the order of
their sources, and the file of the embedded etcd.

Their images can run only where there is a registry; but the code that reads settings and starts the
embedded etcd is in Go modules of its own. The test builds a program of a page from them.
"""

import json
import os
import re
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


def documented() -> dict[str, str]:
    """Each setting of each milvusSpec in samples and documents, and its value."""
    texts = [path.read_text() for path in sorted((TOP / "samples").glob("*.yaml"))]
    for path in [TOP / "README.md", *sorted((TOP / "docs").glob("*.md"))]:
        texts += re.findall(r"^```yaml\n(.*?)^```$", path.read_text(), re.M | re.S)
    found = dict[str, str]()
    for text in texts:
        for obj in yaml.safe_load_all(text):
            settings = (obj.get("spec") or {}).get("milvusSpec")
            if obj.get("kind") == "Milvus" and settings:
                flat = mo.flatten(iter(mo.events_of(settings)[1:]))
                found |= {name: value for name, value, _ in flat}
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
    program: Path, home: Path, spec: Obj, settings: list[str], groups: list[str], lost: str = "(?!)"
) -> Any:
    """What the program reads where it has the variables and the files of a pod, without those
    variables whose names match `lost`."""
    there = milvus(1, storage={"size": "1Gi"}, **spec)
    pod = mo.new_pod(there, mo.spec_of(there), 0)
    (path, text), *others = kubelet.files(pod).items()
    assert not others
    file = home / "etcd.yaml"
    file.write_text(text)
    env = {"HOME": str(home), "MILVUSCONF": str(home)}
    for name, value in kubelet.variables(pod).items():
        if re.fullmatch(lost, name) and name not in mo.DEFAULTS:
            continue
        env[name] = value.replace(path, str(file)).replace(mo.DATA, str(home))
    asked = json.dumps({"settings": settings, "groups": groups})
    done = subprocess.run(
        [program], env=env, cwd=home, input=asked, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.slow
@pytest.mark.timeout(1800)  # the first run builds for some minutes
@pytest.mark.parametrize("module", VERSIONS)
def test_milvus_reads_what_was_meant(module: str, tmp_path: Path) -> None:
    program = build(module)

    # 1. Every default of ours, and the file of etcd.
    found = read_by(program, tmp_path, {}, [*mo.DEFAULTS], [])
    for name, value in mo.DEFAULTS.items():
        if value.startswith("/"):
            assert found["settings"][name].startswith(str(tmp_path)), name
        else:
            assert found["settings"][name] == value, name
    assert float(found["quota"]) == 4 << 30

    # 2. Every setting of samples and documents, in the spelling of milvus.yaml.
    settings = documented()
    text = yaml.safe_dump({name: value for name, value in settings.items() if name != "mq.type"})
    no_etcd = {"milvusSpec": f"{text}etcd.use.embed: 'false'\n"}
    for lost in ("(?!)", r".*\..*", "[A-Z_]+"):  # each setting has two names, and one is enough
        found = read_by(program, tmp_path, no_etcd, [*settings], [], lost)
        assert found["settings"] == settings, lost

    # 3. One member of each kind of group.
    members = {f"{prefix}{name}": value for prefix, (name, value) in GROUPS.items()}
    env = [{"name": "milvus", "env": [{"name": "mq.type", "value": "kafka"}]}]
    spec = {"milvusSpec": yaml.safe_dump(members), "pod": {"spec": {"containers": env}}}
    found = read_by(program, tmp_path, spec, [], [*GROUPS])
    for prefix, (name, value) in GROUPS.items():
        assert found["groups"][prefix].get(name) == value, prefix

    # 4. Variables of the overlay.
    spec = {"pod": {"spec": {"containers": [{"name": "milvus", "env": OVERLAY}]}}}
    names = {"common.security.defaultRootPassword": "secret", "mq.type": "kafka"}
    names["kafka.brokerList"] = "a:9092"
    assert read_by(program, tmp_path, spec, [*names], [])["settings"] == names
