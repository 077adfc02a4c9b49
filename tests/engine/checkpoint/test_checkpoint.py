"""A complete checkpoint is on disk at any time; invalid ones are detected, reported, and skipped where possible."""

import hashlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from conftest import ROOT, train

from engine.checkpoint.background import BackgroundWriter
from engine.checkpoint.paths import BEST, LAST, PREVIOUS, checkpoints_by_progress
from engine.checkpoint.reader import FORMAT, find_checkpoint, load_checkpoint
from engine.checkpoint.writer import CheckpointWriter
from utils.atomic_file import atomic_save
from utils.errors import UserError


def make_state(epoch: int = 0, **changes) -> dict:
    state = {
        "model": {"weight": torch.full((100,), float(epoch)), "count": torch.tensor(3)}, "ema": None, "optimizer": {},
        "optimizer_name": "AdamW", "precision": {}, "epoch": epoch, "done_steps": 0, "sums": torch.zeros(7),
        "geometry": {"samples": 40, "batch_size": 4, "accum_iter": 1, "seed": 0}, "best": None, "train_seconds": 0.0,
        "images": 0, "options": "SEED: 0", "schedule_start": 0.0, "class_names": None, "preprocessing": None,
    }  # fmt: skip
    return state | changes


PREPROCESSING = {
    "image_size": 8, "crop_pct": 1.0, "channels": torch.zeros(2), "mean": [0.5], "std": [0.5],
    "interpolation": "bicubic",
}  # fmt: skip


def writer(folder: Path, keep: int = 2) -> CheckpointWriter:
    return CheckpointWriter(folder, keep, lambda path, state: None)


def saved_epochs(folder: Path) -> dict[str, int]:
    return {path.name: load_checkpoint(path)["epoch"] for path in folder.iterdir()}


@pytest.fixture
def run_folder(tmp_path) -> Path:
    folder = tmp_path / "train-1"
    folder.mkdir()
    for name in ("config.yaml", "log.txt", "metrics.csv"):
        (folder / name).touch()
    return folder


@pytest.mark.parametrize("in_background", [True, False], ids=["in the background", "without memory for a copy"])
def test_last_previous_best_and_newest_checkpoints_are_kept(tmp_path, monkeypatch, in_background):
    if not in_background:
        monkeypatch.setattr("engine.checkpoint.writer.available_bytes", lambda: 0)
    checkpoints = writer(tmp_path)
    for epoch in range(1, 6):
        checkpoints.save(make_state(epoch), is_best=epoch == 2, periodic=f"epoch-{epoch:03d}")
    checkpoints.wait()
    assert saved_epochs(tmp_path) == {LAST: 5, PREVIOUS: 4, BEST: 2, "epoch-004.pth": 4, "epoch-005.pth": 5}


def test_periodic_checkpoints_are_in_the_order_of_their_epochs(tmp_path):
    """As text, 990 comes after 1010."""
    numbers = (90, 980, 990, 1000, 1010, 12000)
    for number in numbers:
        (tmp_path / f"epoch-{number:03d}.pth").touch()
    (tmp_path / "epoch-final.pth").touch()  # of another program
    found = [path.name for path in checkpoints_by_progress(tmp_path)]
    assert found == [f"epoch-{number:03d}.pth" for number in reversed(numbers)]


def test_background_save_writes_the_state_at_the_time_of_the_call(tmp_path, monkeypatch):
    """Training continues while the disk does not answer."""
    sync, answers = os.fsync, threading.Event()
    monkeypatch.setattr("utils.atomic_file.os.fsync", lambda file: (answers.wait(60), sync(file)))
    state = make_state(1)
    checkpoints = writer(tmp_path)
    checkpoints.save(state, is_best=False, periodic=None)
    assert not (tmp_path / LAST).exists()
    state["model"]["weight"] += 7
    answers.set()
    checkpoints.wait()
    assert load_checkpoint(tmp_path / LAST)["model"]["weight"].unique() == 1


def test_the_thread_uses_the_gpu_of_its_rank(tmp_path, monkeypatch):
    """torch's current device is a setting of each thread; the default is the first GPU, which is another rank's."""
    calls = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda gpu: calls.append((gpu, threading.current_thread().name)))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    for uses_gpu in (False, True):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda uses_gpu=uses_gpu: uses_gpu)
        checkpoints = writer(tmp_path)
        checkpoints.save(make_state(1), is_best=False, periodic=None)
        checkpoints.wait()
    assert calls == [(3, "checkpoint_0")]


