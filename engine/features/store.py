"""The features of a data set in a file, which later runs find by a digest of their inputs; the files of -embed."""

import csv
import json
import logging
import os
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from hashlib import sha256
from importlib.metadata import distributions
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from configs.command_line import unused_keys
from configs.load import flatten
from configs.schema import Config
from datasets.loading.loader import BadImageList, build_eval_loader
from datasets.sources.checks import digest_of
from datasets.sources.class_names import names_of_labels
from datasets.sources.samples import ImageFiles, Samples
from datasets.sources.shared_arrays import StringPacker
from datasets.sources.split import hash_paths
from engine.checkpoint.run_folder import lock_run_folder
from engine.evaluation.evaluate import AfterBatch, Computed, Evaluator
from engine.evaluation.predictions import BATCHES_PER_WRITE
from engine.evaluation.results import name_of_target
from engine.evaluation.session import EvaluationSession
from engine.run.log import RunLogger
from models.blocks import FeatureModel
from utils.distributed import broadcast_object, call_on_main, find_on_main
from utils.errors import Unavailable, UserError, error_from
from utils.files import atomic_write, file_fix, open_atomically, own_file
from utils.notes import RUN_LOG
from utils.tables import safe_cell

_WITHOUT_EFFECT = (  # some decide which images are in a split
    "DATA.NUM_WORKERS DATA.IMAGE_HASHES DATA.DATA_PATH DATA.CACHE_* DATA.BATCH_SIZE* MODEL.PRETRAINED MODEL.RESUME "
    "DATA.FOLD* DATA.VAL_FRACTION DATA.SPLIT_SEED DATA.GROUPS EVAL.[!T]*"
)


class Extracted(NamedTuple):
    """The features of N samples, float32 (N, F), mapped from a file, and the reasons of unreadable ones by their index.

    The row of an unreadable sample is NaN.
    """

    values: np.ndarray
    errors: dict[int, str]


