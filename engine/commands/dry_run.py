"""Checks everything that a run needs and prints its sizes, without training."""

from pathlib import Path

from torch import nn

from configs.reading.command_line import Command
from configs.schema import Config
from engine.checkpoint.reader import FoundCheckpoint
from engine.checkpoint.run_folder import check_writable
from engine.commands.evaluation_data import read_evaluation_data
from engine.commands.open_evaluation import nothing_to_evaluate
from engine.commands.open_run import find_on_all_ranks, log_options
from engine.run.log import RunLogger
from engine.run.loggers.group import check_loggers
from engine.run.mfu.flops import forward_flops
from engine.training.eval_model import build_eval_model
from engine.training.run import build_run
from engine.training.run_data import read_run_data
from utils.distributed import ProcessContext


def dry_run(command: Command, context: ProcessContext) -> int:
    """Builds data, model, optimizer and the state to resume from, and checks that the output folder is writable.

    Raises:
        UserError: the first problem that would stop the run.
    """
    logger, config = RunLogger(None, context), command.config
    log_options(command, logger)
    if context.is_main and not config.eval.enabled:
        check_loggers(config.loggers)
    found = find_on_all_ranks(config, context, logger)
    resumed = found.run_folder if found and not config.eval.enabled else None
    folder = resumed or Path(config.save)
    check_writable(folder)
    if config.eval.enabled:
        config, model = _build_evaluation(command, context, logger, found)
    else:
        config, model = _build_training(config, context, logger, folder, found)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    logger.info(f"parameters: {parameters / 1e6:.3f} M, trained: {trained / 1e6:.3f} M")
    flops = forward_flops(model, config.data)
    logger.info(f"forward pass: {flops / 1e9:.2f} GFLOPs per image (a multiply-add counts as two)")
    logger.info("dry run: all checks passed")
    return 0


def _build_training(
    config: Config, context: ProcessContext, logger: RunLogger, folder: Path, found: FoundCheckpoint | None
) -> tuple[Config, nn.Module]:
    config, splits = read_run_data(config, context, found.state if found else None)
    options = config.with_model(pretrained=None) if found else config
    run, _ = build_run(options, splits, context, logger, lambda _: folder, found)
    state = run.state
    logger.info(f"global batch size: {state.layout.describe(context.world_size)}")
    logger.info(f"steps per epoch: {state.layout.steps_per_epoch}")
    logger.info(f"peak learning rate: {state.schedule.peak_lr:.3g}")
    return config, state.meta_model


def _build_evaluation(
    command: Command, context: ProcessContext, logger: RunLogger, found: FoundCheckpoint | None
) -> tuple[Config, nn.Module]:
    config = command.config
    if not (found or config.model.pretrained):
        raise nothing_to_evaluate(config)
    config, _, notes = read_evaluation_data(command.with_weights(found.path) if found else command, context)
    for note in notes:
        logger.note(note)
    return config, build_eval_model(config, context).fp32
