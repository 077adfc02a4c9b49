"""Low-rank adapters: the effective weight, its gradients and its merge, beside peft and in each family."""

import pytest
import timm
import torch
from torch import nn

from configs.schema.model import Lora
from models.tuning.lora import add_adapters, merge_adapters, write_peft_folder

VIT = {"depth": 2, "embed_dim": 48, "num_heads": 3, "img_size": 32, "num_classes": 5}


def adapted(name: str = "vit_tiny_patch16_224", arguments: dict | None = None, **options) -> nn.Module:
    torch.manual_seed(0)
    model = timm.create_model(name, **(VIT if arguments is None else arguments)).eval()
    add_adapters(model, Lora.model_validate(options), name)
    return model


def adapters(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: value for name, value in model.named_parameters() if ".lora_" in name}


def randomize(model: nn.Module) -> nn.Module:
    for parameter in adapters(model).values():
        nn.init.normal_(parameter, std=0.1)
    return model


def test_adapters_start_without_effect_and_merge_by_the_formula():
    images, model = torch.randn(2, 3, 32, 32), adapted(RANK=4, ALPHA=6)
    plain = timm.create_model("vit_tiny_patch16_224", **VIT)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items() if ".lora_" not in name}
    plain.eval().load_state_dict(before)
    assert torch.equal(model(images), plain(images))
    state = randomize(model).state_dict()
    merged = merge_adapters(state, alpha=6)
    plain.load_state_dict(merged)
    assert torch.equal(model(images), plain(images))
    for path in ("blocks.0.attn.qkv", "blocks.1.mlp.fc2"):
        a, b = state[f"{path}.lora_A"].double(), state[f"{path}.lora_B"].double()
        expected = before[f"{path}.weight"].double() + 6 / 4 * torch.einsum("or,ri->oi", b, a)
        assert torch.allclose(merged[f"{path}.weight"].double(), expected, rtol=0, atol=1e-6)


def test_dropout_drops_columns_of_a_in_training_only():
    layer = randomize(adapted(RANK=48, ALPHA=48, DROPOUT=0.25, TARGETS=["blocks.0.attn.proj"])).blocks[0].attn.proj
    layer.lora_B.data = torch.eye(48)
    base, delta = layer._parameters["weight"], layer.lora_A
    assert torch.allclose(layer.weight, base + delta)
    columns = (layer.train().weight - base) / delta
    assert torch.allclose(columns, columns[:1].expand(48, 48), atol=1e-3)
    assert set(columns[0].mul(3).round().int().tolist()) == {0, 4}  # 1 / (1 - 0.25) of the kept ones


def test_targets_are_paths_or_their_ends():
    model = adapted(TARGETS=["qkv", "blocks.1.mlp.fc1"])
    layers = {name.rpartition(".")[0] for name in adapters(model)}
    assert layers == {"blocks.0.attn.qkv", "blocks.1.attn.qkv", "blocks.1.mlp.fc1"}
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    assert trained == adapters(model).keys() | {"head.weight", "head.bias"}


def test_peft_opens_the_folder_with_the_same_outputs_and_gradients(tmp_path):
    peft = pytest.importorskip("peft")
    model = randomize(adapted(RANK=4, ALPHA=6))
    base = timm.create_model("vit_tiny_patch16_224", **VIT)
    base.load_state_dict({name: value for name, value in model.state_dict().items() if name in base.state_dict()})
    nn.init.normal_(base.head.weight)  # the folder has the trained head
    write_peft_folder(tmp_path / "best.pth", {"model": model.state_dict(), "ema": None}, model, Lora(RANK=4, ALPHA=6))
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "adapter", is_trainable=True).eval()
    images = torch.randn(4, 3, 32, 32)
    logits = [one(images) for one in (model, theirs)]
    assert torch.allclose(*logits, rtol=1e-4, atol=1e-5)
    for one in logits:
        one.logsumexp(1).square().sum().backward()
    found = {name: value.grad for name, value in theirs.named_parameters() if value.grad is not None}
    ours = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    assert len(found) == len(ours) == 18
    for name, gradient in found.items():
        name = name.removeprefix("base_model.model.").replace(".default", "").replace("modules_to_save.", "")
        expected = ours[name.removesuffix(".weight") if ".lora_" in name else name]
        assert torch.allclose(gradient, expected, rtol=1e-3, atol=1e-4 * expected.abs().max()), name
