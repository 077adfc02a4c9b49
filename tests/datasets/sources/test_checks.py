"""All that is wrong with the data is told at the start, at once, and quickly."""

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from configs.command_line import parse_command_line
from datasets.registry import read_samples
from datasets.sources import listing
from datasets.sources import samples as sources
from datasets.sources.arrays import TextPacker, texts_in
from datasets.sources.checks import findings_of, notes_on
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
        read_samples(config_for(root, dataset, *options), cpu, "train", "val")
    return str(caught.value).split("\n  ")


def notes_about(root: Path, dataset: str, cpu) -> list[str]:
    return notes_on(*read_samples(config_for(root, dataset), cpu, "train", "val"))


def test_a_list_tells_all_its_mistakes_at_once(tmp_path, cpu):
    write_images(tmp_path, "a.jpg", "b.jpg", "c/d.jpg")
    lines = ["a.jpg 0", "alone", "b.jpg -1", "b.jpg cat", "gone.jpg 1", "../x.jpg 0", "/etc/x.jpg 0", "c/gone.jpg 1"]
    (tmp_path / "train_list.txt").write_text("\n".join([*lines, "no/x.jpg 1", "nul\0.jpg 1", "a.jpg 5", "c/d.jpg 12"]))
    (tmp_path / "val_list.txt").write_text("c 3\nc/d.jpg 0\n")
    headline, *findings = report_on(tmp_path, "imagenet2012", cpu, "MODEL.NUM_CLASSES=10")
    assert headline == f"{tmp_path}: 12 things to put right"
    expected = {
        2: "'alone' is not a path and a label; write both", 3: "label '-1' is no class number; number the classes",
        4: "label 'cat' is no class number", 5: "'gone.jpg' is no file in", 6: "'../x.jpg' leads out of",
        7: "'/etc/x.jpg' leads out of", 8: "'c/gone.jpg' is no file in", 9: "'no/x.jpg' is no file in",
        10: r"'nul\x00.jpg' leads out of", 11: "'a.jpg' has label 5, but in line 1 label 0; remove the wrong one",
        12: "label 12; train has 1 labels up to 12, but MODEL.NUM_CLASSES is 10; set it to 13 or more",
    }  # fmt: skip
    for line, reason in expected.items():
        (found,) = (text for text in findings if text.startswith(f"{tmp_path}/train_list.txt:{line}: "))
        assert reason in found
    assert f"{tmp_path}/val_list.txt:1: 'c' is no file in" in findings[-1]


def test_a_table_tells_all_its_mistakes_at_once(tmp_path, cpu):
    write_images(tmp_path, "a.jpg", "b.jpg")
    (tmp_path / "train.csv").write_text("image_path,target\na.jpg,cat\n,cat\ngone.jpg,dog\nb.jpg,cat,1\n")
    (tmp_path / "val.csv").write_text('image_path,target\nb.jpg,cow\na.jpg,dog\na.jpg,dog\n"b.jpg"x,dog\n')
    _, *findings = report_on(tmp_path, "csv", cpu)
    places = [("train", 3), ("train", 5), ("train", 4), ("val", 5), ("val", 2)]
    assert len(findings) == len(places)
    for (split, line), found in zip(places, findings, strict=True):
        assert found.startswith(f"{tmp_path}/{split}.csv:{line}: ")


def test_class_folders_tell_all_their_mistakes_at_once(tmp_path, cpu):
    for split in ("train", "val"):
        write_images(tmp_path / split, "cat/a.jpg", "dog/b.jpg")
    (tmp_path / "train" / "empty").mkdir()
    (tmp_path / "val" / "other").mkdir()
    (tmp_path / "train" / "cat" / "broken.jpg").symlink_to("gone.jpg")
    (tmp_path / "train" / "cat" / "itself.jpg").symlink_to("itself.jpg")
    (tmp_path / "train" / "cat" / "broken_but_no_image").symlink_to("gone")
    os.mkfifo(tmp_path / "val" / "dog" / "pipe.jpg")
    _, *findings = report_on(tmp_path, "folder", cpu)
    expected = ["cat/broken.jpg: is a broken link", "cat/itself.jpg: is a broken link", "train/empty: holds no images"]
    expected += ["class folder 'empty' is only in one of train and val", "class folder 'other' is only in one"]
    expected += ["dog/pipe.jpg: is a broken link, or no file", "val/other: holds no images"]
    assert len(findings) == len(expected)
    assert all(any(part in found for found in findings) for part in expected)


def test_both_lists_missing(tmp_path, cpu):
    _, *findings = report_on(tmp_path, "imagenet2012", cpu)
    assert [Path(found.partition(": ")[0]).name for found in findings] == ["train_list.txt", "val_list.txt"]


def test_twenty_findings_are_shown(tmp_path, cpu):
    write_images(tmp_path, "a.jpg")
    (tmp_path / "train_list.txt").write_text("a.jpg x\n" * 500)
    (tmp_path / "val_list.txt").write_text("a.jpg 0\n")
    headline, *shown = report_on(tmp_path, "imagenet2012", cpu)
    assert headline.endswith(": 500 things to put right")
    assert len(shown) == 21 and shown[-1] == "... and 480 more"


def test_one_list_split_tells_its_mistakes_once(tmp_path, cpu):
    write_images(tmp_path, "a.jpg", "b.jpg")
    (tmp_path / "train.csv").write_text("image_path,target\na.jpg,0\na.jpg,0\nb.jpg,1\nb.jpg,1\ngone.jpg,0\n")
    (only,) = report_on(tmp_path, "csv", cpu)
    assert only.startswith(f"{tmp_path}/train.csv:6: 'gone.jpg' is no file")


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


def test_each_folder_is_looked_into_once_and_no_file_is_asked(thousand, cpu, monkeypatch):
    looked_into = []
    scandir = os.scandir
    monkeypatch.setattr(listing.os, "scandir", lambda folder: looked_into.append(folder) or scandir(folder))
    monkeypatch.setattr(listing.os.path, "isfile", lambda path: pytest.fail(f"asks for {path}"))
    monkeypatch.setenv("AMPVIT_CACHE", "")
    asked = []
    monkeypatch.setattr(sources.os, "access", lambda path, mode: asked.append(path) or True)
    monkeypatch.setattr(sources, "_MAX_ACCESS_CHECKS", 300)
    read_samples(config_for(thousand, "imagenet2012"), cpu, "train")
    assert len(looked_into) == len(set(looked_into)) == 10
    assert len(asked) == 250


def test_other_ranks_look_for_no_file(thousand, cpu, monkeypatch):
    monkeypatch.setattr(sources.ImageFiles, "check_files", lambda _: pytest.fail("looks for files"))
    config = config_for(thousand, "imagenet2012")
    samples = sources.imagenet2012(config.data, "train")
    assert findings_of(samples, "train", config, replace(cpu, rank=1, world_size=2)) == []


def test_all_ranks_raise_what_the_main_process_found(thousand, cpu, monkeypatch):
    monkeypatch.setattr("datasets.registry.broadcast_object", lambda value, context: Findings("of the main process"))
    for world in (replace(cpu, rank=1, world_size=2), replace(cpu, rank=1, world_size=5000)):
        with pytest.raises(Findings, match="of the main process"):
            read_samples(config_for(thousand, "imagenet2012"), world, "train", "val")


@pytest.mark.skipif(os.getuid() != 0, reason="takes another user's place")
def test_files_that_may_not_be_read_are_found(cpu):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        write_images(root, "open/a.jpg", "open/secret.jpg", "closed/b.jpg", "blind/c.jpg")
        (root / "train_list.txt").write_text("open/a.jpg 0\nopen/secret.jpg 0\nclosed/b.jpg 1\nblind/c.jpg 1\n")
        (root / "open" / "secret.jpg").chmod(0)
        (root / "closed").chmod(0)
        (root / "blind").chmod(0o711)  # its files can be read by who knows their names
        os.setresuid(65534, 65534, 0)
        try:
            with pytest.raises(Findings) as caught:
                read_samples(config_for(root, "imagenet2012"), cpu, "train")
        finally:
            os.setresuid(0, 0, 0)
    _, *findings = str(caught.value).split("\n  ")
    assert len(findings) == 2
    assert findings[0].startswith(f"{root}/train_list.txt:3: 'closed/b.jpg' is no file")
    assert findings[1] == f"{root}/open/secret.jpg: may not be read by this user; change its permissions"


# What may be meant is a note in the log.


def test_images_listed_again_and_in_both_splits_are_noted(tmp_path, cpu):
    write_images(tmp_path, "a.jpg", "b.jpg", "c.jpg")
    (tmp_path / "train_list.txt").write_text("a.jpg 0\nb.jpg 2\n./a.jpg 0\nb.jpg 2\n")
    (tmp_path / "val_list.txt").write_text("c.jpg 1\n.//b.jpg 2\n")
    assert notes_about(tmp_path, "imagenet2012", cpu) == [
        f"{tmp_path}/train_list.txt: 2 image(s) are listed again, the first in line 3",
        "1 of 3 classes have no training image, such as '1'",
        "1 image(s) are in train and in val, such as 'b.jpg'",
    ]


def test_the_same_names_in_folders_of_their_own_are_no_duplicates(tmp_path, cpu):
    for split in ("train", "val"):
        write_images(tmp_path / split, "cat/a.jpg", "dog/a.jpg")
    assert notes_about(tmp_path, "folder", cpu) == []


def test_links_that_lead_back_up_are_noted(tmp_path, cpu):
    write_images(tmp_path, "cat/a.jpg", "cat/b.jpg", "dog/a.jpg", "dog/b.jpg")
    (tmp_path / "cat" / "up").symlink_to(tmp_path)
    (tmp_path / "dog" / "itself").symlink_to(tmp_path / "dog")
    (note,) = notes_about(tmp_path, "folder", cpu)
    assert note.startswith(f"{tmp_path}: 2 link(s)") and note.endswith("'cat/up'")


def test_folders_linked_to_one_another_are_read_once_each(tmp_path):
    names = [f"class{number}" for number in range(12)]
    write_images(tmp_path, *(f"{name}/{name}.jpg" for name in names))
    for name in names:
        for other in names:
            (tmp_path / name / f"to_{other}").symlink_to(tmp_path / other)
    found = listing.read_class_folders(tmp_path)
    assert len(found.paths) == 12 * 12
    assert found.findings == []


def test_folders_without_end_are_refused(tmp_path):
    write_images(tmp_path, "cat/a.jpg", "dog/a.jpg")
    (tmp_path / "cat" / "/".join("d" * 200)).mkdir(parents=True)
    (finding,) = listing.read_class_folders(tmp_path).findings
    assert "lies 100 folders deep; move its images up" in finding


def test_one_long_path_costs_its_own_length_only():
    packed = TextPacker(["ä", "", "\udce9", *["short"] * 10_000, "long" * 100_000]).arrays("texts")
    texts = texts_in(packed, "texts")
    assert list(texts)[:3] == ["ä", "", "\udce9"]
    assert (len(texts), texts[10_003]) == (10_004, "long" * 100_000)
    assert sum(values.nbytes for values in packed.values()) < 550_000
