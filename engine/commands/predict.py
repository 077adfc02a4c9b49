"""The prediction command: labels, or features."""

from contextlib import nullcontext
from dataclasses import replace

from configs.command_line import Command
from engine.checkpoint.run_folder import check_writable, lock_run_folder
from engine.commands.label import label
from engine.evaluation.session import build_sessions
from engine.features.store import embed
from engine.run.folder import check_shared, open_new_folder, start_log
from utils.distributed import ProcessContext


def predict(command: Command, context: ProcessContext) -> int:
    """Labels the images of `-predict`, and writes `predictions.csv`, or writes the features of the images of `-embed`.

    It continues a prediction that was killed.

    Raises:
        UserError: no image can be read; the file then has the reasons. Another process writes to the folder. The model
            has no features.
    """
    logger, options = start_log(command, context), command.prediction
    assert options
    if context.is_main and options.folder:
        check_writable(options.folder)
    sessions = build_sessions(command, context, logger)
    command = replace(command, config=sessions[0].plan.config)
    prefix = "embed-" if options.embeds else "predict-"
    folder = options.folder or open_new_folder(command, context, logger, prefix)
    if options.embeds:
        embed(sessions[0], folder, options.path is None, logger)
        return 0
    if context.is_main:
        folder.mkdir(parents=True, exist_ok=True)
    if options.explain:
        check_shared(folder, context)  # each rank writes the maps of its images
    with lock_run_folder(folder) if context.is_main else nullcontext():
        label(sessions, folder, options, logger)
    return 0
