"""The lines of a run: which are warnings, and in which process they are printed."""

from dataclasses import replace

from engine.run.log import RunLogger
from utils.notes import Note


def test_the_kind_of_a_note_and_not_its_text_makes_a_warning(tmp_path, cpu, capsys):
    logger = RunLogger(tmp_path, cpu)
    for note in (Note("log", "'Warning: curve' is a class"), Note("screen", "Warning: a"), Note("warning", "few")):
        logger.note(note.on("Data"))
    logger.begin()
    printed = capsys.readouterr().out.splitlines()
    assert printed == ["Data: Warning: a", "Warning: Data: few"]
    assert [line.split(" ", 2)[2] for line in (tmp_path / "log.txt").read_text().splitlines()] == [
        "----- Data: 'Warning: curve' is a class",
        "----- Data: Warning: a",
        "----- Warning: Data: few",
    ]
    assert logger.record.values["warnings"] == {"Data: few": 1}


def test_other_ranks_print_no_warning(cpu, capfd):
    RunLogger(None, replace(cpu, rank=1, world_size=2)).warn("few")
    assert capfd.readouterr() == ("", "")
