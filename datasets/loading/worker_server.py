"""Python's fork server: the parent process of the loading workers, which has their modules in memory. Without torch."""

import functools
import multiprocessing
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from multiprocessing import forkserver, resource_tracker, util
from typing import Any, NoReturn, cast

from utils.errors import error_from
from utils.files import TemporaryFolder
from utils.processes.launch import end_with_parent, inherited_import_path
from utils.signals import TERMINATION_SIGNALS

_PRELOADED = ["datasets.loading.loader"]


def fork_worker_server() -> None:
    """Starts the server unless it runs. On Linux it is a fork of this process: it need not import torch again.

    Call it when torch is imported, and before the process has a GPU, locks or a log. Raises as `start_worker_server`.
    """
    sys.stdout.flush()  # the fork would print it again
    start_worker_server(_forking if sys.platform == "linux" else nullcontext)


def start_worker_server(way: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
    """Starts the server unless it runs. It imports the modules of the workers while the caller continues.

    A server without threads forks the workers, because a fork of a process with threads can deadlock.

    Terminals and launchers send signals to all processes. Only the rank handles them, because it may need more batches
    before it ends: they are blocked in the server, and the workers inherit that.

    way: a context for its start.

    Raises:
        UserError: the server cannot open its socket.
    """
    from utils.torch_compat import set_multiprocessing_folder  # imported late: with torch

    multiprocessing.get_context("forkserver").set_forkserver_preload(_PRELOADED)
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, TERMINATION_SIGNALS)
    try:
        set_multiprocessing_folder(_socket_folder().name)
        with inherited_import_path(PYTHONWARNINGS="ignore:resource_tracker"):  # of semaphores that it removes
            resource_tracker.ensure_running()  # it inherits the blocked signals, and unblocks some of them here
        signal.pthread_sigmask(signal.SIG_BLOCK, TERMINATION_SIGNALS)
        with inherited_import_path(), way():
            forkserver.ensure_running()
    except OSError as error:  # such as 'AF_UNIX path too long'
        raise error_from(
            error,
            f"TMPDIR: workers cannot open a socket in {tempfile.gettempdir()} ({error.strerror or error}); set it to a "
            "short path, such as /tmp, or use no workers: -num_workers=0",
        ) from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)


@functools.cache
def _socket_folder() -> TemporaryFolder:
    """As long as this process, in place of multiprocessing's own `pymp-*`, which a killed process leaves."""
    return TemporaryFolder("mp")


@contextmanager
def _forking() -> Iterator[None]:
    """In the block, `ForkServer.ensure_running` forks this process, unless it has threads, instead of starting Python.

    It starts it by multiprocessing.util.spawnv_passfds (Python 3.11 to 3.14), which is not documented.
    """
    module: Any = util
    spawn = module.spawnv_passfds

    def fork(path: str, arguments: list[str], descriptors: list[int]) -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 counts OpenBLAS's threads
            child = os.fork()  # OpenBLAS ends them before it
        if not child:
            _serve(*descriptors)
        if len(os.listdir("/proc/self/task")) == 1:
            return child
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return cast(int, spawn(path, arguments, descriptors))

    module.spawnv_passfds = fork
    try:
        yield
    finally:
        module.spawnv_passfds = spawn


def _serve(listener: int, alive: int, *key: int) -> NoReturn:
    """Runs the server as a new process would: with default signal handlers, and no other open files.

    Descriptors: of its socket, of the pipe that closes when no process needs it, and of its key, since Python 3.14.
    """
    try:
        end_with_parent(signal.SIGKILL)
        for number in filter(lambda number: callable(signal.getsignal(number)), signal.valid_signals()):
            signal.signal(number, signal.SIG_DFL)
        for opened in set(map(int, os.listdir("/proc/self/fd"))) - {0, 1, 2, listener, alive, *key}:
            with suppress(OSError):  # the one that has listed them
                os.close(opened)
        run: Any = forkserver.main
        run(listener, alive, _PRELOADED, **({"authkey_r": key[0]} if key else {}))
    finally:
        os._exit(0)
