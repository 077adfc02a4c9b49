"""A table of options: BASE files < YAML file < flags < -opts; where each value comes from; a line for each mistake."""

import argparse
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic_core import ErrorDetails

from configs.flags import KEY_FLAGS, other_names
from configs.programs import describe_arguments, paddleclas_keys
from configs.schema.config import known_keys, model_type
from configs.schema.data import AUTO
from configs.schema.families.family import OWN_KEYS
from configs.schema.families.registry import FAMILIES, MODEL_SECTIONS
from configs.schema.model import FIXED_KEYS
from configs.schema.operating_point import Goal
from configs.schema.section import MAX_NAME_CHARS, only, without
from configs.versions import GONE_KEYS, WRITTEN_BY, refuse_newer
from configs.weights import OF_EVERY_MODEL, architecture, read_entries, weight_options
from configs.yaml_io import Values, format_value, parse_value, read_recipe, shorten
from utils.errors import UserError, combine_findings, did_you_mean
from utils.files import read_json
from utils.notes import STATUS

FINETUNED = "vit_small_patch16_224"  # timm's model of finetune.yaml and probe.yaml
RUN_OPTIONS = "config.yaml"  # in the folder of a run: its options
_RECIPES = Path(__file__).parent
_MAPPINGS = ("KWARGS", "_AUGMENTATIONS", "COLUMNS", "OPERATING_POINT", "RENAME")  # ends of keys with a value {...: ...}
_MAX_FILES = 32  # files that name each other twice in a chain of 32 would be read 2 ** 32 times
DROP_RATES = ("DROPOUT", "ATTENTION_DROPOUT", "DROPPATH")  # of MODEL: a part of the training, not of the architecture
_GOALS = {"sensitivity", "specificity"}
_OFF = {"off", "no", "none", "false", "disabled", "0", "o0", "fp32", "float32"}
_ON = {"on", "yes", "true", "enabled"}
_NO_PLACES: Mapping[str, str] = {}
_SECTION = "must be a section of keys, as `KEY: value`"
_TEXT_OF = {  # by pydantic's type of an error
    "model_type": _SECTION,
    "union_tag_not_found": _SECTION,
    "dict_type": "must be {name: value}",
    "float_type": "must be a number, such as 0.001",
}


class OptionRow(NamedTuple):
    """The value of a key; {} for a section without keys.

    source: 'file:line' or a flag, '' if a rule gives the value. level: the position of the option layer, from 1, or 0.
    """

    value: Any
    source: str = ""
    level: int = 0


class OptionTable:
    """Options by dotted YAML key. A later layer overrides an earlier one; rules add values that no layer gives.

    model_only: data and training do not follow the family of the model, for -model replaces the model of a recipe.
    rates_of_model: the drop rates of the recipe that -model names, which it does not take beside -cfg.
    """

    def __init__(self, values: Values) -> None:
        self.rows = {key: OptionRow(value) for key, value in flatten(expand_switches(values))}
        self.model_only = False
        self.rates_of_model = Values()
        self._last_source = ""
        self._last_level = 0

    def add(self, values: Values, source: str, places: Mapping[str, str] = _NO_PLACES) -> None:
        """Adds the values of a file or a flag as an option layer. places: 'file:line' of each key in a file.

        Raises UserError: a newer version wrote them.
        """
        refuse_newer(values, source)
        if source != self._last_source:
            self._last_source = source
            self._last_level += 1
        for key, value in flatten(expand_switches(values)):
            self.rows[key] = OptionRow(_merge(self.get(key), value), places.get(key, source), self._last_level)

    def add_key(self, key: str, value: Any, source: str) -> None:
        self.add(nest({key: value}), source)

    def row(self, key: str) -> OptionRow:
        """The row of a default value if neither a layer nor a rule gives one."""
        return self.rows.get(key, OptionRow(None))

    def origin(self, key: str) -> str:
        """'source: ' of the key, of a key below it, or of the value of its section; '' for a default value."""
        for other, row in reversed(self.rows.items()):
            is_section = key.startswith(f"{other}.") and row.value != {}
            if row.source and (is_section or f"{other}.".startswith(f"{key}.")):
                return f"{row.source}: "
        return ""

    @property
    def values(self) -> Values:
        """The values in nested sections."""
        return nest({key: row.value for key, row in self.rows.items()})

    @property
    def family(self) -> str:
        """MODEL.TYPE, or its default."""
        return model_type(self.get("MODEL.TYPE"))

    def given(self) -> Values:
        """The values that layers give."""
        return {key: value for key, value in flatten(self.values) if self.row(key).level}

    def get(self, key: str, default: Any = None) -> Any:
        """The value of the key, which may have a wrong type; `default` if neither a layer nor a rule gives one."""
        return self.rows.get(key, OptionRow(default)).value

    def set(self, key: str, value: Any) -> None:
        """Sets a value that follows from others."""
        self.rows[key] = self.row(key)._replace(value=value)

    def set_default(self, key: str, value: Any) -> bool:
        """Sets the value if the key has none, and returns whether it had none."""
        if key in self.rows:
            return False
        self.set(key, value)
        return True

    def remove(self, key: str) -> None:
        self.rows.pop(key, None)

    def check_sections(self) -> None:
        """Raises UserError if a key has a value and keys below it, one of which would be ignored."""
        sections = {key[:end] for key in self.rows for end, letter in enumerate(key) if letter == "."}
        for section, row in self.rows.items():
            if row.value != {} and section in sections:
                raise UserError(f"{row.source}: {section} is {shorten(row.value)}: {_SECTION}")


