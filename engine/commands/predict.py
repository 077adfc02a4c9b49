"""The prediction command: labels, of one model or of several, or features."""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from configs.command_line import Command
from configs.flags import Prediction
from datasets.sources.names import names_of_labels
from engine.checkpoint.run_folder import check_writable, lock_run_folder
from engine.evaluation.evaluate import TOP_K
from engine.evaluation.files import EXPLANATIONS, write_maps
from engine.evaluation.predictions import BATCHES_PER_WRITE, CSV_FILE, Predictions, digest_inputs, open_part_file
from engine.evaluation.session import EvaluationSession, build_ensemble, build_loader, build_sessions
from engine.features.store import embed
from engine.run.folder import check_shared, open_new_folder, start_log
from engine.run.log import RunLogger
from engine.run.reporter import log_validation
from utils.distributed import ProcessContext, broadcast_object
from utils.errors import UserError

_SHOWN_ROWS = 10


def predict(command: Command, context: ProcessContext) -> int:
    """Labels the images of `-predict`, and writes `predictions.csv`, or writes the features of the images of `-embed`.

    It continues a prediction that was killed.
    Raises UserError: no image can be read; the file then has the reasons. Another process writes to the folder. The
    model has no features.
    """
    logger, options = start_log(command, context), command.prediction
    assert options
    if context.is_main and options.folder:
        check_writable(options.folder)
    sessions = build_sessions(command, context, logger)
    command = replace(command, config=sessions[0].plan.config)
    folder = options.folder or open_new_folder(command, context, logger, "embed-" if options.embeds else "predict-")
    if options.embeds:
        embed(sessions[0], folder, options.path is None, logger)
        return 0
    if context.is_main:
        folder.mkdir(parents=True, exist_ok=True)
    if options.explain:
        check_shared(folder, context)  # each rank writes the maps of its images
    with lock_run_folder(folder) if context.is_main else nullcontext():
        label(sessions, folder, options, logger)
    return 0


def label(sessions: Sequence[EvaluationSession], folder: Path, options: Prediction, logger: RunLogger) -> None:
    """Writes `predictions.csv` and the files that `options` asks for, from the mean of the sessions' probabilities.

    Every rank must call it.
    Raises UserError: no image can be read.
    """
    session = build_ensemble(sessions)
    context, plan, part = session.evaluator.context, session.plan, None
    samples, classes = plan.samples, plan.config.model.num_logits
    if context.is_main:
        more = options.top_k, options.explain, context.device.type
        weights = ((one.plan, one.model.state_dict().values()) for one in sessions)
        digest = " ".join(digest_inputs(of.config, of.samples, values, *more) for of, values in weights)
        part = open_part_file(folder / f"{CSV_FILE}.part", digest, len(samples), logger)
    first = broadcast_object(part.num_samples if part else 0, context)
    batches = build_loader(sessions, context, first)
    evaluator = session.evaluator
    top_k = classes if evaluator.multi_label else max(options.top_k or classes, TOP_K)
    started = time.perf_counter()
    explain = partial(write_maps, folder, samples, session.model, session.evaluator) if options.explain else None
    for results in session.evaluator.classify(session.model, batches, top_k, BATCHES_PER_WRITE, explain):
        if part and results:
            part.append(results if options.path is None else replace(results, scores=None))
    seconds, number, num_readable = time.perf_counter() - started, len(samples) - first, 0
    if part:
        predictions = Predictions(part, samples, names_of_labels(samples, classes), options, evaluator.thresholds)
        num_readable = predictions.num_readable
        speed, num_bad = f"({number / seconds:.1f} images/s)", len(samples) - num_readable
        logger.info(f"----- {number} images in {seconds:.1f} s {speed}; {num_bad} of {len(samples)} have an error")
        files = [predictions.write_csv(folder, options.excel)]
        if options.json:
            files.append(predictions.write_json(folder))
        if options.explain:
            files.append(folder / EXPLANATIONS)
        if options.path is None and num_readable:
            metrics, precision = predictions.metrics(plan.config.eval.best_metric), session.evaluator.precision.name
            log_validation(logger, "", metrics, classes, metrics.samples, seconds, plan.title, precision)
        logger.info(f"{predictions.table(_SHOWN_ROWS)}\n----- Predictions: {', '.join(map(str, files))}")
        part.path.unlink()
    if not broadcast_object(num_readable, context):
        raise UserError(f"none of the {len(samples)} images can be read; {folder / CSV_FILE} has the reasons")
