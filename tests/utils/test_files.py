"""Files of a run: damaged files, tables and their texts; locks, also on file systems without `flock`; seeds."""

import errno
import itertools
import os
import random
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import torch
from conftest import ROOT, assert_same_state, cli, each_row, refused
from pytest import fixture, mark, raises

from engine.checkpoint.run_folder import lock_run_folder, remove_temporary
from models.weights.read import with_tensors
from utils.errors import Unavailable
from utils.file_formats.pickles import read_pickle, verify_archive
from utils.files import TemporaryFolder, atomic_save, locked, read_regular_file, temporary_path
from utils.notes import RUN_LOG
from utils.seeding import derive_seed
from utils.tables import read_csv_rows, safe_cell, unescaped_cell

SAVED = {"weights": torch.arange(100.0), "step": 3}


@fixture
def saved(tmp_path):
    path = tmp_path / "state.pth"
    atomic_save(path, SAVED)
    return path


def test_torch_reads_a_saved_file(saved):
    verify_archive(saved)
    assert_same_state(torch.load(saved), SAVED)


def test_a_file_with_a_flipped_bit_is_refused_or_has_the_same_content_and_a_truncated_one_is_refused(saved):
    content = saved.read_bytes()
    rng = random.Random(0)
    refusals = Counter()
    for position in range(0, len(content), 5):
        flipped = bytearray(content)
        flipped[position] ^= 1 << rng.randrange(8)
        for kind, damaged in (("flipped", flipped), ("truncated", content[:position])):
            saved.write_bytes(damaged)
            try:
                verify_archive(saved)
                read = with_tensors(read_pickle(saved))
            except Exception:  # of many types, which `load_checkpoint` explains
                refusals[kind] += 1
                continue
            assert_same_state(read, SAVED)
    assert refusals["truncated"] == len(range(0, len(content), 5))
    assert refusals["flipped"] > 80  # the 400 bytes of the weights alone


FIXES = """
name | fix
ENOSPC | free space
EDQUOT | free space
EFBIG | ulimit -f unlimited
ENOENT | check the path, or move it back
ENOTDIR | part of the path is a file
EACCES | readable and writable
EPERM | readable and writable
EIO | check its disk
EROFS | file system writable
"""


@each_row(FIXES)
def test_full_disk_keeps_the_old_file_and_leaves_no_temporary_file(saved, monkeypatch, name, fix):
    before = saved.read_bytes()
    problem = os.strerror(number := getattr(errno, name))
    monkeypatch.setattr("utils.files.os.fsync", Mock(side_effect=OSError(number, problem)))
    for path in (saved, saved.with_name("first.pth")):
        with refused(rf"{path.name}: cannot be saved: {problem}; .*{fix}"):
            atomic_save(path, {"weights": torch.zeros(10000)})
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_incomplete_last_row_is_dropped(tmp_path):
    (tmp_path / "metrics.csv").write_bytes(b"epoch,loss\r\n1,0.5\r\n2,0.25")
    assert read_csv_rows(tmp_path / "metrics.csv") == [{"epoch": "1", "loss": "0.5"}]  # 0.25 may have been 0.2512


@mark.parametrize("text", ["", *cli("=1+1 =1 @home -1+1 +cmd - -1e --1 cat 'quoted' a=b")])
def test_a_cell_is_read_back_as_its_text(text):
    cell = safe_cell(text)
    assert unescaped_cell(cell) == text
    assert not cell.startswith(("=", "+", "-", "@"))


@mark.parametrize("text", cli("-1.95140779 -1 +3 -.5 -3.40282347e+38 -1E-05"))
def test_a_number_is_no_formula(text):
    assert safe_cell(text) == unescaped_cell(text) == text
    assert unescaped_cell(f"'{text}") == text  # of an older table


