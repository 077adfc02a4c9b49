"""The lines of a run: which are warnings, and in which process they are printed."""

from dataclasses import replace

from conftest import TINY_VIT, noise_folder

from configs.command_line import parse_command_line
from engine.plan.training import plan_training
from engine.run.log import RunLogger
from engine.training.batch_size import find_batch_size
from engine.training.session import build_session
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


def test_a_class_named_like_a_warning_makes_none(tmp_path, cpu):
    """The log names the class in several lines."""

    def warnings_of(name: str) -> set[str]:
        root = noise_folder(tmp_path / name, 12, 4, (8, 8, 3))
        for split in ("train", "val"):
            (root / split / "class0").rename(root / split / name)
        words = ["-dataset=folder", f"-data_path={root}", "-batch_size=4", "-num_workers=0"]
        command, logger = parse_command_line([*words, "-opts", *TINY_VIT, "MODEL.NUM_CLASSES=2"]), RunLogger(None, cpu)
        build_session(plan_training(command, cpu, logger, find_batch_size), cpu, logger)
        return {text.replace(name, "NAME") for text in logger.record.values["warnings"]}

    assert warnings_of("Warning: curve") == warnings_of("animal")


def test_other_ranks_print_no_warning(cpu, capfd):
    RunLogger(None, replace(cpu, rank=1, world_size=2)).warn("few")
    assert capfd.readouterr() == ("", "")
