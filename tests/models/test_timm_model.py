"""timm's models by name: further arguments of the class, published weights, and weights of another image size. A model
that cannot be built, or weights that it cannot use: one line that names the key or the file."""

import json
import re
import shlex
import sys
from inspect import signature

import timm
import torch
from conftest import (
    ROOT,
    assert_same_state,
    cells_of,
    cli,
    config_for,
    line_of,
    model_for,
    refused,
    run_here,
    session_for,
    slow,
    values_of,
)
from huggingface_hub.errors import LocalEntryNotFoundError
from pytest import fail, mark, raises
from timm import create_model
from timm.models._registry import _model_entrypoints
from torch import nn

from configs.command_line import parse_command_line
from configs.schema import Config
from configs.yaml_io import parse_value
from models.blocks import FeatureModel, pool_tokens
from models.build import outputs_of_weights
from models.fast import prepare_convolutions
from models.timm_model import LOADER_ARGUMENTS, check_kwargs, class_arguments
from models.weights.choose import EVALUATE, FINE_TUNE
from utils.errors import Unavailable

# The model, its arguments, the size of the weights, those of the model
KINDS = """
eva02_tiny_patch14_224 | {embed_dim: 16, depth: 1, num_heads: 2} | 56 | [28, 84]  # RoPE and a position embedding
beit_base_patch16_224 | {embed_dim: 16, depth: 1, num_heads: 2, init_values: 0.1} | 64 | [48, 112]  # tables
swin_tiny_patch4_window7_224 | {embed_dim: 8, depths: [1, 1], num_heads: [2, 4], window_size: 4} | 64 | [32, 96]
tnt_s_legacy_patch16_224 | {embed_dim: 16, depth: 1, inner_dim: 8, num_heads_inner: 2, num_heads_outer: 2} | 64 | \
    [32, 128]  # tokens of two levels
mvitv2_tiny | {} | 64 | [96]  # lines of relative positions
"""


def model_of(name: str, *argv: str, **kwargs) -> nn.Module:
    model = json.dumps({"TYPE": "timm", "NAME": name, "NUM_CLASSES": 3, "KWARGS": kwargs})
    config = config_for(*argv, "-opts", f"MODEL={model}")
    return model_for(config)[0].eval()


@mark.parametrize("name, arguments, before, sizes", [row if row[1] else slow(*row) for row in values_of(KINDS)])
def test_weights_of_another_image_size_are_read_as_timm_reads_them(saved, name, arguments, before, sizes):
    source = create_model(name, num_classes=3, img_size=before, **arguments)
    for parameter in source.parameters():
        nn.init.normal_(parameter, std=0.1)
    path = saved(source.state_dict())
    overlay = {"file": path, "num_classes": 3, "input_size": (3, before, before)}
    for size in sizes:
        model = model_of(name, f"-image_size={size}", f"-pretrained={path}", **arguments)
        given = arguments | {"img_size": size, "num_classes": 3}
        timms = create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, **given).eval()
        images = torch.randn(2, 3, size, size)
        assert_same_state(model.state_dict(), timms.state_dict())
        assert torch.allclose(model(images), timms(images), atol=1e-5)
        assert model(images).std() > 1e-4


def test_weights_of_a_size_to_which_timm_does_not_resize_name_it(saved):
    """The advice was to give weights of hiera_tiny_224, which they are."""
    arguments = parse_value("{embed_dim: 16, num_heads: 1, stages: [1, 1, 1, 1]}")
    path = saved(create_model("hiera_tiny_224", num_classes=3, **arguments).state_dict())
    given = ("hiera_tiny_224", f"-pretrained={path}")
    with refused(r"are weights of another image size than 256, .*; give -image_size=224$"):
        model_of(*given, "-image_size=256", **arguments)
    model_of(*given, "-image_size=224", **arguments)
    with refused(r"wrong shapes.*; give weights of hiera_tiny_224, or set MODEL"):
        model_of(*given, "-image_size=256", **arguments | {"embed_dim": 32})


