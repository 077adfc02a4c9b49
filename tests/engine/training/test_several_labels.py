"""A training run on images with several labels: mAP decides."""

import pandas as pd
import torch
from conftest import TINY_VIT, bright_channels, cli, evaluate, read_result, rows, run_here, train
from pytest import approx, fixture

from engine.checkpoint.files import load_checkpoint
from utils.metric_table import metrics_of

TINY = [
    *TINY_VIT,
    *cli(
        "MODEL.NUM_CLASSES=null MODEL.DEPTH=1 TRAIN.NUM_EPOCHS=3 DATA.MULTI_LABEL=true "
        "DATA.ON_BAD_IMAGE=skip TRAIN.BASE_LR=3e-3 TRAIN.MIXUP_ALPHA=0.2 TRAIN.CUTMIX_ALPHA=1.0 "
        "TRAIN.SMOOTHING=0.1 LOSS.CLASS_WEIGHTS=balanced TRAIN.MODEL_EMA=true "
        "TRAIN.MODEL_EMA_DECAY=0.5 EVAL_RAW=true"
    ),
]


@fixture
def argv(tmp_path) -> list[str]:
    """64 images; the labels are the bright channels and one of every image. One of each split cannot be read."""
    bright_channels(tmp_path, train=64, val=30, test=20)
    for table in tmp_path.glob("*.csv"):
        header, *lines = table.read_text().splitlines()
        table.write_text("\n".join([header, *(f"{line}|every".replace(",|", ",") for line in lines)]))
    for split in ("train", "val", "test"):
        (tmp_path / f"{split}1.png").write_bytes((tmp_path / f"{split}1.png").read_bytes()[:40])
    flags = cli(f"-dataset=csv -data_path={tmp_path} -batch_size=8 -num_workers=0")
    return [*flags, f"-output={tmp_path / 'out'}", "-opts", *TINY]


def test_the_best_mean_average_precision_is_kept_and_reported(argv, tmp_path):
    folder = train(argv)
    result = read_result(folder)
    table = rows(folder)
    scores = [float(row["val_mean_ap"]) for row in table]
    assert (result["mean_ap"], result["top1"]) == (max(scores), None)
    assert scores[-1] > 60
    for row in table:
        assert float(row["raw_val_mean_ap"]) > 0
        assert row["val_top1"] == row["raw_val_top5"] == ""
    state = load_checkpoint(folder / "best.pth")
    assert state["best"].keys() == {metric.name for metric in metrics_of(True)} | {"epoch"}
    assert result["test"]["samples"] == 19
    again = read_result(evaluate(tmp_path / "eval", f"-resume={folder}", pictures=True))  # takes the best checkpoint
    assert [again[name] for name in ("mean_ap", "macro_f1")] == approx([max(scores), result["macro_f1"]])
    logits = torch.tensor(state["threshold_logits"], dtype=torch.float64)
    thresholds = (logits / (state.get("temperature") or 1)).sigmoid().tolist()
    classes, curves = (pd.read_csv(folder / f"evaluation/{name}.csv") for name in ("per_class", "curves"))
    assert classes.threshold.tolist() == [round(100 * threshold, 4) for threshold in thresholds]
    both = curves.merge(classes, on="class", suffixes=("", "_chosen"))
    chosen = both.query("threshold_logit >= threshold_logit_chosen").groupby("class").tail(1)
    assert len(chosen) == len(classes)
    assert chosen.specificity.equals(chosen.specificity_chosen)  # one scale
    raw = evaluate(tmp_path / "raw", f"-resume={folder}", "-opts", "MODEL.WEIGHTS_ENTRY=raw")  # the average has decided
    assert set(pd.read_csv(raw / "evaluation/per_class.csv").threshold) == {50}
    every = classes.set_index("class").loc["every"]
    assert (every.f1, every["count"], every.predicted) == (100, 29, 29)
    listed = tmp_path / "unlabelled.txt"
    listed.write_text("".join(f"val{number}.png\n" for number in range(30)))
    run_here(f"-predict={listed}", f"-resume={folder}", f"-output={tmp_path / 'labels'}")
    predicted = pd.read_csv(tmp_path / "labels/predictions.csv").predicted.str.split(" | ", regex=False).explode()
    assert predicted.value_counts()[classes["class"]].tolist() == classes.predicted.tolist()
    tested = pd.read_csv(folder / "evaluation-test/per_class.csv")  # chosen on the validation images
    assert tested.threshold.tolist() == classes.threshold.tolist()
