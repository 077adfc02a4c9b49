"""The start and the end of a program: an error is one line and an exit status, with a traceback only with `-debug`."""

import io
import os
import resource
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from utils.errors import Findings, Unavailable, UserError, print_escaped, print_resume, to_single_line
from utils.library_compat import exit_fork
from utils.notes import record_run_end
from utils.processes import ranks
from utils.processes.launch import has_launcher, rank_of_process, report_end
from utils.signals import Interrupted, end_without_exceptions, raise_on_signals


def run_and_report_errors(main: Callable[[list[str]], int], argv: list[str]) -> int:
    """Runs `main(argv)` and returns its exit status. A `UserError` is printed as one line.

    The end of the run is recorded in its status.json.
    """
    repair_standard_streams()
    raise_on_signals()
    threading.excepthook = _report_thread_exception
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for terminals without UTF-8; the default of stderr
    try:
        status = _report_user_error(main, argv)
        end_without_exceptions()
    except Interrupted as signal:
        record_run_end("interrupted", signal.status, signal=str(signal))
        if rank_of_process() == 0 and not has_launcher():
            print(f"interrupted by {signal}", file=sys.stderr, flush=True)
        status = signal.status
    except Exception as error:
        if not isinstance(error, UserError):  # which has been reported
            print_resume(record_run_end("failed", message=to_single_line(f"{type(error).__name__}: {error}")))
        report_end()
        raise
    report_end()
    return status


def _report_user_error(main: Callable[[list[str]], int], argv: list[str]) -> int:
    try:
        return _run_in_limited_memory(main, argv)
    except UserError as error:
        end_without_exceptions()
        message = str(error) if isinstance(error, Findings) else to_single_line(str(error))
        resume = record_run_end("failed", error.status, message=message)
        if {"-debug", "--debug"} & {*argv}:
            raise
        if not error.is_printed:
            print_escaped(f"error: {message}", sys.stderr)
            print_resume(resume)
        return error.status


def run_script(main: Callable[[list[str]], int]) -> NoReturn:
    """Runs `main` with the arguments of the process, and exits with its status. `main` may return in a fork, too."""
    process = os.getpid()
    status = run_and_report_errors(main, sys.argv[1:])
    if os.getpid() != process or ranks.have_ended:  # whose objects take seconds to free
        exit_fork(status)
    sys.exit(status)


def _run_in_limited_memory(main: Callable[[list[str]], int], argv: list[str]) -> int:
    try:
        return main(argv)
    except (ImportError, MemoryError) as error:
        limit_bytes = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit_bytes == resource.RLIM_INFINITY or isinstance(error, ModuleNotFoundError):
            raise
        raise Unavailable(f"ulimit -v is {limit_bytes // 1024}: too little memory ({error!r}); raise it") from error


def _report_thread_exception(error: threading.ExceptHookArgs) -> None:
    """Ignores an OSError, such as a full disk: threads of TensorBoard and this project report it to their callers."""
    if not isinstance(error.exc_value, OSError):
        threading.__excepthook__(error)


def repair_standard_streams() -> None:
    """Replaces a closed stream by the null device; a terminal or a pipe that goes away later stops no run.

    Otherwise the next file that is opened, such as a checkpoint, would receive its descriptor and all printed text.
    `sys.stderr` has its own descriptor: `captured_stderr` takes what libraries write to 2, not the lines of a thread.
    """
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # receives the lowest free descriptor, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream is getattr(sys, f"__{name}__"):  # no test has replaced it
            stream.flush()
            descriptor = os.dup(2) if name == "stderr" else 1
            binary = io.BufferedWriter(_TolerantFile(descriptor, "w", closefd=False))
            by_line = stream.line_buffering or stream.write_through  # unbuffered, by python -u
            text = io.TextIOWrapper(binary, stream.encoding, stream.errors, line_buffering=by_line)
            setattr(sys, name, text)


class _TolerantFile(io.FileIO):
    """Ignores the error of writing to a stream that is lost: the log files have the same lines."""

    def write(self, data: Any) -> int:
        with suppress(OSError):  # the terminal or the reader of a pipe has gone; a full disk
            return super().write(data)
        return len(memoryview(data))