def test_the_files_of_a_killed_writer_are_removed_and_those_of_others_stay(tmp_path):
    """The names are of another host, so that no two processes write one temporary file."""
    left = cli(".last.pth.node1.7.tmp .previous.pth.node1.7.tmp .best.pth.node1.7.tmp .epoch-003.pth.node1.7.tmp")
    left += cli(".run.json.node1.7.tmp .status.json.node1.7.tmp evaluation/.summary.json.node1.7.tmp")
    others = cli(".average.pth.node1.8.tmp last.pth eval-vit/status.json eval-vit/.run.json.node1.7.tmp")
    for name in (*left, *others):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    remove_temporary(tmp_path)
    files = (path for path in tmp_path.rglob("*") if path.is_file())
    assert sorted(str(path.relative_to(tmp_path)) for path in files) == sorted(others)
    assert f"{socket.gethostname()}.{os.getpid()}." in temporary_path(tmp_path / "last.pth").name


def test_seeds_are_reproducible_and_distinct():
    assert derive_seed(0, "augment", 1, 2) == 5333272824936365706
    uses = itertools.product((0, 1), ("order", "augment"), range(20), range(20))
    seeds = {derive_seed(*use) for use in uses}
    assert len(seeds) == 1600
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_file_is_read_whole_or_not_at_all(tmp_path):
    content = bytes(range(256)) * 4
    (file := tmp_path / "a").write_bytes(content)
    before = len(os.listdir("/dev/fd"))
    assert read_regular_file(str(file), max_bytes=1024) == (content, 1024)
    assert read_regular_file(str(file), max_bytes=1023) == (b"", 1024)
    with raises(OSError, match="not a regular file"):
        read_regular_file(str(tmp_path), max_bytes=1)
    assert len(os.listdir("/dev/fd")) == before


KILLED = """
import os, resource, sys
sys.path.insert(0, sys.argv[1])
from utils.files import TemporaryFolder
folder = TemporaryFolder("samples")
print(folder.name, flush=True)
input()
resource.setrlimit(resource.RLIMIT_NOFILE, (folder._owner.fileno() + 2,) * 2)  # one more file
"""


def test_the_temporary_folders_of_killed_processes_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("utils.files._OWNER_SECONDS", 0)
    command = [sys.executable, "-c", KILLED, str(ROOT)]
    env = os.environ | {"TMPDIR": str(tmp_path)}
    pipe = subprocess.PIPE
    others = [subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True) for _ in range(2)]
    _, alive = (Path(other.stdout.readline().strip()) for other in others)
    others[0].kill()
    others[0].communicate()
    (tmp_path / "ampvit-output" / "run").mkdir(parents=True)  # of the user
    own = TemporaryFolder("mp")
    assert {path.name for path in tmp_path.iterdir()} == {alive.name, Path(own.name).name, "ampvit-output"}
    others[1].communicate("\n")
    own.cleanup()
    assert [path.name for path in tmp_path.iterdir()] == ["ampvit-output"]


def fail_flock(monkeypatch, number: int):
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(number, os.strerror(number))))


def is_free(lock: Path) -> bool:
    try:
        with locked(lock, 0.0):
            return True
    except Unavailable:
        return False


def test_a_folder_is_locked_by_one_process_which_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("engine.checkpoint.run_folder._LOCK_SECONDS", 0.0)
    with lock_run_folder(tmp_path) as has_locks:
        assert has_locks
        with raises(Unavailable, match=rf"^{tmp_path}: .*process {os.getpid()} on"), lock_run_folder(tmp_path):
            pass
    assert is_free(tmp_path / ".lock")


def test_without_flock_nothing_is_locked_and_a_warning_says_so(tmp_path, monkeypatch, run_log):
    fail_flock(monkeypatch, errno.ENOSYS)
    with lock_run_folder(tmp_path) as has_locks:
        assert [record.name for record in run_log.records] == [RUN_LOG]
        assert not has_locks
        assert is_free(tmp_path / ".lock")


def test_a_refusal_means_locked(tmp_path, monkeypatch):
    fail_flock(monkeypatch, errno.EACCES)
    assert not is_free(tmp_path / ".lock")
