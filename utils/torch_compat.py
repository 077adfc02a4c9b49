"""Private names of torch and Python's standard library, one function each; checked with torch 2.10 and 2.15."""

import os
from collections.abc import Iterator
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from typing import Any

import torch


def shared_zeros(shape: tuple[int, ...]) -> torch.Tensor:
    """Zeros of torch.uint8 in new shared memory, which torch's own collation uses in a worker.

    torch.UntypedStorage._new_shared; raises RuntimeError if shared memory is full.
    """
    num_bytes = torch.Size(shape).numel()
    return torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(num_bytes)).view(shape)


def loader_workers(iterator: Iterator[Any]) -> list[BaseProcess]:
    """The worker processes of a DataLoader's iterator: _MultiProcessingDataLoaderIter._workers."""
    return list(iterator._workers)


def close_fork_server_pipe() -> None:
    """Closes a worker's copy of the pipe that keeps the fork server alive: ForkServer._forkserver_alive_fd.

    The fork server exits when no process has the pipe open (Python 3.11 to 3.14).
    """
    os.close(forkserver._forkserver._forkserver_alive_fd)
