"""Reads the bytes of shards in a folder, on a web server, in S3 or GCS: the same methods, errors and retries.

The text of a library's error is never shown: it contains the answer of the server, and may contain signed URLs.
"""

import math
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from torch.utils.data import get_worker_info

from configs.yaml_io import Values
from datasets.shards.index import LOCAL_VERSION, Shard
from datasets.shards.records import chunks_of
from datasets.sources.listing import Names, list_directory
from utils.errors import Unavailable
from utils.files import open_regular_file
from utils.system import require
from utils.threads import DaemonPool

_T = TypeVar("_T")
Range = tuple[int, int]  # the first byte, the number of bytes
_HEAD_THREADS = 32
_FIRST_PAUSE_SECONDS = 0.1
_MAX_PAUSE_SECONDS = 2.0
_SILENT_SECONDS = 3.0
_TELL_SECONDS = 30.0
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
CHECK = "check DATA.DATA_PATH"


def is_local(root: str) -> bool:
    return not SCHEME.match(root)


class RangesNotSupported(Unavailable):
    """The server sends whole files only."""


class Problem(NamedTuple):
    """text: the problem; fix: the action of the user; retry_seconds: the time in which another attempt may succeed."""

    text: str
    fix: str
    retry_seconds: float = 0.0
    error: type[Unavailable] = Unavailable


def changed(root: str) -> Problem:
    """A shard of this `root` is another one than its index describes."""
    copy = "" if is_local(root) else " -output index.npz, copy this file to the shards"
    command = f"python scripts/index_shards.py -data_path={shlex.quote(root)}{copy}"
    return Problem("has changed since it was indexed", f"index it again: {command}, then resume")


class LocalFiles:
    """Files below the folder `root`, with the methods of `RemoteFiles` that a folder needs; they raise OSError."""

    attempt_seconds = 0.0
    can_list = True  # the names of files
    errors = (OSError, ValueError)  # ValueError: of a name with \0
    missing = (FileNotFoundError,)

    def __init__(self, root: str) -> None:
        self.root = Path(root)

    @staticmethod
    def describe(error: Exception) -> Problem:
        if isinstance(error, FileNotFoundError):
            return Problem("does not exist", CHECK)
        if isinstance(error, OSError):
            problem = f"cannot be read ({error.strerror or type(error).__name__})"
            return Problem(problem, "check the disk, then resume")
        return Problem("is not a valid name or URL", CHECK)

    def list_folder(self, folder: str) -> Names:
        folders, files = list_directory(self.root / folder)
        return [os.path.join(folder, name) for name in files], [os.path.join(folder, name) for name in folders]

    def head(self, name: str) -> Shard:
        return _local_shard(name, os.stat(self.root / name))

    def open_stream(self, name: str, start: int) -> tuple[Shard, Iterator[bytes]]:
        """Returns the whole file as it is now, and its bytes from `start` on."""
        file = open_regular_file(self.root / name)
        file.seek(start)
        return _local_shard(name, os.fstat(file.fileno())), chunks_of(file)


def _local_shard(name: str, state: os.stat_result) -> Shard:
    return Shard(name, state.st_size, f"{LOCAL_VERSION}{state.st_mtime_ns}")


