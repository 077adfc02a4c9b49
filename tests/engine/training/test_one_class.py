"""Data of one class: an accuracy of 100% says nothing."""

import pytest
from conftest import TINY_VIT, noise_folder, session_for


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
