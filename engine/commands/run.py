"""What an entry script starts: training, evaluation, a profile, or a dry run."""

import os
import shlex
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from configs.command_line import Command, to_yaml
from configs.schema import Config
from datasets.decoding.bad_images import BadImageList
from datasets.loading.batches import build_eval_loader
from datasets.registry import read_samples
from datasets.transforms.device import build_eval_transform
from engine.checkpoint.checkpoint import FoundCheckpoint, find_checkpoint, load_checkpoint
from engine.checkpoint.run_folder import is_run_folder, lock_run_folder, make_run_folder
from engine.commands.dry_run import dry_run
from engine.precision.policy import Precision
from engine.profiling.profiler import profile_run
from engine.telemetry.reporter import peak_memory_bytes, validation_line, write_result
from engine.training.choices import Choices, choose_attention
from engine.training.memory import out_of_memory
from engine.training.step import evaluate
from engine.training.trainer import IN_EVALUATION, Trainer
from models.build import build_model
from utils.device import keep_freed_memory
from utils.distributed import ProcessContext, broadcast_object, set_collective_timeout
from utils.errors import UserError
from utils.logger import RunLogger
from utils.signals import kill_children
from utils.status import RunStatus


def run(command: Command, context: ProcessContext, script: str) -> int:
    """Does what the command asks for, on every rank alike. `script` is named in the command that evaluates the result.

    Returns:
        the exit status: 0, or that of the signal which ended a training run.
    Raises:
        UserError: anything the user can put right.
    """
    config = command.config
    if context.device.type == "cpu":
        keep_freed_memory()
    set_collective_timeout(context, config.timeout_seconds)
    shortage = None
    try:
        if command.dry_run:
            dry_run(config, context)
        elif command.profile:
            _profile(config, context)
        elif config.eval:
            _evaluate(config, context)
        else:
            return _train(config, context, script)
    except torch.OutOfMemoryError as error:
        # What the error holds must go before anything can be measured.
        shortage, in_evaluation = str(error), config.eval or IN_EVALUATION in getattr(error, "__notes__", ())
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
        kill_children()
    if shortage is not None:
        raise out_of_memory(config, context, shortage, in_evaluation)
    return 0


def _train(config: Config, context: ProcessContext, script: str) -> int:
    with ExitStack() as holds:
        # What is held is read only then: the run before may still have been saving.
        found = _find_checkpoint(config, context, hold=lambda folder: holds.enter_context(lock_run_folder(folder)))
        goes_on = found is not None and is_run_folder(found.path.parent)
        folder = found.path.parent if goes_on else _new_folder(config, "train", context)
        if context.is_main and not goes_on:
            holds.enter_context(lock_run_folder(folder))
        status = RunStatus(folder, context.world_size)
        if context.is_main:
            status.begin()
        logger = _open_log(config, context, folder, "config-resumed.yaml" if goes_on else "config.yaml")
        state = None
        if found:
            _tell_found(found, logger)
            config = config.with_model(pretrained=None)  # the checkpoint has all weights, and that file may be gone
            state = found.state
        elif config.model.resume:
            logger.info(f"----- Resume: no run in {config.save} has a checkpoint yet, so this one starts anew")
        trainer = Trainer(config, context, folder, logger, state)
        del state, found  # as large as the model and its moments
        return _conclude(trainer, trainer.train(status), status, script)


def _tell_found(found: FoundCheckpoint, logger: RunLogger) -> None:
    for note in found.notes:
        logger.info(f"----- Resume: passed over: {note}")
    logger.info(f"----- Resume: from {found.path}")


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
        status.update(**outcome)
    return signal.status if signal else 0


def _find_checkpoint(
    config: Config, context: ProcessContext, hold: Callable[[Path], Any] = lambda folder: None
) -> FoundCheckpoint | None:
    """What `-resume` means: the main process looks, and holds the run's folder; the others take the same file."""
    if not config.model.resume:
        return None
    found = find_checkpoint(config.model.resume, Path(config.save), hold) if context.is_main else None
    path = broadcast_object(found.path if found else None, context)
    if path is None or context.is_main:
        return found
    return FoundCheckpoint(path, load_checkpoint(path), [])


def _evaluate(config: Config, context: ProcessContext) -> None:
    folder = _new_folder(config, "eval", context)
    logger = _open_log(config, context, folder, "config.yaml")
    choices = Choices(context, logger)
    if config.model.resume:
        found = _find_checkpoint(config, context)
        if found is None:
            raise UserError(f"-resume auto: no run in {config.save} has a checkpoint to evaluate; give -pretrained")
        _tell_found(found, logger)
        choices = Choices(context, logger, found.state["choices"])
        config = config.with_model(pretrained=str(found.path))
    model, notes = build_model(config, context.device)
    for note in notes:
        logger.info(f"----- Pretrained: {note}")
    precision = Precision(config.amp, context.device)
    choose_attention(model, config.model, config.data.eval_batch_size, precision, choices)
    precision.prepare(model)
    model = precision.computing(model)
    logger.info(f"----- {context.world_size} process(es), {context.device}, {precision.describe()}")
    (samples,) = read_samples(config.data, config.model.num_classes, context, "val")
    for note in samples.notes:
        logger.info(f"----- Data: {note}")
    bad_images = BadImageList(folder, context.rank)
    loader = build_eval_loader(config.data, samples, context, config.timeout_seconds, bad_images)
    started = time.perf_counter()
    transform = build_eval_transform(config.data).to(context.device)
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


def _profile(config: Config, context: ProcessContext) -> None:
    """In a folder of its own, without checkpoints: no run would go on from there."""
    folder = _new_folder(config, "profile", context)
    status = RunStatus(folder, context.world_size)
    if context.is_main:
        status.begin()
    logger = _open_log(config, context, folder, "config.yaml")
    unsaved = config.model_copy(update={"save_freq_steps": None, "save_freq_minutes": None})
    profile_run(Trainer(unsaved, context, folder, logger, None), status)
    if context.is_main:
        status.update(state="finished")


def _new_folder(config: Config, kind: str, context: ProcessContext) -> Path:
    return broadcast_object(make_run_folder(Path(config.save), kind) if context.is_main else None, context)


def _open_log(config: Config, context: ProcessContext, folder: Path, options_file: str) -> RunLogger:
    """The options are written so that they start the same run anew."""
    logger = RunLogger(folder, context)
    options = to_yaml(config if config.eval else config.with_model(resume=None))
    if context.is_main:
        (folder / options_file).write_text(options)
    logger.info(options)
    logger.info(f"----- Output: {folder}")
    return logger
