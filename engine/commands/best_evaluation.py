"""The end of a training run: the evaluations of its best checkpoint."""

import time
from typing import Any

from datasets.loading.batches import build_eval_loader
from datasets.sources.samples import Samples
from engine.checkpoint.run_folder import BEST, saved_path
from engine.run.result import TEST_EVALUATION
from engine.run.step_report import log_validation
from engine.training.eval_model import EvalModel, build_eval_files, build_eval_model
from engine.training.run_report import Evaluated, evaluated_epoch
from engine.training.trainer import Trainer
from utils.distributed import broadcast_object
from utils.errors import UserError


def evaluate_best(trainer: Trainer, epoch: int) -> dict[str, Any]:
    """Evaluates the best checkpoint, of epoch `epoch`; a collective call.

    Writes the evaluation files of the validation, unless the run has written them, and of the held-out test images if
    there are any. Returns the entry `test` of result.json: the metrics, and the number of samples.
    """
    folder, context, test = trainer.record.folder, trainer.context, trainer.plan.test
    is_written = broadcast_object(context.is_main and evaluated_epoch(folder) == epoch, context)
    if is_written and test is None:
        return {}
    best = broadcast_object(saved_path(folder / BEST), context)
    built = build_eval_model(trainer.config.with_model(pretrained=str(best)), context)
    if not is_written:
        _evaluate_validation(trainer, built, epoch)
    return {} if test is None else {"test": _evaluate_test(trainer, built, epoch, test)}


def _evaluate_validation(trainer: Trainer, built: EvalModel, epoch: int) -> None:
    record = trainer.record
    name = saved_path(record.folder / BEST).name
    record.logger.info(f"----- Evaluation of {name}, epoch {epoch}, for {record.evaluation.folder}")
    metrics, results = built.evaluator.evaluate(built.compute, trainer.session.val_batches)
    if trainer.report:
        trainer.report.update(Evaluated(model=built.compute, metrics=metrics, results=results, epoch=epoch), now=True)


def _evaluate_test(trainer: Trainer, built: EvalModel, epoch: int, test: Samples) -> dict[str, Any]:
    """Unreadable images are skipped and listed: they must not turn a finished training into a failed one."""
    config, record, context = trainer.config, trainer.record, trainer.context
    data = config.data.model_copy(update={"on_bad_image": "skip"})
    batches = build_eval_loader(data, test, context, config.timeout_seconds, trainer.session.bad_images)
    started = time.perf_counter()
    try:
        metrics, results = built.evaluator.evaluate(built.compute, batches)
    except UserError as error:  # on all ranks: no image is readable
        record.logger.warn(f"Warning: test images: {error}")
        return {"error": str(error)}
    seconds = time.perf_counter() - started
    title = f"Epoch {epoch}, {saved_path(record.folder / BEST).name}, "
    log_validation(record.logger, title, metrics, config.model.num_logits, len(test), seconds, split="Test")
    if results:  # on the main process
        files = build_eval_files(config, test, built.evaluator, record.folder, TEST_EVALUATION)
        try:
            files.write(metrics, results, built.compute, epoch=epoch, split="test")
        except OSError as error:  # the result is more important
            record.logger.warn(f"Warning: {error.filename or files.folder} cannot be written: {error.strerror}")
    return {**metrics.values, "samples": metrics.samples}
