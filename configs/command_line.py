"""From the command line to one frozen `Config`: defaults < BASE files < YAML < flags < `-opts`."""

import argparse
import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from configs.schema import Config, Section
from configs.yaml_io import KeyPath, parse_value, read_yaml, shorten, write_yaml
from utils.errors import UserError, did_you_mean

_EXAMPLES = """examples:
  train      python main_single_gpu.py -cfg=configs/vit_base_patch16_224.yaml -data_path=/dataset/imagenet -amp
  two GPUs   CUDA_VISIBLE_DEVICES=0,1 python main_multi_gpu.py -cfg=... -data_path=... -amp
  evaluate   python main_single_gpu.py -cfg=... -data_path=... -eval -pretrained=vit.pdparams -amp
  go on      python main_single_gpu.py -cfg=... -resume=output/train-20260101-12-00/last.pth
  any key    python main_single_gpu.py -cfg=... -opts TRAIN.BASE_LR=1e-3 TRAIN.NUM_EPOCHS=100

Every key with its unit and default: configs/schema.py.
"""


@dataclass(frozen=True)
class Command:
    """What one call of an entry script asks for: the run's options, and what to do with them."""

    config: Config
    dry_run: bool
    profile: bool
    num_processes: int | None


@dataclass(frozen=True)
class Flag:
    """A flag that stands for YAML keys."""

    name: str
    keys: tuple[str, ...]
    type: type
    help: str
    value: Any = True  # where it takes none on the command line


_FLAGS = {
    "what to run": (
        Flag("amp", ("AMP.ENABLED",), bool, "mixed precision, in training and evaluation"),
        Flag("amp_dtype", ("AMP.DTYPE",), str, "mixed precision in float16 or bfloat16"),
        Flag("compile", ("TRAIN.COMPILE",), bool, "compile the passes of training", value="default"),
        Flag("eval", ("EVAL",), bool, "evaluate only; needs -pretrained or -resume"),
        Flag("accum_iter", ("TRAIN.ACCUM_ITER",), int, "forward passes per optimizer step"),
        Flag("last_epoch", ("TRAIN.LAST_EPOCH",), int, "epochs already done"),
    ),
    "data": (
        Flag("dataset", ("DATA.DATASET",), str, "imagenet2012, folder, digits, ...: see datasets/registry.py"),
        Flag("data_path", ("DATA.DATA_PATH",), str, "its folder"),
        Flag("batch_size", ("DATA.BATCH_SIZE", "DATA.BATCH_SIZE_EVAL"), int, "images per device and forward pass"),
        Flag("batch_size_eval", ("DATA.BATCH_SIZE_EVAL",), int, "the same in evaluation (default: -batch_size)"),
        Flag("image_size", ("DATA.IMAGE_SIZE",), int, "pixels on a side"),
        Flag("num_workers", ("DATA.NUM_WORKERS",), int, "loading processes per rank"),
    ),
    "weights and output": (
        Flag("pretrained", ("MODEL.PRETRAINED",), str, "weights: .safetensors, .pth, .npz, .pdparams"),
        Flag("resume", ("MODEL.RESUME",), str, "checkpoint, its folder, or auto (the newest): go on exactly"),
        Flag("output", ("SAVE",), str, "folder in which the run makes a folder of its own"),
    ),
}


class Parser(argparse.ArgumentParser):
    """One-line errors, and no abbreviations: argparse takes `-e` for `-eval` whatever `allow_abbrev` says."""

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

    add(parser, "cfg", metavar="FILE", help="the recipe, a YAML file")
    for title, flags in _FLAGS.items():
        group = parser.add_argument_group(title)
        for flag in flags:
            if flag.type is bool:
                add(group, flag.name, action="store_const", const=flag.value, default=None, help=flag.help)
            else:
                metavar = {int: "N", str: "X"}[flag.type]
                add(group, flag.name, type=flag.type, metavar=metavar, help=flag.help)
    group = parser.add_argument_group("the rest")
    add(group, "opts", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="any YAML key")
    add(group, "ngpus", type=int, metavar="N", help="processes that main_multi_gpu.py starts (default: visible GPUs)")
    add(group, "dry_run", action="store_true", help="check everything, print sizes, train nothing")
    add(group, "profile", action="store_true", help="train a few steps, say where their time goes and what would help")
    add(group, "debug", action="store_true", help="show the traceback of an error")
    return parser


