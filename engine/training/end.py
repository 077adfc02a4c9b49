"""The end of a run: the evaluations of the best checkpoint, the result, and the last lines of the log."""

import math
import time
from dataclasses import dataclass, replace

from configs.command_line import Command
from configs.yaml_io import Values
from datasets.loading.loader import build_eval_loader
from datasets.sources.samples import Samples
from engine.checkpoint.run_folder import BEST, LAST
from engine.evaluation.fast import speed_up
from engine.evaluation.files import NOT_DRAWN, EvaluationFiles
from engine.evaluation.session import EvalModel, build_eval_model
from engine.features.probe import evaluate_test_images
from engine.progress import Evaluated
from engine.report.contents import RunContents
from engine.run.folder import next_command
from engine.run.log import RunLogger
from engine.run.record import REPORT, TEST_EVALUATION
from engine.run.reporter import log_validation
from engine.training.trainer import Trainer
from models.weights.choose import EVALUATE, FEATURES
from utils.device import device_name, peak_memory_bytes
from utils.distributed import broadcast_object, call_on_main
from utils.errors import UserError, from_here
from utils.metric_table import METRICS, with_old_names
from utils.signals import Interrupted
from utils.tables import format_duration

_MAX_NAMED = 20  # unreadable test images, in the result


def finish_run(command: Command, trainer: Trainer) -> int:
    """Evaluates the best checkpoint, records the result and logs it; returns the exit status. A collective call."""
    position = trainer.position
    record = trainer.record
    best = trainer.position.best
    _record_training(trainer)
    try:
        if position.has_ended and best:
            record.set_result(test=_evaluate_best(trainer, best["epoch"]))
        for _ in range(2):  # an exchange has the requests of the one before; what follows ends by itself
            trainer.trigger.after_last_batch()
    except Interrupted as signal:
        trainer.interrupted = signal
    if position.has_ended and not trainer.interrupted:
        trainer.baseline.record(is_end=True)
    trainer.images_table.write(trainer.outputs.folder / LAST)  # with the images of later epochs, and of the test
    if baseline := trainer.baseline.result:
        record.set_result(pixel_baseline=baseline.pixel_baseline, majority_class=baseline.majority_class)
    record.set_result(total_seconds=position.clock.total_seconds)
    trainer.reporter.finish()
    end = end_of(record.values["result"], trainer.interrupted, position.horizon.num_epochs)
    total, steps = (format_duration(seconds) for seconds in (position.clock.total_seconds, position.clock.seconds))
    trainer.logger.log(f"----- Total time: {total}, of it {steps} in training steps")

    def conclude() -> None:
        resume = next_command(command, f"-resume={record.folder.absolute()}", *end.flags)
        result = record.values["result"]
        # A final state: by `record.on_end`, the report writes the files of the best epoch, and the page.
        record.update(
            state=end.state,
            exit_status=end.status,
            signal=end.signal,
            resume=None if end.state == "finished" else resume,
            stopped_early=result["stopped_early"],
            reason=result["reason"],
        )
        _say_result(trainer.report.contents, result, total, trainer.logger)
        _say_what_follows(end, resume, command, trainer)

    call_on_main(conclude, trainer.context)
    return end.status


def _record_training(trainer: Trainer) -> None:
    """The result as far as the training has it; run.json has it before the evaluation, which may fail."""
    position = trainer.position
    record = trainer.record
    folder = trainer.outputs.folder
    best = position.best
    clock = position.clock
    model = trainer.reporter.model
    epoch = position.progress.epoch
    reason = None
    if best and position.has_ended and position.stops_early(epoch):
        patience = f"TRAIN.PATIENCE: {trainer.config.train.patience}"
        reason = f"no better evaluation in {epoch - best['epoch']} epochs ({patience})"
    record.set_result(
        finished=position.has_ended,
        stopped_early=reason is not None,
        reason=reason,
        checkpoint=str((folder / LAST).absolute()),
        images_per_second=clock.images / clock.seconds if clock.images else None,
        train_seconds=clock.seconds,
        total_seconds=clock.total_seconds,
        parameters=model.parameters,
        trainable_parameters=model.trainable,
    )
    if not record.values["result"]["device"]:  # else of a start that trained
        device = trainer.context.device
        record.set_result(
            peak_memory_bytes=peak_memory_bytes(device),
            numeric_precision=trainer.state.precision.name,
            device=device_name(device),
        )
    if best:
        record.set_best(best, folder / BEST)
    if trainer.context.is_main:  # other ranks write only how the run ended
        record.update()


