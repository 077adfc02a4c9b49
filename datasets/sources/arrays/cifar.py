"""CIFAR-10 and CIFAR-100: the official batches are pickles of Python 2; reading them runs no code."""

from pathlib import Path
from typing import Any

import numpy as np

from datasets.sources.arrays.in_memory import ImageArray
from datasets.sources.files.class_folders import find_folder
from datasets.sources.source import Source
from utils.errors import UserError, error_from
from utils.file_formats.plain_pickle import ForbiddenName, read_plain_pickle
from utils.files import open_regular_file

_IMAGE_SHAPE = (3, 32, 32)
_FIX = "extract the archive again"


class Cifar10(Source):
    """The extracted Python version: the folder `cifar-10-batches-py`, which is DATA_PATH or inside it."""

    def read(self, split: str) -> ImageArray:
        root = find_folder(self.root, "cifar-10-batches-py")
        names = [f"data_batch_{number}" for number in range(1, 6)] if split == "train" else ["test_batch"]
        return _read_batches([root / name for name in names], "labels", root / "batches.meta", "label_names")


class Cifar100(Source):
    """The extracted Python version: the folder `cifar-100-python`, which is DATA_PATH or inside it; 100 fine labels."""

    def read(self, split: str) -> ImageArray:
        root = find_folder(self.root, "cifar-100-python")
        file = root / ("train" if split == "train" else "test")
        return _read_batches([file], "fine_labels", root / "meta", "fine_label_names")


def _read_batches(files: list[Path], label_key: str, names_file: Path, names_key: str) -> ImageArray:
    class_names = read_class_names(names_file, names_key)
    images, targets = zip(*(read_batch(file, label_key, len(class_names)) for file in files), strict=True)
    return ImageArray(np.concatenate(images), np.concatenate(targets), class_names)


def read_class_names(file: Path, key: str) -> list[str]:
    """The class names by label, from a `meta` file; raises UserError if the file is missing or invalid."""
    names = _read(file).get(key)
    if not (isinstance(names, list) and names and all(isinstance(name, str) for name in names)):
        raise UserError(f"{file}: contains no names under {key}; {_FIX}")
    return names


def read_batch(file: Path, label_key: str, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 (N, 3, 32, 32) and labels int64 (N,); raises UserError if the file is missing or invalid."""
    content = _read(file)
    try:
        labels = np.array(content[label_key], dtype=np.int64)
        images = content["data"].array().view(np.uint8).reshape(len(labels), *_IMAGE_SHAPE)
    except Exception as error:  # a pickle may contain any types
        raise UserError(f"{file}: does not contain the data and {label_key} of CIFAR; {_FIX}") from error
    if labels.min() < 0 or labels.max() >= num_classes:
        raise UserError(f"{file}: a label is not in 0..{num_classes - 1}; {_FIX}")
    return images, labels


def _read(file: Path) -> dict[Any, Any]:
    try:
        with open_regular_file(file) as stream:
            content = read_plain_pickle(stream)
    except OSError as error:
        raise error_from(
            error, f"{file}: cannot be read ({error.strerror}); extract CIFAR's Python version into DATA.DATA_PATH"
        ) from error
    except Exception as error:  # the parser raises many types on damaged files
        reason = f"it refers to {error}" if isinstance(error, ForbiddenName) else " ".join(str(error).split())
        raise error_from(error, f"{file}: is not a CIFAR batch ({reason}); {_FIX}") from error
    if not isinstance(content, dict):
        raise UserError(f"{file}: is not a CIFAR batch; {_FIX}")
    return content
