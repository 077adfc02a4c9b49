"""plan.py: published rates, memory against closed forms, the largest batch, and wrong input."""

from bisect import bisect_left

import pytest
import torch
from conftest import TINY_VIT

from configs.reading.command_line import parse_command_line
from configs.schema import Config, Parallel
from engine.precision.policy import Precision
from engine.training.optimizer import moments_per_parameter
from scripts import plan
from scripts.planning.estimate import Cluster, estimate, parse_cluster, strategies
from scripts.planning.workload import Workload, measure_workload
from utils.errors import UserError

TINY = ["-cfg=configs/vit_tiny_patch16_224.yaml", "-opts", *TINY_VIT]
NO_DROPOUT = ["-opts", "MODEL.DROPOUT=0.0", "MODEL.ATTENTION_DROPOUT=0.0"]


def config_of(*argv: str) -> Config:
    return parse_command_line(list(argv)).config


@pytest.fixture(scope="module")
def vit_g() -> Workload:
    """As NVIDIA trained it: bfloat16, O2, AdamW."""
    return measure_workload(config_of("-model=vit_giant_patch14_224", "-amp_dtype=bfloat16", "-opts", "AMP.LEVEL=O2"))


@pytest.fixture(scope="module")
def tiny() -> Workload:
    return measure_workload(config_of(*TINY))


# Published rates

NODES = (1, 2, 4, 8, 16)
# "NVIDIA NeMo Framework User Guide", Vision Transformer, Performance: images/s of ViT-g/14 on hosts of 8 GPUs, with a
# batch size of 64 per device ("Vision Transformer Training", predefined configurations).
PUBLISHED = {"H100": (1428, 2846, 5737, 11222, 21561), "A100": (693, 1347, 2642, 5454, 10644)}