def _evaluate_best(trainer: Trainer, epoch: int) -> Values | None:
    """The result on test images of the best checkpoint, of epoch `epoch`; None without some. A collective call.

    Writes the evaluation files of the test images, and of the validation unless the run has written them: with the
    results of the epoch, which a run that is resumed after it does not have, so that it evaluates the checkpoint.
    """
    config = trainer.config
    outputs = trainer.outputs
    context = trainer.context
    test = trainer.plan.test
    known = outputs.evaluation.values
    kept = trainer.report.best  # on the main process
    is_known = known.get("epoch") == epoch and known.get("attention", NOT_DRAWN) != NOT_DRAWN
    is_known, is_kept = broadcast_object((is_known, kept is not None and kept.epoch == epoch), context)
    is_written = is_known and not is_kept  # by this start, or by one that wrote the epoch and was killed before its end
    if is_written and test is None:
        return None
    best = config.with_model(pretrained=str(outputs.folder / BEST), weights_entry=None)  # of the initial weights
    trainer.state.free()
    built = build_eval_model(best, context)
    number = len(test or ()) + (0 if is_written or is_kept else len(trainer.plan.val))
    purpose = FEATURES if config.model.solves_head else EVALUATE
    trainer.logger.note(*speed_up(built.compute, config, built.evaluator.precision, number, purpose))
    if not is_written:
        evaluated = kept and replace(kept, model=built.compute)
        if not is_kept:
            trainer.logger.log(f"----- Evaluation of {BEST}, epoch {epoch}, for {outputs.evaluation.folder}")
            batches = trainer.session.val_batches
            metrics, results = built.evaluator.evaluate(built.compute, batches, trainer.trigger.after_last_batch)
            evaluated = Evaluated(built.compute, metrics, results, epoch)
        call_on_main(lambda: trainer.report.update(evaluated, now=True), context)
    return None if test is None else with_old_names(_evaluate_test(trainer, built, test, epoch))


def _evaluate_test(trainer: Trainer, built: EvalModel, test: Samples, epoch: int) -> Values:
    """The result of a model on the held-out test images, with its files; a collective call.

    Unreadable images are skipped and listed: they must not turn a finished training into a failed one.
    """
    config = trainer.config.with_data(on_bad_image="skip")
    logger = trainer.logger
    bad_images = trainer.session.bad_images
    unknown = dict.fromkeys((*METRICS, "samples", "unreadable", "unreadable_images", "error"))
    started = time.perf_counter()
    try:
        if config.model.solves_head:
            metrics, results = evaluate_test_images(config, built, test, bad_images, trainer.trigger.after_last_batch)
        else:
            batches = build_eval_loader(config, test, trainer.context, bad_images)
            metrics, results = built.evaluator.evaluate(built.compute, batches, trainer.trigger.after_last_batch)
    except UserError as error:
        if trainer.context.world_size > 1 and not error.is_shared:  # the other ranks wait for this one
            raise
        logger.warn(f"test images: {error}")
        names = [test.name(index) for index in range(len(test))[:_MAX_NAMED]]
        return unknown | {"unreadable": len(test), "unreadable_images": names, "error": str(error)}
    seconds = time.perf_counter() - started
    title = f"Epoch {epoch}, {BEST}, "
    log_validation(logger, title, metrics, config.model.num_logits, seconds, split="Test")
    num_bad = len(test) - metrics.samples

    def write() -> None:
        assert results
        if num_bad:
            logger.warn(
                f"{num_bad} of {len(test)} test images cannot be read and do not count; bad_images_*.csv names them"
            )
        files = EvaluationFiles(trainer.outputs.folder / TEST_EVALUATION, test, trainer.config, built.evaluator)
        try:
            files.write(metrics, results, built.compute, epoch=epoch, split="test")
        except (OSError, UserError) as error:  # the result is more important
            logger.warn(f"{files.folder} cannot be written: {error}")

    call_on_main(write, trainer.context)
    names = [test.name(index) for index in sorted(results.errors if results else ())[:_MAX_NAMED]]
    counts = {"samples": metrics.samples, "unreadable": num_bad, "unreadable_images": names}
    return unknown | {**metrics.values, **counts}


