"""A wrong, damaged or malicious weight file gives an error of one line, runs no code and leaves the model unchanged."""

import pickle
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from conftest import config_for, line_of
from pytest import mark
from torch import nn
from weight_files import google_arrays, paddle_state, pickled, random_vit, read, refusal, small_vit, without, written

from configs.command_line import to_yaml
from configs.yaml_io import parse_value
from models.weights.choose import EVALUATE, FINE_TUNE
from models.weights.fit import load_pretrained

ENDINGS = ("pdparams", "safetensors", "pth", "npz")
HUGE = torch.zeros(1).as_strided((10**12,), (0,))
VIT = random_vit().state_dict()
GOOGLE, STACKED = (google_arrays(random_vit(), stacked=stacked) for stacked in (False, True))
ITSELF: dict = {}
ITSELF["model"] = ITSELF


def inflated(path: Path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"")
        archive.writestr("archive/data/0", bytes(10**8))


def archive_of(name: str) -> Callable[[Path], None]:
    def write(path: Path):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, b"")

    return write


def altered(ending: str, old: bytes, new: bytes) -> Callable[[Path], None]:
    def write(path: Path):
        content = written(path.parent, ending).read_bytes()
        assert old in content
        path.write_bytes(content.replace(old, new))

    return write


def old_torch(path: Path):
    torch.save(VIT, path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes().replace(b"K\nK0\x86", b"J\0\0\1\0K0\x86"))


def one_array(path: Path):
    pickled(path, {"cls_token": np.ones((1, 1, 48), "f4")}, protocol=2)
    large = b"K\x01K\x01\x8a\x06" + (10**12).to_bytes(6, "little") + b"\x87"
    path.write_bytes(path.read_bytes().replace(b"K\x01K\x01K0\x87", large))


def torchscript(path: Path):
    torch.jit.save(torch.jit.script(nn.Linear(2, 2)), path)