_CHUNK_BYTES = 1 << 18
# the longest wait for a connection, and for the next bytes
_CONNECT_SECONDS = 10.0
_READ_SECONDS = 30.0
_COALESCE_BYTES = 1 << 17  # gap of two ranges in one request: a connection reads it in about one latency
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "GOOGLE_BASE_URL")
_REFUSED = "non-2xx status code: "  # and the status
# A signed address, for one, may allow GET only; and the answer to a HEAD has no body with the code of an error.
_HEAD_REFUSED = re.compile(r"non-2xx status code: (400|403|404|405|501)")
_BEYOND_END = re.compile(r"Wanted range starting at|non-2xx status code: 416")
_PASSING_STATUS = re.compile("5(?!01|05)|408|425|429")  # too slow, too early, too many requests; not: unknown method
_CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a public bucket",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or GOOGLE_SKIP_SIGNATURE=true for a public bucket",
}
# The first three are addresses of machines in a cloud.
_CREDENTIAL = re.compile("/latest/api/token|/latest/meta-data|/computeMetadata/|redential|ervice account")
_METADATA_SECONDS = 15.0
_WHOLE_FILES = Problem(
    "the server sends whole files only", "set DATA.CACHE_GB, which downloads them", error=RangesNotSupported
)
_REGION = Problem("the bucket is in another region", "set AWS_REGION")
_NO_BUCKET = Problem("the bucket does not exist", CHECK)
# By the codes of S3 and its kin, in the body of an answer.
_CODE = re.compile(r"<Code>(\w+)</Code>")
_CODES = {
    "AuthorizationHeaderMalformed": _REGION,
    "PermanentRedirect": _REGION,
    "ExpiredToken": Problem("the credentials have expired", "set new ones (AWS_SESSION_TOKEN), then resume"),
    "InvalidToken": Problem("the session token is not valid", "set AWS_SESSION_TOKEN of these keys, or unset it"),
    "InvalidAccessKeyId": Problem("the access key is not known", "check AWS_ACCESS_KEY_ID"),
    "SignatureDoesNotMatch": Problem("the secret key is wrong", "check AWS_SECRET_ACCESS_KEY"),
    "RequestTimeTooSkewed": Problem("the clock of this host is wrong", "set it, then resume"),
    "NoSuchBucket": _NO_BUCKET,
    "InvalidBucketName": _NO_BUCKET,
    "InvalidObjectState": Problem("is in an archive of the store", "restore it there, then resume"),
    "RequestTimeout": Problem("the server waits too long for this host", "check the network, then resume", math.inf),
}
_UNREACHABLE = Problem("the server cannot be reached", "check the network and the server, then resume", math.inf)
# By parts of obstore's texts without an answer, which no URL contains. A name server may be away for a while.
_CAUSES = {
    "InvalidCertificate(": Problem("its TLS certificate is not valid", "check the URL, or set SSL_CERT_FILE"),
    "kind: Redirect,": Problem("the server redirects without end, or from https to http", CHECK),
    "redirect without LOCATION": Problem("the server redirects without an address", f"{CHECK} and AWS_REGION"),
    '"dns error"': Problem("the host is not found", f"{CHECK} and the network", math.inf),
}


