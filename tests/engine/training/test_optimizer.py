"""Parameter groups, optimizers by name, corrected weight decay, loading of optimizer state. Learning rates of PaddleViT
and timm at every epoch, their scaling."""

import copy
import json

import numpy as np
import torch
from conftest import cells_of, config_for, each_value, optimizer_of, refused, seeded, told
from pytest import approx, mark
from timm import create_model
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from torch import nn
from torch.testing import assert_close

from configs.batch_plan import BatchPlan, EpochLayout
from configs.schema import Amp, Train
from configs.yaml_io import parse_value
from engine.parallel import Strategy, run_eagerly
from engine.precision.policy import Precision
from engine.training.describe import notes_on_optimizer
from engine.training.optimizer import Schedule, set_lr, unused_optimizer_keys
from engine.training.step import TrainState
from engine.training.trial import state_without_data
from models.timm_model import classifiers


def by_parameter(groups: list[dict]) -> dict[nn.Parameter, dict]:
    return {parameter: group for group in groups for parameter in group["params"]}


def test_layer_decay_needs_layers():
    with refused(r"TRAIN\.LAYER_DECAY"):
        optimizer_of(nn.Linear(2, 2), Train.model_validate({"LAYER_DECAY": 0.5}))


def train_options(**optimizer: object) -> Train:
    return Train.model_validate({"OPTIMIZER": optimizer})


def hyperparameters(optimizer: torch.optim.Optimizer) -> list[dict[str, object]]:
    """Of each group, without those that choose a kernel."""
    others = ("params", "fused", "foreach")
    return [{key: value for key, value in group.items() if key not in others} for group in optimizer.param_groups]


OF_TIMM = {"SGD": "momentum", "sgd": "momentum", "nesterov": "sgd"}  # where timm's name is another one


@mark.parametrize("name", ["adafactor", "adamw", "kron", "lamb", "adahessian", *OF_TIMM])
@mark.filterwarnings("ignore:.*opt_einsum")
def test_each_optimizer_is_that_of_timm(name):
    """The hyperparameters, and the weights after two steps; one that timm cannot build or step here is refused."""

    def model():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 4, 2), nn.Flatten(), nn.Linear(36, 4))

    def train(model, optimizer):
        scaler = Precision(Amp(), torch.device("cpu")).scaler
        for seed in range(2):
            images = torch.randn(5, 3, 4, 4, generator=seeded(seed))
            scaler.backward(model(images).square().sum(), 5)
            with run_eagerly():
                scaler.step(optimizer)
            optimizer.zero_grad()
        return list(model.parameters())

    options = train_options(NAME=name)
    own = model()
    timms = model()
    random = {"deterministic": True} if name == "kron" else {}
    try:
        expected = create_optimizer_v2(timms, OF_TIMM.get(name, name), options.base_lr, options.weight_decay, **random)
        trained = train(timms, expected)
    except Exception:
        with refused(rf"^TRAIN\.OPTIMIZER.*: {name} .*(needs second derivatives|required)"):
            optimizer_of(own, options)
        return
    optimizer = optimizer_of(own, options)
    assert_close(train(own, optimizer), trained)
    assert hyperparameters(optimizer) == hyperparameters(expected)


GIVEN = """
options | found
{NAME: SGD, MOMENTUM: 0.5} | {momentum: 0.5}
{NAME: adan, BETAS: [0.9, 0.8, 0.7]} | {betas: [0.9, 0.8, 0.7]}
{NAME: lion, KWARGS: {caution: true}} | {caution: true}
{NAME: AdamW} | {fused: true}
"""


@each_value(GIVEN)
def test_given_options_replace_those_of_the_optimizer(options, found):
    defaults = optimizer_of(nn.Linear(3, 2), train_options(**options)).defaults
    assert json.loads(json.dumps({key: defaults[key] for key in found})) == found


REFUSED = r"""
{NAME: nesterov, MOMENTUM: 0.0} | nesterov does not work .*Nesterov
{NAME: adan, BETAS: [0.9, 0.999]} | BETAS: adan has 3 values, not 2
{NAME: lbfgs} | NAME: unknown optimizer lbfgs
{NAME: lion, KWARGS: {cautious: true}} | KWARGS: cautious is no further argument of lion; did you mean caution
{NAME: muon, KWARGS: {layer_decay: 0.7}} | layer_decay is no further argument of muon; its key is TRAIN.LAYER_DECAY
{NAME: AdamW, KWARGS: {eps: 1e-6}} | eps is no further .* key is TRAIN.OPTIMIZER.EPS  # "did you mean eps?"
{NAME: AdamW, KWARGS: {weight_decay: 0.1}} | weight_decay is no further .* key is TRAIN.WEIGHT_DECAY
{NAME: muon, KWARGS: {fallback_list: [headd]}} | KWARGS: fallback_list: no parameter matches headd
{NAME: muon, KWARGS: {split_qkv: true}} | KWARGS: split_qkv is no further argument of muon
{NAME: nadam, KWARGS: {capturable: true}} | nadam does not work with these options: .*capturable
"""


