"""The dry run: checks everything that a run needs and prints its sizes, without training."""

import os
from pathlib import Path

from torch import nn

from configs.schema import Config
from datasets.registry import read_samples
from engine.checkpoint.reader import FoundCheckpoint
from engine.commands.evaluate import nothing_to_evaluate
from engine.commands.open_run import find_on_all_ranks
from engine.telemetry.flops import forward_flops
from engine.training.build import build_eval_model, build_run
from engine.training.snapshot import restore
from utils.distributed import ProcessContext
from utils.errors import UserError
from utils.logger import RunLogger


def dry_run(config: Config, context: ProcessContext) -> int:
    """Builds data, model, optimizer and the state to resume from, and checks that the output folder is writable.

    Raises:
        UserError: the first problem that would stop the run.
    """
    logger = RunLogger(None, context)
    found = find_on_all_ranks(config, context)
    folder = found.path.parent if found else Path(config.save)
    _check_writable(folder)
    if config.eval:
        model = _build_evaluation(config, context, logger, found)
    else:
        model = _build_training(config, context, logger, folder, found)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    logger.info(f"parameters: {parameters / 1e6:.3f} M, trained: {trained / 1e6:.3f} M")
    flops = forward_flops(model, config.data)
    logger.info(f"forward pass: {flops / 1e9:.2f} GFLOPs per image (a multiply-add counts as two)")
    logger.info("dry run: all checks passed")
    return 0


def _build_training(
    config: Config, context: ProcessContext, logger: RunLogger, folder: Path, found: FoundCheckpoint | None
) -> nn.Module:
    options = config.with_model(pretrained=None) if found else config
    run = build_run(options, context, folder, logger)
    restore(run, found.state if found else None)
    logger.info(f"global batch size: {run.layout.global_batch_size}")
    logger.info(f"steps per epoch: {run.layout.steps_per_epoch}")
    return run.state.precision.weights.master


def _build_evaluation(
    config: Config, context: ProcessContext, logger: RunLogger, found: FoundCheckpoint | None
) -> nn.Module:
    if not (found or config.model.pretrained):
        raise nothing_to_evaluate(config)
    weights = str(found.path if found else config.model.pretrained)
    model = build_eval_model(config.with_model(pretrained=weights), context).fp32
    (samples,) = read_samples(config.data, config.model.num_classes, context, "val")
    logger.info(f"validation: {len(samples)} images")
    return model


def _check_writable(folder: Path) -> None:
    existing = folder
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise UserError(f"SAVE: {folder} is not writable; choose another folder with -output")
