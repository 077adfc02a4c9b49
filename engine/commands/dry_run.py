"""Checks all that a run needs and tells its sizes, without training."""

import os
from pathlib import Path

from configs.schema import Config
from datasets.registry import read_samples
from engine.checkpoint.checkpoint import find_checkpoint
from engine.precision.policy import Precision
from engine.telemetry.flops import forward_flops
from engine.training.trainer import Trainer
from models.build import build_model
from utils.distributed import ProcessContext
from utils.errors import UserError
from utils.logger import RunLogger


def dry_run(config: Config, context: ProcessContext) -> None:
    """Builds what the run would: data, model, weights, optimizer, the state to resume; and tries its output folder.

    Raises:
        UserError: the first thing that would stop the run.
    """
    logger = RunLogger(None, context)
    found = find_checkpoint(config.model.resume, Path(config.save)) if config.model.resume else None
    folder = found.path.parent if found else Path(config.save)
    _check_writable(folder)
    if config.eval:
        if not (found or config.model.pretrained):
            raise UserError(f"-resume auto: no run in {config.save} has a checkpoint to evaluate; give -pretrained")
        weights = str(found.path if found else config.model.pretrained)
        model, _ = build_model(config.with_model(pretrained=weights), context.device)
        Precision(config.amp, context.device).prepare(model)
        (samples,) = read_samples(config.data, config.model.num_classes, context, "val")
        logger.info(f"validation: {len(samples)} images")
    else:
        state = found.state if found else None
        options = config.with_model(pretrained=None) if state else config
        trainer = Trainer(options, context, folder, logger, state)
        geometry, model = trainer.geometry, trainer.learner.weights.full
        logger.info(f"global batch size: {geometry.batch_size * geometry.accum_iter}")
        logger.info(f"steps per epoch: {geometry.steps_per_epoch}")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    logger.info(f"parameters: {parameters / 1e6:.3f} M, of them trained: {trained / 1e6:.3f} M")
    flops = forward_flops(model, config)
    logger.info(f"forward pass: {flops / 1e9:.2f} GFLOPs per image (a multiply-add counts as two)")
    logger.info("dry run: all that the run needs is there")


def _check_writable(folder: Path) -> None:
    existing = folder
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise UserError(f"SAVE: {folder} cannot be written; give another folder with -output")
