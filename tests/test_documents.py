"""README.md and docs/ are true: commands run, examples work, options are those of --help."""

import os
import pty
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import DEVNULL

import pytest
import yaml

import milvus_operator as mo
from tests.lib.kit import TOP, Kube, Start, eventually, output_of, scripts, settle

README = (TOP / "README.md").read_text()
DOCS = [path.read_text() for path in TOP.glob("docs/*.md")]
ALL = README + "".join(DOCS)
Shell = Callable[..., str]  # runs a line; see the fixture


def blocks(language: str, text: str = ALL) -> list[str]:
    return re.findall(f"^```{language}\n(.*?)^```$", text, re.M | re.S)


def chapter(title: str) -> str:
    return ALL.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def section(title: str) -> list[str]:
    """The commands in a section."""
    text = "".join(blocks("sh", chapter(title)))
    return re.findall(r"^(\S.*?) *(?:  #.*)?$", text, re.M)


def python(*arguments: str, **env: str) -> str:
    """Run Python in the top folder; returns what it prints."""
    return output_of(sys.executable, *arguments, env=os.environ | env)


# --- What is written ---
def test_the_options_are_those_of_help() -> None:
    shown = python("milvus_operator.py", "--help")
    documented = re.findall(r"`(--[a-z-]+)`", (TOP / "docs/options.md").read_text())
    assert {*documented} <= {*re.findall(r"--[a-z-]+", shown)}
    assert len({*documented}) == 8


def test_the_list_of_the_operators_settings_is_that_of_default_yaml() -> None:
    text = (
        (TOP / "docs/configuration.md").read_text().partition("\n### Settings of the operator\n")[2]
    )
    text = text.partition("\n### ")[0]
    rows = dict(re.findall(r"^\| `([\w.]+)` \| `([^`]+)`", text, re.M))
    address = rows.pop("COMPONENT.ip")
    assert rows | {f"{name}.ip": address for name in mo.COMPONENTS} == mo.DEFAULTS


def test_make_lists_the_targets_that_the_documents_name() -> None:
    listed = re.findall(r"^  make ([\w-]+) +\S", output_of("make"), re.M)
    used = re.findall(r"^make ([a-z-]+)", "".join(blocks("sh")), re.M)
    assert {"demo", "test"} <= {*used} <= {*listed}


def test_links_between_the_documents_lead_somewhere() -> None:
    for path in (*TOP.glob("*.md"), *TOP.glob("docs/*.md")):
        for file, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", path.read_text()):
            target = path.parent / file if file else path
            assert target.exists(), f"{path.name}: {file}"
            if anchor:
                text = target.read_text().lower().replace(" ", "-")
                titles = re.sub("[^a-z0-9#\n-]", "", text)
                assert f"#-{anchor}\n" in titles, f"{path.name}: {file}#{anchor}"


FIGURE = re.compile(r"[\d.,]*\d(?= (?:%|/s|s|MiB)\s)")


def test_figures_that_are_quoted_are_those_of_the_report() -> None:
    """In a paragraph that links to a report."""
    quoted = 0
    for text in (README, *DOCS):
        for paragraph in text.split("\n\n"):
            for name in re.findall(r"reports/(\w+)\.md", paragraph):
                report = (TOP / f"docs/reports/{name}.md").read_text()
                for figure in FIGURE.findall(paragraph):
                    assert f"{figure} " in report, f"{figure} is not in {name}.md"
                    quoted += 1
    assert quoted > 1


# --- What runs ---
def test_every_milvus_in_the_documents_gets_its_pods_and_other_objects_are_accepted(
    kube: Kube, operator: mo.Operator
) -> None:
    expected = []
    for block in blocks("yaml"):
        obj = yaml.safe_load(block)
        if obj.get("kind") == "Milvus":
            kube.kubectl("apply", "-f", "-", stdin=block)
            replicas = obj["spec"].get("replicas", 1)
            expected += [mo.pod_name(obj, ordinal) for ordinal in range(replicas)]
        elif obj.get("kind") == "ServiceAccount":
            kube.kubectl("apply", "-f", "-", stdin=block)
        elif "kind" in obj:
            kube.kubectl("apply", "--dry-run=server", "-f", "-", stdin=block)
    settle(operator)
    assert len(expected) > 7
    assert kube.names() == sorted(expected)
    # One of them is made for Pod Security.
    kube.kubectl("label", "ns", kube.ns, "pod-security.kubernetes.io/enforce=restricted")
    kube.kubectl("delete", "pod", "restricted-0")
    settle(operator)
    assert "restricted-0" in kube.names()


