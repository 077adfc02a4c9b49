"""Command line -> one frozen `Config`: defaults < BASE files < YAML < flags < `-opts`."""

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from configs.flags import (
    KEY_FLAGS,
    Prediction,
    entry_parser,
    parse_flags,
    print_first_commands,
    read_prediction,
)
from configs.help import print_help
from configs.load import RUN_OPTIONS, OptionTable, flatten, nest, read_layers
from configs.parts import check_plugins, open_plugin
from configs.resolve import follow_options
from configs.schema import Config
from configs.schema.data import AUTO, properties_of
from configs.schema.section import MAX_NAME_CHARS
from configs.versions import VERSION, WRITTEN_BY
from configs.yaml_io import Values, write_yaml
from utils.errors import UserError
from utils.files import absolute_file, read_json
from utils.notes import STATUS, SWEEP, Note, run_name

_FILES = {  # or names
    "DATA": ("CACHE_DIR", "IMAGE_ROOT"),
    "MODEL": ("PRETRAINED", "RESUME"),
    "TRAIN": ("TEACHER_MODEL", "TEACHER_WEIGHTS"),
}


@dataclass(frozen=True)
class Command:
    """A parsed command line.

    argv: its words. flags: their values.
    config: the checked options. given: those that files, flags and -opts give, by dotted key; the others are defaults.
    notes: lines for the log about the model family, and about options that differ from the given ones.
    script: the entry script. recipe: the file of -cfg. choice: the words that the program chose, and why.
    prediction: of -predict or -embed. source: MODEL.NAME as given, perhaps a folder or a repository. runs: of the sweep
    that -resume names, whose models are averaged.
    """

    argv: tuple[str, ...]
    flags: argparse.Namespace
    config: Config
    given: Values
    script: str
    recipe: Path | None
    notes: tuple[Note, ...]
    prediction: Prediction | None
    source: str
    choice: str = ""
    runs: tuple[Path, ...] = ()

    @property
    def embeds(self) -> bool:
        """Whether it writes features, of -embed."""
        return self.prediction is not None and self.prediction.embeds

    @property
    def path(self) -> str | None:
        """The images to label or to embed; None: the data."""
        return self.prediction.path if self.prediction else None

    @property
    def has_columns_of_run(self) -> bool:
        """Whether DATA.COLUMNS of an evaluation, if it has some, are of its run: they are not typed."""
        return self.config.eval.enabled and not self.is_typed("DATA.COLUMNS")

    @property
    def states_precision(self) -> bool:
        """Whether mixed precision is switched on or off by a given option."""
        return "AMP.ENABLED" in self.given

    def is_typed(self, key: str) -> bool:
        """Whether -opts has the key, or one below it; a record of the weights may have it, too."""
        return any(option.startswith(key) for option in self.flags.opts)

    @property
    def name(self) -> str:
        """The command in `engine.commands` that runs it."""
        return "dry_run" if self.flags.dry_run else self.checked_name

    @property
    def checked_name(self) -> str:
        """The command that runs without -dry_run."""
        if self.flags.profile:
            return "profile"
        if self.prediction:
            return "predict"
        if self.config.eval.enabled:
            return "eval"
        return "probe" if self.config.model.solves_head else "train"

    @property
    def run_name(self) -> str:
        """The name of the run's folder: NAME, else of a sweep its own, else the stem of the -cfg file, else MODEL.NAME.

        One of PaddleViT's files is called `.yaml`.
        """
        name = self.config.model.name
        if self.config.name:
            name = self.config.name
        elif self.runs:
            name = self.runs[0].absolute().parent.name
        elif self.recipe and self.recipe.name not in (RUN_OPTIONS, ".yaml"):
            name = self.recipe.stem
        return "".join(character if character.isprintable() else "_" for character in name)[:MAX_NAME_CHARS]

    @property
    def needs_worker_server(self) -> bool:
        """Returns whether this run probably starts loading workers, or measures its batch size in a process."""
        data = self.config.data
        is_one_image = self.path and not os.path.isdir(self.path)
        if self.flags.dry_run or is_one_image:
            return False
        loads_in_workers = not properties_of(data.dataset).in_memory and data.num_workers != 0
        return loads_in_workers or data.batch_size == AUTO

    def require_selection(self, is_main: bool = True) -> None:
        """Prints the usage and first commands, and exits, if neither a YAML file nor data nor a model is named."""
        if self.recipe or any(key.startswith(("MODEL.", "DATA.DATASET", "DATA.DATA_PATH")) for key in self.given):
            return
        if is_main:
            print_first_commands(self.script)
        raise SystemExit(2)

    def with_weights(self, file: Path) -> "Command":
        """This command with `file` as MODEL.PRETRAINED."""
        return replace(self, config=self.config.with_model(pretrained=str(file)))


