"""A CPU of a Mac: no affinity of processes, no /proc, and the peak memory in bytes."""

import os
import resource
import sys
from types import SimpleNamespace

import pytest
import torch

from datasets.loading.workers import default_num_workers
from engine.run.reporter import peak_memory_bytes
from utils.cpu_cores import own_share, usable_cores


def test_cores_without_affinity(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 10)
    monkeypatch.setattr("utils.cpu_cores.cpu_quota", lambda: float("inf"))
    assert len(usable_cores()) == 10
    assert default_num_workers(own_share(), on_gpu=False) == 10


@pytest.mark.parametrize(("platform", "expected"), [("linux", 3 << 30), ("darwin", 3 << 20)])
def test_unit_of_the_peak_memory(monkeypatch, platform, expected):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(resource, "getrusage", lambda _: SimpleNamespace(ru_maxrss=3 << 20))
    assert peak_memory_bytes(torch.device("cpu")) == expected