@pytest.fixture
def shell(kube: Kube, tmp_path: Path) -> Shell:
    """Runs a line as a user would, and returns what it prints. Only the virtual environment is that
    of the tests."""
    (tmp_path / "kubectl").symlink_to(kube.plane.kubectl)
    env = os.environ | {"KUBECONFIG": str(kube.plane.kubeconfig())}
    env["PATH"] = f"{tmp_path}:{env['PATH']}"
    make = f"make -o .venv/run BIN={os.path.dirname(sys.executable)}"

    def run(line: str, code: int = 0, stdin: int = DEVNULL) -> str:
        if line.startswith("export "):
            name, value = line.removeprefix("export ").split("=")
            env[name] = value
            return ""
        line = line.replace("make", make, 1)
        return output_of("sh", "-c", line, code=code, env=env, stdin=stdin)

    return run


def test_the_commands_to_try_it_on_a_cluster_and_to_remove_it(shell: Shell, command: Start) -> None:
    shell("make uninstall YES=1")
    venv, install, apply, run = section("Run it")
    assert venv.endswith("pip install -r requirements.txt")  # as for the environment of the tests
    assert "condition met" in shell(install)
    assert "milvus-crd-test created" in shell(apply)
    assert run == "python milvus_operator.py"  # it does not end, but a dry run can
    dry_run = shell(f"{sys.executable} milvus_operator.py --once --dry-run")
    assert "milvus default/milvus-crd-test: created pod milvus-crd-test-0 (dry run)" in dry_run
    command("-n", "default")
    shell("kubectl wait --for=condition=Ready milvus/milvus-crd-test --timeout=60s")
    assert "milvus-crd-test   1         1       Ready" in shell("kubectl get mi,pods")
    said = shell("kubectl describe milvus milvus-crd-test")
    assert "created pod milvus-crd-test-0" in said
    assert "deleted" in shell("kubectl delete -f sample.yaml")
    assert "this needs YES=1.\nNothing was removed." in shell("make uninstall", 2)
    removed = 'customresourcedefinition.apiextensions.k8s.io "milvuses.zilliz.com" deleted'
    assert removed in shell("make uninstall YES=1")
    shell("make install")


def test_the_commands_that_install_and_those_that_remove_ask_first(
    kube: Kube, shell: Shell
) -> None:
    """They run as written, except for the image, which needs a container engine."""
    commands = section("Run it in a cluster")
    commands += section("One namespace") + section("Permissions")
    deleted = ("ns/milvus-polling-operator-system", "ns/milvus")  # by another test
    kube.kubectl("wait", "--for=delete", *deleted, "--timeout=60s")
    kube.create()
    said = ""
    master, terminal = pty.openpty()
    os.write(master, b"n\nn\ny\n")
    try:
        for line in commands:
            if line not in ("make image", "kind load docker-image $IMAGE"):
                said += shell(line)
        assert "successfully rolled out" in said
        assert "deployment.apps/milvus-polling-operator" in said
        assert "milvuses.zilliz.com" in said
        for target in ("uninstall", "undeploy"):
            said = shell(f"make {target}", 2, terminal)
            assert "every Milvus" in said
            assert "Continue? [y/N] Nothing was removed." in said
        said = shell("make undeploy", 0, terminal)
        assert 'namespace "milvus-polling-operator-system" deleted' in said
    finally:
        os.close(master)
        os.close(terminal)
        shell("make undeploy YES=1")
        shell("kubectl delete namespace milvus --wait=false --ignore-not-found")
    assert kube.get(), "the operator is removed, not what it manages"


# The chapters whose commands are run: by the tests above, by tests/test_restores.py (Restore), and by
# the test below. Of these, no test runs the commands about images.
RUN = ["Run it", "Run it in a cluster", "One namespace", "Permissions", "Restore", "Storage"]
RUN += ["Updates", "Restart a Milvus", "A claim was deleted by mistake"]
# Other blocks of commands, by how they begin: why no test runs them.
NOT_RUN = {
    "make demo": "CI runs it, and `make test` is these tests",
    "kubectl apply -n milvus-polling-operator-system -f samples/monitoring": "CRDs of Prometheus",
    "kubectl label -n milvus-polling-operator-system": "CRDs of Prometheus",
    "kubectl get mi -o wide": "the simulated kubelet has no logs; the others are run elsewhere",
    "bash standalone_embed.sh stop": "Docker; tests/test_milvus.py does it with the real server",
}


