"""Checkpoints that are damaged, incomplete or hostile are refused with one line."""

from pathlib import Path

import torch
from checkpoint_content import content
from conftest import CPU, line_of, refused, run_here, values_of
from pytest import fixture, mark

from engine.checkpoint.files import find_checkpoint, load_checkpoint
from engine.checkpoint.run_folder import FORMAT
from utils.files import atomic_save

PREPROCESSING = {
    "image_size": 8, "resize": "crop", "crop_pct": 1.0, "channels": torch.zeros(2), "mean": [0.5], "std": [0.5],
    "interpolation": "bicubic"
}  # fmt: skip
# An entry, its content, what the error names
PLAIN = """
epoch | '3' | epoch
geometry | {} | ''
options | '5' | ''
options | 'DATA: 5' | ''
split | {digest: '0', held_out: [cat/1.jpg]} | ''
done_steps | 11 | ''
class_names | [cat, 3] | class_names.1
preprocessing | {edges: soft} | edges is unknown  # a key of a later version
best | {epoch: 1} | ''
model | {head: x} | model.head
"""
INVALID = [
    *values_of(PLAIN),
    ("format", FORMAT - 1, str(FORMAT)),
    ("sums", torch.zeros(5), ""),
    ("split", {"digest": "0", "held_out": torch.zeros(1, dtype=torch.uint8).expand(2**50)}, ""),
    ("preprocessing", PREPROCESSING, "IMAGE_CHANNELS"),
    ("best", {"mean_ap": torch.nan, "epoch": 1, "loss": 0.5}, ""),
    ("model", {"head": torch.zeros(1).expand(10**9)}, ""),
    ("model", {"head": torch.tensor([1.0, torch.nan])}, "model head"),
    ("state_dict_ema", {"head": torch.tensor([torch.inf])}, "state_dict_ema head"),
]


def refusal(path: Path) -> str:
    message = line_of(load_checkpoint, path)
    assert str(path) in message and len(message) < 600, message
    return message


@mark.parametrize("entry, value, named", INVALID)
def test_invalid_content_is_refused(tmp_path, entry, value, named):
    atomic_save(tmp_path / "x.pth", {"format": FORMAT} | content() | {entry: value})
    assert named in refusal(tmp_path / "x.pth")


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "x.pth"
    atomic_save(path, {"model": {}})
    assert "-pretrained=" in refusal(path)
    atomic_save(path, {"format": FORMAT} | content())
    archive = path.read_bytes()
    assert b"PK\x01\x02" in archive
    for data in (b"no archive", archive.replace(b"PK\x01\x02", b"PK\x01\x03")):
        path.write_bytes(data)
        refusal(path)


@fixture
def sharded(tmp_path, monkeypatch) -> Path:
    """A run of version 0.2 whose last checkpoint is a folder."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run-1"
    (run / "last.shards").mkdir(parents=True)
    (run / "log.txt").touch()
    (run / "config.yaml").write_text("DATA: {DATASET: digits}\n")
    atomic_save(run / "previous.pth", {"format": FORMAT} | content())
    return run


@mark.parametrize("flags", [["-resume=run-1"], ["-resume=auto", "-cfg=run-1/config.yaml"]])
def test_sharded_checkpoints_of_before_are_refused(sharded, flags):
    """A resume from the earlier file would repeat steps without a word; without the file, `auto` would start anew."""
    for _ in range(2):
        with refused(r"^run-1/last\.shards: "):
            run_here(*flags, "-output=.")
        (sharded / "previous.pth").unlink(missing_ok=True)


def test_a_run_whose_sharded_checkpoint_was_made_one_file_is_read(sharded):
    atomic_save(sharded / "last.pth", {"format": FORMAT} | content(epoch=1))
    assert find_checkpoint(str(sharded), CPU).path == find_checkpoint(str(sharded / "last"), CPU).path
