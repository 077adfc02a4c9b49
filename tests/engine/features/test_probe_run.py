"""MODEL.TUNE probe and -embed: a full model from one pass over the images; features equal on any number of ranks."""

import math
import re
from base64 import b64decode
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import torch
from conftest import (
    TINY_VIT,
    assert_same_state,
    bright_channels,
    cli,
    code_of,
    config_for,
    digits_flags,
    evaluate,
    images_of,
    log_of,
    of_module,
    read_result,
    refused,
    rows,
    run_folders,
    run_here,
    train,
    values_of,
)
from PIL import Image
from pytest import approx, mark

from engine.features.probe import _features
from engine.features.store import Extracted, Extraction
from tests.datasets.sources.source_helpers import write_image
from tests.engine.report.run_folders import read_page
from utils.files import read_json
from utils.tables import read_csv_rows

pytestmark = mark.usefixtures("few_penalties")


def probe_flags(output: Path, trained: Path, *options: str) -> list[str]:
    flags = [f"-pretrained={trained / 'best.pth'}", "-batch_size=50"]
    return [*digits_flags(output), "MODEL.TUNE=probe", *options, *flags]


def features_of(output: Path, split: str) -> np.ndarray:
    (file,) = output.glob(f"features/*/{split}-*/features.npy")
    return np.load(file)


@of_module
def probed(trained_digits, tmp_path_factory) -> Path:
    """Of the student of DINO, whose entry the best weights of the probe do not have."""
    root = tmp_path_factory.mktemp("probe")
    student = torch.load(trained_digits() / "best.pth")["model"]
    teacher = student | {"norm.bias": student["norm.bias"] + 1}
    torch.save({"student": student, "teacher": teacher}, root / "best.pth")
    return train(probe_flags(root, root, "MODEL.WEIGHTS_ENTRY=student", "EVAL.SUSPECTS=true"))


def test_the_result_is_a_full_model(probed, trained_digits, tmp_path):
    """-eval gives the figures of the run; the head is the fit on the features; the backbone is unchanged."""
    result = read_result(probed)
    before = read_result(trained_digits())
    assert result["top1"] > before["top1"] + 10
    assert result["knn_top1"] > 50
    assert result["pixel_baseline"] > 85
    again = read_result(evaluate(tmp_path, f"-resume={probed}"))
    assert all(again[key] == result[key] for key in ("top1", "loss", "samples"))
    assert not (probed / "details/train_batch.png").exists()
    assert rows(probed)[0]["lr"] == ""
    assert len(read_json(probed / "run.json")["facts"]["ImagesRead"]["digest"]) == 64  # of all images
    assert len({row.sha256 for row in images_of(probed)}) > 530
    model, backbone = (torch.load(folder / "best.pth")["model"] for folder in (probed, trained_digits()))
    with refused(r"MODEL\.TUNE.*probe.* new run: .*MODEL\.TUNE=lora"):
        run_here(f"-resume={probed}", "-opts", "MODEL.TUNE=lora", "EVAL.SUSPECTS=false")
    changed = {name for name in model if not torch.equal(model[name], backbone[name])}
    assert changed == {"head.weight", "head.bias"}
    val = features_of(probed.parent, "val")
    run_here("-embed", f"-resume={probed}", f"-output={tmp_path / 'val'}")
    embedded = read_csv_rows(tmp_path / "val" / "embeddings.csv")
    targets = np.array([int(row["target"]) for row in embedded])
    logits = val @ model["head.weight"].numpy().T + model["head.bias"].numpy()
    assert 100 * (logits.argmax(1) == targets).mean() == approx(result["top1"])


def test_a_head_that_is_not_one_linear_layer_has_no_probe(tmp_path):
    distilled = cli(f"-dataset=digits -model=deit_tiny_distilled_patch16_224 -output={tmp_path}")
    with refused(r"MODEL.TUNE probe: the head of .* is not one linear layer"):
        run_here(*distilled, "-image_size=32", "-opts", "MODEL.TUNE=probe", "DATA.CROP_PCT=1.0")


