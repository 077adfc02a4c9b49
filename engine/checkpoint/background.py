"""The thread in which a checkpoint is written while training continues."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch


class BackgroundWriter:
    """The base of the checkpoint writers: at most one write at a time.

    The current GPU is a setting of each thread: a new thread would allocate memory on the first one, of another rank.
    """

    def __init__(self) -> None:
        on_start = (torch.cuda.set_device, (torch.cuda.current_device(),)) if torch.cuda.is_initialized() else ()
        self._thread = ThreadPoolExecutor(1, "checkpoint", *on_start)
        self._pending: Future[None] | None = None

    def submit(self, write: Callable[..., None], *arguments: Any) -> None:
        """Runs `write(*arguments)` in the thread. Call `wait` before."""
        self._pending = self._thread.submit(write, *arguments)

    def wait(self) -> None:
        """Waits until all files are written. Raises the error of the background thread."""
        pending, self._pending = self._pending, None
        if pending:
            pending.result()

    def check(self) -> None:
        """Raises the error of the background thread if it is known already; does not wait."""
        if self._pending and self._pending.done():
            self.wait()
