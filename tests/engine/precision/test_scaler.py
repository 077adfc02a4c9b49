"""The loss scale follows Fleet's rules for any pattern of overflows; skipped steps never change the weights."""

import copy
import json
import math
from dataclasses import dataclass
from unittest.mock import MagicMock

import torch
from conftest import SMALL_BATCHES, assert_same_state, each_value, optimizer_of, states, train
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx, mark
from torch import Tensor, nn

from configs.schema import Amp, Train
from engine.precision.policy import LossScaler, Precision

CPU = torch.device("cpu")

rules = st.fixed_dictionaries(
    {
        "INIT_LOSS_SCALING": st.sampled_from([1.0, 8.0, 1024.0, 65536.0, 2.0**126]),
        "USE_DYNAMIC_LOSS_SCALING": st.booleans(),
        "INCR_RATIO": st.sampled_from([1.5, 2.0, 4.0]),
        "INCR_EVERY_N_STEPS": st.integers(1, 4),
        "DECR_RATIO": st.sampled_from([0.1, 0.5, 0.9]),
        "DECR_EVERY_N_NAN_OR_INF": st.integers(1, 4),
        "MIN_LOSS_SCALING": st.sampled_from([0.25, 1.0]),
    }
)


def fp16(options: dict) -> Amp:
    return Amp.model_validate({"ENABLED": True, "DTYPE": "float16", **options})


@dataclass
class FleetScale:
    """Fleet's loss-scale rules in plain Python: PaddlePaddle's `update_loss_scaling` operator, with a minimum scale."""

    options: Amp
    scale: float
    good_steps: int = 0
    bad_steps: int = 0

    def update(self, overflow):
        """Returns the scale for the next step."""
        options = self.options
        if not options.use_dynamic_loss_scaling:
            return self.scale
        if overflow:
            self.good_steps = 0
            self.bad_steps += 1
        else:
            self.good_steps += 1
            self.bad_steps = 0
        if self.bad_steps == options.decr_every_n_nan_or_inf:
            self.scale *= options.decr_ratio
            self.bad_steps = 0
        if self.good_steps == options.incr_every_n_steps:
            self.scale *= options.incr_ratio
            self.good_steps = 0
        self.scale = max(self.scale, options.min_loss_scaling)
        return self.scale


def apply(scaler: LossScaler, optimizer: torch.optim.Optimizer, loss: Tensor, max_norm: float | None = None):
    """A step; returns the gradient norm."""
    scaler.scale(loss).backward()
    norm = scaler.step(optimizer, max_norm)
    scaler.update()
    optimizer.zero_grad()
    return norm


class Training:
    """A model whose gradients overflow on request."""

    def __init__(self, amp):
        self.scaler = Precision(amp, CPU).scaler
        self.model = nn.Linear(1, 1, bias=False)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, fused=True)

    def step(self, overflow):
        """Returns the scale after the step, the number of skipped steps, and whether the weights changed."""
        before = self.model.weight.item()
        bad = math.inf if self.scaler.skipped % 2 else math.nan
        # The loss is divided by the scale: a loss multiplied by 2^126 would overflow in every step.
        loss = self.model(torch.tensor([[bad if overflow else 1.0]])).sum() / self.scaler.get_scale()
        apply(self.scaler, self.optimizer, loss)
        return self.scaler.get_scale(), self.scaler.skipped, self.model.weight.item() != before


@given(rules, st.lists(st.booleans(), max_size=25), st.integers(0, 25))
def test_any_overflow_pattern_follows_the_rules_of_fleet(rules, overflows, saved_at):
    """Before step `saved_at`, the state is saved and loaded into a new scaler."""
    amp = fp16(rules)
    expected = FleetScale(amp, amp.init_loss_scaling)
    training = Training(amp)
    for number, overflow in enumerate(overflows):
        if number == saved_at:
            state = training.scaler.state_dict()
            training = Training(amp)
            training.scaler.load_state_dict(json.loads(json.dumps(state)))
        scale, skipped, moved = training.step(overflow)
        expected_scale = expected.update(overflow)
        if math.isfinite(torch.tensor(expected_scale).item()):
            assert scale == approx(expected_scale, rel=1e-6)
        else:
            expected.scale = scale  # the scale is at most the largest fp32 value
            assert math.isfinite(scale)
        assert skipped == sum(overflows[: number + 1])
        assert not (overflow and moved)


