"""The end of a training run: the evaluations of its best checkpoint."""

import time
from typing import Any

from configs.schema import Config
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


def evaluate_best(config: Config, trainer: Trainer, epoch: int, test: Samples | None) -> dict[str, Any]:
    """Evaluates the best checkpoint, of epoch `epoch`; a collective call.

    Writes the evaluation files of the validation, unless the run has written them, and of the held-out test images if
    there are any. Returns the entry `test` of result.json: the metrics, and the number of samples.
    """
    run, context = trainer.run, trainer.context
    is_written = broadcast_object(context.is_main and evaluated_epoch(run.folder) == epoch, context)
    if is_written and test is None:
        return {}
    best = broadcast_object(saved_path(run.folder / BEST), context)
    built = build_eval_model(config.with_model(pretrained=str(best)), context)
    if not is_written:
        _evaluate_validation(trainer, built, epoch)
    return {} if test is None else {"test": _evaluate_test(config, trainer, built, epoch, test)}


def _evaluate_validation(trainer: Trainer, built: EvalModel, epoch: int) -> None:
    run = trainer.run
    name = saved_path(run.folder / BEST).name
    run.logger.info(f"----- Evaluation of {name}, epoch {epoch}, for {run.validation.files.folder}")
    metrics, results = built.evaluator.evaluate(built.compute, run.validation.batches)
    if trainer.report:
        trainer.report.update(Evaluated(built.compute, metrics, results, epoch), now=True)


def _evaluate_test(config: Config, trainer: Trainer, built: EvalModel, epoch: int, test: Samples) -> dict[str, Any]:
    """Unreadable images are skipped and listed: they must not turn a finished training into a failed one."""
    run, context, num_classes = trainer.run, trainer.context, config.model.num_logits
    data = config.data.model_copy(update={"on_bad_image": "skip"})
    batches = build_eval_loader(data, test, context, config.timeout_seconds, run.bad_images)
    started = time.perf_counter()
    try:
        metrics, results = built.evaluator.evaluate(built.compute, batches)
    except UserError as error:  # on all ranks: no image is readable
        run.logger.warn(f"Warning: test images: {error}")
        return {"error": str(error)}
    seconds = time.perf_counter() - started
    title = f"Epoch {epoch}, {saved_path(run.folder / BEST).name}, "
    log_validation(run.logger, title, metrics, num_classes, len(test), seconds, split="Test")
    if results:  # on the main process
        files = build_eval_files(config, test, built.evaluator, run.folder, TEST_EVALUATION)
        try:
            files.write(metrics, results, built.compute, epoch=epoch, split="test")
        except OSError as error:  # the result is more important
            run.logger.warn(f"Warning: {error.filename or files.folder} cannot be written: {error.strerror}")
    return {**metrics.values, "samples": metrics.samples}
