"""The flags of the entry scripts, the parser of all command lines, and the values of -predict and its flags."""

import argparse
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

from configs.programs import Program, describe_flags, program_of, programs, split_words
from configs.schema.config import known_keys
from configs.yaml_io import parse_value
from utils.errors import UserError, did_you_mean
from utils.files import expand_home

Split = Literal["train", "val", "test", "all"]

_EXAMPLES = """examples (digits: a minute on a CPU; images: one folder per class):
  digits     python {prog} -cfg=configs/vit_digits.yaml -amp
  images     python {prog} -data_path=FOLDER
  ImageNet   python {prog} -cfg=configs/vit_base_patch16_224.yaml -data_path=/dataset/imagenet -amp
  two GPUs   CUDA_VISIBLE_DEVICES=0,1 python main_multi_gpu.py -cfg=... -data_path=... -amp
  evaluate   python {prog} -cfg=... -data_path=... -eval -pretrained=vit.pdparams -amp
  predict    python {prog} -predict photos -resume=output/vit_digits-20260101-12-00
  features   python {prog} -embed photos -resume=output/vit_digits-20260101-12-00
  resume     python {prog} -resume=output/vit_digits-20260101-12-00
  any key    python {prog} -cfg=... -opts TRAIN.BASE_LR=1e-3 TRAIN.NUM_EPOCHS=100

All keys with types, units, defaults and ranges: -h KEY, docs/options.md.
"""


@dataclass(frozen=True)
class Flag:
    """A flag. options: of argparse's `add_argument`. key: the YAML key that it sets, if there is one."""

    name: str
    options: Mapping[str, Any]
    help: str
    key: str = ""


def _switch(text: str) -> bool:
    if text.lower() not in _SWITCH:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not yes or no")
    return _SWITCH[text.lower()]


def _compilation(text: str) -> str:
    return "default" if _switch(text) else "none"


