"""Parses the location of shards: a folder or its URL, with an optional pattern of names in braces."""

import re
from dataclasses import dataclass
from math import prod
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase
from urllib.parse import unquote, urlsplit

from braceexpand import UnbalancedBracesError, braceexpand  # type: ignore[attr-defined]  # its stub lacks the error

from configs.reading.yaml_io import shorten
from configs.schema.data import secret_in_url
from utils.errors import UserError

SHARD_SUFFIX = ".tar"
REMOTE_SCHEMES = ("http", "https", "s3", "gs")
MAX_NAMES = 10**6
_MAX_PATTERN_CHARS = 1000
_MAX_NAME_CHARS = 1024
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_INNERMOST_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?")
_LETTERS = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.-?\d+)?")
_ALPHABET = ascii_uppercase + ascii_lowercase  # the order of `braceexpand`
_COUNT = re.compile("\0(\\d+)\0")  # in place of braces


@dataclass(frozen=True)
class Location:
    """The shards of a data set.

    root: a local folder, or a URL (http, https, s3, gs) without '/' at its end.
    names: the shards that DATA.DATA_PATH names, relative to `root`; None: all that are found there.
    """

    root: str
    names: tuple[str, ...] | None = None


def is_local(root: str) -> bool:
    return not _SCHEME.match(root)


def parse_location(data_path: str) -> Location:
    """Parses DATA.DATA_PATH: a folder, one `.tar` file, or a pattern: `https://host/{train,val}-{0000..0127}.tar`.

    Raises:
        UserError: the scheme is not supported, the URL contains credentials or a query, or the pattern is not valid.
    """
    if data_path.startswith("pipe:"):
        raise UserError("DATA.DATA_PATH: 'pipe:' is a shell command, and is not run; use a folder or a URL")
    scheme = _SCHEME.match(data_path)
    if not scheme:
        return _split_pattern(data_path, is_folder=Path(data_path).is_dir())
    name = scheme[1].lower()
    rest = data_path[scheme.end() :]
    if name == "file":
        if not rest.startswith("/"):
            raise UserError(f"DATA.DATA_PATH: {shorten(data_path)} names a host; write file:///folder")
        return _split_pattern(unquote(rest), is_folder=Path(unquote(rest)).is_dir())
    if name not in REMOTE_SCHEMES:
        raise UserError(f"DATA.DATA_PATH: URLs of {shorten(name)} are not supported; use file, http, https, s3 or gs")
    _check_url(name, rest.rstrip("/"))
    location = _split_pattern(f"{name}://{rest.rstrip('/')}", is_folder=False)
    if name.startswith("http") and location.names:
        return Location(location.root, tuple(map(unquote, location.names)))
    return location


def _check_url(scheme: str, rest: str) -> None:
    """Raises UserError for an invalid URL. The message does not repeat a text that may contain a secret."""
    if problem := secret_in_url(f"{scheme}://{rest}"):
        raise UserError(f"DATA.DATA_PATH: {problem}")
    host, _, path = rest.partition("/")
    try:
        is_valid = bool(urlsplit(f"{scheme}://{host}").hostname) and "{" not in host and host.isprintable()
        urlsplit(f"{scheme}://{host}").port  # noqa: B018 - raises ValueError
    except ValueError:
        is_valid = False
    if not is_valid or any(part in ("", ".", "..") for part in path.split("/") if path):
        raise UserError(f"DATA.DATA_PATH: {shorten(f'{scheme}://{rest}')} is not a valid URL")


def check_not_compressed(path: str) -> None:
    """Raises UserError for the name of a compressed archive."""
    if path.endswith((".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")):
        raise UserError(f"DATA.DATA_PATH: {shorten(path)}: a compressed archive cannot be read in parts; decompress it")


def _split_pattern(path: str, is_folder: bool) -> Location:
    """Splits a path before its first part with a brace, or before a last part `*.tar`: the rest is a pattern."""
    if not is_folder:
        check_not_compressed(path)
    start = path.find("{")
    if is_folder or (start < 0 and not path.endswith(SHARD_SUFFIX)):
        return Location(path.rstrip("/") or "/")
    slash = path.rfind("/", 0, start if start >= 0 else None)
    root = path[:slash] or "/" if slash >= 0 else "."
    return Location(root, tuple(_expand(path[slash + 1 :])))


def _expand(pattern: str) -> list[str]:
    """Lists the names of a pattern, in the order in which Bash expands it."""
    shown = shorten(pattern)
    if len(pattern) > _MAX_PATTERN_CHARS or not pattern.isprintable():
        raise UserError(f"DATA.DATA_PATH: the pattern {shown} is too long, or contains control characters")
    if _count_names(pattern) > MAX_NAMES:
        raise UserError(f"DATA.DATA_PATH: the pattern {shown} has more than {MAX_NAMES:,} names; shorten it")
    try:
        names = list(braceexpand(pattern, escape=False))
    except (UnbalancedBracesError, RecursionError):
        raise UserError(f"DATA.DATA_PATH: the braces of the pattern {shown} are not balanced or too deep") from None
    for name in names:
        if problem := name_problem(name):
            raise UserError(f"DATA.DATA_PATH: {shorten(name)}, from the pattern {shown}, {problem}")
    if len(set(names)) < len(names):
        raise UserError(f"DATA.DATA_PATH: the pattern {shown} names a shard twice")
    return names


def _count_names(pattern: str) -> int:
    """An upper bound of the names of a pattern, computed without a list: `braceexpand` holds all of them at once."""

    def product(text: str) -> int:
        return prod(map(int, _COUNT.findall(text)))

    def count(braces: re.Match[str]) -> str:
        if numbers := _RANGE.fullmatch(braces[1]):
            size = abs(int(numbers[2]) - int(numbers[1])) // (int(numbers[3] or 1) or 1) + 1
        elif letters := _LETTERS.fullmatch(braces[1]):
            size = abs(_ALPHABET.index(letters[2]) - _ALPHABET.index(letters[1])) + 1
        else:
            size = sum(map(product, braces[1].split(",")))
        return f"\0{size}\0"

    replaced = 1
    while replaced:
        pattern, replaced = _INNERMOST_BRACES.subn(count, pattern)
    return product(pattern)


def name_problem(name: str) -> str | None:
    """Returns why this text is no name of a shard relative to the root, or None. It may come from a foreign file."""
    if not name.endswith(SHARD_SUFFIX):
        return f"does not end with {SHARD_SUFFIX}"
    if len(name) > _MAX_NAME_CHARS or not name.isprintable() or "\\" in name:
        return "is too long, or contains control characters or backslashes"
    if ":" in name or any(part in ("", ".", "..") for part in name.split("/")):
        return "is not a relative path without '..' and ':'"
    return None
