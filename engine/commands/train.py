"""The training command."""

from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from configs.reading.command_line import Command
from configs.reading.compare import resumed_options
from configs.schema import Config
from datasets.sources.samples import Samples
from engine.checkpoint.run_folder import lock_run_folder
from engine.checkpoint.split_entry import write_held_out
from engine.checkpoint.weights_record import describe_data, write_classes
from engine.commands.best_evaluation import evaluate_best
from engine.commands.next_command import next_command
from engine.commands.open_run import begin_status, enter_folder, find_on_all_ranks, open_new_folder, start_log
from engine.report import REPORT
from engine.run.loggers import check_loggers
from engine.run.result import write_result
from engine.training.run import build_run
from engine.training.run_data import read_run_data
from engine.training.snapshot import disk_note
from engine.training.trainer import Trainer
from utils.distributed import ProcessContext
from utils.errors import UserError
from utils.signals import Interrupted
from utils.tables import format_duration


def train(command: Command, context: ProcessContext) -> int:
    """Trains, from the start or from a checkpoint. Returns the exit status: 0, or the status of a signal."""
    with ExitStack() as locks:
        trainer, config, test = _open_trainer(command, context, locks)
        locks.callback(trainer.run.reporter.close)  # if training fails
        result = trainer.train()
        if trainer.context.is_main:
            write_result(trainer.run.folder, result)  # the evaluation after it may fail
        if result["finished"] and "epoch" in result:
            try:
                result |= evaluate_best(config, trainer, result["epoch"], test)
                trainer.baseline.record(is_end=True)
            except Interrupted as signal:
                trainer.interrupted = signal
        if baseline := trainer.baseline.result:
            result |= {"pixel_baseline": baseline.pixel_baseline, "majority_class": baseline.majority_class}
        result["total_seconds"] = trainer.position.clock.total_seconds
        trainer.run.reporter.finish(result)
        return _conclude(command, trainer, result)


def _open_trainer(
    command: Command, context: ProcessContext, locks: ExitStack
) -> tuple[Trainer, Config, Samples | None]:
    """Checks options, data and checkpoint; only then creates the run's folder, or changes the folder of a resumed run.

    A resumed run writes to the folder of its checkpoint, if that is the folder of a run. The main process locks it.

    Returns:
        the trainer, the completed options, and the held-out test images if there are any.
    """
    logger, config = start_log(command, context), command.config
    if context.is_main:
        check_loggers(config.loggers)
    # Lock before reading: the previous run may still be writing.
    found = find_on_all_ranks(config, context, logger, lambda folder: locks.enter_context(lock_run_folder(folder)))
    if config.model.resume and not found:
        logger.info(f"----- Resume: no run in {config.save} has a checkpoint of this experiment; starting a new run")
    if found:
        config = resumed_options(config, command.given, found.state["options"])
    config, splits = read_run_data(config, context, found.state if found else None)
    command = replace(command, config=config)
    if found:  # it has all weights, and the pretrained file may be missing
        config = config.with_model(pretrained=None)

    def open_folder(steps_done: int) -> Path:
        if found and found.run_folder:
            enter_folder(found.run_folder, command, context, logger, steps_done)
            return found.run_folder
        folder = open_new_folder(command, context, logger)
        if context.is_main:
            locks.enter_context(lock_run_folder(folder))
        return folder

    run, position = build_run(config, splits, context, logger, open_folder, found)
    if context.is_main:
        write_classes(run.folder, describe_data(config.data, run.class_names))
        write_held_out(run.folder, splits.split)
        logger.note(disk_note(run.state, run.folder))
    progress, checkpoint = position.progress, found and str(found.path.absolute())
    resume = next_command(command, f"-resume={run.folder.absolute()}", from_anywhere=True)
    saved = {"checkpoint": checkpoint, "epoch": progress.epoch, "step": progress.step} if found else {}
    saved |= {"resume": resume} if found and found.run_folder else {}
    trainer = _trainer_type(config)(run, begin_status(run.folder, context, resume, **saved), position)
    if report := trainer.report:
        trainer.status.on_end = lambda: report.update(now=True)
    return trainer, config, splits.test


def _trainer_type(config: Config) -> type[Trainer]:
    if config.model.tuned != "probe":
        return Trainer
    from engine.features.probe_trainer import ProbeTrainer  # imported where it is used

    return ProbeTrainer


def _conclude(command: Command, trainer: Trainer, result: dict[str, Any]) -> int:
    """Logs how the run ended and how to resume or evaluate it; returns the exit status."""
    signal, logger, folder = trainer.interrupted, trainer.run.logger, trainer.run.folder
    options: list[str] = []
    # A signal that arrives in the last step interrupts nothing.
    outcome: dict[str, Any] = {"state": "finished", "exit_status": 0, "resume": None, "signal": None}
    if signal:
        outcome |= {"state": "interrupted", "exit_status": signal.status, "signal": str(signal)}
        logger.warn(f"Interrupted by {signal}; saved; resume with: {next_command(command, f'-resume={folder}')}")
    elif not result["finished"]:
        outcome["state"], options = "stopped", ["-opts", "TRAIN.MAX_STEPS=null"]
        resume = next_command(command, f"-resume={folder}", *options)
        logger.info(f"----- Stopped at TRAIN.MAX_STEPS; resume with: {resume}")
    elif result["stopped_early"]:
        outcome |= {"stopped_early": True, "reason": result["reason"]}
        resume = next_command(command, f"-resume={folder}", "-opts", "TRAIN.PATIENCE=null")
        logger.info(f"----- Stopped early: {result['reason']}; continue with: {resume}")
    if outcome["state"] != "finished":
        outcome["resume"] = next_command(command, f"-resume={folder.absolute()}", *options, from_anywhere=True)
    total, steps = map(format_duration, (result["total_seconds"], result["train_seconds"]))
    logger.info(f"----- Total time: {total}, of it {steps} in training steps")
    figures, verdict = "", ("", "")
    if trainer.context.is_main:
        from engine.report.contents import read_contents  # imported late, as the page
        from engine.report.overview import class_figures
        from engine.report.verdict import verdict_of

        trainer.status.update(**outcome)  # writes the evaluation of the best epoch, and the page
        with suppress(UserError):  # a damaged file is not worth a run
            contents = read_contents(folder)
            figures, verdict = class_figures(contents), verdict_of(contents)
    metric = trainer.config.best_metric
    if (score := result.get(metric.name)) is not None:
        average, raw = result["average_score"] or 0.0, result["raw_score"] or 0.0
        last = f"{metric.title} of the average {metric.text(average)}, of the raw weights {metric.text(raw)}"
        best, both = f"Best {metric.title}: {metric.text(score)}", f"\n      Last epoch: {last}"
        both = both if abs(average - raw) > 1 else ""
        evaluate = next_command(command, "-eval", f"-pretrained={result['checkpoint']}")
        predict = next_command(command, f"-resume={folder}", "-predict")
        logger.info(
            f"----- {best} (epoch {result['epoch']}){figures}, {result['checkpoint']}{both}\n"
            f"      Report: {folder / REPORT}\n"
            f"      Evaluate it: {evaluate}\n"
            f"      Label images: {predict} FOLDER"
        )
    if any(verdict):
        logger.info(f"----- {' Try: '.join(verdict)}")
    return signal.status if signal else 0
