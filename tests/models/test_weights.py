"""Weights of every kind load right or not at all."""

import os
import pickle
import re
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from timm.layers import resample_abs_pos_embed
from timm.models import VisionTransformer

from models.weights import find_weights, load_pretrained, read_weights
from utils.errors import UserError
from utils.sealed import save_sealed

FIXTURE = Path(__file__).parents[1] / "fixtures" / "paddlevit_small"
SQUARE = "encoder.layers.0.attn.out.weight"


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """On tensors this small, threads only wait for one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def small_vit(**changes) -> VisionTransformer:
    options = {"img_size": 32, "patch_size": 8, "num_classes": 10, "embed_dim": 48, "depth": 2, "num_heads": 3}
    return VisionTransformer(**options | changes).eval()


def random_vit(seed: int = 0, **changes) -> VisionTransformer:
    """Every parameter random, so that two of them taken for one another show in the logits."""
    model = small_vit(**changes)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


@torch.no_grad()
def logits(model: torch.nn.Module, size: int = 32) -> torch.Tensor:
    return model(torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1)))


def refusal(path: Path | str, model: torch.nn.Module | None = None) -> str:
    """The one line of the error, after a look whether the model is as it was."""
    model = model or small_vit()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(UserError) as caught:
        load_pretrained(model, str(path))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    message = str(caught.value)
    assert "\n" not in message and message.startswith(str(path)) and len(message) < 500 + len(str(path))
    return message


def paddle_state() -> dict[str, np.ndarray]:
    """The fixture's arrays, by an unpickler that may run anything: the file is ours."""
    state = pickle.loads((FIXTURE / "vit.pdparams").read_bytes())
    del state["StructuredToParameterName@@"]
    return state


