"""Options and weights that do not fit a family of PaddleViT's: one line that names the key or file, and a way out."""

import pytest
import torch
from conftest import ROOT

from configs.reading.command_line import parse_command_line
from models.build import build_model
from utils.errors import UserError

FIXTURES = ROOT / "tests" / "fixtures" / "families"


def build(family: str, *flags: str) -> None:
    config = parse_command_line([f"-cfg={FIXTURES / family / 'model.yaml'}", *flags]).config
    build_model(config.model, config.data, torch.device("cpu"), needs_head=config.eval)


OPTIONS = {  # what does not fit: family, option, the key and the values that the error names
    "key without its section": ("ConvMixer", "MODEL.DIM=8", r"MODEL.DIM; did you mean MODEL.CNN.DIM\?"),
    "short list": ("PVTv2", "MODEL.NUM_HEADS=[1, 2, 3]", r"MODEL.NUM_HEADS is \(1, 2, 3\): list .* 4 items"),
    "heads": ("PVTv2", "MODEL.NUM_HEADS=[1, 2, 3, 5]", r"MODEL.TYPE: pvtv2 cannot be built .*num_heads 5"),
    "heads of a stage": ("SwinTransformer", "MODEL.NUM_HEADS=[1, 2, 3, 4]", r"NUM_HEADS of stage 3 is 3, no divisor"),
    "another number of stages": ("SwinTransformer", "MODEL.NUM_HEADS=[1, 2, 4]", r"has 3 values, STAGE_DEPTHS 4; give"),
    "width of timm's convolutions": ("MobileOne", "MODEL.CHANNELS=[8, 9, 16, 24, 32]", r"gives 9 channels"),
    "rate that timm lacks": ("ConvMixer", "MODEL.DROPPATH=0.1", r"convmixer does not accept .*MODEL.DROPPATH; set"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_an_option_that_does_not_fit(case):
    family, option, expected = OPTIONS[case]
    with pytest.raises(UserError, match=expected) as error:
        build(family, "-opts", option)
    assert "\n" not in str(error.value)


SIZES = {
    "SwinTransformer": (14, "4, .* the nearest is 16", 16),
    "LeViT": (44, "16, .* the nearest is 48", 48),
}


@pytest.mark.parametrize("family", SIZES)
def test_the_nearest_image_size_that_works_is_named_and_works(family):
    size, problem, nearest = SIZES[family]
    with pytest.raises(UserError, match=rf"^-image_size: DATA.IMAGE_SIZE {size} is not a multiple of {problem}$"):
        build(family, f"-image_size={size}")
    build(family, f"-image_size={nearest}")


WEIGHTS = {  # family, family of the file, an option, the tensor and the values that the error names
    "another family, ViT": ("SwinTransformer", "DeiT_plain", "SEED=0", r"position_embedding.* Swin Trans"),
    "another width": ("ConvNeXt", "ConvNeXt", "MODEL.DIMS=[8, 16, 24, 48]", r"stages.3.*32.*, not 48"),
    "fewer blocks": ("LeViT", "LeViT", "MODEL.DEPTH=[1, 1, 1]", r"blocks.3.attn.* LeViT"),
    "other images": ("LeViT", "LeViT", "DATA.IMAGE_SIZE=96", r"attention_biases 2x25, not 2x36"),
    "other classes": ("ConvNeXt", "ConvNeXt", "MODEL.NUM_CLASSES=9", r"head.fc: 7 .* 9 .* MODEL.NUM_CLASSES"),
    "one head for two": ("DeiT", "DeiT_plain", "DATA.IMAGE_SIZE=24", r"head_dist: not in the file.*MODEL.DISTILLED"),
}


@pytest.mark.parametrize("case", WEIGHTS)
def test_weights_that_do_not_fit(case):
    family, weights, option, expected = WEIGHTS[case]
    file = FIXTURES / weights / "weights.pdparams"
    with pytest.raises(UserError, match=expected) as error:
        build(family, "-eval", f"-pretrained={file}", "-opts", option)
    assert str(error.value).startswith(f"{file}: ") and "\n" not in str(error.value)


def test_paddlevits_regnet_names_timms():
    with pytest.raises(UserError, match=r"RegNet: .*MODEL.TYPE=timm MODEL.NAME=regnety_160, "):
        parse_command_line(["-opts", "MODEL.TYPE=RegNet"])
