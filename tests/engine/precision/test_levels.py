"""Levels O1, O2 and O3: weight dtypes, training close to fp32, exact resume, unbiased rounding."""

import functools
from contextlib import nullcontext

import torch
from conftest import SMALL_BATCHES, assert_same_state, cli, refused, slow, states, train
from precision_cases import BF16, CPU, FP32, policy, vit
from pytest import approx, mark
from timm import create_model
from torch import nn

from engine.checkpoint.files import load_checkpoint
from engine.precision.master_weights import MasterWeights, half_copy
from engine.precision.policy import Precision
from utils.distributed import ProcessContext

LEVELS = ["O1", "O2", "O3"]


def dtypes(model: nn.Module) -> dict[str, torch.dtype]:
    return {name: parameter.dtype for name, parameter in model.named_parameters()}


def weights_of(precision: Precision, device: torch.device = CPU) -> MasterWeights:
    model = vit().to(device)
    precision.apply_op_lists(model)
    precision.attach(model)
    return precision.weights


def test_weight_dtypes_of_each_level():
    for level in LEVELS:
        weights = weights_of(policy(level))
        assert set(dtypes(weights.master).values()) == {FP32}
        for name, dtype in dtypes(weights.compute).items():
            half = level != "O1" and "norm" not in name  # on a CPU
            assert dtype == (BF16 if half else FP32), (level, name)
        assert dtypes(weights.saved)["head.weight"] == (BF16 if level == "O3" else FP32)


def test_frequencies_of_rotary_embeddings_stay_in_fp32_in_o3():
    """timm's modules keep them so in `.to(dtype)`; in bf16 an angle of many radians loses its sine."""
    small = {"embed_dim": 48, "depth": 1, "num_heads": 2}
    for name, get in (("vit_small_patch16_dinov3", "rope.periods"), ("eva02_tiny_patch14_224", "rope.bands")):
        model = create_model(name, img_size=112, dynamic_img_size=True, **small).eval()
        compute = half_copy(model, BF16, half_buffers=True).eval()
        assert compute.patch_embed.proj.weight.dtype == BF16
        assert torch.equal(compute.get_buffer(get), model.get_buffer(get))
        assert torch.equal(compute.rope.get_embed((7, 7)), model.rope.get_embed((7, 7)))


@functools.cache
def train_steps(level: str, dtype: str, steps: int, device: torch.device = CPU) -> tuple[list[float], MasterWeights]:
    """Trains on one batch; returns the loss of each step and the weights."""
    precision = policy(level, dtype, device)
    weights = weights_of(precision, device)
    optimizer = torch.optim.AdamW(weights.master.parameters(), lr=2e-3, fused=True)
    torch.manual_seed(1)
    images = torch.randn(16, 3, 32, 32).to(device)
    targets = torch.arange(16, device=device) % 5
    losses = []
    for step in range(steps):
        with precision.autocast():
            logits = weights.compute(images)
        loss = nn.functional.cross_entropy(logits.float(), targets)
        precision.scaler.scale(loss).backward()
        precision.step(optimizer, max_norm=None, seed=step)
        losses.append(loss.item())
    return losses, weights


@mark.parametrize("level, dtype", [("O2", "float16"), slow("O3", "bfloat16")])
def test_every_level_reaches_the_loss_of_fp32(level, dtype, any_device):
    expected, _ = train_steps("O0", "bfloat16", 30, any_device.device)
    losses, weights = train_steps(level, dtype, 30, any_device.device)
    assert expected[-1] < 0.2
    assert losses[-1] == approx(expected[-1], abs=0.1)
    for master, compute in zip(weights.master.parameters(), weights.compute.parameters(), strict=True):
        if level == "O2":  # half weights are the rounded master weights
            assert torch.equal(compute.float(), master.to(compute.dtype).float())
        assert master.grad is None


def test_stochastic_rounding_is_unbiased():
    """Each update is a tenth of the distance between two half values; round-to-nearest would never change a weight."""
    full = nn.Linear(200, 200, bias=False)
    half = torch.bfloat16
    nn.init.constant_(full.weight, 1.0)
    weights = MasterWeights(full, half_copy(full, half, half_buffers=True), keep_master=False)
    for step in range(10):
        weights.copy_grads_to_master()
        full.weight.data.add_(2**-7 / 10)
        weights.copy_master_to_model(step)
    weight = weights.compute.weight
    assert weight.float().mean().item() == approx(1 + 2**-7, abs=2**-7 * 0.02)
    before = weight.detach().clone()
    weights.copy_grads_to_master()
    weights.copy_master_to_model(seed=99)
    assert torch.equal(before, weight)


