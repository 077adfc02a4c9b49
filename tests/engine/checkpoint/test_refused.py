"""Checkpoints, as files and as folders, that are damaged, incomplete or hostile are refused with one line."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import assert_same_state
from safetensors.torch import load_file, save_file
from shard_files import checkpoint_state, content, seal, write_shard, write_shards

from engine.checkpoint.reader import load_checkpoint
from engine.checkpoint.run_folder import FORMAT
from engine.checkpoint.weights_record import read_record
from models.weights.read import read_weights
from models.weights.shards import read_stored
from utils.errors import UserError
from utils.file_formats.checkpoint_folder import CONTENT, MANIFEST, encode_content, read_content
from utils.files import atomic_save

FIRST = "shard-00001-model-00001-of-00001.safetensors"
PREPROCESSING = {
    "image_size": 8, "crop_pct": 1.0, "channels": torch.zeros(2), "mean": [0.5], "std": [0.5],
    "interpolation": "bicubic",
}  # fmt: skip
INVALID = {  # content -> what the error names
    "format": ({"format": FORMAT - 1}, str(FORMAT)),
    "epoch": ({"epoch": "3"}, "epoch"),
    "geometry": ({"geometry": {}}, ""),
    "sums": ({"sums": torch.zeros(5)}, ""),
    "options": ({"options": "5"}, ""),
    "options of the data": ({"options": "DATA: 5"}, ""),
    "split": ({"split": {"digest": "0", "held_out": ["cat/1.jpg"]}}, ""),
    "steps": ({"done_steps": 11}, ""),
    "class names": ({"class_names": ["cat", 3]}, ""),
    "preprocessing": ({"preprocessing": PREPROCESSING}, ""),
    "best": ({"best": {"epoch": 1}}, ""),
    "best score": ({"best": {"mean_ap": float("nan"), "epoch": 1, "loss": 0.5}}, ""),
    "string": ({"model": {"head": "x"}}, "model head"),
    "stride": ({"model": {"head": torch.zeros(1).expand(10**9)}}, ""),
    "nan": ({"model": {"head": torch.tensor([1.0, torch.nan])}}, "model head"),
    "inf": ({"state_dict_ema": {"head": torch.tensor([torch.inf])}}, "state_dict_ema head"),
}


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as error:
        load_checkpoint(path)
    message = str(error.value)
    assert "\n" not in message and str(path) in message and len(message) < 600, message
    return message


@pytest.mark.parametrize(("changes", "named"), INVALID.values(), ids=INVALID.keys())
def test_invalid_content_is_refused(tmp_path, changes, named):
    atomic_save(tmp_path / "x.pth", {"format": FORMAT} | content() | changes)
    assert named in refusal(tmp_path / "x.pth")


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "x.pth"
    atomic_save(path, {"model": {}})
    assert "-pretrained=" in refusal(path)
    atomic_save(path, {"format": FORMAT} | content())
    archive = path.read_bytes()[:-73]
    assert b"PK\x01\x02" in archive
    for data in (b"no archive", archive.replace(b"PK\x01\x02", b"PK\x01\x03")):
        digest = hashlib.sha256(data + b"\0\0").hexdigest()  # a valid checksum, as an attacker could write it
        path.write_bytes(data + (71).to_bytes(2, "little") + f"sha256={digest}".encode())
        refusal(path)


# Folders


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return write_shards(tmp_path_factory.mktemp("sharded") / "last.shards", checkpoint_state(), 2)


@pytest.fixture
def folder(whole, tmp_path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "last.shards"))


def test_the_content_of_a_folder(folder):
    assert_same_state(load_checkpoint(folder), checkpoint_state())


def test_damage_of_each_file_is_detected(folder):
    """A flipped bit, a cut, a byte more, a missing file."""
    for file in sorted(folder.iterdir()):
        data = file.read_bytes()
        for damaged in (data[:-1] + bytes([data[-1] ^ 1]), data[: len(data) // 2], data + b"\0"):
            file.write_bytes(damaged)
            refusal(folder)
        file.unlink()
        refusal(folder)
        file.write_bytes(data)


def edit_content(folder: Path, change: Callable[[str], str]) -> None:
    content = folder / CONTENT
    content.write_text(change(content.read_text()))
    seal(folder)


def edit_manifest(folder: Path, name: str) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"][name] = {"bytes": 3, "sha256": "0" * 64}
    manifest["files"] = dict(sorted(manifest["files"].items()))
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")


def edit_part(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any], first_row: int = 0) -> None:
    tensors = load_file(folder / FIRST)
    change(tensors)
    rows = {name: {"saved_offsets": [first_row, *[0] * (tensor.dim() - 1)]} for name, tensor in tensors.items()}
    save_file(tensors, folder / FIRST, {"DCP_SHARDING_INFO": json.dumps(rows)})
    seal(folder)


def link_outside(folder: Path) -> None:
    outside = folder.parent / "outside.safetensors"
    (folder / FIRST).rename(outside)
    (folder / FIRST).symlink_to(outside)


def save_whole_twice(folder: Path) -> None:
    """Both parts hold all rows of every tensor."""
    _, tensors = encode_content(checkpoint_state())
    for path in folder.glob("*.safetensors"):
        write_shard(path, tensors, 0, 1)
    seal(folder)


def forge_header(folder: Path) -> None:
    data = (folder / FIRST).read_bytes()
    (folder / FIRST).write_bytes((2**62).to_bytes(8, "little") + data[8:])
    seal(folder)


def replaced(old: str, new: str) -> Callable[[Path], None]:
    """In the JSON of the content."""

    def change(folder: Path) -> None:
        assert old in (folder / CONTENT).read_text()
        edit_content(folder, lambda text: text.replace(old, new))

    return change


HOSTILE: dict[str, Callable[[Path], Any]] = {
    "another file": lambda folder: (folder / "x.safetensors").touch(),
    "a pickle": lambda folder: ((folder / ".metadata").write_bytes(b"x"), seal(folder)),
    "a link": link_outside,
    "a pipe": lambda folder: ((folder / FIRST).unlink(), os.mkfifo(folder / FIRST)),
    "no manifest": lambda folder: (folder / MANIFEST).rename(folder.parent / "m"),
    "a name above": lambda folder: edit_manifest(folder, "../x.safetensors"),
    "manifest: a long name": lambda folder: edit_manifest(folder, "x" * 10**5),
    "manifest: other spaces": lambda folder: (folder / MANIFEST).write_text(
        json.dumps(json.loads((folder / MANIFEST).read_text()))
    ),
    "manifest: large": lambda folder: (folder / MANIFEST).write_bytes(b" " * (9 << 20)),
    "content: no JSON": lambda folder: edit_content(folder, lambda text: text[:-1]),
    "content: deep": lambda folder: edit_content(folder, lambda _: "[" * 10**5 + "]" * 10**5),
    "content: a list": lambda folder: edit_content(folder, lambda _: "[]"),
    "content: infinite": replaced('"train_seconds":1.0', '"train_seconds":1e999'),
    "content: an unknown mark": replaced('"$tuple"', '"$python"'),
    "content: forged steps": replaced('"done_steps":0', '"done_steps":99'),
    "content: another shape": replaced("[1,5,12]", "[1,5,999999999999]"),
    "content: a tensor twice": replaced(
        '"options":"', '"ema2":{"$tensor":["model.norm.bias","float32",[140737488355328]]},"options":"'
    ),
    "content: an object as dtype": replaced('norm.bias","float32"', 'norm.bias","load"'),
    "parts: NaN": lambda folder: edit_part(folder, lambda tensors: tensors["model.norm.bias"].fill_(torch.nan)),
    "parts: a tensor less": lambda folder: edit_part(folder, lambda tensors: tensors.pop("model.norm.bias")),
    "parts: a tensor more": lambda folder: edit_part(folder, lambda tensors: tensors.update(other=torch.ones(1))),
    "parts: rows twice": save_whole_twice,
    "parts: forged offsets": lambda folder: edit_part(folder, lambda _: None, first_row=2**40),
    "parts: a forged header": forge_header,
}


def test_hostile_folders_are_refused(whole, tmp_path):
    for number, (name, change) in enumerate(HOSTILE.items()):
        folder = Path(shutil.copytree(whole, tmp_path / str(number) / "last.shards"))
        change(folder)
        message = refusal(folder)
        assert name != "parts: NaN" or "norm.bias" in message


def test_pretrained_reads_its_weights(folder):
    state = checkpoint_state()
    assert_same_state(read_stored(read_weights(str(folder)).states["model"]), state["model"])
    assert_same_state(
        read_stored(read_weights(str(folder.with_suffix(""))).states["model"]), state["model"]
    )  # without the extension
    (folder / FIRST).write_bytes(b"")
    with pytest.raises(UserError, match=r"last\.shards: is damaged"):
        read_weights(str(folder))


def test_no_description_of_its_data(folder):
    record = read_record(str(folder))
    assert (record.model, record.data, record.class_names) == ({}, {}, ["cat", "dog"])
    (folder / CONTENT).write_text("{}")
    assert read_record(str(seal(folder))) is None


def test_json_keeps_every_type(tmp_path):
    content = {
        "tuple": (1, (2.5, None)), "keys": {0: "a", None: True, -1: {}}, "$mark": {"$tensor": [1]}, "text": "é\ud800\n",
        "numbers": [2**70, 1e-320, 0.1, -0.0], "scalar": torch.tensor(2, dtype=torch.int64),
    }  # fmt: skip
    text, tensors = encode_content(content)
    (tmp_path / CONTENT).write_text(text)
    read = read_content(seal(tmp_path))
    stored = read.pop("scalar")
    assert (stored.name, stored.dtype, stored.shape) == ("scalar", "int64", ())
    assert tensors == {"scalar": content.pop("scalar")}
    assert read == content and type(read["tuple"]) is tuple and list(read["keys"]) == [0, None, -1]
