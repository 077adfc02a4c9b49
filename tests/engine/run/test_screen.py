"""The screen of a run: few short lines before the first step and at the end; log.txt has all notes in full."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
from conftest import cli, digits_flags, log_of, only_run, read_result, refused, values_of
from numpy.random import default_rng
from pytest import fixture, mark

import main_single_gpu
from engine.run.log import RunLogger
from tests.datasets.sources.source_helpers import write_image
from utils.errors import escape_control_characters
from utils.notes import Note


def jpegs(root: Path) -> Path:
    """40 images of noise of 12 classes, with defects that give more warnings than the screen has room for."""
    rng = default_rng(0)
    for number in range(40):
        pixels = rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)
        write_image(root / f"class {number % 10}" / f"{number}.jpg", pixels)
    for name in ("Dog", "dog"):
        write_image(root / name / "same.jpg")
    return root


@fixture(params=["digits", "folder"])
def flags(request, tmp_path, monkeypatch) -> list[str]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    if request.param == "digits":
        return [*digits_flags(tmp_path / "out"), "TRAIN.NUM_EPOCHS=1", "DATA.NUM_WORKERS=0"]
    data = f"-data_path={jpegs(tmp_path / 'data')}"
    return [data, *cli(f"-output={tmp_path / 'out'} -device=cpu -epochs=1 -num_workers=0 -image_size=32")]


def test_the_screen_is_short_and_the_log_is_complete(flags, tmp_path, monkeypatch, capsys):
    given = list[str]()
    note = RunLogger.note
    monkeypatch.setattr(RunLogger, "note", lambda self, *notes: (given.extend(map(str, notes)), note(self, *notes)))
    assert main_single_gpu.main(flags) == 0
    folder = only_run(tmp_path / "out")
    printed = capsys.readouterr().out
    first = printed.partition("Epoch[001/001], Step[")[0].splitlines()
    warnings = sum(line.startswith("Warning: ") for line in first)
    assert 5 <= len(first) <= 8
    assert max(len(line) for line in first if "; " not in line) <= 120  # an advice is not cut
    assert max(map(len, first)) <= 160
    assert len(first[0]) <= 120
    assert warnings <= 3
    assert all(line.startswith("Warning: ") for line in first[len(first) - warnings :])
    last = re.split(r"Epoch\[001/001\], epoch time.*\n", printed)[1].splitlines()
    assert 4 <= len(last) <= 6
    assert all(len(line) <= 120 or "/" in line for line in last)
    log = log_of(folder)
    assert len(given) > len(first)
    assert all(f" ----- {escape_control_characters(text)}\n" in log for text in given)
    assert read_result(folder)["finished"]


@mark.parametrize("warnings, notes", values_of("2|1\n3|7\n7|1\n7|9"))
def test_a_few_notes_and_warnings_are_shown_and_the_others_counted(warnings, notes, tmp_path, cpu, capsys):
    logger = RunLogger(cpu)
    for index in range(warnings):
        logger.warn(f"{index} " + "x" * 200)
    for index in range(notes):
        logger.note(Note("screen", f"note {index}"))
    logger.open(tmp_path)
    logger.begin("Data: x")
    lines = capsys.readouterr().out.splitlines()
    shown_warnings = min(warnings, 3)
    shown_notes = min(notes, 6 - shown_warnings)
    assert [line[:10] for line in lines] == [
        "Data: x", *(f"note {index}" for index in range(shown_notes)), *(f"Warning: {n}" for n in range(shown_warnings))
    ]  # fmt: skip
    hidden = sum(map(int, re.findall(r"\(and (\d+) more in log.txt\)", lines[-1])))
    assert hidden == warnings + notes - shown_notes - shown_warnings
    assert max(map(len, lines)) <= 120


def test_notes_of_a_run_that_ends_before_its_first_lines_are_printed(tmp_path, capsys):
    argv = [*digits_flags(tmp_path / "out"), "AMP.LEVEL=O2", "MODEL.PRETRAINED=none.pth"]
    with refused(r"none\.pth"):
        main_single_gpu.main(argv)
    assert any(line.startswith("Warning: ") and "AMP.LEVEL" in line for line in capsys.readouterr().out.splitlines())


def test_a_dry_run_prints_all_warnings_and_with_debug_all_notes(tmp_path, capsys):
    argv = [*digits_flags(tmp_path / "out"), "AMP.LEVEL=O2", "TRAIN.WARMUP_EPOCHS=1.5", "MODEL.TUNE=head"]
    shown = []
    for flags in ([], ["-debug"]):
        assert main_single_gpu.main([*flags, "-dry_run", *argv]) == 0
        shown.append(capsys.readouterr().out.splitlines())
    few, more = ({line for line in lines if not line.startswith("Pixel")} for lines in shown)
    assert few < more
    assert sum(line.startswith("Warning: ") for line in few) >= 3
    assert any(line.startswith("Preprocessing: ") for line in more - few)


def test_the_kind_of_a_note_and_not_its_text_makes_a_warning(tmp_path, cpu, capsys):
    logger = RunLogger(cpu)
    logger.open(tmp_path)
    for note in (Note("log", "'Warning: curve' is a class"), Note("screen", "Warning: a"), Note("warning", "few")):
        logger.note(note.on("Data"))
    logger.begin()
    printed = capsys.readouterr().out.splitlines()
    assert printed == ["Data: Warning: a", "Warning: Data: few"]
    assert [line.split(" ", 2)[2] for line in log_of(tmp_path).splitlines()] == [
        "----- Data: 'Warning: curve' is a class",
        "----- Data: Warning: a",
        "----- Warning: Data: few",
    ]
    assert logger.record.values["warnings"] == {"Data: few": 1}


def test_other_ranks_print_no_warning(cpu, capfd):
    RunLogger(replace(cpu, rank=1, world_size=2)).warn("few")
    assert capfd.readouterr() == ("", "")


def test_an_option_to_type_is_not_cut_and_misleading_figures_come_first(tmp_path, cpu, capsys):
    logger = RunLogger(cpu)
    logger.open(tmp_path)
    option = r"-opts 'DATA.GROUPS=([^/_.\s-]+)[^/]*$'"
    for number in range(3):
        logger.note(Note("warning", f"Data: {number + 1} files are not read"))
    problem = f"Data: {tmp_path}/{'long/' * 20}x.png: figures are too high if 'P1001' is a patient"
    logger.note(Note("warning", f"{problem}: {option} keeps the images of each on one side", misleads=True))
    logger.begin("Data: x")
    lines = capsys.readouterr().out.splitlines()
    assert option in lines[1]
    assert [line[:15] for line in lines[2:]] == ["Warning: Data: "] * 2
    assert "1 more" in lines[3]


@mark.parametrize("end", ["; lower -batch_size, or free memory", "; remove all but one: " + "a.jpg, " * 30])
def test_the_advice_of_a_long_warning_is_seen(end, tmp_path, cpu, capsys):
    logger = RunLogger(cpu)
    logger.open(tmp_path)
    logger.warn(f"Data: {'many words; ' * 20}of a problem{end}")
    logger.begin()
    (line,) = capsys.readouterr().out.splitlines()
    assert len(line) <= 120
    assert line.startswith("Warning: Data: many words")
    assert end.partition(":")[0] in line
