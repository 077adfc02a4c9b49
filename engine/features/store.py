"""The features of a data set in a memory-mapped file, from which a killed extraction continues."""

import json
import os
import zlib
from pathlib import Path

import numpy as np

from utils.atomic_file import atomic_write
from utils.errors import UserError
from utils.files import read_json


class FeatureFile:
    """Features float32 (N, F) of N samples in `path`, an .npy file; `path`.json says whose they are and how many.

    Attributes:
        values: (N, F), mapped; None before the first ones. The row of a sample that cannot be read is NaN.
        num_done: samples so far, the first ones. errors: the reason for each sample that cannot be read, by its index.
    """

    def __init__(self, path: Path, digest: str, num_samples: int) -> None:
        """A file that is damaged starts again.

        digest: of the weights, the samples and the preprocessing, see `digest_inputs`.

        Raises:
            UserError: the file is of another digest.
        """
        self.path, self.state_path, self.num_samples = path, path.with_name(f"{path.name}.json"), num_samples
        self.values: np.ndarray | None = None
        self._state = read_json(self.state_path)
        if self._state.get("digest", digest) != digest:
            raise UserError(f"{path}: has features of other weights, images or options; remove it")
        try:
            self.values = np.load(path, mmap_mode="r+")
            is_whole = (self.values.shape[0], self.values.dtype) == (num_samples, np.float32)
            if not is_whole or zlib.crc32(self.values[: self.num_done].data) != self._state["crc"]:
                raise ValueError
        except (OSError, ValueError, LookupError, EOFError):  # no file, or a damaged one
            self.values, self._state = None, {"digest": digest, "done": 0, "crc": 0, "errors": []}

    @property
    def num_done(self) -> int:
        return self._state["done"]

    @property
    def errors(self) -> dict[int, str]:
        return dict(self._state["errors"])

    def append(self, features: np.ndarray, errors: dict[int, str]) -> None:
        """features: float32 (M, F), of the next M samples. Raises OSError if the disk has no space for all samples."""
        if self.values is None:
            self.values = self._allocate(features.shape[1])
        features[[index - self.num_done for index in errors]] = np.nan
        end = self.num_done + len(features)
        self.values[self.num_done : end] = features
        crc = zlib.crc32(np.ascontiguousarray(features).data, self._state["crc"])
        self._state |= {"done": end, "crc": crc, "errors": [*self._state["errors"], *errors.items()]}
        atomic_write(self.state_path, json.dumps(self._state))

    def _allocate(self, width: int) -> np.ndarray:
        """Reserves the space first: a write to a mapped file on a full disk kills the process."""
        values = np.lib.format.open_memmap(self.path, "w+", np.float32, (self.num_samples, width))
        try:
            with open(self.path, "r+b") as file:
                os.posix_fallocate(file.fileno(), 0, values.offset + values.nbytes)
        except OSError as error:
            self.path.unlink()
            fix = f"{values.nbytes / 1e6:,.1f} MB of features; free space, or choose another folder with -output"
            raise OSError(error.errno, f"{error.strerror}: {fix}", self.path) from None
        return values
