"""The features of a data set in a memory-mapped file, from which a killed extraction continues; the files of -embed."""

import csv
import json
import logging
import os
import time
import zlib
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from configs.schema import Config
from datasets.loading.loader import BadImageList, build_eval_loader
from datasets.sources.names import names_of_labels
from datasets.sources.samples import Samples
from engine.checkpoint.run_folder import lock_run_folder
from engine.evaluation.evaluate import Evaluator
from engine.evaluation.predictions import BATCHES_PER_WRITE, digest_inputs
from engine.evaluation.results import name_of_target
from engine.evaluation.session import EvaluationSession
from engine.run.log import RunLogger
from models.blocks import FeatureModel
from utils.distributed import broadcast_object
from utils.errors import UserError
from utils.files import atomic_write, open_atomically, own_file, read_json, space_fix
from utils.status import RUN_LOG
from utils.tables import safe_cell


class FeatureFile:
    """Features float32 (N, F) of N samples in `path`, an .npy file; `path`.json says whose they are and how many.

    values: (N, F), mapped; (N, 0) before the first ones. The row of a sample that cannot be read is NaN.
    num_done: samples so far, the first ones. errors: the reason for each sample that cannot be read, by its index.
    """

    def __init__(self, path: Path, digest: str, num_samples: int) -> None:
        """A file that is damaged starts again.

        digest: of the weights, the samples and the preprocessing, see `digest_inputs`.
        Raises UserError: the file is of another digest.
        """
        self.path, self.state_path, self.num_samples = path, path.with_name(f"{path.name}.json"), num_samples
        self.values = np.empty((num_samples, 0), np.float32)
        self._state = read_json(self.state_path)
        if self._state.get("digest", digest) != digest:
            raise UserError(f"{path}: has features of other weights, images or options; remove it")
        open(path, "a", opener=own_file).close()  # numpy would follow a link
        with suppress(Exception):  # an empty file, or a damaged one
            values = np.load(path, mmap_mode="r+", allow_pickle=False)
            is_whole = (len(values), values.dtype) == (num_samples, np.float32)
            if is_whole and zlib.crc32(values[: self.num_done].data) == self._state["crc"]:
                self.values = values
        if not self.values.size:
            self._state = {"digest": digest, "done": 0, "crc": 0, "errors": []}

    @property
    def num_done(self) -> int:
        return self._state["done"]

    @property
    def errors(self) -> dict[int, str]:
        return dict(self._state["errors"])

    def append(self, features: np.ndarray, errors: dict[int, str]) -> None:
        """features: float32 (M, F), of the next M samples. Raises OSError if the disk has no space for all samples."""
        if not self.values.size:
            shape = self.num_samples, features.shape[1]
            values = np.lib.format.open_memmap(self.path, "w+", np.float32, shape)
            try:  # reserves the space: a write to a mapped file on a full disk kills the process
                with open(self.path, "r+b", opener=own_file) as file:
                    os.posix_fallocate(file.fileno(), 0, values.offset + values.nbytes)
            except OSError as error:
                self.path.unlink()
                problem = f"{error.strerror}: {values.nbytes / 1e6:,.1f} MB of features; {space_fix(error.strerror)}"
                raise OSError(error.errno, f"{problem}, or choose another folder with -output", self.path) from None
            self.values = values
        features[[index - self.num_done for index in errors]] = np.nan
        end = self.num_done + len(features)
        self.values[self.num_done : end] = features
        crc = zlib.crc32(np.ascontiguousarray(features).data, self._state["crc"])
        self._state |= {"done": end, "crc": crc, "errors": [*self._state["errors"], *errors.items()]}
        atomic_write(self.state_path, json.dumps(self._state))


def extract(
    config: Config,
    samples: Samples,
    evaluator: Evaluator,
    model: FeatureModel,
    place: Callable[[str], Path],
    bad_images: BadImageList | None = None,
    after_batch: Callable[[], None] = lambda: None,
) -> FeatureFile | None:
    """The features of all samples, on the main process: those that the file lacks are computed. A collective call.

    The images are transformed, batched and computed as in an evaluation; with EVAL.TTA flip, features are the mean over
    an image and its mirror image. Calls `after_batch` after each batch. place: digest -> path of the file.
    """
    context, file = evaluator.context, None
    with ExitStack() as locks:
        if context.is_main:
            digest = digest_inputs(config, samples, model.backbone(), context.device.type)
            path = place(digest)
            path.parent.mkdir(parents=True, exist_ok=True)
            locks.enter_context(lock_run_folder(path.parent))
            file = FeatureFile(path, digest, len(samples))
            images = f"{len(samples)} images, {file.num_done} of them computed before"
            logging.getLogger(RUN_LOG).info(f"----- Features of {images}: {path}")
        first = broadcast_object(file.num_done if file else 0, context)
        if first < len(samples):
            batches = build_eval_loader(config.data, samples, context, config.timeout_seconds, bad_images, first)
            keep = lambda outputs, targets: {"features": outputs}  # noqa: E731
            evaluator = replace(evaluator, class_mask=None)  # features are no classes
            for computed in evaluator.compute(model, batches, keep, BATCHES_PER_WRITE, lambda *_: after_batch()):
                if file and computed:
                    file.append(computed[0]["features"], computed[1])
    return file


ARRAY_FILE, TABLE_FILE = "embeddings.npy", "embeddings.csv"


def embed(session: EvaluationSession, folder: Path, labelled: bool, logger: RunLogger) -> None:
    """Writes `embeddings.npy`, and a table whose row i is about row i of the array. Every rank must call it.

    Raises UserError: no image can be read; the table then has the reasons. The model has no features.
    """
    config, samples, started = session.plan.config, session.plan.samples, time.perf_counter()
    model = FeatureModel(session.model, config.model.name)
    file = extract(config, samples, session.evaluator, model, lambda digest: folder / f"{ARRAY_FILE}.part")
    if file:
        names = names_of_labels(samples, config.model.num_logits) if labelled else None
        with open_atomically(folder / TABLE_FILE) as table:
            writer = csv.writer(table, lineterminator="\n")
            writer.writerow([safe_cell(samples.column), *["target"] * bool(names), "error"])
            for index in range(len(samples)):
                target = [name_of_target(samples.targets[index], names)] if names else []
                cells = samples.listed_name(index), *target, file.errors.get(index, "")
                writer.writerow(map(safe_cell, cells))
        os.replace(file.path, folder / ARRAY_FILE)
        file.state_path.unlink()
        seconds, errors = time.perf_counter() - started, f"{len(file.errors)} of {len(samples)} have an error"
        size = " x ".join(map(str, file.values.shape))
        logger.info(f"----- Features {size} in {seconds:.1f} s; {errors}: {folder / ARRAY_FILE}, {TABLE_FILE}")
    if broadcast_object(len(file.errors) if file else 0, session.evaluator.context) == len(samples):
        raise UserError(f"none of the {len(samples)} images can be read; {folder / TABLE_FILE} has the reasons")
