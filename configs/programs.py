"""Command lines of other programs in the words of this one, by the tables in configs/programs/*.flags.yaml.

`python -m configs.programs > docs/flags.md` writes the tables as a page.
"""

import itertools
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

_FOLDER = Path(__file__).parent / "programs"
_MODEL_OF_HUB = "-model=hf:{}"  # of a name, which may also be a folder
Values = dict[str, list[str]]  # by the name of a flag, without dashes


@dataclass(frozen=True)
class Program:
    """A program and its flags, without dashes.

    recipe: the file of its defaults, without .yaml.
    flags: what stands for a flag here, see timm.flags.yaml. always, missing: flags without an option, and why.
    add: options of its defaults, unless one of some flags is given. models: timm's names of its models.
    """

    program: str
    version: Any
    recipe: str | None
    flags: dict[str, Any]
    always: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    computed: dict[str, str] = field(default_factory=dict)
    add: Sequence[dict[str, list[str]]] = ()
    models: dict[str, str] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        return {*self.flags, *self.always, *self.missing, *self.computed}


@cache
def programs() -> dict[str, Program]:
    """The programs by the stems of their files; timm first, which wins where others have the same flags."""
    order = ("timm", "torchvision", "pytorch_imagenet", "transformers", "deit", "colossalai")
    return {stem: _read(_FOLDER / f"{stem}.flags.yaml") for stem in order}


def _read(file: Path) -> Program:
    values = _load(file)
    for section in ("flags", "always", "missing", "computed"):
        rows = values.get(section, {})
        values[section] = {name: row for names, row in rows.items() for name in names.split(", ")}
    return Program(**values)


def _load(file: Path) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load(file.read_text())
    return values


@cache
def paddleclas_keys() -> dict[str, str]:
    """Of a key of PaddleClas, in capitals: the flag or key here."""
    values = _load(_FOLDER / "paddleclas.keys.yaml")
    return {key.upper(): ours for key, ours in values.items()}


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


def program_of(unknown: Iterable[str], given: Iterable[str]) -> Program | None:
    """The program that has most of the unknown flags, then of all given ones; None: no program has an unknown one.

    A path beside flags that all have two dashes is the positional argument `data`.
    """
    flags = [word for word in given if word.startswith("-")]
    is_theirs = bool(flags) and all(word.startswith("--") for word in flags)
    foreign = {word.lstrip("-") if word.startswith("-") or not is_theirs else "data" for word in unknown}
    names = {word.lstrip("-") for word in flags}
    best = max(programs().values(), key=lambda one: (len(foreign & one.names), len(names & one.names)))
    return best if foreign & best.names else None


@dataclass
class Translation:
    """Words of this program. without: flags that have no counterpart; unknown: flags of neither program."""

    flags: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)
    without: list[str] = field(default_factory=list)
    unknown: Values = field(default_factory=dict)

    def add(self, *targets: str) -> None:
        for target in targets:
            place = self.flags if target.startswith("-") else self.options
            place.append(target)

    def command(self, script: str) -> str:
        """The command to type."""
        words = ["python", script, *self.flags]
        if self.options:
            words += ["-opts", *self.options]
        return shlex.join(words)


def translate(program: Program, given: Sequence[tuple[str, list[str]]], is_own: Callable[[str], bool]) -> Translation:
    """The command line `given`, as `split_words` returns it, with the defaults of the program.

    is_own: whether a flag is one of this program, which stays as it is unless the table has it.
    """
    result = Translation()
    values = _read_words(program, given, is_own, result)
    trains = program.recipe is not None and _COMMANDS.isdisjoint(values)
    if trains:
        result.add(f"-cfg={shown_path(_FOLDER / f'{program.recipe}.yaml')}")
        for row in program.add:
            if values.keys().isdisjoint(row["unless"]):
                result.add(*row["options"])
    for name in [*program.flags, *program.missing]:  # in their order: a later option wins
        if name in values:
            _add_flag(result, program, name, values[name])
    if trains and program.recipe in _COMPUTED:
        with suppress(ValueError, ZeroDivisionError):  # of values that the program itself refuses
            result.add(*_COMPUTED[program.recipe](values))
    return result


