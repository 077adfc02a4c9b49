"""The authors' names of tensors: of the models of PyTorch, and of PaddleViT before March 2022."""

from functools import partial

import torch
from conftest import cells_of, refused
from pytest import mark
from timm import create_model
from torch import nn
from torch.testing import assert_close
from weight_files import loaded, logits, pickled, prefixed, randomized, renamed, vit

from configs.schema.families.family import TimmModel
from configs.schema.families.plain import DeiT
from configs.schema.families.registry import MODEL_SECTIONS
from configs.schema.model import Model
from configs.yaml_io import parse_value
from models.weights.choose import EVALUATE
from models.weights.fit import load_pretrained


def swin() -> nn.Module:
    return create_model("swin_tiny_patch4_window7_224", **SWIN)


SWIN = parse_value(
    "{embed_dim: 8, depths: [1, 1, 1], num_heads: [1, 2, 4], img_size: 32, window_size: 2, num_classes: 5}"
)
SWIN_NAMES = {r"(?<=layers\.)(\d)(?=\.downsample)": lambda match: str(int(match[1]) - 1), r"^head\.fc\.": "head."}
CONVNEXT = parse_value("{depths: [1, 1, 2, 1], dims: [8, 16, 24, 32], num_classes: 5}")
CONVNEXT_NAMES = dict(
    cells_of(r"""
^stem\. | downsample_layers.0.
stages\.(\d)\.downsample\. | downsample_layers.\1.
stages\.(\d)\.blocks\. | stages.\1.
conv_dw | dwconv
mlp\.fc | pwconv
^head\.norm | norm
^head\.fc | head
""")
)
GRN_NAMES = {r"mlp\.grn\.bias": "grn.beta", r"mlp\.grn\.weight": "grn.gamma"}


def registers(model: nn.Module) -> dict:
    """DINOv2's: the class token has a position of its own."""
    state = renamed(model, {"reg_token": "register_tokens"}) | {"mask_token": torch.zeros(1, 48)}
    position = torch.full((1, 1, 48), 0.5)
    positions = torch.cat([position, state["pos_embed"]], dim=1)
    return state | {"cls_token": state["cls_token"] - position, "pos_embed": positions}


def dinov3(model: nn.Module) -> dict:
    """The official names: one bias of query, key and value, which is zero for the key."""
    state = renamed(model, {r"gamma_(\d)": r"ls\1.gamma", "reg_token": "storage_tokens"})
    for name in [name for name in state if name.endswith("q_bias")]:
        query = state.pop(name)
        value = state.pop(name.replace("q_bias", "v_bias"))
        joined = name.replace("q_bias", "qkv.bias")
        state[joined] = torch.cat([query, torch.zeros_like(query), value])
        state[f"{joined}_mask"] = torch.full((3 * len(query),), torch.nan)
    return state | {"mask_token": torch.ones(1, 48), "rope_embed.periods": torch.ones(16)}


def convnext_v2(model: nn.Module) -> dict:
    state = renamed(model, CONVNEXT_NAMES | GRN_NAMES)
    for name in state:
        if "grn" in name:
            state[name] = state[name].view(1, 1, 1, -1)
    return state


OF_TORCHVISION = dict(
    cells_of(r"""
^blocks\.(\d+) | encoder.layers.encoder_layer_\1
^cls_token | class_token
^pos_embed | encoder.pos_embedding
patch_embed\.proj | conv_proj
^norm\. | encoder.ln.
\.norm(\d) | .ln_\1
attn\.qkv\. | self_attention.in_proj_
attn\.proj | self_attention.out_proj
mlp\.fc1 | mlp.0
mlp\.fc2 | mlp.3
^head | heads.head
""")
)
OF_MMPRETRAIN = dict(
    cells_of(r"""
^blocks | layers
patch_embed\.proj | patch_embed.projection
^norm\. | ln1.
\.norm(\d) | .ln\1
mlp\.fc1 | ffn.layers.0.0
mlp\.fc2 | ffn.layers.1
""")
)
AUTHORS = {  # the model, and its names: a table or what gives the state
    "torchvision's ViT": (vit, OF_TORCHVISION),
    "MMPretrain's ViT": (vit, OF_MMPRETRAIN),
    "DINOv3 with biases": (partial(vit, "vit_tiny_patch16_dinov3_qkvb", num_classes=5), dinov3),
    "Swin": (
        swin,
        lambda model: renamed(model, SWIN_NAMES) | {"layers.0.blocks.0.attn.relative_position_index": torch.ones(4)},
    ),
    "ConvNeXt": (partial(create_model, "convnext_tiny", **CONVNEXT), CONVNEXT_NAMES),
    "ConvNeXt V2": (partial(create_model, "convnextv2_tiny", **CONVNEXT), convnext_v2),
    "DeiT III": (partial(vit, "deit3_small_patch16_224"), {r"\.ls(\d)\.gamma": r".gamma_\1"}),
    "DINOv2 with registers": (partial(vit, reg_tokens=4, no_embed_class=True, init_values=1e-5), registers),
    "BEiT": (partial(vit, "beit_base_patch16_224"), {}),
}


