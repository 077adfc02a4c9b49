"""Runs on tar shards of a web server that goes away: they wait for it, or end with one line and resume exactly."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from conftest import TINY_VIT, assert_same_state, only_run, states, train
from fault_server import FaultHandler, FaultServer, fault_server
from tar_shards import write_shards

from engine.checkpoint.reader import load_checkpoint
from utils.distributed import ProcessContext
from utils.errors import UserError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"), train=6)


def argv(path: str, output: Path, *options: str) -> list[str]:
    more = ["MODEL.NUM_CLASSES=2", "DATA.SHUFFLE_SHARDS=2", "SAVE_FREQ=1", "TRAIN.BASE_LR=1e-2", *options]
    flags = ["-dataset=tar", f"-data_path={path}", "-batch_size=4", "-num_workers=1", f"-output={output}"]
    return [*flags, "-opts", *TINY_VIT, *more]


def url(server: FaultServer) -> str:
    return f"{server.url}/{{train-{{0000..0005}},val-0000}}.tar"


@pytest.fixture(scope="module")
def expected(root, tmp_path_factory) -> dict:
    """The end of an unbroken run on the local folder: 15 steps in each of two epochs."""
    output = tmp_path_factory.mktemp("local")
    return states(train(argv(str(root), output), ProcessContext(0, 0, 1, 1, torch.device("cpu"))))


def hang_up(handler: FaultHandler) -> None:
    handler.close_connection = True


def away(server: FaultServer, after: int, seconds: float) -> Iterator:
    """Faults: the server answers `after` requests of batches, and then hangs up for `seconds`.

    60 requests before them look for 16-bit gray; an epoch has about 30.
    """
    answered = -60
    while answered < after:
        method, path, part = server.requests[-1]
        answered += bool(method == "GET" and path.endswith(".tar") and part)
        yield None
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield hang_up


@pytest.mark.parametrize("cache_gb", [0, 1])
def test_a_run_survives_a_server_that_is_away(root, expected, tmp_path, cpu, monkeypatch, cache_gb):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with fault_server(root) as server:
        server.faults = away(server, after=5, seconds=3)
        folder = train(argv(url(server), tmp_path, "TIMEOUT_SECONDS=60", f"DATA.CACHE_GB={cache_gb}"), cpu)
    assert_same_state(states(folder), expected)


@pytest.mark.slow
def test_a_run_ends_with_one_line_and_resumes_exactly(root, expected, tmp_path, cpu, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with fault_server(root) as server:
        server.faults = away(server, after=38, seconds=600)
        limit = "TIMEOUT_SECONDS=6"
        pattern = (
            rf"^{server.url}/train-000\d.tar: .*after \d+ s of attempts; check the network and the server, then resume$"
        )
        with pytest.raises(UserError, match=pattern) as error:
            train(argv(url(server), tmp_path, limit), cpu)
        assert "\n" not in str(error.value)
        folder = only_run(tmp_path)
        assert load_checkpoint(folder / "last.pth")["epoch"] == 1
        server.faults = iter(())
        train([f"-resume={folder}", *argv(url(server), tmp_path)], cpu)
    assert_same_state(states(folder), expected)