class RemoteFiles:
    """Objects below the URL `root`, on a web server, in S3 or GCS. All methods raise the errors of obstore.

    obstore reads credentials from its own environment variables (AWS_*, GOOGLE_*). A call without an answer fails
    after `attempt_seconds`, at most a quarter of `timeout_seconds`.
    """

    def __init__(self, root: str, timeout_seconds: float) -> None:
        require("-dataset=tar with a URL", "obstore")
        from obstore import exceptions
        from obstore.store import GCSStore, HTTPStore, S3Store

        # ValueError: a name that obstore refuses. TypeError and others are mistakes of this program.
        self.errors = (exceptions.BaseError, OSError, ValueError)
        self.missing = (FileNotFoundError, exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
        self.root = root
        self._exceptions = exceptions
        self.attempt_seconds = min(_READ_SECONDS, timeout_seconds / 4)
        scheme, _, rest = root.partition("://")
        has_plain_endpoint = any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS)
        options: Values = {
            "client_options": {
                "connect_timeout": timedelta(seconds=min(_CONNECT_SECONDS, self.attempt_seconds)),
                "read_timeout": timedelta(seconds=self.attempt_seconds),
                "timeout": timedelta(days=1),  # of a whole download; obstore's default is 30 s
                "allow_http": scheme == "http" or (scheme in ("s3", "gs") and has_plain_endpoint),
            },
            "retry_config": {"max_retries": 0, "retry_timeout": timedelta(0)},
        }
        of_bucket: Any = {"s3": S3Store, "gs": GCSStore}.get(scheme)
        self.can_list = of_bucket is not None
        try:
            if of_bucket is None:
                self.store = HTTPStore(root, **options)
            else:
                bucket, _, prefix = rest.partition("/")
                self.store = of_bucket(bucket, prefix=prefix or None, **options)
        except self.errors as error:
            problem = self.describe(error)
            raise Unavailable(f"{root}: {problem.text}; {problem.fix}") from None

    def describe(self, error: Exception) -> Problem:
        """Describes an error of obstore or of the operating system: by its class, else by its text."""
        exceptions = self._exceptions
        credentials = _CREDENTIALS.get(self.root.partition("://")[0], "use a server without a login")
        text = str(error)
        request, _, answer = text.partition(_REFUSED)
        status = answer[:3]
        code = _CODE.search(answer)
        if code and code[1] in _CODES:
            return _CODES[code[1]]
        if isinstance(error, LocalFiles.errors):
            return LocalFiles.describe(error)
        if isinstance(error, self.missing) or status in ("401", "403"):
            return Problem("access is refused, or needs credentials", f"check the URL, or {credentials}")
        if isinstance(error, exceptions.NotSupportedError):
            return _WHOLE_FILES
        if isinstance(error, exceptions.PreconditionError) or _BEYOND_END.search(text):
            return changed(self.root)
        if _CREDENTIAL.search(request):
            return Problem("no credentials are found, or they cannot be used", credentials, _METADATA_SECONDS)
        if status == "404":  # of a list
            return LocalFiles.describe(FileNotFoundError())
        if status:
            retry_seconds = math.inf if _PASSING_STATUS.match(status) else 0.0
            return Problem(f"the server answers with status {status}", "check the server, then resume", retry_seconds)
        return next((problem for part, problem in _CAUSES.items() if part in text), _UNREACHABLE)

    def list_folder(self, folder: str) -> Names:
        found = self.store.list_with_delimiter(folder or None)
        return [entry["path"] for entry in found["objects"]], list(found["common_prefixes"])

    def head(self, name: str) -> Shard:
        try:
            meta = self.store.head(name)
        except self.errors as error:
            if not _HEAD_REFUSED.search(str(error)):
                raise
            meta = self.store.get(name, options={"range": (0, 1)}).meta  # one byte, and the size of the whole
        return Shard(name, meta["size"], meta["e_tag"])

    def read_ranges(self, name: str, ranges: Sequence[Range]) -> list[bytes]:
        """Reads the bytes of each (start, length) at the same time; fewer where the object or the answer ends."""
        starts, lengths = zip(*ranges, strict=True)
        parts = self.store.get_ranges(name, starts=starts, lengths=lengths, coalesce=_COALESCE_BYTES)
        return list(map(bytes, parts))

    def open_stream(self, name: str, start: int) -> tuple[Shard, Iterator[bytes]]:
        result = self.store.get(name, options={"range": {"offset": start}} if start else None)
        found = Shard(name, result.meta["size"], result.meta["e_tag"])
        return found, map(bytes, result.stream(min_chunk_size=_CHUNK_BYTES))


