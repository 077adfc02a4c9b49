"""A resumed run checks the checkpoint and its folder: a lock, other experiments, changed options; one that is given
takes effect or is refused. A resume from behind leaves its run as it is."""

import re
import shlex
import shutil
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

from conftest import (
    SMALL_BATCHES,
    TINY_VIT,
    assert_same_state,
    cells_of,
    cli,
    config_for,
    line_of,
    log_of,
    noise_folder,
    only_run,
    read_result,
    refused,
    rows,
    run_folders,
    run_here,
    session_for,
    slow,
    states,
    step_rows,
    train,
)
from pytest import fixture, mark, raises
from test_resume import contents

from configs.compare import experiment_mismatch
from configs.yaml_io import parse_value
from engine.checkpoint.files import find_checkpoint, load_checkpoint, runs_newest_first
from engine.checkpoint.run_folder import is_run_folder
from engine.run.record import read_run
from utils.errors import UserError
from utils.files import read_json
from utils.notes import STATUS

# An option, and what the error names
INVALID_CHANGES = r"""
TRAIN.OPTIMIZER.NAME=SGD | TRAIN\.OPTIMIZER\.NAME.*AdamW
TRAIN.MODEL_EMA=true | TRAIN\.MODEL_EMA.*false
EVAL.BEST_METRIC=loss | EVAL\.BEST_METRIC.*null
MODEL.TUNE=head | MODEL\.TUNE.*full.* -cfg=\S+config.yaml -pretrained=\S+last.pth -opts MODEL.TUNE=head
TRAIN.LAST_EPOCH=1 | -last_epoch 1.*epoch 0
MODEL.EMBED_DIM=32 | ^MODEL\.EMBED_DIM: .*-pretrained
SEED=5 | SEED 0.* 5
DATA.BALANCED_SAMPLING=true | DATA\.BALANCED_SAMPLING false.* true
DATA.BATCH_SIZE=40 | 96 samples.* 40
TRAIN.OPTIMIZER.KWARGS={amsgrad: true} | ^TRAIN\.OPTIMIZER\.KWARGS: .* -cfg=
TRAIN.HEAD_LR_SCALE=2 | ^TRAIN\.HEAD_LR_SCALE: .*-pretrained
"""


@fixture
def stopped(digits_run) -> Path:
    """The folder of a run that stopped after three steps."""
    return digits_run("TRAIN.MAX_STEPS=3")


def test_resume_rejects_invalid_changes(stopped, digits_argv):
    before = contents(stopped)
    for option, expected in cells_of(INVALID_CHANGES):
        with refused(f"(?s){expected}"):
            train([f"-resume={stopped}", *digits_argv, option])
    assert contents(stopped) == before


def test_another_tuning_is_advised_with_the_weights_of_the_run(stopped, tmp_path):
    message = line_of(train, cli(f"-resume={stopped} -opts MODEL.TUNE=lora"))
    typed = shlex.split(message.partition("start a new run: ")[2])[2:]
    assert f"{stopped / 'last.pth'}" in log_of(train([*typed, f"-output={tmp_path / 'new'}"]))


def test_a_run_without_a_checkpoint_is_started_again_as_advised(stopped, tmp_path):
    """A signal has killed it in its first epoch."""
    for path in stopped.glob("*.pth"):
        path.unlink()
    (stopped / STATUS).write_text('{"state": "running"}')
    message = line_of(train, [f"-resume={stopped}"])
    (advised,) = re.findall("ended before its first checkpoint.* (-cfg=.*) in place of -resume$", message)
    assert step_rows(train([*shlex.split(advised), f"-output={tmp_path / 'a b'}"])) == step_rows(stopped)


@mark.parametrize("words", ["-batch_size=12", "-batch_size=16", "-batch_size=10", "-batch_size=8 -accum_iter=5"])
def test_a_global_batch_that_is_advised_fits_the_batch_size(words, stopped):
    """Two fit the 96 samples that are used, and two do not."""
    flags = [f"-resume={stopped}", *words.split(), "-opts"]
    try:
        train([*flags, "TRAIN.MAX_STEPS=3"])
        text = log_of(stopped)
    except UserError as error:
        text = str(error)
    advised = re.findall(r"; (DATA.GLOBAL_BATCH_SIZE=\d+) keeps it", text)
    assert bool(advised) == (words not in ("-batch_size=12", "-batch_size=10"))
    train([*flags, *(advised or ["DATA.BATCH_SIZE=32"])])