@pytest.mark.gpu
def test_the_thread_finds_the_last_gpu_selected():
    last, found = torch.cuda.device_count() - 1, []
    torch.ones(1, device="cuda")
    with torch.cuda.device(last):
        thread = BackgroundWriter()
    thread.submit(lambda: found.append(torch.cuda.current_device()))
    thread.wait()
    assert found == [last]


def test_error_of_a_background_save_is_raised(tmp_path, monkeypatch):
    checkpoints = writer(tmp_path)
    checkpoints.save(make_state(1), is_best=False, periodic=None)
    checkpoints.wait()
    with (
        monkeypatch.context() as full_disk,
        pytest.raises(UserError, match=r"last\.pth: cannot be saved: No space left"),
    ):
        full_disk.setattr("utils.atomic_file.open", lambda *_: open("/dev/full", "wb", buffering=0), raising=False)  # noqa: SIM115
        checkpoints.save(make_state(2), is_best=True, periodic="epoch-002")
        checkpoints.wait()
    checkpoints.check()
    assert saved_epochs(tmp_path) == {LAST: 1}


INVALID = {
    "format": (make_state() | {"format": FORMAT - 1}, rf"is not a checkpoint of format {FORMAT}"),
    "weights": ({"model": {}}, r"has weights only; start from them with -pretrained="),
    "only weights": ({"format": FORMAT, "model": {}}, r"is not a checkpoint of this program: ema, optimizer.* missing"),
    "type": (make_state(epoch="3") | {"format": FORMAT}, r"epoch missing or of a wrong type"),
    "geometry": (make_state(geometry={}) | {"format": FORMAT}, r"its entries contradict"),
    "sums": (make_state(sums=torch.zeros(5)) | {"format": FORMAT}, r"its entries contradict"),
    "options": (make_state(options="5") | {"format": FORMAT}, r"its entries contradict"),
    "steps": (make_state(done_steps=11) | {"format": FORMAT}, r"its entries contradict"),
    "schedule": (make_state(schedule_start=2.0) | {"format": FORMAT}, r"its entries contradict"),
    "class names": (make_state(class_names=["cat", 3]) | {"format": FORMAT}, r"its entries contradict"),
    "preprocessing": (make_state(preprocessing=PREPROCESSING) | {"format": FORMAT}, r"its entries contradict"),
    "best": (make_state(best={"epoch": 1}) | {"format": FORMAT}, r"its entries contradict"),
    "best score": (
        make_state(best={"mean_ap": float("nan"), "epoch": 1, "loss": 0.5}) | {"format": FORMAT},
        r"its entries contradict",
    ),
    "string": (make_state(model={"head": "x"}) | {"format": FORMAT}, r"model head is not a tensor"),
    "stride": (make_state(model={"head": torch.zeros(1).expand(10**9)}) | {"format": FORMAT}, r"declares tensors"),
    "nan": (make_state(model={"head": torch.tensor([1.0, torch.nan])}) | {"format": FORMAT}, r"NaN .* model head"),
    "inf": (make_state(ema={"head": torch.tensor([torch.inf])}) | {"format": FORMAT}, r"infinite .* ema head"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "expected"), INVALID.values(), ids=INVALID.keys())
def test_invalid_checkpoint_is_rejected(tmp_path, content, expected):
    atomic_save(tmp_path / "x.pth", content)
    with pytest.raises(UserError, match=rf"x\.pth: .*{expected}"):
        load_checkpoint(tmp_path / "x.pth")


def rewrite_with_checksum(path: Path, content: bytes) -> None:
    """Writes the content with a valid checksum, as an attacker could."""
    digest = hashlib.sha256(content + b"\0\0").hexdigest()
    path.write_bytes(content + (71).to_bytes(2, "little") + f"sha256={digest}".encode())


def test_file_with_a_checksum_that_is_not_an_archive_is_rejected(tmp_path):
    rewrite_with_checksum(tmp_path / "x.pth", b"no archive")
    with pytest.raises(UserError, match=r"x\.pth: is not a checkpoint of this program"):
        load_checkpoint(tmp_path / "x.pth")


def test_archive_with_a_damaged_directory_is_rejected(tmp_path):
    atomic_save(tmp_path / "x.pth", make_state() | {"format": FORMAT})
    content = (tmp_path / "x.pth").read_bytes()[:-73]
    assert b"PK\x01\x02" in content
    rewrite_with_checksum(tmp_path / "x.pth", content.replace(b"PK\x01\x02", b"PK\x01\x03"))
    with pytest.raises(UserError, match=r"x\.pth: is a damaged archive \(BadZipFile\)"):
        load_checkpoint(tmp_path / "x.pth")


