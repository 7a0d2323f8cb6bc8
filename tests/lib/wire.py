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


class Wire:
    def __init__(self, server: str, authority: str, tls: ssl.SSLContext | None = None) -> None:
        self.server = server
        self.requests = list[Request]()
        self.connections = list[Any]()  # the clients' addresses, one for each accepted connection
        self.over = threading.Event()  # set when the test is over
        self.fault: Callable[[Handler, str, str], bool] | None = None
        self.judge: Judge | None = None
        self.lock = threading.Lock()
        self.upstream: Any = urllib3.PoolManager(ca_certs=authority, maxsize=40, retries=False)
        self.up = True  # or each connection that sends a request is reset
        self.http = Server(("127.0.0.1", 0), type("Bound", (Handler,), {"wire": self}))
        if tls:
            self.http.socket = tls.wrap_socket(self.http.socket, server_side=True)
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=[0.02], daemon=True).start()

    def close(self) -> None:
        self.over.set()
        self.http.shutdown()
        self.http.server_close()


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


class Api(Wire):
    """The server in memory on a port: for the command, and an operator that connects as it does."""

    def __init__(self, folder: Path, *objects: Obj, tls: ssl.SSLContext | None = None) -> None:
        super().__init__("http://memory", "", tls)
        self.folder = folder
        self.world = World(*objects)
        self.upstream = self.world.server

    def kubeconfig(self, user: Obj | None = None, **cluster: Any) -> str:
        return write_kubeconfig(self.folder / "config", self.url, user, **cluster)

    def operator(self, file: str) -> mo.Operator:
        cluster = mo.Cluster(lambda context: mo.connect(file, 8, context), timeout=10)
        return mo.Operator(cluster, [NAMESPACE], 5, 4)

    def accept(self, token: str) -> None:
        """From now on, reject any other token."""

        def fault(handler: Handler, verb: str, path: str) -> bool:
            is_other = handler.headers.get("Authorization") != f"Bearer {token}"
            if is_other:
                handler.respond(401, b"Unauthorized", "text/plain")
            return is_other

        self.fault = fault

    def tokens(self, operator: mo.Operator) -> set[str]:
        """The tokens of the requests of one pass that were not rejected."""
        self.requests.clear()
        operator.run_pass()
        return {request.credentials.rpartition(" ")[2] for request in self.requests}


class Server(ThreadingHTTPServer):
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
        wire = self.wire
        length = int(self.headers.get("Content-Length") or 0)
        self.seen = self.rfile.read(length)
        if len(self.seen) < length:  # the client has been killed
            self.close_connection = True
            return
        if not wire.up:
            self.reset()
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
        wire = self.wire
        url, headers = wire.server + self.path, dict(self.headers)
        judge = wire.judge if self.command != "GET" else None
        with wire.lock if judge else contextlib.nullcontext():  # it sees what earlier writes did
            if judge:
                judge.hear(self.command, self.path, self.seen)
            response = wire.upstream.request(self.command, url, body=self.seen, headers=headers)
        if not wire.judge:
            path = self.path.partition("?")[0]
            who = self.headers.get("Authorization", "")
            wire.requests.append(Request(self.command, path, response.status, who))
        return response

    def respond(self, code: int, body: bytes, kind: str = "application/json", **more: str) -> None:
        self.send_response(code)
        headers = {"Content-Type": kind, "Content-Length": str(len(body))} | more
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)

    def reset(self) -> None:
        """Reset the connection, as if the process had died."""
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        os.close(self.connection.detach())
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass
