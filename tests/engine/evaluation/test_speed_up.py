"""The fast paths of evaluations: which ones are tried, and equal figures and logits on models of all families."""

import copy

import torch
from conftest import CPU, GREY, ROOT, cells_of, cli, config_for, each_value, evaluate, log_of, read_result, train
from pytest import approx, mark
from timm import create_model
from torch import nn
from torch.testing import assert_close

from engine.evaluation.fast import speed_up
from engine.precision.policy import Precision
from engine.training.session import _choose_kernels
from models.blocks import FeatureModel
from models.kernels import EXPLICIT, select_attention
from models.weights.choose import EVALUATE, FEATURES

ATTENTION = """
place | images | level | attention | dropout | fused
training | 0 | O0 | auto | 0.0 | true
training | 0 | O0 | auto | 0.1 | false  # the kernels of a CPU have no dropout, which evaluations do not need
training | 0 | O0 | explicit | 0.0 | false
training | 0 | O1 | auto | 0.0 | false
evaluation | 200 | O0 | auto | 0.1 | true
evaluation | 199 | O0 | auto | 0.0 | false
evaluation | 200 | O0 | explicit | 0.0 | false
evaluation | 200 | O1 | auto | 0.0 | false
"""


@each_value(ATTENTION)
def test_attention_is_fused_where_that_is_faster_on_a_cpu(place, images, level, attention, dropout, fused):
    amp = [] if level == "O0" else [f"AMP.LEVEL={level}", "AMP.ENABLED=true"]
    config = config_for("-image_size=32", "-opts", f"MODEL.ATTENTION={attention}", *amp)
    precision = Precision(config.amp, CPU.device)
    model = create_model("vit_tiny_patch16_224", img_size=32, depth=2, attn_drop_rate=dropout).eval()
    two = torch.rand(2, 3, 32, 32)
    select_attention(model, EXPLICIT, CPU.device)
    expected = model(two)
    select_attention(model, attention, CPU.device)
    if place == "training":
        _choose_kernels(model, config, precision, False)
    else:
        speed_up(model, config, precision, images)
    assert {block.attn.fused_attn for block in model.blocks} == {fused}
    assert_close(model(two), expected, atol=1e-5, rtol=1e-5)


CONVERTED = """
option | images | converted
auto | 32 | true
auto | 31 | false
false | 200 | false
"""


@each_value(CONVERTED)
def test_convolutions_are_channels_last_where_that_saves_more_than_its_proof(option, images, converted):
    config = config_for("-image_size=32", "-opts", f"MODEL.CHANNELS_LAST={option}")
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Flatten()).eval()
    notes = speed_up(model, config, Precision(config.amp, CPU.device), images)
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last) == converted
    assert [note.text for note in notes] == ["Kernels: channels last"] * converted


def test_features_prove_a_model_whose_new_head_is_zero_and_keep_its_weights():
    model = create_model("test_resnet", num_classes=10).eval()
    nn.init.zeros_(model.fc.weight)
    before = copy.deepcopy(model.state_dict())
    images = torch.randn(2, 3, 64, 64)
    expected = FeatureModel(model, "test_resnet")(images)
    config = config_for("-image_size=64", "-model=test_resnet")
    precision = Precision(config.amp, CPU.device)
    for purpose, text in ((EVALUATE, "no fast paths (the logits of noise do not vary)"), (FEATURES, "channels last")):
        assert [note.text for note in speed_up(model, config, precision, 200, purpose)] == [f"Kernels: {text}"]
    assert torch.allclose(FeatureModel(model, "test_resnet")(images), expected, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


PLUGINS = """
vit_mixing | fused attention
vit_grid | fused attention, channels last
cnn_norm | no folded batch norms
cnn_batch | no folded batch norms
cnn_centred | no folded batch norms
"""


@mark.slow
@mark.parametrize("name, words", cells_of(PLUGINS))
def test_an_evaluation_has_the_figures_of_the_training_of_a_plugins_model(name, words, tmp_path):
    plugin = f"-plugin={ROOT / 'tests/fixtures/fast_paths.py'}"
    options = [*GREY, *cli("DATA.IMAGE_SIZE=8 DATA.CROP_PCT=1.0 TRAIN.NUM_EPOCHS=1 TRAIN.BASE_LR=1e-3")]
    argv = [*cli(f"-dataset=digits -model={name} -output={tmp_path} -opts"), *options, "EVAL.BEST_METRIC=loss"]
    run = train([plugin, *argv])
    evaluation = evaluate(tmp_path / "eval", plugin, f"-resume={run}")
    assert f"Kernels: {words}" in log_of(evaluation)
    trained = read_result(run)
    assert read_result(evaluation)["top1"] == trained["top1"]
    assert read_result(evaluation)["loss"] == approx(trained["loss"], rel=1e-5)
