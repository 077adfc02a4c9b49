"""Sharded strategies on one device, and PARALLEL.OFFLOAD: parameters, gradients and moments in host memory."""

from pathlib import Path

import pytest
import torch
from conftest import GREY, TINY_VIT, assert_same_state, only_run, train
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from configs.schema import Amp
from engine.checkpoint.reader import load_checkpoint
from engine.parallel.fsdp import FSDP
from engine.precision.policy import Precision
from engine.training.optimization.weight_average import WeightAverage

GPU = torch.device("cuda:0")
OFFLOAD = "PARALLEL.OFFLOAD=true"
FP16 = ["AMP.ENABLED=true", "AMP.DTYPE=float16"]


def argv_for(output: Path, *options: str) -> list[str]:
    common = [*TINY_VIT, *GREY, "TRAIN.BASE_LR=1e-3", "TRAIN.GRAD_CLIP=0.5", "TRAIN.MODEL_EMA=true"]
    return ["-dataset=digits", "-batch_size=96", f"-output={output}", "-opts", *common, "SAVE_FREQ_STEPS=9", *options]


def last(folder: Path) -> dict:
    content = load_checkpoint(folder / "last.shards")
    del content["train_seconds"], content["options"], content["best"]
    return content


@pytest.mark.parametrize(
    "options", [["PARALLEL.STRATEGY=fsdp"], ["PARALLEL.STRATEGY=hsdp"], [OFFLOAD], [OFFLOAD, *FP16]], ids=str
)
@pytest.mark.usefixtures("nondeterministic_after_test")
def test_a_sharded_run_of_one_device_resumes_exactly(group_of_one, tmp_path, monkeypatch, options):
    """Clipping, average, evaluation, loss scale, shards."""
    if OFFLOAD in options and group_of_one.device.type == "cpu":
        pytest.skip("needs a GPU; sharding_cases.py trains without one")
    monkeypatch.setattr("engine.training.build.build_strategy", FSDP)  # which uses none for one rank
    options = ["PARALLEL.STRATEGY=fsdp", *options, "DETERMINISTIC=true"]
    whole = last(train(argv_for(tmp_path / "whole", *options), group_of_one))
    train(argv_for(tmp_path / "parts", *options, "TRAIN.MAX_STEPS=9"), group_of_one)
    parts = only_run(tmp_path / "parts")
    assert last(parts)["done_steps"] == 9
    train([f"-resume={parts}", "-opts", "TRAIN.MAX_STEPS=null"], group_of_one)
    assert_same_state(last(parts), whole)


@pytest.mark.parametrize("options", [{}, {"ENABLED": True}], ids=["fp32", "fp16"])
@pytest.mark.parametrize("max_norm", [None, 1.0])
def test_the_step_on_a_gpu_updates_parameters_in_host_memory(monkeypatch, options, max_norm):
    """Fake tensors refuse an operation on two devices. The norm is on the GPU, as `FSDP.total_norm` returns it."""
    options, model = Amp.model_validate(options), nn.Linear(4, 2)
    average, optimizer = WeightAverage(model, decay=0.9), torch.optim.AdamW(model.parameters(), fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    with FakeTensorMode(allow_non_fake_inputs=True):
        with monkeypatch.context() as patch:
            patch.setattr(torch.cuda, "is_available", lambda: True)  # else the scaler of torch is disabled
            precision = Precision(
                Amp.model_validate(options), GPU, lambda found: nn.utils.get_total_norm(found).to(GPU)
            )
        precision.attach(model)
        norm = precision.step(optimizer, max_norm, 0, average)
        assert norm.device == precision.scaler.last_skipped.device == GPU
        assert {value.device.type for state in optimizer.state.values() for value in state.values()} == {"cpu"}
    assert precision.scales_loss == options.enabled
