"""The exit status of an error says whether a retry may cure it: real errors of each kind; how errors are printed."""

import io
import pickle
import re
import resource
import sys

import pytest
from conftest import samples_for

from configs.command_line import parse_command_line
from datasets.decoding.decode import open_image
from datasets.shards.store import ShardStore
from engine.checkpoint import run_folder
from engine.checkpoint.files import find_checkpoint
from engine.run.log import RunLogger
from utils import notes
from utils.device import visible_gpus
from utils.errors import (
    MAY_PASS,
    REFUSED,
    Findings,
    Unavailable,
    UserError,
    combine_findings,
    error_from,
    escape_control_characters,
)  # fmt: skip
from utils.processes.entry import run_and_report_errors
from utils.signals import Interrupted


def damaged(folder, name):
    (folder / name).write_bytes(b"hello" * 100)
    return str(folder / name)


def lock_twice(folder):
    with run_folder.lock_run_folder(folder), run_folder.lock_run_folder(folder):
        pass


REFUSED_ERRORS = {
    "an unknown key": lambda folder, cpu: parse_command_line(["-opts", "TRAIN.NOPE=1"]),
    "a damaged image, which Pillow reports as an OSError": lambda folder, cpu: open_image(b"hello", 3, lambda: "a.jpg"),
    "a damaged checkpoint": lambda folder, cpu: find_checkpoint(damaged(folder, "a.pth"), cpu),
}
MAY_PASS_ERRORS = {
    "no recipe": lambda folder, cpu: parse_command_line([f"-cfg={folder / 'a.yaml'}"]),
    "no data": lambda folder, cpu: samples_for(parse_command_line([f"-data_path={folder}/gone"]).config, cpu, "val"),
    "a server": lambda folder, cpu: ShardStore("http://127.0.0.1:9", 0.0).head(["a.tar"]),
    "no GPU": lambda folder, cpu: visible_gpus("cuda"),
    "a folder in use": lambda folder, cpu: lock_twice(folder),
    "no folder for output": lambda folder, cpu: run_folder.make_run_folder(type(folder)("/proc/none"), "run"),
}


@pytest.mark.parametrize("name", [*REFUSED_ERRORS, *MAY_PASS_ERRORS])
def test_status_of(name, tmp_path, cpu, monkeypatch):
    monkeypatch.setattr(run_folder, "_LOCK_SECONDS", 0.0)
    with pytest.raises(UserError) as caught:
        (REFUSED_ERRORS | MAY_PASS_ERRORS)[name](tmp_path, cpu)
    assert caught.value.status == (REFUSED if name in REFUSED_ERRORS else MAY_PASS)
    assert pickle.loads(pickle.dumps(caught.value)).status == caught.value.status  # on the other ranks
    assert run_and_report_errors(lambda argv: (_ for _ in ()).throw(caught.value), []) == caught.value.status


def test_an_error_about_an_error_keeps_its_status():
    for cause, expected in ((UserError("a"), REFUSED), (Unavailable("a"), MAY_PASS), (OSError(28, "full"), MAY_PASS)):
        assert error_from(cause, f"-resume: {cause}").status == expected


def test_status_of_a_signal():
    def main(argv):
        raise Interrupted(15)

    assert run_and_report_errors(main, []) == 143


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
def test_too_little_address_space_is_one_line(error, monkeypatch, capsys):
    """Without a limit the same error is a traceback."""

    def main(argv):
        raise error

    monkeypatch.setattr(resource, "getrlimit", lambda _: (4500000 * 1024, resource.RLIM_INFINITY))
    assert run_and_report_errors(main, []) == MAY_PASS
    assert re.fullmatch(r"error: ulimit -v is 4500000: .*\n", capsys.readouterr().err)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    with pytest.raises(type(error)):
        run_and_report_errors(main, [])


ESCAPE = "\x1b]0;harm\x07\x1b[31m\u202e\udcff\r"


def printed_by(capsys, error: Exception) -> str:
    def main(argv: list[str]) -> int:
        raise error

    assert run_and_report_errors(main, []) == error.status
    return capsys.readouterr().err


def test_the_command_that_resumes_follows_an_error(capsys, monkeypatch):
    monkeypatch.setattr(notes, "on_run_end", lambda **values: "again")
    assert printed_by(capsys, UserError("3.jpg")) == "error: 3.jpg\nresume with: again\n"
    with pytest.raises(ZeroDivisionError):
        run_and_report_errors(lambda argv: 1 // 0, [])
    assert capsys.readouterr().err == "resume with: again\n"  # before Python's traceback


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


def test_the_log_is_printable(tmp_path, capsys, cpu):
    logger = RunLogger(tmp_path, cpu)
    logger.info(f"one\n{ESCAPE}")
    assert capsys.readouterr().out == f"one\n{escape_control_characters(ESCAPE)}\n"
    assert (tmp_path / "log.txt").read_text().endswith(f" one\n{escape_control_characters(ESCAPE)}\n")


def test_terminal_without_utf8_gets_escapes(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    assert run_and_report_errors(lambda argv: print("é") or 0, []) == 0
    stream.flush()
    assert stream.buffer.getvalue() == b"\\xe9\n"
