"""Flags of other programs in the words of this one, by the tables in configs/programs/.

`python -m configs.programs > docs/flags.md` writes the tables as a page.
"""

import itertools
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from configs.schema import Config
from configs.yaml_io import parse_value
from utils.errors import UserError

_FOLDER = Path(__file__).parent / "programs"
Given = Sequence[tuple[str, list[str]]]  # flags with their values, as `split_words` returns them


@dataclass(frozen=True)
class Program:
    """A program and its flags, without dashes; timm.flags.yaml explains the fields.

    page: the heading of its flags in docs/flags.md. base: a program whose flags it has, too; own: the others. marks:
    flags that only it has. version: None if its flags are not translated. models: timm's names of its models.
    """

    program: str
    defaults: str
    version: Any = None
    page: str = "other-programs"
    base: str = ""
    flags: dict[str, Any] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)
    marks: Sequence[str] = ()
    own: Sequence[str] = ()
    models: dict[str, str] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        return {*self.flags, *self.words, *self.marks}


@cache
def programs() -> dict[str, Program]:
    """The programs by the stems of their files; timm first, which wins where others have the same flags."""
    found = dict[str, Program]()
    for stem in ("timm", "timm_validate", "timm_inference", "torchvision", "colossalai"):
        found[stem] = _program(_load(f"{stem}.flags.yaml"), found)
    for values in _load("others.yaml"):
        found[values["program"]] = _program(values, found)
    return found


def _program(values: dict[str, Any], known: Mapping[str, Program]) -> Program:
    for section in ("flags", "words"):
        rows = values.get(section, {})
        values[section] = {name: row for names, row in rows.items() for name in names.split(", ")}
    values["own"] = [*values["flags"], *values["words"]]
    if base := known.get(values.get("base", "")):
        values["marks"] = [name for name in values["own"] if name not in base.names]
        values["words"] = {name: row for name, row in base.words.items() if name not in values["flags"]} | values[
            "words"
        ]
        values["flags"] = base.flags | values["flags"]
    return Program(**values)


def _load(name: str) -> Any:
    return yaml.safe_load((_FOLDER / name).read_text())


@cache
def paddleclas_keys() -> dict[str, str]:
    """Of a key of PaddleClas, in capitals: the flag or key here."""
    return {key.upper(): ours for key, ours in _load("paddleclas.keys.yaml").items()}


def name_of_model(name: str) -> str | None:
    """timm's name of a model of torchvision's; None for other names."""
    return programs()["torchvision"].models.get(name)


