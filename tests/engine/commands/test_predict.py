"""-predict: the same answers as -eval, from the checkpoint alone, for images of any origin."""

import json
import shutil
from pathlib import Path

import numpy as np
from conftest import (
    GREY,
    TINY_VIT,
    cli,
    evaluate,
    of_module,
    predict,
    read_result,
    refused,
    run_script,
    train,
)
from numpy.random import default_rng
from PIL import Image
from pytest import mark, raises

from engine.evaluation.predictions import Predictions
from tests.datasets.sources.source_helpers import write_image
from utils.tables import read_csv_rows

CLASSES = ["<script>", "=ant", "a\nb", "dog"]
MODEL = [option for option in TINY_VIT if not option.startswith("MODEL.NUM_CLASSES")]
PER_CLASS = 12


@of_module
def images(tmp_path_factory) -> Path:
    """A folder of four classes of gray images, of which some look like images of another class."""
    root = tmp_path_factory.mktemp("images")
    rng = default_rng(0)
    for label, name in enumerate(CLASSES):
        for number in range(PER_CLASS):
            level = np.clip(60 * label + rng.normal(0, 30), 0, 255)
            write_image(root / name / f"{number:02d}.png", np.full((9, 8), level, np.uint8))
    return root


@of_module
def trained(images, tmp_path_factory) -> Path:
    data = cli(f"-dataset=folder -data_path={images} -batch_size=8 -num_workers=0")
    options = [*MODEL, *GREY, "TRAIN.NUM_EPOCHS=4", "TRAIN.BASE_LR=1e-2", "DATA.VAL_FRACTION=0.25"]
    return train([*data, f"-output={tmp_path_factory.mktemp('out')}", "-opts", *options])


def top1(rows: list[dict[str, str]]) -> float:
    return 100 * sum(row["class_1"] == row["target"] for row in rows) / len(rows)


def test_the_accuracy_of_the_file_is_that_of_the_evaluation(images, trained, tmp_path):
    """Weights are named in two ways: by the run, and by a file that is away from it. Class names need no -cfg."""
    moved = shutil.copy(trained / "best.pth", tmp_path / "moved.pth")
    shutil.copytree(images, other := tmp_path / "other")  # the data of the training would be split
    argv = [f"-resume={trained / 'best.pth'}", f"-data_path={other}"]
    expected = read_result(evaluate(tmp_path, *argv))
    of_run = predict(tmp_path / "run", *argv)
    of_file = predict(tmp_path / "file", f"-pretrained={moved}", "-dataset=folder", f"-data_path={other}")
    assert len(of_run) == 4 * PER_CLASS
    assert 30 < expected["top1"] < 100
    assert top1(of_run) == expected["top1"]
    assert of_run == of_file
    assert {row["target"] for row in of_run} == {"<script>", "'=ant", r"a\nb", "dog"}
    # Without labels: the same images in the same order, the same probabilities
    (recipe := tmp_path / "recipe.yaml").write_text("DATA: {DATASET: folder}")  # without the folder of a training
    unlabelled = predict(tmp_path / "paths", str(other), f"-cfg={recipe}", f"-pretrained={moved}", "-top_k=1")
    assert list(unlabelled[0]) == ["path", "class_1", "probability_1", "error"]
    for row, labelled in zip(unlabelled, of_run, strict=True):
        assert {key: labelled[key] for key in row} == row


def test_splits_of_the_data_of_the_run(trained, tmp_path):
    weights = f"-resume={trained}"
    counts = {}
    for split in ("val", "train", "all"):
        counts[split] = predict(tmp_path / split, weights, f"-split={split}")
    assert {split: len(rows) for split, rows in counts.items()} == {"val": 12, "train": 36, "all": 48}
    assert predict(tmp_path / "default", weights) == counts["val"]
    assert top1(counts["val"]) == read_result(trained)["top1"]
    with refused("-split all: digits comes in splits; give one of them"):
        predict(tmp_path / "no", weights, "-split=all", "-dataset=digits")


