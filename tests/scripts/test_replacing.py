"""Files and folders that are replaced as a whole."""

import os

import pytest

from scripts.weights.replacing import replaced
from utils.errors import UserError


def write(path, is_folder, text):
    if is_folder:
        path.mkdir()
        path = path / "config.json"
    path.write_text(text)


def read(path):
    return (path / "config.json" if path.is_dir() else path).read_text()


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_new_one_replaces_the_old_one(tmp_path, is_folder):
    target = tmp_path / "below" / "export"
    for text in ("old", "new"):
        with replaced(target) as temporary:
            write(temporary, is_folder, text)
        assert read(target) == text and list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("is_folder", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, UserError("bad"), OSError(28, "No space left on device")])
def test_an_interruption_leaves_the_old_one(tmp_path, is_folder, error):
    target = tmp_path / "export"
    write(target, is_folder, "old")
    with pytest.raises((KeyboardInterrupt, UserError)) as caught, replaced(target) as temporary:
        write(temporary, is_folder, "half")
        raise error
    assert read(target) == "old" and list(tmp_path.iterdir()) == [target]
    if isinstance(error, OSError):
        assert str(caught.value).startswith(f"{target}: cannot be written (No space left on device); free space")


def test_an_interruption_between_the_two_renames_of_a_folder_leaves_the_old_one(tmp_path, monkeypatch):
    target = tmp_path / "export"
    write(target, True, "old")
    rename = os.replace

    def fails_for_the_new_one(source, destination):
        if ".new-" in str(source):
            raise KeyboardInterrupt
        rename(source, destination)

    monkeypatch.setattr("os.replace", fails_for_the_new_one)
    with pytest.raises(KeyboardInterrupt), replaced(target) as temporary:
        write(temporary, True, "new")
    assert read(target) == "old" and list(tmp_path.iterdir()) == [target]


def test_a_folder_is_restored_after_a_kill_between_the_two_renames(tmp_path):
    target = tmp_path / "export"
    write(tmp_path / ".old-export", True, "old")
    write(tmp_path / ".new-export", True, "new")
    with pytest.raises(KeyboardInterrupt), replaced(target):
        raise KeyboardInterrupt
    assert read(target) == "old" and list(tmp_path.iterdir()) == [target]
