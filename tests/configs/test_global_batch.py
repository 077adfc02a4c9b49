"""DATA.GLOBAL_BATCH_SIZE -> gradient accumulation steps, or one line with values that work."""

import pytest

from configs.reading.command_line import parse_command_line, to_yaml
from configs.resolve import accumulation_steps
from utils.errors import UserError


def steps_of(world_size: int, *options: str) -> int:
    return accumulation_steps(parse_command_line(["-opts", "SEED=0", *options]).config, world_size)


def test_accumulation_follows_from_the_world_size():
    options = ("DATA.GLOBAL_BATCH_SIZE=24", "DATA.BATCH_SIZE=2")
    assert [steps_of(ranks, *options) for ranks in (1, 2, 3, 4, 6, 12)] == [12, 6, 4, 3, 2, 1]
    assert steps_of(3, *options, "TRAIN.ACCUM_ITER=2") == 4  # of a recipe


def test_without_it_the_option_counts_alone():
    assert [steps_of(ranks) for ranks in (1, 7)] == [1, 1]
    assert steps_of(7, "TRAIN.ACCUM_ITER=3") == 3


@pytest.mark.parametrize(
    ("world_size", "options", "expected"),
    [
        (1, ("DATA.GLOBAL_BATCH_SIZE=64",), r"multiple of 256 \(batch size 256 x 1 rank\(s\)\); use -batch_size=64$"),
        (4, ("DATA.GLOBAL_BATCH_SIZE=8", "DATA.BATCH_SIZE=4"), r"multiple of 16 .*; use -batch_size=2$"),
        (2, ("DATA.GLOBAL_BATCH_SIZE=1024", "DATA.BATCH_SIZE=200"), r"; use -batch_size=128$"),
        (3, ("DATA.GLOBAL_BATCH_SIZE=8", "DATA.BATCH_SIZE=4"), r"3 ranks: use 2 or 4 ranks, or .*SIZE=12$"),
        (6, ("DATA.GLOBAL_BATCH_SIZE=999999937", "DATA.BATCH_SIZE=4"), r": use 1 rank, or .*SIZE=999999936$"),
    ],
)
def test_a_global_batch_that_does_not_fit_is_one_line_with_the_fix(world_size, options, expected):
    with pytest.raises(UserError, match=expected) as caught:
        steps_of(world_size, *options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("world_size", range(1, 13))
@pytest.mark.parametrize("total", [1, 7, 8, 60, 96])
def test_the_batch_sizes_and_ranks_of_the_error_work(total, world_size):
    for batch_size in (1, 3, 8, 64):
        options = f"DATA.GLOBAL_BATCH_SIZE={total}", f"DATA.BATCH_SIZE={batch_size}"
        try:
            assert steps_of(world_size, *options) * batch_size * world_size == total
        except UserError as error:
            _, flag, size = str(error).partition("use -batch_size=")
            if flag:
                assert steps_of(world_size, options[0], f"DATA.BATCH_SIZE={size}") >= 1
            else:
                nearest = str(error).rpartition("or ")[2]
                assert steps_of(world_size, nearest, options[1]) >= 1


def test_the_file_of_a_run_keeps_what_the_user_gave(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(parse_command_line(["-opts", "DATA.GLOBAL_BATCH_SIZE=8", "DATA.BATCH_SIZE=2"]).config))
    config = parse_command_line([f"-cfg={file}"]).config
    assert [accumulation_steps(config, ranks) for ranks in (1, 2, 4)] == [4, 2, 1]
