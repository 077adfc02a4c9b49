"""Words of timm, torchvision, Paddle and Colossal-AI: the right option, or one line with this program's."""

import pytest

from configs.reading.command_line import parse_command_line
from utils.errors import UserError

SAME = [
    ("-amp=yes", "-amp"),
    ("--amp true", "-amp"),
    ("-b 32", "-batch_size=32"),
    ("--data-path=images --image-size 64", "-data_path=images -image_size=64"),
    ("-j 3", "-num_workers=3"),
    ("-a vit_digits", "-model=vit_digits"),
    ("--config configs/vit_digits.yaml", "-cfg=configs/vit_digits.yaml"),
    ("--local-rank=0 --local_rank 0", ""),
]


@pytest.mark.parametrize(("theirs", "ours"), SAME)
def test_a_flag_of_another_program_is_this_programs(theirs, ours):
    assert parse_command_line(theirs.split()).config == parse_command_line(ours.split()).config


OTHERS = [
    ("-amp=maybe", "yes or no"),
    ("--config config/config_AMP_torch.py", "AMP.PRESET"),
    ("-opts AMP.LEVEL=O0", "AMP.PRESET=fp32"),
    ("-opts AMP.use_pure_fp16=true", "AMP.LEVEL=O2"),
    ("-opts AMP_CONFIGS.init_loss_scaling=32768", "AMP,"),
    ("-opts fp16.mode=naive", "AMP.PRESET"),
]


@pytest.mark.parametrize(("words", "ours"), OTHERS)
def test_other_words_are_answered_with_this_programs(words, ours):
    with pytest.raises(UserError) as error:
        parse_command_line(words.split())
    assert ours in str(error.value) and "\n" not in str(error.value)


def test_a_local_rank_that_differs_from_the_launchers_is_refused(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert parse_command_line(["--local-rank=1"])
    with pytest.raises(UserError, match="LOCAL_RANK"):
        parse_command_line(["--local-rank=2"])
