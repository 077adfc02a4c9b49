"""The kernels: attention, channels last and fast dropout, with equal results."""

import torch
from conftest import CPU, GREY, TINY_RESNET, cli, config_for, each_value, model_for, states, train
from dispatch import DispatchMode, op_name, returns_view
from pytest import approx, mark
from torch import Tensor, nn

from models.fast import noise, prepare_convolutions
from models.kernels import FastDropout

FUSED = """
option | device | fused
auto | cpu | false
auto | meta | true
fused | cpu | true
explicit | meta | false
"""


@each_value(FUSED)
@mark.parametrize("model", [["MODEL.DEPTH=2"], ["MODEL.TYPE=timm", "MODEL.NAME=test_vit"]])
def test_attention_is_explicit_on_a_cpu_unless_an_option_is_set(model, option, device, fused):
    config = config_for("-image_size=160", "-opts", *model, f"MODEL.ATTENTION={option}")
    with torch.device(device):
        built, _ = model_for(config, device)
    assert {block.attn.fused_attn for block in built.blocks} == {fused}


CHANNELS_LAST = "MODEL.CHANNELS_LAST=true"
CONVERTED = """
option | convolutions | sharded | expected
auto | 2 | false | true
auto | 1 | false | false
auto | 2 | true | false
true | 1 | false | true
false | 2 | false | false
"""


@each_value(CONVERTED)
def test_auto_is_for_convolutional_models(option, convolutions, sharded, expected):
    model = nn.Sequential(*(nn.Conv2d(4, 4, 3) for _ in range(convolutions)))
    prepare_convolutions(model, option, noise((4, 8, 8), CPU.device), sharded)
    is_converted = {layer.weight.is_contiguous(memory_format=torch.channels_last) for layer in model}
    assert is_converted == {expected}


TRAINING = """
TRAIN.WARMUP_EPOCHS=0 TRAIN.BASE_LR=1e-3 TRAIN.OPTIMIZER.EPS=1e-2 TRAIN.MODEL_EMA=true TRAIN.MODEL_EMA_DECAY=0.5
MODEL.CHANNELS_LAST=false
"""


@mark.slow
@mark.parametrize("precision", ["AMP=false", "AMP={ENABLED: true, LEVEL: O2}"])
def test_training_is_equal_and_resumes_in_the_other_memory_format(tmp_path, cpu, precision):
    """Fused optimizers read gradients, moments and weights in memory order: other strides would mix them up.

    Mixed-up values change an update by about its own size, and the rounding of bf16 by less than a hundredth: the
    EPS of the optimizer keeps it from amplifying the rounding of small gradients.
    """
    argv = [*cli("-dataset=digits -batch_size=64 -opts"), *TINY_RESNET, *GREY, precision, *cli(TRAINING)]

    def run(steps, folder, *more):
        return train([*argv, f"TRAIN.MAX_STEPS={steps}", f"SAVE={tmp_path / folder}", *more], cpu)

    initial = run(1, "initial")
    expected = run(4, "expected")
    converted = run(4, "converted", CHANNELS_LAST)
    resumed = run(2, "resumed")
    for steps, format in ((3, [CHANNELS_LAST]), (4, [])):
        run(steps, "resumed", f"MODEL.RESUME={resumed}", *format)
    for part in ("model", "state_dict_ema"):
        start, reference = (flatten(states(folder)[part]) for folder in (initial, expected))
        for folder in (converted, resumed):
            assert (flatten(states(folder)[part]) - reference).norm() < 2**-4 * (reference - start).norm()


def flatten(state: dict[str, Tensor]) -> Tensor:
    return torch.cat([value.flatten().double() for value in state.values() if value.is_floating_point()])


SHAPE = (1001, 333)  # not a multiple of the elements that share a level


@mark.parametrize("p", [0.001, 0.1, 0.9, 0.996])
@mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_probability_and_scale(p, dtype):
    torch.manual_seed(0)
    output = FastDropout(p)(torch.ones(SHAPE, dtype=dtype))
    assert output.dtype == dtype
    assert output.unique().tolist() == approx([0, 1 / (1 - p)], rel=1e-2)
    deviation = (p * (1 - p) / output.numel()) ** 0.5
    for part in (output, output.flatten()[::8], output.flatten()[7::8]):  # different bits of a draw
        assert (part == 0).float().mean().item() == approx(p, abs=8 * deviation)


def test_elements_are_dropped_independently():
    """The counts of rows of 64, 256 and 65,536 elements vary as binomial ones do; so do neighbours."""
    torch.manual_seed(0)
    dropped = (FastDropout(0.3)(torch.ones(2**24)) == 0).float()
    for length in (64, 256, 2**16):
        counts = dropped.view(-1, length).sum(1)
        error = (2 / len(counts)) ** 0.5
        assert counts.var().item() / (length * 0.21) == approx(1, abs=5 * error + 0.03)
    for shift in (1, 8, 256):
        assert ((dropped[shift:] * dropped[:-shift]).mean() - 0.09).abs() < 5 * 0.29 / 2**12


def test_a_mask_takes_four_ops_and_nine_random_bits_per_element():
    """As small tensors as those of a ViT at 64 pixels spend half of their time in calls."""
    drop = FastDropout(0.1)
    x = torch.randn(32, 17, 192, requires_grad=True)
    ops = []

    class Recorder(DispatchMode):
        def __torch_dispatch__(self, op, types, arguments=(), keywords=None):
            if not returns_view(op):
                ops.append((op_name(op), arguments))
            return op(*arguments, **(keywords or {}))

    drop(x)  # computes the factor
    with Recorder():
        drop(x).sum().backward()
    names = [name for name, _ in ops]
    assert names[:3] == ["empty", "random_", "mul"] and names.count("mul") == 2
    assert len(names) <= 8  # with the sum, its gradient, and where it is kept
    assert 64 * ops[1][1][0].numel() <= 9 * x.numel()


def test_gradient_uses_the_same_mask_and_the_seed_is_torchs():
    x = torch.randn(SHAPE, requires_grad=True)
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs.append(FastDropout(0.3)(x))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    outputs[0].backward(torch.ones(SHAPE))
    assert torch.allclose(x.grad * x, outputs[0])


def test_evaluation_and_rates_0_and_1():
    x = torch.randn(4, 4)
    assert torch.equal(FastDropout(0.5).eval()(x), x)
    assert torch.equal(FastDropout(0.0)(x), x)
    assert not FastDropout(1.0)(x).any()
    assert FastDropout(0.5)(torch.empty(3, 5, device="meta")).shape == (3, 5)
