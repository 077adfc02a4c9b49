"""A wrong or damaged weight file gives an error of one line and leaves the model unchanged."""

import pickle
import re
import zipfile

import numpy as np
import pytest
import safetensors.torch
import torch
from weight_files import google_arrays, paddle_state, pickled, random_vit, refusal, small_vit, written

from models.weights.fit import load_pretrained
from models.weights.read import checked_archive_bytes, read_weights
from utils.atomic_file import atomic_save
from utils.errors import UserError


def changed_state(name: str, tensor: torch.Tensor | None) -> dict[str, torch.Tensor]:
    state = dict(random_vit().state_dict())
    if tensor is None:
        del state[name]
    else:
        state[name] = tensor
    return state


@pytest.mark.parametrize(
    ("name", "tensor", "words"),
    [
        ("norm.bias", None, "missing tensors: norm.bias;"),
        ("head.bias", None, "missing tensors: head.bias;"),
        ("norm.bias", torch.ones(47), "norm.bias 47, not 48"),
        ("norm.bias", torch.tensor(1.0), "norm.bias scalar, not 48"),
        ("head.weight", torch.ones(7, 47), "head.weight 7x47, not 10x48"),
        ("head.bias", torch.ones(7), "head.bias 7, not 10"),
        ("pos_embed", torch.ones(1, 18, 48), "pos_embed 1x18x48, not 1x17x48"),
        ("pos_embed", torch.ones(2, 10, 48), "pos_embed 2x10x48, not 1x17x48"),
        ("pos_embed", torch.ones(1, 10), "pos_embed 1x10, not 1x17x48"),
        ("pos_embed", torch.ones(1, 1, 48), "pos_embed 1x1x48, not 1x17x48"),
        ("norm.bias", torch.ones(48, dtype=torch.int64), "norm.bias torch.int64"),
        ("norm.bias", torch.ones(48, dtype=torch.complex64), "norm.bias torch.complex64"),
        ("norm.bias", torch.full((48,), torch.nan), "NaN or infinite values: norm.bias;"),
        ("norm.bias", torch.full((48,), 1e300, dtype=torch.float64), "NaN or infinite values: norm.bias;"),
        ("norm.bias", torch.zeros(1).as_strided((10**12,), (0,)), "norm.bias is larger than its data"),
        ("pos_embed", torch.zeros(1).as_strided((1, 10**12 + 1, 48), (0, 0, 0)), "pos_embed is larger than its data"),
        ("unused", torch.zeros(1).as_strided((10**12,), (0,)), "unused is larger than its data"),
        ("norm.bias", torch.ones(48, device="meta"), "norm.bias is larger than its data"),
        ("norm.bias", torch.ones(48).to_sparse(), "norm.bias is larger than its data"),
    ],
)
@pytest.mark.filterwarnings("ignore:Validating sparse tensor")
def test_a_tensor_that_does_not_fit(tmp_path, name, tensor, words):
    torch.save(changed_state(name, tensor), tmp_path / "vit.pth")
    assert words in refusal(tmp_path / "vit.pth")


def test_another_patch_size_is_not_interpolated(tmp_path):
    torch.save(random_vit(patch_size=4).state_dict(), tmp_path / "vit.pth")
    assert "patch_embed.proj.weight 48x3x4x4, not 48x3x8x8" in refusal(tmp_path / "vit.pth")


@pytest.mark.parametrize("classes", [None, 7])
def test_evaluation_needs_the_head(tmp_path, classes):
    state = small_vit(num_classes=classes or 10).state_dict()
    torch.save({name: tensor for name, tensor in state.items() if classes or "head" not in name}, tmp_path / "vit.pth")
    model = small_vit()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(UserError, match=r"vit\.pth: cannot be evaluated \(head: .*MODEL\.NUM_CLASSES"):
        load_pretrained(model, str(tmp_path / "vit.pth"), needs_head=True)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("ending", ["pth", "safetensors"])
def test_a_file_of_another_model(tmp_path, ending):
    path = tmp_path / f"resnet.{ending}"
    save = torch.save if ending == "pth" else safetensors.torch.save_file
    save({f"layer{i}\n\x1b[2J" + "x" * 1000: torch.ones(1) for i in range(9)}, path)
    message = refusal(path)
    assert "none of this model's tensors" in message and "and 6 more" in message and message.isprintable()


