"""Whether two runs are of the same experiment."""

import pytest

from configs.command_line import parse_command_line
from configs.compare import experiment_mismatch

MISMATCHES = {
    "SEED=1": "SEED 0, this run has 1",
    "DATA={FOLDS: 5, FOLD: 1}": "DATA.FOLD 0, this run has 1",
    "MODEL.DEPTH=3": "MODEL.DEPTH 12, this run has 3",
    "DATA.DATA_PATH=./data/": None,
    "TRAIN.NUM_EPOCHS=299": "TRAIN.NUM_EPOCHS 300, this run has 299",
    "TRAIN.NUM_EPOCHS=301": None,
    "TRAIN.ACCUM_ITER=2": None,
    "MODEL.FUSED_BLOCKS=false": None,
}


@pytest.mark.parametrize("option", MISMATCHES)
def test_first_difference(tmp_path, option):
    argv = ["-dataset=csv", "-data_path=data"]
    folds = ", FOLDS: 5, FOLD: 0" if "FOLD" in option else ""
    (tmp_path / "config.yaml").write_text(f"NAME: other\nDATA: {{DATASET: csv, DATA_PATH: data{folds}}}")
    config = parse_command_line([*argv, "-opts", option]).config
    assert experiment_mismatch(tmp_path / "config.yaml", config) == MISMATCHES[option]


def test_an_evaluation_ignores_options_of_the_training(tmp_path):
    (tmp_path / "config.yaml").write_text("DATA: {DATASET: digits}\nTRAIN: {BASE_LR: 0.1}\nNAME: other")
    config = parse_command_line(["-dataset=digits", "-eval", "-resume=auto"]).config
    assert experiment_mismatch(tmp_path / "config.yaml", config) is None


def test_unreadable_options_do_not_match(tmp_path):
    (tmp_path / "config.yaml").write_text("- 1")
    assert "expected `KEY: value` lines" in experiment_mismatch(tmp_path / "config.yaml", parse_command_line([]).config)
