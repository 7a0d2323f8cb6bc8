"""What pip installs: one module, what it requires, and a command."""

import re
import site
import sys
from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import Requirement

import milvus_operator as mo
from tests.lib.kit import TOP, output_of
from tools import release


def test_pip_builds_and_installs_the_command_with_its_version_and_its_requirements(
    tmp_path: Path,
) -> None:
    """Into a new environment that sees the packages of this one, which meet the requirements."""
    ((name, content),) = release.wheel().items()
    (tmp_path / name).write_bytes(content)
    new = tmp_path / "new"
    output_of(sys.executable, "-m", "venv", "--without-pip", str(new))
    (packages,) = new.glob("lib/*/site-packages")
    (packages / "others.pth").write_text("\n".join(site.getsitepackages()))
    pip = (sys.executable, "-m", "pip", "--python", str(new))
    output_of(*pip, "install", "--no-index", str(tmp_path / name))
    said = output_of(str(new / "bin" / mo.MANAGER), "--version", cwd=tmp_path, env={})
    assert said == f"{mo.MANAGER} {mo.__version__}\n"
    (installed,) = distributions(path=[str(packages)])
    assert (installed.name, installed.version) == (mo.MANAGER, mo.__version__)
    required = re.findall(r"^[^#\n]+", (TOP / "requirements.txt").read_text(), re.M)
    assert {*map(Requirement, installed.requires or [])} == {*map(Requirement, required)}
    modules = {path.parts[0] for path in installed.files or [] if path.suffix == ".py"}
    assert modules == {"milvus_operator.py"}
    assert installed.metadata["Requires-Python"] == ">=3.11"
