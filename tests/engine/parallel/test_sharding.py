"""FSDP and HSDP on two ranks: equal to DDP, half its memory, and one line for each option that does not work."""

import time
from typing import Any

import sharding_cases as cases
import torch
from conftest import (
    GREY,
    TINY_RESNET,
    TINY_VIT,
    assert_same_state,
    cells_of,
    cli,
    config_for,
    refused,
    slow,
    states,
    train,
)
from pytest import fixture, mark
from sharding_cases import FSDP, against_ddp
from torch import nn

from configs.batch_plan import BatchPlan, EpochLayout
from engine.checkpoint.files import CheckpointWriter
from engine.parallel import FSDP as FullyShardedDataParallel
from engine.parallel import build_strategy
from engine.precision.non_finite import first_non_finite
from engine.training.optimizer import SHARDED_OPTIMIZERS
from engine.training.trial import state_without_data
from utils.distributed import ProcessContext

CLIP = "TRAIN.GRAD_CLIP=0.5"
BF16 = "AMP.ENABLED=true"
AVERAGE = "TRAIN.MODEL_EMA=true TRAIN.MODEL_EMA_DECAY=0.9"
FP16 = f"{BF16} AMP.DTYPE=float16 AMP.INIT_LOSS_SCALING=5e4 AMP.INCR_EVERY_N_STEPS=1 {CLIP}"
CHEAP = "MODEL.GRAD_CHECKPOINTING=cheap"
RATES = "MODEL.DROPOUT=0.1 MODEL.DROPPATH=0.3"
OP_LISTS = "AMP.CUSTOM_BLACK_LIST=[add,gelu,cat,blocks.1.*] AMP.CUSTOM_WHITE_LIST=[layer_norm]"
SHARDED = " ".join(FSDP)


@fixture
def both(ranks):
    """Calls a function on two ranks."""
    return ranks(2)


def is_equal(found: dict) -> bool:
    """The same weights and gradient norms as DDP, but for the order of sums, after a training that changed them."""
    return found["weights"] < 1e-6 < 1e-4 < found["moved"] and found["norms"] < 1e-6


# Options, and those of the sharded training alone
TRAININGS = f"""
fp32 | TRAIN.ACCUM_ITER=2 {CLIP} {AVERAGE} | {SHARDED}
bf16 | {BF16} {CLIP} | {SHARDED}
op lists | {BF16} MODEL.GRAD_CHECKPOINTING=true {OP_LISTS} | {SHARDED}
cheap with ddp | {BF16} {RATES} | {CHEAP}
cheap, op lists | {BF16} {RATES} {OP_LISTS} | {SHARDED} {CHEAP}
cheap, accumulation | {RATES} MODEL.ATTENTION=fused TRAIN.ACCUM_ITER=2 | {SHARDED} {CHEAP}
frozen | {BF16} MODEL.TUNE=head | {SHARDED}
last block | {BF16} MODEL.TUNE=last:1 MODEL.GRAD_CHECKPOINTING=true | {SHARDED}
kept gathered | MODEL.GRAD_CHECKPOINTING=true TRAIN.LAYER_DECAY=0.7 MODEL.ATTENTION=fused | \
    {SHARDED} PARALLEL.RESHARD_AFTER_FORWARD=false
"""
CASES = {name: (cli(options), cli(sharded)) for name, options, sharded in cells_of(TRAININGS)}


@mark.slow
@mark.parametrize("case", CASES)
def test_training_equals_ddp(both, case):
    options, sharded = CASES[case]
    steps = 20 if case == "fp32" else 5
    assert is_equal(both(against_ddp, options, sharded, steps)[0])


@mark.slow
@mark.parametrize("name", sorted(SHARDED_OPTIMIZERS))
def test_optimizers_equal_ddp(both, name):
    options = [f"TRAIN.OPTIMIZER.NAME={name}", CLIP, "TRAIN.LAYER_DECAY=0.8"]
    assert is_equal(both(against_ddp, options, FSDP, 4)[0])


