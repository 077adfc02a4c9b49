"""A run folder of somebody else: links and pipes in it, whose targets a resumed run must not change."""

import os
from pathlib import Path

import pytest
from conftest import rows, train

from engine.checkpoint.run_folder import lock_run_folder
from utils.errors import UserError
from utils.files import atomic_save, atomic_write, temporary_path


def contents(folder: Path) -> dict[Path, tuple[bytes, int]]:
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def link_elsewhere(path: Path, elsewhere: Path) -> None:
    target = elsewhere / "-".join(path.parts[-2:])
    path.rename(target)
    path.symlink_to(target)


@pytest.mark.parametrize("linked", ["files", "folders"])
def test_a_resumed_run_changes_no_file_outside_its_folder(digits_run, digits_argv, tmp_path, cpu, linked):
    folder, elsewhere = digits_run(), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (folder / "bad_images_0.csv").touch()
    for path in sorted(folder.rglob("*")):
        if path.is_file() if linked == "files" else path.is_dir():
            link_elsewhere(path, elsewhere)
    before, refused = contents(elsewhere), list[Path]()
    argv = [*digits_argv, "TRAIN.NUM_EPOCHS=3", f"-resume={folder}"]
    for _ in range(20):
        try:
            train(argv, cpu)
        except UserError as error:
            name, _, reason = str(error).partition(": is a link to ")
            assert "delete this one" in reason
            os.unlink(name)
            refused.append(Path(name))
        else:
            break
    assert contents(elsewhere) == before
    assert {path.name for path in refused} >= ({".lock", "log.txt"} if linked == "files" else set())
    assert not (folder / "last.pth").is_symlink() and len(rows(folder)) == 3


def test_a_link_or_a_pipe_is_refused_and_a_temporary_file_is_replaced(tmp_path):
    target, lock, file = tmp_path / "target", tmp_path / "run" / ".lock", tmp_path / "run" / "file"
    target.write_text("kept")
    lock.parent.mkdir()
    lock.symlink_to(target)
    with pytest.raises(UserError, match=r"\.lock: is a link to .*target; "), lock_run_folder(lock.parent):
        pass
    lock.unlink()
    os.mkfifo(lock)
    with pytest.raises(UserError, match=r"\.lock: is a pipe or a device; "), lock_run_folder(lock.parent):
        pass
    for write in (atomic_write, atomic_save):
        temporary_path(file).symlink_to(target)
        write(file, "new")
        assert target.read_text() == "kept" and not file.is_symlink()
