"""Describes each error of a store in one line, with the fix, and decides whether to try again.

The text of a library's error is never shown: it contains the answer of the server, and may contain signed URLs.
"""

import math
import re
import shlex
from typing import NamedTuple

from obstore import exceptions

from datasets.shards.location import is_local
from utils.errors import Unavailable

# ValueError: a name that obstore refuses. TypeError and others are mistakes of this program.
STORE_ERRORS = (exceptions.BaseError, OSError, ValueError)
_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_BEYOND_END = re.compile(r"Wanted range starting at|non-2xx status code: 416")
_PASSING_STATUS = {"408", "425", "429"}  # besides 5xx: too slow, too early, too many requests
_CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a public bucket",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or GOOGLE_SKIP_SIGNATURE=true for a public bucket",
}
_CHECK = "check DATA.DATA_PATH"


class RangesNotSupported(Unavailable):
    """The server sends whole files only."""


class Problem(NamedTuple):
    """text: the problem; fix: the action of the user; retry_seconds: the time in which another attempt may succeed."""

    text: str
    fix: str
    retry_seconds: float = 0.0


_NETWORK = "check the network and the server, then resume"
_METADATA_PATHS = ("/latest/api/token", "/latest/meta-data", "/computeMetadata/")  # machines in a cloud have these
_METADATA_SECONDS = 15.0
# Parts of obstore's error texts without an answer of a server; the first match counts.
_PROBLEMS = {
    "TooManyRedirects": Problem("the server redirects without end", _CHECK),
    "BadScheme": Problem("the server redirects to a URL without encryption, or the endpoint is not a URL", _CHECK),
    "incorrectly configured region": Problem("the bucket is in another region", "set AWS_REGION"),
    "ertificate": Problem("the TLS certificate of the server is not valid", "check the URL, and SSL_CERT_FILE"),
    "dns error": Problem("the host is not found", "check the URL and the network", math.inf),
    "ConnectionRefused": Problem("the connection is refused", _NETWORK, math.inf),
    "ConnectionReset": Problem("the connection is reset", _NETWORK, math.inf),
    "IncompleteBody": Problem("the answer ends too early", _NETWORK, math.inf),
    "TimedOut": Problem("the server does not answer", _NETWORK, math.inf),
}
_UNKNOWN = Problem("the connection fails", _NETWORK, math.inf)


def changed(root: str) -> Problem:
    """A shard of this `root` is another one than its index describes."""
    copy = "" if is_local(root) else " -output index.safetensors, copy this file to the shards"
    command = f"python scripts/index_shards.py -data_path={shlex.quote(root)}{copy}"
    return Problem("has changed since it was indexed", f"index it again: {command}, then resume")


def describe(error: Exception, root: str) -> Problem:
    """Describes an error of obstore or of the operating system, in a store with this `root`."""
    credentials = _CREDENTIALS.get(root.partition("://")[0], "use a server without a login")
    if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
        return Problem(f"cannot be read ({error.strerror or type(error).__name__})", "check the disk, then resume")
    problems: dict[type[Exception], Problem] = {
        FileNotFoundError: Problem("does not exist", _CHECK),
        exceptions.UnauthenticatedError: Problem("the server asks for credentials (status 401)", credentials),
        exceptions.PermissionDeniedError: Problem("access is refused (status 403)", f"check the URL, or {credentials}"),
        exceptions.NotSupportedError: Problem(
            "the server sends whole files only", "set DATA.CACHE_GB, which downloads them"
        ),
        exceptions.PreconditionError: changed(root),
        ValueError: Problem("is not a valid name or URL", _CHECK),
    }
    known = (problem for kind, problem in problems.items() if isinstance(error, kind))
    return next(known, None) or _describe_text(str(error), credentials, root)


def _describe_text(text: str, credentials: str, root: str) -> Problem:
    if _BEYOND_END.search(text):
        return changed(root)
    status = _STATUS.search(text)
    if any(path in text[: status.start() if status else None] for path in _METADATA_PATHS):
        is_answer = status and not status[1].startswith("5")
        return Problem("no credentials are found", credentials, 0.0 if is_answer else _METADATA_SECONDS)
    if status:
        if "<Code>NoSuchBucket</Code>" in text:
            return Problem("the bucket does not exist", _CHECK)
        may_pass = status[1].startswith("5") or status[1] in _PASSING_STATUS
        problem = f"the server answers with status {status[1]}"
        return Problem(problem, "check the server, then resume", math.inf if may_pass else 0.0)
    if "redential" in text or "ervice account" in text:
        return Problem("the credentials cannot be used", credentials)
    return next((problem for part, problem in _PROBLEMS.items() if part in text), _UNKNOWN)
