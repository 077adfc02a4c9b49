"""The folder in which a fault is provoked, with a little data and flags of runs that take a second or two."""

import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from functools import cached_property
from itertools import product
from pathlib import Path

from conftest import ALL_DIGITS, TINY_VIT, digits_flags
from pytest import skip

from tests.datasets.shards.tar_files import jpeg

TINY = [*TINY_VIT, "TRAIN.BASE_LR=1e-3"]
ENDLESS = ["TRAIN.NUM_EPOCHS=100000", "REPORT_FREQ=1"]


def require_mounts() -> None:
    """Skips the fault unless a process may mount a file system and set the host name for itself."""
    if os.system("unshare -rmu true 2>/dev/null"):
        skip("users cannot mount file systems on this machine")


def in_namespace(command: str) -> str:
    """`Fault.shell` for a command that mounts a file system, for the run only."""
    return f'unshare -rm sh -c \'{command} && exec "$@"\' sh "$@"'


class Scene:
    """The files of one fault.

    trained: the folder of a finished run: copy it, do not change it.
    """

    def __init__(self, folder: Path, trained: Path) -> None:
        self.folder = folder
        self.trained = trained
        self.output = folder / "output"
        self.resources = ExitStack()  # servers of this fault, which end with it

    def digits(self, *options: str, flags: tuple[str, ...] = ()) -> list[str]:
        """Flags of a run on the embedded digits."""
        return [*digits_flags(self.output), ALL_DIGITS, "DATA.BATCH_SIZE=64", *options, *flags]

    def images(self, *options: str, dataset: str = "imagenet2012", flags: tuple[str, ...] = ()) -> list[str]:
        """Flags of a run on 24 training and 8 validation images of two classes."""
        more = [f"-dataset={dataset}", "-batch_size=4", f"-data_path={self.data}", "-num_workers=0"]
        return [*more, f"-output={self.output}", *flags, "-opts", *TINY, *options]

    @cached_property
    def data(self) -> Path:
        """The images, as class folders and as lists."""
        for split, count in (("train", 12), ("val", 4)):
            lines = ""
            for number, (label, name) in product(range(count), enumerate(("cat", "dog"))):
                self.write(f"data/{split}/{name}/{number}.jpg", jpeg(0))
                lines += f"{split}/{name}/{number}.jpg {label}\n"
            self.write(f"data/{split}_list.txt", lines)
        return self.folder / "data"

    def write(self, name: str, content: str | bytes) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def run_copy(self) -> Path:
        """Copies a finished run on the digits to the output folder."""
        return Path(shutil.copytree(self.trained, self.output / self.trained.name))


Provoke = Callable[[Scene], list[str]]


def given(*flags: str, options: tuple[str, ...] = ()) -> Provoke:
    """A run on the digits with these flags and options."""
    return lambda scene: scene.digits(*options, flags=flags)
