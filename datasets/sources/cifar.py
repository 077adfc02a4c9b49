"""CIFAR's official batches, which are pickles of Python 2, read without running anything they ask for."""

from pathlib import Path

import numpy as np

from utils.errors import UserError
from utils.files import open_regular_file
from utils.plain_pickle import ArrayRecord, ForbiddenName, read_plain_pickle

_IMAGE_SHAPE = (3, 32, 32)


def read_class_names(file: Path, key: str) -> list[str]:
    """The names of the classes by label, from a `meta` file; a UserError where it is missing or no such file."""
    names = _read(file).get(key)
    if not (isinstance(names, list) and names and all(isinstance(name, str) for name in names)):
        raise UserError(f"{file}: holds no names under {key}; unpack the archive again")
    return names


def read_batch(file: Path, label_key: str, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 (N, 3, 32, 32) and labels int64 (N,); a UserError where the file is missing or no such batch."""
    content = _read(file)
    try:
        labels = np.array(content[label_key], dtype=np.int64)
        images = _pixels(content["data"]).reshape(len(labels), *_IMAGE_SHAPE)
    except Exception as error:  # a pickle may hold anything in their place
        raise UserError(f"{file}: does not hold data and {label_key} of CIFAR; unpack the archive again") from error
    if labels.min() < 0 or labels.max() >= num_classes:
        raise UserError(f"{file}: a label is not in 0..{num_classes - 1}; unpack the archive again")
    return images, labels


def _pixels(array: ArrayRecord) -> np.ndarray:
    """uint8 (N, 3072)"""
    order = "F" if array.column_major else "C"
    return np.frombuffer(array.data(), dtype=np.uint8).reshape(array.shape, order=order)


def _read(file: Path) -> dict:
    try:
        with open_regular_file(file) as stream:
            content = read_plain_pickle(stream)
    except OSError as error:
        raise UserError(
            f"{file}: cannot be read ({error.strerror}); unpack CIFAR's Python version into DATA.DATA_PATH"
        ) from error
    except ForbiddenName as error:
        raise UserError(f"{file}: is no batch of CIFAR (it asks for {error}); unpack the archive again") from error
    except Exception as error:  # on damaged files pickle raises nearly anything
        reason = " ".join(str(error).split())
        raise UserError(f"{file}: is no batch of CIFAR ({reason}); unpack the archive again") from error
    if not isinstance(content, dict):
        raise UserError(f"{file}: is no batch of CIFAR; unpack the archive again")
    return content