@mark.parametrize("options, message", cells_of(REFUSED))
def test_options_that_do_not_fit_the_optimizer_are_refused(options, message):
    with refused(rf"^TRAIN\.OPTIMIZER\.?.*{message}") as error:
        optimizer_of(nn.Linear(3, 2), train_options(**parse_value(options)))
    assert "\n" not in str(error.value)


UNUSED = """
{NAME: SGD, BETAS: [0.9, 0.95], EPS: 1e-6, MOMENTUM: 0.5} | BETAS EPS
{NAME: momentum, MOMENTUM: 0.5} |
{NAME: AdamW, BETAS: [0.9, 0.95], EPS: 1e-6, MOMENTUM: 0.5} | MOMENTUM
{NAME: lion, BETAS: [0.9, 0.95], EPS: 1e-6} | EPS
{NAME: lars, BETAS: [0.9, 0.95]} | BETAS
{NAME: SGD} |
"""


@mark.parametrize("options, expected", cells_of(UNUSED))
def test_keys_that_the_optimizer_does_not_have_are_named(options, expected):
    """timm drops them: the optimizer is the one without them."""
    unused = expected.split()
    train = train_options(**parse_value(options))
    both = optimizer_of(nn.Linear(3, 2), train)
    assert unused_optimizer_keys(train.optimizer) == unused
    notes = told(notes_on_optimizer(both, train.base_lr, train, 64), kind="warning")
    assert [note.partition(" use ")[2] for note in notes] == [", ".join(unused)] * bool(unused)
    kept = {key: value for key, value in parse_value(options).items() if key not in unused}
    assert hyperparameters(optimizer_of(nn.Linear(3, 2), train_options(**kept))) == hyperparameters(both)


STEPS = 8
BATCH = 64
TUNED_FOR = 8
BASE_LR = 0.003
DECAY = 0.3
CORRECTED = {"adamc": {}, "sgdc": {}, "lamb": {"corrected_weight_decay": True}}


def corrected_state(name: str, cpu, *options: str, batch: int = BATCH) -> TrainState:
    """With a warm-up of 4 of the 8 steps, and a peak rate that is scaled to the batch."""
    config = config_for(
        "-opts", "MODEL.TYPE=timm", "MODEL.NAME=vit_tiny_patch16_224", "MODEL.NUM_CLASSES=3", "DATA.IMAGE_SIZE=32",
        "MODEL.KWARGS={depth: 2, embed_dim: 12}", f"TRAIN.OPTIMIZER.NAME={name}", f"TRAIN.BASE_LR={BASE_LR}",
        f"TRAIN.OPTIMIZER.KWARGS={CORRECTED[name]}", f"TRAIN.WEIGHT_DECAY={DECAY}", "TRAIN.NUM_EPOCHS=2",
        "TRAIN.WARMUP_EPOCHS=1", "TRAIN.WARMUP_START_LR=0", "TRAIN.END_LR=0", f"TRAIN.LINEAR_SCALED_LR={TUNED_FOR}",
        "TRAIN.LR_SCHEDULER.WARMUP_PREFIX=false", *options
    )  # fmt: skip
    return state_without_data(config, cpu, EpochLayout(4 * batch, BatchPlan(batch), config.seed))


def step_on_noise(model: nn.Module, optimizer: torch.optim.Optimizer, step: int):
    generator = seeded(step)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.step()


@mark.parametrize("name", CORRECTED)
def test_corrected_weight_decay_is_that_of_timm(name, cpu):
    """lr ** 2 / max_lr. train.py builds the optimizer with the scaled rate before the schedule changes it."""
    state = corrected_state(name, cpu, "TRAIN.LAYER_DECAY=0.7", "TRAIN.HEAD_LR_SCALE=10.0")
    ours = state.precision.weights.master
    model = create_model("vit_tiny_patch16_224", img_size=32, num_classes=3, depth=2, embed_dim=12)
    model.load_state_dict(ours.state_dict())
    peak = BASE_LR * BATCH / TUNED_FOR
    optimizer = create_optimizer_v2(model, name, peak, DECAY, momentum=0.9, layer_decay=0.7, **CORRECTED[name])
    groups = by_parameter(optimizer.param_groups)
    optimizer.param_groups[:] = [group | {"params": [one]} for one, group in groups.items()]
    head = {parameter for module in classifiers(model) for parameter in module.parameters()}
    for group in optimizer.param_groups:
        if group["params"][0] in head:
            group["lr_scale"] *= 10
    scheduler, _ = create_scheduler_v2(
        optimizer, "cosine", 2, warmup_epochs=1, warmup_lr=0, updates_per_epoch=4, step_on_epochs=False
    )
    for step in range(STEPS):
        set_lr(state.optimizer, state.schedule.lr_at(step))
        scheduler.step_update(step)
        step_on_noise(ours, state.optimizer, step)
        step_on_noise(model, optimizer, step)
    for (key, found), expected in zip(ours.named_parameters(), model.parameters(), strict=True):
        assert (found - expected).norm() <= 1e-6 * expected.norm(), key


