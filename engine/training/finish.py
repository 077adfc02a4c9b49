"""The end of a training run: the evaluations of its best checkpoint, the result, the last lines of the log."""

import time
from typing import Any

from configs.command_line import Command
from datasets.loading.loader import build_eval_loader
from datasets.sources.samples import Samples
from engine.checkpoint.run_folder import BEST, LAST, saved_path
from engine.evaluation.files import NOT_DRAWN
from engine.evaluation.session import EvalModel, build_eval_files, build_eval_model
from engine.report import REPORT
from engine.run.folder import next_command
from engine.run.record import TEST_EVALUATION
from engine.run.reporter import log_validation
from engine.training.run_files import Evaluated
from engine.training.trainer import Trainer
from utils.device import device_name, peak_memory_bytes
from utils.distributed import broadcast_object
from utils.errors import UserError
from utils.metric_table import METRICS
from utils.signals import Interrupted
from utils.tables import format_duration


def finish_run(command: Command, trainer: Trainer) -> int:
    """Evaluates the best checkpoint, records the result and logs it; returns the exit status. A collective call."""
    outputs, position, has_ended = trainer.outputs, trainer.position, trainer.has_ended()
    record, best, clock, model = outputs.record, position.best, position.clock, outputs.reporter.model
    reason = None
    if has_ended and best and trainer.stops_early(trainer.progress.epoch):
        patience = f"TRAIN.PATIENCE: {trainer.config.train.patience}"
        reason = f"no better evaluation in {trainer.progress.epoch - best['epoch']} epochs ({patience})"
    record.set_result(
        finished=has_ended,
        stopped_early=reason is not None,
        reason=reason,
        checkpoint=str(saved_path(outputs.folder / (BEST if best else LAST)).absolute()),
        images_per_second=clock.images / clock.seconds if clock.images else None,
        train_seconds=clock.seconds,
        total_seconds=clock.total_seconds,
        parameters=model.parameters,
        trainable_parameters=model.trainable,
        peak_memory_bytes=peak_memory_bytes(trainer.context.device),
        numeric_precision=trainer.state.precision.name,
        device=device_name(trainer.context.device),
    )
    if best:
        record.set_best(best, saved_path(outputs.folder / BEST))
    if trainer.context.is_main:
        record.update()  # the evaluation after it may fail
    if has_ended and best:
        try:
            record.set_result(test=_evaluate_best(trainer, best["epoch"]))
            trainer.baseline.record(is_end=True)
        except Interrupted as signal:
            trainer.interrupted = signal
    if baseline := trainer.baseline.result:
        record.set_result(pixel_baseline=baseline.pixel_baseline, majority_class=baseline.majority_class)
    record.set_result(total_seconds=clock.total_seconds)
    outputs.reporter.finish()
    return _conclude(command, trainer)


def _evaluate_best(trainer: Trainer, epoch: int) -> dict[str, Any] | None:
    """Evaluates the best checkpoint, of epoch `epoch`; a collective call. Returns the result on test images.

    Writes the evaluation files of the validation, unless the run has written them, and of the held-out test images if
    there are any.
    """
    outputs, context, test = trainer.outputs, trainer.context, trainer.plan.test
    files = outputs.evaluation.values if context.is_main else {}
    is_written = files.get("epoch") == epoch and files.get("attention", NOT_DRAWN) != NOT_DRAWN
    is_written = broadcast_object(is_written, context)
    if is_written and test is None:
        return None
    best = broadcast_object(saved_path(outputs.folder / BEST), context)
    built = build_eval_model(
        trainer.config.with_model(pretrained=str(best)), context, weights_size=trainer.config.data.input_size
    )
    if not is_written:
        outputs.logger.info(f"----- Evaluation of {best.name}, epoch {epoch}, for {outputs.evaluation.folder}")
        metrics, results = built.evaluator.evaluate(built.compute, trainer.session.val_batches)
        if trainer.report:
            trainer.report.update(Evaluated(built.compute, metrics, results, epoch), now=True)
    return None if test is None else _evaluate_test(trainer, built, epoch, test)


def _evaluate_test(trainer: Trainer, built: EvalModel, epoch: int, test: Samples) -> dict[str, Any]:
    """Unreadable images are skipped and listed: they must not turn a finished training into a failed one."""
    config, outputs, session = trainer.config, trainer.outputs, trainer.session
    data = config.data.model_copy(update={"on_bad_image": "skip"})
    batches = build_eval_loader(
        data, test, trainer.context, config.timeout_seconds, session.bad_images, memory=session.val_batches
    )
    unknown = dict.fromkeys((*METRICS, "samples", "unreadable", "error"))
    started = time.perf_counter()
    try:
        metrics, results = built.evaluator.evaluate(built.compute, batches)
    except UserError as error:  # on all ranks: no image is readable
        outputs.logger.warn(f"Warning: test images: {error}")
        return unknown | {"unreadable": len(test), "error": str(error)}
    seconds = time.perf_counter() - started
    title = f"Epoch {epoch}, {saved_path(outputs.folder / BEST).name}, "
    log_validation(outputs.logger, title, metrics, config.model.num_logits, len(test), seconds, split="Test")
    if results:  # on the main process
        files = build_eval_files(config, test, built.evaluator, outputs.folder, TEST_EVALUATION)
        try:
            files.write(metrics, results, built.compute, epoch=epoch, split="test")
        except OSError as error:  # the result is more important
            outputs.logger.warn(f"Warning: {error.filename or files.folder} cannot be written: {error.strerror}")
    return unknown | {**metrics.values, "samples": metrics.samples, "unreadable": len(test) - metrics.samples}


def _conclude(command: Command, trainer: Trainer) -> int:
    """Logs how the run ended and how to resume or evaluate it; returns the exit status."""
    signal, logger, folder = trainer.interrupted, trainer.outputs.logger, trainer.outputs.folder
    record = trainer.outputs.record
    result: dict[str, Any] = record.values["result"]
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
    clock = trainer.position.clock  # the record of another rank may lack its seconds
    total, steps = map(format_duration, (clock.total_seconds, clock.seconds))
    logger.info(f"----- Total time: {total}, of it {steps} in training steps")
    if not trainer.report:
        return signal.status if signal else 0
    from engine.report.overview import class_figures, verdict_of  # imported late, as the page

    record.update(**outcome)  # writes the evaluation of the best epoch, and the page
    contents = trainer.report.contents
    metric, score = contents.metric, contents.score
    if result["epoch"] is not None and score is not None:
        average, raw = result["average_score"] or 0.0, result["raw_score"] or 0.0
        last = f"{metric.title} of the average {metric.text(average)}, of the raw weights {metric.text(raw)}"
        best, both = f"Best {metric.title}: {metric.text(score)}", f"\n      Last epoch: {last}"
        both = both if abs(average - raw) > 1 else ""
        evaluate = next_command(command, "-eval", f"-pretrained={result['checkpoint']}")
        predict = next_command(command, f"-resume={folder}", "-predict")
        logger.info(
            f"----- {best} (epoch {result['epoch']}){class_figures(contents)}, {result['checkpoint']}{both}\n"
            f"      Report: {folder / REPORT}\n"
            f"      Evaluate it: {evaluate}\n"
            f"      Label images: {predict} FOLDER"
        )
    if any(verdict := verdict_of(contents)):
        logger.info(f"----- {' Try: '.join(verdict)}")
    return signal.status if signal else 0
