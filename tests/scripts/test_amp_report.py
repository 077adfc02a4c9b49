"""amp_report: listed ops have their dtypes, forward and backward, eager, compiled and under DDP."""

import json
import math

import pytest
import torch
from conftest import GREY, TINY_VIT, run_script, train

from configs.reading.command_line import parse_command_line
from engine.checkpoint.reader import load_checkpoint
from scripts.amp_report.report import inspect, summary, texts
from utils.errors import UserError

OPTIONS = [*TINY_VIT, *GREY, "DATA.BATCH_SIZE=8", "DATA.DATASET=digits"]
LISTS = ["AMP.CUSTOM_BLACK_LIST=[softmax, gelu, blocks.1.mlp]", "AMP.CUSTOM_WHITE_LIST=[layer_norm]"]


def dtypes(report: dict, name: str, direction: str) -> dict[str, str]:
    """Module -> the dtype of a listed op."""
    rows = [row for row in report["ops"] if row["listed_as"] == name and row[direction]]
    return {module: row["type"] for row in rows for module in row["modules"]}


def assert_lists_apply(report: dict) -> None:
    for direction in ("forward", "backward"):
        assert dtypes(report, "softmax", direction) == {f"blocks.{block}.attn": "float32" for block in (0, 1)}
        assert dtypes(report, "gelu", direction) == {f"blocks.{block}.mlp.act": "float32" for block in (0, 1)}
        assert set(dtypes(report, "layer_norm", direction).values()) == {"bfloat16"}
        linear = dtypes(report, "linear", direction)
        assert {name for name, dtype in linear.items() if dtype == "float32"} == {
            "blocks.1.mlp.fc1",
            "blocks.1.mlp.fc2",
        }
        assert linear["blocks.0.mlp.fc1"] == linear["blocks.1.attn.qkv"] == linear["head"] == "bfloat16"
    assert report["never_ran"] == []


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_listed_ops_run_in_their_dtypes(cpu, compiled):
    torch._dynamo.reset()
    assert_lists_apply(inspect(parse_command_line(["-amp", "-opts", *OPTIONS, *LISTS]).config, cpu, compiled))


@pytest.mark.slow
def test_the_script_under_ddp(tmp_path):
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    file = tmp_path / "report.json"
    argv = ["scripts/amp_report/report.py", "-amp", f"-json={file}", "-opts", *OPTIONS, *LISTS]
    printed = run_script(*argv, launcher=launcher)
    assert_lists_apply(json.loads(file.read_text()))
    assert printed.count("First inf or NaN: none.") == 1
    assert "| _softmax_backward_data | softmax | float32 | 0 | 2 | blocks.*.attn |" in printed


def test_without_lists_softmax_is_half_and_a_fused_softmax_is_reported(cpu):
    report = inspect(parse_command_line(["-amp", "-opts", *OPTIONS, "MODEL.ATTENTION=explicit"]).config, cpu, False)
    assert set(dtypes(report, "softmax", "forward").values()) == {"bfloat16"}
    fused = ["AMP.CUSTOM_BLACK_LIST=[softmax]", "MODEL.ATTENTION=fused"]
    listed = parse_command_line(["-amp", "-opts", *OPTIONS, *fused]).config
    report = inspect(listed, cpu, False)
    assert report["never_ran"] == ["softmax"]
    assert any("not run as a separate op: softmax" in text for text in texts(report))
    assert dtypes(report, "scaled_dot_product_attention", "backward")


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_the_origin_of_an_overflow(digits_argv, cpu, level):
    """Weights that are finite in fp32 and infinite in float16. The range of the activations shows them, too."""
    folder = train([*digits_argv, "TRAIN.MAX_STEPS=5"], cpu)
    state = load_checkpoint(folder / "last.pth")["model"]
    state["blocks.1.mlp.fc2.weight"] *= 1e6
    torch.save(state, folder / "large.pth")
    argv = ["-amp_dtype=float16", f"-pretrained={folder / 'large.pth'}", *digits_argv, f"AMP.LEVEL={level}"]
    report = inspect(parse_command_line(argv).config, cpu, False)
    assert report["first_non_finite"] == "the output of blocks.1.mlp.fc2"
    blocks = {row["block"]: row for row in report["blocks"]}
    assert blocks["blocks.1"]["largest_activation"] > 65504 > blocks["blocks.0"]["largest_activation"]
    assert report["loss_scale"] == 65536


def test_a_run_in_progress_is_inspected_at_its_position(digits_argv, cpu):
    argv = ["-amp_dtype=float16", "-batch_size=8", *digits_argv, "AMP.INIT_LOSS_SCALING=512"]
    folder = train([*argv, "AMP.INCR_EVERY_N_STEPS=2", "TRAIN.MAX_STEPS=4"], cpu)
    report = inspect(parse_command_line([f"-resume={folder}", *argv]).config, cpu, False)
    assert report["loss_scale"] == 2048
    assert any(row["underflow_unscaled"] for row in report["blocks"])
    for row in report["blocks"]:
        if row["underflow_unscaled"] is not None:
            assert 0 <= row["underflow_scaled"] <= row["underflow_unscaled"] <= 1
        assert math.isfinite(row["largest_activation"] or 0)


def test_the_summary_of_modules():
    paths = [f"blocks.{block}.{name}" for block in range(3) for name in ("attn", "mlp")] + ["head"]
    assert summary([f"blocks.{block}.attn" for block in range(3)], paths) == "blocks.*.attn"
    assert summary(["blocks.2.mlp", "blocks.0.mlp", "head", ""], paths) == "(outside) blocks.0,2.mlp head"


def test_a_mistake_is_a_one_line_error(cpu):
    printed = run_script("scripts/amp_report/report.py", "-cfg=configs/vit_digits.yaml", "-amp", "-compiledd", status=1)
    assert printed.startswith("error: ") and "did you mean -compiled?" in printed and "Traceback" not in printed
    with pytest.raises(UserError, match="sofmax is neither an op nor a module"):
        listed = parse_command_line(["-amp", "-opts", *OPTIONS, "AMP.CUSTOM_BLACK_LIST=[sofmax]"]).config
        inspect(listed, cpu, False)
