"""A wrong, damaged or malicious weight file gives an error of one line, runs no code and leaves the model unchanged."""

import os
import pickle
import re
import zipfile

import numpy as np
import pytest
import safetensors.torch
import torch
from weight_files import Reduced, google_arrays, paddle_state, pickled, random_vit, read, refusal, small_vit, written

from configs.command_line import parse_command_line, to_yaml
from models.weights.choose import EVALUATE
from models.weights.fit import load_pretrained
from models.weights.names import body_names
from utils.errors import UserError

ENDINGS = ("pdparams", "safetensors", "pth", "npz")
HUGE = torch.zeros(1).as_strided((10**12,), (0,))


@pytest.mark.parametrize(
    ("name", "tensor", "words"),
    [
        ("norm.bias", None, "missing tensors: norm.bias;"),
        ("norm.bias", torch.ones(47), "norm.bias 47, not 48"),
        ("pos_embed", torch.ones(1, 18, 48), "pos_embed 1x18x48, not 1x17x48"),
        ("norm.bias", torch.ones(48, dtype=torch.int64), "norm.bias torch.int64"),
        ("norm.bias", torch.full((48,), torch.nan), "NaN or infinite values: norm.bias;"),
        ("blocks.0.ls1.gamma", torch.ones(48), "no place for: blocks.0.ls1.gamma;"),  # as in DINOv2
        ("register_tokens", torch.ones(1, 4, 48), "no place for: register_tokens;"),  # as in DINOv2
        ("norm.bias", HUGE, "norm.bias is larger than its data"),
        ("norm.bias", torch.ones(48).to_sparse(), "norm.bias is larger than its data"),
    ],
)
@pytest.mark.filterwarnings("ignore:Validating sparse tensor")
def test_a_tensor_that_does_not_fit(tmp_path, name, tensor, words):
    state = random_vit().state_dict() | {name: tensor}
    torch.save({name: tensor for name, tensor in state.items() if tensor is not None}, tmp_path / "vit.pth")
    assert words in refusal(tmp_path / "vit.pth")


@pytest.mark.parametrize("classes", [None, 7])
def test_evaluation_needs_the_head(tmp_path, classes):
    state = small_vit(num_classes=classes or 10).state_dict()
    torch.save({name: tensor for name, tensor in state.items() if classes or "head" not in name}, tmp_path / "vit.pth")
    assert re.search(r"head: .*(MODEL\.NUM_CLASSES|train with)", refusal(tmp_path / "vit.pth", purpose=EVALUATE))


@pytest.mark.parametrize("ending", ["pth", "safetensors"])
def test_a_file_of_another_model(tmp_path, ending):
    path = tmp_path / f"resnet.{ending}"
    save = torch.save if ending == "pth" else safetensors.torch.save_file
    save({f"layer{i}\n\x1b[2J" + "x" * 1000: torch.ones(1) for i in range(9)}, path)
    message = refusal(path)
    assert "and 6 more" in message and message.isprintable()


@pytest.mark.parametrize(
    ("flags", "advice"),
    [
        (["-model=resnet10t"], "; give -model=resnet10t"),
        (["-model=resnet10t", "-opts", "MODEL.KWARGS={stem_width: 16}"], "; omit -cfg and -model"),
        ([], "; omit -cfg and -model"),
    ],
)
def test_own_weights_of_another_model_name_the_flags_for_it(tmp_path, flags, advice):
    options = to_yaml(parse_command_line(["-cfg=configs/vit_digits.yaml", *flags]).config)
    state, size = random_vit().state_dict(), len(body_names(small_vit()))
    del state["norm.bias"]
    for weights, words in ((state, "tensors: norm.bias;"), ({"x": state["norm.weight"]}, f" and {size - 3} more)")):
        torch.save({"model": weights, "options": options}, tmp_path / "best.pth")
        message = refusal(tmp_path / "best.pth")
        assert words in message and message.endswith(advice)


def test_paths_that_are_no_weight_file(tmp_path):
    (tmp_path / "vit.onnx").touch()
    for path in (tmp_path / "gone", "/x" * 5000, tmp_path / "vit.onnx"):
        message = refusal(path)
        assert all(ending in message for ending in ENDINGS)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("ending", ENDINGS)
