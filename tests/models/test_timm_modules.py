"""The smallest model of each module of timm 1.0.31, and distilled ones: output layers, features, blocks, rates."""

import timm
import torch
from conftest import cli, slow, values_of
from pytest import approx, mark
from timm import create_model
from timm.layers import DropPath
from torch import nn

from configs.schema import Data
from configs.schema.families.family import TimmModel
from engine.training.describe import notes_on_rates
from models.blocks import FeatureModel, blocks_of
from models.timm_model import build_timm, linear_head
from models.weights.fit import output_layers
from models.weights.names import head_names

NAMES = """
beit_base_patch16_224 cait_xxs24_224 coat_tiny convit_tiny convmixer_768_32 cpubone_nano crossvit_tiny_240
cs3darknet_focus_s csatv2 cspnext_tiny davit_tiny deepseek_vit_412m deit_tiny_distilled_patch16_224
deit_tiny_patch16_224 densenet121 dla46x_c dpn48b edgenext_xx_small efficientformer_l1 efficientformerv2_s0
efficientvim_m1 efficientvit_b0 efficientvit_m0 ese_vovnet19b_slim_dw fasternet_t0 fastvit_t8 focalnet_tiny_srf
gcvit_xxtiny gemma4_vit_167m ghostnet_050 gmlp_ti16_224 halonet_h1 hardcorenas_b hgnetv2_b0 hiera_tiny_224
hrnet_w18_small iformer_m_distilled iformer_t inception_next_atto inception_resnet_v2 inception_v3 inception_v4
lcnetv2_small legacy_seresnet18 legacy_xception levit_128s lowformer_b0 mobilenetv3_small_050 mobilenetv5_base
mobilevit_xxs mvitv2_tiny naflexvit_base_patch16_parfac_gap nasnetalarge nest_tiny nextvit_small pit_ti_224
pnasnet5large poolformerv2_s12 pvt_v2_b0 qwen3_vit_88m rdnet_tiny regnetx_002 repghostnet_050 repvit_m1
res2next50 resnest14d resnetv2_18 rexnet_100 sam2_hiera_tiny samvit_base_patch16_224 selecsls42 sequencer2d_s
shvit_s1 skresnet18 starnet_s050 swiftformer_xs swin_tiny_patch4_window7_224 swinv2_cr_tiny_224
swinv2_tiny_window8_256 test_byobnet test_coatnet test_convnext test_efficientnet test_mambaout test_nfnet
test_resnet test_vit test_vit_relpos tiny_vit_5m_224 tnt_s_legacy_patch16_224 tresnet_m twins_svt_small vgg11
visformer_tiny vit_tiny_patch16_dinov3_qkvb vit_tiny_r_s16_p8_224 vitamin_small_224 volo_d1_224 xception41p
xcit_nano_12_p8_224
"""

SIZES = {"crossvit_tiny_240": 240, "halonet_h1": 256, "csatv2": 512}
# Rates of dropout that timm's code fixes
FIXED = {"cpubone_nano": 0.1, "swinv2_cr_tiny_224": 0.125, "test_vit_relpos": 0.125}
# Of models that have some by default: drop-path and dropout
DEFAULTS = """
nest_tiny | 0.5 | 0
nextvit_small | 0.1 | 0
swin_tiny_patch4_window7_224 | 0.1 | 0
swinv2_tiny_window8_256 | 0.1 | 0
focalnet_tiny_srf | 0.1 | 0
rexnet_100 | 0 | 0.2
ghostnet_050 | 0 | 0.2
repghostnet_050 | 0 | 0.2
legacy_seresnet18 | 0 | 0.2
"""
RATES = {name: (path, dropout) for name, path, dropout in values_of(DEFAULTS)}
RATES |= {name: (0, rate) for name, rate in FIXED.items()}


def all_models(*fast: str) -> list:
    """Parameters of a test: all models in the slow set, `fast` ones in the fast set."""
    return [name if name in fast else slow(name) for name in NAMES.split() if timm.is_model(name)]