def save_twice(folder: Path) -> None:
    checkpoints = writer(folder)
    for epoch in (1, 2):
        checkpoints.save(make_state(epoch), is_best=False, periodic=None)
    checkpoints.wait()


def test_previous_checkpoint_replaces_a_damaged_last_checkpoint(run_folder):
    save_twice(run_folder)
    last = run_folder / LAST
    last.write_bytes(last.read_bytes()[:-100])
    for resume in (str(run_folder), "auto"):
        found = find_checkpoint(resume, run_folder.parent)
        assert found.path == run_folder / PREVIOUS and found.state["epoch"] == 1
        assert len(found.notes) == 1 and "last.pth: is damaged" in found.notes[0]
    with pytest.raises(UserError, match=r"last\.pth: is damaged"):
        find_checkpoint(str(last), run_folder.parent)
    (run_folder / PREVIOUS).write_bytes(b"")
    with pytest.raises(UserError, match=r"none of 2 checkpoints is valid: .*(last|previous)\.pth: is damaged"):
        find_checkpoint("auto", run_folder.parent)


def test_auto_finds_the_newest_checkpoint_of_all_runs(run_folder, tmp_path):
    assert find_checkpoint("auto", tmp_path) is None
    assert find_checkpoint("auto", tmp_path / "missing") is None
    save_twice(run_folder)
    other = tmp_path / "train-0"
    other.mkdir()
    for path in filter(Path.is_file, run_folder.iterdir()):
        (other / path.name).write_bytes(path.read_bytes())
    assert find_checkpoint("auto", tmp_path).path == other / LAST
    (tmp_path / "train-2").mkdir()
    (tmp_path / "train-2" / "last.pth").write_bytes(b"not a checkpoint")
    assert find_checkpoint("auto", tmp_path).path == other / LAST


@pytest.mark.parametrize("resume", ["nothing", "."])
def test_nothing_to_resume(tmp_path, monkeypatch, resume):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=rf"-resume {resume}: no checkpoint found; give a .pth file, the folder"):
        find_checkpoint(resume, tmp_path)


SAVE_LOOP = """
import sys
sys.path[:0] = [{root!r}, {tests!r}]
from pathlib import Path
from test_checkpoint import make_state, writer
checkpoints = writer(Path({folder!r}))
for epoch in range(1, 10**6):
    checkpoints.save(make_state(epoch), is_best=epoch % 3 == 0, periodic=f"epoch-{{epoch:07d}}")
    print(epoch, flush=True)
"""


@pytest.mark.slow
def test_kill_during_a_save_leaves_a_valid_checkpoint(tmp_path):
    """A short version of tests/stress/fault_bench.py. A new writer deletes the temporary files of a killed one."""
    code = SAVE_LOOP.format(root=str(ROOT), tests=str(Path(__file__).parent), folder=str(tmp_path))
    rng = random.Random(0)
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT / "tests")}
        )
        process.stdout.readline(), process.stdout.readline()  # the first checkpoint is on disk
        time.sleep(rng.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        found = find_checkpoint(str(tmp_path), tmp_path)
        assert not found.notes and found.state["model"]["weight"].unique() == found.state["epoch"]
    writer(tmp_path)
    assert not list(tmp_path.glob(".*.tmp"))


def test_a_model_with_batch_norm_is_saved_without_a_copy(digits_argv, cpu, monkeypatch, tmp_path):
    """Its running statistics are views of one tensor. Host memory is too small for a copy of the state."""
    monkeypatch.setattr("engine.checkpoint.writer.available_bytes", lambda: 0)
    vit_keys = tuple(f"MODEL.{key}" for key in ("PATCH_SIZE", "EMBED_DIM", "NUM_HEADS", "DEPTH"))
    argv = [word for word in digits_argv if not word.startswith(vit_keys)]
    resnet = ["MODEL.TYPE=timm", "MODEL.NAME=test_resnet", "DATA.IMAGE_SIZE=32", "TRAIN.MAX_STEPS=2"]
    model = load_checkpoint(train([*argv, *resnet], cpu) / LAST)["model"]
    assert model["bn1.num_batches_tracked"] == 2 and model["bn1.running_mean"].any()
