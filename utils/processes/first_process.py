"""Process 1 of a container. This file imports nothing slow: until it has run, no signal ends the container."""

import os
import signal


def leave_first_process() -> None:
    """Makes the caller a child of process 1 if it is process 1 itself, which then does what `docker run --init` adds.

    The kernel drops a signal to process 1 without a handler, such as SIGTERM while torch is imported or a rendezvous
    waits. Process 1 forwards all signals, reaps orphans, and exits with the status of its child.
    """
    if os.getpid() != 1:
        return
    forwarded = signal.valid_signals() - {signal.SIGCHLD, signal.SIGKILL, signal.SIGSTOP}
    signal.pthread_sigmask(signal.SIG_BLOCK, forwarded)
    child = os.fork()
    if child:
        for number in forwarded:
            signal.signal(number, lambda number, _: os.kill(child, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, forwarded)
    if not child:
        return
    ended = 0
    while ended != child:
        ended, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)
