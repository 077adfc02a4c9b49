"""The end of a training run: the evaluations of its best checkpoint, `result.json`, the last lines of the log."""

import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

from configs.command_line import Command
from datasets.loading.loader import build_eval_loader
from datasets.sources.samples import Samples
from engine.checkpoint.run_folder import BEST, LAST, saved_path
from engine.evaluation.session import EvalModel, build_eval_files, build_eval_model
from engine.report import REPORT
from engine.run.folder import next_command
from engine.run.result import TEST_EVALUATION, Result, TestResult, write_result
from engine.run.step_report import log_validation
from engine.training.run_files import Evaluated, evaluated_epoch
from engine.training.trainer import Trainer
from utils.device import device_name, peak_memory_bytes
from utils.distributed import broadcast_object
from utils.errors import UserError
from utils.metric_table import METRICS
from utils.signals import Interrupted
from utils.tables import format_duration


def finish_run(command: Command, trainer: Trainer) -> int:
    """Evaluates the best checkpoint, writes the result and logs it; returns the exit status. A collective call."""
    record, result = trainer.record, _training_result(trainer)
    if trainer.context.is_main:
        write_result(record.folder, result)  # the evaluation after it may fail
    if result.finished and result.epoch is not None:
        try:
            result = replace(result, test=_evaluate_best(trainer, result.epoch))
            trainer.baseline.record(is_end=True)
        except Interrupted as signal:
            trainer.interrupted = signal
    if baseline := trainer.baseline.result:
        result = replace(result, pixel_baseline=baseline.pixel_baseline, majority_class=baseline.majority_class)
    result = replace(result, total_seconds=trainer.position.clock.total_seconds)
    record.reporter.finish(result)
    return _conclude(command, trainer, result)


def _training_result(trainer: Trainer) -> Result:
    """The result before the evaluations of the best checkpoint."""
    best, clock, model = trainer.position.best or {}, trainer.position.clock, trainer.record.reporter.model
    finished, epochs_done, reason = trainer.has_ended(), trainer.progress.epoch, None
    if stops_early := finished and trainer.stops_early(epochs_done):
        patience = f"TRAIN.PATIENCE: {trainer.config.train.patience}"
        reason = f"no better evaluation in {epochs_done - best['epoch']} epochs ({patience})"
    return replace(
        trainer.result,
        metrics={name: best[name] for name in METRICS if name in best},
        split="val" if best else None,
        epoch=best.get("epoch"),
        checkpoint=str(saved_path(trainer.record.folder / (BEST if best else LAST)).absolute()),
        images_per_second=clock.images / clock.seconds if clock.images else None,
        train_seconds=clock.seconds,
        total_seconds=clock.total_seconds,
        parameters=model.parameters,
        trainable_parameters=model.trainable,
        peak_memory_bytes=peak_memory_bytes(trainer.context.device),
        numeric_precision=trainer.state.precision.name,
        device=device_name(trainer.context.device),
        finished=finished,
        stopped_early=stops_early,
        reason=reason,
    )


def _evaluate_best(trainer: Trainer, epoch: int) -> TestResult | None:
    """Evaluates the best checkpoint, of epoch `epoch`; a collective call. Returns the result on test images.

    Writes the evaluation files of the validation, unless the run has written them, and of the held-out test images if
    there are any.
    """
    folder, context, test = trainer.record.folder, trainer.context, trainer.plan.test
    is_written = broadcast_object(context.is_main and evaluated_epoch(folder) == epoch, context)
    if is_written and test is None:
        return None
    best = broadcast_object(saved_path(folder / BEST), context)
    built = build_eval_model(
        trainer.config.with_model(pretrained=str(best)), context, weights_size=trainer.config.data.input_size
    )
    if not is_written:
        _evaluate_validation(trainer, built, epoch)
    return None if test is None else _evaluate_test(trainer, built, epoch, test)


def _evaluate_validation(trainer: Trainer, built: EvalModel, epoch: int) -> None:
    record = trainer.record
    name = saved_path(record.folder / BEST).name
    record.logger.info(f"----- Evaluation of {name}, epoch {epoch}, for {record.evaluation.folder}")
    metrics, results = built.evaluator.evaluate(built.compute, trainer.session.val_batches)
    if trainer.report:
        trainer.report.update(Evaluated(model=built.compute, metrics=metrics, results=results, epoch=epoch), now=True)


