"""The log files and the progress bar of a run."""

import io

import pytest

from engine.run.log import RunLogger, progress_bar


@pytest.mark.skipif("not __import__('pathlib').Path('/dev/full').exists()")
def test_a_full_disk_prints_no_traceback(tmp_path, cpu, capsys):
    for name in ("log.txt", "log_0.txt"):
        (tmp_path / name).symlink_to("/dev/full")
    logger = RunLogger(tmp_path, cpu)
    logger.info("a line")
    logger.rank("a line")
    RunLogger(None, cpu)  # closes the files of the first one
    printed = capsys.readouterr()
    assert printed.out == "a line\n" and printed.err == ""


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("encoding", "full"), [("utf-8", "█"), ("ascii", "#")])
def test_the_bar_counts_images_in_the_characters_of_the_terminal(monkeypatch, cpu, encoding, full):
    """4 steps of 32 images, of which the first was done by an earlier process."""
    terminal = Terminal(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr("sys.stderr", terminal)
    bar = progress_bar("Epoch 1/2", cpu, 4, "img", unit_scale=32, done=1)
    bar.mininterval = 0
    bar.update()
    bar.set_postfix_str("loss 2.5000", refresh=False)
    bar.update(2)
    bar.close()
    terminal.flush()
    text = terminal.buffer.getvalue().decode(encoding)
    assert "25%|" in text and "32/128 [" in text and " img/s]" in text
    assert "100%|" in text and "128/128 [" in text and " img/s, loss 2.5000]" in text and full in text
