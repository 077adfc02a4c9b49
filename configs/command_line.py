"""Command line -> one frozen `Config`: defaults < BASE files < YAML < flags < `-opts`."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from configs.family_defaults import apply_family
from configs.keys import known_keys, model_type
from configs.layers import RUN_OPTIONS, OptionLayers, find_run_options
from configs.model_flag import set_model
from configs.schema import Config
from configs.schema.config import MAX_NAME_CHARS
from configs.schema.families.registry import MODEL_SECTIONS
from configs.schema.model import Model
from configs.section import Section
from configs.yaml_io import parse_value, shorten, write_yaml
from utils.errors import UserError, did_you_mean

_EXAMPLES = """examples:
  train      python main_single_gpu.py -cfg=configs/vit_base_patch16_224.yaml -data_path=/dataset/imagenet -amp
  two GPUs   CUDA_VISIBLE_DEVICES=0,1 python main_multi_gpu.py -cfg=... -data_path=... -amp
  evaluate   python main_single_gpu.py -cfg=... -data_path=... -eval -pretrained=vit.pdparams -amp
  resume     python main_single_gpu.py -resume=output/vit_base_patch16_224-20260101-12-00
  any key    python main_single_gpu.py -cfg=... -opts TRAIN.BASE_LR=1e-3 TRAIN.NUM_EPOCHS=100

All keys with units and defaults: configs/schema/.
"""


@dataclass(frozen=True)
class Command:
    """A parsed command line: the options of the run, the requested action, the entry script, the file of -cfg.

    selects_run: whether any YAML file, data set, or key of MODEL is given.
    family_defaults: section and key of the options whose values are the defaults of the model family.
    """

    config: Config
    dry_run: bool
    profile: bool
    num_processes: int | None
    script: str
    recipe: Path | None
    selects_run: bool = True
    family_defaults: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """The command in `engine.commands` that runs it."""
        if self.dry_run or self.profile:
            return "dry_run" if self.dry_run else "profile"
        return "eval" if self.config.eval else "train"

    @property
    def run_name(self) -> str:
        """The name of the run's folder: NAME, else the stem of the -cfg file, else MODEL.NAME."""
        is_recipe = self.recipe is not None and self.recipe.name != RUN_OPTIONS
        name = self.config.name or (self.recipe.stem if is_recipe else self.config.model.name)
        return "".join(character if character.isprintable() else "_" for character in name)[:MAX_NAME_CHARS]


@dataclass(frozen=True)
class Flag:
    """A flag that sets YAML keys."""

    name: str
    keys: tuple[str, ...]
    type: type
    help: str
    value: Any = True  # of a flag without an argument


_FLAGS = {
    "run": (
        Flag("amp", ("AMP.ENABLED",), bool, "mixed precision in training and evaluation"),
        Flag("amp_dtype", ("AMP.DTYPE",), str, "mixed precision with dtype float16 or bfloat16"),
        Flag("compile", ("TRAIN.COMPILE",), bool, "compile the model with torch.compile", value="default"),
        Flag("eval", ("EVAL",), bool, "evaluate only; needs -pretrained or -resume"),
        Flag("accum_iter", ("TRAIN.ACCUM_ITER",), int, "gradient accumulation steps"),
        Flag(
            "epochs",
            ("TRAIN.NUM_EPOCHS",),
            int,
            "number of epochs; a warm-up of as many or more becomes a tenth",
        ),
        Flag("lr", ("TRAIN.BASE_LR",), float, "peak learning rate"),
        Flag("last_epoch", ("TRAIN.LAST_EPOCH",), int, "number of finished epochs"),
    ),
    "data": (
        Flag("dataset", ("DATA.DATASET",), str, "imagenet2012, folder, digits, ...: see datasets/registry.py"),
        Flag("data_path", ("DATA.DATA_PATH",), str, "folder of the data set"),
        Flag("batch_size", ("DATA.BATCH_SIZE", "DATA.BATCH_SIZE_EVAL"), int, "images per device and forward pass"),
        Flag("batch_size_eval", ("DATA.BATCH_SIZE_EVAL",), int, "the same for evaluation (default: -batch_size)"),
        Flag("image_size", ("DATA.IMAGE_SIZE",), int, "height and width of the input, pixels"),
        Flag("num_workers", ("DATA.NUM_WORKERS",), int, "worker processes per rank"),
    ),
    "weights and output": (
        Flag("pretrained", ("MODEL.PRETRAINED",), str, "initial weights: .safetensors, .pth, .npz, .pdparams"),
        Flag("teacher_model_path", ("TRAIN.TEACHER_WEIGHTS",), str, "weights of the teacher of a distillation"),
        Flag("resume", ("MODEL.RESUME",), str, "resume a checkpoint: a file, a run folder, or auto (the newest)"),
        Flag("output", ("SAVE",), str, "output folder; each run creates a folder in it"),
        Flag("name", ("NAME",), str, "name of the run's folder"),
    ),
}


