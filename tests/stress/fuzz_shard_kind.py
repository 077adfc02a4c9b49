"""Folders of shards: valid examples as one text, and a reader."""

import re
import shutil
import tempfile
from pathlib import Path

from fuzz_model_kinds import checkpoint_state
from shard_files import seal, write_shards

from engine.checkpoint.reader import load_checkpoint
from utils.file_formats.checkpoint_folder import MANIFEST

_MARK = re.compile(rb"=== ([\w.-]{1,80})\n")


def shard_examples() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        return [_join(write_shards(Path(folder, str(parts)), checkpoint_state(), parts)) for parts in (1, 2)]


def _join(folder: Path) -> bytes:
    return b"".join(b"=== %s\n%s" % (path.name.encode(), path.read_bytes()) for path in sorted(folder.iterdir()))


def _split(data: bytes, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    _, *parts = _MARK.split(data)
    for name, content in zip(parts[::2], parts[1::2], strict=True):
        if name.strip(b"."):
            (folder / name.decode()).write_bytes(content)


def read_shards(data: bytes, folder: Path) -> None:
    run = folder / "last.shards"
    _split(data, run)
    load_checkpoint(run)
    sealed = (run / MANIFEST).read_bytes()
    assert (seal(run) / MANIFEST).read_bytes() == sealed, "the damage was not detected"


def repair_shards(data: bytes) -> bytes:
    """The files with a manifest that fits them."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "last.shards")
        _split(data, run)
        return _join(seal(run))
