"""What an entry script starts: training, evaluation, or a dry run."""

import time
from pathlib import Path

import torch

from configs.load import Command, to_yaml
from configs.schema import Config
from datasets import eval_loader, read_samples
from datasets.transforms import DeviceTransform
from engine.checkpoint import find_checkpoint, load_checkpoint
from engine.dry_run import dry_run
from engine.precision import Precision
from engine.report import peak_memory_bytes, validation_line, write_result
from engine.step import evaluate
from engine.trainer import Trainer
from models import build_model, place
from utils.distributed import ProcessContext, broadcast_object
from utils.errors import UserError
from utils.logger import RunLogger, make_run_folder


def run(command: Command, context: ProcessContext, script: str) -> None:
    """Does what the command asks for, on every rank alike. `script` is named in the command that evaluates the result.

    Raises:
        UserError: anything the user can put right.
    """
    config = command.config
    try:
        if command.dry_run:
            dry_run(config, context, RunLogger(None, context))
        elif config.eval:
            _evaluate(config, context)
        else:
            _train(config, context, script)
    except torch.OutOfMemoryError as error:
        raise UserError(
            f"out of GPU memory with {config.model.name} at -batch_size {config.data.batch_size}, {config.amp}; "
            f"lower -batch_size, raise -accum_iter, or use -amp ({str(error).splitlines()[0]})"
        ) from error


def _open_log(config: Config, context: ProcessContext, folder: Path) -> RunLogger:
    logger = RunLogger(folder, context)
    if context.is_main:
        (folder / "config.yaml").write_text(to_yaml(config))
    logger.info(to_yaml(config))
    precision = Precision(config.amp, context.device)
    logger.info(f"----- {context.world_size} process(es), {context.device.type}, {precision.describe()}")
    logger.info(f"----- Output: {folder}")
    return logger


def _new_folder(config: Config, kind: str, context: ProcessContext) -> Path:
    return broadcast_object(make_run_folder(Path(config.save), kind) if context.is_main else None, context)


def _train(config: Config, context: ProcessContext, script: str) -> None:
    checkpoint = None
    folder = None
    if config.model.resume:
        path = find_checkpoint(config.model.resume)
        checkpoint = load_checkpoint(path)
        if (path.parent / "config.yaml").exists():
            folder = path.parent  # a resumed run goes on in its own folder
    folder = folder or _new_folder(config, "train", context)
    # The saved options give the whole run again, from its start.
    fresh = config.model_copy(update={"model": config.model.model_copy(update={"resume": None})})
    logger = _open_log(fresh, context, folder)
    result = Trainer(config, context, folder, logger, checkpoint).train()
    if not result["finished"]:
        logger.info(f"----- Stopped at TRAIN.MAX_STEPS; go on with -resume={folder}")
    if result["top1"] is not None:
        logger.info(
            f"----- Best top-1: {result['top1']:.2f}% (epoch {result['epoch']}), {result['checkpoint']}\n"
            f"      Evaluate it: python {script} -cfg={folder}/config.yaml -eval -pretrained={result['checkpoint']}"
        )


def _evaluate(config: Config, context: ProcessContext) -> None:
    folder = _new_folder(config, "eval", context)
    logger = _open_log(config, context, folder)
    if config.model.resume:
        weights = str(find_checkpoint(config.model.resume))
        config = config.model_copy(update={"model": config.model.model_copy(update={"pretrained": weights})})
    model, notes = build_model(config)
    for note in notes:
        logger.info(f"----- Pretrained: {note}")
    place(model, context.device)
    samples = read_samples(config, "val")
    started = time.perf_counter()
    metrics = evaluate(
        model,
        eval_loader(config, samples, context),
        DeviceTransform(config.data).to(context.device),
        Precision(config.amp, context.device),
        context,
    )
    seconds = time.perf_counter() - started
    logger.info(validation_line("", metrics, seconds))
    if context.is_main:
        result = {
            "top1": metrics.top1,
            "top5": metrics.top5,
            "loss": metrics.loss,
            "images_per_second": metrics.samples / seconds,
            "peak_memory_bytes": peak_memory_bytes(context.device),
        }
        write_result(folder, result)
