"""The log files of a run."""

import pytest

from engine.run.log import RunLogger


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
