"""Writes the features of images."""

import csv
import os
import time
from collections.abc import Sequence
from pathlib import Path

from datasets.sources.samples import Samples, names_of_labels
from engine.commands.evaluation_session import EvaluationSession
from engine.evaluation.results import name_of_target
from engine.features.store import extract
from engine.run.log import RunLogger
from models.features import FeatureModel
from utils.distributed import broadcast_object
from utils.errors import UserError
from utils.files import open_atomically
from utils.tables import safe_cell

ARRAY_FILE, TABLE_FILE = "embeddings.npy", "embeddings.csv"


def embed(session: EvaluationSession, folder: Path, labelled: bool, logger: RunLogger) -> None:
    """Writes `embeddings.npy`, and a table whose row i is about row i of the array. Every rank must call it.

    Raises:
        UserError: no image can be read; the table then has the reasons. The model has no features.
    """
    config, samples, started = session.plan.config, session.plan.samples, time.perf_counter()
    model = FeatureModel(session.model, config.model.name)
    file = extract(config, samples, session.evaluator, model, lambda digest: folder / f"{ARRAY_FILE}.part")
    if file:
        names = names_of_labels(samples, config.model.num_logits) if labelled else None
        _write_table(folder / TABLE_FILE, samples, file.errors, names)
        os.replace(file.path, folder / ARRAY_FILE)
        file.state_path.unlink()
        seconds, errors = time.perf_counter() - started, f"{len(file.errors)} of {len(samples)} have an error"
        size = " x ".join(map(str, file.values.shape))
        logger.info(f"----- Features {size} in {seconds:.1f} s; {errors}: {folder / ARRAY_FILE}, {TABLE_FILE}")
    if broadcast_object(len(file.errors) if file else 0, session.evaluator.context) == len(samples):
        raise UserError(f"none of the {len(samples)} images can be read; {folder / TABLE_FILE} has the reasons")


def _write_table(path: Path, samples: Samples, errors: dict[int, str], names: Sequence[str] | None) -> None:
    with open_atomically(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["path", *["target"] * bool(names), "error"])
        for index in range(len(samples)):
            target = [name_of_target(samples.targets[index], names)] if names else []
            image = samples.name(index).removeprefix("./")
            writer.writerow(map(safe_cell, (image, *target, errors.get(index, ""))))