def _evaluate_test(trainer: Trainer, built: EvalModel, epoch: int, test: Samples) -> TestResult:
    """Unreadable images are skipped and listed: they must not turn a finished training into a failed one."""
    config, record, context = trainer.config, trainer.record, trainer.context
    data = config.data.model_copy(update={"on_bad_image": "skip"})
    session = trainer.session
    batches = build_eval_loader(
        data, test, context, config.timeout_seconds, session.bad_images, memory=session.val_batches
    )
    started = time.perf_counter()
    try:
        metrics, results = built.evaluator.evaluate(built.compute, batches)
    except UserError as error:  # on all ranks: no image is readable
        record.logger.warn(f"Warning: test images: {error}")
        return TestResult(unreadable=len(test), error=str(error))
    seconds = time.perf_counter() - started
    title = f"Epoch {epoch}, {saved_path(record.folder / BEST).name}, "
    log_validation(record.logger, title, metrics, config.model.num_logits, len(test), seconds, split="Test")
    if results:  # on the main process
        files = build_eval_files(config, test, built.evaluator, record.folder, TEST_EVALUATION)
        try:
            files.write(metrics, results, built.compute, epoch=epoch, split="test")
        except OSError as error:  # the result is more important
            record.logger.warn(f"Warning: {error.filename or files.folder} cannot be written: {error.strerror}")
    return TestResult(metrics.values, metrics.samples, len(test) - metrics.samples)


def _conclude(command: Command, trainer: Trainer, result: Result) -> int:
    """Logs how the run ended and how to resume or evaluate it; returns the exit status."""
    signal, logger, folder = trainer.interrupted, trainer.record.logger, trainer.record.folder
    options: list[str] = []
    # A signal that arrives in the last step interrupts nothing.
    outcome: dict[str, Any] = {"state": "finished", "exit_status": 0, "resume": None, "signal": None}
    if signal:
        outcome |= {"state": "interrupted", "exit_status": signal.status, "signal": str(signal)}
        logger.warn(f"Interrupted by {signal}; saved; resume with: {next_command(command, f'-resume={folder}')}")
    elif not result.finished:
        outcome["state"], options = "stopped", ["-opts", "TRAIN.MAX_STEPS=null"]
        resume = next_command(command, f"-resume={folder}", *options)
        logger.info(f"----- Stopped at TRAIN.MAX_STEPS; resume with: {resume}")
    elif result.stopped_early:
        outcome |= {"stopped_early": True, "reason": result.reason}
        resume = next_command(command, f"-resume={folder}", "-opts", "TRAIN.PATIENCE=null")
        logger.info(f"----- Stopped early: {result.reason}; continue with: {resume}")
    if outcome["state"] != "finished":
        outcome["resume"] = next_command(command, f"-resume={folder.absolute()}", *options, from_anywhere=True)
    total, steps = map(format_duration, (result.total_seconds or 0.0, result.train_seconds or 0.0))
    logger.info(f"----- Total time: {total}, of it {steps} in training steps")
    figures, verdict = "", ("", "")
    if trainer.context.is_main:
        from engine.report.contents import read_contents  # imported late, as the page
        from engine.report.overview import class_figures, verdict_of

        trainer.record.status.update(**outcome)  # writes the evaluation of the best epoch, and the page
        with suppress(UserError):  # a damaged file is not worth a run
            contents = read_contents(folder)
            figures, verdict = class_figures(contents), verdict_of(contents)
    metric = trainer.config.best_metric
    if (score := result.metrics.get(metric.name)) is not None:
        average, raw = result.average_score or 0.0, result.raw_score or 0.0
        last = f"{metric.title} of the average {metric.text(average)}, of the raw weights {metric.text(raw)}"
        best, both = f"Best {metric.title}: {metric.text(score)}", f"\n      Last epoch: {last}"
        both = both if abs(average - raw) > 1 else ""
        evaluate = next_command(command, "-eval", f"-pretrained={result.checkpoint}")
        predict = next_command(command, f"-resume={folder}", "-predict")
        logger.info(
            f"----- {best} (epoch {result.epoch}){figures}, {result.checkpoint}{both}\n"
            f"      Report: {folder / REPORT}\n"
            f"      Evaluate it: {evaluate}\n"
            f"      Label images: {predict} FOLDER"
        )
    if any(verdict):
        logger.info(f"----- {' Try: '.join(verdict)}")
    return signal.status if signal else 0
