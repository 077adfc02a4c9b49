"""All problems of a data set are in one report at the start, found with few file system calls."""

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import samples_for
from PIL import Image

from configs.reading.command_line import parse_command_line
from datasets.sources.checks import notes_on
from datasets.sources.files import file_checks
from datasets.sources.files.class_folders import read_class_folders
from utils.errors import Findings, UserError


def write_images(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (12, 9)).save(root / name)


def config_for(root: Path, dataset: str, *options: str):
    return parse_command_line(
        [f"-dataset={dataset}", f"-data_path={root}", "-batch_size=2", "-opts", "SEED=0", *options]
    ).config


def report_on(root: Path, dataset: str, cpu, *options: str) -> list[str]:
    """The lines of the error about both splits."""
    with pytest.raises(UserError) as caught:
        samples_for(config_for(root, dataset, *options), cpu, "train", "val")
    return str(caught.value).split("\n  ")


def notes_about(root: Path, dataset: str, cpu) -> list[str]:
    """Without the warnings about classes with few images, which these small data sets have."""
    notes = notes_on(*samples_for(config_for(root, dataset), cpu, "train", "val"))
    return [note for note in notes if not note.startswith("Warning: ")]


def test_a_report_on_a_list_names_all_problems(tmp_path, cpu):
    write_images(tmp_path, "a.jpg", "b.jpg", "c/d.jpg")
    lines = ["a.jpg 0", "alone", "b.jpg -1", "b.jpg cat", "gone.jpg 1", "../x.jpg 0", "/etc/x.jpg 0", "c/gone.jpg 1"]
    (tmp_path / "train_list.txt").write_text("\n".join([*lines, "no/x.jpg 1", "nul\0.jpg 1", "a.jpg 5", "c/d.jpg 12"]))
    (tmp_path / "val_list.txt").write_text("c 3\nc/d.jpg 0\n")
    headline, *findings = report_on(tmp_path, "imagenet2012", cpu, "MODEL.NUM_CLASSES=10")
    assert headline == f"{tmp_path}: 12 problems"
    expected = {
        2: "'alone' is not a path and a label; write both", 3: "label '-1' is not a class number; number the classes",
        4: "label 'cat' is not a class number", 5: "'gone.jpg' is not a file in", 6: "'../x.jpg' is not inside",
        7: "'/etc/x.jpg' is not inside", 8: "'c/gone.jpg' is not a file in", 9: "'no/x.jpg' is not a file in",
        10: r"'nul\x00.jpg' is not inside", 11: "'a.jpg' has label 5, but label 0 in line 1; remove the wrong line",
        12: "label 12, but MODEL.NUM_CLASSES is 10 (1 training image(s) have labels >= 10); set it to 13 or more",
    }  # fmt: skip
    for line, reason in expected.items():
        (found,) = (text for text in findings if text.startswith(f"{tmp_path}/train_list.txt:{line}: "))
        assert reason in found
    assert f"{tmp_path}/val_list.txt:1: 'c' is not a file in" in findings[-1]


def test_a_report_on_a_table_names_all_problems(tmp_path, cpu):
    write_images(tmp_path, "a.jpg", "b.jpg")
    (tmp_path / "train.csv").write_text("image_path,target\na.jpg,cat\n,cat\ngone.jpg,dog\nb.jpg,cat,1\n")
    (tmp_path / "val.csv").write_text('image_path,target\nb.jpg,cow\na.jpg,dog\na.jpg,dog\n"b.jpg"x,dog\n')
    _, *findings = report_on(tmp_path, "csv", cpu)
    places = [("train", 3), ("train", 5), ("train", 4), ("val", 5), ("val", 2)]
    assert len(findings) == len(places)
    for (split, line), found in zip(places, findings, strict=True):
        assert found.startswith(f"{tmp_path}/{split}.csv:{line}: ")


