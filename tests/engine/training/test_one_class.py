"""Data of one class: an accuracy of 100% says nothing."""

import json

from conftest import TINY_VIT, noise_folder, session_for, train


def test_one_class_is_a_warning(tmp_path, cpu):
    root = noise_folder(tmp_path, 12, 4, (8, 8, 3))
    for split in ("train", "val"):
        for path in (root / split / "class1").iterdir():
            path.rename(root / split / "class0" / path.name)
        names = "".join(f"{split}/class0/{path.name},cat\n" for path in (root / split / "class0").iterdir())
        (root / f"{split}.csv").write_text(f"image,label\n{names}")
    words = ["-dataset=csv", f"-data_path={root}", "-batch_size=4", "-num_workers=0", "-opts", *TINY_VIT]
    notes = session_for([*words, "MODEL.NUM_CLASSES=1"], cpu).plan.notes
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
