"""Command line -> one frozen `Config`: defaults < BASE files < YAML < flags < `-opts`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from configs.reading.family_defaults import apply_family
from configs.reading.flags import FLAGS, entry_parser
from configs.reading.model_flag import set_model
from configs.reading.option_layers import RUN_OPTIONS, OptionLayers, find_run_options
from configs.reading.prediction import Prediction, Split, read_prediction, read_split
from configs.reading.weight_options import add_weight_options
from configs.reading.yaml_io import parse_value, shorten, write_yaml
from configs.schema import Config
from configs.schema.config import MAX_NAME_CHARS
from configs.schema.families.registry import MODEL_SECTIONS
from configs.schema.keys import known_keys, model_type
from configs.schema.model import Model
from configs.schema.section import Section
from utils.errors import UserError, did_you_mean


@dataclass(frozen=True)
class Command:
    """A parsed command line: the options of the run, the requested action, the entry script, the file of -cfg.

    selects_run: whether any YAML file, data set, or key of MODEL is given.
    family_defaults: section and key of the options whose values are the defaults of the model family.
    prediction: that of -predict. split: that of -split, of the data that -eval or -predict reads.
    """

    config: Config
    dry_run: bool
    profile: bool
    num_processes: int | None
    script: str
    recipe: Path | None
    selects_run: bool = True
    family_defaults: tuple[tuple[str, str], ...] = ()
    prediction: Prediction | None = None
    split: Split | None = None

    @property
    def name(self) -> str:
        """The command in `engine.commands` that runs it."""
        if self.dry_run or self.profile:
            return "dry_run" if self.dry_run else "profile"
        if self.prediction:
            return "predict"
        return "eval" if self.config.eval.enabled else "train"

    @property
    def run_name(self) -> str:
        """The name of the run's folder: NAME, else the stem of the -cfg file, else MODEL.NAME."""
        is_recipe = self.recipe is not None and self.recipe.name != RUN_OPTIONS
        name = self.config.name or (self.recipe.stem if is_recipe else self.config.model.name)
        return "".join(character if character.isprintable() else "_" for character in name)[:MAX_NAME_CHARS]


def parse_command_line(argv: list[str], prog: str = "main_single_gpu.py") -> Command:
    """Reads the command line and its YAML files.

    Raises:
        UserError: an unknown flag or key, a wrong type or value, contradictory options, an unreadable file.
        SystemExit: after -h.
    """
    parser = entry_parser(prog)
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        flag = unknown[0].partition("=")[0][:80]
        parser.error(f"unknown flag {flag}{did_you_mean(flag, (f'-{name}' for name in vars(arguments)))}")
    if arguments.ngpus is not None and arguments.ngpus < 1:
        raise UserError(f"-ngpus {arguments.ngpus}: must be at least 1")
    prediction, split = read_prediction(arguments), read_split(arguments)
    layers = OptionLayers()
    recipe = _recipe(arguments.cfg) if arguments.cfg else None
    weights = arguments.pretrained if arguments.eval or prediction else None
    if file := recipe or find_run_options(arguments.resume, weights):
        layers.add_recipe(file)
    elif weights and not arguments.resume:
        add_weight_options(layers, weights)
    if arguments.model:
        set_model(layers, arguments.model)
    for flag in (flag for flags in FLAGS.values() for flag in flags):
        value = getattr(arguments, flag.name)
        if value is not None:
            for key in flag.keys:
                layers.add_key(key, value, f"-{flag.name}")
    if prediction:
        layers.add_key("EVAL.ENABLED", True, "-predict")
    if arguments.amp_dtype:
        layers.add_key("AMP.ENABLED", True, "-amp_dtype")
    if arguments.epochs:
        _shorten_warmup(layers, arguments.epochs)
    for option in arguments.opts:
        key, equals, text = option.partition("=")
        if not equals:
            raise UserError(f"-opts {option[:80]}: expected KEY=VALUE, such as TRAIN.BASE_LR=1e-3")
        if not any(key in known_keys(family) for family in MODEL_SECTIONS):
            raise UserError(f"-opts: unknown key {key[:80]}{_hint(key, model_type(layers.values))}")
        layers.add_key(key, parse_value(text), "-opts")
    family_defaults = apply_family(layers, model_only=bool(recipe and arguments.model))
    config = _validate(layers)
    for section, key in family_defaults:  # these options are not the user's: a checkpoint may override them
        getattr(config, section.lower()).model_fields_set.discard(key.lower())
    if arguments.profile:
        others = {"-dry_run": arguments.dry_run, "-eval": config.eval.enabled, "-resume": config.model.resume}
        for flag in (flag for flag, given in others.items() if given):
            raise UserError(f"-profile starts a new short run and cannot be combined with {flag}; remove one of them")
    data_keys = {"DATASET", "DATA_PATH"} & set(layers.values.get("DATA", ()))
    selects_run = bool(recipe or data_keys or "MODEL" in layers.values)
    actions = arguments.dry_run, arguments.profile
    defaults = tuple(family_defaults)
    return Command(config, *actions, arguments.ngpus, prog, recipe, selects_run, defaults, prediction, split)


