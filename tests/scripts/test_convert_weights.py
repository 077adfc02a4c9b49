"""scripts/convert_weights.py: round trips between the four kinds of weight files, equal bit by bit."""

from pathlib import Path

import numpy as np
import pytest
import torch

from models.weights.pdparams import read_pdparams
from models.weights.read import read_weights
from scripts.convert_weights import convert, main
from utils.errors import UserError

FIXTURES = Path(__file__).parents[1] / "fixtures"
VIT = FIXTURES / "paddlevit_small"
INVERTIBLE = ["BEiT", "CaiT", "ConvNeXt", "DeiT", "DeiT_plain", "MAE", "MLP-Mixer", "ResMLP", "VOLO", "gMLP"]


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype and torch.equal(tensor, other[name]), name


@pytest.mark.parametrize(
    "chain",
    [
        (".safetensors", ".npz", ".pth", ".pdparams"),
        (".pth", ".npz", ".pdparams", ".safetensors"),
        (".npz", ".safetensors", ".pdparams", ".npz"),
    ],
)
def test_a_vit_keeps_its_bits_in_every_kind(chain, tmp_path):
    source = VIT / "vit.pdparams"
    original = read_weights(str(source))
    for number, kind in enumerate(chain):
        target = tmp_path / f"{number}{kind}"
        convert(source, target, [f"-cfg={VIT / 'vit.yaml'}"])
        assert_equal(read_weights(str(target)), original)
        source = target


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_keep_their_bits(dtype, tmp_path):
    state = {name: tensor.to(dtype) for name, tensor in read_weights(str(VIT / "vit.pdparams")).items()}
    source = tmp_path / "0.pth"
    torch.save(state, source)
    for number, kind in enumerate((".npz", ".pdparams", ".safetensors", ".pth"), start=1):
        target = tmp_path / f"{number}{kind}"
        convert(source, target, [f"-cfg={VIT / 'vit.yaml'}"])
        assert_equal(read_weights(str(target)), state)
        source = target


def test_google_arrays_have_its_shapes(tmp_path):
    convert(VIT / "vit.pdparams", tmp_path / "vit.npz", [f"-cfg={VIT / 'vit.yaml'}"])
    state = read_weights(str(VIT / "vit.pdparams"))
    arrays = np.load(tmp_path / "vit.npz")
    width = state["cls_token"].shape[-1]
    query = arrays["Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel"]
    assert query.shape[0] == width and query.shape[1] * query.shape[2] == width
    assert np.array_equal(query[:, 1, 2], state["blocks.0.attn.qkv.weight"][query.shape[2] + 2].numpy())
    out = arrays["Transformer/encoderblock_0/MultiHeadDotProductAttention_1/out/kernel"]
    assert out.shape == (*query.shape[1:], width)
    assert arrays["embedding/kernel"].shape[2:] == (state["patch_embed.proj.weight"].shape[1], width)
    assert "Transformer/encoder_norm/scale" in arrays.files and "head/kernel" in arrays.files


@pytest.mark.parametrize("name", INVERTIBLE)
def test_a_family_becomes_paddlevits_file_again(name, tmp_path):
    """The names and arrays are those that PaddlePaddle wrote, without the tables that PaddleViT computes itself."""
    folder = FIXTURES / "families" / name
    flags = [f"-cfg={folder / 'model.yaml'}"]
    convert(folder / "weights.pdparams", tmp_path / "a.safetensors", flags)
    convert(tmp_path / "a.safetensors", tmp_path / "b.pdparams", flags)
    theirs = read_pdparams(folder / "weights.pdparams")
    assert_equal(
        read_pdparams(tmp_path / "b.pdparams"),
        {key: tensor for key, tensor in theirs.items() if "relative_position_index" not in key},
    )


@pytest.mark.parametrize("name", ["SwinTransformer", "XCiT", "LeViT"])
def test_a_family_whose_names_cannot_be_inverted_is_refused(name, tmp_path):
    folder = FIXTURES / "families" / name
    flags = [f"-cfg={folder / 'model.yaml'}"]
    convert(folder / "weights.pdparams", tmp_path / "a.pth", flags)
    with pytest.raises(UserError, match=r"cannot become .pdparams: the table of PaddleViT's names .* one direction"):
        convert(tmp_path / "a.pth", tmp_path / "b.pdparams", flags)
    with pytest.raises(UserError, match=r"cannot become .npz: Google has names for a ViT only"):
        convert(tmp_path / "a.pth", tmp_path / "b.npz", flags)
    assert [path.name for path in tmp_path.iterdir()] == ["a.pth"]


def test_a_tensor_without_a_name_is_named(tmp_path):
    state = read_weights(str(VIT / "vit.pdparams")) | {"reg_token": torch.ones(1)}
    torch.save(state, tmp_path / "a.pth")
    for kind in (".npz", ".pdparams"):
        with pytest.raises(UserError, match="no name for reg_token"):
            convert(tmp_path / "a.pth", tmp_path / f"b{kind}", [f"-cfg={VIT / 'vit.yaml'}"])


def test_another_model_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"is not of this model .* name its model with -cfg or -model"):
        convert(VIT / "vit.pdparams", tmp_path / "b.npz", [])


@pytest.mark.parametrize("kind, is_noted", [(".npz", True), (".pdparams", True), (".pth", False)])
def test_what_is_lost_is_said(kind, is_noted, tmp_path, capsys):
    target = tmp_path / f"a{kind}"
    assert main([str(VIT / "vit.pdparams"), str(target), f"-cfg={VIT / 'vit.yaml'}"]) == 0
    note = f"class names and preprocessing are not kept in {kind}; give -cfg=RUN/config.yaml with -pretrained={target}"
    assert (note in capsys.readouterr().out) == is_noted


def test_wrong_arguments_are_one_line(tmp_path):
    source = str(VIT / "vit.pdparams")
    for argv, message in (
        ([], "the first two arguments"),
        ([source], "unknown flag|the first two arguments"),
        ([source, "-cfg=x.yaml"], "the first two arguments"),
        ([source, str(tmp_path / "a.onnx")], "unknown file extension"),
        ([source, source], "is the file to convert"),
        ([str(VIT), str(tmp_path / "a.npz")], "is a folder; give a file in it, such as .*best.pth"),
        (["gone.pth", str(tmp_path / "a.npz")], "no such file"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            main(argv)
        assert "\n" not in str(caught.value)
