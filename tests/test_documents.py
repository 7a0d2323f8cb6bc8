"""README.md and docs/ are true: their commands run, their examples work, their options are those of --help."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from prometheus_client.metrics import MetricWrapperBase

import milvus_operator as mo
from tests.lib.kit import TOP, Command, Kube, Obj, eventually, kubeconfig, new_operator, settle

DOCUMENTS = {
    path: path.read_text() for path in (TOP / "README.md", *sorted((TOP / "docs").glob("*.md")))
}
README, ALL = DOCUMENTS[TOP / "README.md"], "\n".join(DOCUMENTS.values())
RESULTS = (TOP / "benchmarks" / "RESULTS.md").read_text()


def blocks(language: str, text: str = ALL) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
    return [block for kind, block in found if kind == language]


def plain(line: str) -> str:
    """A line of the demo without the parts that differ between runs or versions of kubectl."""
    line = line.replace(" from default namespace", "")
    return " ".join(re.sub(r"\d{4}-\S+Z|\b\d+s$", "…", line).split())


def anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles}


# A phrase in the documents, and the row of the results that it comes from; {0} is the first of the row's figures.
FIGURES = [
    ("it uses {0} MiB of memory", "peak memory, 1,000 × 3 at rest"),
    ("and {0} s of CPU for a pass", "a quiet pass, 1,000 × 3: CPU"),
    ("1,000 Milvus with 3,000 pods | {0} s | {1} s to fetch and parse the two lists", "a quiet pass, 1,000 × 3: CPU"),
    (", {1} s with garbage collection off", "the same, 1,000 × 3"),
    ("10,000 with 30,000 pods | {0} s | {1} s |", "a quiet pass, 10,000 × 3: CPU"),
    ("peak memory of these two | {0} MiB", "peak memory, 1,000 × 3 at rest"),
    (", {0} MiB | {1} MiB to import the libraries", "peak memory, 10,000 × 3 at rest"),
    ("among 10,000 pods of other people | {0} s | {1} s without them",
     "a quiet pass among 10,000 foreign pods: CPU"),
    ("creating 3,000 pods with `--once` | {0}/s | {1}/s by bare requests", "bring-up of 1,000 × 3, `--once`: pods/s"),
    ("until 3,000 pods exist | {0} s | {1} s with a kopf handler", "the same, from the start of the process"),
    ("peak memory for that | {0} MiB | {1} MiB with kopf", "the same: peak memory"),
    ("measured beside ReplicaSets | {0}/s | {1}/s with the rate limits",
     "bring-up of 1,000 × 3: pods/s | ReplicaSets, kube-controller-manager with limits lifted"),
    ("default rate limits | {0}/s | {1}/s, measured with",
     "bring-up of 1,000 × 3: pods/s | ReplicaSets, kube-controller-manager with default flags"),
    ("peak memory with 10,000 resources | {0} MiB, with 30,000 pods | {1} MiB with kopf",
     "peak memory, 10,000 × 3 | kopf"),
    ("`--interval=2` | {1} s, at most {0} s |", "a change of one among 1,000 quiet"),
    ("while 3,000 pods are created | at most {0} s", "the same while 3,000 creates are under way"),
]  # fmt: skip


def chapter(title: str) -> str:
    (found,) = (text for text in DOCUMENTS.values() if f"\n## {title}\n" in text)
    return found.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def section(title: str) -> list[str]:
    """The commands in a section."""
    lines = "\n".join(blocks("sh", chapter(title))).splitlines()
    return [line.partition("  #")[0].strip() for line in lines if line]


def is_known(name: str) -> bool:
    """Whether the operator defines this name, or has a field of it."""
    return hasattr(mo, name) or name in mo.Spec._fields or name in ("milvusSpec",)


def test_the_options_are_those_of_help() -> None:
    command = [sys.executable, "milvus_operator.py", "--help"]
    said = subprocess.run(
        command, cwd=TOP, capture_output=True, text=True, env=os.environ | {"COLUMNS": "80"}
    ).stdout
    assert said.rstrip() in [block.rstrip() for block in blocks("")]


def test_make_help_lists_every_target_and_those_in_the_documents_exist() -> None:
    said = subprocess.run(["make", "help"], cwd=TOP, capture_output=True, text=True).stdout
    targets = set(re.findall(r"^  make (\w+) +\S", said, re.M))
    assert targets == {
        "help",
        "demo",
        "check",
        "test",
        "matrix",
        "lint",
        "bench",
        "soak",
        "install",
        "uninstall",
        "run",
        "image",
        "lock",
        "deploy",
        "undeploy",
        "bundle",
        "release",
        "clean",
    }
    assert (
        {"demo", "test"}
        <= set(re.findall(r"^make (\w+)", "\n".join(blocks("sh")), re.M))
        <= targets
    )
    assert subprocess.run(["make"], cwd=TOP, capture_output=True, text=True).stdout == said


def test_every_milvus_in_the_documents_gets_its_pods(kube: Kube, operator: mo.Operator) -> None:
    examples = [block for block in blocks("yaml") if "\nkind: Milvus\n" in block]
    assert len(examples) > 8
    expected = []
    for block in examples:
        kube.kubectl("apply", "-f", "-", stdin=block)
        milvus = yaml.safe_load(block)
        expected += [
            mo.pod_name(milvus, ordinal) for ordinal in range(milvus["spec"].get("replicas", 1))
        ]
    settle(operator)
    assert kube.names() == sorted(expected)
    (container,) = kube.all_pods()["locked-0"]["spec"]["containers"]
    names = [variable["name"] for variable in container["env"]]
    assert {"common.security.authorizationEnabled", "common.security.defaultRootPassword"} <= set(
        names
    )


def test_the_api_server_accepts_every_other_object_of_the_documents(kube: Kube) -> None:
    others = [block for block in blocks("yaml") if re.search(r"^kind: (?!Milvus$)", block, re.M)]
    assert len(others) > 1
    for block in others:
        kube.kubectl("apply", "--dry-run=server", "-f", "-", stdin=block)


def test_pod_security_restricted_accepts_the_milvus_that_is_made_for_it(
    kube: Kube, operator: mo.Operator
) -> None:
    kube.kubectl("label", "ns", kube.ns, "pod-security.kubernetes.io/enforce=restricted")
    kube.kubectl(
        "apply", "-f", "-", stdin=blocks("yaml", chapter("Pod").partition("### Pod Security")[2])[0]
    )
    settle(operator)
    assert kube.names() == ["restricted-0"]


@pytest.mark.cluster
def test_the_demo_prints_what_the_readme_says() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "local.demo", "--wait=no"], cwd=TOP, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "That was the life of a Milvus" in done.stdout
    assert "\x1b" not in done.stdout, "no colours in a pipe"
    printed = "\n".join(map(plain, done.stdout.splitlines()))
    (shown,) = (block for block in blocks("") if "operator |" in block)
    assert [line for line in shown.splitlines() if plain(line) not in printed] == []


def test_the_pictures_exist_and_load_nothing_from_elsewhere() -> None:
    found = {
        path.parent / name
        for path, text in DOCUMENTS.items()
        for name in re.findall(r"!\[[^]]+\]\(([^)]+)\)", text)
    }
    assert TOP / "docs" / "demo.svg" in found
    for picture in found:
        assert ElementTree.parse(picture).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    text = (TOP / "docs" / "demo.svg").read_text()
    assert len(text) < 30_000
    assert not re.search(r"<script|href|url\(|@import", text)


def test_links_between_the_documents_lead_somewhere() -> None:
    for path, text in DOCUMENTS.items():
        for file, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", text):
            target = (path.parent / file).resolve() if file else path
            assert target.exists(), f"{path.name}: {file}"
            assert not anchor or anchor in anchors(target.read_text()), (
                f"{path.name}: {file}#{anchor}"
            )


def test_the_figures_in_the_documents_are_those_of_the_benchmark() -> None:
    number = r"\d(?:[\d,]*\d)?(?:\.\d+)?"
    text = " ".join(
        (README.partition("## Try it")[0] + chapter("How fast") + chapter("Compared")).split()
    )
    for phrase, label in FIGURES:
        (row,) = (
            line.split(" | ") for line in RESULTS.splitlines() if line.startswith(f"| {label}")
        )
        figures = [float(figure.replace(",", "")) for figure in re.findall(number, row[2])]
        between, places = re.split(r"\{\d\}", phrase), re.findall(r"\{(\d)\}", phrase)
        said = re.search(f"({number})".join(map(re.escape, between)), text)
        assert said, f"{phrase!r} is not in the documents: change FIGURES with it"
        for shown, place in zip(said.groups(), places, strict=True):
            measured, half = figures[int(place)], 0.5001 * 10 ** -len(shown.partition(".")[2])
            assert abs(float(shown.replace(",", "")) - measured) <= half, (
                f"{said[0]!r}, but the results say {measured}"
            )
        text = text.replace(said[0], "")
    assert re.findall(rf"{number}(?= ?(?:s|MiB|cores|pods a second)\b|/s)", text) == [], (
        "figures without a row"
    )


def test_make_install_run_and_uninstall(kube: Kube) -> None:
    env = os.environ | {
        "KUBECONFIG": str(kube.plane.kubeconfig()),
        "KUBECTL": str(kube.plane.kubectl),
    }
    make = [
        "make",
        "-o",
        ".venv/run",
        f"KUBECTL={kube.plane.kubectl}",
        f"BIN={os.path.dirname(sys.executable)}",
    ]

    def run(*arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [*make, *arguments],
            cwd=TOP,
            env=env,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    assert "customresourcedefinition.apiextensions.k8s.io/milvuses.zilliz.com" in run("install")
    kube.create()
    assert "1 created" in run("run", f"ARGS=--once -n {kube.ns}")
    assert "this needs YES=1.\nNothing was removed." in run("uninstall", code=2)
    removed = run("uninstall", "YES=1")
    assert 'customresourcedefinition.apiextensions.k8s.io "milvuses.zilliz.com" deleted' in removed
    run("install")


def test_the_commands_to_use_it(kube: Kube, tmp_path: Path) -> None:
    """They run as written, except for the virtual environment: the tests have their own."""
    (tmp_path / "kubectl").symlink_to(kube.plane.kubectl)
    env = os.environ | {
        "KUBECONFIG": str(kube.plane.kubeconfig()),
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }
    make = f"make -o .venv/run BIN={os.path.dirname(sys.executable)}"
    said, running = "", None
    try:
        for line in section("Use it on your cluster"):
            command = line.replace("make", make)
            if line.startswith("make run"):
                running = subprocess.Popen(
                    command, shell=True, cwd=TOP, env=env, start_new_session=True
                )
                continue
            done = subprocess.run(
                command, shell=True, cwd=TOP, env=env, capture_output=True, text=True
            )
            assert done.returncode == 0, f"{line}: {done.stderr}"
            said = done.stdout
        assert "milvus-crd-test   1         1       Ready" in said
        assert "pod/milvus-crd-test-0" in said
    finally:
        if running:
            os.killpg(running.pid, signal.SIGTERM)
            running.wait()
        subprocess.run(
            "kubectl delete -f sample.yaml", shell=True, cwd=TOP, env=env, capture_output=True
        )


def test_the_commands_about_an_installation(kube: Kube, tmp_path: Path) -> None:
    """They run as written, except for building the image, which needs a container engine. The kubelet is simulated."""
    env = os.environ | {
        "KUBECONFIG": str(kube.plane.kubeconfig()),
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }
    (tmp_path / "kubectl").symlink_to(kube.plane.kubectl)
    commands = [
        line
        for title in ("Run it in a cluster", "One namespace", "Rights", "Watch it")
        for line in section(title)
    ]
    assert [line for line in commands if "make image" in line] == commands[:1]
    said = {}
    try:
        for line in commands[1:]:
            done = subprocess.run(
                line, shell=True, cwd=TOP, env=env, capture_output=True, text=True
            )
            assert done.returncode == 0, f"{line}: {done.stderr}"
            said.update(dict.fromkeys(line.split(), done.stdout))
            if line == "kubectl apply -f sample.yaml":
                default = Kube(kube.plane, "default")
                new_operator(default).run_once()
        assert "successfully rolled out" in said["rollout"]
        assert "deployment.apps/milvus-operator" in said["get"]
        assert "milvuses.zilliz.com" in said["auth"]
        assert "milvus-crd-test-0: missing" in said["describe"]
        assert "milvus-crd-test-0: missing" in said["events"]
    finally:
        for line in (
            "make undeploy",
            "kubectl delete namespace milvus --wait=false",
            "kubectl delete -f sample.yaml",
        ):
            subprocess.run(
                line, shell=True, cwd=TOP, env=env, capture_output=True, stdin=subprocess.DEVNULL
            )


def test_from_python(kube: Kube, command: Callable[..., Command]) -> None:
    command("-n", "default", "--interval=0.2")
    env = os.environ | {"KUBECONFIG": str(kube.plane.kubeconfig()), "PYTHONPATH": str(TOP)}
    (code,) = blocks("python", chapter("From Python"))
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines() == [
        "milvusdb/milvus:v2.6.25 ['from-python-0']",
        "['from-python']",
        "['from-python-0', 'from-python-1']",
    ], done.stderr


def made_yours(source: str, names: str, kind: str) -> str:
    """The module with other constants of these names, and with another section "The kind"."""
    start = source.index("# ---------- The kind")
    end = source.index("# ---------- ", start + 1)
    head, rest = source[:start], source[end:]
    for line in names.splitlines():
        left = line.partition(" = ")[0]
        head, found = re.subn(f"^{re.escape(left)} = .*$", line, head, flags=re.M)
        assert found == 1, left
    return f"{head}{kind}\n\n{rest}"


def test_make_it_yours(kube: Kube, tmp_path: Path) -> None:
    """The changes in docs/make-it-yours.md turn it into an operator for another kind."""
    text = chapter("Another kind")
    assert [name for name in re.findall(r"`([A-Za-z_]+)`", text) if not is_known(name)] == []
    (names, kind), (commands,) = blocks("python", text), blocks("sh", text)
    operator, config = tmp_path / "milvus_operator.py", tmp_path / "kubeconfig"
    operator.write_text(made_yours((TOP / "milvus_operator.py").read_text(), names, kind))
    for name in ("crd.yaml", "deploy.yaml"):
        (tmp_path / name).write_text((TOP / name).read_text())
    subprocess.run(["sh", "-ec", commands], cwd=tmp_path, check=True)
    cache = {
        "apiVersion": "example.com/v1",
        "kind": "Cache",
        "metadata": {"name": "c"},
        "spec": {"image": "redis:8", "replicas": 2},
    }
    system = "--namespace=cache-operator-system"
    try:
        for name in ("cache-crd.yaml", "cache-deploy.yaml"):
            kube.kubectl("apply", system, "-f", str(tmp_path / name))
        kube.kubectl("wait", "--for=condition=Established", "crd/caches.example.com")
        body = json.dumps(cache)
        eventually(lambda: "created" in kube.kubectl("apply", "-f", "-", stdin=body, check=False))
        token = kube.kubectl("create", "token", "cache-operator", system).strip()
        env = os.environ | {"KUBECONFIG": kubeconfig(config, kube.plane, token=token)}

        def ready() -> bool:
            once = [sys.executable, str(operator), "--once", "-n", kube.ns]
            done = subprocess.run(once, env=env, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            path = "jsonpath={.status.conditions[0].status}"
            return "True" in kube.kubectl("get", "ca", "c", "-o", path)

        eventually(ready)
        assert kube.names() == ["c-0", "c-1"]
        (container,) = kube.all_pods()["c-1"]["spec"]["containers"]
        assert (container["name"], container["args"][0]) == ("redis", "redis-server")
        kube.kubectl("patch", "cache", "c", "--type=merge", "-p", '{"spec": {"image": "redis:9"}}')
        eventually(lambda: ready() and kube.images() == ["redis:9", "redis:9"])
    finally:
        for name in ("cache-deploy.yaml", "cache-crd.yaml"):
            kube.kubectl("delete", system, "-f", str(tmp_path / name), check=False)


def test_the_rights_in_the_documents_are_those_of_the_manifests() -> None:
    table = re.findall(
        r"^\| `([\w/]+)`(?: of `([\w.]+)`)? \| ([\w, ]+) \|", chapter("Rights"), re.M
    )
    said = {(verb, resource) for resource, _, verbs in table for verb in verbs.split(", ")}
    for name in ("deploy.yaml", "deploy-namespaced.yaml"):
        roles = [
            doc
            for doc in yaml.safe_load_all((TOP / name).read_text())
            if doc["kind"].endswith("Role")
        ]
        rules = [rule for role in roles for rule in role["rules"]]
        assert said == {
            (verb, resource)
            for rule in rules
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }


def test_the_metrics_in_the_documents_exist_and_are_complete() -> None:
    said = re.findall(r"^\| `(milvus_operator_\w+?)(?:_total)?(?:\{([\w,]+)\})?`", ALL, re.M)
    ours = [metric for metric in vars(mo).values() if isinstance(metric, MetricWrapperBase)]
    assert {*said} == {(metric._name, ",".join(metric._labelnames)) for metric in ours}


def test_every_field_of_the_crd_is_described(kube: Kube) -> None:
    def undescribed(schema: Obj, path: str) -> Iterator[str]:
        if "description" not in schema:
            yield path
        for name, field in schema.get("properties", {}).items():
            yield from undescribed(field, f"{path}.{name}")
        if isinstance(schema.get("items"), dict) and "properties" in schema["items"]:
            yield from undescribed(schema["items"], f"{path}[]")

    schema = yaml.safe_load((TOP / "crd.yaml").read_text())["spec"]["versions"][0]["schema"][
        "openAPIV3Schema"
    ]
    fields = {
        name: field for name, field in schema["properties"].items() if name in ("spec", "status")
    }
    assert [path for name, field in fields.items() for path in undescribed(field, name)] == []
    eventually(lambda: "FIELDS:" in kube.kubectl("explain", "mi.spec", check=False))
    said = " ".join(kube.kubectl("explain", "mi.spec").split())
    for name, field in fields["spec"]["properties"].items():
        assert " ".join(field["description"].split()[:6]) in said, name


def test_the_version_is_the_same_everywhere() -> None:
    for name in ("Makefile", "deploy.yaml", "deploy-namespaced.yaml", "Dockerfile", "README.md"):
        said = re.findall(
            r"(?:milvus-operator:|image\.version=\"?)(\d[\d.]*\d)", (TOP / name).read_text()
        )
        assert {*said} == {mo.__version__}, name