def test_a_report_on_class_folders_names_all_problems(tmp_path, cpu):
    for split in ("train", "val"):
        write_images(tmp_path / split, "cat/a.jpg", "dog/b.jpg")
    (tmp_path / "train" / "empty").mkdir()
    (tmp_path / "val" / "other").mkdir()
    (tmp_path / "train" / "cat" / "broken.jpg").symlink_to("gone.jpg")
    (tmp_path / "train" / "cat" / "itself.jpg").symlink_to("itself.jpg")
    (tmp_path / "train" / "cat" / "broken_but_no_image").symlink_to("gone")
    os.mkfifo(tmp_path / "val" / "dog" / "pipe.jpg")
    _, *findings = report_on(tmp_path, "folder", cpu)
    expected = [
        "cat/broken.jpg: is a broken link",
        "cat/itself.jpg: is a broken link",
        "train/empty: contains no images",
    ]
    expected += ["class folder 'empty' is only in one of train and val", "class folder 'other' is only in one"]
    expected += ["dog/pipe.jpg: is a broken link or not a file", "val/other: contains no images"]
    assert len(findings) == len(expected)
    assert all(any(part in found for found in findings) for part in expected)


def test_the_splits_of_one_list_report_a_problem_once(tmp_path, cpu):
    write_images(tmp_path, "a.jpg", "b.jpg")
    (tmp_path / "train.csv").write_text("image_path,target\na.jpg,0\na.jpg,0\nb.jpg,1\nb.jpg,1\ngone.jpg,0\n")
    (only,) = report_on(tmp_path, "csv", cpu)
    assert only.startswith(f"{tmp_path}/train.csv:6: 'gone.jpg' is not a file")


@pytest.fixture
def thousand(tmp_path):
    """A list of a thousand images in ten folders."""
    names = [f"{number % 10}/{number}.jpg" for number in range(1000)]
    for number in range(10):
        (tmp_path / str(number)).mkdir()
    for name in names:
        (tmp_path / name).touch()
    (tmp_path / "train_list.txt").write_text("".join(f"{name} 0\n" for name in names))
    (tmp_path / "val_list.txt").write_text(f"{names[0]} 0\n")
    return tmp_path


def test_each_folder_is_listed_once_and_no_file_is_checked_alone(thousand, cpu, monkeypatch):
    listed = []
    scandir = os.scandir
    monkeypatch.setattr(file_checks.os, "scandir", lambda folder: listed.append(folder) or scandir(folder))
    monkeypatch.setattr(file_checks.os.path, "isfile", lambda path: pytest.fail(f"checks {path}"))
    accessed = []
    monkeypatch.setattr(file_checks.os, "access", lambda path, mode: accessed.append(path) or True)
    monkeypatch.setattr(file_checks, "_MAX_ACCESS_CHECKS", 300)
    (samples,) = samples_for(config_for(thousand, "imagenet2012"), cpu, "train")
    folders = [folder for folder in listed if isinstance(folder, Path)]  # without those that rmtree lists
    assert len(folders) == len(set(folders)) == 10
    assert len(accessed) == 250
    assert samples.notes == []


def test_a_check_of_many_folders_is_bounded(thousand, cpu, monkeypatch):
    """Four of ten folders are listed: 0, 3, 6 and 9."""
    (thousand / "3" / "503.jpg").unlink()
    (thousand / "4" / "504.jpg").unlink()
    monkeypatch.setattr(file_checks, "_MAX_FOLDERS", 4)
    monkeypatch.setattr(file_checks, "_MAX_ACCESS_CHECKS", 10)
    (only,) = report_on(thousand, "imagenet2012", cpu)
    assert "'3/503.jpg' is not a file" in only
    (thousand / "3" / "503.jpg").touch()
    (samples,) = samples_for(config_for(thousand, "imagenet2012"), cpu, "train")
    (note,) = samples.notes
    assert note.startswith(
        f"{thousand}/train_list.txt: checked that 400 of 1000 files exist; the others are checked when"
    )


