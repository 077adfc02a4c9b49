"""The prediction command."""

import time
from dataclasses import replace
from pathlib import Path

from configs.reading.command_line import Command
from datasets.loading.batches import build_eval_loader
from datasets.sources.class_names import names_of_labels
from engine.checkpoint.run_folder import check_writable
from engine.commands.open_evaluation import open_evaluation
from engine.commands.open_run import open_new_folder, start_log
from engine.evaluation.evaluate import TOP_K
from engine.evaluation.predictions import CSV_FILE, Predictions
from engine.run.log import RunLogger
from engine.run.step_report import log_validation
from utils.distributed import ProcessContext, broadcast_object
from utils.errors import UserError

_SHOWN_ROWS = 10


def predict(command: Command, context: ProcessContext) -> int:
    """Labels the images of `-predict`, and writes `predictions.csv`.

    Raises:
        UserError: no image can be read; the file then has the reasons.
    """
    logger, options = start_log(command, context), command.prediction
    assert options
    if context.is_main and options.folder:
        check_writable(options.folder)
    opened = open_evaluation(command, context, logger)
    config, samples = opened.config, opened.samples
    folder = _open_folder(replace(command, config=config), options.folder, context, logger)
    batches = build_eval_loader(config.data, samples, context, config.timeout_seconds)
    started = time.perf_counter()
    results = opened.evaluator.classify(opened.model, batches, max(options.top_k, TOP_K))
    seconds = time.perf_counter() - started
    num_readable = 0
    if results:  # on the main process
        names = names_of_labels(samples, config.model.num_logits)
        predictions = Predictions(samples, results, names, options.top_k, labelled=options.path is None)
        num_readable = predictions.num_readable
        files = [predictions.write_csv(folder)]
        if options.json:
            files.append(predictions.write_json(folder))
        logger.info(f"----- {len(samples)} images in {seconds:.1f} s ({len(samples) / seconds:.1f} images/s)")
        if num_bad := len(samples) - num_readable:
            logger.info(f"----- {num_bad} of them could not be read; the column error has the reasons")
        if options.path is None and num_readable:
            metrics = results.metrics()
            precision, classes = opened.evaluator.precision.name, config.model.num_logits
            log_validation(logger, "", metrics, classes, metrics.samples, seconds, opened.title, precision)
        logger.info(f"{predictions.table(_SHOWN_ROWS)}\n----- Predictions: {', '.join(map(str, files))}")
    if not broadcast_object(num_readable, context):
        raise UserError(f"none of the {len(samples)} images can be read; {folder / CSV_FILE} has the reasons")
    return 0


def _open_folder(command: Command, folder: Path | None, context: ProcessContext, logger: RunLogger) -> Path:
    """Opens the folder of the predictions: -output, without a log, or else a new folder."""
    if folder is None:
        return open_new_folder(command, context, logger, "predict-")
    if context.is_main:
        folder.mkdir(parents=True, exist_ok=True)
    return folder
