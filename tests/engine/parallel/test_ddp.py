"""Gradients of three ranks: buckets, 16-bit hooks, non-finite values, exact resume, a run of one rank continued."""

import json
from pathlib import Path

import pytest
import torch
from conftest import GREY, TINY_VIT, assert_same_state, only_run, run_script, states, step_rows, train

from configs.schema import Parallel
from engine.parallel.ddp import DDP
from utils.distributed import ProcessContext

RANKS = 3
ONE = ProcessContext(0, 0, 1, 1, torch.device("cpu"))
HOOKS = ("bf16", "fp16")
STEPS = 5


def argv_for(output: Path, *more: str) -> list[str]:
    """Five steps of a model of several buckets; two micro-steps each on three ranks."""
    options = [
        *TINY_VIT, *GREY, "MODEL.EMBED_DIM=96", "PARALLEL.BUCKET_MB=0.1", "TRAIN.BASE_LR=1e-3", "TRAIN.GRAD_CLIP=1.0",
        "DATA.GLOBAL_BATCH_SIZE=96", "REPORT_FREQ=1", f"TRAIN.MAX_STEPS={STEPS}",
    ]  # fmt: skip
    return ["-dataset=digits", "-batch_size=16", "-num_workers=0", f"-output={output}", "-opts", *options, *more]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> tuple[list[dict], Path]:
    """The report of each rank, and the folder of the runs."""
    root, random = tmp_path_factory.mktemp("runs"), ("MODEL.DROPOUT=0.1", "TRAIN.MIXUP_ALPHA=0.8")
    train(argv_for(root / "continued", "TRAIN.MAX_STEPS=2"), ONE)
    train(argv_for(root / "one rank"), ONE)
    commands = [[*argv_for(root / "continued"), f"MODEL.RESUME={only_run(root / 'continued')}"]]
    for hook in HOOKS:
        options = (f"PARALLEL.COMM_HOOK={hook}", *random)
        whole, parts = (argv_for(root / hook / name, *options) for name in ("whole", "parts"))
        commands += [whole, [*parts, "TRAIN.MAX_STEPS=2"], [*parts, "MODEL.RESUME=auto"]]
    printed = run_script(str(Path(__file__).with_name("ddp_worker.py")), str(RANKS), json.dumps(commands))
    reports = [json.loads(line) for line in printed.splitlines() if line.startswith('{"rank"')]
    return sorted(reports, key=lambda report: report["rank"]), root


@pytest.mark.parametrize(
    ("name", "error"), [("none", 1e-6), ("25 MiB", 1e-6), ("per parameter", 1e-6), ("bf16", 5e-3), ("fp16", 6e-4)]
)
def test_each_rank_has_the_mean_gradient(ranks, name, error):
    """The error of a hook is that of its dtype: a rounding before and during the sum."""
    reports = [report[name] for report in ranks[0]]
    assert len(reports) == RANKS and len({report["checksum"] for report in reports}) == 1
    assert all(report["error"] < error for report in reports)
    assert error < 1e-5 or reports[0]["error"] > error / 20


@pytest.mark.parametrize("name", ["none", "25 MiB", "per parameter", "bf16", "fp16"])
def test_the_first_step_sums_as_all_later_steps(ranks, name):
    """DDP regroups its buckets after its first pass, which the warm-up runs, with and without a hook."""
    assert all(report[name]["repeats"] for report in ranks[0])


def test_a_gradient_beyond_the_range_of_fp16_is_seen_by_all_ranks(ranks):
    for report in ranks[0]:
        assert report["fp16"]["infinite"] and not report["fp16"]["updates"]
        assert not report["bf16"]["infinite"] and report["bf16"]["updates"]
        assert not report["none"]["infinite"] and report["none"]["updates"]


def test_the_figures_of_the_exchange(ranks):
    figures = {name: ranks[0][0][name]["communication"] for name in ranks[0][0] if name != "rank"}
    parameters = 5 * (400 * 400 + 400)
    assert {name: values["buckets"] for name, values in figures.items()} == {
        "none": 2, "25 MiB": 1, "per parameter": 10, "bf16": 2, "fp16": 2,
    }  # fmt: skip
    for name, values in figures.items():
        is_half = name in ("bf16", "fp16")
        assert values["bytes_per_step"] == parameters * (2 if is_half else 4)
        assert values["dtype"] == {"bf16": "bfloat16", "fp16": "float16"}.get(name, "float32")
        assert 0 <= values["hidden_seconds"] <= values["seconds"] < 60


def test_a_torch_without_figures_leaves_them_unknown():
    found = DDP(torch.device("cpu"), Parallel(COMM_HOOK="bf16")).communication(torch.nn.Linear(3, 2))
    assert (found.dtype, found.bytes_per_step) == ("bfloat16", 16)
    assert (found.buckets, found.seconds, found.hidden_seconds) == (None, None, None)


@pytest.mark.parametrize("hook", HOOKS)
def test_resume_is_exact_with_each_hook(ranks, hook):
    whole, parts = (only_run(ranks[1] / hook / name) for name in ("whole", "parts"))
    assert_same_state(states(parts), states(whole))
    assert states(parts)["done_steps"] == STEPS and "Resume: epoch 1, step 2\n" in (parts / "log.txt").read_text()


def test_three_ranks_continue_a_run_of_one(ranks):
    """With DATA.GLOBAL_BATCH_SIZE, and without dropout and mixup, which depend on the rank."""
    folders = [only_run(ranks[1] / name) for name in ("one rank", "continued")]
    (one, many), (rows, expected) = map(states, folders), map(step_rows, folders)
    assert rows == expected and len(rows) == STEPS
    assert one["geometry"] == many["geometry"] | {"batch_size": 16, "accum_iter": 6}
    for name, value in one["model"].items():
        assert torch.allclose(value, many["model"][name], rtol=0, atol=1e-5), name