NORM = "encoder.encoder_norm.bias"
ENCODING = b"X\x01\x00\x00\x00aX\x08\x00\x00\x00punycode"
LONG = {f"layer{i}\n\x1b[2J" + "x" * 1000: torch.ones(1) for i in range(9)}
REFUSED = {  # the words of the line, the files, and what they have or what writes them
    "missing tensors: norm.bias;": {"a.pth": without(VIT, "norm.bias")},
    "norm.bias 47, not 48": {"a.pth": VIT | {"norm.bias": torch.ones(47)}},
    "pos_embed 1x18x48, not 1x17x48": {"a.pth": VIT | {"pos_embed": torch.ones(1, 18, 48)}},
    "norm.bias torch.int64": {"a.pth": VIT | {"norm.bias": torch.ones(48, dtype=torch.int64)}},
    "NaN or infinite values: norm.bias;": {"a.pth": VIT | {"norm.bias": torch.full((48,), torch.nan)}},
    "no place for: blocks.0.ls1.gamma;": {"DINOv2's scale.pth": VIT | {"blocks.0.ls1.gamma": torch.ones(48)}},
    "no place for: register_tokens;": {"a.pth": VIT | {"register_tokens": torch.ones(1, 4, 48)}},
    "adapters [^\n]*lora_A": {"of peft.pth": VIT | {"head.lora_A.default.weight": torch.ones(4, 48)}},
    "adapters [^\n]*merged": {"of loralib.pth": VIT | {"blocks.0.attn.qkv.lora_A": torch.ones(4, 48)}},
    "not all [^\n]*zero_to_fp32": {"a part of DeepSpeed's.pth": {"module": dict.fromkeys(VIT, torch.ones(0))}},
    r"-model=\S+ -opts .*{global_pool: avg}": {
        "average pooling.pth": without(VIT, "norm.weight", "norm.bias") | {"fc_norm.weight": torch.ones(48)}
    },
    "not all numbers of norm.bias": {
        "more elements than bytes.pth": VIT | {"norm.bias": HUGE},
        "sparse.pth": VIT | {"norm.bias": torch.ones(48).to_sparse()},
    },
    "and 6 more": {"a.pth": LONG, "a.safetensors": lambda path: safetensors.torch.save_file(LONG, path)},
    "contains no dict of tensors": {
        "a tensor.pth": torch.ones(3),
        "a list.pth": [torch.ones(3)],
        "no entries.pth": {},
        "an empty state.pth": {"model": {}},
        "a dict in itself.pth": ITSELF,
        "no dict.pdparams": np.ones(3),
        "remembers more than there is.pdparams": b"\x80\x04}r" + bytes([255] * 4) + b".",  # which is not allocated
    },
    "contains a pickled object": {"TorchScript.pt": torchscript},
    "git lfs pull": {"a.pt": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"},
    r"is no file of weights [^\n]*safetensors": {
        "torch.export's.pt2": archive_of("model/models/model.json"),
        "a.onnx": b"\x08\n\x12\x07pytorch",
        "a.keras": archive_of("model.weights.h5"),
        "an archive.zip": archive_of("weights.pth"),
        "an archive, renamed.pth": archive_of("weights.txt"),
        "PaddlePaddle's, renamed.pth": lambda path: pickled(path, paddle_state()),
    },
    "would unpack from": {"a.pth": inflated, "a.npz": inflated},
    "is a damaged archive": {"a damaged directory.pth": altered("pth", b"PK\x01\x02", b"PK\x01\x03")},
    "is damaged": {
        "torch's, renamed.pdparams": lambda path: torch.save(VIT, path),
        "a larger shape.pth": old_torch,  # torch allocates it, with uninitialized memory
        "a larger shape.npz": altered("npz", b"(12,), }" + b" " * 9, b"(99999999999,), }"),
        "a larger shape.pdparams": one_array,
        "one array under many names.pdparams": dict.fromkeys(map(str, range(2000)), np.ones(10**5, "f4")),
        "objects outside of the file.pdparams": b"\x80\x02X\x01\x00\x00\x00aQ.",
        "a text of 2 ** 60 bytes.pdparams": b"\x80\x04\x8d" + (2**60).to_bytes(8, "little") + b"a.",
        "an encoding of its choice.pdparams": b"\x80\x02c_codecs\nencode\n(" + ENCODING + b"tR.",
    },
    "features.0, which": {"another model.pdparams": paddle_state() | {"features.0": np.ones(1, "f4")}},
    "missing tensors: norm.bias": {"no numbers.pdparams": paddle_state() | {NORM: np.array([None])}},
    "pickled object .numpy.ndarray.load": {"a name below another.pdparams": b"cnumpy\nndarray.load\n(S'x'\ntR."},
    "s.0.attn.qkv.weight;": {"no keys.npz": without(GOOGLE, "block_0/MultiHeadDotProductAttention_1/key/kernel")},
    "norm1.weight 0,": {
        "many empty blocks.npz": STACKED | {"Transformer/encoderblock/LayerNorm_0/scale": np.ones((10**9, 0), "f4")}
    },
    "which is not a ViT of Google's": {"something else.npz": without(GOOGLE, "embedding/kernel")},
}


@mark.parametrize("words, name", [(words, name) for words, files in REFUSED.items() for name in files])
@mark.filterwarnings("ignore:Validating sparse tensor", "ignore:Detected pickle", "ignore:.torch.jit")
def test_refused(tmp_path, words, name):
    content = REFUSED[words][name]
    path = tmp_path / name
    if callable(content):
        content(path)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    elif path.suffix == ".npz":
        np.savez(path, **content)
    else:
        pickled(path, content) if path.suffix == ".pdparams" else torch.save(content, path)
    message = refusal(path)
    assert re.search(words, message)
    assert message.isprintable()


@mark.parametrize("classes", [None, 7])
def test_evaluation_needs_the_head(saved, classes):
    state = small_vit(num_classes=classes or 10).state_dict()
    path = saved(state if classes else without(state, "head.weight", "head.bias"))
    assert "evaluated (head: " in refusal(path, purpose=EVALUATE)
    assert load_pretrained(small_vit(), path, purpose=FINE_TUNE).new_heads


def test_own_weights_of_another_model_name_it(saved):
    """Options without a name name none."""
    content = {"model": {"norm.weight": VIT["norm.weight"]}}
    known = to_yaml(config_for("-cfg=configs/vit_digits.yaml"))
    for options, ending in ((known, "vit_digits; omit -cfg, -model and MODEL"), ("MODEL: {}\nDATA: {}", "")):
        _, named, end = refusal(saved(content | {"options": options})).partition("these are weights of ")
        assert (bool(named), end) == (bool(ending), ending)


def test_paths_that_are_no_weight_file(tmp_path):
    (tmp_path / "vit.onnx").touch()
    for path in (tmp_path / "gone", "/x" * 5000, tmp_path / "vit.onnx"):
        message = refusal(path)
        assert all(ending in message for ending in ENDINGS)


@mark.filterwarnings("ignore:Detected pickle protocol")
@mark.parametrize("ending", ENDINGS)
def test_empty_truncated_and_foreign_files(tmp_path, ending):
    path = written(tmp_path, ending)
    whole = path.read_bytes()
    foreign = ("safetensors", "pth", "npz") if ending == "pdparams" else ("pdparams",)
    read(path)
    lengths = [0, 1, 2, 7, 8, 100, len(whole) - 1, *range(0, len(whole), len(whole) // 20)]
    contents = [whole[:length] for length in lengths] + [b"<html></html>", bytes(1000), b"\x80\x04.", b"]" * 99]
    contents += map(pickle.dumps, parse_value("[null, [1], {model: 3}, {model: {}}, {}, {1: 2}, {a: b}]"))
    contents += [written(tmp_path, other).read_bytes() for other in foreign]
    for content in contents:
        path.write_bytes(content)
        assert line_of(read, path).startswith(str(path))
