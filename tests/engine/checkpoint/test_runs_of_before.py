"""Runs of earlier commits (tests/fixtures/runs) under this version: their weights give the figures of the run."""

import pytest
from conftest import ROOT, evaluate, log_of, read_result

from configs.weights import PREPROCESSING, PREPROCESSING_BEFORE
from engine.checkpoint.weights_record import read_record

RUNS = ROOT / "tests/fixtures/runs"
# Loss and top-1 of the last evaluation in metrics.csv of the run
FIGURES = {
    "df9908af": (1.2768462941878371, 66.11111111111111),
    "87d05e41": (1.6478465967708165, 51.94444444444444),
    "edee6d06": (1.6478465967708165, 51.94444444444444),
}
MODEL = ["MODEL.EMBED_DIM=8", "MODEL.DEPTH=1", "MODEL.NUM_HEADS=2", "MODEL.PATCH_SIZE=4", "MODEL.MLP_RATIO=2"]


def assert_figures(folder, commit) -> None:
    result = read_result(folder)
    assert (result["loss"], result["top1"]) == (pytest.approx(FIGURES[commit][0], rel=1e-6), FIGURES[commit][1])


@pytest.mark.parametrize("commit", FIGURES)
def test_the_preprocessing_of_weights_of_before_is_applied(commit, tmp_path):
    """The recipe names the data and the model only: the defaults are other pixels, of three channels."""
    weights = f"-pretrained={RUNS / commit / 'last.pth'}"
    (tmp_path / "x.yaml").write_text("DATA: {DATASET: digits, NUM_WORKERS: 0, BATCH_SIZE: 64}\n")
    folder = evaluate(tmp_path / "out", f"-cfg={tmp_path / 'x.yaml'}", weights, "-opts", *MODEL)
    assert_figures(folder, commit)
    is_older = commit == "df9908af"
    assert ("the version of the checkpoint: RESIZE" in log_of(folder)) == is_older


def test_each_key_of_the_preprocessing_is_in_the_oldest_weights_or_has_its_value_of_before():
    """A new key without a row of PREPROCESSING_BEFORE would have today's default for weights of before."""
    record = read_record(str(RUNS / "df9908af/last.pth"))
    assert record.preprocessing.keys() == set(PREPROCESSING)
    assert record.sources.keys() == PREPROCESSING_BEFORE.keys()
