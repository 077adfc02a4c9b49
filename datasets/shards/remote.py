"""Reads the bytes of shards on a web server, in S3 or GCS, with obstore."""

import math
import os
import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from obstore import exceptions
from obstore.store import GCSStore, HTTPStore, S3Store

from datasets.shards.index import Shard
from datasets.shards.store import CHECK, LocalFiles, Problem, RangesNotSupported, changed
from utils.errors import Unavailable

_CHUNK_BYTES = 1 << 18
_CONNECT_SECONDS, _READ_SECONDS = 10.0, 30.0  # at most
_COALESCE_BYTES = 1 << 17  # gap of two ranges in one request: a connection reads it in about one latency
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "GOOGLE_BASE_URL")
_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_BEYOND_END = re.compile(r"Wanted range starting at|non-2xx status code: 416")
_PASSING_STATUS = {"408", "425", "429"}  # besides 5xx: too slow, too early, too many requests
_CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a public bucket",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or GOOGLE_SKIP_SIGNATURE=true for a public bucket",
}
_NETWORK = "check the network and the server, then resume"
_METADATA_PATHS = ("/latest/api/token", "/latest/meta-data", "/computeMetadata/")  # machines in a cloud have these
_METADATA_SECONDS = 15.0

# Parts of obstore's error texts without an answer of a server; the first match counts.
_PROBLEMS = {
    "TooManyRedirects": Problem("the server redirects without end", CHECK),
    "BadScheme": Problem("the server redirects to a URL without encryption, or the endpoint is not a URL", CHECK),
    "incorrectly configured region": Problem("the bucket is in another region", "set AWS_REGION"),
    "ertificate": Problem("the TLS certificate of the server is not valid", "check the URL, and SSL_CERT_FILE"),
    "dns error": Problem("the host is not found", "check the URL and the network", math.inf),
    "ConnectionRefused": Problem("the connection is refused", _NETWORK, math.inf),
    "ConnectionReset": Problem("the connection is reset", _NETWORK, math.inf),
    "IncompleteBody": Problem("the answer ends too early", _NETWORK, math.inf),
    "TimedOut": Problem("the server does not answer", _NETWORK, math.inf),
    "": Problem("the connection fails", _NETWORK, math.inf),
}


class RemoteFiles:
    """Objects below the URL `root`. All methods raise the errors of obstore.

    obstore reads credentials from its own environment variables (AWS_*, GOOGLE_*). A call without an answer fails
    after `attempt_seconds`, at most a quarter of `timeout_seconds`.
    """

    # ValueError: a name that obstore refuses. TypeError and others are mistakes of this program.
    errors = (exceptions.BaseError, OSError, ValueError)
    missing = (FileNotFoundError, exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)

    def __init__(self, root: str, timeout_seconds: float) -> None:
        self.root = root
        self.attempt_seconds = min(_READ_SECONDS, timeout_seconds / 4)
        scheme, _, rest = root.partition("://")
        has_plain_endpoint = any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS)
        options: dict[str, Any] = {
            "client_options": {
                "connect_timeout": timedelta(seconds=min(_CONNECT_SECONDS, self.attempt_seconds)),
                "read_timeout": timedelta(seconds=self.attempt_seconds),
                "timeout": timedelta(days=1),  # of a whole download; obstore's default is 30 s
                "allow_http": scheme == "http" or (scheme in ("s3", "gs") and has_plain_endpoint),
            },
            "retry_config": {"max_retries": 0, "retry_timeout": timedelta(0)},
        }
        try:
            if scheme in ("http", "https"):
                self.store: HTTPStore | S3Store | GCSStore = HTTPStore(root, **options)
            else:
                bucket, _, prefix = rest.partition("/")
                self.store = (S3Store if scheme == "s3" else GCSStore)(bucket, prefix=prefix or None, **options)
        except self.errors as error:
            problem = self.describe(error)
            raise Unavailable(f"{root}: {problem.text}; {problem.fix}") from None
        self.can_list = scheme in ("s3", "gs")

    def describe(self, error: Exception) -> Problem:
        """Describes an error of obstore or of the operating system."""
        text = str(error)
        credentials = _CREDENTIALS.get(self.root.partition("://")[0], "use a server without a login")
        match error:
            case OSError():
                return LocalFiles.describe(error)
            case exceptions.UnauthenticatedError():
                return Problem("the server asks for credentials (status 401)", credentials)
            case exceptions.PermissionDeniedError():
                return Problem("access is refused (status 403)", f"check the URL, or {credentials}")
            case exceptions.NotSupportedError():
                fix = "set DATA.CACHE_GB, which downloads them"
                return Problem("the server sends whole files only", fix, error=RangesNotSupported)
            case ValueError():
                return Problem("is not a valid name or URL", CHECK)
        if isinstance(error, exceptions.PreconditionError) or _BEYOND_END.search(text):
            return changed(self.root)
        status = _STATUS.search(text)
        if any(path in text[: status.start() if status else None] for path in _METADATA_PATHS):
            is_answer = status and not status[1].startswith("5")
            return Problem("no credentials are found", credentials, 0.0 if is_answer else _METADATA_SECONDS)
        if status and "<Code>NoSuchBucket</Code>" in text:
            return Problem("the bucket does not exist", CHECK)
        if status:
            may_pass = status[1].startswith("5") or status[1] in _PASSING_STATUS
            problem = f"the server answers with status {status[1]}"
            return Problem(problem, "check the server, then resume", math.inf if may_pass else 0.0)
        if "redential" in text or "ervice account" in text:
            return Problem("the credentials cannot be used", credentials)
        return next(problem for part, problem in _PROBLEMS.items() if part in text)

    def list_folder(self, folder: str) -> tuple[list[str], list[str]]:
        found = self.store.list_with_delimiter(folder or None)
        return [entry["path"] for entry in found["objects"]], list(found["common_prefixes"])

    def head(self, name: str) -> Shard:
        meta = self.store.head(name)
        return Shard(name, meta["size"], meta["e_tag"])

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Reads the bytes of each (start, length) at the same time; fewer where the object or the answer ends."""
        starts, lengths = zip(*ranges, strict=True)
        parts = self.store.get_ranges(name, starts=starts, lengths=lengths, coalesce=_COALESCE_BYTES)
        return list(map(bytes, parts))

    def open_stream(self, name: str, start: int) -> tuple[Shard, Iterator[bytes]]:
        try:
            result, skipped = self.store.get(name, options={"range": {"offset": start}} if start else None), 0
        except exceptions.NotSupportedError:  # the server sends whole files only
            result, skipped = self.store.get(name), start
        found = Shard(name, result.meta["size"], result.meta["e_tag"])
        return found, _without_start(map(bytes, result.stream(min_chunk_size=_CHUNK_BYTES)), skipped)


def _without_start(chunks: Iterator[bytes], num_bytes: int) -> Iterator[bytes]:
    for chunk in chunks:
        if len(chunk) > num_bytes:
            yield chunk[num_bytes:]
        num_bytes = max(0, num_bytes - len(chunk))
