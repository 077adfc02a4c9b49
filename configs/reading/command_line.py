"""Command line -> one frozen `Config`: defaults < BASE files < YAML < flags < `-opts`."""

import argparse
import itertools
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from configs.data_sets import properties_of
from configs.parts import add_plugins, open_plugin
from configs.reading.checks import (
    AMP_OF_COLOSSALAI,
    answer_to_timms,
    check_options,
    check_types,
    decode_quoted,
    key_of_flag,
    nearest_key,
)
from configs.reading.flags import (
    FLAGS,
    Prediction,
    Split,
    entry_parser,
    expand_words,
    print_first_commands,
    read_prediction,
    runs_to_predict,
)
from configs.reading.key_help import print_help
from configs.reading.layer_rules import LAYER_RULES, REMOVED, check_family, set_model
from configs.reading.option_layers import RUN_OPTIONS, OptionLayers, find_run_options, stored_options
from configs.reading.unused_keys import warn_of_unused
from configs.reading.yaml_io import parse_value, write_yaml
from configs.rules import complete
from configs.schema import Config
from configs.schema.config import known_keys, model_type
from configs.schema.families.registry import MODEL_SECTIONS
from configs.schema.section import MAX_NAME_CHARS
from configs.weights import add_weight_options
from utils.errors import Finding, UserError, combine_findings, did_you_mean
from utils.files import absolute_file
from utils.processes.launcher import check_local_rank

# Of PaddleClas, and of PaddleViT in 2021.
_FLAGS_ELSEWHERE = {"c": "-cfg=", "o": "-opts ", "teacher_model": "-teacher_model_path="}
_FILES = {  # or names
    "DATA": ("CACHE_DIR", "IMAGE_ROOT"),
    "MODEL": ("PRETRAINED", "RESUME"),
    "TRAIN": ("TEACHER_MODEL", "TEACHER_WEIGHTS"),
}


@dataclass(frozen=True)
class Command:
    """A parsed command line.

    config: the checked options. given: those that files, flags and -opts give, by section; the others are defaults.
    notes: lines for the log about the model family, and about options that differ from the given ones.
    num_processes: of -ngpus. device: of -device, 'cuda' or 'cpu'.
    script: the entry script. recipe: the file of -cfg.
    prediction: of -predict or -embed. split: of -split, to evaluate or to predict.
    others: of a prediction of several runs, the command of each further run.
    """

    config: Config
    given: dict[str, Any]
    dry_run: bool
    profile: bool
    num_processes: int | None
    device: str | None
    script: str
    recipe: Path | None
    notes: tuple[str, ...]
    prediction: Prediction | None
    split: Split | None
    others: tuple["Command", ...] = ()

    @property
    def name(self) -> str:
        """The command in `engine.commands` that runs it."""
        return "dry_run" if self.dry_run else self.checked_name

    @property
    def checked_name(self) -> str:
        """The command that runs without -dry_run."""
        if self.profile or self.prediction:
            return "profile" if self.profile else "predict"
        trains = "probe" if self.config.model.tuned == "probe" else "train"
        return "eval" if self.config.eval.enabled else trains

    @property
    def run_name(self) -> str:
        """The name of the run's folder: NAME, else the stem of the -cfg file, else MODEL.NAME.

        One of PaddleViT's files is called `.yaml`.
        """
        stem = self.recipe.stem if self.recipe and self.recipe.name not in (RUN_OPTIONS, ".yaml") else None
        name = self.config.name or stem or self.config.model.name
        return "".join(character if character.isprintable() else "_" for character in name)[:MAX_NAME_CHARS]

    @property
    def needs_worker_server(self) -> bool:
        """Returns whether this run probably starts loading workers, or measures its batch size in a process."""
        data = self.config.data
        loads_in_workers = not properties_of(data.dataset).in_memory and data.num_workers != 0
        return self.name not in ("dry_run", "predict") and (loads_in_workers or not data.batch_size)  # 0: auto

    def require_selection(self, is_main: bool = True) -> None:
        """Prints the usage and first commands, and exits, if neither a YAML file nor data nor a model is named."""
        if self.recipe or "MODEL" in self.given or {"DATASET", "DATA_PATH"} & self.given.get("DATA", {}).keys():
            return
        if is_main:
            print_first_commands(self.script)
        raise SystemExit(2)

    def with_weights(self, file: Path) -> "Command":
        """This command with `file` as MODEL.PRETRAINED."""
        return replace(self, config=self.config.with_model(pretrained=str(file)))


