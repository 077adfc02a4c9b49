"""A resumed run checks the checkpoint and its folder: a lock, other experiments, changed options. One that is given
takes effect, is refused, or the log says that it has none."""

import re
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import CPU, only_run, read_result, run_folders, session_for, step_rows, train

from configs.command_line import parse_command_line
from engine.checkpoint.files import load_checkpoint
from engine.commands.run import run
from engine.run.log import print_waiting_notes
from utils.errors import UserError
from utils.files import read_json
from utils.notes import STATUS

INVALID_CHANGES = {  # option -> what the error names
    "TRAIN.OPTIMIZER.NAME=SGD": r"TRAIN\.OPTIMIZER\.NAME.*AdamW",
    "TRAIN.MODEL_EMA=true": r"TRAIN\.MODEL_EMA.*false",
    "EVAL.BEST_METRIC=loss": r"EVAL\.BEST_METRIC.*null",
    "MODEL.TUNE=head": r"MODEL\.TUNE.*full.* -pretrained",
    "TRAIN.LAST_EPOCH=1": "-last_epoch 1.*epoch 0",
    "MODEL.EMBED_DIM=32": r"^MODEL\.EMBED_DIM: .*-pretrained",
    "MODEL.MLP_RATIO=3": r"^MODEL\.MLP_RATIO: .*-pretrained",
    "SEED=5": "SEED 0.* 5",
    "DATA.REPEATED_AUGMENTATION=3": r"DATA\.REPEATED_AUGMENTATION 1.* 3",
    "DATA.BALANCED_SAMPLING=true": r"DATA\.BALANCED_SAMPLING false.* true",
    "DATA.BATCH_SIZE=80": "192 samples.* 80",
    "TRAIN.OPTIMIZER.KWARGS={amsgrad: true}": r"^TRAIN\.OPTIMIZER\.KWARGS: .*-pretrained",
    "TRAIN.LAYER_DECAY=0.5": r"^TRAIN\.LAYER_DECAY: .*-pretrained",
    "TRAIN.HEAD_LR_SCALE=2": r"^TRAIN\.HEAD_LR_SCALE: .*-pretrained",
}


@pytest.fixture
def stopped(digits_run) -> Path:
    """The folder of a run that stopped after three steps."""
    return digits_run("TRAIN.MAX_STEPS=3")


def test_resume_rejects_invalid_changes(stopped, digits_argv, cpu):
    before = (stopped / "config.yaml").read_text()
    for option, expected in INVALID_CHANGES.items():
        with pytest.raises(UserError, match=f"(?s){expected}"):
            train([f"-resume={stopped}", *digits_argv, option], cpu)
    assert (stopped / "config.yaml").read_text() == before


def test_a_dry_run_checks_the_checkpoint_and_does_not_train(stopped, digits_argv, cpu):
    argv = ["-dry_run", f"-resume={stopped}", *digits_argv]
    with pytest.raises(UserError, match=r"MODEL\.EMBED_DIM"):
        run(parse_command_line([*argv, "MODEL.EMBED_DIM=32"]), cpu)
    run(parse_command_line([*argv, "MODEL.PRETRAINED=gone.pth"]), cpu)
    assert load_checkpoint(stopped / "last.pth")["done_steps"] == 3


def test_resume_reads_the_checkpoint_after_locking_the_folder(stopped, digits_argv, cpu, monkeypatch):
    """The previous run may still write; the resumed run waits for the lock and then reads the checkpoint."""
    early = (stopped / "last.pth").read_bytes()
    train([f"-resume={stopped}", *digits_argv, "TRAIN.MAX_STEPS=5"], cpu)
    late = (stopped / "last.pth").read_bytes()
    (stopped / "last.pth").write_bytes(early)

    @contextmanager
    def write_then_lock(path):
        (path / "last.pth").write_bytes(late)
        yield

    monkeypatch.setattr("engine.checkpoint.files.lock_run_folder", write_then_lock)
    train([f"-resume={stopped}", *digits_argv, "TRAIN.MAX_STEPS=5"], cpu)
    assert "Resume: epoch 1, step 5" in (stopped / "log.txt").read_text()


