"""Signals while a script imports. This file imports nothing slow: until it has run, no signal ends a container."""

import os
import signal


def leave_first_process() -> None:
    """Makes the caller a child of process 1 if it is process 1 itself, as `docker run --init` does.

    The kernel drops a signal to process 1 without a handler, such as SIGTERM during the imports or a rendezvous.
    Process 1 forwards signals, reaps orphans, and exits with the status of its child. Ctrl-C ends the caller at once
    until it handles it, without the traceback of a KeyboardInterrupt.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell may have it ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if os.getpid() != 1:
        return
    forwarded = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)  # Windows lacks some
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, forwarded)
    child = os.fork()
    if child:
        for number in forwarded:
            signal.signal(number, lambda number, frame: os.kill(child, number))
    signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
    if not child:
        return
    ended = 0
    while ended != child:
        ended, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)
