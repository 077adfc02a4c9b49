"""The embedding command."""

import csv
import os
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from configs.reading.command_line import Command
from datasets.sources.class_names import names_of_labels
from datasets.sources.samples import Samples
from engine.checkpoint.run_folder import check_writable, lock_run_folder
from engine.commands.open_evaluation import open_evaluation
from engine.commands.open_run import open_new_folder, start_log
from engine.evaluation.part_file import digest_inputs
from engine.evaluation.results import name_of_target
from engine.features.extract import extract
from engine.features.store import FeatureFile
from models.features import FeatureModel
from utils.atomic_file import open_atomically
from utils.distributed import ProcessContext, broadcast_object
from utils.errors import UserError
from utils.tables import safe_cell

_ARRAY, _TABLE = "embeddings.npy", "embeddings.csv"


def embed(command: Command, context: ProcessContext) -> int:
    """Writes the features of the images of `-embed`, and a table of their paths; continues a run that was killed.

    Raises:
        UserError: the model has no features; no image can be read; another process writes to the folder.
    """
    logger, options = start_log(command, context), command.prediction
    assert options
    if context.is_main and options.folder:
        check_writable(options.folder)
    command = replace(command, config=command.config.with_model(tune="full", freeze_backbone=False))
    opened = open_evaluation(command, context, logger)
    config, samples, model = opened.config, opened.samples, FeatureModel(opened.model, opened.config.model.name)
    folder = options.folder or open_new_folder(replace(command, config=config), context, logger, "embed-")
    file = None
    if context.is_main:
        folder.mkdir(parents=True, exist_ok=True)
    with lock_run_folder(folder) if context.is_main else nullcontext():
        if context.is_main:
            digest = digest_inputs(config, samples, model.backbone(), context.device.type)
            file = FeatureFile(folder / f"{_ARRAY}.part", digest, len(samples))
        started = time.perf_counter()
        number, seconds = extract(config, samples, opened.evaluator, model, file), time.perf_counter() - started
        if file and file.values is not None:
            names = names_of_labels(samples, config.model.num_logits) if options.path is None else None
            _write_table(folder / _TABLE, samples, file.errors, names)
            os.replace(file.path, folder / _ARRAY)
            file.state_path.unlink()
            speed = f"{number} images in {seconds:.1f} s ({number / seconds:.1f} images/s)"
            logger.info(f"----- {speed}; {len(file.errors)} of {len(samples)} have an error")
            logger.info(f"----- Features {' x '.join(map(str, file.values.shape))}: {folder / _ARRAY}, {_TABLE}")
    if broadcast_object(len(file.errors) if file else 0, context) == len(samples):
        raise UserError(f"none of the {len(samples)} images can be read; {folder / _TABLE} has the reasons")
    return 0


def _write_table(file: Path, samples: Samples, errors: dict[int, str], names: Sequence[str] | None) -> None:
    """Row i is about row i of the array. names: of all labels; None: the images have no labels."""
    with open_atomically(file) as opened:
        writer = csv.writer(opened, lineterminator="\n")
        writer.writerow(["path", *["target"] * bool(names), "error"])
        for index in range(len(samples)):
            path = samples.name(index).removeprefix("./")
            target = [name_of_target(samples.targets[index], names)] if names else []
            writer.writerow(map(safe_cell, (path, *target, errors.get(index, ""))))