@dataclass(frozen=True)
class Extraction:
    """The features of all samples by `model`, whose images are transformed, batched and computed as in an evaluation.

    With EVAL.TTA flip, features are the mean over an image and its mirror image. after_batch: called after each batch.
    The methods are collective calls.
    """

    config: Config
    samples: Samples
    evaluator: Evaluator
    model: FeatureModel
    bad_images: BadImageList | None = None
    after_batch: AfterBatch = lambda *_: None

    def to_file(self, path: Path) -> Extracted | None:
        """Computes the features, and writes them to `path`, an .npy file, on the main process.

        The main process must have locked the folder. Raises UserError: the disk has no space for all features.
        """
        config = self.config
        context = self.evaluator.context
        batches = build_eval_loader(config, self.samples, context, self.bad_images)
        evaluator = replace(self.evaluator, class_mask=None, merged={})  # features are no classes

        temporary = path.with_name(f".{path.name}.tmp")
        errors = dict[int, str]()
        done = 0
        values: np.memmap | None = None

        def write(computed: Computed | None) -> None:
            nonlocal values, done
            assert computed
            features = computed["features"]
            found = computed["errors"]
            if values is None:
                cleanup.callback(temporary.unlink, missing_ok=True)
                values = _new_array(temporary, (len(self.samples), features.shape[1]), path)
            values[done : done + len(features)] = features
            values[list(found)] = np.nan
            done += len(features)
            errors.update(found)

        def finish() -> Extracted:
            assert values is not None
            values.flush()
            os.replace(temporary, path)
            return Extracted(values, errors)

        with ExitStack() as cleanup:
            parts = evaluator.compute(
                self.model, batches, lambda outputs, _: {"features": outputs}, BATCHES_PER_WRITE, self.after_batch
            )
            for computed in parts:
                call_on_main(partial(write, computed), context)
            return call_on_main(finish, context)

    def once(self, split: str) -> Extracted | None:
        """The features, from SAVE/features where other runs have left them; the others are computed.

        An image is known by its name, its state and the digest of all other inputs. Other batches than in one pass may
        change the last bits.
        """
        context = self.evaluator.context
        samples = self.samples
        with ExitStack() as locks:
            # The main process alone reads and locks; its error is raised on all ranks.
            found = call_on_main(lambda: self._look_up(split, locks), context)
            work = (found.path, found.missing) if found else (Path(), np.empty(0, np.int64))
            path, missing = broadcast_object(work, context)
            computed: Extracted | None = None
            if len(missing):
                chosen = samples
                if len(missing) < len(samples):
                    assert isinstance(samples, ImageFiles)
                    chosen = samples.select(missing)
                computed = replace(self, samples=chosen).to_file(path)

            def complete() -> Extracted:
                assert found
                if computed:
                    part = _Part(found.keys[missing], computed)
                    found.parts.insert(0, part)
                    with open_atomically(path.with_name("keys.npy"), "wb") as file:
                        np.save(file, part.keys)
                    record = {"crc": part.crc, "errors": list(computed.errors.items())}  # last: the files are whole
                    atomic_write(path.with_name(f"{path.name}.json"), json.dumps(record))
                return _find(found.keys, found.parts)[0]

            return call_on_main(complete, context)

    def _look_up(self, split: str, locks: ExitStack) -> "_Stored":
        """locks: receives the lock of the folder to write. Raises UserError: it cannot be written."""
        digest = digest_inputs(self.config, self.model.backbone(), self.evaluator.context.device.type)
        folder = Path(self.config.save) / "features" / digest[:16]
        samples = self.samples
        names = map(samples.name, range(len(samples)))
        place = "" if isinstance(samples, ImageFiles) else f"{split} {digest_of(samples)}"  # their names are numbers
        texts = (f"{place}\n{name}\n{state}" for name, state in zip(names, samples.states().tolist(), strict=True))
        keys = hash_paths(StringPacker(texts).strings())  # a key changes with the name and the state of its image
        parts = [*_read_parts(folder)]
        missing = np.flatnonzero(~_find(keys, parts)[1])
        if len(missing) and type(samples) is not ImageFiles:
            missing = np.arange(len(keys))
        known = f"{len(keys) - len(missing)} of {len(keys)} computed before"
        logging.getLogger(RUN_LOG).debug(f"----- Features of {len(keys)} images, {known}: {folder}")
        own = folder / f"{split}-{sha256(keys[missing].tobytes()).hexdigest()[:16]}"
        if not len(missing):
            return _Stored(keys, parts, missing, own)
        try:
            own.mkdir(parents=True, exist_ok=True)
            try:
                locks.enter_context(lock_run_folder(own))
            except Unavailable:  # another run, such as of another fold, computes them at the same time
                own = folder / f"{own.name}-{os.getpid()}"
                own.mkdir(exist_ok=True)
        except OSError as error:
            problem = f"{own}: cannot be written ({error.strerror or error})"
            raise error_from(error, f"{problem}; {file_fix(error)}, or give another folder with -output") from error
        return _Stored(keys, parts, missing, own / "features.npy")


def _new_array(temporary: Path, shape: tuple[int, int], path: Path) -> np.memmap:
    """A mapped file of float32, whose space is reserved: a write to it on a full disk would kill the process."""
    temporary.unlink(missing_ok=True)  # of a killed process, or a link
    values = np.lib.format.open_memmap(temporary, "w+", np.float32, shape)
    try:
        with open(temporary, "r+b", opener=own_file) as file:
            os.posix_fallocate(file.fileno(), 0, values.offset + values.nbytes)
    except OSError as error:
        raise error_from(
            error,
            f"{path}: {error.strerror}: {values.nbytes / 1e6:,.1f} MB of features; "
            f"{file_fix(error)}, or choose another folder with -output",
        ) from None
    return values


class _Stored(NamedTuple):
    """The keys of the images, the features that are known, the places of the others, and the file to write."""

    keys: np.ndarray
    parts: "list[_Part]"
    missing: np.ndarray
    path: Path


class _Part(NamedTuple):
    """The features of images in one file, and the keys of the images, uint64 (N,)."""

    keys: np.ndarray
    extracted: Extracted

    @property
    def crc(self) -> int:
        return zlib.crc32(self.extracted.values.data, zlib.crc32(self.keys.data))