def parse_command_line(
    argv: Sequence[str], script: str = "main_single_gpu.py", set_options: Sequence[str] = ()
) -> Command:
    """Reads the command line and its YAML files, and completes the options by the rules of configs/resolve.py.

    set_options: KEY=VALUE of `-set`, which override `-opts`.
    Raises UserError: an unknown flag or key, a wrong type or value, contradictory options, an unreadable file;
    SystemExit: after -h.
    """
    parser = entry_parser(script)
    flags = parse_flags(list(argv), parser)
    if flags.help is not None:
        for path in flags.plugin:
            open_plugin(path)
        print_help(flags.help, parser.format_help()) if flags.help else parser.print_help()
        parser.exit()
    flags.set = list(set_options)
    return read_options(tuple(argv), flags, script)


def read_options(argv: tuple[str, ...], flags: argparse.Namespace, script: str) -> Command:
    """The command of parsed flags: its files are read, and its options completed. Raises UserError as above."""
    prediction = read_prediction(flags)
    evaluates = bool(flags.eval or prediction)
    runs = _runs_of_sweep(flags.resume) if evaluates else ()
    if runs:
        flags.resume = str(runs[0])
    table = read_layers(flags, evaluates)
    if runs and not table.origin("NAME").startswith("-"):  # it is of the first run
        table.remove("NAME")
    plugin_notes = _add_plugins(table, flags.plugin)
    source = str(table.get("MODEL.NAME"))
    config, table, notes = follow_options(table)
    if flags.profile:
        _check_profile(config, flags.dry_run)
    replaced = [Note("screen", f"-cfg {file} is not read: -cfg {flags.cfg} replaces it") for file in flags.replaced]
    replaced += _replaced_flags(table, flags)
    command = Command(
        argv=argv,
        flags=flags,
        config=config,
        given=table.given(),
        script=script,
        recipe=Path(flags.cfg) if flags.cfg else None,
        notes=(*replaced, *plugin_notes, *notes),
        prediction=prediction,
        source=source,
        runs=runs,
    )
    return replace(command, notes=(*command.notes, *_warn_of_unused(table, command)))


def _replaced_flags(table: OptionTable, flags: argparse.Namespace) -> Iterator[Note]:
    """A note for each flag whose key a later word of the command line gives."""
    for flag in KEY_FLAGS:
        typed = getattr(flags, flag.name)
        row = table.row(flag.key)
        is_of_another = row.source.startswith("-") and row.source != f"-{flag.name}"
        is_changed = row.source in ("-opts", "-set") or row.value != typed
        if typed is not None and is_of_another and is_changed:
            yield Note("screen", f"-{flag.name} is not read: {row.source} {flag.key} replaces it")


def _runs_of_sweep(folder: str | None) -> tuple[Path, ...]:
    """The newest run of each name KEY=VALUE in the folder of a sweep; none for another folder.

    Raises UserError: a run has not ended, perhaps not one epoch.
    """
    newest = {}
    if folder and os.path.isfile(Path(folder, SWEEP)):
        newest = {run_name(file.parent): file.parent for file in sorted(Path(folder).glob(f"[A-Z]*=*/{STATUS}"))}
    for run in newest.values():
        state = read_json(run / STATUS).get("state")
        if state not in ("finished", "stopped"):
            raise UserError(f"{run}: is {state}; the same command of the sweep finishes it")
    return tuple(newest.values())


def _add_plugins(table: OptionTable, paths: Sequence[str]) -> list[Note]:
    """Runs the plugins of -plugin, and adds their names and hashes to the options. Returns notes about them."""
    plugins = [open_plugin(path) for path in paths]
    entries = [plugin.entry for plugin in plugins]
    notes = [Note("log", f"Plugin: {entry}") for entry in entries]
    notes += check_plugins(table.get("PLUGINS"), entries, table.origin("PLUGINS"))
    if entries:
        table.add_key("PLUGINS", entries, "-plugin")
    for plugin in plugins:
        if not plugin.has_parts:
            notes.append(Note("warning", f"{plugin.path} registers no part; use @register_model, @loss, ..."))
    return notes


def _check_profile(config: Config, is_dry: bool) -> None:
    """Raises UserError for a command that cannot be profiled."""
    others = {"-dry_run": is_dry, "-eval": config.eval.enabled, "-resume": config.model.resume}
    others["MODEL.TUNE probe"] = config.model.solves_head
    for flag, is_given in others.items():
        if is_given:
            raise UserError(f"-profile starts a new run and cannot be combined with {flag}; remove one of them")