def test_empty_truncated_and_foreign_files(tmp_path, ending):
    others = [
        written(tmp_path, other).read_bytes() for other in ENDINGS if (other == "pdparams") != (ending == "pdparams")
    ]
    path = written(tmp_path, ending)
    whole = path.read_bytes()
    read(path)
    lengths = [0, 1, 2, 7, 8, 100, len(whole) - 1, *range(0, len(whole), len(whole) // 20)]
    contents = [whole[:length] for length in lengths] + [b"<html></html>", bytes(1000), b"\x80\x04.", b"]" * 99]
    contents += [pickle.dumps(content) for content in (None, [1], {"model": 3}, {"model": {}}, {}, {1: 2}, {"a": "b"})]
    for content in contents + others:
        path.write_bytes(content)
        with pytest.raises(UserError) as caught:
            read(path)
        assert "\n" not in str(caught.value) and str(caught.value).startswith(str(path))


def test_torch_files_without_tensors(tmp_path):
    itself = {}
    itself["model"] = itself
    for content in (torch.ones(3), [torch.ones(3)], {}, {"model": {}}, {"epoch": 1}, itself):
        torch.save(content, tmp_path / "vit.pth")
        assert "contains no dict of tensors" in refusal(tmp_path / "vit.pth")


NORM = "encoder.encoder_norm.bias"
PDPARAMS = {  # the bytes of a file, or content to pickle; what the line says
    "another model": (paddle_state() | {"features.0.weight": np.ones(1, "f4")}, "features.0.weight, .*not in this ViT"),
    "no arrays": (paddle_state() | {NORM: np.array([None])}, f"{NORM} is not an array of numbers"),
    "no dict": (np.ones(3), "contains no dict of weights"),
    "nothing": ({"model": {}}, "contains nothing,"),
    "one array under many names": (dict.fromkeys(map(str, range(2000)), np.ones(10**5, "f4")), "one array for many"),
    "a name below an allowed one": (b"cnumpy\nndarray.load\n(S'x'\ntR.", "refers to numpy.ndarray.load,"),
    "objects outside of the file": (b"\x80\x02X\x01\x00\x00\x00aQ.", "is damaged"),
    # Sizes that are not allocated
    "remembers more than there is": (b"\x80\x04}r" + (2**32 - 1).to_bytes(4, "little") + b".", "nothing|damaged"),
    "a text of 2 ** 60 bytes": (b"\x80\x04\x8d" + (2**60).to_bytes(8, "little") + b"a.", "is damaged"),
    "bytes in an encoding of its choice": (
        b"\x80\x02c_codecs\nencode\n(X\x01\x00\x00\x00aX\x08\x00\x00\x00punycodetR.", "nothing|damaged",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PDPARAMS)
def test_pdparams_with_other_content(tmp_path, case):
    content, words = PDPARAMS[case]
    path = tmp_path / "vit.pdparams"
    path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol=4))
    assert re.search(words, refusal(path))


def replace_bytes(path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))


def test_shapes_beyond_the_bytes_of_the_file(tmp_path):
    """For a file of its old format torch allocates a storage as large as the tensor, with uninitialized memory."""
    paddle = pickled(tmp_path / "vit.pdparams", {"cls_token": np.ones((1, 1, 48), "f4")}, protocol=2)
    large = b"K\x01K\x01\x8a\x06" + (10**12).to_bytes(6, "little") + b"\x87"
    replace_bytes(paddle, b"K\x01K\x01K0\x87", large)
    google = written(tmp_path, "npz")
    replace_bytes(google, b"(12,), }" + b" " * 9, b"(99999999999,), }")
    old_torch = tmp_path / "vit.pth"
    torch.save(random_vit().state_dict(), old_torch, _use_new_zipfile_serialization=False)
    replace_bytes(old_torch, b"K\nK0\x86", b"J\0\0\1\0K0\x86")
    for file in (paddle, google, old_torch):
        assert re.search("is larger than its data|is damaged", refusal(file))


@pytest.mark.parametrize("ending", ["npz", "pth"])
def test_archives_that_unpack_to_many_times_their_size(tmp_path, ending):
    with zipfile.ZipFile(tmp_path / f"vit.{ending}", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(10**8))
    assert "would unpack from" in refusal(tmp_path / f"vit.{ending}")


def test_an_archive_with_a_damaged_directory(tmp_path):
    path = written(tmp_path, "pth")
    replace_bytes(path, b"PK\x01\x02", b"PK\x01\x03")
    assert "is a damaged archive" in refusal(path)


