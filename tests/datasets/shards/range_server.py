"""A web server on this machine for a folder: ranges, ETags, HEAD, and a fault for an answer."""

import hashlib
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

Fault = Callable[["RangeHandler"], None]
SECRET = "hunter2"
_RANGE = re.compile(r"bytes=(\d+)-(\d*)$")


class RangeHandler(BaseHTTPRequestHandler):
    """Serves the files below `server.folder`, or the next of `server.faults`."""

    protocol_version = "HTTP/1.1"  # keeps connections open
    disable_nagle_algorithm = True
    server: "RangeServer"

    def do_GET(self) -> None:
        with self.server.lock:  # `faults` may be a generator that looks at the last request
            self.server.requests.append((self.command, self.path, self.headers.get("Range")))
            fault = next(self.server.faults, None)
        fault(self) if fault else self.send_file()

    do_HEAD = do_GET

    def send_file(
        self,
        sent: int | None = None,
        reset: bool = False,
        ranges: bool = True,
        pause_seconds: float = 0.0,
    ) -> None:
        """Sends the file or the range, of which only `sent` bytes; then resets the connection if `reset`.

        ranges: False for a server that knows none. pause_seconds: before each piece of 10,000 bytes.
        """
        path = self.server.folder / unquote(self.path.partition("?")[0]).lstrip("/")
        if not path.is_file() or not path.resolve().is_relative_to(self.server.folder):
            self.start(404, {"Content-Length": "0"})
            return
        data = path.read_bytes()
        content = data
        code = 200
        headers = {"ETag": etag(path)}
        wanted = _RANGE.match(self.headers.get("Range", ""))
        if wanted and ranges:
            first = int(wanted[1])
            content = data[first : int(wanted[2] or len(data)) + 1]
            code = 206 if content else 416
            headers["Content-Range"] = f"bytes {first}-{first + len(content) - 1}/{len(data)}"
        self.start(code, headers | {"Content-Length": str(len(content))})
        if self.command == "HEAD":
            return
        content = content[:sent]
        piece_bytes = 10_000 if pause_seconds else 1 << 30
        for position in range(0, len(content), piece_bytes):
            time.sleep(pause_seconds)
            self.wfile.write(content[position : position + piece_bytes])
        if reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

    def start(self, code: int, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


class RangeServer(ThreadingHTTPServer):
    """A server on a free port of 127.0.0.1.

    `faults` answers the next requests; when it is exhausted, the server answers as it should. `requests` has the
    method, the path and the range of each request.
    """

    daemon_threads = True
    request_queue_size = 128  # with Python's 5, connections that begin together wait for a second

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), RangeHandler)
        self.folder = folder.resolve()
        self.faults: Iterator[Fault] = iter(())
        self.lock = threading.Lock()
        self.requests: list[tuple[str, str, str | None]] = []

    def fail(self, *faults: Fault) -> None:
        self.requests.clear()
        self.faults = iter(faults)

    def fail_always(self, fault: Fault) -> None:
        self.requests.clear()
        self.faults = iter(lambda: fault, None)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores clients that went away, and connections that a fault has closed."""
        if not isinstance(sys.exception(), OSError | ValueError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def range_server(folder: Path) -> Iterator[RangeServer]:
    with RangeServer(folder) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Waits for other threads and processes."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def etag(path: Path) -> str:
    state = path.stat()
    return f'"{hashlib.sha256(f"{state.st_size} {state.st_mtime_ns}".encode()).hexdigest()[:32]}"'


def status(code: int, text: str = SECRET, **headers: str) -> Fault:
    """An error, whose text contains a secret."""

    def answer(handler: RangeHandler) -> None:
        handler.start(code, headers | {"Content-Length": str(len(text))})
        if handler.command != "HEAD":
            handler.wfile.write(text.encode())

    return answer


def body(**options: Any) -> Fault:
    """The file or the range as `send_file` sends it with these options, and then the end of the connection."""

    def answer(handler: RangeHandler) -> None:
        handler.send_file(**options)
        handler.close_connection = True

    return answer


def no_answer(handler: RangeHandler) -> None:
    time.sleep(10)