# Flags, of any program, with which a command does not train from the start by a recipe of its program.
_COMMANDS = {"cfg", "config", "c", "eval", "test-only", "evaluate", "predict", "resume"}


def _read_words(
    program: Program, given: Sequence[tuple[str, list[str]]], is_own: Callable[[str], bool], result: Translation
) -> Values:
    """The values of the flags, by name. Adds the words that are understood without the table to the result."""
    values: Values = {}
    for word, its_values in given:
        name = word.lstrip("-") if word.startswith("-") else ""
        if name in program.names:
            values |= _split_path(program, name, its_values)
        elif name and is_own(word):
            result.flags += [word, *its_values]
            values[name] = its_values
        elif word.isupper() and its_values:
            result.add(f"{word}={as_yaml(its_values)}")
        elif word.endswith((".yaml", ".yml")):
            result.add(f"-cfg={word}")
            values["cfg"] = [word]
        elif "data" in program.flags and not name:
            values["data"] = [word]
        else:
            result.unknown[word] = its_values
    if size := values.get("input-size"):  # channels, height and width; of DeiT the side alone
        values["img-size"] = size[-2:]
        if len(size) == 3:
            values["in-chans"] = size[:1]
    return values


def _split_path(program: Program, name: str, values: list[str]) -> Values:
    """The values of a flag; the path of the data may follow a switch or the value of a flag."""
    takes_one = name in program.flags and _takes_value(program.flags[name])
    if "data" in program.flags and len(values) > takes_one and os.path.isdir(values[-1]):
        return {"data": values[-1:], name: values[:-1]}
    return {name: values}


def _takes_value(target: Any) -> bool:
    if not isinstance(target, str):
        return True
    return "{}" in target or not ("=" in target or target in ("-amp", "-eval", "-compile", "-predict"))


def shown_path(file: Path) -> Path:
    """The path of a recipe in a command to type."""
    here = Path.cwd()
    return file.relative_to(here) if file.is_relative_to(here) else file


def _add_flag(result: Translation, program: Program, name: str, values: list[str]) -> None:
    target = program.flags.get(name)
    if isinstance(target, dict):
        target = target.get(as_yaml(values), target.get(""))
    if target is None:
        reason = " ".join(values)
        if name in program.missing:
            reason = f"({program.missing[name]})"
        result.without.append(f"--{name} {reason}")
        return
    if not isinstance(target, list):
        target = [target]
    for one in target:
        result.add(*_filled(one, values))


def _filled(target: str, values: list[str]) -> list[str]:
    """The words for a flag with these values; a switch may be followed by yes or no."""
    text = ", ".join(values)
    if not _takes_value(target):
        is_off = as_yaml(values).lower() in ("false", "no")
        return [] if is_off else [target]
    if target == _MODEL_OF_HUB and os.path.isdir(text):
        return [f"-model=local-dir:{text}"]
    if target.endswith("{{}}"):  # keywords: a=1 b=2
        pairs = text.replace("=", ": ")
        return [target.replace("{{}}", f"{{{pairs}}}")]
    if "{}" in target:
        return [target.replace("{}", text)]
    if target.startswith("-") and not values:
        return [target]
    if target == "-model":
        return [f"-model={name_of_model(text) or text}"]
    return [f"{target}={as_yaml(values)}"]


def as_yaml(values: Sequence[str]) -> str:
    """The values of a flag as one value: of none, a switch that is on."""
    return f"[{', '.join(values)}]" if len(values) > 1 else "".join(values) or "true"


def _number(values: Values, names: str, default: float) -> float:
    """The value of the first of the flags that is given."""
    for name in names.split():
        if values.get(name):
            return float(values[name][0])
    return default


def _ranks(values: Values) -> float:
    return _number(values, "ngpus", float(os.environ.get("WORLD_SIZE") or 1))