class PaddleTensor:
    """Pickles as PaddlePaddle's own tensors do."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __reduce__(self):
        return tuple, (("linear_0.w_0", self.array),)


def pickled(path: Path, content: object, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


def google_arrays(model: VisionTransformer, prefix: str = "", big_vision: bool = False, stacked: bool = False) -> dict:
    """`model` as vit_jax or big_vision would have saved it."""
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    heads, width = model.blocks[0].attn.num_heads, model.embed_dim
    attention, norm2, mlp = ("0", "1", "0") if big_vision else ("1", "2", "3")
    arrays = {
        "cls": state["cls_token"],
        "pos_embedding" if big_vision else "Transformer/posembed_input/pos_embedding": state["pos_embed"],
        "embedding/kernel": state["patch_embed.proj.weight"].transpose(2, 3, 1, 0),
        "embedding/bias": state["patch_embed.proj.bias"],
        "Transformer/encoder_norm/scale": state["norm.weight"],
        "Transformer/encoder_norm/bias": state["norm.bias"],
        "head/kernel": state["head.weight"].T,
        "head/bias": state["head.bias"],
    }
    blocks = []
    for i in range(len(model.blocks)):
        part = {name.removeprefix(f"blocks.{i}."): array for name, array in state.items()}
        attend = f"MultiHeadDotProductAttention_{attention}"
        block = {
            "LayerNorm_0/scale": part["norm1.weight"],
            "LayerNorm_0/bias": part["norm1.bias"],
            f"LayerNorm_{norm2}/scale": part["norm2.weight"],
            f"LayerNorm_{norm2}/bias": part["norm2.bias"],
            f"{attend}/out/kernel": part["attn.proj.weight"].T.reshape(heads, -1, width),
            f"{attend}/out/bias": part["attn.proj.bias"],
        }
        for j, name in enumerate(("query", "key", "value")):
            rows = slice(j * width, (j + 1) * width)
            block[f"{attend}/{name}/kernel"] = part["attn.qkv.weight"][rows].T.reshape(width, heads, -1)
            block[f"{attend}/{name}/bias"] = part["attn.qkv.bias"][rows].reshape(heads, -1)
        for j in range(2):
            block[f"MlpBlock_{mlp}/Dense_{j}/kernel"] = part[f"mlp.fc{j + 1}.weight"].T
            block[f"MlpBlock_{mlp}/Dense_{j}/bias"] = part[f"mlp.fc{j + 1}.bias"]
        blocks.append(block)
    if stacked:
        arrays |= {f"Transformer/encoderblock/{k}": np.stack([block[k] for block in blocks]) for k in blocks[0]}
    else:
        arrays |= {f"Transformer/encoderblock_{i}/{k}": a for i, block in enumerate(blocks) for k, a in block.items()}
    return {prefix + name: array for name, array in arrays.items()}


# Where the files come from


@pytest.mark.parametrize("name", ["vit.pdparams", "checkpoint.pdparams", "vit", "checkpoint"])
def test_paddlevit_logits_are_those_of_paddlepaddle(name):
    reference = np.load(FIXTURE / "reference.npz")
    model = small_vit()
    load_pretrained(model, str(FIXTURE / name))
    with torch.no_grad():
        ours = model(torch.from_numpy(reference["images"]))
    torch.testing.assert_close(ours, torch.from_numpy(reference["logits"]), rtol=0, atol=1e-5)


def test_paddlevit_square_linear_weights_are_transposed_and_the_conv_is_not():
    state, read = paddle_state(), read_weights(str(FIXTURE / "vit.pdparams"))
    assert np.array_equal(read["blocks.0.attn.proj.weight"], state[SQUARE].T)
    assert np.array_equal(read["patch_embed.proj.weight"], state["patch_embedding.patch_embedding.weight"])
    assert read.keys() == small_vit().state_dict().keys()


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_pdparams_in_every_protocol_and_memory_order(tmp_path, protocol):
    state = {name: PaddleTensor(np.asfortranarray(array)) for name, array in paddle_state().items()}
    expected = read_weights(str(FIXTURE / "vit.pdparams"))
    read = read_weights(str(pickled(tmp_path / "vit.pdparams", OrderedDict(state), protocol)))
    assert all(torch.equal(read[name], expected[name]) for name in expected)


def test_pdparams_of_old_numpy_and_of_big_endian_machines(tmp_path):
    state = {name: array.astype(">f4") for name, array in paddle_state().items()}
    content = pickle.dumps(state, protocol=2).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert b"numpy.core.multiarray" in content
    (tmp_path / "vit.pdparams").write_bytes(content)
    read = read_weights(str(tmp_path / "vit.pdparams"))
    assert np.array_equal(read["cls_token"], state["cls_token"].astype("f4"))


def test_pdparams_bfloat16_is_stored_as_uint16(tmp_path):
    state = {name: torch.from_numpy(array).bfloat16() for name, array in paddle_state().items()}
    bits = {name: tensor.view(torch.int16).numpy().view(np.uint16) for name, tensor in state.items()}
    read = read_weights(str(pickled(tmp_path / "vit.pdparams", bits)))
    assert read["blocks.0.attn.proj.weight"].dtype == torch.bfloat16
    assert torch.equal(read["blocks.0.attn.proj.weight"], state[SQUARE].t())


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize(("prefix", "big_vision"), [("", False), ("opt/target/", False), ("params/", True), ("", True)])
def test_google_npz_as_timm_reads_it(tmp_path, prefix, big_vision, stacked):
    source, ours, timms = random_vit(), small_vit(), small_vit()
    np.savez(tmp_path / "vit.npz", **google_arrays(source, prefix, big_vision, stacked), **{"other/step": np.int64(3)})
    load_pretrained(ours, str(tmp_path / "vit.npz"))
    torch.testing.assert_close(logits(ours), logits(source))
    if prefix if big_vision else not stacked:  # what every timm from the lower bound on reads
        timms.load_pretrained(str(tmp_path / "vit.npz"))
        assert all(torch.equal(ours.state_dict()[name], tensor) for name, tensor in timms.state_dict().items())


def test_google_npz_in_bfloat16(tmp_path):
    source = random_vit().bfloat16().float()
    arrays = google_arrays(source)
    bits = {k: torch.tensor(a).bfloat16().view(torch.int16).numpy().view("V2") for k, a in arrays.items()}
    np.savez(tmp_path / "vit.npz", **bits)
    model = small_vit()
    load_pretrained(model, str(tmp_path / "vit.npz"))
    assert torch.equal(logits(model), logits(source))


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
@pytest.mark.parametrize("ending", ["safetensors", "pth", "pt"])
def test_safetensors_and_torch_files_with_wrappers_prefixes(tmp_path, ending, prefix):
    source, model = random_vit(), small_vit()
    state = {prefix + name: tensor for name, tensor in source.state_dict().items()}
    save = safetensors.torch.save_file if ending == "safetensors" else torch.save
    save(state, tmp_path / f"vit.{ending}")
    load_pretrained(model, str(tmp_path / f"vit.{ending}"))
    assert torch.equal(logits(model), logits(source))


def test_blocks_compiled_one_by_one(tmp_path):
    source, model = random_vit(), small_vit()
    state = {re.sub(r"^(blocks\.\d+)", r"\1._orig_mod", name): tensor for name, tensor in source.state_dict().items()}
    torch.save(state, tmp_path / "vit.pth")
    load_pretrained(model, str(tmp_path / "vit.pth"))
    assert torch.equal(logits(model), logits(source))


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {"model": state, "optimizer": {"state": {}}},
        lambda state: {"model": {"state_dict": state}},
        lambda state: {"format": 1, "model": {}, "ema": state, "optimizer": {}},
        lambda state: {"format": 1, "model": state, "ema": None, "optimizer": {}},
        lambda state: OrderedDict((name, torch.nn.Parameter(tensor)) for name, tensor in state.items()),
    ],
)
def test_containers_of_torch_files(tmp_path, wrap, zipped):
    source, model = random_vit(), small_vit()
    torch.save(wrap(source.state_dict()), tmp_path / "vit.pth", _use_new_zipfile_serialization=zipped)
    load_pretrained(model, str(tmp_path / "vit.pth"))
    assert torch.equal(logits(model), logits(source))


def test_average_weights_of_a_checkpoint_come_before_its_others(tmp_path):
    average, other, model = random_vit(0), random_vit(1), small_vit()
    save_sealed(tmp_path / "last.pth", {"format": 1, "model": other.state_dict(), "ema": average.state_dict()})
    load_pretrained(model, str(tmp_path / "last.pth"))
    assert torch.equal(logits(model), logits(average))


def test_weights_saved_on_a_gpu_arrive_on_the_cpu(tmp_path):
    path, source, model = tmp_path / "vit.pth", random_vit(), small_vit()
    torch.save(source.state_dict(), path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes().replace(b"X\x03\0\0\0cpu", b"X\x06\0\0\0cuda:0"))
    assert b"cuda:0" in path.read_bytes()
    load_pretrained(model, str(path))
    assert torch.equal(logits(model), logits(source))


def test_half_precision_weights_arrive_in_the_models_type(tmp_path):
    source, model = random_vit().half(), small_vit()
    safetensors.torch.save_file(source.state_dict(), tmp_path / "vit.safetensors")
    load_pretrained(model, str(tmp_path / "vit.safetensors"))
    assert model.head.weight.dtype == torch.float32
    assert torch.equal(logits(model), logits(source.float()))


def test_the_ending_may_be_left_out_and_pdparams_comes_first(tmp_path):
    for name in ("vit.pth", "vit.pdparams", "vit.v2.npz"):
        (tmp_path / name).touch()
    assert find_weights(str(tmp_path / "vit")) == tmp_path / "vit.pdparams"
    assert find_weights(str(tmp_path / "vit.pth")) == tmp_path / "vit.pth"
    assert find_weights(str(tmp_path / "vit.v2")) == tmp_path / "vit.v2.npz"


# How they are fitted to the model


@pytest.mark.parametrize("size", [16, 48])
@pytest.mark.parametrize("no_embed_class", [False, True])
def test_position_embeddings_are_interpolated_as_timm_does(tmp_path, size, no_embed_class):
    source = random_vit(no_embed_class=no_embed_class)
    model = small_vit(img_size=size, no_embed_class=no_embed_class)
    torch.save(source.state_dict(), tmp_path / "vit.pth")
    lines = load_pretrained(model, str(tmp_path / "vit.pth"))
    side, prefix_tokens = size // 8, 0 if no_embed_class else 1
    expected = resample_abs_pos_embed(source.pos_embed, [side, side], num_prefix_tokens=prefix_tokens)
    assert torch.equal(model.pos_embed, expected) and model.pos_embed.requires_grad
    assert f"pos_embed: interpolated from 4x4 to {side}x{side}" in lines
    source.set_input_size(img_size=size)
    torch.testing.assert_close(logits(model, size), logits(source, size))


@pytest.mark.parametrize(("name", "head"), [("resnet18", "fc"), ("test_vit", "head"), ("test_convnext", "head.fc")])
def test_a_head_of_another_class_count_stays_new(tmp_path, name, head):
    source = timm.create_model(name, num_classes=7)
    model, same = timm.create_model(name, num_classes=4), timm.create_model(name, num_classes=7)
    new_head = {key: tensor.clone() for key, tensor in model.state_dict().items() if key.startswith(f"{head}.")}
    torch.save(source.state_dict(), tmp_path / "weights.pth")
    lines = load_pretrained(model, str(tmp_path / "weights.pth"))
    assert f"{head}: 7 classes in the file, 4 in the model: new head" in lines
    own = model.state_dict()
    assert new_head.keys() == {f"{head}.weight", f"{head}.bias"}
    assert all(torch.equal(own[key], new_head.get(key, tensor)) for key, tensor in source.state_dict().items())
    assert not any("new head" in line for line in load_pretrained(same, str(tmp_path / "weights.pth")))
    assert torch.equal(same.state_dict()[f"{head}.weight"], source.state_dict()[f"{head}.weight"])


def test_a_file_without_a_head_gives_a_new_one(tmp_path):
    state = {name: tensor for name, tensor in random_vit().state_dict().items() if not name.startswith("head.")}
    torch.save(state, tmp_path / "vit.pth")
    model = small_vit()
    head = model.head.weight.clone()
    assert "head: none in the file: new head" in load_pretrained(model, str(tmp_path / "vit.pth"))
    assert torch.equal(model.head.weight, head)


@pytest.mark.parametrize("classes", [None, 7])
def test_an_evaluation_needs_the_head(tmp_path, classes):
    state = small_vit(num_classes=classes or 10).state_dict()
    torch.save({name: tensor for name, tensor in state.items() if classes or "head" not in name}, tmp_path / "vit.pth")
    model = small_vit()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(UserError, match=r"vit\.pth: cannot be evaluated, head: .*MODEL\.NUM_CLASSES"):
        load_pretrained(model, str(tmp_path / "vit.pth"), needs_head=True)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_both_heads_of_a_distilled_model(tmp_path):
    arguments = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 1, "num_heads": 3}
    make = timm.models.deit.VisionTransformerDistilled
    torch.save(make(num_classes=7, **arguments).state_dict(), tmp_path / "deit.pth")
    lines = load_pretrained(make(num_classes=4, **arguments), str(tmp_path / "deit.pth"))
    assert [line.split(":")[0] for line in lines if "new head" in line] == ["head", "head_dist"]


def test_unused_tensors_are_told(tmp_path):
    extra = {"pre_logits.fc.weight": torch.ones(1), "mask_token": torch.ones(1)}
    extra |= {f"decoder.{i}": torch.full((1,), torch.nan) for i in range(9)}
    torch.save(random_vit().state_dict() | extra, tmp_path / "vit.pth")
    lines = load_pretrained(small_vit(), str(tmp_path / "vit.pth"))
    assert lines[0].startswith(f"weights: {tmp_path / 'vit.pth'}")
    assert lines[1].startswith("pre_logits: dropped")
    assert lines[2].startswith("not used: mask_token, decoder.0,") and lines[2].endswith("and 2 more")


# What is refused: the model


def spoiled(name: str, tensor: torch.Tensor | None) -> dict[str, torch.Tensor]:
    state = dict(random_vit().state_dict())
    if tensor is None:
        del state[name]
    else:
        state[name] = tensor
    return state


@pytest.mark.parametrize(
    ("name", "tensor", "words"),
    [
        ("norm.bias", None, "tensors missing: norm.bias;"),
        ("head.bias", None, "tensors missing: head.bias;"),
        ("norm.bias", torch.ones(47), "norm.bias 47, not 48"),
        ("norm.bias", torch.tensor(1.0), "norm.bias scalar, not 48"),
        ("head.weight", torch.ones(10, 47), "head.weight 10x47, not 10x48"),
        ("head.weight", torch.ones(7, 47), "head.weight 7x47, not 10x48"),
        ("head.bias", torch.ones(7), "head.bias 7, not 10"),
        ("pos_embed", torch.ones(1, 18, 48), "pos_embed 1x18x48, not 1x17x48"),
        ("pos_embed", torch.ones(2, 10, 48), "pos_embed 2x10x48, not 1x17x48"),
        ("pos_embed", torch.ones(1, 12, 48), "pos_embed 1x12x48, not 1x17x48"),
        ("pos_embed", torch.ones(1, 10), "pos_embed 1x10, not 1x17x48"),
        ("pos_embed", torch.ones(1, 1, 48), "pos_embed 1x1x48, not 1x17x48"),
        ("norm.bias", torch.ones(48, dtype=torch.int64), "norm.bias torch.int64"),
        ("norm.bias", torch.ones(48, dtype=torch.complex64), "norm.bias torch.complex64"),
        ("norm.bias", torch.full((48,), torch.nan), "NaN or infinite values: norm.bias;"),
        ("norm.bias", torch.full((48,), -torch.inf), "NaN or infinite values: norm.bias;"),
        ("norm.bias", torch.full((48,), 1e300, dtype=torch.float64), "NaN or infinite values: norm.bias;"),
        ("norm.bias", torch.zeros(1).as_strided((10**12,), (0,)), "norm.bias claims numbers"),
        ("pos_embed", torch.zeros(1).as_strided((1, 10**12 + 1, 48), (0, 0, 0)), "pos_embed claims numbers"),
        ("unused", torch.zeros(1).as_strided((10**12,), (0,)), "unused claims numbers"),
        ("norm.bias", torch.ones(48, device="meta"), "norm.bias claims numbers"),
        ("norm.bias", torch.ones(48).to_sparse(), "norm.bias claims numbers"),
    ],
)
@pytest.mark.filterwarnings("ignore:Validating sparse tensor")
def test_a_tensor_that_does_not_fit(tmp_path, name, tensor, words):
    torch.save(spoiled(name, tensor), tmp_path / "vit.pth")
    assert words in refusal(tmp_path / "vit.pth")


def test_another_patch_size_is_no_matter_of_interpolation(tmp_path):
    torch.save(random_vit(patch_size=4).state_dict(), tmp_path / "vit.pth")
    assert "patch_embed.proj.weight 48x3x4x4, not 48x3x8x8" in refusal(tmp_path / "vit.pth")


def test_many_missing_tensors_are_counted(tmp_path):
    torch.save(random_vit(depth=1).state_dict(), tmp_path / "vit.pth")
    assert "blocks.1.norm1.weight, blocks.1.norm1.bias, blocks.1.attn.qkv.weight and 9 more" in refusal(
        tmp_path / "vit.pth"
    )


@pytest.mark.parametrize("ending", ["pth", "safetensors"])
def test_a_file_of_another_model(tmp_path, ending):
    path = tmp_path / f"resnet.{ending}"
    save = torch.save if ending == "pth" else safetensors.torch.save_file
    save({f"layer{i}\n\x1b[2J" + "x" * 1000: torch.ones(1) for i in range(9)}, path)
    message = refusal(path)
    assert "none of which this model has" in message and "and 6 more" in message and message.isprintable()


# What is refused: the file


def test_a_missing_file_names_what_was_tried(tmp_path):
    message = refusal(tmp_path / "vit")
    assert all(ending in message for ending in (".pdparams", ".safetensors", ".pth", ".pt", ".npz"))
    (tmp_path / "vit").mkdir()
    assert "no such file" in refusal(tmp_path / "vit")
    assert "no such file" in refusal("/x" * 5000)


def test_an_unknown_ending(tmp_path):
    (tmp_path / "vit.onnx").touch()
    assert "the ending says no kind of weights" in refusal(tmp_path / "vit.onnx")


def test_a_file_that_cannot_be_read(tmp_path, monkeypatch):
    def denied(*_, **__):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "vit.safetensors").touch()
    monkeypatch.setattr("models.weights.load_file", denied)
    assert "Permission denied" in refusal(tmp_path / "vit.safetensors")


def written(folder: Path, ending: str) -> Path:
    path, model = folder / f"vit.{ending}", random_vit(embed_dim=12, depth=1)
    if ending == "pdparams":
        path.write_bytes((FIXTURE / "checkpoint.pdparams").read_bytes())
    elif ending == "npz":
        np.savez(path, **google_arrays(model))
    elif ending == "safetensors":
        safetensors.torch.save_file(model.state_dict(), path)
    else:
        torch.save(model.state_dict(), path)
    return path


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
def test_one_kind_under_the_ending_of_another(tmp_path, ending):
    for other in {"pdparams", "safetensors", "pth", "npz"} - {ending}:
        written(tmp_path, other).rename(tmp_path / f"other.{ending}")
        refusal(tmp_path / f"other.{ending}")


@pytest.mark.parametrize("ending", ["pdparams", "safetensors", "pth", "npz"])
def test_flipped_bytes_raise_nothing_but_a_user_error(tmp_path, ending):
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


def test_a_damaged_checkpoint_of_ours(tmp_path):
    path = tmp_path / "last.pth"
    save_sealed(path, {"format": 1, "model": random_vit().state_dict(), "ema": None})
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert "checksum" in refusal(path)


def test_torch_files_without_tensors(tmp_path):
    itself = {}
    itself["model"] = itself
    for content in (torch.ones(3), [torch.ones(3)], {}, {"model": {}}, {"epoch": 1}, itself):
        torch.save(content, tmp_path / "vit.pth")
        assert "holds no dict of tensors" in refusal(tmp_path / "vit.pth")


def test_pdparams_of_another_model(tmp_path):
    state = {"features.0.weight": np.ones(1, "f4"), "features.1.weight": np.ones(1, "f4")}
    message = refusal(pickled(tmp_path / "swin.pdparams", paddle_state() | state))
    assert "features.0.weight, features.1.weight" in message and "PaddleViT" in message


@pytest.mark.parametrize("value", [np.ones(48, "i8"), np.array([None]), "text", 1.0, None, ("name",), [1.0], {}])
def test_pdparams_with_something_else_for_an_array(tmp_path, value):
    path = pickled(tmp_path / "vit.pdparams", paddle_state() | {"encoder.encoder_norm.bias": value})
    assert "encoder.encoder_norm.bias is no array of floating-point numbers" in refusal(path)


def test_pdparams_with_a_shape_beyond_its_bytes(tmp_path):
    content = pickle.dumps({"cls_token": np.ones((1, 1, 48), "f4")}, protocol=2)
    shape, absurd = b"K\x01K\x01K0\x87", b"K\x01K\x01\x8a\x06" + (10**12).to_bytes(6, "little") + b"\x87"
    assert content.count(shape) == 1
    (tmp_path / "vit.pdparams").write_bytes(content.replace(shape, absurd))
    assert "is damaged" in refusal(tmp_path / "vit.pdparams")


def test_pdparams_that_claims_to_remember_more_than_there_is(tmp_path):
    """The unpickler would make room for all of them: 2 ** 24 take 256 MB, 2 ** 32 the whole machine."""
    (tmp_path / "vit.pdparams").write_bytes(b"\x80\x04}r" + (2**24).to_bytes(4, "little") + b".")
    assert "is damaged" in refusal(tmp_path / "vit.pdparams")


@pytest.mark.parametrize("content", [None, [1], {"model": 3}, np.ones(3)])
def test_pdparams_without_a_dict(tmp_path, content):
    assert "holds no dict of weights" in refusal(pickled(tmp_path / "vit.pdparams", content))


def test_pdparams_with_nothing_in_it(tmp_path):
    assert "holds nothing," in refusal(pickled(tmp_path / "vit.pdparams", {"model": {}}))


def test_npz_with_a_shape_beyond_its_bytes(tmp_path):
    path = written(tmp_path, "npz")
    shape = b"'shape': (12,), "
    content = path.read_bytes()
    assert shape in content
    path.write_bytes(content.replace(shape, b"'shape': (9**9,)"[: len(shape)]))
    refusal(path)


def test_npz_of_something_else(tmp_path):
    np.savez(tmp_path / "data.npz", images=np.ones(3), labels=np.ones(3))
    assert "images, labels, not Google's ViT" in refusal(tmp_path / "data.npz")


# What is refused: code


class Bomb:
    """Writes a file when unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return os.system, (f"touch {self.target}",)


