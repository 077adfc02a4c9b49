"""A web server for tests that answers a request with a fault: an error, a cut or stalled body, a wrong length."""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

from tests.datasets.shards.range_server import RangeHandler, RangeServer, etag

Fault = Callable[["FaultHandler"], None]
SECRET = "hunter2"


class FaultHandler(RangeHandler):
    server: "FaultServer"

    def _answer(self, with_body: bool) -> None:
        with self.server.lock:  # `faults` may be a generator that looks at the last request
            self.server.requests.append((self.command, self.path, self.headers.get("Range")))
            fault = next(self.server.faults, None)
        if fault:
            fault(self)
        else:
            super()._answer(with_body)

    @property
    def requested(self) -> Path:
        return self.server.folder / unquote(self.path.partition("?")[0]).lstrip("/")


class FaultServer(RangeServer):
    """`faults` answers the next requests; when it is exhausted, the server answers as it should.

    `requests` has the method, the path and the range of each request.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, handler=FaultHandler)
        self.faults: Iterator[Fault] = iter(())
        self.lock = threading.Lock()
        self.requests: list[tuple[str, str, str | None]] = []

    def fail(self, *faults: Fault) -> None:
        self.requests.clear()
        self.faults = iter(faults)

    def fail_always(self, fault: Fault) -> None:
        self.requests.clear()
        self.faults = iter(lambda: fault, None)

    def handle_error(self, *args: object) -> None:
        pass  # clients that went away


@contextmanager
def fault_server(folder: Path) -> Iterator[FaultServer]:
    with FaultServer(folder) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Waits for the result of downloads in the background."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def status(code: int, **headers: str) -> Fault:
    """An error, whose text contains a secret."""

    def answer(handler: FaultHandler) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(SECRET)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(SECRET.encode())

    return answer


def body(
    sent: int | None = None,
    reset: bool = False,
    ranges: bool = True,
    pause_seconds: float = 0.0,
    version: str | None = None,
) -> Fault:
    """The file or the range, of which only `sent` bytes are sent before the connection ends or is reset.

    ranges: False for a server that knows none. pause_seconds: before each piece of 10,000 bytes. version: another ETag.
    """

    def answer(handler: FaultHandler) -> None:
        data = handler.requested.read_bytes()
        start, _, last = handler.headers.get("Range", "").removeprefix("bytes=").partition("-")
        has_range = bool(start) and ranges
        first, end = (int(start), min(len(data), int(last or len(data)) + 1)) if has_range else (0, len(data))
        handler.send_response(206 if has_range else 200)
        handler.send_header("Content-Length", str(end - first))
        handler.send_header("ETag", version or etag(handler.requested))
        if has_range:
            handler.send_header("Content-Range", f"bytes {first}-{end - 1}/{len(data)}")
        handler.end_headers()
        if handler.command == "HEAD":
            return
        part = data[first:end][:sent]
        for position in range(0, len(part), 10_000):
            time.sleep(pause_seconds)
            handler.wfile.write(part[position : position + 10_000])
        if reset:
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            handler.connection.close()
        handler.close_connection = True

    return answer


def no_answer(handler: FaultHandler) -> None:
    time.sleep(10)
