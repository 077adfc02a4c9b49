"""What an entry script starts: training, evaluation, or a dry run."""

import shlex
import time
from pathlib import Path

import torch

from configs.load import Command, to_yaml
from configs.schema import Config
from datasets import eval_loader, read_samples
from datasets.bad_images import BadImageList
from datasets.transforms import DeviceTransform
from engine.checkpoint import find_checkpoint, load_checkpoint
from engine.dry_run import dry_run
from engine.precision import Precision
from engine.report import peak_memory_bytes, validation_line, write_result
from engine.step import evaluate
from engine.trainer import Trainer
from models import build_model
from utils.distributed import ProcessContext, broadcast_object
from utils.errors import UserError
from utils.logger import RunLogger, is_run_folder, make_run_folder


def run(command: Command, context: ProcessContext, script: str) -> None:
    """Does what the command asks for, on every rank alike. `script` is named in the command that evaluates the result.

    Raises:
        UserError: anything the user can put right.
    """
    config = command.config
    try:
        if command.dry_run:
            dry_run(config, context)
        elif config.eval:
            _evaluate(config, context)
        else:
            _train(config, context, script)
    except torch.OutOfMemoryError as error:
        raise UserError(
            f"out of GPU memory with {config.model.name} at -batch_size {config.data.batch_size}; "
            f"lower -batch_size, raise -accum_iter, or use -amp ({str(error).splitlines()[0]})"
        ) from error
    except OSError as error:
        raise UserError(f"{error.filename or 'the system'}: {error.strerror or error}") from error


def _train(config: Config, context: ProcessContext, script: str) -> None:
    checkpoint, folder = None, None
    if config.model.resume:
        path = find_checkpoint(config.model.resume)
        checkpoint = load_checkpoint(path)
        folder = path.parent if is_run_folder(path.parent) else None  # a resumed run goes on in its own folder
    options_file = "config.yaml" if folder is None else "config-resumed.yaml"
    folder = folder or _new_folder(config, "train", context)
    logger = _open_log(config.with_model(resume=None), context, folder, options_file)
    if checkpoint:
        config = config.with_model(pretrained=None)  # the checkpoint has all weights, and that file may be gone
    result = Trainer(config, context, folder, logger, checkpoint).train()
    if not result["finished"]:
        logger.info(f"----- Stopped at TRAIN.MAX_STEPS; go on with -resume={shlex.quote(str(folder))}")
    if result["top1"] is not None:
        command = f"-cfg={folder}/config.yaml", "-eval", f"-pretrained={result['checkpoint']}"
        logger.info(
            f"----- Best top-1: {result['top1']:.2f}% (epoch {result['epoch']}), {result['checkpoint']}\n"
            f"      Evaluate it: python {script} {shlex.join(command)}"
        )


def _evaluate(config: Config, context: ProcessContext) -> None:
    folder = _new_folder(config, "eval", context)
    logger = _open_log(config, context, folder, "config.yaml")
    if config.model.resume:
        config = config.with_model(pretrained=str(find_checkpoint(config.model.resume)))
    model, notes = build_model(config, context.device)
    for note in notes:
        logger.info(f"----- Pretrained: {note}")
    precision = Precision(config.amp, context.device)
    precision.prepare(model)
    model = precision.computing(model)
    logger.info(f"----- {context.world_size} process(es), {context.device}, {precision.describe()}")
    (samples,) = read_samples(config, context, "val")
    for note in samples.notes:
        logger.info(f"----- Data: {note}")
    loader = eval_loader(config, samples, context, BadImageList(folder, context.rank))
    started = time.perf_counter()
    transform = DeviceTransform(config.data).to(context.device)
    metrics = evaluate(model, loader, transform, precision, context)
    seconds = time.perf_counter() - started
    logger.info(validation_line("", metrics, len(samples), seconds))
    if context.is_main:
        result = {
            "top1": metrics.top1,
            "top5": metrics.top5,
            "loss": metrics.loss,
            "checkpoint": config.model.pretrained,
            "images_per_second": metrics.samples / seconds,
            "peak_memory_bytes": peak_memory_bytes(context.device),
        }
        write_result(folder, result)


def _new_folder(config: Config, kind: str, context: ProcessContext) -> Path:
    return broadcast_object(make_run_folder(Path(config.save), kind) if context.is_main else None, context)


def _open_log(config: Config, context: ProcessContext, folder: Path, options_file: str) -> RunLogger:
    logger = RunLogger(folder, context)
    if context.is_main:
        (folder / options_file).write_text(to_yaml(config))
    logger.info(to_yaml(config))
    logger.info(f"----- Output: {folder}")
    return logger
