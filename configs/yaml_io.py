"""Strict YAML: scalars as in YAML 1.2, no duplicate keys, no aliases, no tags, the line number of each key.

PyYAML itself reads `3e-3` as a string, `on` as True and `010` as 8, keeps the last of two equal keys, and builds Python
objects from tags.
"""

import json
import re
import reprlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from utils.errors import UserError, did_you_mean, error_from, first_line
from utils.files import expand_home, open_regular_file

Values = dict[str, Any]  # by key or name, as YAML and JSON give them: options, sections of them, arguments
MAX_BYTES = 1 << 16  # 20 times the longest recipe; PyYAML needs half a second for it
_MAX_BYTES_WITH_LISTS = 1 << 26  # with the long values of 100,000 classes, which the json module reads
_LONG_CHARS, _LONG_ITEMS = 1000, 200
_LONG_VALUE = re.compile(rf"^( *[A-Z][A-Z0-9_.]*: )([\[{{].{{{_LONG_CHARS},}}[\]}}])$", re.MULTILINE)
_PLACE = "\ue000 long value "  # in the text that PyYAML reads; a character for private use
_MAX_KEY_CHARS = 100
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80

_TAGS = ("null", "bool", "int", "float", "str", "map", "seq")
_NULL, _BOOL, _INT, _FLOAT, _STR, _MAP, _SEQ = (f"tag:yaml.org,2002:{name}" for name in _TAGS)
_READERS: dict[str, Callable[[str], Any]] = {
    _NULL: lambda _: None,
    _BOOL: lambda text: text.lower() == "true",
    _INT: lambda text: int(text, {"0x": 16, "0o": 8}.get(text[:2], 10)),
    _FLOAT: float,
    _STR: expand_home,
}
_OF_CLASSES = ("DATA.RENAME.", "DATA.ONLY_CLASSES.")  # names, which may look like 1.10, 007 or null
# `None` is not YAML, but PaddleViT's recipes use it for null.
_RESOLVERS = (
    (_NULL, r"~|null|Null|NULL|None|", ["~", "n", "N", ""]),
    (_BOOL, r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    (_INT, r"[-+]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+", list("-+0123456789")),
    (_FLOAT, r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", list("-+.0123456789")),
)


class _StrictLoader(yaml.SafeLoader):
    """Only its composer is used: PyYAML constructs no objects."""

    yaml_implicit_resolvers = {}  # noqa: RUF012  # an attribute of PyYAML, filled below

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # of the stub
            raise yaml.MarkedYAMLError(problem="aliases are not allowed", problem_mark=mark)
        return super().compose_node(parent, index)


class _StrictDumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]  # by libyaml, if it has it
    """Quotes strings that the strict loader, or PyYAML's own, would read as another type."""


for _tag, _pattern, _first in _RESOLVERS:
    for _class in (_StrictLoader, _StrictDumper):
        _class.add_implicit_resolver(_tag, re.compile(f"(?:{_pattern})$"), _first)


def write_yaml(values: Values) -> str:
    """The values as YAML text, from which `read_yaml` reads equal values. A long value is JSON in one line."""
    long_values = []

    def shortened(value: Any) -> Any:
        if isinstance(value, list | tuple | dict) and len(value) > _LONG_ITEMS:
            long_values.append(value)
            return [f"{_PLACE}{len(long_values) - 1}"]  # a list, for a line of its own
        return {key: shortened(one) for key, one in value.items()} if isinstance(value, dict) else value

    text: str = yaml.dump(shortened(values), Dumper=_StrictDumper, sort_keys=False, default_flow_style=None, width=120)
    return re.sub(r'\["\\uE000 long value (\d+)"\]', lambda found: json.dumps(long_values[int(found[1])]), text)


@lru_cache(64)
def _compose(text: str) -> yaml.Node | None:
    """The nodes of a YAML text, which are only read: a resumed run reads its config.yaml ten times."""
    return yaml.compose(text, Loader=_StrictLoader)


def read_yaml(path: Path) -> Values:
    """The values of a YAML file. Raises UserError as `read_recipe`."""
    return read_recipe(path)[0]


def read_recipe(path: Path, named_in: str = "") -> tuple[Values, dict[str, int]]:
    """The values of a YAML file, and the line number (from 1) of each key outside of lists, such as TRAIN.BASE_LR.

    named_in: a prefix of the error message for an unreadable file.
    Raises UserError: the file is unreadable, too large, not YAML or not a mapping; names the file and the line.
    """
    text, long_values = _take_long_values(read_text(path, named_in, max_bytes=_MAX_BYTES_WITH_LISTS))
    if len(text) > MAX_BYTES:
        raise UserError(f"{path}: is larger than {MAX_BYTES} bytes; write a long list as JSON in one line")
    lines: dict[str, int] = {}
    try:
        node = _compose(text)
        if node is None:
            return {}, lines
        if not isinstance(node, yaml.MappingNode):
            raise UserError(f"{path}:1: expected `KEY: value` lines")
        return _put_back(_construct(node, "", lines), long_values), lines
    except RecursionError:
        raise UserError(f"{path}: is nested too deeply") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # the last two: an invalid escape or %YAML version
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark else path
        problem = getattr(error, "problem", None) or first_line(error)
        raise UserError(f"{place}: {problem}") from None


def read_text(path: Path, named_in: str = "", suffix: str = ".yaml", max_bytes: int = MAX_BYTES) -> str:
    """Reads a text file, or raises UserError as `read_yaml`. suffix: of similar names in the error."""
    try:
        with open_regular_file(path) as file:
            data = file.read(max_bytes + 1)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        hint = ""
        if isinstance(error, FileNotFoundError):
            files = [str(file) for folder in (path.parent, Path("configs")) for file in folder.glob(f"*{suffix}")]
            hint = did_you_mean(str(path.parent / f"{path.stem}{suffix}"), files)
        problem = f"cannot be read: {getattr(error, 'strerror', error)}{hint}"
        raise error_from(error, f"{named_in}{path}: {problem}") from None
    if len(data) > max_bytes:
        raise UserError(f"{path}: is larger than {max_bytes} bytes; give a {suffix} file")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not a text file in UTF-8") from None


def parse_value(text: str, key: str = "") -> Any:
    """The value of a YAML text: '1e-3' -> 0.001, '[1, 2]' -> [1, 2]; of names of classes (`key`) as they are written.

    Raises UserError for another text.
    """
    text, long_values = _take_long_values(text)
    try:
        node = _compose(text)
        return None if node is None else _put_back(_construct(node, f"{key}.", {}), long_values)
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError) as error:
        reason = getattr(error, "problem", type(error).__name__)
        raise UserError(f"{shorten(text)} cannot be read as a value: {reason}") from None


