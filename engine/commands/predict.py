"""The prediction command: labels, or features."""

import csv
import os
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from configs.reading.command_line import Command
from configs.reading.prediction import Prediction
from datasets.sources.class_names import names_of_labels
from datasets.sources.samples import Samples
from engine.checkpoint.run_folder import check_writable, lock_run_folder
from engine.checkpoint.shared_folder import check_shared
from engine.commands.ensemble import build_ensemble, build_loader, open_models
from engine.commands.open_evaluation import OpenedEvaluation
from engine.evaluation.evaluate import TOP_K
from engine.evaluation.explain import EXPLANATIONS, write_maps
from engine.evaluation.part_file import BATCHES_PER_WRITE, PartFile, digest_inputs
from engine.evaluation.predictions import CSV_FILE, Predictions
from engine.evaluation.results import name_of_target
from engine.features.store import extract
from engine.run.folder import open_new_folder, start_log
from engine.run.log import RunLogger
from engine.run.step_report import log_validation
from models.features import FeatureModel
from utils.atomic_file import open_atomically
from utils.distributed import ProcessContext, broadcast_object
from utils.errors import UserError
from utils.tables import safe_cell

ARRAY_FILE, TABLE_FILE = "embeddings.npy", "embeddings.csv"  # of -embed
_SHOWN_ROWS = 10


def predict(command: Command, context: ProcessContext) -> int:
    """Labels the images of `-predict`, and writes `predictions.csv`, or writes the features of the images of `-embed`.

    The probabilities of several runs are averaged. It continues a run that was killed.

    Raises:
        UserError: no image can be read; the file then has the reasons. Another process writes to the folder. The model
            has no features.
    """
    logger, options = start_log(command, context), command.prediction
    assert options
    if context.is_main and options.folder:
        check_writable(options.folder)
    models = open_models(command, context, logger)
    opened = build_ensemble(models)
    config, samples = opened.config, opened.samples
    prefix = "embed-" if options.embeds else "predict-"
    folder = options.folder or open_new_folder(replace(command, config=config), context, logger, prefix)
    if options.embeds:
        return _embed(opened, folder, options.path is None, logger)
    if context.is_main:
        folder.mkdir(parents=True, exist_ok=True)
    if options.explain:
        check_shared(folder, context)  # each rank writes the maps of its images
    num_readable = 0
    with lock_run_folder(folder) if context.is_main else nullcontext():
        part = _open_part(folder, models, options, context, logger) if context.is_main else None
        first = broadcast_object(part.num_samples if part else 0, context)
        batches = build_loader(models, context, first)
        started, top_k = time.perf_counter(), max(options.top_k, TOP_K)
        explain = partial(write_maps, folder, samples, opened.model, opened.evaluator) if options.explain else None
        for results in opened.evaluator.classify(opened.model, batches, top_k, BATCHES_PER_WRITE, explain):
            if part and results:
                part.append(results)
        seconds, number = time.perf_counter() - started, len(samples) - first
        if part:
            names = names_of_labels(samples, config.model.num_logits)
            predictions = Predictions(part, samples, names, options, config.data.multi_label)
            num_readable = predictions.num_readable
            files = [predictions.write_csv(folder, options.excel)]
            if options.json:
                files.append(predictions.write_json(folder))
            files += [folder / EXPLANATIONS] * options.explain
            speed, num_bad = f"({number / seconds:.1f} images/s)", len(samples) - num_readable
            logger.info(f"----- {number} images in {seconds:.1f} s {speed}; {num_bad} of {len(samples)} have an error")
            if options.path is None and num_readable:
                metrics, classes = predictions.metrics(config.eval.best_metric), config.model.num_logits
                precision = opened.evaluator.precision.name
                log_validation(logger, "", metrics, classes, metrics.samples, seconds, opened.title, precision)
            logger.info(f"{predictions.table(_SHOWN_ROWS)}\n----- Predictions: {', '.join(map(str, files))}")
            part.path.unlink()
    if not broadcast_object(num_readable, context):
        raise UserError(f"none of the {len(samples)} images can be read; {folder / CSV_FILE} has the reasons")
    return 0


def _embed(opened: OpenedEvaluation, folder: Path, labelled: bool, logger: RunLogger) -> int:
    """Writes `embeddings.npy`, and a table whose row i is about row i of the array."""
    config, samples, started = opened.config, opened.samples, time.perf_counter()
    model = FeatureModel(opened.model, config.model.name)
    file = extract(config, samples, opened.evaluator, model, lambda digest: folder / f"{ARRAY_FILE}.part")
    if file:
        names = names_of_labels(samples, config.model.num_logits) if labelled else None
        _write_table(folder / TABLE_FILE, samples, file.errors, names)
        os.replace(file.path, folder / ARRAY_FILE)
        file.state_path.unlink()
        seconds, errors = time.perf_counter() - started, f"{len(file.errors)} of {len(samples)} have an error"
        size = " x ".join(map(str, file.values.shape))
        logger.info(f"----- Features {size} in {seconds:.1f} s; {errors}: {folder / ARRAY_FILE}, {TABLE_FILE}")
    if broadcast_object(len(file.errors) if file else 0, opened.evaluator.context) == len(samples):
        raise UserError(f"none of the {len(samples)} images can be read; {folder / TABLE_FILE} has the reasons")
    return 0


def _write_table(path: Path, samples: Samples, errors: dict[int, str], names: Sequence[str] | None) -> None:
    with open_atomically(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["path", *["target"] * bool(names), "error"])
        for index in range(len(samples)):
            target = [name_of_target(samples.targets[index], names)] if names else []
            image = samples.name(index).removeprefix("./")
            writer.writerow(map(safe_cell, (image, *target, errors.get(index, ""))))


def _open_part(
    folder: Path, models: Sequence[OpenedEvaluation], asked: Prediction, context: ProcessContext, logger: RunLogger
) -> PartFile:
    """The results of an earlier run with the same options, images and weights, or else an empty file."""
    samples, more = models[0].samples, (asked.top_k, asked.explain, context.device.type)
    digest = " ".join(digest_inputs(one.config, samples, one.model.state_dict().values(), *more) for one in models)
    path = folder / f"{CSV_FILE}.part"
    existed, part = path.exists() and path.stat().st_size > 0, PartFile(path, digest)
    if existed:
        start = f"continues after {part.num_samples} of {len(samples)} images" if part.num_samples else "starts again"
        logger.info(f"----- {path}: the prediction {start}, by the digest of weights, images and options")
    return part