def test_every_block_of_commands_is_run_or_it_is_known_why_not() -> None:
    run = blocks("sh", "".join(chapter(title) for title in RUN))
    for block in blocks("sh"):
        is_listed = any(block.startswith(start) for start in NOT_RUN)
        assert is_listed or block in run, block
    for start in NOT_RUN:
        assert any(block.startswith(start) for block in blocks("sh")), start


def test_commands_that_change_a_milvus(kube: Kube, command: Start, tmp_path: Path) -> None:
    """Growth, a restart, and an update at a chosen hour, of a Milvus with a volume."""
    run = scripts(kube, tmp_path)
    kube.create_storage_class(kube.ns, allowVolumeExpansion=True)
    kube.create_volume(kube.ns, storageClassName=kube.ns)
    kube.create("vectors", storage={"size": "1Gi", "storageClassName": kube.ns})
    command("--interval=0.3")
    ready = "kubectl wait --for=condition=Ready milvus/vectors --timeout=60s"
    run(ready)
    (grow,) = blocks("sh", chapter("Storage"))
    assert "data-vectors-0" in run(grow)
    shown = ("get", "pvc", "data-vectors-0", "-o", "jsonpath={.spec.resources.requests.storage}")
    eventually(lambda: kube.kubectl(*shown) == "100Gi")
    before = kube.uids()
    (restart,) = blocks("sh", chapter("Restart a Milvus"))
    run(restart)
    eventually(lambda: kube.uids().keys() == before.keys() and kube.uids() != before)
    run(ready)
    change, restart = blocks("sh", chapter("Updates"))
    run(change)
    # kubectl waits forever for a pod that is deleted and created again within milliseconds, as here.
    said = run(restart.replace("kubectl delete", "sleep 2; kubectl delete --wait=false"))
    assert "condition met" in said

    def image() -> str:
        return kube.all_pods()["vectors-0"]["spec"]["containers"][0]["image"]

    eventually(lambda: "NEW_VERSION" in image(), ignoring=(KeyError,))


def test_from_python(kube: Kube, command: Start) -> None:
    command("-n", "default", "--interval=0.2")
    config = str(kube.plane.kubeconfig())
    environment = {"KUBECONFIG": config, "PYTHONPATH": str(TOP)}
    _, code = blocks("python")
    assert python("-c", code, **environment).startswith("2 [")


READY = "kubectl wait --for=condition=Ready milvus/vectors --timeout=60s"
BOUND = "kubectl wait --for=jsonpath='{.status.phase}'=Bound pvc/data-vectors-0 --timeout=60s"
RETAIN, AGAIN = blocks("sh", chapter("A claim was deleted by mistake"))


@pytest.fixture
def rescue(kube: Kube, command: Start, tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Runs scripts about a Milvus with a volume, which the Milvus must use again in the end."""
    run = scripts(kube, tmp_path)
    kube.create_storage_class(kube.ns)
    kube.create_volume(kube.ns, storageClassName=kube.ns, persistentVolumeReclaimPolicy="Delete")
    kube.create("vectors", storage={"size": "1Gi", "storageClassName": kube.ns})
    command("--interval=0.3")
    run(f"{READY} && {BOUND}")
    yield run
    run(f"{READY} && {BOUND}")
    shown = ("get", "pvc", "data-vectors-0", "-o", "jsonpath={.spec.volumeName}")
    assert kube.kubectl(*shown) == kube.ns, "the old volume"
    assert kube.condition("Reconciled", "vectors")["status"] == "True"


def test_a_volume_is_rescued_whose_claim_was_deleted_by_mistake(
    kube: Kube, rescue: Callable[[str], str]
) -> None:
    rescue("kubectl delete pvc data-vectors-0 --wait=false")
    eventually(lambda: kube.condition("Reconciled", "vectors")["reason"] == "ClaimTerminating")
    rescue(f"{RETAIN}\n{AGAIN}")


def test_a_volume_is_rescued_whose_milvus_and_claim_are_gone(
    kube: Kube, rescue: Callable[[str], str]
) -> None:
    rescue(RETAIN)
    rescue("kubectl delete milvus vectors && kubectl delete pvc data-vectors-0")
    kube.create("vectors", replicas=0, storage={"size": "1Gi", "storageClassName": kube.ns})
    rescue(f"volume={kube.ns}\nreplicas=1\n{AGAIN}")