def test_another_checkpoint_is_advised_in_the_folder_of_a_run(stopped, tmp_path):
    for folder in (stopped, tmp_path / "a b"):
        folder.mkdir(exist_ok=True)
        damaged = folder / "epoch-009.pth"
        damaged.write_bytes(b"x")
        message = line_of(load_checkpoint, damaged)
        advised = [word for word in shlex.split(message.replace(";", "")) if word.startswith("-resume=")]
        assert len(advised) == (folder == stopped)
        for one in advised:
            assert not run_here(one, "-dry_run")


WITHOUT_FOLDS = r"""
DATA.SPLIT_SEED=1
DATA.VAL_FRACTION=0.25
DATA.GROUPS=(p\d)_
DATA.FRACTION=0.5
DATA.ONLY_CLASSES=[class0,class2]
DATA.RENAME={class0:\tclass2}
DATA.FOLD=1 DATA.FOLDS=3
"""
WITH_FOLDS = """
DATA.FOLD=1
DATA.FOLDS=4
DATA.FOLD=null DATA.FOLDS=null DATA.VAL_FRACTION=0.25
"""
FIRST_FOLD = ("DATA.FOLDS=3", "DATA.FOLD=0")


@mark.parametrize("first, rows", [((), "DATA.SPLIT_SEED=1"), slow((), WITHOUT_FOLDS), slow(FIRST_FOLD, WITH_FOLDS)])
def test_the_images_of_a_run_are_fixed_and_the_advised_command_trains_on_others(first, rows, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = noise_folder(tmp_path / "data", 0, 36, (12, 12, 3)) / "val"
    for number, file in enumerate(sorted(data.glob("*/*"))):
        folder = data / f"class{number % 3}"
        folder.mkdir(exist_ok=True)
        file.rename(folder / f"p{number % 4}_{number}.png")
    options = [*TINY_VIT, "TRAIN.MAX_STEPS=1", "MODEL.NUM_CLASSES=3", *first]
    flags = cli(f"-dataset=folder -data_path={data} -batch_size=4 -num_workers=0")
    folder = train([*flags, f"-output={tmp_path / 'out'}", "-opts", *options])
    before = contents(folder)
    for (row,) in cells_of(rows):
        changed = [option.replace("\\t", " ") for option in row.split()]
        for command in ([], ["-dry_run"]):
            with raises(UserError, match=f"^{changed[0].partition('=')[0]}: differs ") as error:
                run_here(*command, f"-resume={folder}", "-opts", *changed)
        assert contents(folder) == before
        typed = shlex.split(str(error.value).partition("start a new run: ")[2])[2:]
        other = train([*typed, f"-output={tmp_path / 'others'}"])
        options = parse_value((other / "config.yaml").read_text())
        assert options["MODEL"]["EMBED_DIM"] == 16
        for key, value in (option.split("=") for option in changed):
            assert options["DATA"][key.removeprefix("DATA.")] == parse_value(value)
        assert run_here("-eval", f"-resume={folder}", f"-output={tmp_path / 'eval'}", "-opts", *changed) == 0


def test_a_dry_run_checks_the_checkpoint_and_does_not_train(stopped, digits_argv):
    argv = ["-dry_run", f"-resume={stopped}", *digits_argv]
    with refused(r"MODEL\.EMBED_DIM"):
        run_here(*argv, "MODEL.EMBED_DIM=32")
    run_here(*argv, "MODEL.PRETRAINED=gone.pth")
    assert load_checkpoint(stopped / "last.pth")["done_steps"] == 3


def test_resume_reads_the_checkpoint_after_locking_the_folder(stopped, digits_argv, monkeypatch):
    """The previous run may still write; the resumed run waits for the lock and then reads the checkpoint."""
    early = (stopped / "last.pth").read_bytes()
    train([f"-resume={stopped}", *digits_argv, "TRAIN.MAX_STEPS=4"])
    late = (stopped / "last.pth").read_bytes()
    (stopped / "last.pth").write_bytes(early)

    @contextmanager
    def write_then_lock(path):
        (path / "last.pth").write_bytes(late)
        yield

    monkeypatch.setattr("engine.checkpoint.files.lock_run_folder", write_then_lock)
    train([f"-resume={stopped}", *digits_argv, "TRAIN.MAX_STEPS=4"])
    assert "Resume: epoch 1, step 4" in log_of(stopped)


@mark.slow
def test_more_epochs_continue_the_schedule_of_a_run_that_had_them_from_the_start(digits_argv):
    argv = [*digits_argv, SMALL_BATCHES, "REPORT_FREQ=1", "TRAIN.NUM_EPOCHS=1"]
    folder = train(argv)
    train(cli(f"-resume={folder} -epochs=3 -opts TRAIN.MAX_STEPS=30"))
    longer = train([*argv, "TRAIN.NUM_EPOCHS=3", "TRAIN.MAX_STEPS=30"])
    rates, expected = ([row["lr"] for row in step_rows(run)[22:]] for run in (folder, longer))  # 22 steps per epoch
    assert len(rates) == 8
    assert rates == expected


@mark.parametrize("kind", ["full", "probe", slow("stopped early")])
def test_a_run_that_has_ended_is_resumed_with_other_images_as_advised_only(kind, tmp_path, few_penalties):
    before, later = (noise_folder(tmp_path / str(number), number, 8, (12, 12, 3)) for number in (16, 24))
    options = [*TINY_VIT, "TRAIN.NUM_EPOCHS=1", "TRAIN.WARMUP_EPOCHS=0"]
    if kind == "stopped early":
        options += cli("TRAIN.NUM_EPOCHS=3 TRAIN.PATIENCE=1 VALIDATE_FREQ=1 TRAIN.BASE_LR=1e-12")
    flags = [*cli(f"-dataset=folder -batch_size=8 -num_workers=0 -output={tmp_path / 'out'} -opts"), *options]
    folder = train([f"-data_path={before}", *flags])
    if kind == "probe":
        weights = [f"MODEL.PRETRAINED={folder / 'best.pth'}", "MODEL.TUNE=probe"]
        folder = train([f"-data_path={before}", *flags, *weights])
    files = contents(folder)
    resumed = [f"-resume={folder}", f"-data_path={later}"]
    if kind == "probe":  # images that were added
        shutil.copytree(later, before, dirs_exist_ok=True)
        resumed.pop()
    for command in ([], ["-dry_run"]):
        with raises(UserError, match=r"ended with other images \(16 training .* now 24 training") as error:
            run_here(*command, *resumed)
    assert contents(folder) == files
    advice = str(error.value).rpartition("; ")[2].removesuffix(" trains on them")
    if kind == "probe":
        typed = shlex.split(advice.removeprefix("start a new run: "))[2:]
        assert "24 training images" in log_of(train([*typed, f"-output={tmp_path / 'new'}"]))
    else:
        assert read_result(train([*resumed, *shlex.split(advice)]))["finished"]
        assert "24 training images" in log_of(folder)


def test_other_options_and_devices_change_no_record_of_a_run_that_has_ended(digits_run, monkeypatch):
    ended = digits_run()
    record = ("facts", "given", "preprocessing")
    options = (ended / "config.yaml").read_text()
    known = read_run(ended)
    monkeypatch.setattr("engine.training.end.device_name", lambda device: "another")
    train(cli(f"-resume={ended} -opts DATA.CROP_PCT=0.5 EVAL.TTA=flip"))
    assert (ended / "config.yaml").read_text() == options
    again = read_run(ended)
    del again["facts"]["Start"], known["facts"]["Start"]
    assert [again[key] for key in record] == [known[key] for key in record]
    assert again["result"]["device"] == known["result"]["device"] != "another"


STOPPED = ("TRAIN.MAX_STEPS=3", "AMP.ENABLED=true", "AMP.DTYPE=float16", "TRAIN.MODEL_EMA=true", "DATA.BATCH_SIZE=16")
TAKES_EFFECT = """
AMP.INIT_LOSS_SCALING | 1024
AMP.MIN_LOSS_SCALING | 8192
AMP.INCR_RATIO | 4
AMP.DECR_RATIO | 0.25
AMP.INCR_EVERY_N_STEPS | 7
AMP.DECR_EVERY_N_NAN_OR_INF | 3
AMP.USE_DYNAMIC_LOSS_SCALING | false
AMP.MAX_SKIPPED_STEPS | 5
AMP.DTYPE | bfloat16
AMP.LEVEL | O2
AMP.ENABLED | false
TRAIN.BASE_LR | 2e-4
TRAIN.END_LR | 1e-4
TRAIN.WARMUP_EPOCHS | 1
TRAIN.WARMUP_START_LR | 1e-5
TRAIN.NUM_EPOCHS | 5
TRAIN.LINEAR_SCALED_LR | 32
TRAIN.LR_SCHEDULER.NAME | linear
TRAIN.WEIGHT_DECAY | 0.2
TRAIN.OPTIMIZER.BETAS | [0.5, 0.6]
TRAIN.OPTIMIZER.EPS | 1e-3
TRAIN.MODEL_EMA_DECAY | 0.5
TRAIN.MODEL_EMA_WARMUP | false
TRAIN.GRAD_CLIP | 3
TRAIN.SMOOTHING | 0.3
MODEL.DROPOUT | 0.25
DATA.HFLIP_PROB | 0.125
"""


def in_use(session) -> dict[str, object]:
    """All that is made of the options, and that a checkpoint could override."""
    state = session.state
    scaler = session.state.precision.scaler
    average = session.state.average
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


def check(folder, argv: list[str], key: str, value: str, before: dict):
    """before: what is in use without the option."""
    fresh = session_for([*argv, f"{key}={value}"])
    resumed = session_for([f"-resume={folder}", *argv, f"{key}={value}"])
    assert in_use(resumed) == in_use(fresh) != before, key
    rate = resumed.state.schedule.lr_at(resumed.position.progress.step - 1)
    assert resumed.state.optimizer.param_groups[0]["lr"] == rate


@mark.parametrize("rows", ["AMP.MIN_LOSS_SCALING | 8192", slow(TAKES_EFFECT)])
def test_an_option_of_a_resume_takes_effect(digits_run, digits_argv, rows):
    folder = digits_run(*STOPPED)
    argv = [*digits_argv, *STOPPED]
    before = in_use(session_for(argv))
    for key, value in cells_of(rows):
        check(folder, argv, key, value, before)


# -resume=auto enters the newest run of the same experiment only.


def test_runs_of_other_experiments_are_passed_over(digits_run, digits_argv, tmp_path, monkeypatch):
    """Two seeds of a job array, resubmitted: each continues its own run. No options of older runs are read."""
    compare = Mock(wraps=experiment_mismatch)
    monkeypatch.setattr("engine.plan.training.experiment_mismatch", compare)
    first = digits_run("TRAIN.MAX_STEPS=3")
    assert run_here("-resume=auto", *digits_argv, "TRAIN.MAX_STEPS=1", "SEED=1") == 0
    (second,) = run_folders(tmp_path / "out") - {first}
    assert read_json(first / STATUS)["state"] == "stopped"
    first.rename(first := first.with_name("train-20260101-12-00"))
    assert run_here("-resume=auto", *digits_argv, "TRAIN.MAX_STEPS=4") == 0
    compare.reset_mock()
    assert run_here("-resume=auto", *digits_argv, "TRAIN.MAX_STEPS=5") == 0  # the newest one
    assert compare.call_count == 1
    assert run_here("-resume=auto", *digits_argv, "TRAIN.MAX_STEPS=3", "SEED=1") == 0
    assert compare.call_count == 3
    assert "runs of other experiments passed over: 1, the newest" in log_of(second)
    assert run_folders(tmp_path / "out") == {first, second}
    done = [load_checkpoint(folder / "last.pth") for folder in (first, second)]
    assert [(state["epoch"], state["done_steps"]) for state in done] == [(1, 0), (0, 3)]  # of 5 steps in an epoch


def test_the_screen_says_why_the_newest_run_is_passed_over(digits_run, digits_argv, tmp_path, capsys):
    """A run that was given more epochs is of a command with as many; docs/resume.md."""
    first = digits_run("TRAIN.MAX_STEPS=1")
    train([f"-resume={first}", "-epochs=3"])
    capsys.readouterr()
    argv = ["-resume=auto", *digits_argv]
    train([*argv, "TRAIN.NUM_EPOCHS=3", "TRAIN.MAX_STEPS=2"])
    assert only_run(tmp_path / "out") == first
    assert first.name + ": " not in capsys.readouterr().out
    assert run_here(*argv, "TRAIN.MAX_STEPS=1") == 0
    assert len(run_folders(tmp_path / "out")) == 2
    assert f"{first.name}: TRAIN.NUM_EPOCHS 3, this run has 2" in capsys.readouterr().out


def test_evaluation_of_the_newest_run(digits_run, digits_argv, tmp_path):
    folder = digits_run("TRAIN.MAX_STEPS=3")
    argv = ["-eval", "-resume=auto", *digits_argv]
    assert run_here(*argv) == 0
    assert run_here("-amp", *argv) == 0  # the folder of the evaluation is no candidate
    assert only_run(tmp_path / "out") == folder
    results = {}
    for evaluation in run_folders(tmp_path / "out", "eval"):
        result = read_result(evaluation)
        results[result["numeric_precision"]] = result["loss"]
        assert (result["split"], result["samples"]) == ("val", 360)
    half = results.pop("O1: bfloat16 autocast over float32 weights")
    assert results.keys() == {"float32"}
    assert 0 < abs(half - results["float32"]) < 0.01
    with refused(r"no run of this experiment in .* has a checkpoint"):
        run_here(*argv, "MODEL.DEPTH=1")


LONG = (
    "TRAIN.NUM_EPOCHS=5", "KEEP_CHECKPOINTS=9", "DATA.BATCH_SIZE=45", "TRAIN.BASE_LR=5e-3", "LOGGERS=[]",
    "EVAL.BEST_METRIC=loss"
)  # fmt: skip
STEPS = 3  # of an epoch


@fixture
def long_run(digits_run) -> Path:
    """Five epochs of three steps; the fifth is the best."""
    folder = digits_run(*LONG)
    assert load_checkpoint(folder / "best.pth")["best"]["epoch"] == 5
    return folder


@mark.parametrize("name, epoch", [slow("epoch-002.pth", 2), ("previous.pth", 4)])
def test_a_run_with_checkpoints_ahead_stays_and_a_new_one_continues(name, epoch, long_run, cpu, tmp_path):
    before = contents(long_run)
    stop = f"TRAIN.MAX_STEPS={STEPS * (epoch + 1)}"
    run_here(f"-resume={long_run / name}", f"-output={tmp_path / name}", "-opts", stop)
    folder = only_run(tmp_path / name)
    assert [row["epoch"] for row in rows(folder)] == [str(epoch + 1)]
    assert_same_state(states(folder)["model"], states(long_run, f"epoch-00{epoch + 1}.pth")["model"])
    assert read_result(folder)["checkpoint"].startswith(str(folder))
    assert contents(long_run) == before
    assert find_checkpoint("auto", cpu, [long_run]).path == long_run / "last.pth"


@mark.parametrize("damage", ["an earlier epoch", "a damaged file", slow("a missing file")])
def test_a_best_that_is_not_the_best_is_written_again(long_run, damage):
    """As after a kill between last.pth and best.pth."""
    best = states(long_run, "best.pth")
    (long_run / "best.pth").unlink()
    if damage != "a missing file":
        shutil.copyfile(long_run / "epoch-002.pth", long_run / "best.pth")
    if damage == "a damaged file":
        (long_run / "best.pth").write_bytes(b"PK")
    train([f"-resume={long_run / 'last.pth'}"])
    assert states(long_run, "best.pth")["best"] == best["best"]
    assert_same_state(states(long_run, "best.pth")["model"], best["model"])


def test_a_run_without_its_text_files_continues(digits_run, digits_argv):
    folder = digits_run("TRAIN.MAX_STEPS=3")
    missing = ("log.txt", "metrics.csv", "metrics.jsonl", "run.json")
    for name in missing:
        (folder / name).unlink()
    for step, argv in enumerate((["-resume=auto", *digits_argv], [f"-resume={folder}", "-opts"]), 4):
        assert run_here(*argv, f"TRAIN.MAX_STEPS={step}") == 0
        assert load_checkpoint(folder / "last.pth")["done_steps"] == step % 5
        assert only_run(folder.parent) == folder
        assert all((folder / name).is_file() for name in missing)
    options = config_for(f"-resume={folder}")
    assert (options.model.embed_dim, options.data.batch_size) == (16, 32)


@mark.parametrize("names", ["best.pth", "last.pth", "best.pth config.yaml", "epoch-001.pth"])
def test_copies_are_no_run(tmp_path, names):
    (copy := tmp_path / "copies").mkdir()
    for name in names.split():
        (copy / name).touch()
    assert not is_run_folder(copy)
    assert runs_newest_first(tmp_path) == []
