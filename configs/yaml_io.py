"""Strict YAML: scalars as in YAML 1.2, no duplicate keys, no aliases, no tags, the line number of each key.

PyYAML itself reads `3e-3` as a string, `on` as True and `010` as 8, keeps the last of two equal keys, and builds Python
objects from tags. libyaml, if PyYAML has it, reads the weights of 21,841 classes in a tenth of a second.
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
MAX_BYTES = 1 << 25  # the lists of 100,000 classes with long names have 16 MB
_SURROGATES = re.compile(r"\\ud[89ab]\w\w\\ud[c-f]\w\w", re.IGNORECASE)  # of JSON, for one character
_MAX_KEY_CHARS = 100
_MAX_DEPTH = 100
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
_SHORT.repr_tuple = _SHORT.repr_list  # type: ignore[method-assign, assignment]  # as YAML has it

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


class _StrictLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # by libyaml, if it has it
    """Only its composer is used: PyYAML constructs no objects."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  # an attribute of PyYAML, filled below


class _StrictDumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Quotes strings that the strict loader, or PyYAML's own, would read as another type."""


for _tag, _pattern, _first in _RESOLVERS:
    for _class in (_StrictLoader, _StrictDumper):
        _class.add_implicit_resolver(_tag, re.compile(f"(?:{_pattern})$"), _first)


def write_yaml(values: Values) -> str:
    """The values as YAML text, from which `read_yaml` reads equal values."""
    text: str = yaml.dump(values, Dumper=_StrictDumper, sort_keys=False, default_flow_style=None, width=120)
    return text


@lru_cache(8)
def _compose(text: str) -> yaml.Node | None:
    """The nodes of a YAML text, which are only read: a resumed run reads its config.yaml ten times."""
    text = _SURROGATES.sub(lambda pair: json.loads(f'"{pair[0]}"'), text)
    depth = 0
    for event in yaml.parse(text, Loader=_StrictLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        problem = ""
        if isinstance(event, yaml.AliasEvent):
            problem = "aliases are not allowed; write the value itself"
        elif depth > _MAX_DEPTH:  # libyaml 0.2.5 composes deeper ones until its stack overflows
            problem = "is nested too deeply"
        if problem:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)  # type: ignore[arg-type]
    return yaml.compose(text, Loader=_StrictLoader)


def read_yaml(path: Path) -> Values:
    """The values of a YAML file. Raises UserError as `read_recipe`."""
    return read_recipe(path)[0]


def read_recipe(path: Path, named_in: str = "") -> tuple[Values, dict[str, int]]:
    """The values of a YAML file, and the line number (from 1) of each key outside of lists, such as TRAIN.BASE_LR.

    named_in: a prefix of the error message for an unreadable file.
    Raises UserError: the file is unreadable, too large, not YAML or not a mapping; names the file and the line.
    """
    text = read_text(path, named_in)
    lines: dict[str, int] = {}
    try:
        node = _compose(text)
        if node is None:
            return {}, lines
        if not isinstance(node, yaml.MappingNode):
            raise UserError(f"{path}:1: expected `KEY: value` lines")
        return _construct(node, "", lines), lines
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # the last two: an invalid escape or %YAML version
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark else path
        raise UserError(f"{place}: {_problem_of(error)}") from None


_ADVICE = {  # for problems as libyaml states them: without the character, some in the line below
    "found unexpected ':'": "write a space after each colon",
    "found character that cannot start any token": "quote a value with it, and indent by spaces, not by tabs",
    "did not find expected alphabetic or numeric character": "quote a value that begins with * or &",
    "found a tab character that violates indentation": "indent by spaces, not by tabs",
    "could not find expected ':'": "write `KEY: value` in the line above, with a space after the colon",
    "mapping values are not allowed in this context": "write `KEY: value` here and in the line above, with a space "
    "after the colon, indented as the keys beside it; quote a text with a colon",
    "found unexpected end of stream": "close each quotation mark",
    "did not find expected key": "indent the keys of a section equally, and quote a whole text or no part of it",
}


def _problem_of(error: Exception) -> str:
    problem = getattr(error, "problem", None) or first_line(error)
    return f"{problem}; {_ADVICE[problem]}" if problem in _ADVICE else problem


def read_text(path: Path, named_in: str = "", suffix: str = ".yaml") -> str:
    """Reads a text file, or raises UserError as `read_yaml`. suffix: of similar names in the error."""
    try:
        with open_regular_file(path) as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        hint = ""
        if isinstance(error, FileNotFoundError):
            files = [str(file) for folder in (path.parent, Path("configs")) for file in folder.glob(f"*{suffix}")]
            hint = did_you_mean(str(path.parent / f"{path.stem}{suffix}"), files)
        problem = f"cannot be read: {getattr(error, 'strerror', error)}{hint}"
        raise error_from(error, f"{named_in}{path}: {problem}") from None
    if len(data) > MAX_BYTES:
        raise UserError(f"{path}: is larger than {MAX_BYTES} bytes; give a {suffix} file")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not a text file in UTF-8") from None


def parse_value(text: str, key: str = "") -> Any:
    """The value of a YAML text: '1e-3' -> 0.001, '[1, 2]' -> [1, 2]; of names of classes (`key`) as they are written.

    Raises UserError for another text.
    """
    try:
        node = _compose(text)
        return None if node is None else _construct(node, f"{key}.", {})
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise UserError(f"{shorten(text)} cannot be read as a value: {_problem_of(error)}") from None


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
