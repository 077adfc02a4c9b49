"""The initial weights of the ViT, against the closed form of their distributions."""

import pytest
import torch

from configs.reading.command_line import parse_command_line
from models.build import build_model

WIDTH = 256
OPTIONS = [f"MODEL.EMBED_DIM={WIDTH}", "MODEL.DEPTH=1", "MODEL.NUM_HEADS=4", "DATA.IMAGE_SIZE=64", "MODEL.PATCH_SIZE=8"]


def test_bounds_and_deviations():
    """Xavier uniform: within sqrt(6 / (inputs + outputs)); queries, keys and values are three matrices."""
    config = parse_command_line(["-opts", *OPTIONS, "MODEL.NUM_CLASSES=100"]).config
    torch.manual_seed(0)
    vit, _ = build_model(config.model, config.data, torch.device("cpu"))
    shapes = {
        vit.patch_embed.proj.weight: (3 * 8 * 8, WIDTH),
        vit.blocks[0].attn.qkv.weight: (WIDTH, WIDTH),
        vit.blocks[0].attn.proj.weight: (WIDTH, WIDTH),
        vit.head.weight: (WIDTH, 100),
    }
    for weight, sides in shapes.items():
        bound = (6 / sum(sides)) ** 0.5
        assert 0.99 * bound < weight.abs().max().item() <= bound * (1 + 1e-6)
        assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.02)
    assert vit.pos_embed.std().item() == pytest.approx(WIDTH**-0.5, rel=0.03)
    assert vit.blocks[0].mlp.fc1.weight.std().item() == pytest.approx((2 / (5 * WIDTH)) ** 0.5, rel=0.03)