def test_fields_of_a_configuration_are_arguments_of_the_class():
    model = model_of("naflexvit_base_patch16_gap", "-image_size=32", depth=2, embed_dim=32, num_heads=2)
    assert (len(model.blocks), model.embed_dim) == (2, 32)


def test_arguments_of_the_class_mean_timms_model_where_a_recipe_has_its_name():
    argv = ["-model=vit_tiny_patch16_224", "-image_size=32", "-opts", "MODEL.KWARGS={reg_tokens: 4, depth: 1}"]
    for recipe in ([], [f"-cfg={ROOT / 'configs' / 'vit_digits.yaml'}"]):
        config = config_for(*recipe, *argv)
        assert (config.model.type, config.model.name) == ("timm", "vit_tiny_patch16_224")
        model = model_for(config)[0]
        assert (model.reg_token.shape, len(model.blocks)) == ((1, 4, 192), 1)
    with refused(r"MODEL.KWARGS of MODEL.TYPE vit"):
        parse_command_line(["-opts", "MODEL.NAME=vit_tiny_patch16_224", "MODEL.KWARGS={reg_tokens: 4}"])


# Arguments of create_model, build_model_with_cfg, and the functions between these and the constructor
DANGEROUS = {
    *cli("""
pretrained pretrained_cfg pretrained_cfg_overlay pretrained_strict pretrained_filter_fn pretrained_custom_load
pretrained_model_args custom_load kwargs_filter feature_cfg feature_cls features_only pruned model_cfg model_cls
model_name variant cfg_variant checkpoint_path cache_dir url file source state_dict hf_hub_id hf_hub_filename kwargs
""")
}


@mark.parametrize("name", ["regnetx_002", "hrnet_w18_small"])
def test_a_recipe_makes_no_request(name, monkeypatch):
    """The classes of these models take **kwargs, and timm's functions take the weights' address out of them."""
    requests = []
    monkeypatch.setattr("socket.create_connection", lambda *address, **_: requests.append(address) or 1 / 0)
    overlay = {"url": "http://127.0.0.1:9/weights.pth", "hf_hub_id": None, "file": None}
    with refused(r"^MODEL.KWARGS: pretrained\S* is no further argument of \w+[^\n]*$"):
        model_of(name, pretrained=True, pretrained_cfg_overlay=overlay)
    assert not requests


def test_no_model_of_timm_takes_a_dangerous_argument():
    """All classes of the modules that register timm's models: a superset of the classes of all names."""
    modules = {timm.model_entrypoint(name).__module__ for name in timm.list_models()}
    for module in modules:
        for owner in vars(sys.modules[module]).values():
            if isinstance(owner, type) and issubclass(owner, nn.Module):
                assert not DANGEROUS & (class_arguments(owner) - LOADER_ARGUMENTS), owner
    entry_arguments = {key for name in timm.list_models() for key in signature(timm.model_entrypoint(name)).parameters}
    assert not DANGEROUS & (entry_arguments - LOADER_ARGUMENTS)