def test_more_epochs_continue_the_longer_cosine(digits_argv, cpu, capsys):
    """22 steps per epoch; the schedule equals the schedule of a run that had the larger number from the start."""
    argv = [*digits_argv, "REPORT_FREQ=1", "TRAIN.NUM_EPOCHS=1"]
    folder = train(argv, cpu)
    train([f"-resume={folder}"], cpu)
    assert "all 1 epochs are done" in capsys.readouterr().out
    options = (folder / "config.yaml").read_text()
    with pytest.raises(UserError, match=r"TRAIN\.BASE_LR: no effect"):
        train([f"-resume={folder}", "-lr=0.1"], cpu)
    assert (folder / "config.yaml").read_text() == options
    train([f"-resume={folder}", "-epochs=3", "-opts", "TRAIN.MAX_STEPS=30"], cpu)
    longer = train([*argv, "TRAIN.NUM_EPOCHS=3", "TRAIN.MAX_STEPS=30"], cpu)
    rates, expected = ([row["lr"] for row in step_rows(run)[22:]] for run in (folder, longer))
    assert rates == expected and len(rates) == 8
    assert f"learning rate {float(rates[0]):.3g}" in (folder / "log.txt").read_text()


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


# -resume=auto enters the newest run of the same experiment only.


def resume_auto(argv: list[str], cpu) -> None:
    assert run(parse_command_line(["-resume=auto", *argv]), cpu) == 0


def test_runs_of_other_experiments_are_passed_over(digits_argv, cpu, tmp_path):
    """Two seeds of a job array, resubmitted: each continues its own run."""
    short = "TRAIN.MAX_STEPS=1"
    first = train([*digits_argv, short], cpu)
    resume_auto([*digits_argv, short, "SEED=1"], cpu)
    (second,) = run_folders(tmp_path / "out") - {first}
    log = (second / "log.txt").read_text()
    assert f"----- Resume: passed over: {first}: SEED 0, this run has 1\n" in log
    assert "is of this experiment; starting a new run" in log
    assert read_json(first / STATUS)["state"] == "stopped"
    first.rename(first := first.with_name("train-20260101-12-00"))
    resume_auto([*digits_argv, "TRAIN.MAX_STEPS=2"], cpu)
    resume_auto([*digits_argv, "TRAIN.MAX_STEPS=3", "SEED=1"], cpu)
    assert run_folders(tmp_path / "out") == {first, second}
    assert [load_checkpoint(folder / "last.pth")["done_steps"] for folder in (first, second)] == [2, 3]


def test_evaluation_of_the_newest_run(digits_run, digits_argv, cpu, tmp_path):
    folder = digits_run("TRAIN.MAX_STEPS=3")
    argv = ["-eval", "-resume=auto", *digits_argv]
    assert run(parse_command_line(argv), cpu) == 0
    assert run(parse_command_line(["-amp", *argv]), cpu) == 0  # the folder of the evaluation is no candidate
    assert only_run(tmp_path / "out") == folder
    results = {}
    for evaluation in run_folders(tmp_path / "out", "eval"):
        result = read_result(evaluation)
        results[result["numeric_precision"]] = result["loss"]
        assert (result["split"], result["samples"]) == ("val", 360)
        assert re.search(rf"Loss: .* s, {result['numeric_precision']}\n", (evaluation / "log.txt").read_text())
    half = results.pop("O1: bfloat16 autocast over float32 weights")
    assert results.keys() == {"float32"} and 0 < abs(half - results["float32"]) < 0.01
    with pytest.raises(UserError, match=r"no run of this experiment in .* has a checkpoint to evaluate"):
        run(parse_command_line([*argv, "MODEL.DEPTH=1"]), cpu)