@pytest.mark.parametrize("device", PUBLISHED)
# the guide does not say whether the global batch was constant
@pytest.mark.parametrize(("global_batch", "strategy"), [(None, "ddp"), (4096, "fsdp"), (4096, "hsdp")])
def test_the_published_rates_follow_from_that_of_eight_devices(vit_g, device, global_batch, strategy):
    def setting(nodes: int):
        cluster = parse_cluster(f"8x{device}", nodes)
        shards = {"ddp": 1, "fsdp": cluster.size, "hsdp": 8}[strategy]
        batch = min(64, (global_batch or 10**6) // cluster.size)
        accumulation = global_batch // cluster.size // batch if global_batch else 1
        return vit_g, cluster, shards, batch, accumulation

    def predicted(nodes: int, mfu: float) -> float:
        return estimate(*setting(nodes), mfu, False).images_per_second

    candidates = range(1, 10**9)  # the rate increases with the MFU
    mfu = bisect_left(candidates, PUBLISHED[device][0], key=lambda step: predicted(1, step / 10**9)) / 10**9
    assert 0.25 < mfu < 0.5
    for nodes, published in zip(NODES, PUBLISHED[device], strict=True):
        assert predicted(nodes, mfu) == pytest.approx(published, rel=0.08), nodes


def test_the_model_of_the_published_rates_is_vit_g(vit_g):
    assert vit_g.parameters == pytest.approx(1011e6, rel=0.003)  # the guide: 1011 million
    assert vit_g.flops_per_image == pytest.approx(6 * 257 * 1.011e9, rel=0.03)  # 2 + 4 per parameter and token


# Memory


def test_activations_of_vits_agree_with_the_formula(vit_g):
    """34 bytes per token, channel and block (Korthikanti et al.), whose residual is half: this one is fp32 in O1."""
    formula = 34 * 257 * 1408 * 40
    assert vit_g.passes[False].per_image == pytest.approx(formula, rel=0.15)
    o1 = measure_workload(config_of("-model=vit_small_patch16_224", "-amp_dtype=bfloat16", *NO_DROPOUT))
    assert o1.passes[False].per_image == pytest.approx(34 * 197 * 384 * 12, rel=0.15)
    assert o1.passes[False].fixed == pytest.approx(2 * o1.parameters, rel=0.05)  # the weights that autocast casts


def test_frozen_blocks_have_no_gradients_moments_activations_or_weight_gradients():
    full, last = (
        measure_workload(config_of("-model=vit_tiny_patch16_224", "-opts", f"MODEL.TUNE={tune}", "MODEL.DROPOUT=0.0"))
        for tune in ("full", "last:3")
    )
    assert state_of(last) == 4 * last.parameters + 12 * last.trained and last.trained < 0.3 * full.trained
    assert last.passes[False].per_image < 0.35 * full.passes[False].per_image  # of 3 of 12 blocks, and one forward pass
    # All blocks forward; of a quarter of them the backward pass, with twice the FLOPs.
    assert last.flops_per_image == pytest.approx((1 / 3 + 2 / 3 / 4) * full.flops_per_image, rel=0.03)


def test_checkpointing_keeps_one_input_per_block(vit_g):
    inputs = 2 * 257 * 1408 * 40  # in bf16
    one_block = vit_g.passes[False].per_image / 40
    assert inputs < vit_g.passes[True].per_image < inputs + 1.5 * one_block


def test_a_network_with_batch_norms_is_measured_and_not_sharded():
    workload = measure_workload(config_of("-model=resnet18", "-amp_dtype=bfloat16"))
    assert 0 < workload.passes[True].per_image < workload.passes[False].per_image
    assert workload.sharding_problem.startswith("batch norms") and workload.block > 0


def at_level(workload: Workload, level: str) -> Workload:
    amp = config_of("-amp", "-amp_dtype=bfloat16", "-opts", f"AMP.LEVEL={level}").amp
    return workload._replace(precision=Precision(amp, torch.device("meta")))


def state_of(workload: Workload, shards: int = 1) -> float:
    return sum(estimate(workload, parse_cluster("8xH100", 4), shards, 1, 1, 0.4, False).state_bytes.values())


def test_the_state_is_16_bytes_per_parameter_and_20_with_an_average(tiny):
    assert state_of(tiny) == 16 * tiny.parameters
    assert state_of(tiny._replace(has_average=True)) == 20 * tiny.parameters
    assert state_of(at_level(tiny, "O2")) == (4 + 2 + 2 + 8) * tiny.parameters
    assert state_of(at_level(tiny, "O2"), shards=8) == 2 * tiny.parameters
    assert state_of(at_level(tiny, "O3")) == (2 + 2 + 8) * tiny.parameters
    for name, moments in {"AdamW": 2, "SGD": 1, "Lion": 1, "LAMB": 2}.items():
        assert moments_per_parameter(config_of("-opts", f"TRAIN.OPTIMIZER.NAME={name}").train) == moments


def test_shards_divide_the_state_and_add_gathered_blocks(tiny):
    cluster = parse_cluster("8xH100", 4)
    found = strategies(tiny, Parallel(), cluster)
    assert found == {"ddp": 1, "fsdp": 32, "hsdp in groups of 8": 8}
    for shards in (32, 8):
        assert state_of(tiny, shards) == pytest.approx(16 * tiny.parameters / shards)
        assert estimate(tiny, cluster, shards, 1, 1, 0.4, False).gathered_bytes == 4 * (tiny.rest + 3 * tiny.block)


def test_the_largest_batch_is_the_last_that_fits(vit_g):
    largest = {}
    for device in ("H100", "A100-40GB", "A10"):
        cluster = parse_cluster(f"8x{device}", 1)
        for name, shards in strategies(vit_g, Parallel(), cluster).items():
            fits = largest[device, name] = estimate(vit_g, cluster, shards, 1, 1, 0.4, True).largest_batch
            assert estimate(vit_g, cluster, shards, fits + 1, 1, 0.4, True).total_bytes > cluster.memory_bytes
            assert not fits or estimate(vit_g, cluster, shards, fits, 1, 0.4, True).total_bytes <= cluster.memory_bytes
    assert largest["A10", "fsdp"] > 0
    assert estimate(vit_g, parse_cluster("8xRTX3060", 1), 1, 1, 1, 0.4, True).largest_batch == 0


# Speed


def test_a_slow_network_is_exposed(tiny):
    def seconds(cluster: Cluster, shards: int = 1, accumulation: int = 1, checkpointing: bool = False) -> float:
        return estimate(tiny, cluster, shards, 4, accumulation, 0.4, checkpointing).step_seconds

    compute = 4 * tiny.flops_per_image / (0.4 * 66.9e12)
    one, slow = parse_cluster("H100", 1), parse_cluster("8xH100", 2, network_gbit=1.0)
    optimizer = seconds(one) - compute  # one device has no traffic
    assert optimizer > 0
    traffic = 2 * 4 * tiny.parameters / 8 * (1 / 2) / (0.75 * 1e9 / 8 / 8)  # over two hosts, 1 Gbit/s for 8 devices
    exposed = traffic - 0.9 * 2 / 3 * compute
    assert seconds(slow) == pytest.approx(1.015 * (compute + exposed + optimizer))
    assert seconds(slow, accumulation=4) == pytest.approx(1.015 * (4 * compute + exposed + optimizer))
    assert seconds(one, checkpointing=True) == pytest.approx(4 / 3 * compute + optimizer)
    assert seconds(slow, shards=8) < seconds(slow, shards=16)  # with FSDP whole parameters cross the network


def test_what_the_trainer_refuses_is_not_planned(tiny):
    cluster = parse_cluster("8xH100", 1)
    refused = tiny._replace(sharding_problem="batch norms")
    assert list(strategies(refused, Parallel(), cluster)) == ["ddp"]
    lora = measure_workload(config_of("-model=vit_tiny_patch16_224", "-opts", "MODEL.TUNE=lora", "MODEL.DEPTH=2"))
    assert list(strategies(lora, Parallel(), cluster)) == ["ddp"]
    with pytest.raises(UserError, match=r"MODEL\.TUNE.*head"):
        plan.main(["-devices=H100", *TINY, "MODEL.TUNE=probe"])
    with pytest.raises(UserError, match="SHARDS_PER_GROUP 3 does not divide 8 devices"):
        strategies(tiny, Parallel(STRATEGY="hsdp", SHARDS_PER_GROUP=3), cluster)


# Devices


def test_devices_are_found_by_their_names():
    for text, expected in {
        "8xH100": ("H100", 8, 16, 80e9), "4 x A100-40GB": ("A100 SXM4", 4, 8, 40e9),
        "8xNVIDIA H100 80GB HBM3": ("H100", 8, 16, 80e9), "2xv100-SXM2-32gb": ("V100 SXM2", 2, 4, 32e9),
    }.items():  # fmt: skip
        cluster = parse_cluster(text, 2)
        assert (cluster.device, cluster.per_node, cluster.size, cluster.memory_bytes) == expected


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "-devices"),
        (["-devices=8xH1000"], r"no figures for H1000; did you mean H100\? \(known: T4, "),
        (["-devices=8x"], "such as 8xH100"),
        (["-devices=1x4090"], "such as 8xH100"),
        (["-devices=8xT4", "-amp_dtype=bfloat16"], "-devices T4: its datasheet has no speed for bfloat16"),
    ],
)
def test_wrong_input_is_one_line(argv, message):
    with pytest.raises(UserError, match=message):
        plan.main([*argv, *TINY])


def test_a_plan_that_does_not_fit(capsys):
    argv = ["-devices=2xRTX3050", "-nodes=2", "-batch_size=1000000", "-images=1000"]
    assert plan.main([*argv, *TINY, "DATA.GLOBAL_BATCH_SIZE=8000000"]) == 0
    printed = capsys.readouterr().out
    assert "does not fit" in printed and "an epoch of 1,000 images" in printed
    assert "global batch 8,000,000" in printed and "hsdp in groups of 2" in printed