@mark.parametrize("error", [LocalEntryNotFoundError("no network\nand more"), TimeoutError()])
def test_published_weights(saved, monkeypatch, error):
    """The file that the Hub sends has timm's weights; without it the line names the file and a flag."""
    source = create_model("test_vit")
    path = saved(source.state_dict())
    monkeypatch.setattr("models.timm_model.download", lambda *arguments: path)
    model = model_of("test_vit", "-pretrained=timm")
    assert torch.equal(model.blocks[0].attn.qkv.weight, source.blocks[0].attn.qkv.weight)
    config = config_for("-model=test_vit", "-pretrained=timm", "-opts", "MODEL.NUM_CLASSES=3")
    with refused("have 1000 outputs, not 3"):  # not a random head
        model_for(config, purpose=EVALUATE)
    assert outputs_of_weights(config.model, config.data) == 1000
    monkeypatch.undo()
    monkeypatch.setattr("huggingface_hub.file_exists", lambda *_, **__: (_ for _ in ()).throw(error))
    file = r"timm/test_vit\.r160_in1k/resolve/main/model\.safetensors"
    with raises(Unavailable, match=f"{file}.*-pretrained=FILE"):
        model_of("test_vit", "-pretrained=timm")
    monkeypatch.setattr("engine.plan.training.read_data", lambda *_: fail("data are read before"))
    with raises(Unavailable, match=f"{file}.*-pretrained=FILE"):
        run_here("-dataset=digits", "-model=test_vit", "-pretrained=timm", "-dry_run")
    with raises(Unavailable, match=r"-pretrained=FILE.*-cfg=configs/folder_small"):  # no random backbone
        run_here("-cfg=configs/probe.yaml", "-data_path=DIR", "-model=test_vit", "-dry_run")


FIXTURES = ROOT / "tests" / "fixtures" / "families"
VIT = "-image_size=32 -opts MODEL.EMBED_DIM=24 MODEL.DEPTH=4 MODEL.NUM_HEADS=3"
# The words, a pattern of the error. @NAME: the recipe of a family of tests/fixtures/families; %NAME: its weights
REFUSED = r"""
-model=resnet5O -opts SEED=0 | MODEL\.NAME.* resnet5O.* resnet50
-model=regnet_y_400mf -opts SEED=0 | timm's name is regnety_004
-model=vit_base_patch16 -opts SEED=0 | did you mean vit_base_patch16_224\?
-model=vit_base -opts SEED=0 | did you mean vit_base_patch16_224\?
-model=vit_tinny -opts SEED=0 | did you mean vit_tiny_patch16_224\?
-model=deit_smal -opts SEED=0 | did you mean deit_small_
-model=test_vit.r161_in1k -opts SEED=0 | did you mean test_vit.*\.r160_in1k
-model=efficientnet_b8 -opts MODEL.PRETRAINED=timm | timm has no weights of efficientnet_b8;
-model=levit_128s -opts DATA.IMAGE_SIZE=200 | levit_128s.* DATA\.IMAGE_SIZE 200   # by the forward pass
# An argument of a parent of the class, and one of timm's function alone
-model=deit_tiny_distilled_patch16_224 -opts 'MODEL.KWARGS={init_value: 3}' | init_value.* did you mean init_values
-model=test_vit -opts 'MODEL.KWARGS={img_size: 3}' | img_size.*DATA.IMAGE_SIZE
-model=naflexvit_base_patch16_gap -opts 'MODEL.KWARGS={cfg: {depth: 2}}' | cfg is no further argument of NaFlexVit
-model=csatv2 -opts DATA.IMAGE_CHANNELS=1 | csatv2 .* a forward pass fails
-model=coat_tiny -opts MODEL.GRAD_CHECKPOINTING=true | ^MODEL\.GRAD_CHECKPOINTING: .* coat_tiny
-model=pit_ti_224 -opts MODEL.TUNE=last:1 | last:1: pit_ti_224 .*group_matcher
-model=inception_v3 -opts MODEL.TUNE=last:1 | last:1: inception_v3 has no list of blocks; use head or full
-model=lowformer_b0 -opts MODEL.TUNE=lora | lora: lowformer_b0 has no linear layers in a list of blocks
VIT MODEL.TUNE=last:5 | last:5: vit has 4 blocks
VIT MODEL.TUNE=lora MODEL.LORA.RANK=25 | RANK 25: blocks\.0\.attn\.qkv is only 24 wide
VIT MODEL.TUNE=lora MODEL.LORA.TARGETS=[qvk] | TARGETS: qvk .* qkv
VIT MODEL.FEATURES=token MODEL.GLOBAL_POOL=avg | MODEL.FEATURES token:
VIT MODEL.STEM=resnet10 | did you mean resnet10
VIT MODEL.STEM=resnet10t MODEL.PATCH_SIZE=4 | PATCH_SIZE of 8, 16 or 32
VIT MODEL.STEM=levit_128s | levit_128s has no features of stride 16
# Families
@ConvMixer -opts MODEL.DIM=8 | MODEL.DIM; did you mean MODEL.CNN.DIM\?
@PVTv2 -opts 'MODEL.NUM_HEADS=[1, 2, 3, 5]' | MODEL.TYPE: pvtv2 cannot be built .*num_heads 5
@SwinTransformer -opts 'MODEL.NUM_HEADS=[1, 2, 4]' | has 3 values, STAGE_DEPTHS 4; give
@SwinTransformer -opts 'MODEL.NUM_HEADS=[1, 2, 3, 4]' | NUM_HEADS of stage 3 is 3, no divisor
@MobileOne -opts 'MODEL.CHANNELS=[8, 9, 16, 24, 32]' | gives 9 channels
@ConvMixer -opts MODEL.DROPPATH=0.1 | convmixer does not accept .*MODEL.DROPPATH; set
@SwinTransformer -image_size=14 | ^-image_size: .* 14 is not a multiple of 4, as swin_\w+ needs; .* 16,16; -model=
# Weights: the file, and the tensor and the values that differ
@SwinTransformer -eval -pretrained=%DeiT_plain -opts SEED=0 | weights.pdparams: .*position_embedding.* MODEL.TYPE swin
@LeViT -eval -pretrained=%LeViT -opts 'MODEL.DEPTH=[1, 1, 1]' | weights.pdparams: .*blocks.3.attn.* MODEL.TYPE levit
@DeiT -eval -pretrained=%DeiT_plain -opts DATA.IMAGE_SIZE=24 | weights.pdparams: missing tensors: dist_token; .* MODEL
"""