@dataclass(frozen=True)
class End:
    """How a run ended.

    state: as in status.json. why: a sentence for the screen, '' for a complete run. flags: of the command that
    continues the run. status: of the process.
    """

    state: str
    flags: tuple[str, ...] = ()
    why: str = ""
    status: int = 0
    signal: str | None = None


def end_of(result: Values, signal: Interrupted | None, num_epochs: int) -> End:
    """The end that the result of a run shows. signal: the one that interrupted it; none in its last step does."""
    if signal:
        return End("interrupted", why=f"Interrupted by {signal}; saved. ", status=signal.status, signal=str(signal))
    if not result["finished"]:
        return End("stopped", ("-opts", "TRAIN.MAX_STEPS=null"), "Stopped at TRAIN.MAX_STEPS. ")
    if result["stopped_early"]:
        return End("finished", ("-opts", "TRAIN.PATIENCE=null"), f"Stopped early: {result['reason']}. ")
    return End("finished", (f"-epochs={2 * num_epochs}",))


def _say_what_follows(end: End, resume: str, command: Command, trainer: Trainer) -> None:
    """Logs the verdict, and the commands that follow. resume: the one that continues the run."""
    from engine.report.verdict import verdict_of  # late, as the page

    logger = trainer.logger
    record = trainer.record
    report = trainer.report
    result = record.values["result"]
    verdict, advised = verdict_of(report.contents)
    if verdict:
        logger.info(f"----- {verdict}")
    if report.has_page:  # else a warning says why
        logger.info(f"----- Report: {record.folder / REPORT}")
    if result["epoch"] is not None:
        predict = next_command(command, f"-resume={record.folder.absolute()}", "-predict", "FOLDER")
        logger.info(f"----- Predict: {from_here(predict)}")
    # The screen has one command that trains on: an unfinished run is continued, a finished one follows the advice.
    if end.why:
        logger.info(f"----- {end.why}Continue: {from_here(resume)}")
    elif advised:
        logger.info(f"----- Try: {from_here(advised)}")
    elif not trainer.config.model.solves_head:
        logger.info(f"----- Continue: {from_here(resume)}")
    evaluate = next_command(command, "-eval", f"-pretrained={result['checkpoint']}")
    logger.log(f"----- Evaluate it: {from_here(evaluate)}")


def _say_result(contents: RunContents, result: Values, total: str, logger: RunLogger) -> None:
    """Logs the best epoch and the time of the run, its classes, and the raw weights of the last one."""
    from engine.report.overview import class_lines, score_text, shift_by_weights  # late, as the page

    metric = contents.metric
    if shift := shift_by_weights(contents):
        logger.warn(shift)
    if result["epoch"] is not None:
        score = math.nan if contents.score is None else contents.score
        best = f"{score_text(contents, contents.evaluation, score)} (epoch {result['epoch']})"
        if contents.test_score is not None:
            test = score_text(contents, contents.test, contents.test_score)
            best += f"; test: {test} ({contents.test_result['samples']} images)"
        logger.info(f"----- Best {metric.title}: {best}, in {total}")
        for line in class_lines(contents):
            logger.info(f"----- {line}")