def test_more_images_than_rows_of_a_workbook(trained, tmp_path, monkeypatch):
    """12 images and a header."""
    monkeypatch.setattr("engine.plan.evaluation.MAX_ROWS", 13)
    assert len(predict(tmp_path / "excel", f"-resume={trained}", "-format=excel")) == 12
    monkeypatch.setattr("engine.plan.evaluation.MAX_ROWS", 12)
    with refused("-format excel"):
        predict(tmp_path / "excel", f"-resume={trained}", "-format=excel")


def test_several_labels_have_independent_probabilities(images, tmp_path):
    """An image of the last class has two labels; their probabilities are sigmoids, also away from the run."""
    for label, name in enumerate(CLASSES):
        shutil.copytree(images / name, tmp_path / "data" / str(label))
    targets = ("0", "1", "2", "0,2")
    rows = [f'{label}/{number:02d}.png,"{targets[label]}"' for label in range(4) for number in range(PER_CLASS)]
    table = tmp_path / "data" / "all.csv"
    table.write_text("\n".join(["image_path,target", *rows, ""]))
    data = cli(f"-dataset=csv -data_path={table} -batch_size=8 -num_workers=0 -output={tmp_path / 'out'}")
    options = ["DATA.MULTI_LABEL=true", "TRAIN.NUM_EPOCHS=4", "TRAIN.BASE_LR=1e-2", *GREY, *MODEL]
    weights = f"-pretrained={shutil.copy(train([*data, '-opts', *options]) / 'best.pth', tmp_path)}"
    words = [weights, "-top_k=3", "-threshold=0.1"]  # below the probability that one of four classes has
    unlabelled = predict(tmp_path / "paths", str(table), *words)
    sums = [sum(float(row[f"probability_{rank}"]) for rank in (1, 2, 3)) for row in unlabelled]
    assert max(abs(total - 1) for total in sums) > 0.05
    labelled = predict(tmp_path / "labelled", *data[:2], *words, "-split=all")
    assert {row["target"] for row in labelled} == {"0", "1", "2", "0 | 2"}
    for row, known in zip(unlabelled, labelled, strict=True):
        assert f"{table.parent}/{row.pop('image_path')}" == known.pop("path")
        assert row | {"target": None} == known | {"target": None}


def test_unusable_images_are_rows_with_an_error(images, trained, tmp_path):
    shutil.copytree(images / "dog", folder := tmp_path / "photos")
    Image.effect_noise((64, 64), 90).save(folder / "14.jpg")
    cut = (folder / "14.jpg").read_bytes()[:900]
    for name, content in (("0.jpg", b"hello"), ("13.png", b""), ("14.jpg", cut)):
        (folder / name).write_bytes(content)
    (tmp_path / "list.txt").write_text("photos/00.png 3\nphotos/nothing.png\n\nphotos/01.png\n")
    weights = f"-pretrained={trained / 'best.pth'}"
    rows = predict(tmp_path / "out", str(folder), weights, "-json", "-num_workers=1", "-batch_size_eval=4")
    assert [Path(row["path"]).name for row in rows] == sorted(path.name for path in folder.iterdir())
    assert [row["class_1"] == "" for row in rows] == [row["error"] != "" for row in rows]
    content = json.loads((tmp_path / "out/predictions.json").read_text())
    assert [image["error"] or "" for image in content] == [row["error"] for row in rows]
    errors = {Path(row["path"]).name: row["error"] for row in rows if row["error"]}
    assert errors.keys() == {"0.jpg", "13.png", "14.jpg"}
    assert errors["13.png"] == "is empty (0 bytes)"
    (maps := tmp_path / "out" / "explanations").mkdir()
    (maps / "000000-00.png").write_text("of an image before")
    (maps / "notes.txt").write_text("of the user")
    listed = predict(tmp_path / "out", str(tmp_path / "list.txt"), weights)
    assert [row["error"] for row in listed] == ["", "cannot be read (No such file or directory)", ""]
    files = [path for path in (tmp_path / "out").rglob("[!.]*") if path.is_file()]
    assert sorted(path.name for path in files) == ["notes.txt", "predictions.csv"]
    (elsewhere := maps.rename(tmp_path / "elsewhere") / "000000-00.png").touch()
    maps.symlink_to(elsewhere.parent)
    predict(tmp_path / "out", str(tmp_path / "list.txt"), weights)
    assert elsewhere.exists()  # it is not the folder's own file