def config_of(words: str) -> Config:
    recipes = re.sub(r"@(\w+)", rf"-cfg={FIXTURES}/\1/model.yaml", words.replace("VIT", VIT))
    return config_for(*shlex.split(re.sub(r"%(\w+)", rf"{FIXTURES}/\1/weights.pdparams", recipes)))


@mark.parametrize("words, pattern", cells_of(REFUSED))
def test_a_model_that_cannot_be_built(words, pattern):
    def build():
        config = config_of(words)
        model_for(config, purpose=EVALUATE if config.eval.enabled else FINE_TUNE)

    assert re.search(pattern, line_of(build))


@mark.parametrize("family, nearest", [("SwinTransformer", 16), ("LeViT", 48)])
def test_the_image_size_that_is_named_works(family, nearest):
    config = config_of(f"@{family} -image_size={nearest}")
    model_for(config)


def test_parts_of_a_plugin_or_of_a_sharded_model_that_do_not_fit(monkeypatch):
    with refused(r"MODEL.FEATURES avg: needs a ViT"):
        pool_tokens(create_model("test_resnet"), "avg", 5)
    with refused("no classifier"):
        FeatureModel(nn.Linear(3, 3), "linear")
    with refused(r"^MODEL\.CHANNELS_LAST true: "):
        prepare_convolutions(nn.Conv2d(4, 4, 3), True, torch.zeros(2, 4, 8, 8), is_fixed=True)
    monkeypatch.setitem(_model_entrypoints, "own_net", lambda pretrained=False, width=2, **_: nn.Linear(width, 1))
    check_kwargs("own_net", {"width": 3})  # an argument of the function that timm registers
    with refused("pretrained is no further argument of Linear"):
        check_kwargs("own_net", {"pretrained": True})


def test_a_training_of_an_unknown_model_ends_before_images_are_read(monkeypatch):
    monkeypatch.setattr("engine.plan.training.read_data", lambda *_, **__: fail("the images are read"))
    with refused("resnet5O.* resnet50"):
        session_for(["-model=resnet5O", "-dataset=digits"])
