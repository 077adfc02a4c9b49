"""Layers of options: BASE files < YAML file < flags < -opts; where each value comes from; a line for each mistake."""

import argparse
import itertools
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic_core import ErrorDetails

from configs.flags import FLAGS, other_names
from configs.programs import paddleclas_keys
from configs.schema import Model
from configs.schema.config import known_keys, model_type
from configs.schema.data import AUTO
from configs.schema.families.registry import MODEL_SECTIONS
from configs.schema.model import FIXED_KEYS
from configs.schema.section import MAX_NAME_CHARS
from configs.versions import GONE_KEYS, GONE_VALUES, WRITTEN_BY, is_gone_value, refuse_newer
from configs.weights import OF_EVERY_MODEL, architecture, read_entries, weight_options
from configs.yaml_io import KeyPath, format_value, parse_value, read_yaml, shorten
from utils.errors import Finding, UserError, combine_findings, did_you_mean
from utils.files import read_json
from utils.notes import STATUS

FINETUNED = "vit_small_patch16_224"  # timm's model of finetune.yaml and probe.yaml
RUN_OPTIONS = "config.yaml"  # in the folder of a run: its options
_RECIPES = Path(__file__).parent
_MAX_FILES = 32  # files that name each other twice in a chain of 32 would be read 2 ** 32 times


class OptionLayers:
    """Options by YAML key. A later layer overrides an earlier one; rules add values that no layer gives.

    origins: 'file:line' or the flag of each key. model_only: data and training do not follow the family of the model,
    for -model replaces the model of a recipe.
    """

    def __init__(self, values: dict[str, Any] | None = None) -> None:
        self.values = values or {}
        self.origins: dict[KeyPath, str] = {}
        self.model_only = False
        self._levels: dict[str, int] = {}
        self._sources: list[str] = []
        self._num_files = 0

    def add(self, values: dict[str, Any], source: str, lines: dict[KeyPath, int] | None = None) -> None:
        """Adds the values of a file or a flag as an option layer. lines: of each key in the file."""
        refuse_newer(values, source)
        values = expand_switches(values)
        if self._sources[-1:] != [source]:
            self._sources.append(source)
        if lines is None:
            self.origins |= {path: source for path, _ in paths(values)}
        else:
            self.origins |= {path: f"{source}:{line}" for path, line in lines.items()}
        self._levels |= dict.fromkeys((key for key, _ in flatten(values)), len(self._sources))
        merge(self.values, values)

    def add_key(self, dotted: str, value: Any, source: str) -> None:
        self.add(nest({dotted: value}), source)

    def level(self, dotted: str) -> int:
        """The position of the option layer that gives the key, from 1; 0 for a default value."""
        return self._levels.get(dotted, 0)

    def origin(self, path: KeyPath) -> str:
        """'origin: ' of the key, or of the section that contains it; '' for a default value."""
        while path and path not in self.origins:
            path = path[:-1]
        return f"{self.origins[path]}: " if path else ""

    def given(self) -> dict[str, Any]:
        """The values that layers give, by dotted key."""
        return {key: value for key, value in flatten(self.values) if self.level(key)}

    def get(self, dotted: str, default: Any = None) -> Any:
        """The value of the key, which may have a wrong type; `default` if neither a layer nor a rule gives one."""
        section, key = self._section(dotted)
        return section.get(key, default) if section is not None else default

    def set(self, dotted: str, value: Any) -> None:
        """Sets a value that follows from others; nothing where a section of keys has a wrong type."""
        section, key = self._section(dotted, create=True)
        if section is not None:
            section[key] = value

    def set_default(self, dotted: str, value: Any) -> bool:
        """Sets the value if the key has none, and returns whether it had none."""
        section, key = self._section(dotted)
        if section is not None and key in section:
            return False
        self.set(dotted, value)
        return True

    def remove(self, dotted: str) -> None:
        """Removes the key, and the sections that it leaves empty."""
        section, key = self._section(dotted)
        if section is not None and key in section:
            del section[key]
            parent = dotted.rpartition(".")[0]
            if not section and parent:
                self.remove(parent)

    def _section(self, dotted: str, create: bool = False) -> tuple[dict[str, Any] | None, str]:
        """The section of the key, None if it is missing or has a wrong type, and the last part of the key."""
        *names, key = dotted.split(".")
        section: Any = self.values
        for name in names:
            section = section.setdefault(name, {}) if create else section.get(name)
            if not isinstance(section, dict):
                return None, key
        return section, key

    def add_recipe(self, path: Path) -> None:
        """Adds the files in BASE, recursively, then the file itself. Raises UserError for one that is not allowed."""
        roots = os.path.realpath(path.parent), os.path.realpath(".")
        self._add_file(path, roots, chain=(), named_in="")

    def _add_file(self, path: Path, roots: tuple[str, ...], chain: tuple[str, ...], named_in: str) -> None:
        values, lines = read_yaml(path, named_in)
        self._num_files += 1
        chain = (*chain, os.path.realpath(path))
        bases = values.pop("BASE", None) or []
        at_base = f"{path}:{lines.get(('BASE',))}: BASE"
        if not isinstance(bases, list) or not all(isinstance(base, str | None) for base in bases):
            raise UserError(f"{at_base} must be a list of files, relative to this one")
        for base in filter(None, bases):
            if not base.isprintable():
                raise UserError(f"{at_base} {shorten(base)} is not a valid file name; correct it")
            target = os.path.realpath(path.parent / base)
            if not any(Path(target).is_relative_to(root) for root in roots):
                problem = f"{at_base} {shorten(base)} is outside {roots[0]}"
                raise UserError(f"{problem}; move that file beside the recipe, or start in a folder that contains both")
            if target in chain:
                raise UserError(f"{at_base} is cyclic: {' -> '.join(Path(p).name for p in (*chain, target))}")
            if self._num_files >= _MAX_FILES:
                raise UserError(f"{at_base} leads to more than {_MAX_FILES} files; merge some of them")
            self._add_file(path.parent / base, roots, chain, f"{at_base}: ")
        self.add(values, str(path), lines)


