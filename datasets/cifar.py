"""CIFAR's official batches, which are pickles of Python 2, read without running anything they ask for."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from utils.errors import UserError

_IMAGE_SHAPE = (3, 32, 32)


class _PickledArray:
    """What a pickled array says of itself. Its numbers stay bytes, which Python 3 reads as a text of Latin-1."""

    def __setstate__(self, state: tuple) -> None:
        _, self.shape, _, self.column_major, self.data = state

    def pixels(self) -> np.ndarray:
        """uint8 (N, 3072)"""
        data = self.data.encode("latin1") if isinstance(self.data, str) else self.data
        return np.frombuffer(data, dtype=np.uint8).reshape(self.shape, order="F" if self.column_major else "C")


class _PickledDtype:
    def __setstate__(self, state: tuple) -> None:
        pass


_STAND_INS = {
    ("numpy.core.multiarray", "_reconstruct"): lambda *_: _PickledArray(),
    ("numpy._core.multiarray", "_reconstruct"): lambda *_: _PickledArray(),
    ("numpy", "ndarray"): _PickledArray,
    ("numpy", "dtype"): lambda *_: _PickledDtype(),
    ("_codecs", "encode"): str.encode,
}


class _PlainUnpickler(pickle.Unpickler):
    """Numbers, texts, lists and dicts load as they are, arrays as inert records; whatever else is named, fails."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _STAND_INS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _STAND_INS[module, name]


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
        images = content["data"].pixels().reshape(len(labels), *_IMAGE_SHAPE)
    except Exception as error:  # a pickle may hold anything in their place
        raise UserError(f"{file}: does not hold data and {label_key} of CIFAR; unpack the archive again") from error
    if labels.min() < 0 or labels.max() >= num_classes:
        raise UserError(f"{file}: a label is not in 0..{num_classes - 1}; unpack the archive again")
    return images, labels


def _read(file: Path) -> dict:
    try:
        with open(file, "rb") as stream:
            content = _PlainUnpickler(stream, encoding="latin1").load()
    except OSError as error:
        raise UserError(
            f"{file}: cannot be read ({error.strerror}); unpack CIFAR's Python version into DATA.DATA_PATH"
        ) from error
    except Exception as error:  # on damaged files pickle raises nearly anything
        reason = " ".join(str(error).split())
        raise UserError(f"{file}: is no batch of CIFAR ({reason}); unpack the archive again") from error
    if not isinstance(content, dict):
        raise UserError(f"{file}: is no batch of CIFAR; unpack the archive again")
    return content
