"""Checks all that a run needs and tells its sizes, without training."""

import copy
import os
from pathlib import Path

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from configs.schema import Config
from datasets import read_samples, train_sampler
from engine.checkpoint import find_checkpoint, load_checkpoint
from engine.optimizer import build_optimizer
from models import build_model
from utils.distributed import ProcessContext
from utils.errors import UserError
from utils.logger import RunLogger


def dry_run(config: Config, context: ProcessContext, logger: RunLogger) -> None:
    """Options were checked before; here lists, weights, checkpoint, model, optimizer and output folder are.

    Raises:
        UserError: the first thing that would stop the run.
    """
    _check_writable(Path(config.save))
    if config.model.resume:
        load_checkpoint(find_checkpoint(config.model.resume))
    model, notes = build_model(config)
    for note in notes:
        logger.info(f"pretrained: {note}")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    logger.info(f"parameters: {parameters / 1e6:.3f} M, of them trained: {trained / 1e6:.3f} M")
    logger.info(
        f"forward pass: {forward_flops(model, config) / 1e9:.2f} GFLOPs per image (a multiply-add counts as two)"
    )
    val_samples = read_samples(config, "val")
    logger.info(f"validation: {len(val_samples)} images")
    if not config.eval:
        build_optimizer(model, config.train)
        train_samples = read_samples(config, "train")
        sampler = train_sampler(config, train_samples, context)
        accum_iter = config.train.accum_iter
        logger.info(f"training: {len(train_samples)} images, {len(train_samples.class_names)} classes")
        logger.info(f"global batch size: {config.data.batch_size * context.world_size * accum_iter}")
        logger.info(f"steps per epoch: {-(-sampler.batches_per_epoch // accum_iter)}")
    logger.info("dry run: all that the run needs is there")


def forward_flops(model: nn.Module, config: Config) -> int:
    """Floating-point operations of one image's forward pass, counted by torch on a model without memory."""
    shape = (1, config.data.image_channels, config.data.image_size, config.data.image_size)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        copy.deepcopy(model).eval().to("meta")(torch.empty(shape, device="meta"))
    return counter.get_total_flops()


def _check_writable(folder: Path) -> None:
    existing = folder
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise UserError(f"SAVE: {folder} cannot be written; give another folder with -output")
