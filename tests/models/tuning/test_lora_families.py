"""In each family with attention each adapter gets a gradient in two steps, or the family is refused by name."""

from pathlib import Path

import pytest
import timm
import torch
from torch import nn

from configs.reading.command_line import parse_command_line
from configs.schema.model import Lora
from models.build import build_model
from models.tuning.frozen import set_training
from models.tuning.lora import add_adapters
from utils.errors import UserError
from utils.torch_compat import tree_leaves

FIXTURES = Path(__file__).parents[2] / "fixtures" / "families"
SMALL = {"depth": 2, "embed_dim": 48, "num_heads": 3, "img_size": 32}
TIMM = {  # arguments; None: the family is refused
    "eva02_tiny_patch14_224": SMALL | {"img_size": 28},
    "focalnet_tiny_srf": None,
    "swinv2_cr_tiny_224": {"embed_dim": 24, "depths": (1, 2, 1, 1), "num_heads": (1, 2, 4, 8), "img_size": 64},
    "vit_base_patch16_siglip_224": SMALL,
}
PADDLE = ["CaiT", "CrossViT", "HaloNet", "PoolFormer", "SwinTransformer", "VOLO"]
REFUSED_PADDLE = {"HaloNet", "PoolFormer"}


def without_gradients(model: nn.Module, images: torch.Tensor) -> list[str]:
    """The adapters of which A or B has no gradient in two steps of SGD."""
    set_training(model, "lora")
    with torch.no_grad():  # initial values of zero, of heads, norms and layer scales, are no values of trained weights
        for parameter in model.parameters():
            if not parameter.any():
                parameter.normal_(std=0.02)
    adapters = {name: value for name, value in model.named_parameters() if ".lora_" in name}
    for name, value in adapters.items():
        if name.endswith("B"):
            nn.init.zeros_(value)
    optimizer = torch.optim.SGD([value for value in model.parameters() if value.requires_grad], lr=0.1)
    found = set()
    for _ in range(2):
        loss = sum(output.logsumexp(-1).sum() for output in tree_leaves(model(images)))
        loss.backward()
        found |= {name for name, value in adapters.items() if value.grad is not None and value.grad.any()}
        optimizer.step()
        optimizer.zero_grad()
    assert adapters
    return sorted(adapters.keys() - found)


@pytest.mark.slow
@pytest.mark.parametrize("name", TIMM)
def test_timms_families(name):
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=4, **(TIMM[name] or {}))
    if TIMM[name] is None:
        with pytest.raises(UserError, match=f"lora: {name} has no linear layers"):
            add_adapters(model, Lora(), name)
        return
    add_adapters(model, Lora(), name)
    size = TIMM[name].get("img_size", model.default_cfg["input_size"][-1])
    assert without_gradients(model, torch.randn(2, 3, size, size)) == []


@pytest.mark.slow
@pytest.mark.parametrize("folder", [FIXTURES / name for name in PADDLE], ids=lambda path: path.name)
def test_paddlevits_families(folder):
    options = ["-opts", "MODEL.TUNE=lora", "MODEL.LORA.RANK=4", "MODEL.DROPPATH=0.0"]
    config = parse_command_line([f"-cfg={folder / 'model.yaml'}", *options]).config
    if folder.name in REFUSED_PADDLE:
        with pytest.raises(UserError, match=r"lora: .* has no linear layers"):
            build_model(config.model, config.data, torch.device("cpu"))
        return
    torch.manual_seed(0)
    model, _ = build_model(config.model, config.data, torch.device("cpu"))
    shape = config.data.image_channels, config.data.image_size, config.data.image_size
    assert without_gradients(model, torch.randn(2, *shape)) == []