def test_if_no_image_is_readable_the_file_is_written_and_the_run_fails(trained, tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"hello")
    with refused(r"none of the 1 images can be read; .*predictions.csv has the reasons"):
        predict(tmp_path / "out", str(tmp_path / "a.jpg"), f"-pretrained={trained / 'best.pth'}")
    (row,) = read_csv_rows(tmp_path / "out" / "predictions.csv")
    assert row["error"].startswith("is not an image of a supported format")
    with refused("^/proc/none: No such file or directory; it or its folder is missing: check the path"):
        predict(Path("/proc/none"), str(tmp_path / "a.jpg"), f"-pretrained={trained / 'best.pth'}")


def test_a_prediction_that_is_interrupted_starts_again(images, trained, tmp_path, monkeypatch):
    """48 images are 24 batches, and rows are written every 8: the file before stays until the last one."""
    argv = [str(images), f"-pretrained={trained / 'best.pth'}", "-batch_size_eval=2", "-num_workers=0"]
    out = tmp_path / "out"
    add = Predictions._add
    out.mkdir()
    (out / "predictions.csv").write_text("earlier")
    (out / ".predictions.csv.host.7.tmp").write_text("of a killed process")

    def add_or_stop(made, results):
        if made.num_done:
            raise KeyboardInterrupt
        add(made, results)

    with monkeypatch.context() as patch, raises(KeyboardInterrupt):
        patch.setattr(Predictions, "_add", add_or_stop)
        predict(out, *argv)
    assert (out / "predictions.csv").read_text() == "earlier"
    assert not list(out.glob("*.tmp"))
    assert predict(out, *argv) == predict(tmp_path / "whole", *argv)


def maps_in(folder: Path) -> dict[str, bytes]:
    return {f"explanations/{path.name}": path.read_bytes() for path in (folder / "explanations").iterdir()}


def test_each_readable_image_has_an_explanation(images, trained, tmp_path):
    shutil.copytree(images, folder := tmp_path / "photos")
    (folder / "dog" / "13.png").write_bytes(b"hello")
    argv = [str(folder), *cli(f"-explain -json -resume={trained} -batch_size_eval=2 -num_workers=0")]
    rows = predict(tmp_path / "whole", *argv)
    maps = maps_in(tmp_path / "whole")
    assert {(row["error"] == "", row["explanation"]) for row in rows} == {(False, "")} | {(True, name) for name in maps}
    assert len(maps) == 48
    content = json.loads((tmp_path / "whole" / "predictions.json").read_text())
    assert [image["explanation"] for image in content] == [row["explanation"] for row in rows]
    with Image.open(tmp_path / "whole" / rows[0]["explanation"]) as picture:
        assert picture.size == (160, 160)
    predict(tmp_path / "own", *argv, "-opts", "EVAL.MAPS=image")
    with Image.open(tmp_path / "own" / rows[0]["explanation"]) as picture, Image.open(rows[0]["path"]) as image:
        assert picture.size == image.size


@mark.slow
def test_two_processes_write_the_same_bytes(images, trained, tmp_path):
    """48 images and a bad one are 7 batches, which two processes cannot share equally."""
    shutil.copytree(images, folder := tmp_path / "photos")
    (folder / "dog" / "13.png").write_bytes(b"hello")
    weights = cli(f"-resume={trained} -batch_size_eval=7 -num_workers=0 -json -explain")
    predict(tmp_path / "one", str(folder), *weights)
    run_script("main_multi_gpu.py", "-ngpus=2", "-predict", str(folder), f"-output={tmp_path / 'two'}", *weights)
    for name in ("predictions.csv", "predictions.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert maps_in(tmp_path / "one") == maps_in(tmp_path / "two")