def expand_switches(values: dict[str, Any]) -> dict[str, Any]:
    """The options, without VERSION, with PaddleViT's `AMP: true` and `EVAL: true` as sections with the key ENABLED."""
    switches = {key: {"ENABLED": values[key]} for key in ("AMP", "EVAL") if isinstance(values.get(key), bool)}
    return {key: value for key, value in (values | switches).items() if key != WRITTEN_BY}


def paths(values: dict[str, Any], above: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """The path and the value of each key and of each section."""
    for key, value in values.items():
        yield (*above, key), value
        if isinstance(value, dict):
            yield from paths(value, (*above, key))


def merge(lower: dict[str, Any], upper: dict[str, Any]) -> None:
    """Overrides values of `lower`, in place."""
    for key, value in upper.items():
        if isinstance(value, dict) and isinstance(lower.get(key), dict):
            merge(lower[key], value)
        else:
            lower[key] = value


def flatten(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested sections by their dotted keys. The arguments of classes, by their names, are one value."""
    for key, value in values.items():
        if isinstance(value, dict) and not key.endswith(("KWARGS", "_AUGMENTATIONS", "COLUMNS", "OPERATING_POINT")):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def nest(values: dict[str, Any]) -> dict[str, Any]:
    """The nested sections of dotted keys; the inverse of `flatten`."""
    layers = OptionLayers()
    for dotted, value in values.items():
        layers.set(dotted, value)
    return layers.values


def read_layers(flags: argparse.Namespace, evaluates: bool) -> OptionLayers:
    """BASE files < YAML file, or the options of a run or of weights < -model < flags < -opts.

    Raises UserError: a file cannot be read; an empty flag; an unknown key in -opts.
    """
    layers = OptionLayers()
    _add_files(layers, flags, evaluates)
    _add_model(layers, flags, evaluates)
    _add_flags(layers, flags)
    add_options(layers, flags.opts, "-opts")
    return layers


def _add_files(layers: OptionLayers, flags: argparse.Namespace, evaluates: bool) -> None:
    """Adds the recipe of -cfg, or else the options of the run that -resume names, or of the weights to evaluate."""
    weights = flags.pretrained if evaluates else None
    file = flags.cfg or _find_run_options(flags.resume, weights)
    if file:
        layers.add_recipe(Path(file))
        _forget_choices_of_run(layers, Path(file), continues=bool(evaluates or flags.resume))
    elif weights and not flags.resume:
        layers.add(weight_options(weights), f"{weights}: metadata")
    elif flags.resume not in (None, "auto"):
        layers.add(stored_options(Path(flags.resume)), flags.resume)
    if evaluates and not flags.cfg:
        layers.remove("MODEL.WEIGHTS_ENTRY")  # of the initial weights of that run
        for key, value in list(flatten(layers.values)):
            if key in GONE_KEYS or is_gone_value(key, value):  # of the training of that run
                layers.remove(key)


def _forget_choices_of_run(layers: OptionLayers, file: Path, continues: bool) -> None:
    """Removes values that a run chose for itself from the options that are read from its folder."""
    is_stored = file.name == RUN_OPTIONS and file.with_name(STATUS).exists()
    if not is_stored:
        return
    if WRITTEN_BY not in read_yaml(file)[0]:
        keep_old_meanings(layers.values)
    given = read_json(file.with_name("run.json")).get("given")
    if isinstance(given, dict) and given.get("TRAIN.COMPILE", AUTO) == AUTO:
        layers.remove("TRAIN.COMPILE")  # chosen by `compilation_follows_steps`, perhaps for another device
    if not continues:
        layers.remove("SAVE")  # the new run is no member of the sweep in whose folder that run is


def _add_model(layers: OptionLayers, flags: argparse.Namespace, evaluates: bool) -> None:
    """Replaces the architecture by the one of -model; -pretrained=timm alone names `FINETUNED`.

    With MODEL.KWARGS, or with timm's weights, it is timm's model of that name, else the recipe of that name.
    """
    starts_timms = flags.pretrained == "timm" and not (flags.cfg or evaluates or flags.resume)
    name = flags.model
    if not name and starts_timms:
        name = FINETUNED
    if not name:
        return
    has_timms_weights = (flags.pretrained or layers.get("MODEL.PRETRAINED")) == "timm"
    if has_timms_weights or any(option.startswith("MODEL.KWARGS=") for option in flags.opts):
        section = {"TYPE": "timm", "NAME": name}
    else:
        section = model_sections(name)["MODEL"]
    model = layers.values.get("MODEL")
    if isinstance(model, dict):  # the number of classes and the weights stay
        for key in model.keys() - OF_EVERY_MODEL:  # of another family: they may not apply to the new one
            del model[key]
    for key, value in section.items():
        layers.add_key(f"MODEL.{key}", value, f"-model {name}")
    layers.model_only = bool(flags.cfg)


def _add_flags(layers: OptionLayers, flags: argparse.Namespace) -> None:
    if flags.batch_size is not None:
        layers.add_key("DATA.BATCH_SIZE_EVAL", None, "-batch_size")  # it follows BATCH_SIZE
    for flag in itertools.chain.from_iterable(FLAGS.values()):
        value = getattr(flags, flag.name)
        if value is None:
            continue
        if value == "":
            raise UserError(f"-{flag.name} is empty; give a value, or remove the flag")
        if flag.type is bool:
            value = flag.value if value else flag.off
        layers.add_key(flag.key, value, f"-{flag.name}")
    for name in ("predict", "embed"):
        if getattr(flags, name) is not None:
            layers.add_key("EVAL.ENABLED", True, f"-{name}")
    if flags.amp_dtype:
        layers.add_key("AMP.ENABLED", True, "-amp_dtype")


def add_options(layers: OptionLayers, options: Sequence[str], flag: str) -> None:
    """Adds KEY=VALUE of a flag. Raises UserError: a line for each mistake."""
    mistakes = list[Finding]()
    for start, option in enumerate(options):
        if option.count("{") > option.count("}"):  # the shell has cut it at a blank
            end = next((n for n, part in enumerate(options[start:], start + 1) if "}" in part), len(options))
            whole = shlex.quote(" ".join(options[start:end]))
            raise UserError(f"{flag} {option[:80]}: a brace is open; write quotes: {whole[:500]}")
        key, equals, text = option.partition("=")
        try:
            if not equals:
                raise UserError(f"{flag} {option[:80]}: expected KEY=VALUE, such as TRAIN.BASE_LR=1e-3")
            if not any(key in known_keys(family) for family in MODEL_SECTIONS):
                raise UserError(f"{flag}: unknown key {key[:80]}{_nearest_key(key, model_type(layers.values))}")
            layers.add_key(key, parse_value(text), flag)
        except UserError as error:
            mistakes.append(error)
    if mistakes:
        raise combine_findings(f"{len(mistakes)} options are wrong:", mistakes)


def _find_run_options(resume: str | None, weights: str | None) -> Path | None:
    """The options file of the run that -resume names by a folder or checkpoint, or of the run that wrote `weights`."""
    named = weights if resume in (None, "auto") else resume
    if named is None:
        return None
    path = Path(named)
    file = (path if os.path.isdir(path) else path.parent) / RUN_OPTIONS
    return file if os.path.isfile(file) else None


def stored_options(named: Path) -> dict[str, Any]:
    """The options in a checkpoint, with or without its extension, or in the newest one of a folder; {}: there are none.

    For a run whose options file is missing.
    """
    inside = sorted(named.glob("*.pth"), key=os.path.getmtime, reverse=True)
    beside = filter(os.path.exists, (Path(f"{named}{end}") for end in ("", ".pth")))
    texts = (read_entries(path).get("options") for path in (inside or beside))
    values = next((parse_value(text) for text in texts if isinstance(text, str)), None)
    if not isinstance(values, dict):
        return {}
    if WRITTEN_BY not in values:
        keep_old_meanings(values)
    return values


def keep_old_meanings(options: dict[str, Any]) -> None:
    """Translates the options of a run without VERSION, in place: rates of 0 left timm's models their own ones, and SGD
    had Nesterov momentum.
    """
    training = options.get("TRAIN")
    optimizer = training.get("OPTIMIZER") if isinstance(training, dict) else None
    if isinstance(optimizer, dict) and str(optimizer.get("NAME")).lower() == "sgd":
        optimizer["NAME"] = "nesterov"
    model = options.get("MODEL")
    if isinstance(model, dict) and model.get("TYPE") == "timm":
        for key in ("DROPOUT", "DROPPATH"):
            if model.get(key) == 0:
                del model[key]


def model_sections(name: str) -> dict[str, dict[str, Any]]:
    """The section MODEL, without classes and weights, and the section DATA of the recipe `name`.

    Without such a recipe, MODEL is timm's model of this name, and DATA is empty. Raises UserError as `read_yaml`.
    """
    file = _RECIPES / f"{name}.yaml"
    if "/" in name or len(name) > MAX_NAME_CHARS or not file.is_file():
        return {"MODEL": {"TYPE": "timm", "NAME": name}, "DATA": {}}
    recipe = OptionLayers()
    recipe.add_recipe(file)
    return {"MODEL": architecture(recipe.values.get("MODEL", {})), "DATA": recipe.values.get("DATA", {})}


_REPLACEMENTS = {  # of a key, a section, or a last part of keys
    "MODEL.FREEZE_BACKBONE": "MODEL.TUNE=head",
    "MODEL.KWARGS": "it with -model=NAME, a model of timm's",
    "MODEL.MLP_DIM": "MODEL.MLP_RATIO, which is MLP_DIM / EMBED_DIM",
    "AMP.OPT_LEVEL": "AMP.LEVEL",  # of Apex
    "AMP.USE_PURE_FP16": "AMP.LEVEL=O2",  # of Fleet
    "AMP_CONFIGS": "AMP, whose keys have the same names in upper case",  # of Fleet
    "FP16": "-opts AMP.PRESET=torch, naive or apex_o1",  # of Colossal-AI
}


def decode_quoted(errors: Sequence[ErrorDetails], layers: OptionLayers) -> list[str]:
    """Decodes texts where the key has another type, as PaddleViT's yacs does: '1e-3', 'False', (0.9, 0.999).

    Returns the decoded keys with both values.
    """
    given, decoded = dict(paths(layers.values)), list[str]()
    for path in sorted({_path(error) for error in errors} & given.keys()):
        value = _decoded(given[path])
        if repr(value) != repr(given[path]):  # NaN differs from itself
            merge(layers.values, expand_switches(nest({".".join(path): value})))
            decoded.append(f"{'.'.join(path)} {shorten(given[path])} -> {format_value(value)}")
    return decoded


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


def mistakes_in(errors: Sequence[ErrorDetails], layers: OptionLayers) -> UserError:
    """A line for each mistake, with the file and line or the flag, and the key; the first of a key."""
    given = [error for error in errors if _path(error) in layers.origins]  # others follow from them
    by_path = {_path(error): error for error in reversed(given or errors)}
    lines = [_error_line(path, error, layers) for path, error in reversed(by_path.items())]
    return combine_findings(f"{len(lines)} options are wrong:", lines)


def _path(error: ErrorDetails) -> KeyPath:
    if error["type"] == "extra_forbidden":
        return tuple(str(part) for part in error["loc"] if part not in MODEL_SECTIONS)
    return tuple(part for part in error["loc"] if isinstance(part, str) and part.isupper())  # keys, not union members


def _error_line(path: KeyPath, error: ErrorDetails, layers: OptionLayers) -> str:
    family = model_type(layers.values)
    if error["type"] == "extra_forbidden":
        key = ".".join(path)
        fixed = {f"MODEL.{name}": value for name, value in FIXED_KEYS.get(family, {}).items()}
        if key in fixed:
            only = format_value(fixed[key])
            return f"{layers.origin(path)}{key} is {shorten(error['input'])}: only {only} is available; remove the key"
        return f"{layers.origin(path)}unknown key {key}{_nearest_key(key, family)}"
    message = error["msg"].removeprefix("Value error, ")
    for in_python, in_yaml in (("tuple", "list"), ("Tuple", "List"), ("be None", "be null")):
        message = message.replace(in_python, in_yaml)
    if error["type"] == "model_type":
        is_switch = path in (("AMP",), ("EVAL",))
        message = "must be true, false or a section of keys" if is_switch else "must be a section of keys"
        name = f"{'.'.join(path)}.NAME"
        message += f", such as {name}" if name in known_keys(family) else ""
    if is_gone_value(".".join(path), error["input"]):
        message = f"Gone; use {GONE_VALUES['.'.join(path)][error['input']]}"
    if is_contradiction(error):  # the message begins with the key
        key = message.split()[0].rstrip(":")
        path = (*path, *key.split("."))
        return f"{layers.origin(path)}{'.'.join(path)}{message.removeprefix(key)}"
    return f"{layers.origin(path)}{'.'.join(path)} is {shorten(error['input'])}: {message[0].lower()}{message[1:]}"


def _nearest_key(dotted: str, family: str) -> str:
    """A hint for an unknown key: its replacement, the families that have it, or the nearest known key."""
    section = dotted.upper().partition(".")[0]
    parent, _, leaf = dotted.upper().rpartition(".")
    if parent.endswith(".KWARGS"):
        return f'; write "{parent}={{{leaf.lower()}: VALUE}}"'
    if dotted in GONE_KEYS:
        return f", which is gone; {GONE_KEYS[dotted][1]}"
    replacements = other_names() | paddleclas_keys() | _REPLACEMENTS
    if replacement := next(filter(None, map(replacements.get, (dotted.upper(), section, leaf))), None):
        return f"; use {replacement}"
    if owners := [name for name in MODEL_SECTIONS if dotted in known_keys(name)]:
        own = [name.upper() for name in MODEL_SECTIONS[family].model_fields if name not in Model.model_fields]
        similar = [key for key in own if key.rstrip("S") in leaf or leaf.rstrip("S") in key]  # DIMS for EMBED_DIM
        nearest = f"; did you mean {similar[0]}?" if similar else did_you_mean(leaf, own) or "; remove it"
        return f" of MODEL.TYPE {family}{nearest} (it is a key of {', '.join(owners[:3])})"
    same_leaf = [key for key in known_keys(family) if key.rpartition(".")[2] == leaf]
    return f"; did you mean {same_leaf[0]}?" if same_leaf else did_you_mean(dotted, known_keys(family))
