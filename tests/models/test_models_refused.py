"""A model that cannot be built, or weights that it cannot use: one line that names the key or the file."""

import shlex

import pytest
import timm
import torch
from conftest import ROOT
from timm.models._registry import _model_entrypoints

from configs.command_line import parse_command_line
from models.blocks import FeatureModel, pool_tokens
from models.build import build_model
from models.kernels import prepare_convolutions
from models.timm_model import check_kwargs
from models.weights.choose import EVALUATE, FINE_TUNE
from utils.errors import UserError

FIXTURES = ROOT / "tests" / "fixtures" / "families"
DEIT_TINY = "deit_tiny_distilled_patch16_224"
VIT = "-image_size=32 -opts MODEL.EMBED_DIM=24 MODEL.DEPTH=4 MODEL.NUM_HEADS=3"


def of(family: str, words: str) -> str:
    return f"-cfg={FIXTURES / family / 'model.yaml'} {words}"


def weights(family: str, words: str, of_family: str = "") -> str:
    file = FIXTURES / (of_family or family) / "weights.pdparams"
    return of(family, f"-eval -pretrained={file} -opts {words}")


def of_timm(name: str, words: str) -> str:
    return f"-model={name} -opts {words}"


REFUSED = [  # command line -> a pattern of the error
    (of_timm("resnet5O", "SEED=0"), r"MODEL\.NAME.* resnet5O.* resnet50"),
    (of_timm("deit_smal", "SEED=0"), "did you mean deit_small_"),
    (of_timm("zzz", "SEED=0"), r"timm\.list_models\(\)"),
    (of_timm("test_vit.r161_in1k", "SEED=0"), r"did you mean test_vit.*\.r160_in1k"),
    (of_timm("efficientnet_b8", "MODEL.PRETRAINED=timm"), "timm has no weights of efficientnet_b8; "),
    (of_timm("levit_128s", "DATA.IMAGE_SIZE=200"), r"levit_128s.* DATA\.IMAGE_SIZE 200: "),  # by the forward pass
    # An argument of a parent of the class, and one of timm's function alone
    (of_timm(DEIT_TINY, "'MODEL.KWARGS={init_value: 3}'"), "init_value.* did you mean init_values"),
    (of_timm("test_vit", "'MODEL.KWARGS={img_size: 3}'"), "img_size.*DATA.IMAGE_SIZE"),
    (of_timm("coat_tiny", "MODEL.GRAD_CHECKPOINTING=true"), r"^MODEL\.GRAD_CHECKPOINTING: .* coat_tiny"),
    (of_timm("pit_ti_224", "MODEL.TUNE=last:1"), r"last:1: pit_ti_224 .*group_matcher"),
    (of_timm("resnet18", "MODEL.TUNE=lora"), "lora: resnet18 has no linear layers"),
    (f"{VIT} MODEL.TUNE=last:5", "last:5: vit has 4 blocks"),
    (f"{VIT} MODEL.TUNE=lora MODEL.LORA.RANK=25", r"RANK 25: blocks\.0\.attn\.qkv is only 24 wide"),
    (f"{VIT} MODEL.TUNE=lora MODEL.LORA.TARGETS=[qvk]", "TARGETS: qvk .* qkv"),
    (f"{VIT} MODEL.FEATURES=token MODEL.GLOBAL_POOL=avg", "MODEL.FEATURES token: "),
    (f"{VIT} MODEL.STEM=resnet10", "resnet10t"),
    (f"{VIT} MODEL.STEM=resnet10t MODEL.PATCH_SIZE=4", "PATCH_SIZE of 8, 16 or 32"),
    (f"{VIT} MODEL.STEM=levit_128s", "levit_128s has no features of stride 16"),
    # Families
    (of("ConvMixer", "-opts MODEL.DIM=8"), r"MODEL.DIM; did you mean MODEL.CNN.DIM\?"),
    (of("PVTv2", "-opts 'MODEL.NUM_HEADS=[1, 2, 3, 5]'"), "MODEL.TYPE: pvtv2 cannot be built .*num_heads 5"),
    (of("SwinTransformer", "-opts 'MODEL.NUM_HEADS=[1, 2, 4]'"), "has 3 values, STAGE_DEPTHS 4; give"),
    (of("SwinTransformer", "-opts 'MODEL.NUM_HEADS=[1, 2, 3, 4]'"), "NUM_HEADS of stage 3 is 3, no divisor"),
    (of("MobileOne", "-opts 'MODEL.CHANNELS=[8, 9, 16, 24, 32]'"), "gives 9 channels"),
    (of("ConvMixer", "-opts MODEL.DROPPATH=0.1"), "convmixer does not accept .*MODEL.DROPPATH; set"),
    (of("SwinTransformer", "-image_size=14"), "^-image_size: .* 14 is not a multiple of 4, .* 16; -model=resnet10t"),
    # Weights: the file, and the tensor and the values that differ
    (weights("SwinTransformer", "SEED=0", "DeiT_plain"), r"weights.pdparams: .*position_embedding.* Swin Trans"),
    (weights("LeViT", "'MODEL.DEPTH=[1, 1, 1]'"), "weights.pdparams: .*blocks.3.attn.* LeViT"),
    (weights("DeiT", "DATA.IMAGE_SIZE=24", "DeiT_plain"), "weights.pdparams: missing tensors: dist_token; .* MODEL to"),
]


@pytest.mark.parametrize(("words", "pattern"), REFUSED)
def test_a_model_that_cannot_be_built(words, pattern):
    with pytest.raises(UserError, match=pattern) as error:
        config = parse_command_line(shlex.split(words)).config
        build_model(config.model, config.data, torch.device("cpu"), EVALUATE if "-eval" in words else FINE_TUNE)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("family", "nearest"), [("SwinTransformer", 16), ("LeViT", 48)])
def test_the_image_size_that_is_named_works(family, nearest):
    config = parse_command_line(shlex.split(of(family, f"-image_size={nearest}"))).config
    build_model(config.model, config.data, torch.device("cpu"))


def test_parts_of_a_plugin_or_of_a_sharded_model_that_do_not_fit(monkeypatch):
    with pytest.raises(UserError, match=r"MODEL.FEATURES avg: needs a ViT"):
        pool_tokens(timm.create_model("test_resnet"), "avg", 5)
    with pytest.raises(UserError, match="no classifier"):
        FeatureModel(torch.nn.Linear(3, 3), "linear")
    with pytest.raises(UserError, match=r"^MODEL\.CHANNELS_LAST true: "):
        prepare_convolutions(torch.nn.Conv2d(4, 4, 3), True, is_fixed=True)
    monkeypatch.setitem(_model_entrypoints, "own_net", lambda pretrained=False, width=2, **_: torch.nn.Linear(width, 1))
    check_kwargs("own_net", {"width": 3})  # an argument of the function that timm registers
    with pytest.raises(UserError, match="pretrained is no further argument of Linear"):
        check_kwargs("own_net", {"pretrained": True})