@mark.slow
@mark.parametrize("options", [cli(FP16), cli(f"{FP16} TRAIN.OPTIMIZER.NAME=lamb")], ids=["fused", "not fused"])
def test_loss_scale_falls_on_all_ranks_as_under_ddp(both, options):
    report, _ = both(against_ddp, options)
    ddp, sharded = report["skipped"]
    assert is_equal(report)
    assert ddp == sharded > 0


@mark.slow
def test_training_in_o2_is_as_close_to_ddp_as_bf16_sums_allow(both):
    """bf16 has 8 bits. DDP sums the gradients in bf16, sharded training in fp32. A key bias is rounding errors only."""
    report, _ = both(against_ddp, cli(f"{BF16} AMP.LEVEL=O2 MODEL.QKV_BIAS=false {AVERAGE}"), FSDP)
    assert report["weights"] < 2**-5 * report["moved"]
    assert 0 < report["norms"] < 2**-8


RESTORED = f"""
{SHARDED} {BF16} AMP.LEVEL=O2 TRAIN.ACCUM_ITER=2 {CLIP} {AVERAGE}
{SHARDED} {FP16} TRAIN.OPTIMIZER.NAME=lamb TRAIN.LAYER_DECAY=0.8
{SHARDED} MODEL.TUNE=last:1 TRAIN.OPTIMIZER.NAME=sgd
PARALLEL.STRATEGY=hsdp PARALLEL.SHARDS_PER_GROUP=2 {AVERAGE}
{BF16} AMP.LEVEL=O2 TRAIN.OPTIMIZER.NAME=muon TRAIN.ACCUM_ITER=2 {CLIP} {AVERAGE}
"""


@mark.slow
@mark.parametrize("options", map(cli, RESTORED.strip().splitlines()))
def test_a_restored_state_trains_bit_for_bit_as_the_saved_one(both, tmp_path, options):
    on_ranks = both(cases.resumed, options, tmp_path / "x.pth")
    for rank, (saved, restored) in enumerate(on_ranks):
        assert_same_state(saved, restored, f"rank {rank}")
    assert_same_state(on_ranks[0][0], on_ranks[1][0], "the ranks")


@mark.slow
def test_non_finite_gradient_on_one_rank_changes_no_weight(both):
    for report in both(cases.non_finite):
        assert report["unchanged"] == 0
        assert report["skipped"] == 1
        assert report["weights"] < 1e-6


@mark.slow
def test_hsdp_meshes_equal_ddp(both):
    """One group of two ranks, and two groups of one."""
    assert all(map(is_equal, both(cases.hsdp)[0]))


@mark.slow
def test_o2_gathers_half_weights_and_fp32_norms(both):
    report, _ = both(cases.o2_dtypes)
    assert report["kept"] == ["torch.float32"]
    for path, dtype in report["passes"].items():
        assert dtype == ("torch.float32" if "norm" in path else "torch.bfloat16"), path


@mark.slow
def test_each_rank_holds_half_of_parameters_gradients_moments_and_average(both):
    """All but the class token, whose first dimension cannot be divided."""
    reports = both(cases.memory)
    for ddp, sharded in reports:
        assert all(0.49 < part / total < 0.51 for part, total in zip(sharded, ddp, strict=True))
    for total, *parts in zip(reports[0][0], *(sharded for _, sharded in reports), strict=True):
        assert sum(parts) == total


@mark.slow
def test_evaluation_between_steps_sees_the_current_weights(both):
    """Gathered parameters that stayed after an evaluation would be parameters of an earlier step."""
    assert max(both(cases.evaluation)[0]) < 1e-6


def origin(context: ProcessContext) -> Any:
    """A weight's gradient overflows on rank 1 alone; all ranks search."""
    config = config_for("-opts", *FSDP)
    strategy = build_strategy(config.parallel, context)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    strategy.shard(model, None, lambda module: None)
    images = torch.ones(2, 4) * (1e10 if context.rank == 1 else 1.0)
    found = first_non_finite(model, lambda: (model(images) * 1e30).sum().backward(), strategy.gather_in_turn(model))
    return found and str(found)


@mark.slow
def test_search_for_the_first_non_finite_module_sees_gathered_gradients(both):
    assert both(origin) == [None, "the gradient of the weight of 1"]


