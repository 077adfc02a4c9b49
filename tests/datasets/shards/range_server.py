"""A web server on this machine for a folder: ranges, ETags, HEAD, and a delay before each answer.

python tests/datasets/shards/range_server.py FOLDER MILLISECONDS
"""

import hashlib
import re
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

_RANGE = re.compile(r"bytes=(\d+)-(\d*)$")


class RangeHandler(BaseHTTPRequestHandler):
    """Serves the files below `server.folder`, after `server.latency_seconds`."""

    protocol_version = "HTTP/1.1"  # keeps connections open
    disable_nagle_algorithm = True
    server: "RangeServer"

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, with_body: bool) -> None:
        time.sleep(self.server.latency_seconds)
        path = self.server.folder / unquote(self.path.partition("?")[0]).lstrip("/")
        if not path.is_file() or not path.resolve().is_relative_to(self.server.folder):
            self._start(404, {"Content-Length": "0"})
            return
        size, wanted = path.stat().st_size, _RANGE.match(self.headers.get("Range", ""))
        start = int(wanted[1]) if wanted else 0
        end = min(size, int(wanted[2]) + 1) if wanted and wanted[2] else size
        if wanted and start >= size:
            self._start(416, {"Content-Length": "0"})
            return
        headers = {"Accept-Ranges": "bytes", "Content-Length": str(end - start), "ETag": etag(path)}
        headers |= {"Content-Range": f"bytes {start}-{end - 1}/{size}"} if wanted else {}
        self._start(206 if wanted else 200, headers)
        if with_body:
            self.wfile.write(path.read_bytes()[start:end])

    def _start(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


def etag(path: Path) -> str:
    state = path.stat()
    return f'"{hashlib.sha256(f"{state.st_size} {state.st_mtime_ns}".encode()).hexdigest()[:32]}"'


class RangeServer(ThreadingHTTPServer):
    """A server on a free port of 127.0.0.1."""

    daemon_threads = True
    request_queue_size = 128  # with Python's 5, connections that begin together wait for a second

    def __init__(self, folder: Path, latency_seconds: float = 0.0, handler: type[RangeHandler] = RangeHandler) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.folder, self.latency_seconds = folder.resolve(), latency_seconds

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores clients that end in the middle of an answer."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


if __name__ == "__main__":
    server = RangeServer(Path(sys.argv[1]), float(sys.argv[2]) / 1000)
    print(server.url, flush=True)
    server.serve_forever()