def positive(text: str) -> int:
    """argparse type: a positive integer."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive integer")
    return int(text)


def probability(text: str) -> float:
    """argparse type: a number from 0 to 1. Raises ValueError: no number."""
    if not 0 <= float(text) <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not from 0 to 1")
    return float(text)


_SWITCH = dict.fromkeys(("yes", "true", "on", "1"), True) | dict.fromkeys(("no", "false", "off", "0"), False)
_INTEGER = {"type": int, "metavar": "N"}
_YAML = {"type": parse_value, "metavar": "N"}
_NUMBER = {"type": float, "metavar": "X"}
_TEXT = {"type": str, "metavar": "X"}
_COUNT = {"type": positive, "metavar": "N"}
_PATH = {"nargs": "?", "const": True, "metavar": "PATH"}
_ON = {"action": "store_true"}
_YES_OR_NO = {"type": _switch, "nargs": "?", "const": "yes", "metavar": "yes|no"}
FLAGS = {
    "run": (
        Flag("amp", _YES_OR_NO, "mixed precision in training and evaluation", "AMP.ENABLED"),
        Flag("amp_dtype", _TEXT, "mixed precision with dtype float16 or bfloat16", "AMP.DTYPE"),
        Flag("compile", _YES_OR_NO | {"type": _compilation}, "compile the model with torch.compile", "TRAIN.COMPILE"),
        Flag("eval", _YES_OR_NO, "evaluate only; needs -pretrained or -resume", "EVAL.ENABLED"),
        Flag("save_logits", _YES_OR_NO, "-eval: write the logits of each image to logits.npz", "EVAL.SAVE_LOGITS"),
        Flag("accum_iter", _INTEGER, "gradient accumulation steps", "TRAIN.ACCUM_ITER"),
        Flag("epochs", _INTEGER, "number of epochs; a warm-up of as many or more becomes a tenth", "TRAIN.NUM_EPOCHS"),
        Flag("minutes", _NUMBER, "time of the run; the number of epochs follows from it", "TRAIN.MINUTES"),
        Flag("lr", _NUMBER, "peak learning rate, before scaling by the batch size", "TRAIN.BASE_LR"),
        Flag("last_epoch", _INTEGER, "number of finished epochs", "TRAIN.LAST_EPOCH"),
    ),
    "data": (
        Flag("dataset", _TEXT, "imagenet2012, folder, csv, tar, digits, ...: docs/data.md", "DATA.DATASET"),
        Flag("data_path", _TEXT, "folder of the data set, or URL of tar shards", "DATA.DATA_PATH"),
        Flag("batch_size", _YAML, "images per device, or auto", "DATA.BATCH_SIZE"),
        Flag("memory_gb", _NUMBER, "limit of -batch_size=auto (default: the free GPU memory)", "DATA.MEMORY_GB"),
        Flag("batch_size_eval", _INTEGER, "the same for evaluation (default: -batch_size)", "DATA.BATCH_SIZE_EVAL"),
        Flag("held_out", _TEXT, "a new training holds out what this run did, and a part of new images"),
        Flag("image_size", _YAML, "pixels of the input: a number, or HEIGHT,WIDTH", "DATA.IMAGE_SIZE"),
        Flag("num_workers", _INTEGER, "worker processes per rank", "DATA.NUM_WORKERS"),
    ),
    "weights and output": (
        Flag(
            "pretrained",
            _TEXT | {"nargs": "?", "const": "timm"},
            "initial weights: a file, a folder, hf-hub:ORG/NAME, or timm",
            "MODEL.PRETRAINED",
        ),
        Flag("teacher_model_path", _TEXT, "weights of the teacher of a distillation", "TRAIN.TEACHER_WEIGHTS"),
        Flag("resume", _TEXT, "a checkpoint, the folder of a run, or auto", "MODEL.RESUME"),
        Flag("output", _TEXT, "output folder; each run creates a folder in it", "SAVE"),
        Flag("name", _TEXT, "the run's folder is X-DATE-TIME in -output", "NAME"),
    ),
    "prediction": (
        Flag(
            "predict",
            _PATH,
            "label an image, a folder, a list (.txt, .csv), or without PATH the data; needs -pretrained or -resume",
        ),
        Flag("embed", _PATH, "write the features of the images, as -predict names them, to embeddings.npy"),
        Flag("top_k", _COUNT, "-predict: number of ranked classes per image (default: 5)"),
        Flag("split", {"choices": get_args(Split)}, "-eval, -predict and -embed without PATH: the split of the data"),
        Flag("json", _ON | {"default": None}, "-predict: write predictions.json besides the CSV file"),
        Flag(
            "explain",
            _ON | {"default": None},
            "-predict: write a heat map of each image: the pixels that decide its class",
        ),
        Flag(
            "format",
            {"choices": ("csv", "wide", "excel")},
            "-predict: wide: a column of probabilities for each class; excel: also predictions.xlsx (default: csv)",
        ),
        Flag(
            "threshold",
            {"type": probability, "metavar": "X"},
            '-predict: images whose highest probability is below X are labelled "unknown"',
        ),
    ),
    "other": (
        Flag(
            "plugin",
            {"action": "append", "metavar": "FILE"},
            "run the code of a Python file with own models, losses, ...: docs/python.md; may be repeated",
        ),
        Flag("opts", {"nargs": "+", "action": "extend", "metavar": "KEY=VALUE"}, "any YAML key"),
        Flag("ngpus", _COUNT, "processes that main_multi_gpu.py starts (default: visible GPUs)"),
        Flag("device", {"choices": ("cuda", "cpu")}, "default: the visible GPUs, or the CPU without one"),
        Flag("dry_run", _ON, "check the options, data and weights, print sizes, and exit"),
        Flag("profile", _ON, "train a few steps and report how long each part takes"),
        Flag("debug", _ON, "show the traceback of an error, and all notes of a dry run"),
    ),
}
KEY_FLAGS = [flag for group in FLAGS.values() for flag in group if flag.key]
# Of timm, torchvision, Colossal-AI, PyTorch's examples, PaddleClas, PaddleViT; their words with dashes have `_` here.
_ALIASES = {
    "accum_iter": ("--grad-accum-steps",),
    "amp": ("--use-amp", "--use_amp"),
    "batch_size": ("-b",),
    "cfg": ("--config", "-c"),
    "data_path": ("--data-dir",),
    "image_size": ("--img-size",),
    "model": ("-a", "--arch"),
    "num_workers": ("-j", "--workers"),
    "opts": ("-o",),
    "pretrained": ("--initial-checkpoint",),
    "teacher_model_path": ("-teacher_model", "--teacher_model"),
}


class Parser(argparse.ArgumentParser):
    """Raises errors as `UserError` and accepts no abbreviated flags.

    `allow_abbrev=False` applies to flags with two dashes only, so that `-e` would stand for `-eval`. The overridden
    method is a private one of argparse (checked with Python 3.11 to 3.14).
    """

    def parse_known_args(self, args: Any, namespace: Any = None) -> tuple[argparse.Namespace, list[str]]:  # type: ignore[override]
        return super().parse_known_args(expand_words(args), namespace)

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        return []

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (-h lists the flags)")


def expand_words(words: Iterable[str]) -> list[str]:
    """The words of a command line, with ~ expanded where a path begins: -data_path=~/images."""
    parts = (word.partition("=") if word.startswith("-") else ("", "", word) for word in words)
    return [f"{flag}{equals}{expand_home(value)}" for flag, equals, value in parts]


def _words_of(name: str) -> list[str]:
    """The words of a flag: with one dash, with two, and its names in other programs."""
    words = [f"-{name}", f"--{name}", *_ALIASES.get(name, ())]
    if "_" in name:
        words.append(f"--{name.replace('_', '-')}")
    return words


def own_flags() -> dict[str, str]:
    """The names of all flags, by their words."""
    names = ["help", "cfg", "model", "local_rank", *(flag.name for group in FLAGS.values() for flag in group)]
    return {word: name for name in names for word in _words_of(name)} | {"-h": "help"}


def add_flag(parser: Any, name: str, **options: Any) -> None:
    """Adds a flag, with one dash or two, to a parser or an argument group; -h hides its names in other programs."""
    first, second, *aliases = _words_of(name)
    parser.add_argument(first, second, **options)
    if aliases and not options.get("required"):
        parser.add_argument(*aliases, dest=name, **options | {"help": argparse.SUPPRESS})


def entry_parser(prog: str) -> Parser:
    parser = Parser(
        prog=prog,
        usage="%(prog)s -data_path FOLDER [-cfg FILE] [flags]",
        description="Trains or evaluates a Vision Transformer. Order: defaults < BASE files < YAML < flags < -opts.",
        epilog=_EXAMPLES.format(prog=prog),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )

    key_help = "show this help, or a YAML key or section: -h TRAIN, -h TRAIN.BASE_LR"
    parser.add_argument("-h", "--help", "-help", nargs="?", const="", metavar="KEY", help=key_help)
    cfg_help = "YAML file of the run (default: with -resume=RUN, the options of that run; own images: -h RULES)"
    add_flag(parser, "cfg", action="append", metavar="FILE", help=cfg_help)
    model_help = (
        "a recipe (its architecture; beside -cfg without drop rates), timm's name, hf-hub:ORG/NAME, local-dir:FOLDER"
    )
    add_flag(parser, "model", metavar="X", help=model_help)
    for title, flags in FLAGS.items():
        group = parser.add_argument_group(title)
        for flag in flags:
            add_flag(group, flag.name, help=flag.help, **flag.options)
    parser.set_defaults(plugin=[], opts=[])  # lists of this command line alone
    add_flag(parser, "local_rank", type=int, help=argparse.SUPPRESS)  # from python -m torch.distributed.launch
    return parser


def requested_device(argv: list[str]) -> str | None:
    """The value of -device, unchecked: a rank needs its device before all ranks together report an error once."""
    parser = Parser(add_help=False)
    add_flag(parser, "device", nargs="?")
    device: str | None = parser.parse_known_args(argv)[0].device
    return device


def print_first_commands(prog: str) -> None:
    """The answer to a command line without a recipe, data or a model: the usage and examples."""
    missing = "-data_path, -dataset and -cfg are missing; -h lists the flags."
    print(f"{entry_parser(prog).format_usage()}\n{missing}\n\n{_EXAMPLES.format(prog=prog)}", end="", file=sys.stderr)


def parse_flags(words: list[str], parser: Parser) -> argparse.Namespace:
    """The checked flags; unchecked ones if one of them is -h. Raises UserError for a flag that is unknown or wrong."""
    try:
        arguments, unknown = parser.parse_known_args(words)
    except UserError:
        given = split_words(words)
        is_timms = ["validation"]  # its --split has another name
        _refuse_flags_of_others(
            words, [word for word, values in given if word not in own_flags() or values == is_timms]
        )
        raise
    if arguments.help is not None:
        return arguments
    *arguments.replaced, arguments.cfg = arguments.cfg or [None]
    if (arguments.cfg or "").endswith(".py"):
        preset = programs()["colossalai"].flags["config"].get(Path(arguments.cfg).name, "-opts AMP.PRESET=torch")
        raise UserError(f"-cfg {arguments.cfg}: is Python, not YAML; for its precision add {preset} in its place")
    if not unknown:
        return arguments
    names = [word for word, _ in split_words(unknown)]
    _refuse_flags_of_others(words, names)
    hint = did_you_mean(names[0], (f"-{name}" for name in vars(arguments)), 0.75)
    if os.path.isdir(names[0]):
        hint = f"; a folder of images is -data_path={shlex.quote(names[0])}"
    if arguments.predict and os.path.exists(names[0]):
        hint = "; -predict takes one image, one folder, or one list of paths"
    shown = ", ".join(name[:80] for name in names)[:200]
    raise UserError(f"unknown: {shown}{hint}; -h lists the flags, docs/flags.md has flags of other programs")


def _refuse_flags_of_others(words: list[str], names: list[str]) -> None:
    """Raises UserError for flags that another program has. names: of those that this program does not have."""
    given = [*split_words(words)]
    own = own_flags()
    program = program_of(given, names)
    described = describe_flags(program, given, own) if program else ""
    if described:
        raise UserError(described)


def keys_of_program(program: Program) -> Iterator[tuple[str, str, str]]:
    """Of each flag of a program with a key here its name, the first key, and the rest of its row, {} for the value."""
    keys = {f"-{flag.name}": flag.key for flag in KEY_FLAGS}
    for name, row in program.flags.items():
        first = next(iter(row.values())) if isinstance(row, dict) else row
        option, _, rest = first.removeprefix("-opts ").lstrip("'").partition("=")
        key = keys.get(option, option)
        if key.isupper():
            yield name, key, rest


@cache
def other_names() -> dict[str, str]:
    """Of a flag of another program, in capitals: the key here of its first option; the first program wins."""
    found: dict[str, str] = {}
    for program in programs().values():
        for name, key, rest in keys_of_program(program):
            if "(similar" not in rest:
                found.setdefault(name.upper().replace("-", "_"), key)
    sections = {key.partition(".")[0] for key in known_keys("vit")}
    return {name: key for name, key in found.items() if name not in sections and len(name) > 1}


@dataclass(frozen=True)
class Prediction:
    """The images to label, and the files of the result.

    path: an image, a folder of images, or a list of images; None: the data of DATA.DATASET.
    top_k: number of ranked classes per image; None: all classes, as columns.
    folder: of -output, for the predictions; None: a new folder in SAVE. json: write JSON, too. excel: of -format.
    threshold: the lowest probability of a label; images without one are labelled "unknown". None: no labels.
    explain: write a heat map of each image.
    embeds: write features in place of labels (-embed).
    """

    path: str | None
    top_k: int | None
    folder: Path | None
    json: bool
    excel: bool = False
    threshold: float | None = None
    explain: bool = False
    embeds: bool = False


_COMMANDS_OF = {name: ["predict"] for name in ("top_k", "json", "format", "threshold", "explain")}
_COMMANDS_OF |= {"split": ["eval", "predict", "embed"], "save_logits": ["eval"]}


def _refuse_flags_of_commands(arguments: argparse.Namespace) -> None:
    """Raises UserError: a flag is given without the command that it belongs to, or beside one that does not use it."""
    given = vars(arguments)
    if given["held_out"] and any(map(given.get, _COMMANDS_OF["split"])):
        raise UserError("-held_out is of a training: other commands take the images of the run; remove it")
    for name, commands in _COMMANDS_OF.items():
        if given[name] is not None and not any(map(given.get, commands)):
            raise UserError(f"-{name} is a flag of -{' and -'.join(commands)}; add the command, or remove it")


def _refuse_flags_beside(command: str, arguments: argparse.Namespace) -> None:
    """Raises UserError: another command, or another place of the images."""
    given = vars(arguments)
    if given[command] == "":
        raise UserError(f"-{command}: the path is empty; give an image, a folder or a list, or remove the '='")
    others = {"predict", "eval", "profile"} - {command}
    path = ""
    if given[command] is not True:
        others |= {"split", "dataset", "data_path"}
        path = f" {given[command]}"
    for name in sorted(others):
        if given[name] not in (None, False):
            raise UserError(f"-{command}{path} and -{name} exclude each other; remove one of them")


def read_prediction(arguments: argparse.Namespace) -> Prediction | None:
    """The prediction that the flags ask for; None without -predict and -embed. Raises UserError for a wrong flag."""
    _refuse_flags_of_commands(arguments)
    command = "predict" if arguments.embed is None else "embed"
    value = getattr(arguments, command)
    if value is None:
        return None
    _refuse_flags_beside(command, arguments)
    top_k = arguments.top_k or 5
    if arguments.format == "wide":
        if arguments.top_k:
            raise UserError("-format wide has a column for each class; remove -top_k")
        top_k = None
    return Prediction(
        path=None if value is True else value,
        top_k=top_k,
        folder=Path(arguments.output) if arguments.output else None,
        json=bool(arguments.json),
        excel=arguments.format == "excel",
        threshold=arguments.threshold,
        explain=bool(arguments.explain),
        embeds=command == "embed",
    )
