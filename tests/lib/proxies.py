"""A proxy as it stands before an API server, with a password. It knows the server's address, whatever
the client calls it."""

import threading
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

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