TWO = ProcessContext(0, 0, 2, 2, torch.device("cpu"))  # without a process group: refused before it is used
REFUSED = {
    r"AMP\.LEVEL": [*TINY_VIT, "AMP.ENABLED=true", "AMP.LEVEL=O3"],
    r"TRAIN\.OPTIMIZER\.NAME: muon": [*TINY_VIT, "TRAIN.OPTIMIZER.NAME=muon"],
    r"PARALLEL\.SHARDS_PER_GROUP: .* 3;": [*TINY_VIT, "PARALLEL.STRATEGY=hsdp", "PARALLEL.SHARDS_PER_GROUP=3"],
    r"MODEL\.TUNE lora": [*TINY_VIT, "MODEL.TUNE=lora"],
    r"PARALLEL\.STRATEGY: .*conv1": TINY_RESNET,
}


@mark.parametrize("named, options", REFUSED.items())
def test_options_that_do_not_work_are_refused(named, options):
    config = config_for("-opts", *FSDP, *options)
    with refused(named):
        state_without_data(config, TWO, EpochLayout(100, BatchPlan(8), 0))


@mark.parametrize("rank", [0, 2])
def test_hsdp_on_hosts_with_different_numbers_of_ranks_is_refused_on_all(monkeypatch, rank):
    monkeypatch.setattr("engine.parallel.gather_objects", lambda count, context: [2, 2, 1])
    context = ProcessContext(rank, rank % 2, 3, (2, 2, 1)[rank], torch.device("cpu"), ("a", "a", "b"))
    options = config_for("-opts", "PARALLEL.STRATEGY=hsdp").parallel
    with refused(r"rank 2 \(b\) is one of 1 .* rank 0 \(a\) one of 2; .*SHARDS_PER_GROUP"):
        FullyShardedDataParallel(options, context)


@mark.parametrize("strategy", ["fsdp", slow("hsdp")])
@mark.usefixtures("nondeterministic_after_test")
def test_a_sharded_run_of_one_device_resumes_exactly(group_of_one, tmp_path, monkeypatch, strategy):
    """Clipping, average, evaluation, loss scale."""
    monkeypatch.setattr("engine.training.session.build_strategy", FullyShardedDataParallel)  # one rank would use none

    def argv(output, *more):
        options = [*TINY_VIT, *GREY, CLIP, *cli(AVERAGE), "DETERMINISTIC=true", "DATA.FRACTION=0.1"]
        options += cli("TRAIN.BASE_LR=1e-3 SAVE_FREQ_STEPS=2 TRAIN.NUM_EPOCHS=1")
        options += [BF16, "AMP.DTYPE=float16"] if group_of_one.device.type == "cuda" else []
        flags = cli(f"-dataset=digits -batch_size=32 -output={tmp_path / output}")
        return [*flags, "-opts", *options, f"PARALLEL.STRATEGY={strategy}", *more]

    whole = states(train(argv("whole"), group_of_one))
    stopped = train(argv("stopped", "TRAIN.MAX_STEPS=2"), group_of_one)
    assert states(stopped)["done_steps"] == 2
    train(cli(f"-resume={stopped} -opts TRAIN.MAX_STEPS=null"), group_of_one)
    assert_same_state(states(stopped), whole)


def test_a_sharded_state_is_gathered_after_the_last_one_is_written(group_of_one, digits_argv, monkeypatch):
    """The main process has room for one in host memory."""
    monkeypatch.setattr("engine.training.session.build_strategy", FullyShardedDataParallel)
    writing = []
    seen = []
    write = CheckpointWriter._write
    gather = FullyShardedDataParallel.gather

    def write_slowly(*arguments):
        writing.append(True)
        time.sleep(0.1)
        write(*arguments)
        writing.clear()

    def see(*arguments):
        seen.append(bool(writing))
        return gather(*arguments)

    monkeypatch.setattr(CheckpointWriter, "_write", write_slowly)
    monkeypatch.setattr(FullyShardedDataParallel, "gather", see)
    train([*digits_argv, *FSDP, "SAVE_FREQ_STEPS=1", "TRAIN.MAX_STEPS=4"], group_of_one)
    assert len(seen) > 3
    assert not any(seen)