@dataclass
class ShardStore:
    """Reads files below `root`, a local folder or a URL; threads may share it, and it can be pickled.

    A server that is away for half of `timeout_seconds` does no harm. All methods raise an Unavailable that names the
    file or URL, at the latest after `timeout_seconds` without a byte.
    """

    root: str
    timeout_seconds: float

    @property
    def is_local(self) -> bool:
        return is_local(self.root)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.root, self.timeout_seconds)

    @cached_property
    def files(self) -> LocalFiles | RemoteFiles:
        return LocalFiles(self.root) if self.is_local else RemoteFiles(self.root, self.timeout_seconds)

    def url(self, name: str) -> str:
        """Returns the path or URL of a file. It contains no credentials: `parse_location` refuses them."""
        return f"{self.root.rstrip('/')}/{name}"

    def list_folder(self, folder: str = "") -> Names:
        """Lists the files and the folders in a folder below the root ('': the root itself), unordered."""
        return self._retry(folder, lambda: self.files.list_folder(folder))

    def head(self, names: Sequence[str]) -> list[Shard]:
        """Returns the size and version of each file, in the order of `names`."""
        head = self.files.head
        with closing(DaemonPool(min(_HEAD_THREADS, len(names)))) as pool:  # after an error, no request begins
            return [answer.result() for answer in [pool.submit(self._retry, n, partial(head, n)) for n in names]]

    def read_many(self, name: str, ranges: Sequence[Range]) -> list[bytes]:
        """Reads the bytes of each range (start, length) of a remote file; raises RangesNotSupported, too."""
        wanted = [(start, max(1, length)) for start, length in ranges]  # servers refuse empty ranges
        parts = self._retry(name, partial(self.files.read_ranges, name, wanted))  # type: ignore[union-attr]
        if [len(part) for part in parts] != [length for _, length in wanted]:
            raise self._changed(name)
        return [part[:length] for part, (_, length) in zip(parts, ranges, strict=True)]

    def read_small(self, name: str, max_bytes: int) -> bytes | None:
        """Reads a whole file; None if it does not exist. S3 refuses access to a file that does not exist."""

        def read() -> bytes | None:
            try:
                found, chunks = self.files.open_stream(name, 0)
            except self.files.missing:
                return None
            if found.num_bytes > max_bytes:
                raise Unavailable(f"{self.url(name)}: is larger than {max_bytes:,} bytes; check what it is")
            return b"".join(chunks)

        return self._retry(name, read)

    def stream(self, shard: Shard) -> Iterator[bytes]:
        """Yields the bytes of a whole shard in order; raises Unavailable if the file is another one."""
        position = 0
        chunks = None

        def next_chunk() -> bytes:
            nonlocal shard, chunks
            source = chunks
            chunks = None  # after an error, the file is opened again
            if source is None:
                found, source = self.files.open_stream(shard.name, position)
                if not found.is_same_as(shard):
                    raise self._changed(shard.name)
                shard = shard._replace(version=shard.version or found.version)
            chunk = next(source, b"")
            chunks = source
            return chunk

        while position < shard.num_bytes:
            chunk = self._retry(shard.name, next_chunk)
            if not chunk:
                raise self._changed(shard.name)
            position += len(chunk)
            yield chunk

    def check_unchanged(self, shard: Shard) -> None:
        """Raises Unavailable if the file is no longer `shard`. Call it where a checksum does not match."""
        if not self.head([shard.name])[0].is_same_as(shard):
            raise self._changed(shard.name)

    def _changed(self, name: str) -> Unavailable:
        problem = changed(self.root)
        return Unavailable(f"{self.url(name)}: {problem.text}; {problem.fix}")

    def _retry(self, name: str, call: Callable[[], _T]) -> _T:
        """Returns the result of a call, which is repeated after an error that may pass; raises Unavailable."""
        started = time.monotonic()
        pause_seconds = _FIRST_PAUSE_SECONDS
        url = self.url(name)
        while True:
            try:
                return call()
            except self.files.errors as error:
                problem = self.files.describe(error)
                waited = time.monotonic() - started
                until_last_call = self.timeout_seconds - self.files.attempt_seconds
                if waited + pause_seconds > min(problem.retry_seconds, until_last_call):
                    tried = f", after {math.ceil(waited)} s of attempts" if problem.retry_seconds else ""
                    raise problem.error(f"{url}: {problem.text}{tried}; {problem.fix}") from None
            _tell_wait(f"{url}: {problem.text}; the run waits", waited)
            time.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _MAX_PAUSE_SECONDS)


_told_at = -math.inf  # when `_tell_wait` printed its last line


def _tell_wait(message: str, waited_seconds: float) -> None:
    """Prints a line about a long wait, one in half a minute for all threads; of loading workers, the first one does."""
    global _told_at
    now = time.monotonic()
    worker = get_worker_info()
    if waited_seconds < _SILENT_SECONDS or now - _told_at < _TELL_SECONDS or (worker and worker.id):
        return
    _told_at = now
    print(f"----- {message}", file=sys.stderr, flush=True)
