"""Forks of this process, which have in memory what it has imported."""

import os
import signal
import sys
import warnings
from collections.abc import Callable
from multiprocessing import Pipe
from typing import Any

from utils.errors import Unavailable
from utils.threads import wait_for

_JOIN_SECONDS = 1.0  # the system lists a thread for a moment after its end


def fork_alone() -> int | None:
    """The process id of a fork of this process, and 0 in the fork; None without a fork: this process has threads.

    A fork could wait forever for a lock of a thread, which it does not have. OpenBLAS ends its own before a fork.
    """
    sys.stdout.flush()  # the fork would print it again
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 counts OpenBLAS's threads
        child = os.fork()
    if not child or wait_for(lambda: len(os.listdir("/proc/self/task")) == 1, _JOIN_SECONDS):
        return child
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def call_in_fork(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function in a fork of this process, or its error. A process that has called CUDA has no forks
    that can use a GPU. A process with threads makes the call itself.

    Raises Unavailable: the fork was killed.
    """
    receiver, sender = Pipe(duplex=False)
    child = fork_alone()
    if child is None:
        return function(*arguments)
    if not child:
        try:
            sender.send(_call(function, *arguments))
        finally:
            os._exit(0)
    sender.close()
    try:
        result, error = receiver.recv()
    except EOFError:
        raise Unavailable(
            f"the process that calls {function.__name__} was killed, perhaps out of host memory"
        ) from None
    finally:
        os.waitpid(child, 0)
    if error:
        raise error
    return result


def _call(function: Callable[..., Any], *arguments: Any) -> tuple[Any, Exception | None]:
    try:
        return function(*arguments), None
    except Exception as error:
        return None, error