def test_missing_file_lists_the_tried_extensions(tmp_path):
    message = refusal(tmp_path / "vit")
    assert all(ending in message for ending in (".pdparams", ".safetensors", ".pth", ".pt", ".npz"))
    (tmp_path / "vit").mkdir()
    assert f"is a folder; give a file in it, such as {tmp_path / 'vit/best.pth'}" in refusal(tmp_path / "vit")
    assert "no such file" in refusal("/x" * 5000)


def test_an_unknown_ending(tmp_path):
    (tmp_path / "vit.onnx").touch()
    assert "unknown file extension" in refusal(tmp_path / "vit.onnx")


def test_a_file_that_cannot_be_read(tmp_path, monkeypatch):
    def denied(*_, **__):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "vit.safetensors").touch()
    monkeypatch.setattr("models.weights.read.load_file", denied)
    assert "Permission denied" in refusal(tmp_path / "vit.safetensors")


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("ending", ["pdparams", "safetensors", "pth", "npz"])
def test_empty_truncated_and_foreign_files(tmp_path, ending):
    path = written(tmp_path, ending)
    whole = path.read_bytes()
    read_weights(str(path))
    lengths = [0, 1, 2, 7, 8, 100, len(whole) - 1, *range(0, len(whole), len(whole) // 20)]
    contents = [whole[:length] for length in lengths] + [b"<html></html>", bytes(1000), b"\x80\x04.", b"]" * 99]
    contents += [pickle.dumps(content) for content in (None, [1], {"model": 3}, {"model": {}}, {}, {1: 2}, {"a": "b"})]
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(UserError) as caught:
            read_weights(str(path))
        assert "\n" not in str(caught.value) and str(caught.value).startswith(str(path))


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("ending", ["pdparams", "safetensors", "pth", "npz"])
def test_format_with_the_extension_of_another(tmp_path, ending):
    for other in {"pdparams", "safetensors", "pth", "npz"} - {ending}:
        written(tmp_path, other).rename(tmp_path / f"other.{ending}")
        refusal(tmp_path / f"other.{ending}")


@pytest.mark.parametrize("ending", ["pdparams", "safetensors", "pth", "npz"])
def test_flipped_bytes_raise_only_user_errors(tmp_path, ending):
    path = written(tmp_path, ending)
    whole, chance = path.read_bytes(), np.random.default_rng(0)
    for _ in range(150):
        content = bytearray(whole)
        for place in chance.integers(0, 3000 if chance.random() < 0.7 else len(whole), size=3):
            content[place % len(whole)] = chance.integers(256)
        path.write_bytes(content)
        try:
            read_weights(str(path))
        except UserError as error:
            assert "\n" not in str(error)


def test_damaged_checkpoint(tmp_path):
    path = tmp_path / "last.pth"
    atomic_save(path, {"format": 1, "model": random_vit().state_dict(), "ema": None})
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert "checksum" in refusal(path)


def test_torch_files_without_tensors(tmp_path):
    itself = {}
    itself["model"] = itself
    for content in (torch.ones(3), [torch.ones(3)], {}, {"model": {}}, {"epoch": 1}, itself):
        torch.save(content, tmp_path / "vit.pth")
        assert "contains no dict of tensors" in refusal(tmp_path / "vit.pth")


def test_pdparams_of_another_model(tmp_path):
    state = {"features.0.weight": np.ones(1, "f4"), "features.1.weight": np.ones(1, "f4")}
    message = refusal(pickled(tmp_path / "swin.pdparams", paddle_state() | state))
    assert "features.0.weight, features.1.weight" in message and "PaddleViT" in message


@pytest.mark.parametrize("value", [np.array([None]), "text", 1.0, None, ("name",), [1.0], {}])
def test_pdparams_with_something_else_for_an_array(tmp_path, value):
    path = pickled(tmp_path / "vit.pdparams", paddle_state() | {"encoder.encoder_norm.bias": value})
    assert "encoder.encoder_norm.bias is not an array of numbers" in refusal(path)


def test_pdparams_with_a_shape_beyond_its_bytes(tmp_path):
    content = pickle.dumps({"cls_token": np.ones((1, 1, 48), "f4")}, protocol=2)
    shape, absurd = b"K\x01K\x01K0\x87", b"K\x01K\x01\x8a\x06" + (10**12).to_bytes(6, "little") + b"\x87"
    assert content.count(shape) == 1
    (tmp_path / "vit.pdparams").write_bytes(content.replace(shape, absurd))
    assert "is damaged" in refusal(tmp_path / "vit.pdparams")


NESTED = b")" + b"q\x00h\x00\x86" * 60  # a pair of the previous pair, 60 times
BOMBS = {
    "remembers more than there is": b"\x80\x04}r" + (2**32 - 1).to_bytes(4, "little") + b".",
    "a key that takes for ever to hash": b"\x80\x04}" + NESTED + b"Ns.",
    "a set": b"\x80\x04(" + NESTED + b"\x91.",
    "a text of 2 ** 60 bytes": b"\x80\x04\x8d" + (2**60).to_bytes(8, "little") + b"a.",
    "bytes in an encoding of its choice": b"\x80\x02c_codecs\nencode\n(X\x01\x00\x00\x00aX\x08\x00\x00\x00punycodetR.",
    "a dict of pairs": b"\x80\x02ccollections\nOrderedDict\n((" + NESTED + b"Ntl\x85R.",
    "many operations": b"\x80\x04" + b"}" * 3 * 10**6 + b".",
}  # fmt: skip


@pytest.mark.parametrize("bomb", BOMBS)
def test_malicious_pdparams_take_bounded_time_and_memory(tmp_path, bomb):
    """Python's unpickler would take all memory or hours for each of these."""
    (tmp_path / "vit.pdparams").write_bytes(BOMBS[bomb])
    assert re.search("is damaged|contains nothing", refusal(tmp_path / "vit.pdparams"))


def test_pdparams_with_one_array_under_many_names(tmp_path):
    array = np.ones(10**5, "f4")
    path = pickled(tmp_path / "vit.pdparams", {f"layer{i}": array for i in range(2000)})
    assert "uses one array for many tensors" in refusal(path)


@pytest.mark.parametrize("content", [None, [1], {"model": 3}, np.ones(3)])
def test_pdparams_without_a_dict(tmp_path, content):
    assert "contains no dict of weights" in refusal(pickled(tmp_path / "vit.pdparams", content))


def test_pdparams_with_nothing_in_it(tmp_path):
    assert "contains nothing," in refusal(pickled(tmp_path / "vit.pdparams", {"model": {}}))


def test_npz_with_a_shape_beyond_its_bytes(tmp_path):
    path = written(tmp_path, "npz")
    shape, absurd = b"(12,), }" + b" " * 9, b"(99999999999,), }"
    content = path.read_bytes()
    assert shape in content
    path.write_bytes(content.replace(shape, absurd))
    assert "is damaged" in refusal(path)


@pytest.mark.parametrize("ending", ["npz", "pth"])
def test_archives_that_unpack_to_many_times_their_size(tmp_path, ending):
    with zipfile.ZipFile(tmp_path / f"vit.{ending}", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(10**8))
    assert "would unpack from" in refusal(tmp_path / f"vit.{ending}")


def test_damaged_archive_is_a_user_error(tmp_path):
    """The standard library raises exceptions of many types for damaged directories."""
    path = written(tmp_path, "pth")
    assert checked_archive_bytes(path) >= path.stat().st_size / 2
    content, generator, errors = path.read_bytes(), np.random.default_rng(0), 0
    for _ in range(100):
        damaged = bytearray(content)
        for place in generator.integers(len(content) - 1500, len(content), size=4):
            damaged[place] = generator.integers(256)
        path.write_bytes(damaged)
        try:
            checked_archive_bytes(path)
        except UserError as error:
            errors += 1
            assert re.search("is a damaged archive|would unpack", str(error)) and "\n" not in str(error)
    assert errors > 20


def test_npz_with_a_billion_empty_blocks(tmp_path):
    arrays = google_arrays(random_vit(), stacked=True)
    arrays["Transformer/encoderblock/LayerNorm_0/scale"] = np.ones((10**9, 0), "f4")
    np.savez(tmp_path / "vit.npz", **arrays)
    assert "blocks.0.norm1.weight 0, not 48" in refusal(tmp_path / "vit.npz")


def test_a_tensor_larger_than_its_storage_in_the_file(tmp_path):
    """For a file of its old format torch allocates a storage as large as the tensor, with uninitialized memory."""
    torch.save(random_vit().state_dict(), tmp_path / "vit.pth", _use_new_zipfile_serialization=False)
    content = (tmp_path / "vit.pth").read_bytes()
    assert content.count(b"K\nK0\x86") == 1
    (tmp_path / "vit.pth").write_bytes(content.replace(b"K\nK0\x86", b"J\0\0\1\0K0\x86"))
    assert re.search("head.weight is larger than its data|is damaged", refusal(tmp_path / "vit.pth"))


def test_npz_of_something_else(tmp_path):
    np.savez(tmp_path / "data.npz", images=np.ones(3), labels=np.ones(3))
    assert "images, labels, which is not a ViT of Google's" in refusal(tmp_path / "data.npz")
