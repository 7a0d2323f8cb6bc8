"""A wire: a proxy to an API server, a real one or, with `Api`, the one in memory.

It records requests and forwards them unchanged. A test may set `fault`, which is called with the
handler and the request's verb and path; if it returns true, it has handled the request. A test may
set `judge`, who then hears of each write before the API server; nothing is recorded for as long.
"""

import contextlib
import os
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import urllib3
import yaml
from kubernetes.client import ApiClient

import milvus_operator as mo
from tests.lib.front import Obj
from tests.lib.judge import Judge
from tests.lib.server import NAMESPACE
from tests.lib.world import World


class Request(NamedTuple):
    verb: str
    path: str
    code: int
    credentials: str  # the Authorization header
    client: Any  # its address: another one for each connection


class Wire(ThreadingHTTPServer):
    def __init__(self, server: str, authority: str, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.server = server
        self.requests = list[Request]()
        self.over = threading.Event()  # set when the test is over
        self.fault: Callable[[Handler, str, str], bool] | None = None
        self.judge: Judge | None = None
        self.lock = threading.Lock()
        self.upstream: Any = urllib3.PoolManager(ca_certs=authority, maxsize=40, retries=False)
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=[0.02], daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that disconnects is not worth a traceback."""

    def close(self) -> None:
        self.over.set()
        self.shutdown()
        self.server_close()


def write_kubeconfig(path: Path, server: str, user: Obj | None = None, **cluster: Any) -> str:
    """A kubeconfig for this server, with these other fields of the cluster; returns its path."""
    fields = {key.replace("_", "-"): value for key, value in cluster.items()}
    parts = {
        "cluster": {"server": server} | fields,
        "user": user or {},
        "context": {"cluster": "a", "user": "a", "namespace": NAMESPACE},
    }
    content: Obj = {f"{key}s": [{"name": "a", key: part}] for key, part in parts.items()}
    content["current-context"] = "a"
    path.write_text(yaml.safe_dump(content))
    return str(path)


def connected(file: str, namespaces: list[str | None], workers: int) -> mo.Operator:
    """An operator that connects as the command does."""
    first = mo.connect(file, None, 8)

    def reload() -> ApiClient:
        return mo.connect(file, first.context, 8).client

    api = mo.Api(first.client, reload, mo.Client.renew, timeout=10)
    return mo.Operator(api, namespaces, 5, mo.start_pool(workers), mo.start_pool(1))


class Api(Wire):
    """The server in memory on a port: for the command, and an operator that connects as it does."""

    def __init__(self, folder: Path, tls: ssl.SSLContext | None = None) -> None:
        super().__init__("http://memory", "", tls)
        self.folder = folder
        self.world = World()
        self.upstream = self.world.server

    def kubeconfig(self, user: Obj | None = None, **cluster: Any) -> str:
        return write_kubeconfig(self.folder / "config", self.url, user, **cluster)

    def operator(self, file: str) -> mo.Operator:
        return connected(file, [NAMESPACE], workers=4)

    def tokens(self, operator: mo.Operator) -> set[str]:
        """The tokens of the requests of one pass."""
        self.requests.clear()
        operator.run_pass()
        return {request.credentials.rpartition(" ")[2] for request in self.requests}


class Handler(BaseHTTPRequestHandler):
    server: Wire
    seen = b""  # the body of the request
    protocol_version = "HTTP/1.1"

    def handle_request(self) -> None:
        wire = self.server
        length = int(self.headers.get("Content-Length") or 0)
        self.seen = self.rfile.read(length)
        if len(self.seen) < length:  # the client has been killed
            self.close_connection = True
            return
        try:
            handled = wire.fault and wire.fault(self, self.command, self.path)
            if not handled and not wire.over.is_set():
                response = self.forward()
                self.respond(response.status, response.data)
        except urllib3.exceptions.HTTPError:  # the API server is down
            self.reset()

    do_GET = do_POST = do_PATCH = do_DELETE = handle_request

    def forward(self) -> urllib3.BaseHTTPResponse:
        """Forward the request, and return the response of the API server."""
        del self.headers["Host"], self.headers["Content-Length"]  # the client of the wire sets them
        wire = self.server
        url, headers = wire.server + self.path, dict(self.headers)
        judge = wire.judge if self.command != "GET" else None
        with wire.lock if judge else contextlib.nullcontext():  # it sees what earlier writes did
            if judge:
                judge.hear(self.command, self.path, self.seen)
            response = wire.upstream.request(self.command, url, body=self.seen, headers=headers)
        if not wire.judge:
            path = self.path.partition("?")[0]
            who = self.headers.get("Authorization", "")
            request = Request(self.command, path, response.status, who, self.client_address)
            wire.requests.append(request)
        return response

    def respond(self, code: int, body: bytes) -> None:
        self.send_response_only(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def reset(self) -> None:
        """Reset the connection, as if the process had died."""
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        os.close(self.connection.detach())
        self.close_connection = True