@pytest.fixture
def bomb(tmp_path):
    pickle.loads(pickle.dumps(Bomb(tmp_path / "proof")))
    assert (tmp_path / "proof").exists(), "the bomb must be live for these tests to say something"
    yield Bomb(tmp_path / "exploded")
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_no_code_runs_from_pdparams(tmp_path, bomb, protocol):
    forbidden = f"{os.system.__module__}.system"
    for content in (bomb, {"a": bomb}, {"model": paddle_state(), "optimizer": [bomb]}, {bomb.target.name: (1, bomb)}):
        assert f"asks for {forbidden}," in refusal(pickled(tmp_path / "vit.pdparams", content, protocol))


@pytest.mark.parametrize(
    "called", ["builtins eval", "numpy load", "numpy fromfile", "numpy ndarray.load", "collections deque", "os system"]
)
def test_pdparams_may_name_nothing_else(tmp_path, called):
    (tmp_path / "vit.pdparams").write_bytes(b"c%b\n(S'x'\ntR." % called.replace(" ", "\n").encode())
    assert f"asks for {called.replace(' ', '.')}," in refusal(tmp_path / "vit.pdparams")


@pytest.mark.parametrize("content", [b"\x80\x02X\x01\x00\x00\x00aQ.", b"Pa\n."])
def test_pdparams_refer_to_nothing_outside(tmp_path, content):
    (tmp_path / "vit.pdparams").write_bytes(content)
    assert "is damaged" in refusal(tmp_path / "vit.pdparams")


@pytest.mark.parametrize("zipped", [True, False])
def test_no_code_runs_from_torch_files(tmp_path, bomb, zipped):
    for content in (bomb, {"model": random_vit().state_dict(), "args": bomb}):
        torch.save(content, tmp_path / "vit.pth", _use_new_zipfile_serialization=zipped)
        assert f"asks for {os.system.__module__}.system," in refusal(tmp_path / "vit.pth")


def test_a_whole_pickled_module_is_refused_by_name(tmp_path):
    torch.save(torch.nn.Linear(2, 2), tmp_path / "vit.pth")
    assert "asks for torch.nn.modules.linear.Linear," in refusal(tmp_path / "vit.pth")


def test_no_code_runs_from_npz(tmp_path, bomb):
    arrays = google_arrays(random_vit()) | {"cls": np.array([bomb], dtype=object)}
    np.savez(tmp_path / "vit.npz", allow_pickle=True, **arrays)
    refusal(tmp_path / "vit.npz")


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("ending", ["safetensors", "npz", "pth", "pt"])
def test_no_code_runs_from_a_plain_pickle_under_another_ending(tmp_path, bomb, ending):
    refusal(pickled(tmp_path / f"vit.{ending}", bomb))