def _of_timm(values: Values) -> list[str]:
    """The rate that follows from --lr-base and the global batch size, by the rule of its train.py."""
    if "lr" in values:
        return []
    batch = _number(values, "batch-size b", 128) * _number(values, "grad-accum-steps", 1) * _ranks(values)
    scale = batch / _number(values, "lr-base-size", 256)
    optimizer = as_yaml(values.get("opt", ["sgd"]))
    rule = as_yaml(values.get("lr-base-scale", ["linear"]))
    if rule == "sqrt" or ("lr-base-scale" not in values and any(part in optimizer for part in ("ada", "lamb"))):
        scale **= 0.5
    return [f"-lr={_number(values, 'lr-base', 0.1) * scale:.6g}"]


def _of_torchvision(values: Values) -> list[str]:
    """The start of the warm-up, the share of the crop and the decay of the average, which are products there."""
    options = []
    if "lr-warmup-epochs" in values:
        start = _number(values, "lr", 0.1) * _number(values, "lr-warmup-decay", 0.01)
        options.append(f"TRAIN.WARMUP_START_LR={start:.6g}")
    if values.keys() & {"val-resize-size", "val-crop-size"}:
        share = _number(values, "val-crop-size", 224) / _number(values, "val-resize-size", 256)
        options.append(f"DATA.CROP_PCT={share:.6g}")
    if "ra-sampler" in values:
        options.append(f"DATA.REPEATED_AUGMENTATION={_number(values, 'ra-reps', 3):g}")
    if "model-ema" in values:
        rest = (1 - _number(values, "model-ema-decay", 0.99998)) * _number(values, "batch-size b", 32) * _ranks(values)
        options.append(f"TRAIN.MODEL_EMA_DECAY={1 - rest / _number(values, 'epochs', 90):.8g}")
    return options


def _of_transformers(values: Values) -> list[str]:
    """The folder of both splits."""
    folders = [Path(values[name][0]) for name in ("train_dir", "validation_dir") if values.get(name)]
    parents = {folder.parent for folder in folders}
    if len(folders) < 2 or len(parents) > 1:
        return []
    return [f"-data_path={folders[0].parent}"]


_COMPUTED: dict[str | None, Callable[[Values], list[str]]] = {
    "timm": _of_timm,
    "torchvision": _of_torchvision,
    "transformers": _of_transformers,
}


_PAGE = """# Flags of other programs

A command line of another program ends with the command to type here. `-cfg=configs/programs/NAME.yaml` has the
program's defaults where they differ from the ones here. In the tables, `KEY` takes the value of the flag, and
KEY=VALUE stands for the switch; "always": this program does so; "no": there is no counterpart.
"""


def flags_page() -> str:
    """The text of docs/flags.md."""
    lines = [_PAGE]
    for program in programs().values():
        lines.append(f"\n## {program.program}\n\nVersion {program.version}.")
        if program.recipe:
            file = f"configs/programs/{program.recipe}.yaml"
            lines.append(f"Its defaults: [{file}](../{file}).")
        lines.append("\n| there | here | |\n|---|---|---|")
        for names, target in _rows(program.flags):
            lines.append(f"| {names} | {_shown(target)} | |")
        for title, section in (("computed", "computed"), ("always", "always"), ("no", "missing")):
            for names, reason in _rows(getattr(program, section)):
                lines.append(f"| {names} | {title} | {reason} |")
    lines.append("\n## PaddleClas, -o KEY=VALUE\n\n| there | here |\n|---|---|")
    keys = _load(_FOLDER / "paddleclas.keys.yaml")
    lines += [f"| `{key}` | `{ours}` |" for key, ours in keys.items()]
    return "\n".join(lines)


def _rows(section: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The flags with the same value, and the value."""
    for value, names in itertools.groupby(section, key=section.__getitem__):
        yield ", ".join(f"`-{name}`" if len(name) == 1 or name == "vb" else f"`--{name}`" for name in names), value


def _shown(target: Any) -> str:
    if isinstance(target, dict):
        return "; ".join(f"{value or 'others'}: {_shown(one)}" for value, one in target.items())
    if isinstance(target, list):
        return " ".join(map(_shown, target))
    return f"`{target.replace('{{}}', '{NAME: VALUE}').replace('{}', 'VALUE')}`"


if __name__ == "__main__":
    print(flags_page())
