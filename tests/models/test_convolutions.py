"""Channels last: the option, equal results and gradients, optimizers, checkpoints that do not depend on it."""

from pathlib import Path

import pytest
import torch
from conftest import GREY, TINY_RESNET, states, train
from torch import nn

from models.kernels import prepare_convolutions
from utils.errors import UserError

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
CHANNELS_LAST = "MODEL.CHANNELS_LAST=true"


def convolutional(count: int) -> nn.Module:
    return nn.Sequential(*(nn.Conv2d(4, 4, 3) for _ in range(count)))


def is_channels_last(model: nn.Module) -> bool:
    return all(p.is_contiguous(memory_format=torch.channels_last) for p in model.parameters() if p.ndim == 4)


@pytest.mark.parametrize(
    ("option", "device", "convolutions", "sharded", "expected"),
    [
        ("auto", CPU, 2, False, False),
        ("auto", GPU, 2, False, True),
        ("auto", GPU, 1, False, False),
        ("auto", GPU, 2, True, False),
        (True, CPU, 1, False, True),
        (False, GPU, 2, False, False),
    ],
)
def test_auto_is_for_convolutional_models_on_a_gpu(option, device, convolutions, sharded, expected):
    model = convolutional(convolutions)
    notes = prepare_convolutions(model, option, device, sharded)
    assert is_channels_last(model) == expected == bool(notes)


def test_sharded_weights_are_not_converted():
    with pytest.raises(UserError, match=r"^MODEL\.CHANNELS_LAST true: "):
        prepare_convolutions(convolutional(2), True, GPU, is_fixed=True)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["AMP=false", "AMP={ENABLED: true, LEVEL: O2}"])
def test_training_is_equal_and_resumes_in_the_other_memory_format(tmp_path, cpu, precision):
    """Fused optimizers read gradients, moments and weights in memory order: other strides would mix them up.

    Mixed-up values change an update by about its own size, and the rounding of bf16 by less than a hundredth: the
    EPS of the optimizer keeps it from amplifying the rounding of small gradients.
    """
    argv = ["-dataset=digits", "-batch_size=64", "-opts", *TINY_RESNET, *GREY, precision]
    argv += ["TRAIN.WARMUP_EPOCHS=0", "TRAIN.BASE_LR=1e-3", "TRAIN.OPTIMIZER.EPS=1e-2"]
    argv += ["TRAIN.MODEL_EMA=true", "TRAIN.MODEL_EMA_DECAY=0.5"]

    def run(steps: int, folder: str, *more: str) -> Path:
        return train([*argv, f"TRAIN.MAX_STEPS={steps}", f"SAVE={tmp_path / folder}", *more], cpu)

    initial, expected, converted = run(1, "initial"), run(4, "expected"), run(4, "converted", CHANNELS_LAST)
    resumed = run(2, "resumed")
    for steps, format in ((3, CHANNELS_LAST), (4, "MODEL.CHANNELS_LAST=false")):
        run(steps, "resumed", f"MODEL.RESUME={resumed}", format)
    for part in ("model", "ema"):
        start, reference = (flatten(states(folder)[part]) for folder in (initial, expected))
        for folder in (converted, resumed):
            assert (flatten(states(folder)[part]) - reference).norm() < 2**-4 * (reference - start).norm()


def flatten(state: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([value.flatten().double() for name, value in state.items() if "num_batches" not in name])
