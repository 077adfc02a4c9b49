"""Folders as one text: runs, which the report page reads, and sharded checkpoints; valid examples and readers."""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from faults.processes import SINGLE, finish
from faults.scene import Scene
from shard_files import checkpoint_state, seal, write_shards

from engine.checkpoint.reader import load_checkpoint
from scripts import report
from utils.file_formats.checkpoint_folder import MANIFEST

_MARK = re.compile(rb"=== ([\w./-]{1,80})\n")  # before each file, with its name
_TEXT_FILES = (".json", ".jsonl", ".csv", ".txt", ".yaml")


def join_files(folder: Path, suffixes: Sequence[str] = ()) -> bytes:
    """All files of a folder, or the files with one of these suffixes."""
    files = [
        path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix in (suffixes or [path.suffix])
    ]
    return b"".join(b"=== %s\n%s" % (str(file.relative_to(folder)).encode(), file.read_bytes()) for file in files)


def split_files(data: bytes, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    _, *parts = _MARK.split(data)
    for name, content in zip(parts[::2], parts[1::2], strict=True):
        path = Path(os.path.normpath(folder / name.decode()))
        if path != folder and path.is_relative_to(folder) and not path.is_dir():
            with contextlib.suppress(FileExistsError, NotADirectoryError):  # a folder has the name of a file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)


def run_examples() -> list[bytes]:
    """The text files of a run that was trained and evaluated."""
    with tempfile.TemporaryDirectory() as temporary:
        scene = Scene(Path(temporary), Path(temporary))
        finish(scene, SINGLE, scene.digits("TRAIN.NUM_EPOCHS=1"))
        (run,) = scene.output.iterdir()
        return [join_files(run, _TEXT_FILES)]


def read_run(data: bytes, folder: Path) -> None:
    run, copy = folder / "run", folder / "copy"
    for path in (run, copy):
        split_files(data, path)
    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing), contextlib.redirect_stderr(nothing):
        report.main([str(run)])
        report.main([str(run), str(run), "-output", str(folder / "compare.html")])
        report.main([str(run), str(copy), "-mistakes", "-output", str(folder / "compare.html")])


def sharded_examples() -> list[bytes]:
    with tempfile.TemporaryDirectory() as temporary:
        folders = [write_shards(Path(temporary, str(parts)), checkpoint_state(), parts) for parts in (1, 2)]
        return [join_files(folder) for folder in folders]


def read_sharded(data: bytes, folder: Path) -> None:
    checkpoint = folder / "last.shards"
    split_files(data, checkpoint)
    load_checkpoint(checkpoint)
    sealed = (checkpoint / MANIFEST).read_bytes()
    assert (seal(checkpoint) / MANIFEST).read_bytes() == sealed, "the damage was not detected"


def repair_sharded(data: bytes) -> bytes:
    """The files with a manifest that fits them."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "last.shards")
        split_files(data, folder)
        seal(folder)
        return join_files(folder)
