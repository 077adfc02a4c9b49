"""Training equals a plain loop: accumulation, clipping, smoothing, weight decay, warm-up, averaging.

A step reads no outputs of earlier steps, which CUDA graphs overwrite.
"""

import copy
import math

import torch
from conftest import (
    CPU,
    GREY,
    TINY_RESNET,
    TINY_VIT,
    assert_same_run,
    cli,
    config_for,
    model_for,
    only_run,
    samples_for,
    slow,
    train,
    values_of,
)
from pytest import fixture, mark, param
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from configs.batch_plan import BatchPlan, EpochLayout
from configs.schema import Config
from engine.checkpoint.files import load_checkpoint
from engine.parallel import DDP
from engine.training.trial import state_without_data
from utils.distributed import ProcessContext
from utils.seeding import derive_seed, seeded_generator

STEPS = 10  # 23 batches per epoch, 3 per step: step 8 has 2 batches; the second epoch has 2 steps
STEPS_PER_EPOCH = 8
# AdamW amplifies the rounding errors of the key bias
WORDS = f"""
MODEL.NUM_CLASSES=1000 DATA.FRACTION=0.4 DATA.RANDOM_CROP_SCALE=[1,1] DATA.RANDOM_CROP_RATIO=[1,1] DATA.HFLIP_PROB=0
TRAIN.ACCUM_ITER=3 TRAIN.GRAD_CLIP=0.378 TRAIN.SMOOTHING=0.1 TRAIN.WEIGHT_DECAY=0.3 TRAIN.BASE_LR=1e-3
TRAIN.WARMUP_EPOCHS=0.5 TRAIN.MODEL_EMA=true TRAIN.MODEL_EMA_DECAY=0.9 TRAIN.MODEL_EMA_WARMUP=false
TRAIN.MAX_STEPS={STEPS} MODEL.ATTENTION=explicit MODEL.QKV_BIAS=false
"""
OPTIONS = [*TINY_VIT, *GREY, *cli(WORDS)]
PRECISIONS = {
    "fp32": "AMP=false",
    "O1": "AMP={ENABLED: true, DTYPE: bfloat16, LEVEL: O1}",
    "O2": "AMP={ENABLED: true, DTYPE: bfloat16, LEVEL: O2}",
}
# With two ranks, bfloat16 gradients are sums over other parts of a batch. GPU kernels round differently.
TOLERANCE = dict(
    values_of("""
one rank | {fp32: 1e-4, O1: 5e-3, O2: 5e-3}
two ranks | {fp32: 1e-4, O1: 0.06, O2: 0.06}
one GPU | {fp32: 1e-3, O1: 0.06, O2: 0.06}
two GPUs | {fp32: 1e-3, O1: 0.06, O2: 0.06}
""")
)
DEVICES = [
    "one rank",
    slow("two ranks"),
    param("one GPU", marks=mark.gpu),
    param("two GPUs", marks=[mark.gpu, mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")]),
]
ONE_GPU = ProcessContext(0, 0, 1, 1, torch.device("cuda:0"))


def plain_loop(config: Config, level: str) -> tuple[dict, dict, dict]:
    """Trains with torch alone; returns the initial weights, the final weights and their average."""
    train = config.train
    batch_size = 32
    torch.manual_seed(derive_seed(config.seed, "initialization"))
    model, _ = model_for(config)
    average = copy.deepcopy(model)
    initial = copy.deepcopy(model.state_dict())
    if level == "O2":
        compute_norms_in_fp32(model)
    decayed = {n: p for n, p in model.named_parameters() if p.ndim > 1 and n not in ("cls_token", "pos_embed")}
    others = [p for n, p in model.named_parameters() if n not in decayed]
    groups = [{"params": list(decayed.values())}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, weight_decay=train.weight_decay)
    images, targets = noise(config)
    step = 0
    for epoch in range(2):
        order = torch.randperm(len(images), generator=seeded_generator(config.seed, "order", epoch))
        batches = order.split(batch_size)[: len(images) // batch_size]
        for start in range(0, len(batches), 3):
            if step == STEPS:
                return initial, model.state_dict(), average.state_dict()
            window = batches[start : start + 3]
            weights = half_weights(model) if level == "O2" else dict(model.named_parameters())
            for batch in window:
                with torch.autocast("cpu", torch.bfloat16, enabled=level != "fp32"):
                    logits = torch.func.functional_call(model, weights, images[batch])
                loss = nn.functional.cross_entropy(logits.float(), targets[batch], label_smoothing=train.smoothing)
                (loss / len(window)).backward()
            for name, parameter in model.named_parameters():
                parameter.grad = weights[name].grad.float()
            nn.utils.clip_grad_norm_(model.parameters(), train.grad_clip)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(config, step, 0.5 * STEPS_PER_EPOCH, 2 * STEPS_PER_EPOCH)
            optimizer.step()
            model.zero_grad()
            with torch.no_grad():
                for mean, value in zip(average.parameters(), model.parameters(), strict=True):
                    mean.copy_(0.9 * mean + 0.1 * value)
            step += 1
    raise AssertionError("the two epochs have too few steps")


def half_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights of O2 as leaf tensors: bfloat16, except the norms."""
    return {
        name: value.detach().to(torch.float32 if "norm" in name else torch.bfloat16).requires_grad_()
        for name, value in model.named_parameters()
    }


def compute_norms_in_fp32(model: nn.Module):
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.register_forward_pre_hook(lambda _, inputs: (inputs[0].float(),))
            module.register_forward_hook(lambda _, inputs, output: output.bfloat16())


def learning_rate(config: Config, step: int, warmup: float, total: int) -> float:
    train = config.train
    if step < warmup:
        return train.warmup_start_lr + (train.base_lr - train.warmup_start_lr) * step / warmup
    return train.base_lr * (1 + math.cos(math.pi * (step - warmup) / (total - warmup))) / 2


def noise(config: Config) -> tuple[Tensor, Tensor]:
    (samples,) = samples_for(config, CPU, "train")
    images = torch.stack([samples.open(index, 1).pixels for index in range(len(samples))])
    return (images / 255 - 0.5) / 0.5, torch.from_numpy(samples.targets)


@fixture(scope="module", params=DEVICES)
def trained(request, tmp_path_factory, ranks) -> dict[str, dict]:
    """The devices, and the last checkpoint of each precision."""
    count = 2 if request.param.startswith("two") else 1
    found = {"devices": request.param}
    for name, precision in PRECISIONS.items():
        output = tmp_path_factory.mktemp(name)
        flags = [*cli(f"-dataset=fake -batch_size={32 // count} -output={output} -opts"), *OPTIONS, precision]
        if count == 2:
            ranks(2, "0,1" if request.param == "two GPUs" else "").run(flags)
        else:
            train(flags, ONE_GPU if request.param == "one GPU" else CPU)
        found[name] = load_checkpoint(only_run(output) / "last.pth")
    return found


@mark.parametrize("precision", PRECISIONS)
def test_steps_equal_a_plain_loop(trained, precision):
    """The error is relative to the distance between the initial and the trained weights."""
    config = config_for("-dataset=fake", "-batch_size=32", "-opts", *OPTIONS)
    initial, model, average = plain_loop(config, precision)
    checkpoint = trained[precision]
    tolerance = TOLERANCE[trained["devices"]][precision]
    assert checkpoint["epoch"] * STEPS_PER_EPOCH + checkpoint["done_steps"] == STEPS
    for part, expected in (("model", model), ("state_dict_ema", average)):
        assert list(checkpoint[part]) == list(expected)
        parts = (checkpoint[part], expected, initial)
        actual, target, start = (parameters_to_vector(state.values()) for state in parts)
        assert (actual - target).norm() < tolerance * (target - start).norm(), part


@mark.parametrize(
    "options",
    [
        slow([*TINY_VIT, "MODEL.DROPOUT=0.1", "TRAIN.MIXUP_ALPHA=0.2", "REPORT_FREQ=1"]),
        [*TINY_VIT, "AMP={ENABLED: true, LEVEL: O2, DTYPE: float16, INIT_LOSS_SCALING: 1.0e+7}", "REPORT_FREQ=3"],
        [*TINY_RESNET, "TRAIN.OPTIMIZER.NAME=lamb"],
    ],
    ids=["fp32", "O2 with skipped steps", "batch norm, not fused"],
)
def test_no_step_reads_logits_or_gradients_of_earlier_steps(options, tmp_path, monkeypatch):
    """Before each forward pass they become NaN, as a replay of CUDA graphs overwrites them."""
    argv = ["-dataset=digits", "-batch_size=32", "-opts", *GREY, *options, "DATA.FRACTION=0.25"]
    argv += cli("TRAIN.BASE_LR=3e-3 TRAIN.GRAD_CLIP=0.5 TRAIN.MODEL_EMA=true TRAIN.MAX_STEPS=8")
    argv += ["TRAIN.WARMUP_EPOCHS=0"]
    expected = train([*argv, f"SAVE={tmp_path / 'expected'}"])
    overwritten = []

    def overwrite_outputs(model, *_):
        outputs = []

        @torch.no_grad()
        def overwrite(module, inputs):
            if module.training:
                overwritten.extend(tensor.fill_(math.nan).numel() for tensor in outputs)
                outputs.clear()

        model.register_forward_pre_hook(overwrite)
        model.register_forward_hook(lambda module, inputs, logits: outputs.append(logits))
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda parameter: outputs.append(parameter.grad))

    monkeypatch.setattr("engine.training.session.compile_model", overwrite_outputs)
    found = train([*argv, f"SAVE={tmp_path / 'found'}"])
    assert len(overwritten) > 100
    assert_same_run(found, expected)


def test_ddp_starts_with_fused_attention_under_autocast(group_of_one, monkeypatch):
    """Under torch 2.10 DDP would wait for gradients that never come: its warm-up is without autocast."""
    monkeypatch.setattr("engine.training.session.build_strategy", lambda options, context: DDP(context.device, options))
    options = cli("MODEL.ATTENTION=fused AMP.ENABLED=true AMP.DTYPE=bfloat16")
    config = config_for("-opts", *TINY_VIT, *GREY, *options)
    state = state_without_data(config, group_of_one, EpochLayout(100, BatchPlan(4), config.seed))
    images = torch.zeros(2, 1, 8, 8, device=group_of_one.device)
    with state.precision.autocast():
        state.wrapped(images).sum().backward()
    assert all(parameter.grad is not None for parameter in state.wrapped.parameters())
