"""The report shows the listed ops in their types, forward and backward: eager, compiled, under DDP."""

import json
import math

import pytest
import torch
from conftest import GREY, TINY_VIT, run_script, train

from configs.command_line import parse_command_line
from engine.checkpoint.checkpoint import load_checkpoint
from scripts.amp_report.report import inspect, summary, texts
from utils.errors import UserError

OPTIONS = [*TINY_VIT, *GREY, "DATA.BATCH_SIZE=8", "DATA.DATASET=digits"]
LISTS = ["AMP.CUSTOM_BLACK_LIST=[softmax, gelu, blocks.1.mlp]", "AMP.CUSTOM_WHITE_LIST=[layer_norm]"]


def types(found: dict, name: str, way: str) -> dict[str, str]:
    """By module, the type in which an op of the lists ran."""
    rows = [row for row in found["ops"] if row["listed_as"] == name and row[way]]
    return {module: row["type"] for row in rows for module in row["modules"]}


def assert_lists_hold(found: dict) -> None:
    for way in ("forward", "backward"):
        assert types(found, "softmax", way) == {f"blocks.{block}.attn": "float32" for block in (0, 1)}
        assert types(found, "gelu", way) == {f"blocks.{block}.mlp.act": "float32" for block in (0, 1)}
        assert set(types(found, "layer_norm", way).values()) == {"bfloat16"}
        linear = types(found, "linear", way)
        assert {name for name, dtype in linear.items() if dtype == "float32"} == {
            "blocks.1.mlp.fc1",
            "blocks.1.mlp.fc2",
        }
        assert linear["blocks.0.mlp.fc1"] == linear["blocks.1.attn.qkv"] == linear["head"] == "bfloat16"
    assert found["never_ran"] == []


@pytest.mark.parametrize("compiled", [False, True])
def test_listed_ops_run_in_their_types(cpu, compiled):
    torch._dynamo.reset()
    assert_lists_hold(inspect(parse_command_line(["-amp", "-opts", *OPTIONS, *LISTS]).config, cpu, compiled))


def test_under_ddp_and_as_a_user_starts_it(tmp_path):
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    file = tmp_path / "report.json"
    argv = ["scripts/amp_report/report.py", "-amp", f"-json={file}", "-opts", *OPTIONS, *LISTS]
    printed = run_script(*argv, launcher=launcher)
    assert_lists_hold(json.loads(file.read_text()))
    assert printed.count("First inf or NaN: none.") == 1
    assert "| _softmax_backward_data | softmax | float32 | 0 | 2 | blocks.*.attn |" in printed


def test_without_lists_softmax_is_half_and_a_fused_one_is_told(cpu):
    found = inspect(parse_command_line(["-amp", "-opts", *OPTIONS, "MODEL.ATTENTION=explicit"]).config, cpu, False)
    assert set(types(found, "softmax", "forward").values()) == {"bfloat16"}
    fused = ["AMP.CUSTOM_BLACK_LIST=[softmax]", "MODEL.ATTENTION=fused"]
    listed = parse_command_line(["-amp", "-opts", *OPTIONS, *fused]).config
    found = inspect(listed, cpu, False)
    assert found["never_ran"] == ["softmax"]
    assert any("never run as an op of its own: softmax" in text for text in texts(found))
    assert types(found, "scaled_dot_product_attention", "backward")


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_where_a_run_on_its_way_overflows(digits_argv, cpu, level):
    """Weights that are finite in fp32 and not in float16; the range shows them, too."""
    folder = train([*digits_argv, "TRAIN.MAX_STEPS=5"], cpu)
    state = load_checkpoint(folder / "last.pth")["model"]
    state["blocks.1.mlp.fc2.weight"] *= 1e6
    torch.save(state, folder / "large.pth")
    argv = ["-amp_dtype=float16", f"-pretrained={folder / 'large.pth'}", *digits_argv, f"AMP.LEVEL={level}"]
    found = inspect(parse_command_line(argv).config, cpu, False)
    assert found["first_non_finite"] == "the output of blocks.1.mlp.fc2"
    blocks = {row["block"]: row for row in found["blocks"]}
    assert blocks["blocks.1"]["largest_activation"] > 65504 > blocks["blocks.0"]["largest_activation"]
    assert found["loss_scale"] == 65536


def test_a_resumed_run_is_looked_at_where_it_stands(digits_argv, cpu):
    argv = ["-amp_dtype=float16", "-batch_size=8", *digits_argv, "AMP.INIT_LOSS_SCALING=512"]
    folder = train([*argv, "AMP.INCR_EVERY_N_STEPS=2", "TRAIN.MAX_STEPS=4"], cpu)
    found = inspect(parse_command_line([f"-resume={folder}", *argv]).config, cpu, False)
    assert found["loss_scale"] == 2048
    assert any(row["underflow_unscaled"] for row in found["blocks"])
    for row in found["blocks"]:
        if row["underflow_unscaled"] is not None:
            assert 0 <= row["underflow_scaled"] <= row["underflow_unscaled"] <= 1
        assert math.isfinite(row["largest_activation"] or 0)


def test_modules_in_few_words():
    paths = [f"blocks.{block}.{name}" for block in range(3) for name in ("attn", "mlp")] + ["head"]
    assert summary([f"blocks.{block}.attn" for block in range(3)], paths) == "blocks.*.attn"
    assert summary(["blocks.2.mlp", "blocks.0.mlp", "head", ""], paths) == "(outside) blocks.0,2.mlp head"


def test_a_mistake_is_one_line(cpu):
    printed = run_script("scripts/amp_report/report.py", "-cfg=configs/vit_digits.yaml", "-amp", "-compiledd", status=1)
    assert printed.startswith("error: ") and "did you mean -compiled?" in printed and "Traceback" not in printed
    with pytest.raises(UserError, match="sofmax is no op and no module"):
        listed = parse_command_line(["-amp", "-opts", *OPTIONS, "AMP.CUSTOM_BLACK_LIST=[sofmax]"]).config
        inspect(listed, cpu, False)
