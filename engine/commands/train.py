"""The training command."""

from contextlib import ExitStack, suppress
from typing import Any

from configs.reading.command_line import Command
from configs.schema import Config
from engine.checkpoint.run_folder import lock_run_folder
from engine.commands.best_evaluation import evaluate_best
from engine.plan.training import plan_training
from engine.report import REPORT
from engine.run.folder import next_command, start_log
from engine.run.result import write_result
from engine.training.batch_size import find_batch_size
from engine.training.record import open_record
from engine.training.session import build_session
from engine.training.trainer import Trainer
from utils.distributed import ProcessContext
from utils.errors import UserError
from utils.signals import Interrupted
from utils.tables import format_duration


def train(command: Command, context: ProcessContext) -> int:
    """Trains, from the start or from a checkpoint. Returns the exit status: 0, or the status of a signal.

    Options, data and checkpoint are checked before the folder of the run is created, or changed. The main process locks
    it; the folder of a resumed run before its checkpoint is read.
    """
    logger = start_log(command, context)
    with ExitStack() as locks:
        lock = lambda folder: locks.enter_context(lock_run_folder(folder))  # noqa: E731
        plan = plan_training(command, context, logger, find_batch_size, lock)
        session = build_session(plan, context, logger)
        record = open_record(command, session, logger, locks)
        locks.callback(record.reporter.close)  # if training fails
        trainer = _trainer_type(plan.config)(session, record)
        result = trainer.train()
        if context.is_main:
            write_result(record.folder, result)  # the evaluation after it may fail
        if result["finished"] and "epoch" in result:
            try:
                result |= evaluate_best(trainer, result["epoch"])
                trainer.baseline.record(is_end=True)
            except Interrupted as signal:
                trainer.interrupted = signal
        if baseline := trainer.baseline.result:
            result |= {"pixel_baseline": baseline.pixel_baseline, "majority_class": baseline.majority_class}
        result["total_seconds"] = trainer.position.clock.total_seconds
        record.reporter.finish(result)
        return _conclude(command, trainer, result)


def _trainer_type(config: Config) -> type[Trainer]:
    if config.model.tuned != "probe":
        return Trainer
    from engine.features.probe_trainer import ProbeTrainer  # imported where it is used

    return ProbeTrainer


def _conclude(command: Command, trainer: Trainer, result: dict[str, Any]) -> int:
    """Logs how the run ended and how to resume or evaluate it; returns the exit status."""
    signal, logger, folder = trainer.interrupted, trainer.record.logger, trainer.record.folder
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

        trainer.record.status.update(**outcome)  # writes the evaluation of the best epoch, and the page
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
