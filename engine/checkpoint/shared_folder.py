"""Checks that all hosts of a run see its folder, from which the ranks read checkpoints."""

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from utils.distributed import ProcessContext, broadcast_object, gather_objects
from utils.errors import Unavailable
from utils.file_formats.checkpoint_folder import MANIFEST, SHARDS
from utils.waits import wait_for

_VISIBLE_SECONDS = 3.0  # a network file system shows a new file to other hosts within this time


def check_shared(folder: Path, context: ProcessContext) -> None:
    """Checks that one rank of each host sees a file that rank 0 creates in the folder. A collective call.

    The file has a random name: a folder of the same name on the disk of another host does not pass.

    Raises:
        UserError: on all ranks; it names the host of rank 0 and the hosts that do not see the folder.
    """
    if _is_one_host(context):
        return
    own = folder / f".shared-{secrets.token_hex(8)}.tmp"
    try:
        if context.is_main:
            own.touch()
        blind = _blind_hosts(broadcast_object(own, context).exists, context)
    finally:
        if context.is_main:
            own.unlink(missing_ok=True)
    if blind:
        raise Unavailable(
            f"SAVE: {os.path.abspath(folder)}: {blind} this folder of {context.hosts[0]}, the host of rank 0; choose a "
            "folder on a disk that all hosts share with -output"
        )


def check_same_checkpoint(path: Path, context: ProcessContext) -> None:
    """Checks that one rank of each host sees the checkpoint of rank 0, by its size. A collective call.

    Writes nothing: the folder of an evaluated run may be read-only.

    Raises:
        UserError: on all ranks; it names the host of rank 0 and the hosts that do not see the checkpoint.
    """
    if _is_one_host(context):
        return
    file = path / MANIFEST if path.suffix == SHARDS else path
    size = None
    if context.is_main:
        with suppress(OSError):  # reading the checkpoint reports it
            size = _size(file)
    size = broadcast_object(size, context)
    if size is None:
        return
    if blind := _blind_hosts(lambda: _size(file) == size, context):
        raise Unavailable(
            f"{os.path.abspath(path)}: {blind} this checkpoint of {context.hosts[0]}, the host of rank 0; put it on a "
            "disk that all hosts share"
        )


def _is_one_host(context: ProcessContext) -> bool:
    """Compares the launcher's counts, since the names of two hosts or containers may be equal."""
    return context.world_size == context.local_world_size


def _size(file: Path) -> int:
    """The size of a file. Opening it first makes a network file system ask its server instead of its cache."""
    with open(file, "rb") as opened:
        return os.fstat(opened.fileno()).st_size


def _blind_hosts(is_visible: Callable[[], bool], context: ProcessContext) -> str:
    """'node2 and node3 do not see': the hosts on which the condition stays false; '' if there is none."""
    sees = gather_objects(context.local_rank != 0 or wait_for(is_visible, _VISIBLE_SECONDS), context)
    blind = list(dict.fromkeys(host for host, seen in zip(context.hosts, sees, strict=True) if not seen))
    return f"{' and '.join(blind)} {'does' if len(blind) == 1 else 'do'} not see" if blind else ""
