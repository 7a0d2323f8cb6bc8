"""Makes the OLM bundle and the files of a release from the manifests, csv.yaml and a sample.

python -m tools.release bundle FOLDER IMAGE     # the bundle: `make bundle`
python -m tools.release release FOLDER IMAGE    # the files of a release: `make release`
"""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import yaml

from milvus_operator import MANAGER, __version__

TOP = Path(__file__).resolve().parent.parent
Obj = dict[str, Any]
Files = dict[str, bytes]  # by path

IMAGE = f"{MANAGER}:{__version__}"  # as deploy.yaml has it
SOURCES = ("milvus_operator.py", "pyproject.toml", "requirements.txt", "README.md", "LICENSE")
BUNDLE = "operators.operatorframework.io.bundle."
ANNOTATIONS = {  # of the bundle, which its image has as labels
    f"{BUNDLE}mediatype.v1": "registry+v1",
    f"{BUNDLE}manifests.v1": "manifests/",
    f"{BUNDLE}metadata.v1": "metadata/",
    f"{BUNDLE}package.v1": MANAGER,
    f"{BUNDLE}channels.v1": "stable",
    f"{BUNDLE}channel.default.v1": "stable",
}


class Dumper(yaml.SafeDumper):
    """Writes text of several lines as a block."""


Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, "|" if "\n" in text else None
    ),
)


def read(name: str) -> str:
    return (TOP / name).read_text()


def dump(obj: Obj) -> str:
    return yaml.dump(obj, Dumper=Dumper, sort_keys=False, width=120)


def deploy(image: str) -> str:
    """deploy.yaml with this image."""
    return read("deploy.yaml").replace(f"image: {IMAGE}", f"image: {image}")


def bundle(image: str) -> Files:
    """The files of the bundle."""
    labels = "".join(f"LABEL {key}={value}\n" for key, value in ANNOTATIONS.items())
    files = {
        f"bundle/manifests/{MANAGER}.clusterserviceversion.yaml": dump(service_version(image)),
        "bundle/manifests/milvuses.zilliz.com.crd.yaml": read("crd.yaml"),
        "bundle/metadata/annotations.yaml": dump({"annotations": ANNOTATIONS}),
        "bundle.Dockerfile": "# To build the bundle: docker build -f bundle.Dockerfile bundle\n"
        f"FROM scratch\n{labels}COPY manifests /manifests/\nCOPY metadata /metadata/\n",
    }
    return {path: text.encode() for path, text in files.items()}


def service_version(image: str) -> Obj:
    """The ClusterServiceVersion: csv.yaml, completed from the other files.

    OLM itself makes the service account and its bindings: Roles in the managed namespaces, or a
    ClusterRole.
    """
    csv, crd = yaml.safe_load(read("tools/csv.yaml")), yaml.safe_load(read("crd.yaml"))["spec"]
    sample, *_ = yaml.safe_load_all(read("samples/minimal.yaml"))
    _namespace, account, role, _binding, deployment = yaml.safe_load_all(deploy(image))
    name, labels, spec = (
        deployment["metadata"]["name"],
        deployment["metadata"]["labels"],
        deployment["spec"],
    )
    (container,), (version,) = spec["template"]["spec"]["containers"], crd["versions"]
    container["args"].remove("--all-namespaces")
    targets = {"fieldRef": {"fieldPath": "metadata.annotations['olm.targetNamespaces']"}}
    container["env"] = [
        *container.get("env", []),
        {"name": "MILVUS_OPERATOR_NAMESPACE", "valueFrom": targets},
    ]
    icon = base64.b64encode(read("tools/icon.svg").encode()).decode()
    owned = {
        "name": f"{crd['names']['plural']}.{crd['group']}",
        "version": version["name"],
        "kind": crd["names"]["kind"],
        "displayName": crd["names"]["kind"],
        "description": version["schema"]["openAPIV3Schema"]["description"],
    }
    csv["metadata"]["name"] = f"{MANAGER}.v{__version__}"
    csv["metadata"]["annotations"] |= {
        "alm-examples": json.dumps([sample], indent=2),
        "containerImage": image,
        "olm.skipRange": f"<{__version__}",  # any earlier version is replaced by this one directly
    }
    csv["spec"] |= {
        "version": __version__,
        "icon": [{"base64data": icon, "mediatype": "image/svg+xml"}],
        "customresourcedefinitions": {"owned": [owned]},
        "install": {
            "strategy": "deployment",
            "spec": {
                "permissions": [
                    {"serviceAccountName": account["metadata"]["name"], "rules": role["rules"]}
                ],
                "deployments": [{"name": name, "label": labels, "spec": spec}],
            },
        },
    }
    return dict(csv)


def wheel() -> Files:
    """The archive for pip, built from copies. It has a time of its own, the first that a zip file
    can have, so that the bytes are always the same."""
    with tempfile.TemporaryDirectory() as folder:
        for name in SOURCES:
            Path(folder, name).write_text(read(name))
            Path(folder, name).chmod(0o644)  # whatever the umask is
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        build = [*pip, "wheel", "--no-deps", f"--wheel-dir={folder}", folder]
        env = os.environ | {"SOURCE_DATE_EPOCH": "315532800"}
        subprocess.run(build, env=env, umask=0o022, check=True)
        return {path.name: path.read_bytes() for path in Path(folder).glob("*.whl")}


def release(image: str) -> Files:
    """The files of a release: a manifest with all that an installation needs, the bundle, and what
    pip installs."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path, content in bundle(image).items():
            # of root and of 1970, so that the bytes are always the same
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    manifest = f"{read('crd.yaml')}---\n{deploy(image)}"
    return {"install.yaml": manifest.encode(), "olm-bundle.tar": packed.getvalue()} | wheel()


def main(what: str, folder: str, image: str) -> None:
    for path, content in {"bundle": bundle, "release": release}[what](image).items():
        Path(folder, path).parent.mkdir(parents=True, exist_ok=True)
        Path(folder, path).write_bytes(content)


if __name__ == "__main__":
    main(*sys.argv[1:])
