"""Parses the location of shards: a folder or its URL, with an optional pattern of names in braces."""

import os
import re
from itertools import islice
from urllib.parse import unquote, urlsplit

from braceexpand import braceexpand

from configs.reading.yaml_io import shorten
from configs.schema.data import secret_in_url
from utils.errors import UserError

SHARD_SUFFIX = ".tar"
REMOTE_SCHEMES = ("http", "https", "s3", "gs")
MAX_NAMES = 10**6
_MAX_NAME_CHARS = 1024
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_RANGE = re.compile(r"\{(-?\d+)\.\.(-?\d+)")


def is_local(root: str) -> bool:
    return not _SCHEME.match(root)


def parse_location(data_path: str) -> tuple[str, list[str] | None]:
    """Parses DATA.DATA_PATH: a folder, one `.tar` file, or a pattern: `https://host/{train,val}-{0000..0127}.tar`.

    Returns the root, a local folder or a URL (http, https, s3, gs) without '/' at its end, and the names of the shards
    relative to it; None: all that are found there.

    Raises UserError: the scheme is not supported, the URL contains credentials or a query, or the pattern is not valid.
    """
    if data_path.startswith("pipe:"):
        raise UserError("DATA.DATA_PATH: 'pipe:' is a shell command, and is not run; use a folder or a URL")
    scheme = _SCHEME.match(data_path)
    if not scheme:
        return _split_pattern(data_path)
    name, rest = scheme[1].lower(), data_path[scheme.end() :].rstrip("/")
    if name not in REMOTE_SCHEMES:
        raise UserError(f"DATA.DATA_PATH: URLs of {shorten(name)} are not supported; use http, https, s3 or gs")
    _check_url(f"{name}://{rest}")
    root, names = _split_pattern(f"{name}://{rest}")
    return root, list(map(unquote, names)) if names and name.startswith("http") else names


def _check_url(url: str) -> None:
    """Raises UserError for an invalid URL. The message does not repeat a text that may contain a secret."""
    if problem := secret_in_url(url):
        raise UserError(f"DATA.DATA_PATH: {problem}")
    scheme, _, host, *path = url.split("/")
    try:
        parts = urlsplit(f"{scheme}//{host}")
        is_valid = bool(parts.hostname) and parts.port != 0 and "{" not in host and host.isprintable()
    except ValueError:
        is_valid = False
    if not is_valid or any(part in ("", ".", "..") for part in path):
        raise UserError(f"DATA.DATA_PATH: {shorten(url)} is not a valid URL")


def check_not_compressed(path: str) -> None:
    """Raises UserError for the name of a compressed archive."""
    if path.endswith((".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")):
        raise UserError(f"DATA.DATA_PATH: {shorten(path)}: a compressed archive cannot be read in parts; decompress it")


def _split_pattern(path: str) -> tuple[str, list[str] | None]:
    """Splits a path before its first part with a brace, or before a last part `*.tar`: the rest is a pattern."""
    is_folder = is_local(path) and os.path.isdir(path)
    if not is_folder:
        check_not_compressed(path)
    start = path.find("{")
    if is_folder or (start < 0 and not path.endswith(SHARD_SUFFIX)):
        return path.rstrip("/") or "/", None
    slash = path.rfind("/", 0, start if start >= 0 else None)
    root = path[:slash] or "/" if slash >= 0 else "."
    return root, _expand(path[slash + 1 :])


def _expand(pattern: str) -> list[str]:
    """Lists the names of a pattern, in the order in which Bash expands it."""
    shown = shorten(pattern)
    try:
        in_ranges = sum(abs(int(end) - int(start)) + 1 for start, end in _RANGE.findall(pattern))
        is_short = in_ranges <= MAX_NAMES  # `braceexpand` lists each range as a whole
        names = list(islice(braceexpand(pattern, escape=False), MAX_NAMES + 1)) if is_short else []
    except (ValueError, RecursionError):
        raise UserError(f"DATA.DATA_PATH: the braces of the pattern {shown} are not balanced or too deep") from None
    if not 0 < len(names) <= MAX_NAMES:
        raise UserError(f"DATA.DATA_PATH: the pattern {shown} has more than {MAX_NAMES:,} names; shorten it")
    for name in names:
        if problem := name_problem(name):
            raise UserError(f"DATA.DATA_PATH: {shorten(name)}, from the pattern {shown}, {problem}")
    if len(set(names)) < len(names):
        raise UserError(f"DATA.DATA_PATH: the pattern {shown} names a shard twice")
    return names


def name_problem(name: str) -> str | None:
    """Returns why this text is no name of a shard relative to the root, or None. It may come from a foreign file."""
    if not name.endswith(SHARD_SUFFIX):
        return f"does not end with {SHARD_SUFFIX}"
    if len(name) > _MAX_NAME_CHARS or not name.isprintable() or "\\" in name:
        return "is too long, or contains control characters or backslashes"
    if ":" in name or any(part in ("", ".", "..") for part in name.split("/")):
        return "is not a relative path without '..' and ':'"
    return None
