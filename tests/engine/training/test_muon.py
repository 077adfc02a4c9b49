"""Muon in batches: timm's bits and state, one orthogonalization per shape, and the parameters that AdamW keeps."""

import copy
import io
from unittest.mock import MagicMock

import torch
from conftest import assert_same_state, cells_of, optimizer_of, seeded, slow
from pytest import fixture, mark
from timm import create_model
from timm.optim import create_optimizer_v2, muon
from torch import nn

from configs.schema import Amp, Train
from configs.yaml_io import parse_value
from engine.parallel import Strategy
from engine.precision.policy import Precision
from engine.training import optimizer as optimizers
from engine.training.optimizer import set_lr

LR = 0.01
DECAY = 0.3
CLIP = 0.5


@fixture(autouse=True)
def bfloat16(monkeypatch):
    """As on a CPU with instructions for bfloat16: timm's Muon computes in it on each CPU."""
    monkeypatch.setattr(optimizers, "multiplies_bfloat16_with_onednn", lambda: True)


class Shapes(nn.Module):
    """Tall, wide and square matrices of one shape each, convolutions, a single matrix, and parameters for AdamW."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.tall = nn.ModuleList(nn.Linear(12, 48) for _ in range(3))
        self.wide = nn.ModuleList(nn.Linear(48, 12) for _ in range(4))
        self.square = nn.ModuleList(nn.Linear(20, 20, bias=False) for _ in range(2))
        self.conv = nn.ModuleList(nn.Conv2d(8, 16, 3) for _ in range(2)).to(memory_format=torch.channels_last)
        self.norm = nn.LayerNorm(12)
        self.pos_embed = nn.Parameter(torch.randn(1, 5, 12))
        self.head = nn.Linear(12, 7)


def train_options(name: str, kwargs: dict[str, object]) -> Train:
    options = {"BASE_LR": LR, "WEIGHT_DECAY": DECAY, "OPTIMIZER": {"NAME": name, "KWARGS": kwargs}}
    return Train.model_validate(options)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range):
    """By the loss scaler, which clips. Gradients grow from parameter to parameter; step 1 has a NaN, step 2 a None."""
    scaler = Precision(Amp(), torch.device("cpu")).scaler
    for step in steps:
        generator = seeded(step)
        for index, (name, parameter) in enumerate(model.named_parameters()):
            if (step, name) != (2, "tall.1.weight"):
                parameter.grad = torch.randn(parameter.shape, generator=generator) * 1.3**index
        if step == 1:
            next(model.parameters()).grad[0] = torch.nan
        set_lr(optimizer, LR * (step + 1))
        scaler.step(optimizer, CLIP)
        scaler.update()
        optimizer.zero_grad()
    assert scaler.skipped == (1 in steps)


def assert_equal(found: torch.optim.Optimizer, expected: torch.optim.Optimizer):
    """The parameters and the groups, then the state."""
    assert_same_state(found.param_groups, expected.param_groups)
    assert_same_state(found.state_dict(), expected.state_dict())


# NAME, KWARGS, threads
RULES = """
muon | {} | 1
nmuon | {} | 1
nmuon | {} | 2
adamuon | {} | 1
muon | {adjust_lr_fn: original, ns_coefficients: original, ns_steps: 4} | 1  # Keller Jordan's
nmuon | {ns_coefficients: polar_express, safety_factor: 1.01, scale_eps: true, adjust_lr_fn: null} | 1
muon | {conv_mode: batched} | 1
muon | {fallback_list: ["tall.0.*", "head.*"], fallback_lr_scale: 0.5} | 1
"""


@mark.parametrize("name, options, threads", [slow(*row) if row[-1] == "2" else row for row in cells_of(RULES)])
def test_every_bit_is_that_of_timm(name, options, threads):
    kwargs = parse_value(options)
    ours = Shapes()
    timms = copy.deepcopy(ours)
    before = torch.get_num_threads()
    optimizer = optimizer_of(ours, train_options(name, kwargs))
    expected = create_optimizer_v2(timms, name, LR, DECAY, **kwargs)
    try:
        torch.set_num_threads(int(threads))
        steps = range(5 if threads == "1" else 3)  # threads of two test processes wait for each other
        train(ours, optimizer, steps)
        train(timms, expected, steps)
    finally:
        torch.set_num_threads(before)
    assert_equal(optimizer, expected)


@mark.parametrize("layer_decay", [None, 0.7])
def test_a_state_of_timm_is_continued_and_read_by_it(layer_decay):
    """A vision transformer: the state after two steps of timm's class, and the next two steps of both."""
    ours = create_model("vit_tiny_patch16_224", img_size=32, depth=3, embed_dim=24, num_classes=5)
    timms = copy.deepcopy(ours)
    options = train_options("muon", {}).model_copy(update={"layer_decay": layer_decay})
    expected = create_optimizer_v2(timms, "muon", LR, DECAY, layer_decay=layer_decay)
    train(timms, expected, range(2, 4))
    file = io.BytesIO()
    torch.save(expected.state_dict(), file)
    optimizer = optimizer_of(ours, options)
    ours.load_state_dict(timms.state_dict())
    Strategy().load_optimizer_state(optimizer, torch.load(io.BytesIO(file.getvalue())))
    for model, one in ((ours, optimizer), (timms, expected)):
        train(model, one, range(4, 6))
    assert_equal(optimizer, expected)
    expected.load_state_dict(optimizer.state_dict())


def test_matrices_of_one_shape_are_orthogonalized_together(monkeypatch):
    """From the second step on, in which timm has decided which parameters are matrices."""
    model = Shapes()
    calls = MagicMock(wraps=muon.zeropower_via_newtonschulz)
    monkeypatch.setattr(muon, "zeropower_via_newtonschulz", calls)
    optimizer = optimizer_of(model, train_options("muon", {}))
    train(model, optimizer, range(3, 4))
    assert calls.call_count == 12
    calls.reset_mock()
    train(model, optimizer, range(4, 5))
    shapes = [call.args[0].shape for call in calls.call_args_list]
    assert shapes == [(3, 48, 12), (4, 12, 48), (2, 20, 20), (2, 16, 72), (1, 7, 12)]


def test_a_processor_without_bfloat16_orthogonalizes_in_float32(monkeypatch):
    """The update differs from timm's by the rounding of bfloat16 alone."""
    updates = []
    for native in (True, False):
        monkeypatch.setattr(optimizers, "multiplies_bfloat16_with_onednn", lambda native=native: native)
        model = Shapes()
        train(model, optimizer_of(model, train_options("muon", {})), range(3, 5))
        updates.append(model.tall[0].weight - Shapes().tall[0].weight)
    assert 0 < (updates[0] - updates[1]).norm() < 0.02 * updates[0].norm()