@mark.parametrize("author", AUTHORS)
def test_the_names_of_the_authors(saved, author):
    build, names = AUTHORS[author]
    source = randomized(build())
    original = names(source) if callable(names) else renamed(source, names)
    wrapped = {"state_dict": prefixed("module.", original)}
    for content in (original, {"model": original, "optimizer": {}}, wrapped):
        model = loaded(saved(content), build().eval(), purpose=EVALUATE)
        assert_close(logits(model), logits(source), rtol=1e-5, atol=1e-5)


def test_biases_of_dinov3_that_a_model_lacks_are_refused_unless_they_are_zero(saved):
    state = dinov3(randomized(vit("vit_small_patch16_dinov3_qkvb")))
    model = vit("vit_small_patch16_dinov3")
    path = saved(state)
    with refused(r"no place for: blocks.0.attn.qkv.bias"):
        load_pretrained(model, path, TimmModel(NAME="vit_small_patch16_dinov3.lvd1689m"))
    loaded(saved({k: 0 * v if k.endswith("qkv.bias") else v for k, v in state.items()}), model)


OLD_VIT = dict(
    cells_of(r"""
^cls_token | patch_embedding.cls_token
^pos_embed | patch_embedding.position_embeddings
^patch_embed\.proj | patch_embedding.patch_embedding
^blocks | encoder.layers
\.norm1\. | .attn_norm.
\.norm2\. | .mlp_norm.
\.attn\.proj\. | .attn.out.
^norm\. | encoder.encoder_norm.
^head\. | classifier.
""")
)
FIRST_VIT = OLD_VIT | {
    "^patch_embedding.patch_embedding": "patch_embedding.patch_embeddings", "^patch_embedding": "embeddings",
    "^(embeddings|encoder)": r"transformer.\1"
}  # fmt: skip
OLD_DEIT = {
    "^cls_token": "class_token", "^dist_token": "distill_token", "^blocks": "layers", "^head_dist": "head_distill"
}  # fmt: skip
PADDLE = {  # name -> the model, the section MODEL, PaddlePaddle's names
    "ViT of 2021": (vit, Model(), OLD_VIT),
    "ViT of June 2021": (vit, Model(), FIRST_VIT),
    "DeiT of 2021": (partial(vit, "deit_tiny_distilled_patch16_224"), DeiT(DISTILLED=True), OLD_DEIT),
    "PaddleClas, ViT": (vit, Model(), {}),
    "PaddleClas, Swin": (swin, MODEL_SECTIONS["swin"](), SWIN_NAMES),
}


@mark.parametrize("version", PADDLE)
def test_paddlevits_names_before_march_2022_and_paddleclas(tmp_path, version):
    build, options, names = PADDLE[version]
    source = randomized(build())
    arrays = {}
    for name, tensor in renamed(source, names).items():
        is_linear = tensor.ndim == 2 and name.endswith(".weight")
        arrays[name] = (tensor.t() if is_linear else tensor).numpy()
    path = pickled(tmp_path / "x.pdparams", arrays)
    model = loaded(path, build().eval(), options=options, purpose=EVALUATE)
    assert_close(logits(model), logits(source), rtol=1e-5, atol=1e-5)
