"""Finds the checkpoint that -resume names, on all ranks."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from configs.reading.compare import experiment_mismatch
from configs.reading.option_layers import RUN_OPTIONS
from configs.schema import Config
from engine.checkpoint.reader import FoundCheckpoint, find_checkpoint, open_checkpoint
from engine.run.folder import check_same_checkpoint
from engine.run.log import RunLogger
from utils.distributed import ProcessContext, broadcast_object
from utils.errors import UserError


def find_on_all_ranks(
    config: Config,
    context: ProcessContext,
    logger: RunLogger,
    lock: Callable[[Path], object] = nullcontext,
) -> FoundCheckpoint | None:
    """Finds the checkpoint that `-resume` names: the main process searches, the other ranks read the same files.

    In a run's folder an evaluation or a prediction prefers `best.pth`. 'auto' passes over the runs of other
    experiments, with a line in the log.
    """
    if not config.model.resume:
        return None

    def is_candidate(folder: Path) -> bool:
        mismatch = experiment_mismatch(folder / RUN_OPTIONS, config)
        if mismatch:
            logger.warn(f"Resume: passed over: {folder}: {mismatch}")
        return not mismatch

    def load(path: Path) -> dict[str, Any]:
        return _open_together(broadcast_object(path, context), context)

    if context.is_main:
        best_first = config.eval.enabled
        found = find_checkpoint(config.model.resume, Path(config.save), lock, is_candidate, best_first, load)
        broadcast_object(None, context)
    else:
        found = _follow_main(context)
    for note in found.notes if found else []:
        logger.warn(f"Resume: skipped: {note}")
    if found:
        logger.info(f"----- Resume: from {found.path}")
    return found


def _follow_main(context: ProcessContext) -> FoundCheckpoint | None:
    """Reads the same files as the main process, until that has found a valid checkpoint: all ranks verify parts."""
    found = error = None
    while path := broadcast_object(None, context):
        try:
            found, error = FoundCheckpoint(path, _open_together(path, context), []), None
        except UserError as refused:
            found, error = None, refused
    if error:
        raise error
    return found


def _open_together(path: Path, context: ProcessContext) -> dict[str, Any]:
    check_same_checkpoint(path, context)
    return open_checkpoint(path, context)
