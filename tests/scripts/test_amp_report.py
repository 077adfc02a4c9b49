"""amp_report: the ops of a pass with their dtypes, the range of its values, the first inf."""

import json
import math
from collections import Counter

import pytest
import torch
from conftest import GREY, TINY_VIT, train

from configs.reading.command_line import parse_command_line
from engine.checkpoint.reader import load_checkpoint
from scripts.amp_report import report as amp_report
from scripts.amp_report.inspection import OpRecorder, gradient_underflow
from scripts.amp_report.report import inspect

OPTIONS = ["-opts", *TINY_VIT, *GREY, "DATA.BATCH_SIZE=8", "DATA.DATASET=digits"]
LISTS = ["AMP.CUSTOM_BLACK_LIST=[softmax, gelu, blocks.1.mlp]", "AMP.CUSTOM_WHITE_LIST=[layer_norm]"]


def report_of(context, *argv: str) -> dict:
    return inspect(parse_command_line([*argv]), context)


def dtypes(report: dict, name: str, direction: str) -> dict[str, str]:
    """Module -> the dtype of a listed op."""
    rows = [row for row in report["ops"] if row["listed_as"] == name and row[direction]]
    return {module: row["type"] for row in rows for module in row["modules"]}


def test_listed_ops_run_in_their_dtypes(tmp_path, capsys):
    amp_report.main(["-amp", f"-json={tmp_path / 'report.json'}", *OPTIONS, *LISTS])
    report, printed = json.loads((tmp_path / "report.json").read_text()), capsys.readouterr().out
    for direction in ("forward", "backward"):
        assert dtypes(report, "softmax", direction) == {f"blocks.{block}.attn": "float32" for block in (0, 1)}
        assert dtypes(report, "gelu", direction) == {f"blocks.{block}.mlp.act": "float32" for block in (0, 1)}
        assert set(dtypes(report, "layer_norm", direction).values()) == {"bfloat16"}
        in_float32 = {name for name, dtype in dtypes(report, "linear", direction).items() if dtype == "float32"}
        assert in_float32 == {"blocks.1.mlp.fc1", "blocks.1.mlp.fc2"}
    linear = Counter({"blocks.0.attn.qkv": 1, "blocks.0.mlp.fc1": 1, "head": 1})
    counts = {row["modules"].get(name) for name in linear for row in report["ops"] if row["op"] == "addmm"} - {None}
    assert counts == {1}
    assert "First inf or NaN: none." in printed
    assert "| _softmax_backward_data | softmax | float32 | 0 | 2 | blocks.*.attn |" in printed


def test_without_lists_softmax_is_half_and_a_fused_attention_is_one_op(cpu):
    report = report_of(cpu, "-amp", *OPTIONS, "MODEL.ATTENTION=explicit")
    assert set(dtypes(report, "softmax", "forward").values()) == {"bfloat16"}
    report = report_of(cpu, "-amp", *OPTIONS, "AMP.CUSTOM_BLACK_LIST=[softmax]", "MODEL.ATTENTION=fused")
    assert not dtypes(report, "softmax", "forward")
    assert dtypes(report, "scaled_dot_product_attention", "backward")


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_the_origin_of_an_overflow(digits_argv, cpu, level):
    """Weights that are finite in fp32 and infinite in float16. The range of the activations shows them, too."""
    folder = train([*digits_argv, "TRAIN.MAX_STEPS=2"], cpu)
    state = load_checkpoint(folder / "last.pth")["model"]
    state["blocks.1.mlp.fc2.weight"] *= 1e6
    torch.save(state, folder / "large.pth")
    argv = ["-amp_dtype=float16", f"-pretrained={folder / 'large.pth'}", *digits_argv, f"AMP.LEVEL={level}"]
    report = report_of(cpu, *argv)
    assert report["first_non_finite"] == "the output of blocks.1.mlp.fc2"
    blocks = {row["block"]: row for row in report["blocks"]}
    assert blocks["blocks.1"]["largest_activation"] > 65504 > blocks["blocks.0"]["largest_activation"]
    assert report["loss_scale"] == 65536


def test_a_run_in_progress_is_inspected_at_its_position(digits_argv, cpu):
    argv = ["-amp_dtype=float16", "-batch_size=8", *digits_argv, "AMP.INIT_LOSS_SCALING=512"]
    folder = train([*argv, "AMP.INCR_EVERY_N_STEPS=2", "TRAIN.MAX_STEPS=4"], cpu)
    report = report_of(cpu, f"-resume={folder}", *argv)
    assert report["loss_scale"] == 2048
    assert any(row["underflow_unscaled"] for row in report["blocks"])
    for row in report["blocks"]:
        assert 0 <= (row["underflow_scaled"] or 0) <= (row["underflow_unscaled"] or 0) <= 1
        assert math.isfinite(row["largest_activation"] or 0)


def test_the_largest_activation_may_be_inside_a_module_and_hooks_are_removed():
    """No module outputs the attention logits."""
    attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8))
    model.blocks = torch.nn.ModuleList([attention])
    with OpRecorder(model) as recorder:
        weights = attention(*3 * [1e3 * torch.ones(1, 2, 8)])[1]
    peak = recorder.peaks["blocks.0"]
    assert peak.module == "blocks.0" and peak.op in ("bmm", "baddbmm", "addmm") and peak.value > weights.max()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("scale", [1.0, 65536.0])
def test_underflow_equals_the_underflow_of_a_cast_to_float16(scale):
    model = torch.nn.ModuleDict({"norm": torch.nn.LayerNorm(64), "head": torch.nn.Linear(64, 64)})
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator) * 1e-7
    model.norm.weight.grad, model.norm.bias.grad = torch.zeros(64), None
    found = gradient_underflow(model, scale)
    gradients = torch.cat([parameter.grad.flatten() for parameter in model.head.parameters()])
    for value, share in ((gradients, found["head"][0]), (gradients * scale, found["head"][1])):
        assert share == pytest.approx((value.half() == 0).double().mean().item(), abs=1e-9)
    assert "norm" not in found  # all its gradients are 0
