"""Opening a run: its log, the checkpoint from which it resumes, and, when all was checked, its folder."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from configs.command_line import Command, parse_command_line, to_yaml
from configs.compare import experiment_mismatch, non_default_lines
from configs.layers import RECIPE_OPTIONS, RUN_OPTIONS
from configs.schema import Config
from configs.schema.families.registry import FAMILIES
from engine.checkpoint.reader import FoundCheckpoint, find_checkpoint, load_checkpoint
from engine.checkpoint.run_folder import check_writable, make_run_folder, write_run_options
from utils.atomic_file import atomic_write
from utils.distributed import ProcessContext, broadcast_object
from utils.errors import UserError
from utils.logger import RunLogger
from utils.status import RunStatus


def start_log(command: Command, context: ProcessContext) -> RunLogger:
    """Logs the options. The lines reach the files when the run's folder is opened.

    Raises:
        UserError: the output folder is not writable; the start may take minutes until the run's folder is made.
    """
    logger = RunLogger(None, context)
    if context.is_main and command.config.model.resume in (None, "auto"):  # else it writes to the checkpoint's folder
        check_writable(Path(command.config.save))
    log_options(command, logger)
    return logger


def log_options(command: Command, logger: RunLogger) -> None:
    """The options that differ from the defaults, those that the model family brings, and how it differs."""
    lines = non_default_lines(command.config)
    logger.info(f"----- Options that differ from the defaults (all: {RUN_OPTIONS}):\n{lines}")
    if command.family_defaults:
        names = ", ".join(f"{section}.{key}" for section, key in command.family_defaults)
        logger.info(f"----- Of these, defaults of MODEL.TYPE {command.config.model.type}: {names}")
    if family := FAMILIES.get(command.config.model.type):
        for correction in family.corrections:
            logger.info(f"----- {family.title}, unlike PaddleViT's: {correction}")
        if family.differs:
            logger.info(f"----- {family.title}, unlike timm's: {family.differs}")


def find_on_all_ranks(
    config: Config,
    context: ProcessContext,
    logger: RunLogger,
    lock: Callable[[Path], Any] = lambda folder: None,
) -> FoundCheckpoint | None:
    """The checkpoint that `-resume` names: the main process searches, the other ranks read the same file.

    Of a run's folder, an evaluation or a prediction takes `best.pth`.

    'auto' passes over the runs of other experiments, with a line in the log.
    """
    if not config.model.resume:
        return None

    def is_candidate(folder: Path) -> bool:
        mismatch = experiment_mismatch(folder / RUN_OPTIONS, config)
        if mismatch:
            logger.info(f"----- Resume: passed over: {folder}: {mismatch}")
        return not mismatch

    found = None
    if context.is_main:
        best_first = config.eval.enabled
        found = find_checkpoint(config.model.resume, Path(config.save), lock, is_candidate, best_first)
    path = broadcast_object(found.path if found else None, context)
    if path is not None and not context.is_main:
        found = FoundCheckpoint(path, load_checkpoint(path), [])
    for note in found.notes if found else []:
        logger.info(f"----- Resume: skipped: {note}")
    if found:
        logger.info(f"----- Resume: from {found.path}")
    return found


def open_new_folder(command: Command, context: ProcessContext, logger: RunLogger, prefix: str = "") -> Path:
    """Creates the folder of a new run, and writes its log and options to it."""
    name = prefix + command.run_name
    folder = make_run_folder(Path(command.config.save), name) if context.is_main else None
    folder = broadcast_object(folder, context)
    enter_folder(folder, command, context, logger, steps_done=0)
    return folder


def enter_folder(folder: Path, command: Command, context: ProcessContext, logger: RunLogger, steps_done: int) -> None:
    """Writes the log and the options of a run, which starts after `steps_done` steps, to its folder."""
    if context.is_main:
        write_run_options(folder, _options(command), steps_done)
        _write_recipe(folder, command)
    logger.open(folder)
    logger.info(f"----- Output: {folder}")


def _write_recipe(folder: Path, command: Command) -> None:
    """Writes the options of the recipe alone, for the report page; a resumed run keeps those of its start.

    A recipe that is complete only with flags, such as one that needs -pretrained, leaves no file.
    """
    if command.recipe is None or command.recipe.name == RUN_OPTIONS or (folder / RECIPE_OPTIONS).exists():
        return
    with suppress(UserError):
        atomic_write(folder / RECIPE_OPTIONS, to_yaml(parse_command_line([f"-cfg={command.recipe}"]).config))


def begin_status(folder: Path, context: ProcessContext) -> RunStatus:
    status = RunStatus(folder, context.world_size)
    if context.is_main:
        status.begin()
    return status


def _options(command: Command) -> str:
    """The options in a form that starts or resumes the same run: the checkpoint knows where its schedule restarted."""
    train = command.config.train.model_copy(update={"restart_schedule": False})
    config = command.config.model_copy(update={"name": command.run_name, "train": train})
    return to_yaml(config if config.eval.enabled else config.with_model(resume=None))
