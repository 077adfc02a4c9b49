"""A data set is read once, and again as soon as anything of it has changed; workers are sent no copy of it."""

import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from configs.command_line import parse_command_line
from configs.schema import Data
from datasets.registry import eval_loader, read_samples
from datasets.sources import samples as sources
from datasets.sources.checks import notes_on
from datasets.sources.samples import ImageFiles
from utils.errors import UserError

READERS = ("read_list", "read_table", "read_class_folders")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """An empty one, which keeps what has just changed too."""
    monkeypatch.setenv("AMPVIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("datasets.sources.stamps._SETTLED_NS", -(10**12))
    return tmp_path / "cache"


@pytest.fixture
def reads(monkeypatch) -> list[str]:
    """Which readers were called."""
    called = []

    def noted(name: str, read: Callable) -> Callable:
        def note(*arguments):
            called.append(name)
            return read(*arguments)

        note.__name__ = name
        return note

    for name in READERS:
        monkeypatch.setattr(sources, name, noted(name, getattr(sources, name)))
    return called


@pytest.fixture
def data(tmp_path) -> Path:
    """Images in folders, by links too, and two lists and tables of them."""
    root = tmp_path / "data"
    colours = {
        f"{split}/{name}/{number}.png": 10 * number for split in ("train", "val") for name in "ab" for number in (1, 2)
    }
    for path, grey in colours.items():
        write_image(root / path, grey)
    for path in ("elsewhere/deep/1.png", "far/1.png"):
        write_image(tmp_path / path, 90)
    (tmp_path / "between").symlink_to("elsewhere")
    (root / "train" / "a" / "linked").symlink_to(tmp_path / "between")
    (root / "train" / "b" / "linked.png").symlink_to(tmp_path / "far" / "1.png")
    (root / "train" / "b" / "up").symlink_to(root)
    for split in ("train", "val"):
        images = [path for path in colours if path.startswith(split)]
        if split == "train":
            images += ["train/a/linked/deep/1.png", "train/b/linked.png", images[0]]
        (root / f"{split}_list.txt").write_text("".join(f"{path} {int('/b/' in path)}\n" for path in images))
        rows = "".join(f"{path},{path.split('/')[1]}\n" for path in images)
        (root / f"{split}.csv").write_text(f"image_path,target\n{rows}")
    return root


def write_image(path: Path, grey: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (9, 12), grey).save(path)


def read(root: Path, dataset: str, cpu, *splits: str) -> list[ImageFiles]:
    config = parse_command_line([f"-dataset={dataset}", f"-data_path={root}", "-batch_size=1"]).config
    return read_samples(config, cpu, *(splits or ("train", "val")))


def told(root: Path, dataset: str, cpu) -> object:
    """All that is known of a data set, or what is wrong with it."""
    try:
        train, val = read(root, dataset, cpu)
    except UserError as error:
        return str(error)
    known = [
        (list(samples.paths), samples.targets.tolist(), samples.class_names, [samples.where(index) for index in (0, 1)])
        for samples in (train, val)
    ]
    return known, notes_on(train, val)


@pytest.mark.parametrize(
    ("dataset", "readings"), [("imagenet2012", 2), ("csv", 2), ("folder", 2), ("caltech101", 1), ("single csv", 1)]
)
def test_what_has_not_changed_is_read_once(data, dataset, readings, cpu, reads, cache):
    root = {"caltech101": data / "train", "single csv": data / "train.csv"}.get(dataset, data)
    dataset = dataset.removeprefix("single ")
    first = told(root, dataset, cpu)
    assert len(reads) == readings == len(list(cache.glob("*.index")))
    assert told(root, dataset, cpu) == first
    assert len(reads) == readings
    assert len(first[1]) == 1  # an image listed twice, or a link back up


def rewritten(path: Path, old: str, new: str) -> None:
    """In place, and with the old time."""
    times = path.stat()
    path.write_text(path.read_text().replace(old, new, 1))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def retargeted(link: Path, target: Path) -> None:
    link.unlink()
    link.symlink_to(target)


CHANGES: dict[str, Callable[[Path], object]] = {
    "label": lambda root: rewritten(root / "train_list.txt", "b/1.png 1", "b/1.png 0"),
    "row": lambda root: rewritten(root / "train.csv", "train/a/2.png,a", "train/a/2.png,c"),
    "added": lambda root: write_image(root / "train" / "a" / "9.png", 0),
    "removed": lambda root: (root / "train" / "b" / "2.png").unlink(),
    "renamed": lambda root: (root / "train" / "b" / "2.png").rename(root / "train" / "b" / "3.png"),
    "class": lambda root: write_image(root / "train" / "c" / "1.png", 0),
    "added behind a link": lambda root: write_image(root.parent / "elsewhere" / "deep" / "2.png", 0),
    "removed behind a link": lambda root: (root.parent / "far" / "1.png").unlink(),
    "link between": lambda root: retargeted(root.parent / "between", root.parent / "far"),
    "data set": lambda root: (root.rename(root.parent / "old"), shutil.copytree(root.parent / "far", root)),
}
UNSEEN = {
    "imagenet2012": ("row", "added", "class", "added behind a link"),
    "csv": ("label", "added", "class", "added behind a link"),
    "folder": ("label", "row"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("dataset", UNSEEN)
def test_any_change_is_seen(data, dataset, change, cpu, reads, monkeypatch):
    before = told(data, dataset, cpu)
    CHANGES[change](data)
    after = told(data, dataset, cpu)
    monkeypatch.setenv("AMPVIT_CACHE", "")
    assert after == told(data, dataset, cpu)
    assert (after == before) == (change in UNSEEN[dataset])


def test_what_changed_a_moment_ago_is_not_kept(data, cpu, cache, monkeypatch):
    """A second change may bear the same stamp."""
    monkeypatch.undo()
    monkeypatch.setenv("AMPVIT_CACHE", str(cache))
    told(data, "imagenet2012", cpu)
    assert not list(cache.iterdir())


@pytest.mark.parametrize("dataset", ["imagenet2012", "csv", "folder"])
def test_what_has_mistakes_is_not_kept(data, dataset, cpu, cache):
    (data / "train" / "b" / "2.png").unlink()
    (data / "train" / "b" / "2.png").symlink_to("gone")
    assert "2.png" in told(data, dataset, cpu)
    assert len(list(cache.iterdir())) == 1  # that of val


def test_a_damaged_index_is_built_anew(data, cpu, cache, reads):
    first = told(data, "imagenet2012", cpu)
    contents = {path: path.read_bytes() for path in cache.iterdir()}
    one, other = contents
    size = len(contents[one])
    damage = [b"", b"x", contents[one][: size // 2], contents[one][:-1], contents[one] + bytes(64), contents[other]]
    for place in range(0, size, size // 40):
        damage.append(contents[one][:place] + bytes([contents[one][place] ^ 4]) + contents[one][place + 1 :])
    for number, content in enumerate(damage, 1):
        one.write_bytes(content)
        assert told(data, "imagenet2012", cpu) == first
        assert len(reads) == 2 + number
    assert {path: path.read_bytes() for path in cache.iterdir()} == contents


def test_a_cache_that_cannot_be_written_keeps_nothing(data, cpu, cache, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("datasets.sources.index.write_arrays", full)
    first = told(data, "imagenet2012", cpu)
    assert not list(cache.iterdir())
    monkeypatch.setenv("AMPVIT_CACHE", "")
    assert told(data, "imagenet2012", cpu) == first


def test_other_ranks_read_what_the_main_process_has_kept(data, cpu, reads, monkeypatch):
    expected = told(data, "imagenet2012", cpu)
    shutil.rmtree(os.environ["AMPVIT_CACHE"])

    def broadcast(error, context):
        if not context.is_main:
            read(data, "imagenet2012", cpu)
            reads.clear()
        return error

    monkeypatch.setattr("datasets.registry.broadcast_object", broadcast)
    train, val = read(data, "imagenet2012", replace(cpu, rank=1, world_size=2))
    assert reads == []
    assert [list(train.paths), list(val.paths)] == [known[0] for known in expected[0]]


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("dataset", ["imagenet2012", "csv"])
def test_a_worker_is_sent_next_to_nothing(tmp_path, dataset, cached, monkeypatch):
    names = [f"{number % 10}/{number}.jpg" for number in range(100_000)]
    (tmp_path / "train_list.txt").write_text("".join(f"{name} {name[0]}\n" for name in names))
    (tmp_path / "train.csv").write_text("image_path,target\n" + "".join(f"{name},{name[0]}\n" for name in names))
    options = Data.model_validate({"DATA_PATH": str(tmp_path)})
    samples = getattr(sources, dataset)(options, "train")  # the table is split
    if cached:
        sources.keep(samples.listing)
        samples = getattr(sources, dataset)(options, "train")
        assert samples.listing.is_checked
    sent = pickle.dumps(samples)
    assert len(sent) < 2_000
    received = pickle.loads(sent)
    assert len(received) == (100_000 if dataset == "imagenet2012" else 90_000)
    for index in (0, 777, len(received) - 1):
        assert received.paths[index] == samples.paths[index]
        assert received.targets[index] == samples.targets[index] == int(samples.paths[index][0])
        assert received.where(index) == samples.where(index)


def test_a_system_without_files_in_memory(data, cpu, monkeypatch):
    expected = told(data, "csv", cpu)
    monkeypatch.setenv("AMPVIT_CACHE", "")
    monkeypatch.delattr(os, "memfd_create", raising=False)
    assert told(data, "csv", cpu) == expected
    samples = pickle.loads(pickle.dumps(read(data / "train.csv", "csv", cpu, "train")[0]))
    assert len(samples) == len(list(samples.paths)) == 5


def test_workers_read_the_same(data, cpu, cache):
    """A part of what an index has that is gone by the time they start."""
    read(data / "train.csv", "csv", cpu)
    samples, _ = read(data / "train.csv", "csv", cpu)
    assert samples.listing.is_checked
    shutil.rmtree(cache)
    batches = []
    for workers in (0, 1):
        options = ["MODEL.PATCH_SIZE=8", "DATA.IMAGE_SIZE=8", f"DATA.NUM_WORKERS={workers}"]
        config = parse_command_line(["-batch_size=2", "-opts", *options]).config
        batches.append(list(eval_loader(config, samples, cpu)))
    assert len(batches[0]) == len(batches[1]) == 3
    for alone, sent in zip(*batches, strict=True):
        assert torch.equal(alone.images, sent.images) and torch.equal(alone.targets, sent.targets)
