"""A wire to the real API server that records requests and can spoil answers.

It forwards every request as it is. A test sets `fault` to a function that is called with the
handler and the request's verb and path; when that returns true, it has dealt with the request.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

import urllib3


class Request(NamedTuple):
    verb: str
    path: str
    query: dict[str, list[str]]
    body: bytes
    code: int


class Wire:
    def __init__(self, server: str, authority: str) -> None:
        self.requests: list[Request] = []
        self.fault: Callable[[Handler, str, str], bool] | None = None
        self.upstream = urllib3.PoolManager(ca_certs=authority, maxsize=40, retries=False)
        self.server = server
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"wire": self}))
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def verbs(self) -> list[str]:
        """The requests so far, as verb and path."""
        return [f"{request.verb} {request.path}" for request in self.requests]

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()


class Handler(BaseHTTPRequestHandler):
    wire: Wire
    seen = b""  # the body of the request
    protocol_version = "HTTP/1.1"

    def forward(self) -> None:
        self.seen = body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        if self.wire.fault and self.wire.fault(self, self.command, self.path):
            return
        headers = {key: value for key, value in self.headers.items() if key.lower() not in ("host", "content-length")}
        answer = self.wire.upstream.request(self.command, self.wire.server + self.path, body=body, headers=headers)
        self.wire.requests.append(Request(self.command, url.path, parse_qs(url.query), body, answer.status))
        self.answer(answer.status, answer.data, answer.headers.get("Content-Type", "application/json"))

    do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = forward

    def answer(self, code: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def drip(self, seconds: float) -> None:
        """One byte at a time, each well within any time-out between two reads."""
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
