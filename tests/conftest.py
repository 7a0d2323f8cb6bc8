"""One real control plane for all tests; a namespace with an operator, and a proxy, for each."""

import os
import socket
import struct
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import urllib3

from local.controlplane import ControlPlane, Unavailable
from tests.kube import Kube
from tests.world import eventually

# A proxy of the machine is for downloads, not for the servers of the tests.
_direct = os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")
os.environ |= dict.fromkeys(("no_proxy", "NO_PROXY"), f"127.0.0.1,{_direct}")


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    """A control plane with our CRD; the first time, its commands are built, for minutes."""
    try:
        with ControlPlane() as plane:
            yield plane
    except Unavailable as error:
        pytest.exit(f"the control plane cannot be started: {error}", returncode=1)


@pytest.fixture
def kube(plane: ControlPlane) -> Iterator[Kube]:
    """A namespace of its own for each test. Nothing waits for its end."""
    kube = Kube(plane, f"test-{uuid.uuid4().hex[:8]}")
    kube.kubectl("create", "namespace", kube.ns)
    eventually(lambda: kube.all_of("serviceaccounts", "ServiceAccount"))  # without it, no pods
    yield kube
    kube.kubectl("delete", "milvuses", "--all", "--wait=false")
    kube.kubectl("delete", "namespace", kube.ns, "--wait=false", "--ignore-not-found")


@pytest.fixture
def proxy(kube: Kube) -> Iterator["Proxy"]:
    with Proxy(kube.api.configuration) as proxy:
        kube.configure(server=f"http://127.0.0.1:{proxy.server_port}")
        kube.operator = kube.new_operator(kube.ns)
        yield proxy
        proxy.shutdown()


class Proxy(ThreadingHTTPServer):
    """Forwards and notes requests, unless `fault` says that it has dealt with one."""

    daemon_threads = True

    def __init__(self, server: Any) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.target = server.host
        self.pool: Any = urllib3.PoolManager(ca_certs=server.ssl_ca_cert, retries=False)
        self.requests = list[tuple[str, str, int]]()  # verb, path, code
        self.fault: Callable[[Handler], bool] = lambda handler: False
        threading.Thread(target=self.serve_forever, args=[0.05], daemon=True).start()

    def handle_error(self, *_: Any) -> None:
        """Clients disconnect."""


class Handler(BaseHTTPRequestHandler):
    server: Proxy
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer is one packet, or the client would wait for the second one

    def handle_request(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.is_answered = False
        with suppress(urllib3.exceptions.HTTPError):  # the API server is down
            if not self.server.fault(self):
                self.respond(*self.forward())
        if not self.is_answered:
            self.reset()

    do_GET = do_POST = do_PATCH = do_DELETE = handle_request

    def forward(self) -> tuple[int, bytes]:
        """Let the API server carry the request out. Returns its answer."""
        proxy, kept = self.server, ("Authorization", "Content-Type", "Accept")
        headers = {name: self.headers[name] for name in kept if self.headers[name]}
        url = proxy.target + self.path
        answer = proxy.pool.request(self.command, url, body=self.body, headers=headers)
        proxy.requests.append((self.command, self.path, answer.status))
        return answer.status, answer.data

    def respond(self, code: int, body: bytes, length: int | None = None) -> None:
        self.send_response_only(code)
        self.send_header("Retry-After", "120")  # nobody has the time
        self.send_header("Content-Length", str(length or len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()
        self.is_answered = True

    def reset(self) -> None:
        """Reset the connection, as if a process had died."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(self.connection.detach())
        self.close_connection = True