def split_words(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each flag with its values: the one after '=', else the words up to the next flag; other words without values."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        flag, _, given = word.partition("=")
        if not (word.startswith("-") or flag.isupper()):
            flag = word  # a path such as year=2024/train
            given = ""
        values = [*filter(None, [given])]
        if word.startswith("-") and not given:
            values = [*itertools.takewhile(lambda one: not one.startswith("-") or one[1:2].isdigit(), rest)]
            del rest[: len(values)]
        yield flag, values


def program_of(given: Given, unknown: Sequence[str]) -> Program | None:
    """The program that has the most marks of the command line, then of its unknown words, then of its flags.

    A path is unknown, too: the positional argument `data` beside flags of two dashes or one letter. None: no program
    has an unknown word.
    """
    flags = [word for word, _ in given if word.startswith("-")]
    names = {word.lstrip("-") for word in flags}
    is_theirs = all(word.startswith("--") or len(word) == 2 for word in flags)
    foreign = {word.lstrip("-") for word in unknown if word.startswith("-")}
    if flags and is_theirs and any(not word.startswith("-") for word in unknown):
        foreign.add("data")

    def rank(one: Program) -> tuple[int, int, int]:
        return len(names.intersection(one.marks)), len(foreign & one.names), len(names & one.names)

    possible = [one for one in programs().values() if foreign & one.names]
    return max(possible, key=rank, default=None)


def describe_flags(program: Program, given: Given, own: Mapping[str, str]) -> str:
    """One line: for each flag of the program the words to add here, or that there are none; its defaults; the page.

    own: of each flag of this program its name; a flag that means the same here is left out. "" if nothing is left.
    """
    rows = [_row(program, word, values, own) for word, values in _with_paths(program, given, own)]
    rows = [row for row in rows if row]
    if program.version and not rows:
        return ""
    listed = f". Here: {'; '.join(rows)[:3000]}" if rows else ""
    marks = [word for word, _ in given if word.lstrip("-") in program.marks]
    named = "" if program.version else f"{', '.join(marks)}: "
    rest = f"For the rest: {with_shown_recipes(program.defaults)}; docs/flags.md#{program.page}"
    return f"{named}flags of {program.program}{listed}. {rest}"


def _with_paths(program: Program, given: Given, own: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    """The flags with their values; the path of the data, which may follow a switch or a value, is a word of its own."""
    for word, values in given:
        name = word.lstrip("-")
        takes_one = name in program.words or _takes_value(program.flags.get(name))
        follows = own.get(word, "opts") != "opts" and len(values) > 1
        is_path = values and ("/" in values[-1] or os.path.isdir(values[-1]) or follows)
        if is_path and len(values) > takes_one and "data" in program.flags:
            yield word, values[:-1]
            yield values[-1], []
        else:
            yield word, values


def _takes_value(target: Any) -> bool:
    if not isinstance(target, str):
        return True
    return "{" in target or not ("=" in target or target in ("-amp", "-eval", "-compile"))


def _row(program: Program, word: str, values: list[str], own: Mapping[str, str]) -> str:
    """'FLAG VALUES: words to add', or why there are none; '' for a flag that stays as it is."""
    shown = shlex.join([word, *values])
    name = word.lstrip("-")
    if not word.startswith("-"):
        name = "data"
        values = [word]
    if name in program.words:
        text = program.words[name]
        option = re.search(r"[A-Z_]+\.[A-Z_.]+={}", text)
        problem = option and values and _problem_of(_fill(option[0], values))
        return f"{shown}: none, {problem}" if problem else f"{shown}: {_fill(text, values)}"
    if name not in program.flags:
        stays = word in own or not program.version
        return "" if stays else f"{shown}: unknown"
    target = program.flags[name]
    if target == "-model" and (of_timm := program.models.get(values[0] if values else "")):
        return f"{shown}: -model={of_timm}"
    if str(target).partition("=")[0] == f"-{own.get(word)}":
        return ""
    return f"{shown}: {_words_for(target, values)}"


def _words_for(target: Any, values: list[str]) -> str:
    """The words to add for a flag with these values, or why there are none."""
    if isinstance(target, dict):
        target = target.get(as_yaml(values).lower(), target.get("", "none"))
    parts = target if isinstance(target, list) else [target]
    if not parts:
        return "none needed"
    if parts[0].startswith("none"):
        return str(parts[0])
    filled = [_filled(part, values) for part in parts]
    options = [one for one in filled if not one.startswith("-")]
    for option in options:
        if problem := _problem_of(option):
            return f"none, {problem}"
    words = [one for one in filled if one.startswith("-")]
    if options:
        words += ["-opts", *options]
    return shlex.join(words)


def _filled(target: str, values: list[str]) -> str:
    if not _takes_value(target) or (target.startswith("-") and not values):
        return target
    if "{" in target:
        return _fill(target, values)
    return f"{target}={as_yaml(values)}"


def _fill(text: str, values: list[str]) -> str:
    """{}: all values; {1} to {3}: the first ones, repeated as timm repeats them; {pairs}: a=1 b=2 as a: 1, b: 2."""
    joined = ", ".join(values) or "VALUE"
    three = 3 * (values or ["VALUE"])
    return text.replace("{}", "{0}").format(joined, *three, pairs=joined.replace("=", ": "))


def _problem_of(option: str) -> str:
    """Why this program refuses KEY=VALUE; '' if it does not, or other options decide."""
    key, _, text = option.partition("=")
    try:
        nested = parse_value(text)
        for part in reversed(key.split(".")):
            nested = {part: nested}
        Config.model_validate(nested | {"MODEL": {"TYPE": "timm", **nested.get("MODEL", {})}})
    except UserError as unreadable:
        return str(unreadable)
    except ValidationError as refused:
        for error in refused.errors():
            if not isinstance(error["input"], dict):  # of a section: a contradiction with other keys
                return f"{key} is {text}: {error['msg'].removeprefix('Value error, ')}"
    return ""


def as_yaml(values: Sequence[str]) -> str:
    """The values of a flag as one value: of none, a switch that is on."""
    return f"[{', '.join(values)}]" if len(values) > 1 else "".join(values) or "true"


def shown_path(file: Path) -> Path:
    """The path of a recipe in a command to type."""
    here = Path.cwd()
    return file.relative_to(here) if file.is_relative_to(here) else file


def with_shown_recipes(text: str) -> str:
    """The text with the path of each -cfg=configs/NAME.yaml as it is typed in the current folder."""
    return text.replace("-cfg=configs/", f"-cfg={shown_path(_FOLDER.parent)}/")


_PAGE = """# Flags of other programs

A command line of another program ends with one line: for each of its flags the words to add here, or that there are
none. In the tables, `KEY` takes the value of the flag, KEY=VALUE stands for the switch. Proven by timm's own objects
(tests/engine/training/test_program_rows.py) are the rows of optimizers and learning rates; the other rows are not.
"""


def flags_page() -> str:
    """The text of docs/flags.md."""
    lines = [_PAGE]
    others = list[str]()
    for program in programs().values():
        if not program.version:
            others.append(f"- {program.program}: {program.defaults}.")
            continue
        lines.append(f"\n## {program.page}\n\nFlags of {program.program}, version {program.version}.")
        lines.append(f"For the rest: {program.defaults}.")
        lines.append("\n| there | here |\n|---|---|")
        base = programs().get(program.base)
        hidden = base.names - set(program.own) if base else ()
        rows = {name: _shown(target) for name, target in (program.flags | program.words).items() if name not in hidden}
        for shown, names in itertools.groupby(rows, key=rows.__getitem__):
            flags = ", ".join(f"`-{name}`" if len(name) == 1 or name == "vb" else f"`--{name}`" for name in names)
            lines.append(f"| {flags} | {shown} |")
    lines += ["\n## other-programs\n", *others]
    lines.append("\n## PaddleClas, -o KEY=VALUE\n\n| there | here |\n|---|---|")
    keys = _load("paddleclas.keys.yaml")
    lines += [f"| `{key}` | `{ours}` |" for key, ours in keys.items()]
    return "\n".join(lines)


def _shown(target: Any) -> str:
    if isinstance(target, dict):
        return "; ".join(f"{value or 'others'}: {_shown(one)}" for value, one in target.items())
    if isinstance(target, list):
        return " ".join(map(_shown, target)) or "none needed"
    if target.startswith("none") or (" " in target and "{" not in target.partition(" ")[0]):
        return _fill(target, [])
    return f"`{_fill(target, [])}`"


if __name__ == "__main__":
    print(flags_page())