def _find(keys: np.ndarray, parts: Sequence[_Part]) -> tuple[Extracted, np.ndarray]:
    """The features of the images with these keys, and whether they are known, bool (N,)."""
    width = parts[0].extracted.values.shape[1] if parts else 0
    values = np.full((len(keys), width), np.nan, np.float32)
    is_known = np.zeros(len(keys), bool)
    errors = dict[int, str]()
    for part in parts:
        order = np.argsort(part.keys)
        rows = order[np.searchsorted(part.keys, keys, sorter=order).clip(max=len(order) - 1)]
        found = np.flatnonzero((part.keys[rows] == keys) & ~is_known)
        values[found] = part.extracted.values[rows[found]]
        is_known[found] = True
        reasons = part.extracted.errors
        errors |= {index: reasons[rows[index]] for index in found.tolist() if rows[index] in reasons}
    return Extracted(values, errors), is_known


def _read_parts(folder: Path) -> Iterator[_Part]:
    for file in sorted(folder.glob("*/features.npy")):
        with suppress(Exception):  # it is damaged, or being written
            record = json.loads(file.with_name(f"{file.name}.json").read_text())
            values = np.load(file, mmap_mode="r", allow_pickle=False)
            part = _Part(
                np.load(file.with_name("keys.npy"), allow_pickle=False), Extracted(values, dict(record["errors"]))
            )
            if len(values) == len(part.keys) and values.dtype == np.float32 and part.crc == record["crc"]:
                yield part


# Packages that decode images, transform them, or compute features.
_DECIDING = (
    "torch",
    "torchvision",
    "timm",
    "transformers",
    "numpy",
    "pillow",
    "pillow-heif",
    "pydicom",
    "torchcodec",
)


def digest_inputs(config: Config, weights: Iterable[Tensor], device: str) -> str:
    """A digest of all that the features of an image depend on: options, weights, kind of device, and code."""
    values = config.model_dump(mode="json", by_alias=True, include={"data", "model", "amp", "eval", "deterministic"})
    unused = [*_WITHOUT_EFFECT.split(), *unused_keys("eval")]
    options = {key: value for key, value in flatten(values) if not any(fnmatchcase(key, one) for one in unused)}
    versions = [package.version for name in _DECIDING for package in distributions(name=name)]
    digest = sha256(json.dumps([options, device, versions]).encode())
    for folder in ("datasets", "models"):
        for source in sorted((Path(__file__).parents[2] / folder).rglob("*.py")):
            digest.update(source.read_bytes())
    for tensor in weights:
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


ARRAY_FILE = "embeddings.npy"
TABLE_FILE = "embeddings.csv"


def embed(session: EvaluationSession, folder: Path, labelled: bool, logger: RunLogger) -> None:
    """Writes `embeddings.npy`, and a table whose row i is about row i of the array.

    Every rank must call it, and the main process must have locked the folder.
    Raises UserError: no image can be read; the table then has the reasons. The model has no features.
    """
    config = session.plan.config
    samples = session.plan.samples
    started = time.perf_counter()
    model = FeatureModel(session.model, config.model.name)
    file = Extraction(config, samples, session.evaluator, model).to_file(folder / ARRAY_FILE)

    def write_table() -> int:
        assert file
        indices = range(len(samples))
        columns = [[samples.column, *map(samples.listed_name, indices)]]
        if labelled:
            names = names_of_labels(samples, config.model.num_logits)
            columns.append(["target", *(name_of_target(target, names) for target in samples.targets)])
        columns.append(["error", *(file.errors.get(index, "") for index in indices)])
        with open_atomically(folder / TABLE_FILE) as table:
            writer = csv.writer(table, lineterminator="\n")
            for cells in zip(*columns, strict=True):
                writer.writerow(map(safe_cell, cells))
        seconds = time.perf_counter() - started
        errors = f"{len(file.errors)} of {len(samples)} have an error"
        size = " x ".join(map(str, file.values.shape))
        logger.info(f"----- Features {size} in {seconds:.1f} s; {errors}: {folder / ARRAY_FILE}, {TABLE_FILE}")
        return len(file.errors)

    if find_on_main(write_table, session.evaluator.context) == len(samples):
        raise UserError(f"none of the {len(samples)} images can be read; {folder / TABLE_FILE} has the reasons")
