"""Large objects: their size harms nobody. The operator is a process; the server keeps nothing."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

import milvus_operator as mo
from tests.lib.kit import Command

Obj = dict[str, Any]
BIG = 1_300_000  # bytes; etcd takes up to 1.5 MiB


class Answers(BaseHTTPRequestHandler):
    """Lists of objects in pages; anything else is accepted."""

    protocol_version = "HTTP/1.1"
    server: Any

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query, plural = parse_qs(url.query), url.path.rpartition("/")[2]
        start, limit = int(query.get("continue", ["0"])[0]), int(query["limit"][0])
        objects: list[Obj] = getattr(self.server, plural)
        page = b",".join(json.dumps(obj).encode() for obj in objects[start : start + limit])
        left = str(start + limit) if objects[start + limit :] else ""
        self.answer(
            b'{"kind":"List","metadata":{"continue":"%b"},"items":[%b]}' % (left.encode(), page)
        )

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.sizes.append(len(body))
        self.answer(body)

    do_PATCH = do_POST

    def answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Any]:
    """A server with lists of Milvus resources and of pods, and the sizes of what it was sent."""
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.daemon_threads = True
    server.milvuses, server.pods, server.sizes = [], [], []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def milvus(number: int, **spec: Any) -> Obj:
    metadata = {"name": f"x{number}", "namespace": "a", "uid": f"u{number}", "generation": 1}
    return {"metadata": metadata | {"resourceVersion": "1"}, "spec": {"image": "a"} | spec}


def large() -> Obj:
    """A spec.pod of more than a megabyte, as of a user with a long list."""
    return {"metadata": {"annotations": {f"key-{i}": "x" * 1000 for i in range(BIG // 1000)}}}


def peak(server: Any, folder: Path) -> int:
    """The most memory, in MiB, of a process that makes two passes."""
    part: Obj = {"clusters": {"server": f"http://127.0.0.1:{server.server_port}"}, "users": {}}
    part |= {"contexts": {"cluster": "a", "user": "a", "namespace": "a"}}
    content = {key: [{"name": "a", key[:-1]: value}] for key, value in part.items()}
    (folder / "config").write_text(yaml.safe_dump(content | {"current-context": "a"}))
    process = Command("-v", "--interval", "1", "--kubeconfig", str(folder / "config"))
    try:
        for _ in range(2):
            process.says("pass over")
        status = Path(f"/proc/{process.process.pid}/status").read_text()
    finally:
        process.kill()
    found = re.search(r"VmHWM:\s+(\d+)", status)
    assert found
    return int(found[1]) // 1024


def test_a_hundred_and_fifty_large_pods_are_listed_within_300_mib(
    server: Any, tmp_path: Path
) -> None:
    owner = milvus(0, replicas=150, pod=large())
    spec = mo.spec_of(owner)
    server.milvuses = [owner]
    for number in range(150):
        pod = mo.new_pod(owner, spec, number)
        pod["metadata"] |= {"uid": f"pod-{number}", "resourceVersion": "1"}
        server.pods.append(pod | {"status": {"phase": "Pending"}})
    assert len(json.dumps(server.pods[0])) > BIG
    assert peak(server, tmp_path) < 300


def test_settings_that_repeat_a_long_key_are_not_built(server: Any, tmp_path: Path) -> None:
    """64 KiB of text may ask for 58 MiB of environment."""
    text = f"? {'k' * 60_000}\n: {{{','.join(f'a{number}' for number in range(999))}}}"
    assert len(text) < 64 << 10
    server.milvuses = [milvus(number, replicas=20, milvusSpec=text) for number in range(5)]
    assert peak(server, tmp_path) < 200
    assert max(server.sizes) < 10_000, "their statuses, and no pod"
