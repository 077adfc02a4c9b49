"""The folder in which a fault is provoked, with a little data and flags of runs that take a second or two."""

import io
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

TINY = [
    "MODEL.NUM_CLASSES=10", "MODEL.EMBED_DIM=16", "MODEL.DEPTH=2", "MODEL.NUM_HEADS=2", "MODEL.PATCH_SIZE=4",
    "DATA.IMAGE_SIZE=8", "DATA.CROP_PCT=1.0", "TRAIN.WARMUP_EPOCHS=0.5", "TRAIN.NUM_EPOCHS=2", "TRAIN.BASE_LR=1e-3",
    "SAVE_FREQ=1", "TRAIN.MAX_STEPS=null",
]  # fmt: skip
GREY = ["DATA.IMAGE_CHANNELS=1", "DATA.IMAGENET_MEAN=[0.5]", "DATA.IMAGENET_STD=[0.5]"]
ENDLESS = ["TRAIN.NUM_EPOCHS=100000", "REPORT_FREQ=1"]


class Skipped(Exception):
    """The fault cannot be provoked on this machine. The message is the reason."""


def require_mounts() -> None:
    """Raises Skipped unless a process may mount a file system and set the host name for itself."""
    if os.system("unshare -rmu true 2>/dev/null"):
        raise Skipped("users cannot mount file systems on this machine")


def in_namespace(command: str) -> str:
    """`Fault.shell` for a command that mounts a file system, for the run only."""
    return f'unshare -rm sh -c \'{command} && exec "$@"\' sh "$@"'


class RunsCode:
    """An object whose pickle runs a command when it is loaded."""

    def __reduce__(self) -> Any:
        return os.system, ("touch exploded",)


def image_bytes() -> bytes:
    pixels = np.random.default_rng(0).integers(256, size=(12, 16, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer := io.BytesIO(), "JPEG")
    return buffer.getvalue()


def torch_bytes(content: object) -> bytes:
    torch.save(content, buffer := io.BytesIO())
    return buffer.getvalue()


class Scene:
    """The files of one fault.

    trained: the folder of a finished run: copy it, do not change it.
    """

    def __init__(self, folder: Path, trained: Path) -> None:
        self.folder, self.trained = folder, trained
        self.output = folder / "output"
        self.resources = ExitStack()  # servers of this fault, which end with it

    def digits(self, *options: str, flags: tuple[str, ...] = ()) -> list[str]:
        """Flags of a run on the embedded digits."""
        return ["-dataset=digits", "-batch_size=64", f"-output={self.output}", *flags, "-opts", *TINY, *GREY, *options]

    def images(self, *options: str, dataset: str = "imagenet2012", flags: tuple[str, ...] = ()) -> list[str]:
        """Flags of a run on 24 training and 8 validation images of two classes."""
        more = [f"-dataset={dataset}", "-batch_size=4", f"-data_path={self.data}", "-num_workers=0"]
        return [*more, f"-output={self.output}", *flags, "-opts", *TINY, *options]

    @cached_property
    def data(self) -> Path:
        """The images, as class folders and as lists."""
        root = self.folder / "data"
        for split, count in (("train", 12), ("val", 4)):
            paths = [f"{split}/{name}/{number}.jpg" for number in range(count) for name in ("cat", "dog")]
            for path in paths:
                self.write(f"data/{path}", image_bytes())
            labels = ["cat" not in path for path in paths]
            rows = "".join(f"{path} {label:d}\n" for path, label in zip(paths, labels, strict=True))
            self.write(f"data/{split}_list.txt", rows)
        return root

    def write(self, name: str, content: str | bytes) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def run_copy(self) -> Path:
        """Copies a finished run on the digits to the output folder."""
        return Path(shutil.copytree(self.trained, self.output / self.trained.name))


def with_last(flag: str, change: Callable[[Path], Any], *options: str) -> Callable[[Scene], list[str]]:
    """Gives the changed `last.pth` of a copied run to a flag."""

    def provoke(scene: Scene) -> list[str]:
        last = scene.run_copy() / "last.pth"
        change(last)
        return scene.digits(*options, flags=(f"-{flag}={last}",))

    return provoke


def truncated(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def flipped(path: Path) -> Path:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return path
