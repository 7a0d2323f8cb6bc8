"""What can be checked of the image without building it: `make image` needs a builder and the package index."""

import re

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.lib.kit import TOP, Command
from tests.lib.matrix import PYTHONS
from tests.lib.wire import Api
from tests.lib.world import milvus

DOCKERFILE, LOCK = ((TOP / name).read_text() for name in ("Dockerfile", "requirements.lock"))


def test_the_lock_has_a_version_in_range_and_hashes_for_every_requirement() -> None:
    locked = dict(re.findall(r"^([\w.-]+)==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}", LOCK, re.M))
    assert len(locked) == LOCK.count("==")
    required = re.findall(r"^[^#\n].*", (TOP / "requirements.txt").read_text(), re.M)
    assert required
    for requirement in map(Requirement, required):
        assert locked[canonicalize_name(requirement.name)] in requirement.specifier, requirement


def test_the_base_image_is_pinned_and_has_a_python_that_the_lock_and_the_matrix_are_for() -> None:
    base = re.search(r"^ARG BASE=python:([\d.]+)-slim@sha256:[0-9a-f]{64}$", DOCKERFILE, re.M)
    assert base
    assert f"--python-version={base[1]} " in (TOP / "Makefile").read_text()
    assert base[1] in PYTHONS


def test_the_builder_gets_exactly_the_files_that_the_image_copies() -> None:
    copied = re.findall(r"^COPY (?!--from)(?:--\S+ )?(.+) \S+$", DOCKERFILE, re.M)
    ignored = (TOP / ".dockerignore").read_text().splitlines()
    assert {f"!{file}" for files in copied for file in files.split()} | {"*"} == {*ignored}


def test_what_the_image_leaves_out_is_not_imported(api: Api) -> None:
    removed = re.findall(r"^RUN rm -r (.+)$", DOCKERFILE, re.M)
    modules = [path.rstrip("*").replace("/", ".") for paths in removed for path in paths.split()]
    assert "aiohttp" in modules
    without = f"import sys\nsys.modules |= dict.fromkeys({modules})\n"
    (api.folder / "sitecustomize.py").write_text(without)
    api.world.add(milvus("x", replicas=2))
    options = ["--once", "--kubeconfig", api.kubeconfig()]
    process = Command(*options, env={"PYTHONPATH": str(api.folder)})
    assert process.end() == 0, process.log
    assert api.world.pods() == ["x-0", "x-1"]
