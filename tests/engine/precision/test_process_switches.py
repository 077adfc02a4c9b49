"""The process-wide switches of torch follow the options."""

import pytest
import torch

from configs.reading.command_line import parse_command_line
from engine.precision.policy import set_process_switches

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")


@pytest.fixture(autouse=True)
def switches_after_test(nondeterministic_after_test):
    yield
    set_process_switches(parse_command_line(["-dataset=digits"]).config, CPU)


def switch(device: torch.device, *options: str) -> list[str]:
    return set_process_switches(parse_command_line(["-dataset=digits", "-opts", *options]).config, device)


@pytest.mark.parametrize(
    ("options", "expected"), [(["SEED=1"], False), (["AMP=true"], True), (["AMP=true", "AMP.TF32=false"], False)]
)
def test_tf32_follows_amp_unless_set(options, expected):
    switch(CPU, *options)
    assert torch.backends.cuda.matmul.allow_tf32 is torch.backends.cudnn.allow_tf32 is expected


def test_deterministic_runs_do_not_select_algorithms_by_time():
    assert "cuDNN times" in switch(GPU, "SEED=1")[0] and torch.backends.cudnn.benchmark
    notes = switch(GPU, "DETERMINISTIC=true")
    assert torch.are_deterministic_algorithms_enabled() and not torch.backends.cudnn.benchmark
    assert "deterministic" in notes[0] and "cuDNN" not in notes[0]
    assert switch(CPU, "SEED=1") == [] and not torch.backends.cudnn.benchmark
    assert not torch.are_deterministic_algorithms_enabled()
