"""Ranks with different options end before the first step: one line names both values."""

import pytest
from conftest import TINY_VIT

from configs.reading.command_line import parse_command_line
from engine.commands.run import run
from utils.errors import UserError


def error_of(context, flags):
    with pytest.raises(UserError) as error:
        run(parse_command_line(flags[context.rank]), context)
    return str(error.value)


@pytest.mark.slow
def test_ranks_with_different_options(tmp_path, ranks):
    flags = ["-dataset=digits", f"-output={tmp_path}", "-opts", *TINY_VIT]
    errors = ranks(2)(error_of, [[*flags, "TRAIN.BASE_LR=1e-3"], [*flags, "TRAIN.BASE_LR=5e-3", "DATA.CACHE_GB=1"]])
    assert errors[0] == errors[1]  # and paths and workers may differ
    assert errors[0].startswith("rank 1 (") and "has TRAIN.BASE_LR 0.005, but rank 0 (" in errors[0]
    assert "has TRAIN.BASE_LR 0.001; start all ranks with equal options" in errors[0]
