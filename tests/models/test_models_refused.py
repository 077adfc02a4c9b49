"""Options from which no model can be built: one line that names the key or the value."""

import pytest
import torch

from configs.command_line import parse_command_line
from models.build import build_model
from utils.errors import UserError

VIT = ["MODEL.EMBED_DIM=24", "MODEL.DEPTH=4", "MODEL.NUM_HEADS=3", "MODEL.NUM_CLASSES=5"]
STEM = [*VIT, "MODEL.GLOBAL_POOL=avg"]
CASES = {  # image size, options, what the error names
    "name": (224, ["MODEL={TYPE: timm, NAME: resnet5O}"], r"MODEL\.NAME.* resnet5O.* resnet50"),
    "forward pass": (200, ["MODEL={TYPE: timm, NAME: levit_128s}"], r"levit_128s.* DATA\.IMAGE_SIZE 200: "),
    "no class token": (32, [*VIT, "MODEL.FEATURES=token", "MODEL.GLOBAL_POOL=avg"], r"MODEL.FEATURES token: "),
    "checkpointing": (
        224, ["MODEL={TYPE: timm, NAME: coat_tiny, GRAD_CHECKPOINTING: true}"], r"^MODEL\.GRAD_CHECKPOINTING: ",
    ),
    "too many blocks": (224, [*VIT, "MODEL.TUNE=last:5"], r"last:5: vit has 4 blocks"),
    "no matcher": (224, ["MODEL={TYPE: timm, NAME: pit_ti_224, TUNE: 'last:1'}"], r"last:1: pit_ti_224 "),
    "no blocks": (224, ["MODEL={TYPE: timm, NAME: resnet18, TUNE: lora}"], r"lora: resnet18 has no linear layers"),
    "rank": (224, [*VIT, "MODEL.TUNE=lora", "MODEL.LORA.RANK=25"], r"RANK 25: blocks\.0\.attn\.qkv"),
    "target": (224, [*VIT, "MODEL.TUNE=lora", "MODEL.LORA.TARGETS=[qvk]"], r"TARGETS: qvk .* qkv"),
    "stem": (64, [*STEM, "MODEL.STEM=resnet10"], "resnet10t"),
    "patches of a stem": (64, [*STEM, "MODEL.STEM=resnet10t", "MODEL.PATCH_SIZE=4"], "PATCH_SIZE of 8, 16 or 32"),
    "stride of a stem": (64, [*STEM, "MODEL.STEM=levit_128s"], "levit_128s has no features of stride 16"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_no_model_is_built(case):
    size, options, named = CASES[case]
    with pytest.raises(UserError, match=named) as error:
        config = parse_command_line([f"-image_size={size}", "-opts", *options]).config
        build_model(config.model, config.data, torch.device("cpu"))
    assert "\n" not in str(error.value)
