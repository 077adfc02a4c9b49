"""Whether two runs are of the same experiment."""

import pytest

from configs.reading.checks import experiment_mismatch
from configs.reading.command_line import parse_command_line

MISMATCHES = {
    "SEED=1": "SEED 0, this run has 1",
    "DATA.DATA_PATH=other": "DATA.DATA_PATH 'data', this run has 'other'",
    "DATA={FOLDS: 5, FOLD: 1}": "DATA.FOLD 0, this run has 1",
    "MODEL.DEPTH=3": "MODEL.DEPTH 12, this run has 3",
    "MODEL.PRETRAINED=x.pth": None,
    "MODEL.RESUME=auto": None,
    "DATA.DATA_PATH=./data/": None,
    "NAME=mine": None,
}


@pytest.mark.parametrize("option", MISMATCHES)
def test_first_difference(tmp_path, option):
    argv = ["-dataset=csv", "-data_path=data"]
    folds = ", FOLDS: 5, FOLD: 0" if "FOLD" in option else ""
    (tmp_path / "config.yaml").write_text(f"DATA: {{DATASET: csv, DATA_PATH: data{folds}}}")
    config = parse_command_line([*argv, "-opts", option]).config
    assert experiment_mismatch(tmp_path / "config.yaml", config) == MISMATCHES[option]


def test_keys_that_the_options_lack_had_their_defaults(tmp_path):
    (tmp_path / "config.yaml").write_text("DATA: {DATASET: digits}\nMODEL: {DEPTH: 3}")
    config = parse_command_line(["-dataset=digits", "-opts", "MODEL.DEPTH=3"]).config
    assert experiment_mismatch(tmp_path / "config.yaml", config) is None


def test_unreadable_options_do_not_match(tmp_path):
    (tmp_path / "config.yaml").write_text("- 1")
    assert "expected `KEY: value` lines" in experiment_mismatch(tmp_path / "config.yaml", parse_command_line([]).config)