def test_all_ranks_raise_the_main_processs_findings(thousand, cpu, monkeypatch):
    monkeypatch.setattr("utils.distributed.work_while_others_wait", lambda work, context: work())
    monkeypatch.setattr("utils.distributed.broadcast_object", lambda value, context: Findings("of the main process"))
    for world in (replace(cpu, rank=1, world_size=2), replace(cpu, rank=1, world_size=5000)):
        with pytest.raises(Findings, match="of the main process"):
            samples_for(config_for(thousand, "imagenet2012"), world, "train", "val")


@pytest.mark.skipif(os.getuid() != 0, reason="needs to change its user")
def test_unreadable_files_are_found(cpu):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        write_images(root, "open/a.jpg", "open/secret.jpg", "closed/b.jpg", "blind/c.jpg")
        (root / "train_list.txt").write_text("open/a.jpg 0\nopen/secret.jpg 0\nclosed/b.jpg 1\nblind/c.jpg 1\n")
        (root / "open" / "secret.jpg").chmod(0)
        (root / "closed").chmod(0)
        (root / "blind").chmod(0o711)  # its files can be opened by name
        os.setresuid(65534, 65534, 0)
        try:
            with pytest.raises(Findings) as caught:
                samples_for(config_for(root, "imagenet2012"), cpu, "train")
        finally:
            os.setresuid(0, 0, 0)
    _, *findings = str(caught.value).split("\n  ")
    assert len(findings) == 2
    assert findings[0].startswith(f"{root}/train_list.txt:3: 'closed/b.jpg' is not a file")
    assert findings[1] == f"{root}/open/secret.jpg: this user may not read it; change its permissions"


# Notes: facts that may be intended


def test_repeated_images_and_images_in_both_splits_are_noted(tmp_path, cpu):
    write_images(tmp_path, "a.jpg", "b.jpg", "c.jpg")
    (tmp_path / "train_list.txt").write_text("a.jpg 0\nb.jpg 2\n./a.jpg 0\nb.jpg 2\n")
    (tmp_path / "val_list.txt").write_text("c.jpg 1\n.//b.jpg 2\n")
    assert notes_about(tmp_path, "imagenet2012", cpu) == [
        f"{tmp_path}/train_list.txt: 2 image(s) are listed more than once; the first repetition is in line 3",
        "1 of 3 classes have no training image, such as '1'",
        "1 image(s) are in both train and val, such as 'b.jpg'",
    ]


def test_classes_with_few_training_images_are_noted(tmp_path, cpu):
    def warnings(**counts: int) -> list[str]:
        images = [f"{name}/{number}.jpg" for name, count in counts.items() for number in range(count)]
        write_images(tmp_path, *images)
        classes = sorted(counts)
        lines = [f"{image} {classes.index(image.partition('/')[0])}\n" for image in images]
        for split in ("train", "val"):
            (tmp_path / f"{split}_list.txt").write_text("".join(lines))
        (samples,) = samples_for(config_for(tmp_path, "imagenet2012"), cpu, "train")
        return [note for note in notes_on(samples, samples) if note.startswith("Warning: ")]

    assert warnings(a=10, b=12) == []
    (few,) = warnings(a=3, b=3, c=20)
    assert few.startswith("Warning: 3 training images per class (median); add images, or use pretrained weights")
    (single,) = warnings(a=30, b=1, c=10)
    assert single == "Warning: 1 of 3 classes have one training image, such as '1'"


def test_links_to_parent_folders_are_noted(tmp_path, cpu):
    write_images(tmp_path, "cat/a.jpg", "cat/b.jpg", "dog/a.jpg", "dog/b.jpg")
    (tmp_path / "cat" / "up").symlink_to(tmp_path)
    (tmp_path / "dog" / "itself").symlink_to(tmp_path / "dog")
    (note,) = notes_about(tmp_path, "folder", cpu)
    assert note.startswith(f"{tmp_path}: 2 link(s)") and note.endswith("'cat/up'")


def test_deeply_nested_folders_are_refused(tmp_path):
    write_images(tmp_path, "cat/a.jpg", "dog/a.jpg")
    (tmp_path / "cat" / "/".join("d" * 200)).mkdir(parents=True)
    (finding,) = read_class_folders(tmp_path).findings
    assert "is more than 100 folders deep; move its images up" in finding
