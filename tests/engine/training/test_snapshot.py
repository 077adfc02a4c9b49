"""Saving is a collective call: every rank gathers the state, and the main process writes it."""

import torch
from conftest import GREY, TINY_VIT

from configs.reading.command_line import parse_command_line
from engine.run.log import RunLogger
from engine.training.run import build_run
from engine.training.run_data import read_run_data
from engine.training.snapshot import Best
from engine.training.trainer import Trainer
from utils.distributed import ProcessContext
from utils.metrics import Metrics

# A process that is not the main one, without a process group.
OTHER_RANK = ProcessContext(rank=1, local_rank=0, world_size=1, local_world_size=1, device=torch.device("cpu"))


def test_a_tie_in_top1_is_broken_by_the_lower_loss():
    best = Best.of(Metrics(loss=1.0, top1=50.0, top5=90.0, samples=8), epoch=1)
    assert best.is_beaten_by(Metrics(loss=0.9, top1=50.0, top5=90.0, samples=8))
    assert not best.is_beaten_by(Metrics(loss=1.0, top1=50.0, top5=99.0, samples=8))
    assert best.is_beaten_by(Metrics(loss=9.0, top1=51.0, top5=90.0, samples=8))
    assert not best.is_beaten_by(Metrics(loss=0.1, top1=49.0, top5=90.0, samples=8))
    unknown = Best.of(Metrics(loss=float("nan"), top1=50.0, top5=90.0, samples=8), epoch=1)
    assert unknown.loss is None and not unknown.is_beaten_by(Metrics(loss=0.1, top1=50.0, top5=90.0, samples=8))


def test_a_rank_that_writes_nothing_gathers_every_state(tmp_path, cpu, monkeypatch):
    options = [*TINY_VIT, *GREY, "TRAIN.MODEL_EMA=true", f"SAVE={tmp_path}"]
    config = parse_command_line(["-dataset", "digits", "-opts", *options]).config
    data = read_run_data(config, cpu)
    run, position = build_run(*data, OTHER_RANK, RunLogger(None, OTHER_RANK), lambda _: tmp_path)
    trainer = Trainer(run, None, position)
    assert trainer.writer is None
    gathered = []
    strategy = run.state.strategy
    for method in ("model_state", "optimizer_state"):
        gather = getattr(strategy, method)
        monkeypatch.setattr(strategy, method, lambda part, gather=gather: gathered.append(part) or gather(part))
    trainer._save()
    expected = [run.state.precision.weights.saved, run.state.average.module, run.state.optimizer]
    assert [id(part) for part in gathered] == [id(part) for part in expected]
    assert not list(tmp_path.glob("*.pth"))
