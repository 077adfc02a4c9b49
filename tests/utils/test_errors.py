"""How errors are printed."""

import io
import pickle
import sys

import pytest
import torch

from engine.run.log import RunLogger
from utils.distributed import ProcessContext
from utils.errors import Findings, UserError, combine_findings, escape_control_characters
from utils.processes.entry import run_and_report_errors

ESCAPE = "\x1b]0;harm\x07\x1b[31m\u202e\udcff\r"


def printed_by(capsys, error: Exception) -> str:
    def main(argv: list[str]) -> int:
        raise error

    assert run_and_report_errors(main, []) == error.status
    return capsys.readouterr().err


def test_control_sequences_are_escaped(capsys):
    assert escape_control_characters(text := "Ünï 中文 🙂 $\\frac{\n") == text
    assert escape_control_characters(ESCAPE) == r"\x1b]0;harm\x07\x1b[31m\u202e\udcff\r"
    assert (
        printed_by(capsys, UserError(f"{ESCAPE[:-1]}.jpg\n: bad"))
        == f"error: {escape_control_characters(ESCAPE[:-1])}.jpg : bad\n"
    )


@pytest.mark.parametrize(("count", "more"), [(20, None), (21, "  ... and 1 more")])
def test_each_finding_is_a_line(capsys, count, more):
    error = combine_findings("the data", [f"file {number}\n{ESCAPE}" for number in range(count)])
    assert isinstance(pickle.loads(pickle.dumps(error)), Findings)
    headline, *lines = printed_by(capsys, error).splitlines()
    assert headline == "error: the data"
    shown = [f"  file {number} {escape_control_characters(ESCAPE[:-1])}" for number in range(min(count, 20))]
    assert lines == shown + [more] * (more is not None)
    assert printed_by(capsys, combine_findings("the data", ["list.txt:3: bad"])) == "error: list.txt:3: bad\n"


def test_the_log_is_printable(tmp_path, capsys):
    logger = RunLogger(tmp_path, ProcessContext(0, 0, 1, 1, torch.device("cpu")))
    logger.info(f"one\n{ESCAPE}")
    assert capsys.readouterr().out == f"one\n{escape_control_characters(ESCAPE)}\n"
    assert (tmp_path / "log.txt").read_text().endswith(f" one\n{escape_control_characters(ESCAPE)}\n")


def test_terminal_without_utf8_gets_escapes(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    assert run_and_report_errors(lambda argv: print("é") or 0, []) == 0
    stream.flush()
    assert stream.buffer.getvalue() == b"\\xe9\n"
