"""FSDP and HSDP on two ranks: equal to DDP, half its memory, and one line for each option that does not work."""

import json

import pytest
from conftest import run_script

from configs.reading.command_line import parse_command_line
from engine.training.optimization.optimizer import check_sharded_optimizer
from utils.errors import UserError

CASES = (
    "fp32,non_finite,bf16,op_lists,o2,o2_dtypes,fp16_fused,fp16_unfused,hsdp,timeouts,offload,half_sums,frozen,keeps_gathered,"
    "optimizers,memory,resumed,evaluation,origin,shared_modules,refused"
)


@pytest.fixture(scope="module")
def ranks() -> list[dict]:
    """The reports of both ranks."""
    return json.loads(run_worker("2", CASES))


@pytest.fixture
def report(ranks) -> dict:
    return ranks[0]


def run_worker(*arguments: str) -> str:
    output = run_script("tests/engine/parallel/sharding_worker.py", *arguments)
    return next(line for line in output.splitlines() if line.startswith("[{"))


def is_equal(found: dict) -> bool:
    """The same weights and gradient norms as DDP, but for the order of sums, after a training that changed them."""
    return found["weights"] < 1e-6 < 1e-4 < found["moved"] and found["norms"] < 1e-6


def test_fp32_training_with_accumulation_clipping_and_average_equals_ddp(report):
    """20 steps, the weights and their average."""
    assert is_equal(report["fp32"])


def test_non_finite_gradient_on_one_rank_changes_no_weight(ranks):
    for report in ranks:
        assert report["non_finite"]["unchanged"] == 0 and report["non_finite"]["skipped"] == 1
        assert report["non_finite"]["weights"] < 1e-6


@pytest.mark.parametrize("case", ["bf16", "op_lists", "frozen", "keeps_gathered"])
def test_training_equals_ddp(report, case):
    """O1; op lists and recomputed activations; a frozen backbone; parameters kept gathered."""
    assert is_equal(report[case])


def test_hsdp_meshes_equal_ddp(report):
    """One group of two ranks, and two groups of one."""
    assert all(map(is_equal, report["hsdp"]))


def test_all_groups_of_a_mesh_have_the_timeout(ranks):
    assert [report["timeouts"] for report in ranks] == [[77] * 4] * 2


def test_parameters_in_host_memory_train_as_others(ranks):
    """PARALLEL.OFFLOAD in fp32, fp16 with its scaler, and O2, bit for bit, with the norms of all steps."""
    assert [report["offload"] for report in ranks] == [[[0.0, True]] * 3] * 2


def test_optimizers_equal_ddp(report):
    assert len(report["optimizers"]) == 9
    assert all(map(is_equal, report["optimizers"].values()))


@pytest.mark.parametrize("case", ["fp16_fused", "fp16_unfused"])
def test_loss_scale_falls_on_all_ranks_as_under_ddp(report, case):
    assert is_equal(report[case])
    ddp, sharded = report[case]["skipped"]
    assert ddp == sharded > 0


def test_o2_gathers_half_weights_and_fp32_norms(report):
    passes, kept = report["o2_dtypes"]["passes"], report["o2_dtypes"]["kept"]
    assert kept == ["torch.float32"]
    for path, dtype in passes.items():
        assert dtype == ("torch.float32" if "norm" in path else "torch.bfloat16"), path


@pytest.mark.parametrize("case", ["o2", "half_sums"])
def test_training_is_as_close_to_ddp_as_bf16_sums_allow(report, case):
    """bf16 has 8 bits. In O2 DDP sums the gradients in bf16, and sharded training in fp32 by default."""
    assert report[case]["weights"] < 2**-5 * report[case]["moved"]
    assert 0 < report[case]["norms"] < 2**-8


def test_each_rank_holds_half_of_parameters_gradients_moments_and_average(ranks):
    """All but the class token, whose first dimension cannot be divided."""
    for report in ranks:
        ddp, sharded = report["memory"]
        assert all(0.49 < part / whole < 0.51 for part, whole in zip(sharded, ddp, strict=True))
    for whole, *parts in zip(ranks[0]["memory"][0], *(report["memory"][1] for report in ranks), strict=True):
        assert sum(parts) == whole


def test_state_moves_between_sharded_and_whole(report):
    """From shards bit for bit; from DDP and to DDP within the rounding of its sums."""
    assert report["resumed"]["shards to fsdp"] == report["resumed"]["fsdp to fsdp"] == 0
    assert max(report["resumed"].values()) < 1e-6


def test_evaluation_between_steps_sees_the_current_weights(report):
    """Gathered parameters that stayed after an evaluation would be those of an earlier step."""
    assert max(report["evaluation"]) < 1e-6


def test_search_for_the_first_non_finite_module_sees_gathered_gradients(ranks):
    assert [report["origin"] for report in ranks] == [None, "the gradient of the weight of 1"]


def test_blocks_that_share_a_module_are_not_separate_units(report):
    """Of four blocks, two share no module; they and the rest of the model are the units."""
    units, gradients = report["shared_modules"]
    assert units == "3" and gradients < 1e-6


def test_optimizers_with_norms_of_whole_weights_are_refused_in_host_memory():
    lamb = parse_command_line(["-opts", "TRAIN.OPTIMIZER.NAME=lamb"]).config.train.optimizer
    check_sharded_optimizer(lamb)
    with pytest.raises(UserError, match=r"lamb .* PARALLEL\.OFFLOAD=false$"):
        check_sharded_optimizer(lamb, offload=True)


def test_options_that_do_not_work_are_refused_in_one_line(report):
    errors = report["refused"]
    assert "\n" not in "".join(errors.values())
    assert "batch norms (0)" in errors["batch norm"] and errors["batch norm"].endswith("use ddp")
    assert "AMP.LEVEL=O2" in errors["O3"]
    assert "adam, adamw, adamwdl, lamb, lars" in errors["optimizer"]
    assert "TRAIN.MODEL_EMA_FORCE_CPU" in errors["average"]
    assert "PARALLEL.OFFLOAD" in errors["offload"]
    assert "2 processes cannot be divided into groups of 3; set it to one of 2" in errors["groups"]
