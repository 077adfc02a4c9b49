"""DATA.GLOBAL_BATCH_SIZE: another number of ranks resumes with the same samples and schedule, and equal weights."""

from pathlib import Path

import pytest
import torch
from conftest import GREY, TINY_VIT, only_run, step_rows, train, training_samples
from conftest import rows as metrics

from datasets.loading.sampler import epoch_order
from engine.checkpoint.files import load_checkpoint
from utils.distributed import ProcessContext

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
    losses, of_unbroken = ([float(row["train_loss"]) for row in metrics(runs[key])] for key in (name, "2"))
    assert losses == pytest.approx(of_unbroken, abs=1e-6) and losses
    for part in ("model", "state_dict_ema"):
        for tensor, value in unbroken[part].items():
            assert torch.allclose(value, resumed[part][tensor], rtol=0, atol=1e-6), f"{part}.{tensor}"
    log = (runs[name] / "log.txt").read_text()
    assert "the global batch size is" not in log and f"Resume: epoch 1, step {STOP}," in log
    assert f"ACCUM_ITER: {6 if name == '2 to 1' else 3}\n" in (runs[name] / "config.yaml").read_text()


@pytest.mark.slow
def test_each_step_has_the_samples_of_the_unbroken_run(resumed_samples):
    first, second = (epoch_order(1437, seed=0, epoch=epoch) for epoch in range(2))
    places = torch.arange(STEPS_PER_EPOCH * GLOBAL_BATCH) // 2  # two crops of each
    count = (END - STOP) * GLOBAL_BATCH
    expected = torch.cat([first[places[STOP * GLOBAL_BATCH :]], second[places]])[:count]
    assert resumed_samples[:count] == expected.tolist()
