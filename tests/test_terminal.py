"""A terminal that goes away, and standard streams that are closed at the start."""

import os
import pty
import signal
import subprocess
import sys

from conftest import ROOT, digits_flags, only_run, states
from pytest import mark
from rank_pool import environment

from engine.run.record import RUN
from utils.files import read_json
from utils.notes import STATUS
from utils.signals import TERMINATION_SIGNALS


def digits(output, *options: str) -> list[str]:
    return [sys.executable, "main_single_gpu.py", *digits_flags(output), *options]


@mark.slow
@mark.skipif(signal.SIGHUP not in TERMINATION_SIGNALS, reason="the tests run under nohup")
def test_run_whose_terminal_is_closed_is_saved(tmp_path):
    """The kernel sends SIGHUP, and every later write to the terminal fails, also the progress bar's."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(ROOT)
        command = digits(tmp_path, "TRAIN.NUM_EPOCHS=100000", "REPORT_FREQ=1")
        os.execve(sys.executable, command, environment())
    printed = b""
    while b"Epoch[002" not in printed:
        printed += os.read(terminal, 4096)
    os.close(terminal)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGHUP
    folder = only_run(tmp_path)
    assert read_json(folder / RUN)["state"] == "interrupted"
    assert read_json(folder / RUN)["signal"] == "SIGHUP"
    assert states(folder)["epoch"] >= 1


def test_sighup_is_ignored_under_nohup():
    code = "import signal; from utils.signals import TERMINATION_SIGNALS; print(signal.SIGHUP in TERMINATION_SIGNALS)"
    for action, handled in ((signal.SIG_IGN, "False"), (signal.SIG_DFL, "True")):
        printed = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True,
            preexec_fn=lambda action=action: signal.signal(signal.SIGHUP, action)
        )  # fmt: skip
        assert printed.stdout.strip() == handled


@mark.parametrize("flags", [[], ["-u"]])
def test_a_progress_bar_is_erased_before_a_line_of_the_log(flags):
    """tqdm erases the bar on stderr by a carriage return, without a flush, before the log writes to stdout."""
    code = "from utils.processes.entry import repair_standard_streams as r; import os, sys; r()\n"
    code += r"w = sys.stderr.write; w('bar'); sys.stderr.flush(); w('\r   \r'); os.write(1, b'log'); os._exit(0)"
    command = [sys.executable, *flags, "-c", code]
    printed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True).stdout
    assert printed == b"bar\r   \rlog"


@mark.slow
@mark.parametrize("shell", ['exec "$@" <&- >&- 2>&-', '"$@" | head -1; exit ${PIPESTATUS[0]}'])
def test_run_with_closed_standard_streams(tmp_path, shell):
    """From the start, or when the reader of a pipe ends: the log file has all lines."""
    command = ["bash", "-c", shell, "bash", *digits(tmp_path, "TRAIN.NUM_EPOCHS=1", "REPORT_FREQ=1")]
    assert subprocess.run(command, cwd=ROOT, env=environment(), timeout=300).returncode == 0
    folder = only_run(tmp_path)
    assert read_json(folder / STATUS)["state"] == "finished"
    assert states(folder)["epoch"] == 1  # no printed text is in the checkpoint