def on_meta(name: str, **arguments) -> nn.Module:
    with torch.device("meta"):
        return create_model(name, **arguments).eval()


@mark.parametrize("name", all_models("crossvit_tiny_240", "dla46x_c", "efficientvim_m1", "repvit_m1"))
def test_output_layers_are_all_layers_with_a_row_per_class(name):
    model = on_meta(name, num_classes=37)
    weights = {path: getattr(one, "weight", None) for path, one in model.named_modules()}
    expected = [path for path, weight in weights.items() if weight is not None and len(weight) == 37]
    assert [path for head in head_names(model) for path in output_layers(model, head)] == expected != []


NORM_BEFORE_HEAD = {"efficientvit_m0", "shvit_s1"}  # timm's `pre_logits` are its inputs


@mark.parametrize("name", all_models("crossvit_tiny_240", "efficientvim_m1", "samvit_base_patch16_224"))
def test_features_are_one_vector_per_image(name):
    model = on_meta(name)
    features = FeatureModel(model, name)(torch.zeros(2, *model.default_cfg["input_size"], device="meta"))
    head = linear_head(model)
    assert features.shape == (2, model.head_hidden_size)
    assert head is None or (head.in_features == model.head_hidden_size and name not in NORM_BEFORE_HEAD)


# Of heads, and models whose forward_head is their own
KINDS = """
deit_tiny_distilled_patch16_224 efficientvim_m1 efficientvit_m0 hgnetv2_b0 inception_next_atto mobilenetv3_small_050
poolformerv2_s12 repvit_m1 shvit_s1 test_byobnet test_convnext test_mambaout test_resnet test_vit
"""


@mark.parametrize("name", [*KINDS.split(), slow("mvitv2_tiny")])
def test_features_are_timms_and_the_inputs_of_a_linear_head(name):
    torch.manual_seed(0)
    model = create_model(name, num_classes=5).eval()
    nn.init.normal_(next(iter(model.parameters())))
    images = torch.randn(1, *model.default_cfg["input_size"])
    inputs = []
    head = linear_head(model)
    if head:
        head.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    with torch.no_grad():
        features = FeatureModel(model, name)(images)
        expected = model.forward_head(model.forward_features(images), pre_logits=True)
        model(images)
    assert torch.equal(features, expected)
    assert not head or torch.equal(inputs[-1].flatten(1), features)


@mark.parametrize("name", all_models("lowformer_b0"))
def test_blocks_are_no_part_of_the_stem_or_the_head(name):
    model = on_meta(name)
    inside = {parameter for block in blocks_of(model) for parameter in block.parameters()}
    parts = dict(model.named_children())
    for part in cli("stem patch_embed conv1 base_layer pre_classifier final_layer head"):
        assert not inside.intersection(parts.get(part, nn.Identity()).parameters()), part


@mark.parametrize("name", all_models("cpubone_nano", "ghostnet_050", "swin_tiny_patch4_window7_224", "test_vit"))
def test_a_rate_of_0_is_0_and_null_is_the_models_own(name):
    for given, expected in ((0.0, (0, FIXED.get(name, 0))), (None, RATES.get(name, (0, 0)))):
        options = TimmModel(NAME=name, DROPOUT=given, DROPPATH=given)
        with torch.device("meta"):
            model = build_timm(options, Data(IMAGE_SIZE=SIZES.get(name, 224)))
        drop_paths = [0]
        dropped = [float(getattr(model, "drop_rate", 0) or 0)]  # of the head
        for path, one in model.named_modules():
            if isinstance(one, DropPath):
                drop_paths.append(one.drop_prob)
            if isinstance(one, nn.Dropout) and "attn_drop" not in path:
                dropped.append(one.p)
        assert (max(drop_paths), max(dropped)) == approx(expected)
        # who sets 0 for a comparison, and who gives none, reads which rates are in use
        assert len(notes_on_rates(model, options)) == sum(rate > 0 for rate in expected)
