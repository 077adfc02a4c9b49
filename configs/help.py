"""Help on YAML keys, from the schema: `-h TRAIN`, `-h TRAIN.BASE_LR`, and docs/options.md.

python -m configs.help > docs/options.md
"""

import functools
import inspect
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from configs.parts import TABLES
from configs.resolve import ALL_RULES
from configs.schema import Config
from configs.schema.config import fields, is_section
from configs.schema.families.registry import MODEL_SECTIONS
from configs.schema.model import Model
from configs.schema.section import Section
from configs.yaml_io import format_value
from utils.errors import UserError, did_you_mean

_COLUMNS = 120
_MAX_FOUND = 10  # keys by words
_BOUNDS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_PAGE = """# Options

All keys of YAML files and of `-opts KEY=VALUE`, with their types, defaults, ranges and meanings.
`python main_single_gpu.py -h TRAIN` prints a section, `-h TRAIN.BASE_LR` a key. The keys of MODEL depend on
`MODEL.TYPE`; a family may have other defaults: [paddlevit.md](paddlevit.md#families).

This page is written from `configs/schema/`: `python -m configs.help > docs/options.md`."""


@dataclass(frozen=True)
class Key:
    """An option; all values as text in YAML's notation.

    range: "" without bounds. types: MODEL.TYPE of the models that have this key; () if all have it.
    """

    name: str
    type: str
    default: str
    range: str
    meaning: str
    types: tuple[str, ...] = ()

    @property
    def section(self) -> str:
        return self.name.rpartition(".")[0]


def print_help(topic: str, flags: str = "") -> None:
    """Prints the key `topic`, all keys of the section `topic`, or the rules of the options (RULES); for other words the
    keys and flags whose names or descriptions have all of them. flags: the text of `-h`.
    """
    words = topic.lower().split()
    keys = all_keys()
    topic = topic.upper().rstrip(".")
    if topic == "RULES":
        for number, rule in enumerate(ALL_RULES, 1):
            paragraph = inspect.cleandoc(rule.__doc__ or "").partition("\n\n")[0]
            print(textwrap.fill(f"{number}. {paragraph}", width=_COLUMNS, subsequent_indent="    "))
        return
    wrap = functools.partial(textwrap.fill, width=_COLUMNS, subsequent_indent="    ", break_on_hyphens=False)
    found = [key for key in keys if f"{key.name.upper()}.".startswith(f"{topic}.")]
    if not found:
        flags = re.sub(r"\n {20,}", " ", flags)  # the descriptions
        lines = [wrap(line) for line in flags.splitlines() if line.startswith("  -") and _has_words(line, words)]
        found = _keys_about(keys, words)[:_MAX_FOUND]
        if not lines and not found:
            near = did_you_mean(topic, {key.name for key in keys} | {key.section for key in keys} - {""})
            raise UserError(f"-h {topic[:80]}: no such key or section{near}; docs/options.md has all keys")
        print("No key or section has this name; flags and keys about it:", *lines, sep="\n")
    for key in found:
        text = f"{key.name}: {key.type} {key.range}".rstrip() + f"; default {key.default}"
        if key.types:
            text += f"; MODEL.TYPE {', '.join(key.types)}"
        print(wrap(text))
        print(wrap(key.meaning, initial_indent="    "))


def _has_words(text: str, words: Sequence[str]) -> bool:
    """Whether each word, in the singular or the plural, begins a word of the text."""
    text = text.lower().replace("_", " ")
    return all(re.search(rf"\b{re.escape(word.removesuffix('s'))}", text) for word in words)


def _keys_about(keys: Sequence[Key], words: Sequence[str]) -> list[Key]:
    """The keys whose names have the words, then the ones whose meanings have them."""
    named = [key for key in keys if _has_words(key.name.replace(".", " "), words)]
    meant = [key for key in keys if key not in named and _has_words(f"{key.name} {key.meaning}", words)]
    return [*named, *meant] if words else []


def options_page() -> str:
    """The text of docs/options.md."""
    lines = [_PAGE]
    section = None
    for key in sorted(all_keys(), key=lambda key: key.section):
        if key.section != section:
            section = key.section
            lines += [
                f"\n## {section or 'Top level'}\n",
                "| key | type | default | range | meaning |",
                "|---|---|---|---|---|",
            ]
        meaning = key.meaning
        if key.types:
            meaning += f" (`{'`, `'.join(key.types)}`)"
        cells = (f"`{key.name}`", key.type, f"`{key.default}`", key.range, meaning)
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(lines)


def all_keys() -> list[Key]:
    """The keys of all sections, the keys of MODEL of each family."""
    family_type = "family of the model; timm: timm's model of the name NAME"
    keys = [*_keys(Config), Key("MODEL.TYPE", " | ".join(MODEL_SECTIONS), "vit", "", family_type)]
    shared = _keys(Model, "MODEL.")
    own: dict[Key, list[str]] = {}
    for name, section in MODEL_SECTIONS.items():
        for key in _keys(section, "MODEL."):
            if key not in shared:
                own.setdefault(key, []).append(name)
    parts = []  # of plugins and of the loss asl; a loss or an optimizer also needs its NAME
    for table in TABLES:
        for name, (_, options, _) in table.items():
            prefix = table.key if table.key.endswith("KWARGS") else f"{table.key}.{name}"
            for option, field in options.model_fields.items():
                key = _key(f"{prefix}.{option}", field)
                parts.append(replace(key, meaning=f"{table.kind} {name}: {key.meaning}"))
    return [*keys, *shared, *(replace(key, types=tuple(names)) for key, names in own.items()), *parts]


def _keys(section: type[Section], prefix: str = "") -> list[Key]:
    """The keys that have values, without MODEL.TYPE."""
    others = ("MODEL", "MODEL.TYPE")
    return [_key(name, field) for name, field in fields(section, prefix) if not (is_section(field) or name in others)]


def _key(name: str, field: FieldInfo) -> Key:
    bounds = ((bound, getattr(part, bound, None)) for part in field.metadata for bound in _BOUNDS)
    limits = ", ".join(f"{_BOUNDS[bound]} {limit:g}" for bound, limit in bounds if limit is not None)
    return Key(name, _type(field.annotation), _value(field.default), limits, field.description or "")


def _value(value: Any) -> str:
    """The value as YAML writes it."""
    return f"[{', '.join(map(_value, value))}]" if isinstance(value, tuple) else format_value(value)


def _type(annotation: Any) -> str:
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0])
    if origin is Literal:
        return " | ".join(_value(value) for value in arguments)
    if origin is tuple:
        return f"[{', '.join('...' if part is Ellipsis else _type(part) for part in arguments)}]"
    if origin is dict:
        return "{name: value}"
    if arguments:
        return " | ".join(_type(part) for part in arguments)
    return {NoneType: "null", bool: "true | false", str: "text"}.get(annotation) or annotation.__name__


if __name__ == "__main__":
    print(options_page())
