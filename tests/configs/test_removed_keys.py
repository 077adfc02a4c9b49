"""Keys of earlier versions: the default is accepted, another value is answered with the replacement."""

import pytest
import yaml

from configs.reading.command_line import parse_command_line, to_yaml
from configs.reading.compare import changed_options
from configs.reading.layer_rules import REMOVED
from configs.reading.option_layers import OptionLayers
from utils.errors import UserError

REPLACEMENTS = {
    "LOSS.SUM_CLASSES=true": "TRAIN.BASE_LR",
    "PARALLEL.FP16_ALLREDUCE=true": "PARALLEL.COMM_HOOK=fp16",
    "PARALLEL.REDUCE_DTYPE=bfloat16": "hsdp",
    "TRAIN.CLIP_MODE=agc": "TRAIN.GRAD_CLIP",
    "TRAIN.LR_SCHEDULER.COOLDOWN_EPOCHS=10": "TRAIN.NUM_EPOCHS",
    "TRAIN.RESTART_SCHEDULE=true": "-pretrained",
}


def old_options(*options: str) -> str:
    """The removed keys as an earlier run wrote them, with other values of some of them."""
    layers, changed = OptionLayers(), dict(option.split("=") for option in options)
    for key, value in (REMOVED | changed).items():
        layers.add_key(key, yaml.safe_load(value) if key in changed else value, "")
    return yaml.safe_dump(layers.values)


@pytest.mark.parametrize(("option", "replacement"), REPLACEMENTS.items())
def test_a_removed_key_names_its_replacement(option, replacement, tmp_path):
    (tmp_path / "old.yaml").write_text(old_options(option))
    for argv in (["-opts", option], [f"-cfg={tmp_path / 'old.yaml'}"]):
        with pytest.raises(UserError) as error:
            parse_command_line(argv)
        assert "unknown key " + option.split("=")[0] in str(error.value) and replacement in str(error.value)
        assert len(str(error.value).splitlines()) == 1


def test_the_defaults_of_removed_keys_change_nothing(tmp_path):
    (tmp_path / "old.yaml").write_text(old_options())
    for argv in ([f"-cfg={tmp_path / 'old.yaml'}"], ["-opts", *(f"{key}={value}" for key, value in REMOVED.items())]):
        command = parse_command_line(argv)
        assert command.config == parse_command_line([]).config
        assert not [note for note in command.notes if "old keys" in note]


def test_a_resumed_run_names_a_removed_key_that_had_another_value():
    now = to_yaml(parse_command_line([]).config)
    assert changed_options(old_options(), now) == {}
    assert changed_options(old_options("TRAIN.CLIP_MODE=agc"), now)["TRAIN.CLIP_MODE"] == ("agc", "norm")