NPZ = {  # of another content -> arrays that are removed, arrays that are added, the refusal
    "no keys": (["encoderblock_0/MultiHeadDotProductAttention_1/key/kernel"], {}, "tensors: blocks.0.attn.qkv.weight;"),
    "a billion empty blocks": (
        [],
        {"Transformer/encoderblock/LayerNorm_0/scale": np.ones((10**9, 0), "f4")},
        "blocks.0.norm1.weight 0, not 48",
    ),
    "something else": (["embedding/kernel"], {}, "which is not a ViT of Google's"),
}


@pytest.mark.parametrize("case", NPZ)
def test_npz_with_other_content(tmp_path, case):
    removed, added, words = NPZ[case]
    arrays = google_arrays(random_vit(), stacked=bool(added)) | added
    arrays = {name: array for name, array in arrays.items() if not name.endswith(tuple(removed))}
    np.savez(tmp_path / "vit.npz", **arrays)
    assert words in refusal(tmp_path / "vit.npz")


@pytest.fixture
def bomb(tmp_path):
    pickle.loads(pickle.dumps(Reduced(os.system, f"touch {tmp_path / 'proof'}")))
    assert (tmp_path / "proof").exists(), "the bomb must be live for these tests to say something"
    yield Reduced(os.system, f"touch {tmp_path / 'exploded'}")
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("protocol", [0, 4])
def test_no_code_runs_from_pdparams(tmp_path, bomb, protocol):
    forbidden = f"{os.system.__module__}.system"
    for content in (bomb, {"a": bomb}, {"model": paddle_state(), "optimizer": [bomb]}, {"exploded": (1, bomb)}):
        assert f"refers to {forbidden}," in refusal(pickled(tmp_path / "vit.pdparams", content, protocol))


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_no_code_runs_from_npz_and_from_pickles_under_another_ending(tmp_path, bomb):
    arrays = google_arrays(random_vit()) | {"cls": np.array([bomb], dtype=object)}
    np.savez(tmp_path / "vit.npz", allow_pickle=True, **arrays)
    refusal(tmp_path / "vit.npz")
    for ending in ("safetensors", "npz", "pth", "pt"):
        refusal(pickled(tmp_path / f"vit.{ending}", bomb))


def test_a_loss_beside_the_weights_is_not_built(tmp_path, bomb, monkeypatch):
    """No class of torch is instantiated; what the object contains is checked as the rest of the file is."""
    monkeypatch.setattr(torch.nn.Module, "__setstate__", lambda *_: pytest.fail("built"))
    loss = torch.nn.CrossEntropyLoss()
    torch.save({"model": random_vit().state_dict(), "loss": loss}, tmp_path / "vit.pth")
    assert load_pretrained(small_vit(), str(tmp_path / "vit.pth"))
    loss.bomb = bomb
    torch.save({"model": random_vit().state_dict(), "loss": loss}, tmp_path / "vit.pth")
    assert f"refers to {os.system.__module__}.system," in refusal(tmp_path / "vit.pth")
    (tmp_path / "vit.pth").write_bytes(b"\x80\x02ctorch.nn.modules.loss\nL1Loss\nX\x01\x00\x00\x00a\x85R.")
    assert "is damaged" in refusal(tmp_path / "vit.pth")


def test_many_classes_of_lists_do_not_read_a_file_many_times(tmp_path, monkeypatch):
    """torch 2.11 appends to no class of a list: each such class costs another reading of the file."""
    kinds = [type(f"List{number}", (list,), {"__module__": __name__}) for number in range(30)]
    for kind in kinds:
        monkeypatch.setitem(globals(), kind.__name__, kind)
    torch.save({"model": small_vit().state_dict(), "lists": [kind([1]) for kind in kinds]}, tmp_path / "x.pth")
    loaded, load = [], torch.load

    def check(_: object, target: object) -> None:
        if type(target) is not list:
            raise pickle.UnpicklingError(f"Can only append to lists, but got {type(target)}")

    monkeypatch.setattr("torch._weights_only_unpickler.Unpickler._check_append_target", check, raising=False)
    monkeypatch.setattr(torch, "load", lambda *args, **options: loaded.append(args) or load(*args, **options))
    assert "more than 8 classes" in refusal(tmp_path / "x.pth") and len(loaded) == 9
