"""The table of docs/recipes.md has each flag of timm's train.py, and options that exist."""

import re

from conftest import ROOT

from configs.reading.flags import entry_parser
from configs.reading.key_help import all_keys

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