def _recipe(file: str) -> Path:
    """Raises UserError for PaddleViT's file without a name, after which the run could not be named."""
    path = Path(file)
    if path.name in (".yaml", ".yml"):
        others = sorted(other.name for other in path.parent.glob("?*.yaml") if other.name != path.name)
        example = f", or give another such as {path.parent / others[0]}" if others else ""
        raise UserError(f"-cfg {file}: the file has no name before {path.name}; rename it{example}")
    return path


def _shorten_warmup(layers: OptionLayers, num_epochs: int) -> None:
    """A warm-up of the recipe that is not shorter than the `-epochs` becomes a tenth of them."""
    train = layers.values.get("TRAIN")
    warmup = train.get("WARMUP_EPOCHS") if isinstance(train, dict) else None
    if isinstance(warmup, int | float) and warmup >= num_epochs:
        layers.add_key("TRAIN.WARMUP_EPOCHS", num_epochs / 10, "-epochs")


def _validate(layers: OptionLayers) -> Config:
    try:
        return Config.model_validate(layers.values)
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False)
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise UserError(_error_line(errors[0], layers) + more) from None


def _error_line(error: dict[str, Any], layers: OptionLayers) -> str:
    if error["type"] == "extra_forbidden":
        path = tuple(part for part in error["loc"] if part not in MODEL_SECTIONS)
        return f"{layers.origin(path)}unknown key {'.'.join(path)}{_hint('.'.join(path), model_type(layers.values))}"
    path = tuple(part for part in error["loc"] if isinstance(part, str) and part.isupper())  # keys, not union members
    message = error["msg"].removeprefix("Value error, ")
    for in_python, in_yaml in (("tuple", "list"), ("Tuple", "List"), ("be None", "be null")):
        message = message.replace(in_python, in_yaml)
    if error["type"] == "model_type":
        is_switch = path in (("AMP",), ("EVAL",))
        message = "must be true, false or a section of keys" if is_switch else "must be a section of keys"
    if isinstance(error["input"], dict) and error["type"] == "value_error":
        # From the validator of a section: the message begins with the key.
        key = message.split()[0].rstrip(":")
        path = (*path, *key.split("."))
        return f"{layers.origin(path)}{'.'.join(path)}{message.removeprefix(key)}"
    return f"{layers.origin(path)}{'.'.join(path)} is {shorten(error['input'])}: {message[0].lower()}{message[1:]}"


def _hint(dotted: str, family: str) -> str:
    """The families that have an unknown key, or the nearest known one."""
    if dotted.count(".") > 1 and not dotted.startswith("MODEL.") and (near := did_you_mean(dotted, known_keys(family))):
        return near
    leaf = dotted.rpartition(".")[2].upper()
    if owners := [name for name in MODEL_SECTIONS if dotted in known_keys(name)]:
        own = [name.upper() for name in MODEL_SECTIONS[family].model_fields if name not in Model.model_fields]
        similar = [key for key in own if key.rstrip("S") in leaf or leaf.rstrip("S") in key]  # DIMS for EMBED_DIM
        nearest = f"; did you mean {similar[0]}?" if similar else did_you_mean(leaf, own) or "; remove it"
        return f" of MODEL.TYPE {family}{nearest} (it is a key of {', '.join(owners[:3])})"
    same_leaf = [key for key in known_keys(family) if key.rpartition(".")[2] == leaf]
    return f"; did you mean {same_leaf[0]}?" if same_leaf else did_you_mean(dotted, known_keys(family))


def to_yaml(config: Config) -> str:
    """The resolved options as the text of a YAML file, from which `parse_command_line` makes an equal `Config`."""
    return write_yaml(_to_dict(config))


def _to_dict(section: Section) -> dict[str, Any]:
    values = {}
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            values[field.alias] = _to_dict(value)
        else:
            values[field.alias] = _without_tuples(value)
    return values


def _without_tuples(value: Any) -> Any:
    return [_without_tuples(part) for part in value] if isinstance(value, tuple) else value
