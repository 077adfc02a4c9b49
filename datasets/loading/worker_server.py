"""Python's fork server: the parent process of the loading workers, which imports their modules once. Without torch."""

import multiprocessing
import signal
import tempfile
from multiprocessing import forkserver, resource_tracker

from utils.errors import error_from
from utils.processes.launch import inherited_import_path
from utils.signals import TERMINATION_SIGNALS

_PRELOADED = ["datasets.loading.loader"]


def start_worker_server() -> None:
    """Starts the server unless it runs. It imports the modules of the workers while the caller continues.

    A server without threads forks the workers, because a fork of a process with threads can deadlock.

    Terminals and launchers send signals to all processes. Only the rank handles them, because it may need more batches
    before it ends: they are blocked in the server, and the workers inherit that.

    Raises:
        UserError: the server cannot open its socket.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(_PRELOADED)
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, TERMINATION_SIGNALS)
    try:
        with inherited_import_path(PYTHONWARNINGS="ignore:resource_tracker"):  # of semaphores that it removes
            resource_tracker.ensure_running()  # it inherits the blocked signals, and unblocks some of them here
        signal.pthread_sigmask(signal.SIG_BLOCK, TERMINATION_SIGNALS)
        with inherited_import_path():
            forkserver.ensure_running()
    except OSError as error:  # such as 'AF_UNIX path too long'
        raise error_from(
            error,
            f"TMPDIR: workers cannot open a socket in {tempfile.gettempdir()} ({error.strerror or error}); set it to a "
            "short path, such as /tmp, or use no workers: -num_workers=0",
        ) from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
