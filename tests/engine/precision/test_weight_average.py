"""The average of the weights: decay with warm-up, skipped steps, evaluation beside the raw weights."""

import pytest
import torch
from conftest import ROOT, assert_same_state, rows, states, train
from timm.utils import ModelEmaV3
from torch import nn

from configs.command_line import parse_command_line
from engine.precision.master_weights import WeightAverage
from models.build import build_model

NOT_SKIPPED = torch.tensor(False)


@pytest.mark.parametrize("warmup", [False, True])
def test_the_average_is_that_of_timm(warmup):
    """timm counts steps from 1, and its decay is 0 at the first; without warm-up, ours is constant."""
    model, generator = nn.Linear(4, 3, bias=False), torch.Generator().manual_seed(0)
    ours, timms = WeightAverage(model, 0.9, warmup), ModelEmaV3(model, 0.9, use_warmup=warmup)
    for step in range(40):
        value = torch.randn(3, 4, generator=generator)
        model.weight.data.copy_(value)
        ours.set_step(step)
        ours.update(NOT_SKIPPED)
        timms.update(model, step + 1 if warmup else 9)
        assert torch.allclose(ours.module.weight, timms.module.weight, atol=1e-6)
        assert not warmup or step or torch.allclose(ours.module.weight, model.weight)


def test_tensors_with_several_names_are_averaged_once():
    """CoaT has its position encodings under two names or more."""
    config = parse_command_line([f"-cfg={ROOT / 'tests/fixtures/families/CoaT/model.yaml'}"]).config
    model, _ = build_model(config.model, config.data, torch.device("cpu"))
    average = WeightAverage(model, 0.5)
    start = {name: value.clone() for name, value in average.module.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1
    average.update(NOT_SKIPPED)
    for name, parameter in average.module.named_parameters():
        assert torch.allclose(parameter, start[name] + 0.5, atol=1e-5), name


AVERAGE = ["TRAIN.MODEL_EMA=true", "TRAIN.MODEL_EMA_DECAY=0.9", "TRAIN.MODEL_EMA_WARMUP=true"]


@pytest.mark.slow
def test_raw_weights_are_evaluated_beside_their_average(digits_argv, cpu):
    """The raw weights equal the weights of a run without an average; the average decides the best checkpoint."""
    both = train([*digits_argv, *AVERAGE, "EVAL_RAW=true"], cpu)
    average, raw = train([*digits_argv, *AVERAGE], cpu), train(digits_argv, cpu)
    for row, of_average, of_raw in zip(rows(both), rows(average), rows(raw), strict=True):
        names = [name for name in row if name.startswith("raw_val_")]
        assert [row[name] for name in names] == [of_raw[name.removeprefix("raw_")] for name in names]
        unseen = {} if row["epoch"] == "2" else dict.fromkeys(names, "")  # the last evaluation has them in any case
        assert row | unseen == of_average
        assert row["raw_val_loss"] != row["val_loss"]
    assert_same_state(states(both), states(average))
    log = (both / "log.txt").read_text()
    assert log.count("Epoch[002/002], Raw weights, Validation Loss:") == 1
