"""PaddleViT's families: its YAML files and weights give the logits that PaddlePaddle 3.3.1 computed."""

from pathlib import Path

import numpy as np
import pytest
import torch

from configs.reading.command_line import parse_command_line
from configs.schema.families.registry import FAMILIES
from models.build import build_model

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures" / "families"
FOLDERS = sorted(FIXTURES.iterdir())


def test_each_family_has_a_reference_and_a_line_of_the_page():
    """docs/families.md, The parts of a family."""
    references = [parse_command_line([f"-cfg={folder / 'model.yaml'}"]).config.model for folder in FOLDERS]
    assert {model.type for model in references} == FAMILIES.keys()
    page = (ROOT / "docs" / "families.md").read_text().lower()
    assert all(f"| `{kind}` |" in page for kind in FAMILIES)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_weights_give_paddles_logits(folder):
    """In float64, so that the only difference is the rounding of Paddle's float32 logits on every CPU."""
    argv = [f"-cfg={folder / 'model.yaml'}", "-eval", f"-pretrained={folder / 'weights.pdparams'}"]
    config = parse_command_line(argv).config
    model, _ = build_model(config.model, config.data, torch.device("cpu"), needs_head=True)
    reference = np.load(folder / "reference.npz")
    with torch.no_grad():
        logits = model.double().eval()(torch.from_numpy(reference["images"]).double())
    assert (logits - torch.from_numpy(reference["logits"])).abs().max() < 1e-5


def test_the_position_embedding_of_mae_is_fixed():
    config = parse_command_line([f"-cfg={FIXTURES / 'MAE' / 'model.yaml'}"]).config
    model, _ = build_model(config.model, config.data, torch.device("cpu"))
    assert [name for name, parameter in model.named_parameters() if not parameter.requires_grad] == ["pos_embed"]
    position, channel = 5, 6
    expected = np.sin(position / 10000 ** (channel / 24)), np.cos(position / 10000 ** (channel / 24))
    assert model.pos_embed[0, position, channel : channel + 2].tolist() == pytest.approx(expected, abs=1e-6)
