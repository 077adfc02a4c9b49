"""Checks everything that a run needs and prints its sizes, without training."""

from pathlib import Path

import torch
from torch import nn

from configs.reading.command_line import Command
from configs.reading.compare import resumed_options
from configs.schema import Config
from engine.checkpoint.run_folder import check_writable
from engine.commands.ensemble import open_models
from engine.commands.open_run import find_on_all_ranks, log_options
from engine.run.log import RunLogger
from engine.run.loggers import check_loggers
from engine.run.mfu.flops import count_parameters, forward_flops
from engine.training.losses.loss import build_loss
from engine.training.pixel_baseline import measure_baseline
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
    if config.eval.enabled:
        check_writable(Path(config.save))
        opened, *_ = open_models(command, context, logger)
        config, model = opened.config, opened.meta_model
    else:
        config, model = _build_training(command, context, logger)
    parameters, trained = count_parameters(model)
    logger.info(f"parameters: {parameters / 1e6:.3f} M, trained: {trained / 1e6:.3f} M")
    flops = forward_flops(model, config.data)
    logger.info(f"forward pass: {flops / 1e9:.2f} GFLOPs per image (a multiply-add counts as two)")
    logger.info("dry run: all checks passed")
    return 0


def _build_training(command: Command, context: ProcessContext, logger: RunLogger) -> tuple[Config, nn.Module]:
    config = command.config
    if context.is_main:
        check_loggers(config.loggers)
    found = find_on_all_ranks(config, context, logger)
    folder = (found.run_folder if found else None) or Path(config.save)
    check_writable(folder)
    if found:
        config = resumed_options(config, command.given, found.state["options"])
    config, splits = read_run_data(config, context, found.state if found else None)
    options = config.with_model(pretrained=None) if found else config
    run, _ = build_run(options, splits, context, logger, lambda _: folder, found)
    state = run.state
    logits = torch.zeros(2, config.model.num_logits, device=context.device)
    build_loss(config.loss, config.train.smoothing, None)(logits, logits.argmax(1))  # a plugin's function may raise
    logger.info(f"global batch size: {state.layout.batch}")
    logger.info(f"steps per epoch: {state.layout.steps_per_epoch}")
    logger.info(f"peak learning rate: {state.schedule.peak_lr:.3g}")
    if context.is_main and (baseline := measure_baseline(config.data, splits.train, splits.val)):
        logger.note(baseline)
    return config, state.meta_model
