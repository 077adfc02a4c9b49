"""Signals while a script imports. This file imports nothing slow: until it has run, no signal ends a container."""

import os
import signal


def leave_first_process() -> None:
    """Makes the caller a child of process 1 if it is process 1 itself, which then does what `docker run --init` adds.

    The kernel drops a signal to process 1 without a handler, such as SIGTERM while torch is imported or a rendezvous
    waits. Process 1 forwards all signals, reaps orphans, and exits with the status of its child. Ctrl-C ends the caller
    at once until it handles it: without the traceback of a KeyboardInterrupt.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell has it ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if os.getpid() != 1:
        return
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    child = os.fork()
    if not child:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        return
    while True:  # without handlers: an error of this process, such as SIGSEGV, ends it
        if (number := signal.sigwait(signal.valid_signals())) != signal.SIGCHLD:
            os.kill(child, number)  # it has not been reaped
        while number == signal.SIGCHLD and (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                os._exit(os.WEXITSTATUS(ended[1]) if os.WIFEXITED(ended[1]) else 128 + os.WTERMSIG(ended[1]))