def test_real_overflows_lower_the_scale_until_it_fits(digits_argv, any_device):
    argv = ["-amp", "-amp_dtype=float16", *digits_argv, SMALL_BATCHES, "TRAIN.MAX_STEPS=30"]
    state = states(train([*argv, "AMP.INIT_LOSS_SCALING=1e12"], any_device))
    skipped, consecutive = state["precision"]["scaler"]["counts"]
    assert 0 == consecutive < skipped < 30
    assert state["precision"]["scaler"]["scale"] == approx(1e12 / 2**skipped)
    assert all(value.isfinite().all() for value in state["model"].values())
    assert state["model"]["head.weight"].any()  # zeros before the first applied step


KINDS = """
amp
{}
{ENABLED: true, DTYPE: bfloat16}
{ENABLED: true, DTYPE: float16}
"""


@each_value(KINDS)
def test_limit_of_consecutive_skipped_steps(amp):
    training = Training(Amp.model_validate({**amp, "MAX_SKIPPED_STEPS": 3}))
    results = []
    for overflow in (True, True, False, True, True, True, False):
        training.step(overflow)
        results.append(training.scaler.skipped_too_often())
    assert results == [False] * 5 + [True, False]
    unlimited = Training(Amp.model_validate({**amp, "MAX_SKIPPED_STEPS": 0}))
    assert not any(unlimited.step(True) and unlimited.scaler.skipped_too_often() for _ in range(40))


def test_skipped_first_step_leaves_no_momentum():
    """If the first step is skipped, torch's fused SGD leaves its momentum buffer uninitialized."""
    results = []
    for skips in (0, 1):
        torch.manual_seed(0)
        model = nn.Linear(300, 300)
        scaler = Precision(Amp(), CPU).scaler
        optimizer = optimizer_of(model, Train.model_validate({"OPTIMIZER": {"NAME": "SGD"}, "BASE_LR": 0.1}))
        for step in range(3 + skips):
            images = torch.full((2, 300), math.nan if step < skips else 1.0)
            apply(scaler, optimizer, model(images).square().mean())
        results.append(model.weight.detach())
    assert torch.equal(*results)


@mark.parametrize("fused", [True, False])
@mark.parametrize("max_norm, bad", [(None, math.nan), (1.0, math.inf), (1.0, 3e38)])
def test_non_finite_gradients_never_change_the_weights(fused, max_norm, bad):
    """Gradients of 3e38 are finite; their norm is not."""
    model = nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused)
    scaler = Precision(Amp(), CPU).scaler

    def step(value):
        return apply(scaler, optimizer, model(torch.tensor([[1.0, value, value, 1.0]])).sum(), max_norm)

    step(1.0)
    before = copy.deepcopy(model.state_dict())
    assert not step(bad).isfinite()
    assert_same_state(model.state_dict(), before)
    assert scaler.skipped == 1
    assert scaler.get_scale() == 1.0
    step(1.0)
    assert not torch.equal(before["weight"], model.weight)


@mark.parametrize("optimizer_class", [torch.optim.AdamW, torch.optim.SGD])
@mark.parametrize("max_norm", [1e-3, 1.0], ids=["clipped", "sometimes"])
def test_fused_clipping_equals_separate_clipping(optimizer_class, max_norm):
    """Eight steps, one with an overflow. The unfused optimizer receives unscaled and clipped gradients."""
    results = []
    for fused in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4, bias=False))
        optimizer = optimizer_class(model.parameters(), lr=0.01, fused=fused)
        scaler = Precision(fp16({"USE_DYNAMIC_LOSS_SCALING": False}), CPU).scaler
        for step in range(8):
            loss = model(torch.randn(4, 8)).square().sum() * (math.inf if step == 3 else step)
            apply(scaler, optimizer, loss, max_norm)
        assert scaler.skipped == 1
        results.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert torch.allclose(*results, rtol=1e-5, atol=1e-7)


def test_waiting_for_a_gpu_uses_no_core(monkeypatch):
    """The host waits for the count of two steps before, with an event that blocks instead of spinning."""
    event = MagicMock()
    monkeypatch.setattr(torch.cuda, "Event", event)
    scaler = Precision(Amp(MAX_SKIPPED_STEPS=2), CPU).scaler
    scaler._counts = MagicMock(device=torch.device("cuda"))
    scaler._counts[1].to.return_value = torch.zeros(())
    assert [scaler.skipped_too_often() for _ in range(3)] == [False] * 3
    event.assert_called_with(blocking=True)
    event().synchronize.assert_called_once_with()
