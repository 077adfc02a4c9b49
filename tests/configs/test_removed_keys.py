"""A removed key is answered with its replacement."""

import pytest

from configs.reading.command_line import parse_command_line
from utils.errors import UserError

REMOVED = {
    "PARALLEL.FP16_ALLREDUCE": "PARALLEL.COMM_HOOK=fp16",
    "PARALLEL.OFFLOAD": "MODEL.GRAD_CHECKPOINTING",
    "TRAIN.RESTART_SCHEDULE": "-pretrained",
}


@pytest.mark.parametrize(("key", "replacement"), REMOVED.items())
def test_a_removed_key_names_its_replacement(key, replacement, tmp_path):
    section, name = key.split(".")
    (tmp_path / "old.yaml").write_text(f"{section}: {{{name}: true}}\n")
    for argv in (["-opts", f"{key}=true"], [f"-cfg={tmp_path / 'old.yaml'}"]):
        with pytest.raises(UserError) as error:
            parse_command_line(argv)
        assert key in str(error.value) and replacement in str(error.value)


def test_the_options_of_an_older_run_are_read(tmp_path):
    (tmp_path / "config.yaml").write_text("PARALLEL: {OFFLOAD: false}\nTRAIN: {RESTART_SCHEDULE: false}\n")
    assert parse_command_line([f"-cfg={tmp_path / 'config.yaml'}"]).config == parse_command_line([]).config
