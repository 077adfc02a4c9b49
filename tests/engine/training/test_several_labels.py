"""A training run on images with several labels: mAP decides."""

from collections import Counter

import torch
from conftest import TINY_VIT, bright_channels, cli, evaluate, read_result, rows, run_here, train
from pytest import approx, fixture

from engine.checkpoint.files import load_checkpoint
from utils.metric_table import metrics_of
from utils.tables import read_csv_rows

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
    classes, curves = (read_csv_rows(folder / f"evaluation/{name}.csv") for name in ("per_class", "curves"))
    assert [f"{100 * threshold:.4f}" for threshold in thresholds] == [row["threshold"] for row in classes]
    for row, curve in ((row, [one for one in curves if one["class"] == row["class"]]) for row in classes):
        above = [one for one in curve if float(one["threshold_logit"]) >= float(row["threshold_logit"])]
        assert above[-1]["specificity"] == row["specificity"]  # one scale
    raw = evaluate(tmp_path / "raw", f"-resume={folder}", "-opts", "MODEL.WEIGHTS_ENTRY=raw")  # the average has decided
    assert {row["threshold"] for row in read_csv_rows(raw / "evaluation/per_class.csv")} == {"50.0000"}
    (every,) = (row for row in classes if row["class"] == "every")
    assert (every["f1"], every["count"], every["predicted"]) == ("100.0000", "29", "29")
    listed = tmp_path / "unlabelled.txt"
    listed.write_text("".join(f"val{number}.png\n" for number in range(30)))
    run_here(f"-predict={listed}", f"-resume={folder}", f"-output={tmp_path / 'labels'}")
    counts = Counter()
    for row in read_csv_rows(tmp_path / "labels" / "predictions.csv"):
        counts.update(row["predicted"].split(" | "))
    assert [counts[row["class"]] for row in classes] == [int(row["predicted"]) for row in classes]
    tested = read_csv_rows(folder / "evaluation-test" / "per_class.csv")  # chosen on the validation images
    assert [row["threshold"] for row in tested] == [row["threshold"] for row in classes]
