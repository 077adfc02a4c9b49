"""Whether two runs are of the same experiment."""

import pytest

from configs.reading.command_line import parse_command_line, to_yaml
from configs.reading.compare import changed_options, experiment_mismatch, with_defaults
from configs.reading.yaml_io import parse_value
from configs.rules import Facts, resolve

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


@pytest.mark.parametrize(
    ("of_run", "recipe", "expected"),
    [
        ("{}", "{}", False),  # of a version before the key
        ("{TRAIN: {MODEL_EMA_WARMUP: true}}", "{}", True),
        ("{}", "{TRAIN: {MODEL_EMA_WARMUP: true}}", True),
        ("{TRAIN: {MODEL_EMA_WARMUP: true, OPTIMIZER: {EPS: 1e-8}}}", "{TRAIN: {MODEL_EMA_WARMUP: false}}", False),
    ],
)
def test_a_resumed_run_keeps_the_values_of_keys_whose_default_has_changed(tmp_path, of_run, recipe, expected):
    (tmp_path / "mine.yaml").write_text(recipe)
    command = parse_command_line([f"-cfg={tmp_path / 'mine.yaml'}"])
    facts = Facts(given=command.given_keys, resumed=with_defaults(parse_value(of_run)))
    config = resolve(command.config, facts)
    assert config.train.model_ema_warmup is expected
    assert list(changed_options(of_run, to_yaml(config))) == ["TRAIN.MODEL_EMA_WARMUP"] * ("MODEL" in recipe)
