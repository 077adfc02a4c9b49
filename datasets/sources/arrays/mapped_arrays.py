"""Read-only arrays in .npy files, memory-mapped by every process: workers share one copy.

A pickled `MappedArrays` is the path of its folder; the receiving process opens the files again.
"""

import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from utils.errors import error_from
from utils.files import make_temporary_folder


class MappedArrays(Mapping[str, np.ndarray]):
    """The arrays in the files `{name}.npy` of a folder, which `share_arrays` has written. Raises OSError."""

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        self.folder = folder
        self._arrays = {name: _map(folder / f"{name}.npy") for name in names}

    def __reduce__(self) -> tuple[Any, ...]:
        return MappedArrays, (self.folder, list(self._arrays))

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


def _map(path: Path) -> np.ndarray:
    # Unlike np.load, open_memmap reads no pickles. A plain view is faster to index than a memmap.
    return np.lib.format.open_memmap(path, mode="r").view(np.ndarray)


def share_arrays(arrays: Mapping[str, np.ndarray]) -> MappedArrays:
    """Writes the arrays to a temporary folder and maps them.

    The folder exists as long as the returned object, at most until this process exits. After SIGKILL it remains in the
    system's folder for temporary files as `ampvit-samples-*`.

    Raises:
        UserError: the folder cannot be written.
    """
    folder = None
    try:
        folder = make_temporary_folder("ampvit-samples-")
        for name, values in arrays.items():
            np.save(Path(folder.name, f"{name}.npy"), values, allow_pickle=False)
        mapped = MappedArrays(Path(folder.name), arrays)
    except BaseException as error:
        if folder:
            folder.cleanup()
        if isinstance(error, OSError):
            problem = f"the list of images cannot be written ({error.strerror}); free space or set TMPDIR"
            raise error_from(error, f"{tempfile.gettempdir()}: {problem}") from error
        raise
    weakref.finalize(mapped, folder.cleanup)
    return mapped