@mark.parametrize(
    "kinds, fits", [(["H100 with 132", "H100 with 132"], True), (["H100 with 132", "A100 with 108"], False)]
)
def test_ranks_on_different_gpus_are_refused_in_o3(monkeypatch, kinds, fits):
    """A GPU's random numbers depend on its number of multiprocessors."""
    monkeypatch.setattr("engine.precision.policy.gpu_kind", lambda device: kinds[0])
    monkeypatch.setattr("engine.precision.policy.gather_objects", lambda kind, context: kinds)
    context = ProcessContext(0, 0, 2, 2, torch.device("cuda:0"))
    with nullcontext() if fits else refused("A100 with 108, H100 with 132"):
        policy("O3").check_ranks(context)
    policy("O2").check_ranks(context)


RUN = cli("TRAIN.MODEL_EMA=true TRAIN.MODEL_EMA_DECAY=0.9 TRAIN.GRAD_CLIP=1.0 MODEL.DROPOUT=0.1")


@mark.parametrize("level, dtype", [("O1", "float16"), slow("O2", "bfloat16"), slow("O3", "bfloat16")])
def test_resume_is_bit_exact(digits_argv, level, dtype):
    argv = [*digits_argv, *RUN, *cli(f"AMP.LEVEL={level} AMP.DTYPE={dtype} AMP.ENABLED=true TRAIN.MAX_STEPS=6")]
    whole = states(train(argv))
    stopped = train([*argv, "TRAIN.MAX_STEPS=3"])
    assert_same_state(states(train([f"-resume={stopped}", *argv])), whole)
    assert whole["model"]["head.weight"].dtype == (torch.bfloat16 if level == "O3" else torch.float32)
    assert whole["state_dict_ema"]["head.weight"].dtype == torch.float32
    assert dtype == "bfloat16" or whole["precision"]["scaler"]["scale"] == 2.0**16


@mark.slow
def test_resume_in_another_level(digits_argv):
    """Resuming keeps the weights: one more step changes them by at most its learning rate and a rounding error."""
    argv = ["-amp", *digits_argv, SMALL_BATCHES]
    folder = train([*argv, "AMP.LEVEL=O3", "TRAIN.MAX_STEPS=11"])
    for done, level in ((12, "O2"), (13, "O1"), (14, "O3")):
        before = states(folder)["model"]
        train([f"-resume={folder}", *argv, f"AMP.LEVEL={level}", f"TRAIN.MAX_STEPS={done}"])
        state = states(folder)
        assert state["done_steps"] == done
        for name, value in state["model"].items():
            assert torch.allclose(value.float(), before[name].float(), rtol=2**-7, atol=3e-3), (level, name)


@mark.parametrize("tune, level", [slow("head", "O1"), slow("last:1", "O2"), ("lora", "O3")])
def test_resume_restores_a_frozen_backbone(digits_argv, trained_digits, level, tune):
    """The averaged weights must not include the weights of a newly initialized model."""
    pretrained = trained_digits("TRAIN.MAX_STEPS=3") / "last.pth"
    argv = ["-amp", f"-pretrained={pretrained}", *digits_argv, f"MODEL.TUNE={tune}", f"AMP.LEVEL={level}"]
    argv += cli("TRAIN.MODEL_EMA=true TRAIN.MODEL_EMA_DECAY=0.5 TRAIN.NUM_EPOCHS=1 TRAIN.ACCUM_ITER=2")
    argv += cli("MODEL.DROPOUT=0.1 MODEL.LORA.DROPOUT=0.1 TRAIN.HEAD_LR_SCALE=3.0")
    uninterrupted = states(train(argv))
    stopped = train([*argv, "TRAIN.MAX_STEPS=1"])  # of 3
    resumed = states(train([f"-resume={stopped}", *argv]))
    assert_same_state(resumed, uninterrupted)
    for name, value in load_checkpoint(pretrained)["model"].items():
        found = resumed["model"][name]
        is_trained = name.startswith(("head", "blocks.1", "norm") if tune == "last:1" else "head")
        assert torch.equal(found, value.to(found.dtype)) != is_trained, name
    adapters = [value for name, value in resumed["state_dict_ema"].items() if name.endswith(".lora_B")]
    assert (tune == "lora") == any(value.any() for value in adapters)
