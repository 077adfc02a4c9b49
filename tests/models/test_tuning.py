"""MODEL.TUNE: the frozen part has no graph and keeps no activations; adapters, beside peft."""

import weakref

import torch
from conftest import cli, config_for, each_row, model_for
from pytest import importorskip, mark
from timm import create_model
from torch import nn

from configs.schema.model import Lora
from models.tuning import add_adapters, merge_adapters, set_training, write_peft_folder

VIT = cli("MODEL.EMBED_DIM=24 MODEL.DEPTH=4 MODEL.NUM_HEADS=3 MODEL.NUM_CLASSES=5")
IMAGES = torch.randn(4, 3, 32, 32)
NORM_AND_HEAD = {"norm.weight", "norm.bias", "head.weight", "head.bias"}


def tuned_model(*options: str, size: int = 32, device: str = "cpu") -> nn.Module:
    """In training mode."""
    config = config_for(f"-image_size={size}", "-opts", *options)
    torch.manual_seed(0)
    model, _ = model_for(config, device)
    set_training(model, config.model)
    return model


def trained(model: nn.Module) -> set[str]:
    """The first two parts of the names of trained parameters."""
    return {".".join(name.split(".")[:2]) for name, value in model.named_parameters() if value.requires_grad}


class Kept:
    """A tensor that a graph keeps."""

    def __init__(self, tensor):
        self.tensor = tensor


def kept_bytes(model: nn.Module) -> int:
    """The activations that are kept for the backward pass."""
    kept = weakref.WeakSet()
    weights = {tensor.untyped_storage()._cdata for tensor in model.state_dict().values()}

    def pack(tensor):
        kept.add(one := Kept(tensor))
        return one

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one.tensor):
        loss = model(IMAGES).sum()
    storages = {one.tensor.untyped_storage()._cdata: one.tensor.untyped_storage() for one in kept}
    loss.backward()
    return sum(storage.nbytes() for address, storage in storages.items() if address not in weights)


def test_last_blocks_and_the_norm_after_them_are_trained():
    model = tuned_model(*VIT, "MODEL.TUNE=last:2", "MODEL.DROPOUT=0.5")
    assert trained(model) == NORM_AND_HEAD | {"blocks.2", "blocks.3"}
    in_training = {path for path, module in model.named_modules() if module.training}
    assert in_training > {*cli("blocks.3.attn.proj_drop norm head_drop head")}
    assert not in_training & {*cli("pos_drop blocks.1 blocks.1.attn.proj_drop")}


OF_TIMM = """
name | tune | expected
swin_tiny_patch4_window7_224 | last:3 | layers.2 layers.3 norm.weight norm.bias head.fc
xcit_nano_12_p16_224 | last:1 | cls_attn_blocks.1 norm.weight norm.bias head.weight head.bias
"""


@each_row(OF_TIMM)
def test_blocks_are_those_of_the_group_matcher(name, tune, expected):
    with torch.device("meta"):
        model = tuned_model(f"MODEL={{TYPE: timm, NAME: {name}, TUNE: '{tune}'}}", size=224, device="meta")
    assert trained(model) == {*expected.split()}


@mark.parametrize("extra", [(), ("MODEL.GRAD_CHECKPOINTING=true",)])
def test_activations_are_kept_for_the_trained_blocks_only(extra):
    """head: the input of the head, a view of all tokens. last:1: of one of four blocks, too."""
    kinds = ("full", "last:1", "head")
    full, last, head = (kept_bytes(tuned_model(*VIT, *extra, f"MODEL.TUNE={kind}")) for kind in kinds)
    assert head == 4 * 5 * 24 * 4
    assert head < last < full / 4


def timms_vit() -> nn.Module:
    return create_model("vit_tiny_patch16_224", img_size=32, depth=2, embed_dim=48, num_heads=3, num_classes=5)


def adapted(**options) -> nn.Module:
    torch.manual_seed(0)
    model = timms_vit().eval()
    add_adapters(model, Lora.model_validate(options), "vit")
    return model


def adapters(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: value for name, value in model.named_parameters() if ".lora_" in name}


def randomize(model: nn.Module) -> nn.Module:
    for parameter in adapters(model).values():
        nn.init.normal_(parameter, std=0.1)
    return model


def test_adapters_start_without_effect_and_merge_by_the_formula():
    model = adapted(RANK=4, ALPHA=6)
    plain = timms_vit()
    before = {name: model.state_dict()[name].clone() for name in plain.state_dict()}
    plain.eval().load_state_dict(before)
    assert torch.equal(model(IMAGES), plain(IMAGES))
    state = randomize(model).state_dict()
    merged = merge_adapters(state, alpha=6)
    plain.load_state_dict(merged)
    assert torch.equal(model(IMAGES), plain(IMAGES))
    for path in ("blocks.0.attn.qkv", "blocks.1.mlp.fc2"):
        a = state[f"{path}.lora_A"].double()
        b = state[f"{path}.lora_B"].double()
        expected = before[f"{path}.weight"].double() + 6 / 4 * torch.einsum("or,ri->oi", b, a)
        assert torch.allclose(merged[f"{path}.weight"].double(), expected, rtol=0, atol=1e-6)


def test_dropout_drops_columns_of_a_in_training_only():
    layer = randomize(adapted(RANK=48, ALPHA=48, DROPOUT=0.25, TARGETS=["blocks.0.attn.proj"])).blocks[0].attn.proj
    layer.lora_B.data = torch.eye(48)
    base = layer._parameters["weight"]
    delta = layer.lora_A
    assert torch.allclose(layer.weight, base + delta)
    columns = (layer.train().weight - base) / delta
    assert torch.allclose(columns, columns[:1].expand(48, 48), atol=1e-3)
    assert set(columns[0].mul(3).round().int().tolist()) == {0, 4}  # 1 / (1 - 0.25) of the kept ones


def test_targets_are_paths_or_their_ends():
    model = adapted(TARGETS=["qkv", "blocks.1.mlp.fc1"])
    layers = {name.rpartition(".")[0] for name in adapters(model)}
    assert layers == {"blocks.0.attn.qkv", "blocks.1.attn.qkv", "blocks.1.mlp.fc1"}
    frozen = {name for name, value in model.named_parameters() if not value.requires_grad}
    assert frozen == timms_vit().state_dict().keys() - {"head.weight", "head.bias"}


def test_peft_opens_the_folder_with_the_same_outputs_and_gradients(tmp_path):
    peft = importorskip("peft")
    model = randomize(adapted(RANK=4, ALPHA=6))
    base = timms_vit()
    base.load_state_dict(model.state_dict(), strict=False)
    nn.init.normal_(base.head.weight)  # the folder has the trained head
    saved = {"model": model.state_dict(), "state_dict_ema": None}
    write_peft_folder(tmp_path / "best.pth", saved, model, Lora(RANK=4, ALPHA=6))
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "adapter", is_trainable=True).eval()
    logits = [one(IMAGES) for one in (model, theirs)]
    assert torch.allclose(*logits, rtol=1e-4, atol=1e-5)
    for one in logits:
        one.logsumexp(1).square().sum().backward()
    ours, found = ([value.grad for value in one.parameters() if value.grad is not None] for one in (model, theirs))
    assert len(ours) == 18
    for expected, gradient in zip(ours, found, strict=True):
        assert torch.allclose(gradient, expected, rtol=1e-3, atol=1e-4 * expected.abs().max())
