"""A wire: a proxy to an API server that records requests and can break them.

It forwards every request unchanged: to a real API server or, with `Api`, to the one in memory. A
test may set `fault` to a function that is called with the handler and the request's verb and path;
if it returns true, it has handled the request. A test may set `copy`, so that the judge hears of
each request, and of each list that is delivered.
"""

from __future__ import annotations

import functools
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import urllib3
import yaml

import milvus_operator as mo
from tests.lib.front import Obj, Pool
from tests.lib.judge import Copy
from tests.lib.server import NAMESPACE
from tests.lib.world import World


class Request(NamedTuple):
    verb: str
    path: str
    query: dict[str, list[str]]
    code: int
    credentials: str  # the Authorization header


class Wire:
    def __init__(self, server: str, authority: str, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[Request] = []
        self.keep = True  # whether requests are recorded
        self.connections: list[Any] = []  # the clients' addresses, one for each accepted connection
        self.over = threading.Event()  # set when the test is over
        self.fault: Callable[[Handler, str, str], bool] | None = None
        self.copy: Copy | None = None
        self.upstream: Any = urllib3.PoolManager(ca_certs=authority, maxsize=40, retries=False)
        self.server, self.tls = server, tls
        self.listen(0)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.http.server_port}"

    def listen(self, port: int) -> None:
        self.up = True
        self.http = Server(("127.0.0.1", port), type("Bound", (Handler,), {"wire": self}))
        if self.tls:
            self.http.socket = self.tls.wrap_socket(self.http.socket, server_side=True)
        threading.Thread(target=self.http.serve_forever, args=[0.02], daemon=True).start()

    def outage(self, seconds: float) -> None:
        """For some seconds, reset each connection that sends a request, and refuse new ones."""
        self.up = False
        self.stop_listening()
        time.sleep(seconds)
        self.listen(self.http.server_port)

    def verbs(self) -> list[str]:
        """The requests so far, as verb and path."""
        return [f"{request.verb} {request.path}" for request in self.requests]

    def close(self) -> None:
        self.over.set()
        self.stop_listening()

    def stop_listening(self) -> None:
        self.http.shutdown()
        self.http.server_close()


def write_kubeconfig(path: Path, server: str, user: Obj | None = None, **cluster: Any) -> str:
    """A kubeconfig for this server, with these other fields of the cluster; returns its path."""
    fields = {key.replace("_", "-"): value for key, value in cluster.items()}
    context = {"cluster": "a", "user": "a", "namespace": NAMESPACE}
    parts = {"clusters": {"server": server} | fields, "users": user or {}, "contexts": context}
    content: Obj = {key: [{"name": "a", key[:-1]: value}] for key, value in parts.items()}
    path.write_text(yaml.safe_dump(content | {"current-context": "a"}))
    return str(path)


class Api(Wire):
    """The server in memory on a port: for the command, and for an operator that connects as it does."""

    def __init__(self, folder: Path, *objects: Obj, tls: ssl.SSLContext | None = None) -> None:
        super().__init__("http://memory", "", tls)
        self.folder, self.world = folder, World(*objects)
        self.upstream = Pool(self.world.server, "")

    def kubeconfig(self, user: Obj | None = None, **cluster: Any) -> str:
        return write_kubeconfig(self.folder / "config", self.url, user, **cluster)

    def operator(self, file: str) -> mo.Operator:
        cluster = mo.Cluster(functools.partial(mo.connect, file, 8), None, 10)
        return mo.Operator(cluster, [NAMESPACE], 5, 4)

    def accept(self, token: str) -> None:
        """From now on, reject any other token."""

        def fault(handler: Handler, verb: str, path: str) -> bool:
            is_rejected = handler.headers.get("Authorization") != f"Bearer {token}"
            if is_rejected:
                handler.answer(401, b"Unauthorized", "text/plain")
            return is_rejected

        self.fault = fault

    def tokens(self, operator: mo.Operator) -> set[str]:
        """The tokens of the requests of one pass that were not rejected."""
        self.requests.clear()
        operator.run_pass()
        return {request.credentials.rpartition(" ")[2] for request in self.requests}


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that disconnects is not worth a traceback."""


class Handler(BaseHTTPRequestHandler):
    wire: Wire
    seen = b""  # the body of the request
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        self.wire.connections.append(self.client_address)
        super().setup()

    def handle_request(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.seen = self.rfile.read(length)
        if len(self.seen) < length:  # the client has been killed
            self.close_connection = True
            return
        copy = self.wire.copy
        self.asked = copy.asks(self.command, self.path, self.seen) if copy else None
        if not self.wire.up:
            self.reset()
            return
        try:
            handled = self.wire.fault and self.wire.fault(self, self.command, self.path)
            if not handled and not self.wire.over.is_set():
                answer = self.forward()
                kind = answer.headers.get("Content-Type", "application/json")
                self.answer(answer.status, answer.data, kind)
        except urllib3.exceptions.HTTPError:  # the API server is down
            self.reset()

    do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = handle_request

    def forward(self) -> urllib3.BaseHTTPResponse:
        """Forward the request, and return the answer of the API server."""
        headers = {
            key: value
            for key, value in self.headers.items()
            if key.lower() not in ("host", "content-length")
        }
        url = urlsplit(self.path)
        answer: urllib3.BaseHTTPResponse = self.wire.upstream.request(
            self.command, self.wire.server + self.path, body=self.seen, headers=headers
        )
        if self.asked:
            self.asked.is_done = answer.status == 200
        if self.wire.keep:
            who = self.headers.get("Authorization", "")
            self.wire.requests.append(
                Request(self.command, url.path, parse_qs(url.query), answer.status, who)
            )
        return answer

    def answer(
        self,
        code: int,
        body: bytes,
        kind: str = "application/json",
        length: int = 0,
        headers: dict[str, str] | None = None,
    ) -> None:
        if self.wire.copy and code == 200 and not length:
            self.wire.copy.gets(body)
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length or len(body)))
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)

    def reset(self) -> None:
        """Reset the connection, as if the process had died."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(self.connection.detach())
        self.close_connection = True

    def drip(self, seconds: float) -> None:
        """Send one byte at a time, so that no single read times out."""
        end = time.monotonic() + seconds
        try:
            for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b" " * 100000:
                self.wfile.write(bytes([byte]))
                self.wfile.flush()
                time.sleep(0.1)
                if time.monotonic() > end:
                    break
        except OSError:
            pass
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass
