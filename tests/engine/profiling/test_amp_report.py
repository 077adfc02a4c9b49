"""The AMP report: its figures against hand-made values, planted overflows and underflows, and what mends them."""

import re

import torch
import torch.nn.functional as F
from conftest import CPU, assert_same_state, cli, session_for, slow
from pytest import approx, fixture, mark
from torch import nn

from engine.profiling.amp_report import margin, report_amp
from engine.profiling.half_values import Passes
from engine.training.step import train_steps

FLOAT16 = cli("AMP.ENABLED=true AMP.DTYPE=float16 DATA.BATCH_SIZE=8 MODEL.ATTENTION=explicit")


@fixture
def case(digits_argv):
    """Builds a session with these options and weights that are changed by hand; the state and its first batch."""

    def build(*options, plant=None, words=()):
        session = session_for([*words, *digits_argv, *FLOAT16, *options], CPU)
        if plant:
            with torch.no_grad():
                plant(session.state.precision.weights.saved)
        return session.state, next(session.batches.iterate(0, 0, 1, bad_images=session.bad_images))

    return build


def large_logits(model: nn.Module):
    model.blocks[1].attn.qkv.weight *= 1e3


def large_hidden(model: nn.Module):
    model.blocks[0].mlp.fc1.bias[0] = 2e5
    model.blocks[0].mlp.fc2.weight[:, 0] = 0


def large_stream(model: nn.Module):
    model.blocks[1].mlp.fc2.bias[:] = 7e4


def large_output(model: nn.Module):
    model.head.bias[:] = 7e4


def small_gradients(model: nn.Module):
    model.head.weight *= 1e-5


def flags(line: str) -> list[str]:
    """The options of an advice."""
    found = re.search(r'by -opts "(AMP\..*)"$', line)
    return [found[1] if found else "AMP.DTYPE=" + line.partition("-amp_dtype=")[2]]


@mark.parametrize("plant, options, finding, listed", [
    (large_logits, [], "overflows in blocks.1.attn: the result of matmul", "blocks.1.*"),
    (large_hidden, [], "overflows in blocks.0.mlp.fc1: the result of linear", "blocks.0.*"),
    (large_stream, [], "overflows in blocks.1.mlp.fc2", "blocks.1.*"),
    (large_output, [], "overflows in head: the result of linear is up to 700", "head.*"),
    (None, ["AMP.INIT_LOSS_SCALING=1e9"], "gradients overflow in head at loss scale 1e+09", ""),
    (small_gradients, ["AMP.INIT_LOSS_SCALING=1"], "in blocks.0 are zero in float16 at loss scale 1, and not", "")
])  # fmt: skip
def test_a_planted_problem_is_named_and_its_advice_mends_it(case, plant, options, finding, listed):
    lines, _ = report_amp(*case(*options, plant=plant))
    assert finding in lines[-2]
    assert not listed or flags(lines[-1]) == [f"AMP.CUSTOM_BLACK_LIST=[{listed}]"]
    mended, _ = report_amp(*case(*options, *flags(lines[-1]), plant=plant))  # typed
    assert "float16 is safe at loss scale" in mended[-2]


def test_bfloat16_mends_what_no_list_does(case):
    def plant(model):
        model.pos_embed[..., 3] = 1e5

    lines, _ = report_amp(*case("AMP.LEVEL=O2", plant=plant))
    assert "overflows in the model: the result of add is up to 1000" in lines[-2]
    state, batch = case(*flags(lines[-1]), "AMP.LEVEL=O2", plant=plant)
    assert "is safe" in "".join(report_amp(state, batch)[0][-2:])


def values_of(state, batch, scale: float = 65536.0):
    passes = Passes(state, batch)
    return passes, passes.values(state.precision.options, scale)


