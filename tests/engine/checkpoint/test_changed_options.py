"""An option that is given on a resume takes effect, is refused, or the log says that it has none."""

import re

import pytest
from conftest import CPU, session_for

from engine.run.log import print_waiting_notes
from utils.errors import UserError

STOPPED = ("TRAIN.MAX_STEPS=3", "AMP.ENABLED=true", "AMP.DTYPE=float16", "TRAIN.MODEL_EMA=true", "DATA.BATCH_SIZE=16")
TAKES_EFFECT = {
    "AMP.INIT_LOSS_SCALING": "1024", "AMP.MIN_LOSS_SCALING": "8192", "AMP.INCR_RATIO": "4", "AMP.DECR_RATIO": "0.25",
    "AMP.INCR_EVERY_N_STEPS": "7", "AMP.DECR_EVERY_N_NAN_OR_INF": "3", "AMP.USE_DYNAMIC_LOSS_SCALING": "false",
    "AMP.MAX_SKIPPED_STEPS": "5", "AMP.DTYPE": "bfloat16", "AMP.LEVEL": "O2", "AMP.ENABLED": "false",
    "TRAIN.BASE_LR": "2e-4", "TRAIN.END_LR": "1e-4", "TRAIN.WARMUP_EPOCHS": "1", "TRAIN.WARMUP_START_LR": "1e-5",
    "TRAIN.NUM_EPOCHS": "5", "TRAIN.LINEAR_SCALED_LR": "32", "TRAIN.SQRT_SCALED_LR": "32",
    "TRAIN.LR_SCHEDULER.NAME": "linear", "TRAIN.WEIGHT_DECAY": "0.2", "TRAIN.OPTIMIZER.BETAS": "[0.5, 0.6]",
    "TRAIN.OPTIMIZER.EPS": "1e-3", "TRAIN.MODEL_EMA_DECAY": "0.5", "TRAIN.MODEL_EMA_WARMUP": "false",
    "TRAIN.GRAD_CLIP": "3", "TRAIN.SMOOTHING": "0.3", "MODEL.DROPOUT": "0.25", "DATA.HFLIP_PROB": "0.125",
}  # fmt: skip


def in_use(session) -> dict[str, object]:
    """All that is made of the options, and that a checkpoint could override."""
    state, scaler, average = session.state, session.state.precision.scaler, session.state.average
    own = {"params", "lr", "initial_lr"}
    rules = scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval(), scaler.backoff_after
    return {
        "groups": [{key: x for key, x in group.items() if key not in own} for group in state.optimizer.param_groups],
        "rates": [state.schedule.lr_at(step) for step in range(200)],
        "scaler": (*rules, scaler.dynamic, scaler.min_scale, scaler.max_skipped, scaler.get_scale()),
        "average": (average.decay, average.use_warmup),
        "precision": state.precision.describe(),
        "model": str(state.wrapped),
        "options": session.plan.config.model_dump(exclude={"name": True, "model": {"resume"}}),
    }


def check(folder, argv: list[str], key: str, value: str, before: dict, capsys) -> None:
    """before: what is in use without the option."""
    fresh = session_for([*argv, f"{key}={value}"], CPU)
    capsys.readouterr()
    resumed = session_for([f"-resume={folder}", *argv, f"{key}={value}"], CPU)
    print_waiting_notes()
    assert re.search(rf"differ from the checkpoint: .*{re.escape(key)}: ", capsys.readouterr().out), key
    assert in_use(resumed) == in_use(fresh) != before, key
    rate = resumed.state.schedule.lr_at(resumed.position.progress.step - 1)
    assert resumed.state.optimizer.param_groups[0]["lr"] == rate


@pytest.mark.parametrize("keys", [["AMP.MIN_LOSS_SCALING"], pytest.param([*TAKES_EFFECT], marks=pytest.mark.slow)])
def test_an_option_of_a_resume_takes_effect(digits_run, digits_argv, capsys, keys):
    folder, argv = digits_run(*STOPPED), [*digits_argv, *STOPPED]
    before = in_use(session_for(argv, CPU))
    for key in keys:
        check(folder, argv, key, TAKES_EFFECT[key], before, capsys)


def test_options_of_a_resume_without_effect_or_with_other_shapes_are_named(digits_run, digits_argv, capsys):
    words = [f"-resume={digits_run(*STOPPED)}", *digits_argv, *STOPPED]
    session_for([*words, "TRAIN.MINUTES=5"], CPU)
    print_waiting_notes()
    out = capsys.readouterr().out
    assert "TRAIN.MINUTES has no effect" in out and "TRAIN.MINUTES:" not in out
    with pytest.raises(UserError, match=r"^DATA\.IMAGE_SIZE: [^\n]*-pretrained$"):
        session_for([*words, "DATA.IMAGE_SIZE=20"], CPU)
