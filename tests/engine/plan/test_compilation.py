"""TRAIN.COMPILE auto: default on a GPU if the steps to come save more than compiling costs. The GPU has only a name."""

import json
from dataclasses import replace

import pytest
import torch
from conftest import cli, config_for, each_row, each_value
from fake_gpu import CONTEXT
from pytest import fixture, importorskip, mark

from configs.batch_plan import plan_batches
from configs.command_line import parse_command_line
from configs.resolve import COMPILE_SECONDS, SAVED_SHARE, Facts, follow_facts
from configs.schema import Train
from engine.plan.training import Plan, compile_if_it_pays, plan_training
from engine.run.log import RunLogger
from utils.errors import UserError

LONG = Facts(eager_seconds=3600.0)
AMP = ("AMP.ENABLED=true",)
# 1,437 images of the digits: 5 steps per epoch
VIT_B = ("-image_size=224", "-batch_size=256", "-amp", "-opts", "MODEL.FUSED_BLOCKS=false")


def chosen(facts: Facts, *options: str) -> str:
    return follow_facts(config_for("-opts", *options), facts).train.compile


@mark.parametrize("level", ["O1", "O2"])
def test_the_steps_to_come_save_more_than_compiling_costs(level):
    limit = COMPILE_SECONDS / SAVED_SHARE[level]
    found = [chosen(Facts(eager_seconds=limit * factor), *AMP, f"AMP.LEVEL={level}") for factor in (0.99, 1.01)]
    assert found == ["auto", "default"]
    assert 50 < limit < 200


UNMEASURED = """
options
SEED=1
AMP.ENABLED=true AMP.LEVEL=O3
AMP.ENABLED=true DETERMINISTIC=true
AMP.ENABLED=true PARALLEL.STRATEGY=fsdp
"""


@each_row(UNMEASURED)
def test_without_a_measured_gain_nothing_is_compiled(options):
    assert chosen(LONG, *cli(options)) == "auto"
    assert not follow_facts(config_for(), LONG).train.compiles


def test_a_value_that_is_given_and_the_value_of_a_resumed_run_stay():
    assert [chosen(LONG, *AMP, f"TRAIN.COMPILE={value}") for value in ("none", "model")] == ["none", "model"]
    assert [chosen(replace(LONG, compile=value), *AMP) for value in ("auto", "none", "max")] == ["auto", "none", "max"]


CHOSEN = """
given | expected
{} | auto
{TRAIN.COMPILE: default} | default
 | default
"""


@each_value(CHOSEN)
def test_the_chosen_value_of_a_run_is_chosen_again_for_the_device_of_the_next_start(tmp_path, given, expected):
    """A run on a GPU that is resumed on a CPU is not compiled; a value that the user gave stays."""
    (tmp_path / "config.yaml").write_text("TRAIN: {COMPILE: default}")
    (tmp_path / "run.json").write_text(json.dumps({"given": given}))
    (tmp_path / "status.json").touch()
    config = config_for(f"-resume={tmp_path}")
    assert config.train.compile == expected
    assert follow_facts(config, LONG).train.compile == expected
    of_checkpoint = replace(LONG, compile="default")  # on a GPU
    assert follow_facts(config, of_checkpoint).train.compile == "default"


@fixture
def plan(cpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr("engine.plan.training.check_compiler", lambda device: None)

    def plan_of(*words: str, options: tuple[str, ...] = ()) -> Plan:
        command = parse_command_line(["-dataset=digits", *words, *VIT_B, *options])
        made = plan_training(command, cpu, RunLogger(cpu), lambda *_: pytest.fail("a search"))
        assert made.config.train.compile == command.config.train.compile  # on a CPU
        return made

    return plan_of


def compiled(plan: Plan) -> Train:
    """TRAIN on a GPU."""
    return compile_if_it_pays(plan, Facts(), CONTEXT, RunLogger(CONTEXT)).train


MINUTES = """
word | options | expected
-epochs=200 | [] | default  # 1,280 images of 105 GFLOPs in 0.425 s
-epochs=100 | [] | auto
-minutes=2 | [] | auto
-minutes=5 | [] | default
-epochs=200 | [MODEL.TYPE=timm, MODEL.NAME=resnet18] | auto
"""


@each_value(MINUTES)
def test_a_gpu_compiles_runs_of_minutes_with_equal_blocks(plan, word, options, expected):
    made = plan(word, options=options)
    assert plan_batches(made.config, 1).global_size == 256
    assert compiled(made).compile == expected


FUSED = """
options | expected
[MODEL.DROPOUT=0.1, MODEL.DROPPATH=0.3] | auto
[MODEL.GRAD_CHECKPOINTING=cheap] | default
['AMP.CUSTOM_BLACK_LIST=[gelu]'] | default
['AMP.CUSTOM_BLACK_LIST=[elementwise_add]'] | auto
[MODEL.INIT_VALUES=1e-5] | default
[MODEL.QKV_BIAS=false] | default
"""


@each_value(FUSED)
def test_fused_blocks_are_not_compiled(plan, monkeypatch, options, expected):
    importorskip("triton")
    monkeypatch.setattr("models.fused_proof.find_fault", lambda *_: "")
    made = plan("-epochs=400", options=("MODEL.FUSED_BLOCKS=true", *options))
    assert compiled(made).compile == expected


@mark.parametrize("fails_here", [True, False])
def test_blocks_are_compiled_if_triton_does_not_work_on_one_rank(plan, monkeypatch, fails_here):
    importorskip("triton")
    faults = ["Triton does not work", ""]
    of_other = faults.pop(fails_here)
    monkeypatch.setattr("models.fused_proof.find_fault", lambda *_: faults[0])
    monkeypatch.setattr("engine.precision.policy.gather_objects", lambda value, context: [value, of_other])
    made = plan("-epochs=400", options=("MODEL.FUSED_BLOCKS=true",))
    assert compiled(made).compile == "default"


def fail(*_: object):
    raise UserError("no compiler")


@mark.parametrize("part", ["check_compiler", "build_model"])  # the latter: without memory
def test_a_run_that_did_not_ask_for_it_trains_without_it(plan, monkeypatch, part):
    made = plan("-epochs=200")
    monkeypatch.setattr(f"engine.plan.training.{part}", fail)
    assert not compiled(made).compiles
