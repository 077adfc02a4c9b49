"""The table of docs/recipes.md has each flag of timm's train.py, and options that exist."""

import re

import pytest
from conftest import ROOT

from configs.reading.checks import key_of_flag
from configs.reading.command_line import parse_command_line
from configs.reading.flags import entry_parser
from configs.reading.key_help import all_keys
from utils.errors import UserError

PAGE = (ROOT / "docs/recipes.md").read_text().partition("## The flags of timm's train.py")[2]
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if line.startswith("| `")]
NAMES = (ROOT / "tests/configs/timm_flags.txt").read_text().split()  # of timm 1.0.29


def test_each_flag_of_timm_is_in_one_row():
    listed = [name for theirs, _, _ in ROWS for name in re.findall(r"`([^`]+)`", theirs)]
    assert sorted(listed) == sorted(NAMES) and len(NAMES) > 170


def test_each_option_of_the_table_exists():
    known = {key.name for key in all_keys()} | entry_parser("").parse_args([]).__dict__.keys()
    for _, ours, note in ROWS:
        options = [name.removeprefix("-") for name in re.findall(r"`([^`]+)`", ours)]
        assert set(options) <= known, ours
        assert options or (ours in ("default", "no", "the same") and note), ours
        mentioned = re.findall(r"`((?:TRAIN|MODEL|DATA|AMP|LOSS|PARALLEL)\.[A-Z_.]+)", note)
        assert set(mentioned) <= known, note


def test_the_answer_to_a_flag_of_timm_is_a_key_of_its_row():
    ours = {name: row[1] for row in ROWS for name in re.findall(r"`([^`]+)`", row[0])}
    own = entry_parser("")._option_string_actions
    answers = {name: key for name in NAMES if name not in own and (key := key_of_flag(name))}
    assert len(answers) > 50
    assert {name: key for name, key in answers.items() if f"`{key}`" not in ours[name]} == {}


@pytest.mark.parametrize(("flag", "answer"), [
    ("--seed", " SEED=VALUE"), ("--weight_decay", "TRAIN.WEIGHT_DECAY=VALUE"), ("--loss", "LOSS.NAME=VALUE"),
    ("--data", None), ("--aug-splits", None), ("--gp", None), ("--outptu", "-output"),
])  # fmt: skip
def test_an_unknown_flag_gets_a_fitting_hint_or_none(flag, answer):
    with pytest.raises(UserError) as error:
        parse_command_line([f"{flag}=1"])
    text = str(error.value)
    assert answer in text if answer else "did you mean" not in text and "-opts" not in text


def test_the_image_size_has_timms_flag():
    assert parse_command_line(["--img-size", "64"]).config.data.image_size == 64
