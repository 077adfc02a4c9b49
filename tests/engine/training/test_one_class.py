"""Data of one class: an accuracy of 100% says nothing."""

import json

import pytest
from conftest import TINY_VIT, noise_folder, session_for, train


@pytest.mark.parametrize("kind", ["csv", "imagenet2012"])
def test_one_class_is_a_warning(tmp_path, cpu, kind):
    root = noise_folder(tmp_path, 12, 4, (8, 8, 3))
    for split in ("train", "val"):
        for path in (root / split / "class1").iterdir():
            path.rename(root / split / "class0" / path.name)
        (root / split / "class1").rmdir()
        names = [f"{split}/class0/{path.name}" for path in (root / split / "class0").iterdir()]
        (root / f"{split}.csv").write_text("\n".join(["image,label", *(f"{name},cat" for name in names)]) + "\n")
        (root / f"{split}_list.txt").write_text("".join(f"{name} 0\n" for name in names))
    words = [f"-dataset={kind}", f"-data_path={root}", "-batch_size=4", "-num_workers=0", "-opts", *TINY_VIT]
    classes = "MODEL.NUM_CLASSES=10" if kind == "imagenet2012" else "MODEL.NUM_CLASSES=1"
    notes = session_for([*words, classes], cpu).plan.notes
    assert [note for note in notes if str(note).startswith("Warning: all training images are of one class")]


def test_auroc_of_one_validation_class_is_a_warning_and_a_best_line(tmp_path, cpu):
    root = noise_folder(tmp_path / "data", 12, 4, (8, 8, 3))
    for path in (root / "val" / "class1").iterdir():
        path.rename(root / "val" / "class0" / path.name)
    words = [f"-data_path={root}", "-batch_size=4", "-num_workers=0", f"-output={tmp_path / 'out'}", "-opts", *TINY_VIT]
    more = ["DATA.DATASET=imagenet2012", "MODEL.NUM_CLASSES=2", "TRAIN.NUM_EPOCHS=3", "EVAL.BEST_METRIC=auroc"]
    run = train([*words, *more], cpu)
    status = json.loads((run / "run.json").read_text())
    assert [count for text, count in status["warnings"].items() if "EVAL.BEST_METRIC" in text] == [1]
    assert status["result"]["epoch"] and "Best AUROC" in (run / "log.txt").read_text()
