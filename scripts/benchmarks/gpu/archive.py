"""The files that benchmark_gpu.py leaves for copying: an archive of its output, and the compile cache in pieces."""

import gzip
import io
import shutil
import tarfile
import zlib
from itertools import count
from pathlib import Path
from tempfile import TemporaryFile

from scripts.benchmarks.common import print_progress
from utils.atomic_file import open_atomically

ARCHIVE, CACHE = "figures.tar.gz", "cache.tar.gz"
MAX_BYTES = 16 * 2**20  # of each file
_ERRORS = (OSError, EOFError, tarfile.TarError, zlib.error)


def write_archive(folder: Path) -> None:
    """Packs the files of the folder, smaller ones first, into `figures.tar.gz`; the archive has at most MAX_BYTES."""
    archive, left_out = folder / ARCHIVE, []
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith((ARCHIVE, CACHE))]
    files.sort(key=lambda path: path.stat().st_size)
    with open_atomically(archive, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as tar:
        for path in files:
            if file.tell() + path.stat().st_size < MAX_BYTES:  # it may be compressed already
                tar.add(path, path.relative_to(folder))
            else:
                left_out.append(str(path))
    if left_out:
        print_progress(f"{archive}: left out, because it would have more than 16 MiB: {', '.join(left_out)}")


def pack_cache(cache: Path, folder: Path) -> None:
    """Writes the compile cache to `cache.tar.gz.000`, `.001` and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryFile() as whole:
        with tarfile.open(fileobj=whole, mode="w:gz", compresslevel=3) as tar:
            tar.add(cache, ".")
        whole.seek(0)
        for old in folder.glob(f"{CACHE}.*"):
            old.unlink()
        for number in count():
            if not (piece := whole.read(MAX_BYTES)):
                return
            (folder / f"{CACHE}.{number:03d}").write_bytes(piece)


def drop_incomplete(cache: Path, since: float) -> None:
    """Deletes the output of C++ compilers since then; all other files are renamed when they are complete."""
    for path in cache.rglob("*"):
        if path.suffix in (".so", ".o", ".gch") and path.stat().st_mtime >= since:
            path.unlink()


def unpack_cache(folder: Path, cache: Path) -> None:
    """Unpacks the pieces into the empty folder `cache`. If they are damaged, the cache is empty, and a line says so.

    The cache contains code, which the parts run.
    """
    pieces = sorted(folder.glob(f"{CACHE}.*"))
    try:
        if pieces:
            content = gzip.decompress(b"".join(piece.read_bytes() for piece in pieces))  # also verifies its checksum
            with tarfile.open(fileobj=io.BytesIO(content)) as tar:
                tar.extractall(cache, filter="data")
    except _ERRORS as error:
        shutil.rmtree(cache)
        cache.mkdir()
        print_progress(f"-cache {folder}: damaged or incomplete ({error}); the compile cache starts empty")