_MOST_FILES = 32  # that name each other twice over could be read 2 ** 32 times


class _Layers:
    """Options by their YAML keys, laid over one another, each remembering where it came from."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[KeyPath, str] = {}
        self.files = 0

    def lay(self, values: dict[str, Any], origins: dict[KeyPath, str]) -> None:
        if isinstance(values.get("AMP"), bool):
            values = values | {"AMP": {"ENABLED": values["AMP"]}}
        _merge(self.values, values)
        self.origins |= origins

    def lay_recipe(self, path: Path) -> None:
        """A YAML file over the files that its BASE names, and theirs."""
        roots = os.path.realpath(path.parent), os.path.realpath(".")
        self._lay_file(path, roots, chain=(), named_in="")

    def _lay_file(self, path: Path, roots: tuple[str, ...], chain: tuple[str, ...], named_in: str) -> None:
        values, lines = read_yaml(path, named_in)
        self.files += 1
        chain = (*chain, os.path.realpath(path))
        bases = values.pop("BASE", None) or []
        at_base = f"{path}:{lines.get(('BASE',))}: BASE"
        if not isinstance(bases, list) or not all(isinstance(base, str | None) for base in bases):
            raise UserError(f"{at_base} must be a list of files, relative to this one")
        for base in filter(None, bases):
            if not base.isprintable():
                raise UserError(f"{at_base} {shorten(base)} is no name of a file; correct it")
            where = os.path.realpath(path.parent / base)
            if not any(Path(where).is_relative_to(root) for root in roots):
                raise UserError(
                    f"{at_base} {shorten(base)} leads out of {roots[0]}; put that file beside the recipe, or start "
                    "in a folder that holds both"
                )
            if where in chain:
                raise UserError(f"{at_base} runs in a circle: {' -> '.join(Path(p).name for p in (*chain, where))}")
            if self.files >= _MOST_FILES:
                raise UserError(f"{at_base} leads to more than {_MOST_FILES} files; write the options into fewer")
            self._lay_file(path.parent / base, roots, chain, f"{at_base}: ")
        self.lay(values, {key: f"{path}:{line}" for key, line in lines.items()})

    def lay_key(self, dotted: str, value: Any, origin: str) -> None:
        path = tuple(dotted.split("."))
        for key in reversed(path):
            value = {key: value}
        self.lay(value, {path: origin})

    def origin(self, path: KeyPath) -> str:
        """Where the key, or the section around it, was given; '' where it is a default."""
        while path and path not in self.origins:
            path = path[:-1]
        return f"{self.origins[path]}: " if path else ""


def _merge(below: dict[str, Any], above: dict[str, Any]) -> None:
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(below.get(key), dict):
            _merge(below[key], value)
        else:
            below[key] = value


def parse_command_line(argv: list[str], prog: str = "main_single_gpu.py") -> Command:
    """Reads the command line and the files it names.

    Raises:
        UserError: an unknown flag or key, a wrong type or value, a contradiction, an unreadable file.
        SystemExit: after printing the help.
    """
    parser = entry_parser(prog)
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        flag = unknown[0].partition("=")[0][:80]
        parser.error(f"unknown flag {flag}{did_you_mean(flag, (f'-{name}' for name in vars(arguments)))}")
    if arguments.ngpus is not None and arguments.ngpus < 1:
        raise UserError(f"-ngpus {arguments.ngpus}: must be at least 1")
    layers = _Layers()
    if arguments.cfg:
        layers.lay_recipe(Path(arguments.cfg))
    for flag in (flag for flags in _FLAGS.values() for flag in flags):
        value = getattr(arguments, flag.name)
        if value is not None:
            for key in flag.keys:
                layers.lay_key(key, value, f"-{flag.name}")
    if arguments.amp_dtype:
        layers.lay_key("AMP.ENABLED", True, "-amp_dtype")
    for option in arguments.opts:
        key, equals, text = option.partition("=")
        if not equals:
            raise UserError(f"-opts {option[:80]}: expected KEY=VALUE, such as TRAIN.BASE_LR=1e-3")
        if key not in _known_keys():
            raise UserError(f"-opts: unknown key {key[:80]}{_nearest_key(key)}")
        layers.lay_key(key, parse_value(text), f"-opts {key}")
    config = _validate(layers)
    if arguments.profile:
        others = {"-dry_run": arguments.dry_run, "-eval": config.eval, "-resume": config.model.resume}
        for flag in (flag for flag, given in others.items() if given):
            raise UserError(f"-profile trains a few steps of a run of its own; leave {flag} out, or -profile")
    return Command(config, arguments.dry_run, arguments.profile, arguments.ngpus)


def _validate(layers: _Layers) -> Config:
    try:
        return Config.model_validate(layers.values)
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False)
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise UserError(_one_line(errors[0], layers) + more) from None


def _one_line(error: dict[str, Any], layers: _Layers) -> str:
    if error["type"] == "extra_forbidden":
        path = error["loc"]
        return f"{layers.origin(path)}unknown key {'.'.join(path)}{_nearest_key('.'.join(path))}"
    path = tuple(part for part in error["loc"] if isinstance(part, str) and part.isupper())  # keys, not union members
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "model_type":
        message = "must be true, false or a section of keys" if path == ("AMP",) else "must be a section of keys"
    if isinstance(error["input"], dict) and error["type"] == "value_error":
        # Said by a section of its keys: the message opens with the key.
        path = (*path, *message.split()[0].rstrip(":").split("."))
        return f"{layers.origin(path)}{'.'.join(path)}{message[len(message.split()[0].rstrip(':')) :]}"
    return f"{layers.origin(path)}{'.'.join(path)} is {shorten(error['input'])}: {message[0].lower()}{message[1:]}"


def _nearest_key(dotted: str) -> str:
    leaf = dotted.rpartition(".")[2]
    same_leaf = [key for key in _known_keys() if key.rpartition(".")[2] == leaf.upper()]
    return f"; did you mean {same_leaf[0]}?" if same_leaf else did_you_mean(dotted, _known_keys())


@functools.cache
def _known_keys() -> tuple[str, ...]:
    return tuple(_keys(Config, ""))


def _keys(section: type[Section], prefix: str) -> Iterator[str]:
    for field in section.model_fields.values():
        nested = isinstance(field.annotation, type) and issubclass(field.annotation, Section)
        yield prefix + field.alias
        if nested:
            yield from _keys(field.annotation, f"{prefix}{field.alias}.")


def to_yaml(config: Config) -> str:
    """The resolved options as a YAML file that gives the same `Config` again."""
    return write_yaml(_to_dict(config))


def _to_dict(section: Section) -> dict[str, Any]:
    values = {}
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            values[field.alias] = _to_dict(value)
        elif not field.json_schema_extra:
            values[field.alias] = list(value) if isinstance(value, tuple) else value
    return values


_STARTING_POINT = ("MODEL.RESUME", "MODEL.PRETRAINED")


def differences(then: str, now: str) -> list[str]:
    """'TRAIN.BASE_LR: 0.001, now 0.01' for each key that differs between two texts of `to_yaml`.

    What a run starts from is no difference.
    """
    before, after = (dict(_flat(parse_value(text), "")) for text in (then, now))
    return [
        f"{key}: {before.get(key, 'unknown')}, now {after.get(key, 'unknown')}"
        for key in before | after
        if key not in _STARTING_POINT and before.get(key) != after.get(key)
    ]


def _flat(values: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
