"""AMP.PRESET: the values of the documents, and the keys that win over them."""

import pytest

from configs.reading.command_line import parse_command_line, to_yaml
from configs.schema import Amp
from configs.schema.compute import PRESETS
from utils.errors import UserError

# ENABLED, LEVEL, INIT_LOSS_SCALING, INCR_EVERY_N_STEPS, INCR_RATIO, DECR_EVERY_N_NAN_OR_INF, DECR_RATIO
PUBLISHED = {
    "fp32": (False, "O1", 65536, 2000, 2.0, 1, 0.5),
    "torch": (True, "O1", 65536, 2000, 2.0, 1, 0.5),
    "naive": (True, "O2", 65536, 1000, 2.0, 2, 0.5),
    "apex_o1": (True, "O1", 65536, 2000, 2.0, 1, 0.5),
    "apex_o2": (True, "O2", 65536, 2000, 2.0, 1, 0.5),
    "fleet": (True, "O1", 32768, 1000, 2.0, 2, 0.5),
    "paddle": (True, "O1", 1024, 2000, 2.0, 1, 0.5),
    "bf16_stream": (True, "O1", 65536, 2000, 2.0, 1, 0.5),
}


def values(amp: Amp) -> tuple:
    return (
        amp.enabled, amp.level, amp.init_loss_scaling, amp.incr_every_n_steps, amp.incr_ratio,
        amp.decr_every_n_nan_or_inf, amp.decr_ratio,
    )  # fmt: skip


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_has_its_published_values(preset):
    command = parse_command_line(["-opts", f"AMP.PRESET={preset}"])
    assert values(command.config.amp) == PUBLISHED[preset]
    (note,) = (note for note in command.notes if "PRESET" in note)
    assert note.startswith(f"AMP.PRESET {preset}: ")


def test_keys_of_the_same_file_win_over_a_preset_and_a_preset_over_lower_layers(tmp_path):
    (tmp_path / "a.yaml").write_text("AMP: {INCR_RATIO: 4.0, PRESET: fleet}")
    amp = parse_command_line([f"-cfg={tmp_path / 'a.yaml'}"]).config.amp
    assert (amp.init_loss_scaling, amp.incr_ratio) == (32768, 4.0)
    (tmp_path / "a.yaml").write_text("AMP: {ENABLED: true, INIT_LOSS_SCALING: 8.0, MIN_LOSS_SCALING: 2.0}")
    recipe = f"-cfg={tmp_path / 'a.yaml'}"
    amp = parse_command_line([recipe, "-opts", "AMP.PRESET=fleet"]).config.amp
    assert (amp.init_loss_scaling, amp.min_loss_scaling) == (32768, 2.0)
    assert not parse_command_line([recipe, "-amp", "-opts", "AMP.PRESET=fp32"]).config.amp.enabled
    (tmp_path / "b.yaml").write_text("AMP: {PRESET: fp32}")
    assert parse_command_line([f"-cfg={tmp_path / 'b.yaml'}", "-amp"]).config.amp.enabled


def test_the_options_of_a_run_keep_their_values(tmp_path):
    config = parse_command_line(["-opts", "AMP.PRESET=naive", "AMP.INIT_LOSS_SCALING=16"]).config
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    command = parse_command_line([f"-cfg={tmp_path / 'config.yaml'}"])
    assert command.config.amp == config.amp and not any("PRESET" in note for note in command.notes)


def test_a_half_precision_stream_is_refused_in_float16():
    amp = parse_command_line(["-opts", "AMP.PRESET=bf16_stream"]).config.amp
    assert (amp.dtype, amp.custom_white_list) == ("bfloat16", ("layer_norm", "add"))
    with pytest.raises(UserError, match=r"AMP\.PRESET bf16_stream: .* DTYPE"):
        parse_command_line(["-opts", "AMP.PRESET=bf16_stream", "AMP.DTYPE=float16"])