def parse_command_line(argv: list[str], prog: str = "main_single_gpu.py", set_options: Sequence[str] = ()) -> Command:
    """Reads the command line and its YAML files: flags -> layers of options -> family and warm-up -> `Config`.

    set_options: KEY=VALUE of `-set`, which override `-opts`.

    Raises:
        UserError: an unknown flag or key, a wrong type or value, contradictory options, an unreadable file.
        SystemExit: after -h.
    """
    arguments = _parse_flags(argv, prog)
    prediction = read_prediction(arguments)
    runs = runs_to_predict(arguments.resume or [], prediction)
    arguments.resume = runs[0] if runs else None
    recipe = Path(arguments.cfg) if arguments.cfg else None
    replaced = [f"-cfg {file} is replaced by -cfg {recipe}" for file in arguments.replaced]
    layers = _read_layers(arguments, recipe, evaluates=bool(arguments.eval or prediction))
    _add_options(layers, set_options, "-set")
    plugin_notes = add_plugins(layers, arguments.plugin)
    check_family(layers)
    layer_notes = decode_quoted(layers) + [note for rule in LAYER_RULES for note in rule(layers)]
    check_types(layers)
    values, notes = complete(layers, model_only=bool(recipe and arguments.model))
    config = check_options(values, layers)
    if arguments.profile:
        _check_profile(arguments.dry_run, config)
    command = Command(
        config=config,
        given=layers.values,
        dry_run=arguments.dry_run,
        profile=arguments.profile,
        num_processes=arguments.ngpus,
        device=arguments.device,
        script=prog,
        recipe=recipe,
        notes=(*replaced, *plugin_notes, *layer_notes, *notes),
        prediction=prediction,
        split=arguments.split,
        others=tuple(parse_command_line([*argv, f"-resume={run}"], prog, set_options) for run in runs[1:]),
    )
    return replace(command, notes=(*command.notes, *warn_of_unused(layers, command.checked_name, prediction)))


def _parse_flags(argv: list[str], prog: str) -> argparse.Namespace:
    parser, argv = entry_parser(prog), expand_words(argv)
    arguments, unknown = parser.parse_known_args(argv)
    if arguments.help is not None:
        for path in arguments.plugin:
            open_plugin(path)
        print_help(arguments.help) if arguments.help else parser.print_help()
        parser.exit()
    if unknown:
        flag = unknown[0].partition("=")[0][:80]
        if flag.lstrip("-") == "mae_pretrain":
            parser.error(f"{flag}: MAE's pre-training is not available, its fine-tuning is; remove the flag")
        if flag.endswith((".yaml", ".yml")):
            parser.error(f"{flag}: a YAML file is the value of a flag; use -cfg={flag}")
        is_word = not flag.startswith("-")
        if is_word and flag.isupper() and "=" in unknown[0]:
            raise UserError(f"{flag}: is a key, not a flag; write -opts {shlex.quote(unknown[0][:80])}")
        flags = [one for one in argv[: argv.index(unknown[0])] if one.startswith("-")] if is_word else []
        if flags and (last := flags[-1].lstrip("-").partition("=")[0]) in ("predict", "embed"):
            raise UserError(f"{unknown[0][:80]}: -{last} takes one path; give an image, a folder or a list")
        if arguments.resume and os.path.exists(unknown[0]):
            parser.error(f"{unknown[0]}: is no flag; to name several runs, write -resume RUN RUN2 without '='")
        following = itertools.takewhile(lambda word: not word.startswith("-"), unknown[1:])
        values = [given] if (given := unknown[0].partition("=")[2]) else [*following] or ["VALUE"]
        if name := _FLAGS_ELSEWHERE.get(flag.lstrip("-")):
            raise UserError(f"unknown flag {flag}; use {name}{shlex.join(values)[:200]}")
        if key := key_of_flag(flag):
            value = values[0] if len(values) == 1 else f"[{', '.join(values)}]"
            option = shlex.quote(f"{key}={value[:80]}")
            raise UserError(f"unknown flag {flag}; use -opts {option} (timm's flags: docs/recipes.md)")
        if answer := answer_to_timms(flag):
            raise UserError(f"unknown flag {flag}, of timm: {answer} (docs/recipes.md)")
        parser.error(f"unknown flag {flag}{did_you_mean(flag, (f'-{name}' for name in vars(arguments)), 0.75)}")
    *arguments.replaced, arguments.cfg = arguments.cfg or [None]
    if arguments.cfg and arguments.cfg.endswith(".py"):
        raise UserError(f"-cfg {arguments.cfg}: is Python; give a YAML file, and {AMP_OF_COLOSSALAI} for its `fp16`")
    check_local_rank(arguments.local_rank)
    if arguments.ngpus is not None and arguments.ngpus < 1:
        raise UserError(f"-ngpus {arguments.ngpus}: must be at least 1")
    return arguments


