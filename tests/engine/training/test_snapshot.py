"""The best evaluation of a run."""

from engine.training.snapshot import Best
from utils.metrics import Metrics


def test_a_tie_in_top1_is_broken_by_the_lower_loss():
    best = Best.of(Metrics(loss=1.0, top1=50.0, top5=90.0, samples=8), epoch=1)
    assert best.is_beaten_by(Metrics(loss=0.9, top1=50.0, top5=90.0, samples=8))
    assert not best.is_beaten_by(Metrics(loss=1.0, top1=50.0, top5=99.0, samples=8))
    assert best.is_beaten_by(Metrics(loss=9.0, top1=51.0, top5=90.0, samples=8))
    assert not best.is_beaten_by(Metrics(loss=0.1, top1=49.0, top5=90.0, samples=8))
    unknown = Best.of(Metrics(loss=float("nan"), top1=50.0, top5=90.0, samples=8), epoch=1)
    assert unknown.loss is None and not unknown.is_beaten_by(Metrics(loss=0.1, top1=50.0, top5=90.0, samples=8))
