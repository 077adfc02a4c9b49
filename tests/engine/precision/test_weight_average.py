"""The average of the weights: decay with warm-up, skipped steps, evaluation beside the raw weights."""

import pytest
import torch
from conftest import ROOT, assert_same_state, read_result, rows, states, train
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


@pytest.mark.parametrize("warmup", [True, False])
def test_a_short_training_with_the_default_decay(digits_argv, cpu, warmup):
    """With constant decay, 99.6% of the average are the initial weights."""
    options = ["TRAIN.MODEL_EMA=true", "TRAIN.BASE_LR=1e-2", *([] if warmup else ["TRAIN.MODEL_EMA_WARMUP=false"])]
    folder = train([*digits_argv, *options, "DATA.BATCH_SIZE=32", "MODEL.EMBED_DIM=32"], cpu)
    result, log = read_result(folder), (folder / "log.txt").read_text()
    average, raw = result["average_score"], result["raw_score"]
    assert result["finished"] and raw > 30 and (raw - average < 5) == warmup
    line = f"Last epoch: top-1 of the average {average:.2f}%, of the raw weights {raw:.2f}%"
    assert (line in log) == (abs(average - raw) > 1)
    assert ("decay without warm-up" in log, "timm's warm-up" in log) == (not warmup, warmup)


def test_max_steps_at_the_end_of_an_epoch_is_a_last_evaluation(digits_argv, cpu):
    """22 steps per epoch."""
    result = read_result(train([*digits_argv, "TRAIN.MODEL_EMA=true", "TRAIN.MAX_STEPS=22"], cpu))
    assert result["average_score"] == result["top1"] and result["raw_score"] is not None