def _read_layers(arguments: argparse.Namespace, recipe: Path | None, evaluates: bool) -> OptionLayers:
    """BASE files < YAML file, or the options of a run or of weights < -model < flags < -opts."""
    layers = OptionLayers()
    weights = arguments.pretrained if evaluates else None
    if file := recipe or find_run_options(arguments.resume, weights):
        layers.add_recipe(file)
    elif weights and not arguments.resume:
        add_weight_options(layers, weights)
    elif arguments.resume not in (None, "auto") and (values := stored_options(Path(arguments.resume))):
        layers.add(values, arguments.resume)
    if evaluates and not recipe and isinstance(model := layers.values.get("MODEL"), dict):
        model.pop("WEIGHTS_ENTRY", None)  # of the initial weights of that run
    if arguments.model:
        set_model(layers, arguments.model)
    for flag in (flag for flags in FLAGS.values() for flag in flags):
        value = getattr(arguments, flag.name)
        if value == "":
            raise UserError(f"-{flag.name} is empty; give a value, or remove the flag")
        if flag.type is bool and value is not None:
            value = flag.value if value else flag.off
        for key in flag.keys if value is not None else ():
            layers.add_key(key, value, f"-{flag.name}")
    for name in ("predict", "embed"):
        if getattr(arguments, name) is not None:
            layers.add_key("EVAL.ENABLED", True, f"-{name}")
    if arguments.amp_dtype:
        layers.add_key("AMP.ENABLED", True, "-amp_dtype")
    _add_options(layers, arguments.opts, "-opts")
    return layers


def _add_options(layers: OptionLayers, options: Sequence[str], flag: str) -> None:
    """Adds KEY=VALUE of a flag. Raises UserError: a line for each mistake."""
    mistakes = list[Finding]()
    for option in options:
        try:
            _add_option(layers, option, flag)
        except UserError as error:
            mistakes.append(error)
    if mistakes:
        raise combine_findings(f"{len(mistakes)} options are wrong:", mistakes)


def _add_option(layers: OptionLayers, option: str, flag: str) -> None:
    key, equals, text = option.partition("=")
    if not equals:
        raise UserError(f"{flag} {option[:80]}: expected KEY=VALUE, such as TRAIN.BASE_LR=1e-3")
    if key not in REMOVED and not any(key in known_keys(family) for family in MODEL_SECTIONS):
        raise UserError(f"{flag}: unknown key {key[:80]}{nearest_key(key, model_type(layers.values))}")
    layers.add_key(key, parse_value(text), flag)


def _check_profile(dry_run: bool, config: Config) -> None:
    others = {"-dry_run": dry_run, "-eval": config.eval.enabled, "-resume": config.model.resume}
    others["MODEL.TUNE probe"] = config.model.tuned == "probe"
    for flag in (flag for flag, given in others.items() if given):
        raise UserError(f"-profile starts a new short run and cannot be combined with {flag}; remove one of them")


def to_yaml(config: Config) -> str:
    """The resolved options as the text of a YAML file, from which `parse_command_line` makes an equal `Config`.

    Paths of data and weights are absolute: the run can be resumed from another folder.
    """
    values = config.model_dump(by_alias=True)
    for section, keys in _FILES.items():
        values[section] |= {key: absolute_file(path) for key in keys if (path := values[section][key])}
    data_path = config.data.data_path
    if "://" not in data_path and not os.path.isabs(data_path):  # it may be a pattern of names
        values["DATA"]["DATA_PATH"] = os.path.abspath(data_path)
    return write_yaml(values)