@mark.slow
def test_ranks_change_no_bit(trained_digits, tmp_path, ranks):
    """Of the features of training and validation, the head, and -embed."""
    many = "DATA.FRACTION=0.25"  # few images have no fast path
    ranks(1).run(probe_flags(tmp_path / "1", trained_digits(), many))
    (probed,) = run_folders(tmp_path / "1")
    embed = cli(f"-resume={probed} -split=train -batch_size_eval=50")
    flags = probe_flags(tmp_path / "2", trained_digits(), many)
    ranks(2).run(flags, ["-embed", *embed, f"-output={tmp_path / 'embed 2'}"])
    run_here("-embed", *embed, f"-output={tmp_path / 'embed 1'}")
    expected = features_of(probed.parent, "train")
    assert np.array_equal(features_of(tmp_path / "2", "train"), expected)
    assert np.array_equal(features_of(tmp_path / "2", "val"), features_of(probed.parent, "val"))
    (last,) = run_folders(tmp_path / "2")
    assert_same_state(torch.load(last / "best.pth")["model"], torch.load(probed / "best.pth")["model"])
    names = ("embed 1", "embed 2")
    assert len({(tmp_path / name / "embeddings.csv").read_text() for name in names}) == 1
    for name in names:
        assert np.array_equal(np.load(tmp_path / name / "embeddings.npy"), expected)


def test_several_labels_and_unreadable_images(tmp_path):
    """The labels are the bright channels; one image of the training is damaged, and its row is left out."""
    bright_channels(tmp_path, train=60, val=30)
    (tmp_path / "train1.png").write_bytes((tmp_path / "train1.png").read_bytes()[:40])
    options = cli("MODEL.TUNE=probe MODEL.FEATURES=token_avg MODEL.NUM_CLASSES=null DATA.MULTI_LABEL=true")
    argv = cli(f"-dataset=csv -data_path={tmp_path} -num_workers=0 -output={tmp_path / 'out'} -opts")
    argv += [*TINY_VIT, *options, "DATA.ON_BAD_IMAGE=skip", "LOSS.NAME=bce", "LOSS.CLASS_WEIGHTS=balanced"]
    folder = train(argv)
    result = read_result(folder)
    features = features_of(tmp_path / "out", "train")
    assert result["mean_ap"] > 90
    assert result["knn_top1"] is None
    assert features.shape == (60, 32)
    assert np.flatnonzero(np.isnan(features).any(axis=1)).tolist() == [1]
    assert "train1.png" in (folder / "bad_images_0.csv").read_text()
    assert read_result(evaluate(tmp_path / "eval", f"-resume={folder}"))["mean_ap"] == result["mean_ap"]


SUSPECTS = [*TINY_VIT, "MODEL.TUNE=probe", "EVAL.SUSPECTS=true"]


def suspect_flags(folder: Path) -> list[str]:
    return cli(f"-output={folder / 'out'} -data_path={folder / 'data'} -dataset=folder -batch_size=4")


def test_an_image_whose_class_no_other_fold_has_is_no_suspect(tmp_path):
    """Neither the only image of a class, nor two of one group; all labels are right."""
    for name, count, pixel in values_of("a | 20 | 0\nb | 20 | 250\nc | 1 | 120\nd | 2 | 60"):
        for number in range(count):
            file = tmp_path / f"data/{name}/p{name}{number // 2}_{number}.png"
            write_image(file, colour=(pixel, number, 255 - pixel), size=(8, 8))
    flags = suspect_flags(tmp_path)
    keys = [*SUSPECTS, "MODEL.NUM_CLASSES=4", "DATA.GROUPS=/(p.*)_"]
    folder = train([*flags, "-opts", *keys])
    assert {row["label"] for row in read_csv_rows(folder / "suspects/suspects.csv")} <= {"a", "b"}
    assert "'c', 'd'" in log_of(folder)
    assert "too high" not in log_of(folder)
    again = train([*flags, f"-pretrained={folder / 'best.pth'}", "-opts", *keys, "DATA.SPLIT_SEED=3"])
    assert "the figures are too high: the checkpoint was trained on" in log_of(again)


