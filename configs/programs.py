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
from configs.yaml_io import Values, format_value, parse_value
from utils.errors import UserError

_FOLDER = Path(__file__).parent / "programs"
_TRANSLATED = ("timm", "timm_validate", "timm_inference", "torchvision", "colossalai")
Given = Sequence[tuple[str, list[str]]]  # flags with their values, as `split_words` returns them


@dataclass(frozen=True)
class Program:
    """A program and its flags, without dashes; timm.flags.yaml explains the fields.

    page: the heading of its flags in docs/flags.md. base: a program whose flags it has, too. marks: flags that only it
    has. version: None if its flags are not translated.
    """

    program: str
    defaults: str
    version: Any = None
    page: str = "other-programs"
    base: str = ""
    flags: Values = field(default_factory=dict)
    marks: Sequence[str] = ()

    @property
    def names(self) -> set[str]:
        return {*self.flags, *self.marks}


@cache
def programs() -> dict[str, Program]:
    """The programs by the stems of their files; timm first, which wins where others have the same flags."""
    found = dict[str, Program]()
    for stem in _TRANSLATED:
        found[stem] = _program(_load(f"{stem}.flags.yaml"), found)
    for values in _load("others.yaml"):
        found[values["program"]] = _program(values, found)
    return found


def _program(values: Values, known: Mapping[str, Program]) -> Program:
    rows = values.get("flags", {})
    flags = {name: row for names, row in rows.items() for name in names.split(", ")}
    if base := known.get(values.get("base", "")):
        values["marks"] = [name for name in flags if name not in base.flags]
        flags = base.flags | flags
    return Program(**values | {"flags": flags})


def _load(name: str) -> Any:
    return yaml.safe_load((_FOLDER / name).read_text())


@cache
def paddleclas_keys() -> dict[str, str]:
    """Of a key of PaddleClas, in capitals: the flag or key here."""
    return {key.upper(): ours for key, ours in _load("paddleclas.keys.yaml").items()}


def name_of_model(name: str) -> str | None:
    """timm's name of a model of torchvision's; None for other names."""
    words: str = programs()["torchvision"].flags["model"].get(name, "")
    return words.partition(" ")[0].removeprefix("-model=") or None


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
    rows = [*filter(None, (_row(program, *one, own) for one in _with_paths(program, given, own)))]
    if program.version and not rows:
        return ""
    listed = f". Here: {'; '.join(rows)[:3000]}" if rows else ""
    marks = [word for word, _ in given if word.lstrip("-") in program.marks]
    named = "" if program.version else f"{', '.join(marks)}: "
    rest = f"For the rest: {with_shown_recipes(program.defaults)}; docs/flags.md#{program.page}"
    return f"{named}flags of {program.program}{listed}. {rest}"


def describe_arguments(values: Values) -> str:
    """As `describe_flags`, of the values in an args.yaml of timm that are not timm's defaults."""
    defaults = _load("defaults.yaml")["timm"]
    given = []
    for key, value in values.items():
        name = key.replace("_", "-")
        if value == defaults.get(name):
            continue
        words = value if isinstance(value, list) else [value]
        if isinstance(value, dict):
            words = [f"{argument}={one}" for argument, one in value.items()]
        given.append((f"--{name}", [word if isinstance(word, str) else format_value(word) for word in words]))
    return describe_flags(programs()["timm"], given, {})


def _with_paths(program: Program, given: Given, own: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    """The flags with their values; the path of the data, which may follow a switch or a value, is a word of its own."""
    for word, values in given:
        name = word.lstrip("-")
        row = program.flags.get(name)
        takes_one = not isinstance(row, str) or "{" in row or row.startswith("none")
        follows = own.get(word, "opts") != "opts" and len(values) > 1
        is_path = values and ("/" in values[-1] or os.path.isdir(values[-1]) or follows)
        if is_path and len(values) > takes_one and "data" in program.flags:
            yield word, values[:-1]
            yield values[-1], []
        else:
            yield word, values


def _row(program: Program, word: str, values: list[str], own: Mapping[str, str]) -> str:
    """'FLAG VALUES: words to add', or why there are none; '' for a flag that stays as it is."""
    shown = shlex.join([word, *values])
    name = word.lstrip("-")
    if not word.startswith("-"):
        name = "data"
        values = [word]
    row = program.flags.get(name)
    if isinstance(row, dict):
        row = row.get(as_yaml(values).lower(), row.get("", "none"))
    if row is None:
        stays = word in own or not program.version
        return "" if stays else f"{shown}: unknown"
    if row.removesuffix("={}") == f"-{own.get(word)}":
        return ""
    if row.startswith("none"):
        return f"{shown}: {_fill(row, values)}"
    typed, bracket, remark = row.partition(" (")
    words = [_fill(one, values) for one in shlex.split(typed)]
    for problem in map(_problem_of, words if values else ()):
        if problem:
            return f"{shown}: none, {problem}"
    return f"{shown}: {shlex.join(words)}{bracket}{remark}"


def _fill(text: str, values: list[str]) -> str:
    """{}: the value; {1} to {3}: the first ones, repeated as timm repeats them; {pairs}: a=1 b=2 as a: 1, b: 2."""
    given = values or ["VALUE"]
    pairs = ", ".join(given).replace("=", ": ")
    return text.replace("{}", "{0}").format(as_yaml(given), *given * 3, pairs=pairs)


def _problem_of(option: str) -> str:
    """Why this program refuses KEY=VALUE; '' if it does not, or other options decide."""
    key, _, text = option.partition("=")
    if key.startswith("-"):
        return ""
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
    return text.replace("-cfg=configs/", f"-cfg={shlex.quote(str(shown_path(_FOLDER.parent)))}/")


_PAGE = """# Flags of other programs

A command line of another program ends with one line: for each of its flags the words to add here, or that there are
none. Each row of timm's train.py and of torchvision's that changes a number is proven by objects of timm, of torch and
of torchvision, for two values of the flag, and the recipes by the defaults of all flags
(tests/engine/training/test_program_rows.py). Brackets have the condition or, after "similar", what differs.
"""


def flags_page() -> str:
    """The text of docs/flags.md."""
    lines = [_PAGE]
    for stem in _TRANSLATED:
        values = _load(f"{stem}.flags.yaml")
        lines.append(f"\n## {values['page']}\n\nFlags of {values['program']}, version {values['version']}.")
        lines.append(f"For the rest: {values['defaults']}.")
        lines.append("\n| there | here |\n|---|---|")
        for names, row in values["flags"].items():
            flags = re.sub(r"([^, ]+)", r"`--\1`", names)
            short = re.sub("--(.|vb)`", r"-\1`", flags)
            lines.append(f"| {short} | {_shown(row)} |")
    lines.append("\n## other-programs\n")
    lines += [f"- {one['program']}: {one['defaults']}." for one in _load("others.yaml")]
    lines.append("\n## PaddleClas, -o KEY=VALUE\n\n| there | here |\n|---|---|")
    lines += [f"| `{key}` | `{ours}` |" for key, ours in _load("paddleclas.keys.yaml").items()]
    return "\n".join(lines)


def _shown(row: Any) -> str:
    if isinstance(row, dict):
        return "; ".join(f"{value or 'others'}: {_shown(one)}" for value, one in row.items())
    words, bracket, remark = _fill(row, []).partition(" (")
    return words if words.startswith("none") else f"`{words}`{bracket}{remark}"


if __name__ == "__main__":
    print(flags_page())