class Parser(argparse.ArgumentParser):
    """Raises errors as `UserError` and accepts no abbreviated flags.

    `allow_abbrev=False` applies to flags with two dashes only, so that `-e` would stand for `-eval`. The overridden
    method is a private one of argparse (checked with Python 3.11 to 3.14).
    """

    def _get_option_tuples(self, option_string: str) -> list:
        return []

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (-h lists the flags)")


def entry_parser(prog: str) -> Parser:
    parser = Parser(
        prog=prog,
        usage="%(prog)s -cfg FILE [flags]",
        description="Trains or evaluates a Vision Transformer. Order: defaults < BASE files < YAML < flags < -opts.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )

    def add(group: Any, name: str, **kwargs: Any) -> None:
        group.add_argument(f"-{name}", f"--{name}", **kwargs)

    add(parser, "cfg", metavar="FILE", help="YAML file of the run (default with -resume=RUN: the options of that run)")
    add(parser, "model", metavar="X", help="a recipe in configs/, whose MODEL section is used, or a model of timm's")
    for title, flags in _FLAGS.items():
        group = parser.add_argument_group(title)
        for flag in flags:
            if flag.type is bool:
                add(group, flag.name, action="store_const", const=flag.value, default=None, help=flag.help)
            else:
                metavar = {int: "N", float: "X", str: "X"}[flag.type]
                add(group, flag.name, type=flag.type, metavar=metavar, help=flag.help)
    group = parser.add_argument_group("other")
    add(group, "opts", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="any YAML key")
    add(group, "ngpus", type=int, metavar="N", help="processes that main_multi_gpu.py starts (default: visible GPUs)")
    add(group, "dry_run", action="store_true", help="check the options, data and weights, print sizes, and exit")
    add(group, "profile", action="store_true", help="train a few steps and report how long each part takes")
    add(group, "debug", action="store_true", help="show the traceback of an error")
    return parser


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
    layers = OptionLayers()
    recipe = _recipe(arguments.cfg) if arguments.cfg else None
    if file := recipe or find_run_options(arguments.resume, arguments.pretrained if arguments.eval else None):
        layers.add_recipe(file)
    if arguments.model:
        set_model(layers, arguments.model)
    for flag in (flag for flags in _FLAGS.values() for flag in flags):
        value = getattr(arguments, flag.name)
        if value is not None:
            for key in flag.keys:
                layers.add_key(key, value, f"-{flag.name}")
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
        layers.add_key(key, parse_value(text), f"-opts {key}")
    family_defaults = apply_family(layers, model_only=bool(recipe and arguments.model))
    config = _validate(layers)
    for section, key in family_defaults:  # these options are not the user's: a checkpoint may override them
        getattr(config, section.lower()).model_fields_set.discard(key.lower())
    if arguments.profile:
        others = {"-dry_run": arguments.dry_run, "-eval": config.eval, "-resume": config.model.resume}
        for flag in (flag for flag, given in others.items() if given):
            raise UserError(f"-profile starts a new short run and cannot be combined with {flag}; remove one of them")
    data_keys = {"DATASET", "DATA_PATH"} & set(layers.values.get("DATA", ()))
    selects_run = bool(recipe or data_keys or "MODEL" in layers.values)
    actions = arguments.dry_run, arguments.profile
    return Command(config, *actions, arguments.ngpus, prog, recipe, selects_run, tuple(family_defaults))


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
        message = "must be true, false or a section of keys" if path == ("AMP",) else "must be a section of keys"
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