def test_wrong_labels_of_images_with_several_are_listed_one_by_one(tmp_path):
    """A red and a green channel, of which two images of each split have a wrong label."""
    planted = {"3.png": "red", "11.png": "red", "20.png": "green", "34.png": "green"}
    lines = ["image_path,target"]
    for number in range(80):
        has = {"red": number % 2 == 0, "green": number % 3 == 0}
        write_image(
            tmp_path / f"{number}.png", colour=(220 * has["red"] + number // 4, 220 * has["green"], 90), size=(8, 8)
        )
        name = f"{number}.png"
        lines.append(f"{name},{'|'.join(label for label in has if has[label] != (planted.get(name) == label))}")
    (tmp_path / "train.csv").write_text("\n".join(lines) + "\n")
    flags = cli(f"-output={tmp_path / 'out'} -data_path={tmp_path} -dataset=csv -batch_size=4")
    keys = cli("DATA.MULTI_LABEL=true LOSS.NAME=bce MODEL.NUM_CLASSES=2 DATA.VAL_FRACTION=0.4")
    folder = train([*flags, "-opts", *SUSPECTS, *keys], pictures=True)
    rows = read_csv_rows(folder / "suspects/suspects.csv")
    assert {row["split"] for row in rows} == {"train", "val"}
    found = {Path(row["path"]).name: row["label"].removeprefix("not ") for row in rows}
    assert found == planted
    for row in rows:
        name = found[Path(row["path"]).name]
        assert {row["label"], row["predicted"]} == {name, f"not {name}"}
        has_label = int(Path(row["path"]).stem) % (2 if name == "red" else 3) == 0
        assert row["predicted"] == (name if has_label else f"not {name}")
    assert "Corrected labels" not in read_page(folder).html


def test_wrong_labels_are_listed_and_corrected_in_the_next_run(tmp_path):
    """Six planted ones, of training and validation images: the loop of training, table and training.

    The page of the first run has the picture of each image while a person moves and decides rows.
    """
    planted = {f"{label}{number}" for label in "ab" for number in (3, 11, 17)}
    for label, pixel in (("a", 0), ("b", 250)):
        for number in range(40):
            name = f"{label}{number}"
            folder = "ba"["ab".index(label)] if name in planted else label
            file = tmp_path / f"data/{folder}/{name}.png"
            write_image(file, colour=(pixel, 2 * number, 255 - pixel), size=(8, 8))
    flags = suspect_flags(tmp_path)
    keys = [*SUSPECTS, "MODEL.NUM_CLASSES=2", "DATA.VAL_FRACTION=0.4"]
    first = train([*flags, "-name=first", "-opts", *keys], pictures=True)
    table = first / "suspects/suspects.csv"
    listed = read_csv_rows(table)
    assert {Path(row["path"]).stem for row in listed} == planted
    assert {row["split"] for row in listed} == {"train", "val"}
    listed[0]["correction"] = "drop"
    pd.DataFrame(listed[::-1]).to_csv(table, index=False)
    page = read_page(first).html.partition("Images whose label may be wrong")[2]
    shown = re.findall(r'src="data:image/jpeg;base64,([^"]*)".*?(\w+)\.png', page, re.S)[: len(listed) - 1]
    assert [name for _, name in shown] == [Path(row["path"]).stem for row in listed[:0:-1]]
    for picture, name in shown:  # of this image, whose green is twice its number
        assert Image.open(BytesIO(b64decode(picture))).getpixel((80, 80))[1] == approx(2 * int(name[1:]), abs=3)
    for row in listed[1:]:
        row["correction"] = row["predicted"]
    pd.DataFrame(listed).to_csv(table, index=False)
    code = code_of("docs/data.md", "Corrected labels")
    exec(code.replace('"DIR"', f"'{tmp_path / 'data'}'").replace("RUN", str(first)))
    flags = [f"-data_path={tmp_path / 'data/corrected.csv'}" if "data_path" in flag else flag for flag in flags]
    second = train([*flags, "-name=second", f"-held_out={first}", "-opts", *keys])
    assert read_csv_rows(second / "suspects/suspects.csv") == []
    assert read_result(second)["top1"] == 100 > read_result(first)["top1"]
    dropped = str(Path(listed[0]["path"]).relative_to(tmp_path / "data"))
    held_out = [read_json(run / "held_out.json")["held_out"] for run in (first, second)]
    assert held_out[1] == [name for name in held_out[0] if name != dropped]


@mark.parametrize("value", [math.nan, math.inf])
def test_features_that_are_not_finite_end_the_run(value, cpu, monkeypatch):
    file = Extracted(np.array([[1.0], [value]], np.float32), {})
    monkeypatch.setattr(Extraction, "once", lambda *_: file)
    config = config_for("-opts", "MODEL.TUNE=probe", "MODEL.PRETRAINED=x.pth")
    evaluator = SimpleNamespace(context=cpu)
    task = SimpleNamespace(config=config, evaluator=evaluator, bad_images=None, after_batch=None)
    with refused("features of train: NaN or infinite"):
        _features(task, None, range(2), "train", 1)