def to_yaml(config: Config, changes: Values | None = None) -> str:
    """The resolved options as the text of a YAML file, from which `parse_command_line` makes an equal `Config`.

    Paths of data and weights are absolute: the run can be resumed from another folder. SAVE is left out if it is the
    folder of a sweep: neither an evaluation of its run, nor one with a copy of the file, belongs there.
    changes: other values, by dotted key.
    """
    options = dict(flatten(config.model_dump(by_alias=True)))
    values: Values = {WRITTEN_BY: VERSION, **nest(options | (changes or {}))}
    if Path(config.save, SWEEP).is_file():
        del values["SAVE"]
    for section, keys in _FILES.items():
        given = values[section]
        given |= {key: absolute_file(given[key]) for key in keys if given[key]}
    data_path = config.data.data_path
    if "://" not in data_path and not os.path.isabs(data_path):  # it may be a pattern of names
        values["DATA"]["DATA_PATH"] = os.path.abspath(data_path)
    return write_yaml(values)


_TABLES = (".csv", ".tsv", ".txt", ".jsonl", ".parquet")
_SAVING = "SAVE_FREQ* KEEP_CHECKPOINTS VALIDATE_FREQ"
_CROPS = "DATA.RANDOM_CROP_* DATA.?FLIP_PROB DATA.AFFINE_* DATA.*_AUGMENTATIONS"
_STEPS = (
    "SEED REPORT_FREQ LOGGERS EVAL_RAW EVAL.SUSPECTS TRAIN.* LOSS.* PARALLEL.* DATA.GLOBAL_BATCH_SIZE DATA.MEMORY_GB "
    "DATA.CACHE DATA.REPEATED_AUGMENTATION DATA.BALANCED_SAMPLING MODEL.TUNE MODEL.HEAD MODEL.BATCH_NORM "
    "MODEL.LORA.* MODEL.DROPOUT MODEL.ATTENTION_DROPOUT MODEL.DROPPATH MODEL.GRAD_CHECKPOINTING MODEL.FUSED_BLOCKS "
    "AMP.*_LOSS_SCALING AMP.INCR_* AMP.DECR_* AMP.MAX_SKIPPED_STEPS"
)
_PROBE = (  # of TRAIN all but SMOOTHING: `probe_has_one_epoch` gives them their defaults
    "TRAIN.[!S]* EVAL_RAW DATA.GLOBAL_BATCH_SIZE DATA.BALANCED_SAMPLING DATA.REPEATED_AUGMENTATION "
    "DATA.MEMORY_GB MODEL.GRAD_CHECKPOINTING MODEL.HEAD MODEL.BATCH_NORM"
)
_EVAL = f"{_SAVING} {_CROPS} {_STEPS}"
_LABELS = "EVAL.MAPS EVAL.REVIEW"
_PREDICT = f"{_EVAL} EVAL.SAVE_LOGITS EVAL.BEST_METRIC DATA.ON_BAD_IMAGE DATA.IMAGE_HASHES"
_UNUSED = {  # by command, patterns of keys
    "probe": f"{_SAVING} {_CROPS} {_PROBE}",
    "profile": f"{_SAVING} LOGGERS DATA.CACHE EVAL.* EVAL_RAW MODEL.HEAD TRAIN.MINUTES TRAIN.PATIENCE",
    "eval": f"{_EVAL} {_LABELS}",
    "predict": _PREDICT,
    "embed": f"{_PREDICT} {_LABELS} EVAL.TTA",
}
_DATA_SET = (
    "DATA.DATA_PATH DATA.CLASS_FOLDERS DATA.VAL_FRACTION DATA.SPLIT_SEED DATA.FOLD* DATA.SHUFFLE_SHARDS "
    "DATA.CACHE_* DATA.KWARGS DATA.DOWNLOAD DATA.FRACTION DATA.ONLY_CLASSES"
)
_TABLE = "DATA.IMAGE_ROOT DATA.COLUMNS DATA.ENCODING"


def unused_keys(command: str, path: str | None = None) -> list[str]:
    """Patterns of the keys that a command does not use. path: of the images to label or to embed."""
    patterns = [_UNUSED.get(command, "")]
    if path:
        patterns.append(_DATA_SET)
        is_table = path.lower().endswith(_TABLES) and not os.path.isdir(path)
        if not is_table:
            patterns.append(_TABLE)
    return " ".join(patterns).split()


def _warn_of_unused(table: OptionTable, command: Command) -> list[Note]:
    """A warning that names the keys of flags and of -opts that the command does not use; none for keys of files."""
    name = "embed" if command.embeds else command.checked_name
    typed = [key for key in table.given() if table.row(key).source.startswith("-")]
    patterns = unused_keys(name, command.path)
    unused = [key for key in typed if any(fnmatchcase(key, pattern) for pattern in patterns)]
    if not unused:
        return []
    title = "MODEL.TUNE probe" if name == "probe" else f"-{name}"
    if command.path:
        title += " PATH"
    return [Note("warning", f"{title} does not use {', '.join(unused)}")]