def _take_long_values(text: str) -> tuple[str, list[Any]]:
    """The text with a word for each line `KEY: VALUE` of long JSON, and these values: PyYAML needs a second for 10,000
    numbers."""
    taken = []

    def take(line: re.Match[str]) -> str:
        options: Values = {"object_pairs_hook": _unique_keys}
        if line[1].endswith(("RENAME: ", "ONLY_CLASSES: ")):  # as `_OF_CLASSES`
            options |= {"parse_int": str, "parse_float": str}
        try:
            taken.append(json.loads(line[2], **options))
        except (ValueError, RecursionError):  # PyYAML reads it, or tells the problem
            return line[0]
        return f"{line[1]}{_PLACE}{len(taken) - 1}"

    return _LONG_VALUE.sub(take, text), taken


def _unique_keys(pairs: list[tuple[str, Any]]) -> Values:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a key is given twice")
    return values


def _put_back(value: Any, taken: Sequence[Any]) -> Any:
    if isinstance(value, dict):
        return {key: _put_back(one, taken) for key, one in value.items()}
    is_place = bool(taken) and isinstance(value, str) and value.startswith(_PLACE)
    return taken[int(value.removeprefix(_PLACE))] if is_place else value


def find_name(given: str, names: Sequence[str]) -> str:
    """A name that a file or `-opts` gives, or the only one of `names` that YAML reads as it: 007 as 7, true as True."""
    if given in names:
        return given
    tag_of: Callable[..., str] = _StrictLoader("").resolve
    fitting = [name for name in names if given == str(_READERS[tag_of(yaml.ScalarNode, name, (True, False))](name))]
    return fitting[0] if len(fitting) == 1 else given


def shorten(value: Any) -> str:
    """The representation of a value in an error message, at most about 80 characters."""
    return _SHORT.repr(value)


def format_value(value: Any) -> str:
    """A value in a message, as `-opts` reads it; at most about 80 characters, and without control characters."""
    text = str(value)
    if value is None:
        text = "null"
    elif isinstance(value, bool):
        text = text.lower()
    return text if len(text) <= _SHORT.maxstring and text.isprintable() else shorten(value)


def as_option(value: Any) -> str:
    """A value as `-opts` reads it, whole; a text as JSON, unless it is a word and no value of another type."""
    if isinstance(value, str) and value.isidentifier() and parse_value(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)


def _is_scalar(node: yaml.Node) -> bool:
    """Whether a node is a text, number, truth value or null; a list may have the tag of a number."""
    return isinstance(node, yaml.ScalarNode) and node.tag in _READERS


def _construct(node: yaml.Node, section: str, lines: dict[str, int]) -> Any:
    """section: '', or the dotted key of the node and a dot. lines: gets the line of each dotted key."""
    if isinstance(node, yaml.SequenceNode) and node.tag == _SEQ:
        return [_construct(child, f"{section}item.", {}) for child in node.value]
    if isinstance(node, yaml.MappingNode) and node.tag == _MAP:
        return _construct_mapping(node, section, lines)
    if not _is_scalar(node):
        raise yaml.MarkedYAMLError(problem=f"the tag {shorten(node.tag)} is not allowed", problem_mark=node.start_mark)
    is_class = section.startswith(_OF_CLASSES) and section not in _OF_CLASSES
    try:
        return node.value if is_class else _READERS[node.tag](node.value)
    except ValueError as error:
        raise yaml.MarkedYAMLError(problem=str(error), problem_mark=node.start_mark) from None


def _construct_mapping(node: yaml.MappingNode, section: str, lines: dict[str, int]) -> Values:
    values = {}
    for key_node, value_node in node.value:
        problem = ""
        key = key_node.value
        dotted = f"{section}{key}"
        if not _is_scalar(key_node):
            problem = "a key must be a plain word"
        elif len(key) > _MAX_KEY_CHARS or not key.isprintable():
            problem = f"{shorten(key)} is not a valid key"
        elif dotted in lines:  # also as KEY of its section, and as SECTION.KEY
            problem = f"{dotted} is given twice, first in line {lines[dotted]}; remove one"
        elif node.flow_style and ":" in key and not value_node.value:
            problem = f"{shorten(key)} has no value; write a space after the colon"
        if problem:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
        lines[dotted] = key_node.start_mark.line + 1
        values[key] = _construct(value_node, f"{dotted}.", lines)
    return values
