"""Labels images with the model of a session, or of several."""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from configs.flags import Prediction
from datasets.sources.samples import names_of_labels
from engine.evaluation.evaluate import TOP_K
from engine.evaluation.pictures import EXPLANATIONS, write_maps
from engine.evaluation.predictions import BATCHES_PER_WRITE, CSV_FILE, Predictions, digest_inputs, open_part_file
from engine.evaluation.session import EvaluationSession, build_ensemble, build_loader
from engine.run.log import RunLogger
from engine.run.step_report import log_validation
from utils.distributed import broadcast_object
from utils.errors import UserError

_SHOWN_ROWS = 10


def label(sessions: Sequence[EvaluationSession], folder: Path, options: Prediction, logger: RunLogger) -> None:
    """Writes `predictions.csv` and the files that `options` asks for, from the mean of the sessions' probabilities.

    Every rank must call it.

    Raises:
        UserError: no image can be read.
    """
    session = build_ensemble(sessions)
    context, samples, part = session.evaluator.context, session.plan.samples, None
    if context.is_main:
        part = open_part_file(folder / f"{CSV_FILE}.part", _digest(sessions, options), len(samples), logger)
    first = broadcast_object(part.num_samples if part else 0, context)
    batches = build_loader(sessions, context, first)
    classes = session.plan.config.model.num_logits
    started, top_k = time.perf_counter(), max(options.top_k or classes, TOP_K)
    explain = partial(write_maps, folder, samples, session.model, session.evaluator) if options.explain else None
    for results in session.evaluator.classify(session.model, batches, top_k, BATCHES_PER_WRITE, explain):
        if part and results:
            part.append(results)
    seconds, number, num_readable = time.perf_counter() - started, len(samples) - first, 0
    if part:
        names = names_of_labels(samples, session.plan.config.model.num_logits)
        predictions = Predictions(part, samples, names, options, session.plan.config.data.multi_label)
        num_readable = predictions.num_readable
        speed, num_bad = f"({number / seconds:.1f} images/s)", len(samples) - num_readable
        logger.info(f"----- {number} images in {seconds:.1f} s {speed}; {num_bad} of {len(samples)} have an error")
        _write(predictions, session, folder, options, logger, seconds)
        part.path.unlink()
    if not broadcast_object(num_readable, context):
        raise UserError(f"none of the {len(samples)} images can be read; {folder / CSV_FILE} has the reasons")


def _digest(sessions: Sequence[EvaluationSession], options: Prediction) -> str:
    more = options.top_k, options.explain, sessions[0].evaluator.context.device.type
    models = ((one.plan, one.model.state_dict().values()) for one in sessions)
    return " ".join(digest_inputs(plan.config, plan.samples, weights, *more) for plan, weights in models)


def _write(
    predictions: Predictions,
    session: EvaluationSession,
    folder: Path,
    options: Prediction,
    logger: RunLogger,
    seconds: float,
) -> None:
    plan, files = session.plan, [predictions.write_csv(folder, options.excel)]
    if options.json:
        files.append(predictions.write_json(folder))
    files += [folder / EXPLANATIONS] * options.explain
    if options.path is None and predictions.num_readable:
        metrics, classes = predictions.metrics(plan.config.eval.best_metric), plan.config.model.num_logits
        precision = session.evaluator.precision.name
        log_validation(logger, "", metrics, classes, metrics.samples, seconds, plan.title, precision)
    logger.info(f"{predictions.table(_SHOWN_ROWS)}\n----- Predictions: {', '.join(map(str, files))}")
