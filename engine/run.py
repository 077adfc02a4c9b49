"""What an entry script starts: training, evaluation, or a dry run."""

import os
import shlex
import time
from contextlib import nullcontext
from pathlib import Path

import torch

from configs.load import Command, to_yaml
from configs.schema import Config
from datasets import eval_loader, read_samples
from datasets.bad_images import BadImageList
from datasets.transforms import DeviceTransform
from engine.checkpoint import Found, find_checkpoint, load_checkpoint
from engine.dry_run import dry_run
from engine.memory import out_of_memory
from engine.precision import Precision
from engine.report import peak_memory_bytes, validation_line, write_result
from engine.step import evaluate
from engine.trainer import Trainer
from models import build_model
from utils.distributed import ProcessContext, broadcast_object, limit_waiting
from utils.errors import UserError
from utils.logger import RunLogger
from utils.run_folder import held, is_run_folder, make_run_folder
from utils.signals import end_children
from utils.status import RunStatus


def run(command: Command, context: ProcessContext, script: str) -> int:
    """Does what the command asks for, on every rank alike. `script` is named in the command that evaluates the result.

    Returns:
        the exit status: 0, or that of the signal which ended a training run.
    Raises:
        UserError: anything the user can put right.
    """
    config = command.config
    limit_waiting(context, config.timeout_seconds)
    shortage = None
    try:
        if command.dry_run:
            dry_run(config, context)
        elif config.eval:
            _evaluate(config, context)
        else:
            return _train(config, context, script)
    except torch.OutOfMemoryError as error:
        shortage = str(error)  # what it holds must go before anything can be measured
    except OSError as error:
        where = os.fsdecode(error.filename) if error.filename else "the system"
        raise UserError(f"{where}: {error.strerror or error}") from error
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "DefaultCPUAllocator" not in str(error):
            raise
        raise UserError(
            f"out of host memory with {config.model.name} at -batch_size {config.data.batch_size} and "
            f"DATA.IMAGE_SIZE {config.data.image_size}; lower them, or raise -accum_iter"
        ) from error
    finally:
        end_children()
    if shortage is not None:
        raise out_of_memory(config, context, shortage)
    return 0


def _train(config: Config, context: ProcessContext, script: str) -> int:
    found = _find_checkpoint(config, context)
    # A resumed run goes on in its own folder.
    folder = found.path.parent if found and is_run_folder(found.path.parent) else None
    options_file = "config.yaml" if folder is None else "config-resumed.yaml"
    folder = folder or _new_folder(config, "train", context)
    with held(folder) if context.is_main else nullcontext():
        status = RunStatus(folder, context.world_size)
        if context.is_main:
            status.update()
        logger = _open_log(config.with_model(resume=None), context, folder, options_file)
        if found:
            for note in found.notes:
                logger.info(f"----- Resume: passed over: {note}")
            logger.info(f"----- Resume: from {found.path}")
            config = config.with_model(pretrained=None)  # the checkpoint has all weights, and that file may be gone
        elif config.model.resume:
            logger.info(f"----- Resume: no run in {config.save} has a checkpoint yet, so this one starts anew")
        trainer = Trainer(config, context, folder, logger, found.state if found else None)
        result = trainer.train(status)
        return _conclude(trainer, result, status, script)


def _conclude(trainer: Trainer, result: dict, status: RunStatus, script: str) -> int:
    """Tells how the run ended, and how to go on; returns the exit status."""
    signal, logger, folder = trainer.interrupted, trainer.logger, trainer.folder
    go_on = f"-resume={shlex.quote(str(folder))}"
    if signal:
        logger.info(f"----- Interrupted by {signal}, and saved; go on with {go_on}")
        outcome = {"state": "interrupted", "signal": str(signal), "resume": go_on}
    elif not result["finished"]:
        logger.info(f"----- Stopped at TRAIN.MAX_STEPS; go on with {go_on}")
        outcome = {"state": "stopped", "resume": go_on}
    else:
        outcome = {"state": "finished"}
    if result["top1"] is not None:
        command = f"-cfg={folder}/config.yaml", "-eval", f"-pretrained={result['checkpoint']}"
        logger.info(
            f"----- Best top-1: {result['top1']:.2f}% (epoch {result['epoch']}), {result['checkpoint']}\n"
            f"      Evaluate it: python {script} {shlex.join(command)}"
        )
    if trainer.context.is_main:
        status.end(**outcome)
    return signal.status if signal else 0


def _find_checkpoint(config: Config, context: ProcessContext) -> Found | None:
    """What `-resume` means: the main process looks, the others take the same file."""
    if not config.model.resume:
        return None
    found = find_checkpoint(config.model.resume, Path(config.save)) if context.is_main else None
    path = broadcast_object(found.path if found else None, context)
    if path is None or context.is_main:
        return found
    return Found(path, load_checkpoint(path), [])


def _evaluate(config: Config, context: ProcessContext) -> None:
    folder = _new_folder(config, "eval", context)
    logger = _open_log(config, context, folder, "config.yaml")
    if config.model.resume:
        found = _find_checkpoint(config, context)
        if found is None:
            raise UserError(f"-resume auto: no run in {config.save} has a checkpoint to evaluate; give -pretrained")
        config = config.with_model(pretrained=str(found.path))
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
