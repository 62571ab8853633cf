"""A real S3 API on loopback for tests, and a line to it that can be made bad."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "AKIAPLANTEDFORTESTS0",
    "AWS_SECRET_ACCESS_KEY": "planted-secret-0123456789abcdef",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@contextmanager
def s3_server() -> Iterator[str]:
    """The endpoint of a server of the S3 API, empty but for the bucket `bucket`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while True:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                connection.request("PUT", "/bucket")
                assert connection.getresponse().status == 200
                break
            except OSError:
                assert server.poll() is None
                assert time.monotonic() < until
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


class Line(ThreadingHTTPServer):
    """A proxy. Of `every` requests one is answered with 503, and one is cut off in the middle; `down` refuses all."""

    daemon_threads = True

    def __init__(self, behind: str, every: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind = behind.removeprefix("http://")
        self.every = every
        self.down = False
        self.requests = self.refused = self.cut = 0
        self.count = threading.Lock()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Broken connections are what this is for."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Line

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.server.count:
            self.server.requests += 1
            turn = self.server.requests % self.server.every
            refuse = self.server.down or turn == 1
            cut = not refuse and turn == self.server.every // 2
            self.server.refused += refuse
            self.server.cut += cut
        if refuse:
            self._answer(503, {}, b"<Error><Code>ServiceUnavailable</Code><Message>later</Message></Error>")
            return
        connection = http.client.HTTPConnection(self.server.behind, timeout=60)
        connection.request(self.command, self.path, body, dict(self.headers))
        answer = connection.getresponse()
        content = answer.read()
        if cut:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.connection.close()
            self.close_connection = True
            return
        self._answer(answer.status, dict(answer.getheaders()), content)

    def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("connection", "transfer-encoding", "date", "server") and not (
                name.lower() == "content-length" and self.command != "HEAD"
            ):
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass_on  # noqa: N815 - names that http.server asks for

    def log_message(self, *arguments: Any) -> None:
        """Quiet."""


@contextmanager
def bad_line(behind: str, every: int) -> Iterator[Line]:
    """A line to a store on which, of `every` requests, one is refused and one breaks off."""
    line = Line(behind, every)
    thread = threading.Thread(target=line.serve_forever, daemon=True)
    thread.start()
    try:
        yield line
    finally:
        line.shutdown()
        line.server_close()


def forget_clients() -> None:
    """Clients remember the endpoint that they were made for, and the cache its folder."""
    import s3fs

    from stages.storage import address, cache

    s3fs.S3FileSystem.clear_instance_cache()
    address._file_system.cache_clear()
    cache._opened.clear()