def _switches(values: Values) -> dict[str, Values]:
    """PaddleViT's `AMP: true` and `EVAL: true`, also as texts, as sections with the key ENABLED."""
    sections = ("AMP", "EVAL")
    return {key: {"ENABLED": values[key]} for key in sections if str(values.get(key)).lower() in ("true", "false")}


def expand_switches(values: Values) -> Values:
    """The options without VERSION, with the sections of `_switches`."""
    return {key: value for key, value in (values | _switches(values)).items() if key != WRITTEN_BY}


def flatten(values: Values, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested sections by their dotted keys. A section without keys, and a mapping, are one value."""
    for key, value in values.items():
        if isinstance(value, dict) and value and not key.endswith(_MAPPINGS):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def nest(values: Values) -> Values:
    """The nested sections of dotted keys; the inverse of `flatten`."""
    nested: Values = {}
    for dotted, value in values.items():
        *sections, key = dotted.split(".")
        section = nested
        for name in sections:
            section = section.setdefault(name, {})
            if not isinstance(section, dict):  # a wrong value, which the check of the options names
                break
        else:
            section[key] = section.get(key, {}) if value == {} else value
    return nested


def _merge(lower: Any, upper: Any) -> Any:
    """The upper value; of two mappings, the values of both, but a goal replaces the other, with a class the point."""
    if not (isinstance(lower, dict) and isinstance(upper, dict)):
        return upper
    if _GOALS & upper.keys():
        lower = {} if "class" in upper else without(lower, _GOALS)
    return lower | {key: _merge(lower.get(key), value) for key, value in upper.items()}


def read_layers(flags: argparse.Namespace, evaluates: bool) -> OptionTable:
    """BASE files < YAML file, or the options of a run or of weights < -model < flags < -opts < -set.

    Raises UserError: a file cannot be read; an empty flag; -opts without a value.
    """
    table = OptionTable({})
    _add_files(table, flags, evaluates)
    _add_model(table, flags, evaluates)
    _add_flags(table, flags)
    _add_options(table, flags.opts, "-opts")
    _add_options(table, flags.set, "-set")
    return table


def add_recipe(table: OptionTable, path: Path) -> Values:
    """Adds the files in BASE, recursively, then the file itself, and returns its values.

    Raises UserError for a file that is not allowed.
    """
    roots = [os.path.realpath(folder) for folder in (path.parent, ".")]
    read = []

    def add(path: Path, named_in: str, chain: list[Path]) -> Values:
        read.append(path)
        values, lines = read_recipe(path, named_in)
        if {"opt", "sched"} <= values.keys():
            raise UserError(f"{path}: {describe_arguments(values)}")
        for section in _switches(values):
            key = f"{section}.ENABLED"
            if key in lines:
                raise UserError(f"{path}:{lines[key]}: {key} is given twice, also in line {lines[section]}; remove one")
            lines[key] = lines[section]
        chain = [*chain, Path(os.path.realpath(path))]
        at_base = f"{path}:{lines.get('BASE')}: BASE"
        for base in _names_of_bases(values.pop("BASE", None), at_base):
            file = path.parent / base
            target = Path(os.path.realpath(file))
            if not any(target.is_relative_to(root) for root in roots):
                raise UserError(f"{at_base} {shorten(base)} is outside {roots[0]}; move it beside the recipe")
            if target in chain:
                raise UserError(f"{at_base} {shorten(base)} is cyclic; remove it")
            if len(read) >= _MAX_FILES:
                raise UserError(f"{at_base} leads to more than {_MAX_FILES} files; merge some of them")
            add(file, f"{at_base}: ", chain)
        table.add(values, str(path), {key: f"{path}:{line}" for key, line in lines.items()})
        return values

    return add(path, "", [])


def _names_of_bases(bases: Any, at_base: str) -> list[str]:
    if bases in (None, ""):
        return []
    if not isinstance(bases, list) or not all(str(base).isprintable() for base in bases):
        raise UserError(f"{at_base} must be a list of files, relative to this one")
    return [str(base) for base in bases if base not in (None, "")]  # PaddleViT's files have ['']


def _add_files(table: OptionTable, flags: argparse.Namespace, evaluates: bool) -> None:
    """Adds the recipe of -cfg, or else the options of the run that -resume names, or of the weights to evaluate."""
    weights = flags.pretrained if evaluates else None
    run = None if flags.resume == "auto" else flags.resume
    file = flags.cfg or _find_run_options(run or weights)
    if file:
        values = add_recipe(table, Path(file))
        if Path(file).name == RUN_OPTIONS and Path(file).with_name(STATUS).exists():
            keep_old_meanings(table, values)
            _forget_choices_of_run(table, Path(file), continues=bool(evaluates or flags.resume))
    elif run:  # whose options file is missing
        stored = stored_options(Path(run))
        table.add(stored, run)
        keep_old_meanings(table, stored)
    elif weights and not flags.resume:
        table.add(weight_options(weights), f"{weights}: metadata")
    if evaluates and not flags.cfg:
        table.remove("MODEL.WEIGHTS_ENTRY")  # of the initial weights of that run


def _forget_choices_of_run(table: OptionTable, file: Path, continues: bool) -> None:
    """Removes values that a run chose for itself from the options that are read from its folder."""
    given = read_json(file.with_name("run.json")).get("given")
    if isinstance(given, dict) and given.get("TRAIN.COMPILE", AUTO) == AUTO:
        table.remove("TRAIN.COMPILE")  # chosen by `compilation_follows_steps`, perhaps for another device
    if not continues:
        table.remove("SAVE")  # the new run is no member of the sweep in whose folder that run is


def _add_model(table: OptionTable, flags: argparse.Namespace, evaluates: bool) -> None:
    """Replaces the architecture by the one of -model; -pretrained=timm alone names `FINETUNED`.

    With MODEL.KWARGS, with timm's weights, or from scratch beside a -cfg of a model of timm's, it is timm's model of
    that name, else the recipe of that name. The drop rates stay the ones of -cfg.
    """
    name = flags.model
    is_alone = not (flags.cfg or evaluates or flags.resume)
    if is_alone and not name and flags.pretrained == "timm":
        name = FINETUNED
    if not name:
        return
    of_recipe = model_sections(name)["MODEL"]
    section = {"TYPE": "timm", "NAME": name} if _is_timms(table, flags) else of_recipe
    kept = set(OF_EVERY_MODEL)
    if flags.cfg:
        table.model_only = True
        table.rates_of_model = only(of_recipe, DROP_RATES)
        section = without(section, DROP_RATES)
        kept.update(DROP_RATES)
        _keep_drop_rates(table, section["TYPE"])
    for key in list(table.rows):  # the number of classes and the weights stay, not the keys of another family
        if key.startswith("MODEL.") and key.split(".")[1] not in kept:
            table.remove(key)
    for key, value in section.items():
        table.add_key(f"MODEL.{key}", value, f"-model {name}")


def _is_timms(table: OptionTable, flags: argparse.Namespace) -> bool:
    """Whether -model names timm's model where there is a recipe of that name, too."""
    weights = flags.pretrained or table.get("MODEL.PRETRAINED")
    has_kwargs = any(option.startswith("MODEL.KWARGS=") for option in flags.opts)
    starts_as_timms = flags.cfg and table.family == "timm" and not weights
    return bool(weights == "timm" or has_kwargs or starts_as_timms)


def _keep_drop_rates(table: OptionTable, new_type: str) -> None:
    """Keeps the drop rates of -cfg for a model of another type: arguments in KWARGS, and defaults of its family."""
    kwargs = table.get("MODEL.KWARGS")
    for argument, key in OWN_KEYS.items():
        if isinstance(kwargs, dict) and key.removeprefix("MODEL.") in DROP_RATES and argument in kwargs:
            table.set_default(key, kwargs[argument])
    family = FAMILIES.get(table.family)
    if family and new_type != "timm":
        for key in DROP_RATES:
            table.set_default(f"MODEL.{key}", family.defaults.get(f"MODEL.{key}", 0.0))


def _add_flags(table: OptionTable, flags: argparse.Namespace) -> None:
    if flags.batch_size is not None:
        table.add_key("DATA.BATCH_SIZE_EVAL", None, "-batch_size")  # it follows BATCH_SIZE
    for flag in KEY_FLAGS:
        value = getattr(flags, flag.name)
        if value is None:
            continue
        if value == "":
            raise UserError(f"-{flag.name} is empty; give a value, or remove the flag")
        table.add_key(flag.key, value, f"-{flag.name}")
    for name in ("predict", "embed"):
        if getattr(flags, name) is not None:
            table.add_key("EVAL.ENABLED", True, f"-{name}")
    if flags.amp_dtype:
        table.add_key("AMP.ENABLED", True, "-amp_dtype")


def _add_options(table: OptionTable, options: Sequence[str], flag: str) -> None:
    """Adds KEY=VALUE of a flag. Raises UserError: a line for each mistake."""
    mistakes = []
    for option in options:
        key, equals, text = option.partition("=")
        try:
            if not equals:
                raise UserError(f"{flag} {option[:80]}: expected KEY=VALUE, such as TRAIN.BASE_LR=1e-3")
            table.add_key(key, parse_value(text, key), flag)
        except UserError as error:
            mistakes.append(error)
    if mistakes:
        raise combine_findings(f"{len(mistakes)} options are wrong:", mistakes)


def _find_run_options(named: str | None) -> Path | None:
    """The options file of the run that a folder, a checkpoint or weights name."""
    if named is None:
        return None
    path = Path(named)
    file = (path if os.path.isdir(path) else path.parent) / RUN_OPTIONS
    return file if os.path.isfile(file) else None


def stored_options(named: Path) -> Values:
    """The options in a checkpoint, with or without its extension, or in the newest one of a folder; {}: there are none.

    For a run whose options file is missing.
    """
    inside = sorted(named.glob("*.pth"), key=os.path.getmtime, reverse=True)
    for file in (*inside, named, Path(f"{named}.pth")):
        text = read_entries(file).get("options")
        values = parse_value(text) if isinstance(text, str) else None
        if isinstance(values, dict):
            return values
    return {}


def keep_old_meanings(table: OptionTable, stored: Values) -> None:
    """Translates the options of a run that are stored without VERSION: rates of 0 left timm's models their own ones,
    and SGD had Nesterov momentum.
    """
    if WRITTEN_BY in stored:
        return
    if str(table.get("TRAIN.OPTIMIZER.NAME")).lower() == "sgd":
        table.set("TRAIN.OPTIMIZER.NAME", "nesterov")
    for key in ("MODEL.DROPOUT", "MODEL.DROPPATH"):
        if table.get("MODEL.TYPE") == "timm" and table.get(key) == 0:
            table.remove(key)


def model_sections(name: str) -> dict[str, Values]:
    """The section MODEL, without classes and weights, and the section DATA of the recipe `name`.

    Without such a recipe, MODEL is timm's model of this name, and DATA is empty. Raises UserError as `read_yaml`.
    """
    file = _RECIPES / f"{name}.yaml"
    if "/" in name or len(name) > MAX_NAME_CHARS or not file.is_file():
        return {"MODEL": {"TYPE": "timm", "NAME": name}, "DATA": {}}
    recipe = OptionTable({})
    add_recipe(recipe, file)
    sections = recipe.values
    return {"MODEL": architecture(sections.get("MODEL", {})), "DATA": sections.get("DATA", {})}


def decode_quoted(errors: Sequence[ErrorDetails], table: OptionTable) -> bool:
    """Decodes texts where the key has another type, as PaddleViT's yacs does: '1e-3', 'False', (0.9, 0.999).

    Returns whether there are any.
    """
    changed = False
    for key in {_key_of(error) for error in errors} & table.rows.keys():
        row = table.rows[key]
        value = _decoded(row.value)
        if repr(value) != repr(row.value):  # NaN differs from itself
            table.rows[key] = row._replace(value=value)
            changed = True
    return changed


def _decoded(value: Any) -> Any:
    """The value with each text in it read as YAML; a tuple of Python is a list."""
    if isinstance(value, list):
        return [*map(_decoded, value)]
    if not isinstance(value, str) or not value.strip():
        return value
    try:
        read = parse_value(value.replace("(", "[").replace(")", "]") if value.startswith("(") else value)
    except UserError:
        return value
    return value if isinstance(read, dict) else read


def is_contradiction(error: ErrorDetails) -> bool:
    """Returns whether the validator of a section, not of a field, found the error."""
    return error["type"] == "value_error" and isinstance(error["input"], dict)


def mistakes_in(errors: Sequence[ErrorDetails], table: OptionTable) -> UserError:
    """A line for each mistake, with the file and line or the flag, and the key; the first of a key."""
    given = [error for error in errors if table.origin(_key_of(error))]
    lines = dict[str, str]()
    for error in given or errors:  # others follow from the given ones
        key = _key_of(error)
        lines.setdefault(key, _error_line(key, error, table))
    return combine_findings(f"{len(lines)} options are wrong:", [*lines.values()])


def _key_of(error: ErrorDetails) -> str:
    if error["type"] == "extra_forbidden":
        return ".".join(str(part) for part in error["loc"] if part not in MODEL_SECTIONS)
    parts = (str(part) for part in error["loc"])
    return ".".join(part for part in parts if part.isupper() or part in _GOALS)  # keys, not union members


def _error_line(key: str, error: ErrorDetails, table: OptionTable) -> str:
    origin = table.origin(key)
    given = error["input"]
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        return origin + _unknown_key(key, given, table)
    if is_contradiction(error):  # the message begins with the key
        name = message.split()[0].rstrip(":")
        full = f"{key}.{name}".lstrip(".")
        return f"{table.origin(full) or origin}{full}{message.removeprefix(name)}"
    message = _TEXT_OF.get(error["type"], message)
    names = re.findall("'([^']+)'", error.get("ctx", {}).get("expected", ""))  # of a value that is one of several
    typed = format_value(given).lower()
    hint = _nearest_value(key, typed, names) if names else ""
    return f"{origin}{key} is {shorten(given)}: {message[0].lower()}{message[1:]}{hint}"


def _nearest_value(key: str, typed: str, names: Sequence[str]) -> str:
    """A hint for a value that is none of `names`; a word that switches something on or off is like no other one."""
    if typed in _OFF and key in ("AMP.LEVEL", "AMP.DTYPE"):
        return "; for float32 give -amp=no in its place"
    if typed in _OFF or typed in _ON:
        off = [name for name in names if name in ("none", "fp32") and typed in _OFF]
        return f"; did you mean {off[0]}?" if off else ""
    names = [name for name in names if name != "fp32"]  # fp16 is not like it
    with_it = [name for name in names if typed in name][:1]  # quadratic_kappa of kappa
    return did_you_mean(typed, with_it or names, 0.5)  # float16 of fp16


def _unknown_key(key: str, given: Any, table: OptionTable) -> str:
    fixed = FIXED_KEYS.get(table.family, {})
    name = key.removeprefix("MODEL.")
    if name in fixed:
        return f"{key} is {shorten(given)}: only {format_value(fixed[name])} is available; remove the key"
    full = next((row for row in table.rows if row.startswith(f"{key}.")), key)  # of an unknown section
    return f"unknown key {full[:80]}{_nearest_key(full, table.family)}"


def _nearest_key(dotted: str, family: str) -> str:
    """A hint for an unknown key: what replaces it, the families that have it, or the nearest known key."""
    if dotted in GONE_KEYS:
        return f", which is gone; {GONE_KEYS[dotted][1]}"
    others = other_names() | paddleclas_keys()
    for name in (dotted.upper(), dotted.upper().rpartition(".")[2]):
        if name in others:
            return f"; use {others[name]}"
    owners = [name for name in MODEL_SECTIONS if dotted in known_keys(name)]
    if owners:
        return f" of MODEL.TYPE {family} (a key of {', '.join(owners[:3])}); remove it"
    of_goal = (f"EVAL.OPERATING_POINT.{key}" for key in Goal.model_json_schema()["properties"])
    return did_you_mean(dotted.upper(), (*known_keys(family), *of_goal))
