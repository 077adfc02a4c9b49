"""Folders of shards that are damaged, incomplete or hostile are refused with one line."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import assert_same_state
from fuzz_model_kinds import checkpoint_state
from safetensors.torch import load_file, save_file
from shard_files import seal, write_shard, write_shards

from engine.checkpoint.reader import load_checkpoint
from engine.checkpoint.trained_on import read_trained_on
from models.weights.read import read_weights
from utils.errors import UserError
from utils.file_formats.checkpoint_folder import CONTENT, MANIFEST
from utils.file_formats.json_content import decode_content, encode_content

FIRST = "shard-00001-model-00001-of-00001.safetensors"


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards") / "last.shards", checkpoint_state(), 2)


@pytest.fixture
def folder(whole, tmp_path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "last.shards"))


def refusal(folder: Path) -> str:
    with pytest.raises(UserError) as error:
        load_checkpoint(folder)
    message = str(error.value)
    assert "\n" not in message and str(folder) in message and len(message) < 600, message
    return message


def test_the_content_is_that_of_a_file(folder):
    assert_same_state(load_checkpoint(folder), checkpoint_state())


def test_every_flipped_bit_is_detected(folder):
    """60 bits in all files, and 200 of the manifest, which no checksum covers."""
    files = sorted(folder.iterdir())
    rng = random.Random(0)
    for file in [rng.choice(files) for _ in range(60)] + [folder / MANIFEST] * 200:
        original = file.read_bytes()
        data, bit = bytearray(original), rng.randrange(8 * len(original))
        data[bit // 8] ^= 1 << bit % 8
        file.write_bytes(data)
        refusal(folder)
        file.write_bytes(original)
    load_checkpoint(folder)


def test_every_cut_and_every_missing_file_is_detected(folder):
    rng = random.Random(0)
    for file in sorted(folder.iterdir()):
        original = file.read_bytes()
        for length in (0, len(original) - 1, *(rng.randrange(len(original)) for _ in range(5))):
            file.write_bytes(original[:length])
            refusal(folder)
        file.write_bytes(original + b"\0")
        refusal(folder)
        file.unlink()
        assert "missing" in (message := refusal(folder)) or "was not saved completely" in message
        file.write_bytes(original)
    load_checkpoint(folder)


def edit_content(folder: Path, change: Callable[[str], str]) -> None:
    content = folder / CONTENT
    content.write_text(change(content.read_text()))
    seal(folder)


def edit_manifest(folder: Path, name: str) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"][name] = {"bytes": 3, "sha256": "0" * 64}
    manifest["files"] = dict(sorted(manifest["files"].items()))
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")


def edit_shard(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(folder / FIRST)
    offsets = {name: {"saved_offsets": [0] * tensor.dim()} for name, tensor in tensors.items()}
    change(tensors)
    offsets |= {name: {"saved_offsets": [0] * tensors[name].dim()} for name in tensors.keys() - offsets.keys()}
    save_file(tensors, folder / FIRST, {"DCP_SHARDING_INFO": json.dumps(offsets)})
    seal(folder)


def link_outside(folder: Path) -> None:
    outside = folder.parent / "outside.safetensors"
    (folder / FIRST).rename(outside)
    (folder / FIRST).symlink_to(outside)


def save_whole_twice(folder: Path) -> None:
    """Both shards hold all rows of every tensor."""
    _, tensors = encode_content(checkpoint_state())
    for path in folder.glob("*.safetensors"):
        write_shard(path, tensors, 0, 1)
    seal(folder)


def forge_offsets(folder: Path) -> None:
    tensors = load_file(folder / FIRST)
    offsets = {name: {"saved_offsets": [2**40, *[0] * (tensor.dim() - 1)]} for name, tensor in tensors.items()}
    save_file(tensors, folder / FIRST, {"DCP_SHARDING_INFO": json.dumps(offsets)})
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


def without_shards(folder: Path) -> None:
    for path in folder.glob("*.safetensors"):
        path.unlink()
    seal(folder)


HOSTILE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "another file": (lambda folder: (folder / "x.safetensors").touch(), "'x.safetensors' is not part of it"),
    "another folder": (lambda folder: (folder / "x").mkdir(), "'x' is not part of it"),
    "a pickle": (lambda folder: ((folder / ".metadata").write_bytes(b"x"), seal(folder)), "'.metadata' is no file of"),
    "a link": (link_outside, "is no file of a checkpoint"),
    "a pipe": (lambda folder: ((folder / FIRST).unlink(), os.mkfifo(folder / FIRST)), "is no file of a checkpoint"),
    "no manifest": (lambda folder: (folder / MANIFEST).rename(folder.parent / "m"), "was not saved completely"),
    "a name above": (lambda folder: edit_manifest(folder, "../x.safetensors"), "'../x.safetensors' is missing"),
    "an absolute name": (lambda folder: edit_manifest(folder, "/etc/passwd"), "'/etc/passwd' is missing"),
    "manifest: a long name": (lambda folder: edit_manifest(folder, "x" * 10**5), "manifest.json: is damaged or not"),
    "manifest: a list": (lambda folder: (folder / MANIFEST).write_text("[1]"), "is damaged or not a checkpoint"),
    "manifest: deep": (lambda folder: (folder / MANIFEST).write_text("[" * 10**6), r"manifest.json: is damaged or not"),
    "manifest: large": (lambda folder: (folder / MANIFEST).write_bytes(b" " * (9 << 20)), "manifest.json: is damaged"),
    "content: no JSON": (lambda folder: edit_content(folder, lambda text: text[:-1]), "content.json: is damaged"),
    "content: deep": (lambda folder: edit_content(folder, lambda _: "[" * 10**5 + "]" * 10**5), "content.json: is dam"),
    "content: a list": (lambda folder: edit_content(folder, lambda _: "[]"), "content.json: is damaged or not"),
    "content: NaN": (replaced('"train_seconds":1.0', '"train_seconds":NaN'), "content.json: is damaged or not"),
    "content: infinite": (replaced('"train_seconds":1.0', '"train_seconds":1e999'), "content.json: is damaged or not"),
    "content: a key twice": (replaced('"epoch":3', '"epoch":3,"epoch":4'), "content.json: is damaged or not"),
    "content: an unknown mark": (replaced('"$tuple"', '"$python"'), "content.json: is damaged or not"),
    "content: another format": (replaced('"format":6', '"format":1'), "is not a checkpoint of format"),
    "content: a wrong type": (replaced('"epoch":3', '"epoch":"3"'), "epoch missing or of a wrong type"),
    "content: forged steps": (replaced('"done_steps":0', '"done_steps":99'), "its entries contradict each other"),
    "content: another shape": (replaced("[1,5,12]", "[1,5,999999999999]"), "is not complete"),
    "content: another dtype": (replaced('norm.bias","float32"', 'norm.bias","int8"'), "is not complete"),
    "content: a tensor twice": (
        replaced('"options":"', '"ema2":{"$tensor":["model.norm.bias","float32",[140737488355328]]},"options":"'),
        "a tensor twice",
    ),
    "content: an object as dtype": (replaced('norm.bias","float32"', 'norm.bias","load"'), "is not complete"),
    "shards: NaN": (
        lambda folder: edit_shard(folder, lambda tensors: tensors["model.norm.bias"].fill_(torch.nan)),
        "contains NaN or infinite values in model norm.bias",
    ),
    "shards: another dtype": (
        lambda folder: edit_shard(folder, lambda one: one.update({"model.norm.bias": one["model.norm.bias"].double()})),
        "'model.norm.bias' is not complete",
    ),
    "shards: a tensor less": (
        lambda folder: edit_shard(folder, lambda tensors: tensors.pop("model.norm.bias")),
        "'model.norm.bias' is not complete",
    ),
    "shards: a tensor more": (
        lambda folder: edit_shard(folder, lambda tensors: tensors.update(other=torch.ones(1))),
        "'other' is not complete",
    ),
    "shards: rows twice": (save_whole_twice, "is not complete in its shards"),
    "shards: forged offsets": (forge_offsets, "is not complete in its shards"),
    "shards: a forged header": (forge_header, "is damaged or not"),
    "shards: no shards": (without_shards, "is not complete in its shards"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "expected"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_folder_is_refused(folder, change, expected):
    change(folder)
    assert expected in refusal(folder)


def test_its_weights_alone_are_read_by_pretrained(folder):
    state = checkpoint_state()
    assert_same_state(read_weights(str(folder)), state["model"])
    assert_same_state(read_weights(str(folder.with_suffix(""))), state["model"])  # without the extension
    (folder / FIRST).write_bytes(b"")
    with pytest.raises(UserError, match=r"last\.shards: is damaged"):
        read_weights(str(folder))


def test_a_folder_of_another_program_has_no_description(folder):
    assert read_trained_on(str(folder)) is None  # the example has no preprocessing
    (folder / CONTENT).write_text("{}")
    assert read_trained_on(str(seal(folder))) is None


def test_json_keeps_every_type():
    content = {
        "tuple": (1, (2.5, None)), "keys": {0: "a", None: True, -1: {}}, "$mark": {"$tensor": [1]}, "text": "é\ud800\n",
        "numbers": [2**70, 1e-320, 0.1, -0.0], "scalar": torch.tensor(2, dtype=torch.int64),
    }  # fmt: skip
    text, tensors = encode_content(content)
    read = decode_content(text, Path("x"))
    stored = read.pop("scalar")
    assert (stored.name, stored.dtype, stored.shape) == ("scalar", "int64", ())
    assert tensors == {"scalar": content.pop("scalar")}
    assert read == content and type(read["tuple"]) is tuple and list(read["keys"]) == [0, None, -1]


@pytest.mark.parametrize(
    "content",
    [{"a": float("nan")}, {"a": {1, 2}}, {"a.b": torch.ones(1), "a": {"b": torch.ones(1)}}],
    ids=["NaN", "a set", "two tensors with one name"],
)
def test_what_json_cannot_keep_is_refused(content):
    with pytest.raises(ValueError):
        encode_content(content)
