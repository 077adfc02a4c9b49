"""Opening a run: its folder and log, and the checkpoint from which it resumes."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from configs.command_line import non_default_lines, to_yaml
from configs.schema import Config
from engine.checkpoint.reader import FoundCheckpoint, find_checkpoint, load_checkpoint
from engine.checkpoint.run_folder import is_run_folder, lock_run_folder, make_run_folder
from utils.distributed import ProcessContext, broadcast_object
from utils.logger import RunLogger
from utils.status import RunStatus


def find_on_all_ranks(
    config: Config, context: ProcessContext, lock: Callable[[Path], Any] = lambda folder: None
) -> FoundCheckpoint | None:
    """The checkpoint that `-resume` names: the main process searches, the other ranks read the same file."""
    if not config.model.resume:
        return None
    found = find_checkpoint(config.model.resume, Path(config.save), lock) if context.is_main else None
    path = broadcast_object(found.path if found else None, context)
    if path is None or context.is_main:
        return found
    return FoundCheckpoint(path, load_checkpoint(path), [])


def open_new_run(config: Config, context: ProcessContext, kind: str) -> tuple[Path, RunLogger]:
    """Creates the folder and the log of a new run; `kind` is 'train', 'eval' or 'profile'."""
    folder = make_run_folder(Path(config.save), kind) if context.is_main else None
    return _open_folder(config, context, broadcast_object(folder, context), "config.yaml")


def open_training(
    config: Config, context: ProcessContext, locks: ExitStack
) -> tuple[Path, RunLogger, dict[str, Any] | None]:
    """The folder and the log of a training run, and the checkpoint to resume from. The main process locks the folder.

    A resumed run writes to the folder of its checkpoint, if that is the folder of a run.
    """
    # Lock before reading: the previous run may still be writing.
    found = find_on_all_ranks(config, context, lock=lambda folder: locks.enter_context(lock_run_folder(folder)))
    if found and is_run_folder(found.path.parent):
        folder, logger = _open_folder(config, context, found.path.parent, "config-resumed.yaml")
    else:
        folder, logger = open_new_run(config, context, "train")
        if context.is_main:
            locks.enter_context(lock_run_folder(folder))
    if found:
        log_found(found, logger)
    elif config.model.resume:
        logger.info(f"----- Resume: no run in {config.save} has a checkpoint yet; starting a new run")
    return folder, logger, found.state if found else None


def begin_status(folder: Path, context: ProcessContext) -> RunStatus:
    status = RunStatus(folder, context.world_size)
    if context.is_main:
        status.begin()
    return status


def log_found(found: FoundCheckpoint, logger: RunLogger) -> None:
    for note in found.notes:
        logger.info(f"----- Resume: skipped: {note}")
    logger.info(f"----- Resume: from {found.path}")


def _open_folder(config: Config, context: ProcessContext, folder: Path, options_file: str) -> tuple[Path, RunLogger]:
    """Writes the options in a form that starts the same run again."""
    logger = RunLogger(folder, context)
    options = to_yaml(config if config.eval else config.with_model(resume=None))
    if context.is_main:
        (folder / options_file).write_text(options)
    logger.info(f"----- Options that differ from the defaults (all: {options_file}):\n{non_default_lines(config)}")
    logger.info(f"----- Output: {folder}")
    return folder, logger
