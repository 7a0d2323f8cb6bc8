"""Proxies as they stand before an API server: over HTTP, with a password, and SOCKS. Both know its
address, whatever the client calls it."""

import contextlib
import shutil
import socket
import struct
import threading
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any

import urllib3


class HttpProxy(ThreadingHTTPServer):
    """It wants this name and password."""

    def __init__(self, server: str, login: str) -> None:
        super().__init__(("127.0.0.1", 0), HttpHandler)
        self.server = server
        self.credentials = f"Basic {b64encode(login.encode()).decode()}"
        self.passed = list[str]()  # the paths that it has forwarded
        threading.Thread(target=self.serve_forever, args=[0.02], daemon=True).start()


class HttpHandler(BaseHTTPRequestHandler):
    server: HttpProxy
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        code, body = 407, b""
        if self.headers["Proxy-Authorization"] == self.server.credentials:
            path = urllib3.util.parse_url(self.path).request_uri
            answer = urllib3.request("GET", self.server.server + path, retries=False)
            code, body = answer.status, answer.data
            self.server.passed.append(path)
        self.send_response_only(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class SocksProxy(ThreadingTCPServer):
    """SOCKS 5 (RFC 1928), with a password (RFC 1929) if one is given."""

    daemon_threads = True

    def __init__(self, port: int, login: str = "") -> None:
        super().__init__(("127.0.0.1", 0), SocksHandler)
        self.port = port  # of the API server
        self.login = login
        self.asked = list[str]()  # the hosts that it was asked for
        threading.Thread(target=self.serve_forever, args=[0.02], daemon=True).start()


class SocksHandler(StreamRequestHandler):
    server: SocksProxy

    def handle(self) -> None:
        _, count = self.rfile.read(2)
        self.rfile.read(count)  # the methods that the client offers
        self.wfile.write(bytes([5, 2 if self.server.login else 0]))
        if self.server.login:
            self.rfile.read(1)
            name, password = self.text(), self.text()
            is_known = f"{name}:{password}" == self.server.login
            self.wfile.write(bytes([1, 0 if is_known else 1]))
            if not is_known:
                return
        *_, kind = self.rfile.read(4)
        host = self.text() if kind == 3 else socket.inet_ntoa(self.rfile.read(4))
        struct.unpack("!H", self.rfile.read(2))
        self.server.asked.append(host)
        with socket.create_connection(("127.0.0.1", self.server.port)) as upstream:
            self.wfile.write(bytes([5, 0, 0, 1, 0, 0, 0, 0, 0, 0]))
            there = threading.Thread(target=self.copy, args=[self.rfile, upstream], daemon=True)
            there.start()
            with contextlib.suppress(OSError):
                shutil.copyfileobj(upstream.makefile("rb", buffering=0), self.wfile, 1)

    def text(self) -> str:
        (length,) = self.rfile.read(1)
        return self.rfile.read(length).decode()

    def copy(self, source: Any, target: socket.socket) -> None:
        while data := source.read1(65536):
            target.sendall(data)
