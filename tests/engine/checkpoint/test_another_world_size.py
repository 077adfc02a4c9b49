"""DATA.GLOBAL_BATCH_SIZE: another number of ranks resumes with the same samples and schedule, and equal weights."""

from pathlib import Path

import pytest
import torch
from conftest import GREY, TINY_VIT, only_run, step_rows, train, training_samples

from configs.reading.command_line import parse_command_line
from datasets.loading.sampler import epoch_order
from engine.checkpoint.reader import load_checkpoint
from engine.commands.run import run
from engine.training.run_data import read_run_data
from utils.distributed import ProcessContext
from utils.errors import UserError

CPU = ProcessContext(0, 0, 1, 1, torch.device("cpu"))
GLOBAL_BATCH = 96  # 1,437 samples: 14 steps per epoch; without the option 15, the last of 64 or fewer samples
STEPS_PER_EPOCH, STOP, END = 14, 11, 20


def argv_for(output: Path, *more: str) -> list[str]:
    """An epoch and a half with all that depends on no rank: crops, flips, repeated augmentation, the average."""
    options = [
        *TINY_VIT, *GREY, f"DATA.GLOBAL_BATCH_SIZE={GLOBAL_BATCH}", "DATA.REPEATED_AUGMENTATION=2", "REPORT_FREQ=1",
        "TRAIN.OPTIMIZER.NAME=SGD", "TRAIN.BASE_LR=0.1", "TRAIN.MODEL_EMA=true", "TRAIN.MODEL_EMA_DECAY=0.9",
        "TRAIN.GRAD_CLIP=1.0", "TRAIN.LINEAR_SCALED_LR=64", f"TRAIN.MAX_STEPS={END}",
    ]  # fmt: skip
    return ["-dataset=digits", "-batch_size=16", "-num_workers=0", f"-output={output}", "-opts", *options, *more]


@pytest.fixture(scope="module")
def runs(tmp_path_factory, ranks) -> dict[str, Path]:
    """Runs of two ranks, unbroken and resumed from a run of one; and a run of one, to be resumed from two."""
    root = tmp_path_factory.mktemp("runs")
    train(argv_for(root / "1 to 2", f"TRAIN.MAX_STEPS={STOP}"), CPU)
    resumed = [f"-resume={only_run(root / '1 to 2')}", *argv_for(root / "1 to 2")]
    ranks(2).run(argv_for(root / "2"), argv_for(root / "2 to 1", f"TRAIN.MAX_STEPS={STOP}"), resumed)
    return {folder.name: only_run(folder) for folder in root.iterdir()}


@pytest.fixture(scope="module")
def resumed_samples(runs) -> list[int]:
    """The samples that one rank reads when it resumes the run of two ranks."""
    with pytest.MonkeyPatch.context() as patch:
        read = training_samples(patch)
        train([f"-resume={runs['2 to 1']}", *argv_for(runs["2 to 1"].parent)], CPU)
    return read


@pytest.mark.slow
@pytest.mark.parametrize("name", ["2 to 1", "1 to 2"])
@pytest.mark.usefixtures("resumed_samples")
def test_schedule_and_weights_are_those_of_the_unbroken_run(runs, name):
    unbroken, resumed = (load_checkpoint(runs[key] / "last.pth") for key in ("2", name))
    rows, expected = step_rows(runs[name]), step_rows(runs["2"])
    assert [row["step"] for row in rows] == [row["step"] for row in expected] and len(expected) == END
    assert [row["lr"] for row in rows] == [row["lr"] for row in expected]
    for part in ("model", "ema"):
        for tensor, value in unbroken[part].items():
            assert torch.allclose(value, resumed[part][tensor], rtol=0, atol=1e-6), f"{part}.{tensor}"
    log = (runs[name] / "log.txt").read_text()
    assert "the global batch size is" not in log and f"Resume: epoch 1, step {STOP}\n" in log


@pytest.mark.slow
def test_each_step_has_the_samples_of_the_unbroken_run(resumed_samples):
    first, second = (epoch_order(1437, seed=0, epoch=epoch) for epoch in range(2))
    places = torch.arange(STEPS_PER_EPOCH * GLOBAL_BATCH) // 2  # two crops of each
    count = (END - STOP) * GLOBAL_BATCH
    expected = torch.cat([first[places[STOP * GLOBAL_BATCH :]], second[places]])[:count]
    assert resumed_samples[:count] == expected.tolist()


@pytest.mark.slow
@pytest.mark.usefixtures("resumed_samples")
def test_the_log_and_the_options_say_what_was_derived(runs):
    log = (runs["2 to 1"] / "log.txt").read_text()
    for factors in ("2 rank(s) x 3", "1 rank(s) x 6"):
        line = f"Global batch: 96 = batch size 16 x {factors} accumulation step(s); TRAIN.ACCUM_ITER is not used\n"
        assert line in log
    assert "ACCUM_ITER: 6\n" in (runs["2 to 1"] / "config.yaml").read_text()


def test_a_global_batch_that_changes_on_resume_is_one_line(digits_argv, cpu, capsys):
    """As in an elastic run from two ranks to one, or with another -batch_size."""
    stopped = train([*digits_argv, "TRAIN.MAX_STEPS=4"], cpu)
    train([f"-resume={stopped}", *digits_argv, "DATA.BATCH_SIZE=32", "TRAIN.MAX_STEPS=9"], cpu)
    line = "----- Resume: the global batch size is 32, before 64; DATA.GLOBAL_BATCH_SIZE=64 keeps it on any number of "
    assert capsys.readouterr().out.count(line) == 1
    train([f"-resume={stopped}", *digits_argv, "DATA.BATCH_SIZE=16", "DATA.GLOBAL_BATCH_SIZE=32"], cpu)
    assert "global batch size is" not in capsys.readouterr().out


def test_dry_run_prints_the_derived_steps(digits_argv, cpu, capsys):
    options = ["DATA.GLOBAL_BATCH_SIZE=96", "DATA.BATCH_SIZE=32"]
    run(parse_command_line(["-dry_run", *digits_argv, *options]), cpu)
    printed = capsys.readouterr().out
    assert "global batch size: 96 = batch size 32 x 1 rank(s) x 3 accumulation step(s)" in printed
    assert "steps per epoch: 14" in printed


def test_a_number_of_ranks_that_does_not_fit_is_refused_before_the_data_is_read(monkeypatch, digits_argv):
    monkeypatch.setattr("engine.training.run_data.read_samples", None)
    config = parse_command_line([*digits_argv, "DATA.GLOBAL_BATCH_SIZE=96", "DATA.BATCH_SIZE=16"]).config
    with pytest.raises(UserError, match=r"DATA\.GLOBAL_BATCH_SIZE 96"):
        read_run_data(config, ProcessContext(0, 0, 5, 5, torch.device("cpu")))