def test_figures_of_the_classifier_are_those_of_its_formulas(case):
    """The gradient of the logits is (softmax - labels) * scale / batch size, rounded to float16."""
    state, batch = case("DATA.BATCH_SIZE=4")
    for scale in (65536.0, 2.0**-18):
        passes, values = values_of(state, batch, scale)
        (head,) = [pair for pair in values.ops if pair.half.module == "head"]
        model = state.precision.weights.compute.train()
        with torch.autocast("cpu", torch.float16), torch.no_grad():
            features = model.forward_head(model.forward_features(passes.images), pre_logits=True)
            logits = model.head(features)
        assert head.half.size == logits.abs().max()
        assert head.peak == max(logits.abs().max(), features.abs().max())  # which autocast rounds
        gradient = (logits.float().softmax(-1) - F.one_hot(passes.targets, 10)) * (scale / 4)
        assert head.half.gradient == gradient.half().abs().max()
        assert head.exact.gradient == approx(gradient.abs().max().item() / scale, rel=1e-2)
        assert (head.lost, head.values) == ((gradient.half() == 0).sum(), 40)
    assert head.lost > 0
    assert margin(65504 / 8) == "2^3.0"
    assert margin(2 * 65504) == "2^-1.0"


def test_masks_are_equal(case):
    options = cli("MODEL.DROPOUT=0.5 MODEL.DROPPATH=0.5 MODEL.ATTENTION=fused MODEL.ATTENTION_DROPOUT=0.5")
    _, values = values_of(*case(*options))
    shares = []
    for pair in values.ops:
        if pair.half.op in ("dropout", "mul") and pair.exact.zeros.numel():
            shares.append(pair.exact.zeros.float().mean().item())
            assert torch.equal(pair.half.zeros, pair.exact.zeros)
    assert len(shares) > 4
    assert max(shares) > 0.4


def test_lists_and_dtypes(case):
    lists = ["AMP.CUSTOM_BLACK_LIST=[softmax]", "AMP.CUSTOM_WHITE_LIST=[add]"]
    _, values = values_of(*case(*lists))
    assert values.recorder.moved["softmax in float32"] == 2
    assert values.recorder.moved["add in float16"] == 5
    assert not any(pair.half.op == "softmax" for pair in values.ops)
    assert values.recorder.dtypes["blocks.1"] == ("float16", "float32", "float16")
    assert values_of(*case())[1].recorder.dtypes["blocks.1"] == ("float32", "float32", "float32")


@mark.parametrize("options", [
    ["MODEL.GRAD_CHECKPOINTING=true"], ["MODEL.GRAD_CHECKPOINTING=cheap", "AMP.CUSTOM_BLACK_LIST=[gelu]"],
    slow(["TRAIN.COMPILE=default"])
], ids=str)  # fmt: skip
def test_checkpointing_and_a_compiler_change_no_figure(case, options, monkeypatch):
    monkeypatch.setattr("engine.parallel.check_compiler", lambda device: None)
    lists = [one for one in options if one.startswith("AMP")]
    assert report_amp(*case(*options)) == report_amp(*case(*lists))


@mark.parametrize("tune", ["lora", "last:1"])
def test_frozen_blocks_lose_no_gradients(case, tune):
    lines, _ = report_amp(*case(f"MODEL.TUNE={tune}", "AMP.INIT_LOSS_SCALING=1024"))
    lost = {row.split()[0]: row.split()[-1] for row in lines[1].splitlines()}
    assert (lost["blocks.0"] == "-") == (tune == "last:1")
    assert lost["blocks.1"] != "-"
    assert "float16 is safe" in lines[-2]


@mark.parametrize("level", [slow("O1"), "O2", slow("O3")])
def test_the_training_goes_on_as_without_a_report(digits_argv, level):
    def train(reports):
        options = cli(f"AMP.ENABLED=true DATA.BATCH_SIZE=8 AMP.LEVEL={level} MODEL.DROPOUT=0.1")
        session = session_for([*digits_argv, *options], CPU)
        state = session.state
        batches = session.batches.iterate(0, 0, 1, bad_images=session.bad_images)
        progress = state.new_progress(0)
        train_steps(state, batches, progress, 1, lambda progress: None)
        batch = next(batches)
        if reports:
            report_amp(state, batch)
        train_steps(state, batches, progress, 2, lambda progress: None)
        weights = state.precision.weights
        return [weights.saved.state_dict(), state.optimizer.state_dict(), state.precision.state_dict()]

    assert_same_state(train(reports=True), train(reports=False))