def test_a_resume_with_another_global_batch_has_the_rate_of_this_run(cpu):
    old, new = (corrected_state("adamc", cpu, batch=size) for size in (BATCH, 16))
    step_on_noise(old.precision.weights.master, old.optimizer, 0)
    new.strategy.load_optimizer_state(new.optimizer, old.optimizer.state_dict())
    assert {group["max_lr_snapshot"] for group in new.optimizer.param_groups} == {new.schedule.peak_lr}


@mark.parametrize("fused", [True, False])
def test_a_resumed_run_of_sgd_keeps_its_nesterov_momentum(fused):
    """Before, SGD had it. The second step is that of the run."""
    model = nn.Linear(3, 2)
    other = nn.Linear(3, 2)
    old = optimizer_of(model, train_options(NAME="nesterov", KWARGS={"fused": fused}))
    step_on_noise(model, old, 0)
    new = optimizer_of(other, train_options(NAME="SGD", KWARGS={"fused": fused}))
    Strategy().load_optimizer_state(new, copy.deepcopy(old.state_dict()))
    other.load_state_dict(model.state_dict())
    step_on_noise(model, old, 1)
    step_on_noise(other, new, 1)
    assert_close(list(other.parameters()), list(model.parameters()))


DECAYS = {"cosine": {}, "step": {"DECAY_EPOCHS": 4, "DECAY_RATE": 0.3}, "linear": {}, "wsd": {"DECAY_EPOCHS": 4}}


def options_of(name: str, **values) -> Train:
    rates = {"NUM_EPOCHS": 20, "WARMUP_EPOCHS": 3, "BASE_LR": 3e-3, "WARMUP_START_LR": 1e-6}
    return Train.model_validate(rates | {"LR_SCHEDULER": {"NAME": name, **DECAYS[name]}} | values)


WARMUPS = """
warmup | prefix
0 | true
3 | true
20 | true
3 | false
"""


@each_value(WARMUPS)
@mark.parametrize("name", ["cosine", "linear", "step"])
def test_the_warmup_prefix_equals_timms(name, warmup, prefix):
    """PaddleViT's cosine has the prefix. timm's --epochs does not count the warm-up as a prefix; NUM_EPOCHS does."""
    end_lr = 0.0 if name == "step" else 1e-5
    kind = {"NAME": name, **DECAYS[name], "WARMUP_PREFIX": prefix}
    train = options_of(name, END_LR=end_lr, WARMUP_EPOCHS=warmup, LR_SCHEDULER=kind)
    schedule = Schedule(train, train.horizon, steps_per_epoch=7, images_per_step=64)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=3e-3)
    timms, _ = create_scheduler_v2(
        optimizer, sched="poly" if name == "linear" else name,
        num_epochs=max(20 - warmup * prefix, 1), warmup_epochs=warmup, warmup_prefix=prefix, warmup_lr=1e-6,
        min_lr=end_lr, decay_epochs=4, decay_rate=0.3 if name == "step" else 1.0
    )  # fmt: skip
    for epoch in range(20):
        timms.step(epoch)
        assert schedule.lr_at(7 * epoch) == approx(optimizer.param_groups[0]["lr"], rel=1e-12), epoch


@mark.parametrize("name", DECAYS)
def test_the_rate_of_each_plan_goes_on_from_where_it_is(name):
    """From epoch 2, in the warm-up of 3, the rest of 20 epochs takes 9 in all, from epoch 6 it takes 26."""
    plans = ((0, 0, 20), (3, 3, 9), (6, 11.5, 26))
    changed = options_of(name, END_LR=1e-4, NUM_EPOCHS=26, PLANS=plans)
    schedule, first = (Schedule(one, one.horizon, 7, 64) for one in (changed, options_of(name, END_LR=1e-4)))
    for step in range(26 * 7 + 1):
        place = np.interp(step / 7, [0, 3, 6, 26], [0, 3, 11.5, 20])
        assert schedule.lr_at(step) == approx(first.lr_at(7 * place), rel=1e-9), step
        if name == "wsd":  # which timm lacks
            rate = np.interp(place, [0, 3, 16, 20], [1e-6, 3e-3, 3e-3, 1e-4])
            assert schedule.lr_at(step) == approx(rate, rel=1e-9), step
    unchanged = Schedule(changed, changed.changed(num_epochs=20).horizon, 7, 64)
    assert all(unchanged.lr_at(step) == first.lr_at(step) for step in range(20 * 7))


def test_scaling_doubles_all_three_learning_rates():
    train = Train.model_validate({"LINEAR_SCALED_LR": 512, "END_LR": 1e-5, "BASE_LR_BATCH_SIZE": 512})
    plain = Schedule(train.changed(linear_scaled_lr=None), train.horizon, 10, 1024)
    scaled = Schedule(train, train.horizon, 10, 1024)
    for step in (0, 100, 320, 1000, 2999):
        assert scaled.lr_at(step) == approx(2 * plain.lr_at(step))
