"""benchmark_parallel.py: the variants, the predictions and the tables. No test here needs a GPU."""

import json

import pytest
import torch.distributed as dist
from conftest import TINY_VIT

from scripts.benchmarks import benchmark_parallel
from scripts.benchmarks.benchmark_parallel import VARIANTS, checked_variants, measure_all, variant_config
from scripts.benchmarks.parallel_predictions import predictions
from scripts.benchmarks.parallel_report import variant_rows
from scripts.flags import split_flags
from utils.errors import UserError

REST = ["-cfg=configs/vit_tiny_patch16_224.yaml", "-opts", *TINY_VIT, "AMP.ENABLED=false"]


@pytest.fixture
def one_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.usefixtures("one_rank")
def test_every_variant_runs_in_one_process(tmp_path, cpu):
    file = tmp_path / "parallel.json"
    flags, rest = split_flags(benchmark_parallel._parser(), ["-warmup=1", "-steps=1", f"-json={file}", *REST])
    result = measure_all(rest, list(VARIANTS), [2], flags, cpu)
    assert json.loads(file.read_text()) == result and result["ranks"] == 1
    assert set(result["variants"]) == {f"{name}-2" for name in VARIANTS}
    for one in result["variants"].values():
        assert "failed" not in one and one["images_per_second"] == pytest.approx(2 / one["step_seconds"])
    assert all(row[4:] == ["", ""] for row in variant_rows(result))  # a CPU has no datasheet figures


def figures(seconds: float, batch_size: int) -> dict:
    return {"step_seconds": seconds, "images_per_second": batch_size / seconds, "peak_memory_bytes": 1e9}


@pytest.mark.slow
def test_the_first_variant_calibrates_the_planner():
    configs = {f"{name}-{size}": variant_config(REST, name, size) for size in (4, 8) for name in ("one", "fsdp")}
    variants = {key: figures(0.001, config.data.batch_size) for key, config in configs.items()}
    one_gpu = predictions(configs, {"device": "NVIDIA H200", "ranks": 1, "variants": variants})
    assert set(one_gpu) == {"one-4", "one-8"} and set(one_gpu["one-4"]) == {"predicted_bytes"}
    # The optimizer's part of a step does not grow with the batch.
    assert one_gpu["one-8"]["predicted_images_per_second"] == pytest.approx(4000, rel=0.05)
    four = predictions(configs, {"device": "NVIDIA H200", "ranks": 4, "variants": variants})
    assert four["fsdp-4"]["predicted_bytes"] < four["one-4"]["predicted_bytes"]
    failed = {key: {"failed": "why"} for key in configs}
    assert predictions(configs, {"device": "NVIDIA H200", "ranks": 1, "variants": failed}) == {}


def test_unknown_variants_are_refused():
    with pytest.raises(UserError, match="unknown fsd; did you mean fsdp"):
        checked_variants("ddp,fsd")


def test_rows_have_the_error_of_the_planner():
    predicted = {"predicted_images_per_second": 640.0, "predicted_bytes": 0.9e9}
    variants = {"fsdp-64": figures(0.12, 64) | predicted, "ddp_bf16-64": {"failed": "why"}}
    assert variant_rows({"variants": variants}) == [
        ["fsdp-64", "120.0", "533.3", "1.00", "640.0 (+20.0%)", "0.90 (-10.0%)"],
        ["ddp_bf16-64", "failed: why", "", "", "", ""],
    ]
