"""`images.csv.gz`: the SHA-256 of each image that a run has read, its digest, and the images that differ."""

import gzip
import hashlib
import shutil
from itertools import groupby
from pathlib import Path

import numpy as np
from conftest import (
    CPU,
    TINY_VIT,
    cli,
    config_for,
    each_value,
    eval_loader_for,
    evaluate,
    export_as,
    images_of,
    log_of,
    only_run,
    read_result,
    read_samples,
    refused,
    samples_for,
    train,
)
from numpy.random import default_rng
from pytest import fixture, mark

from datasets.sources.samples import ImageFiles, Samples
from datasets.sources.shared_arrays import to_arrays
from engine.evaluation.images import (
    IMAGES,
    ImageRow,
    ImagesAtHand,
    _lines,
    compare_images,
    read_trained,
    write_images,
)
from engine.run.log import RunLogger
from tests.datasets.shards.tar_files import jpeg
from tests.datasets.sources.source_helpers import write_data, write_image
from utils.file_formats.hf_folder import read_metadata
from utils.files import read_json

COUNTS = {"train": 9, "val": 3, "test": 2}  # of each class


def noise(path: Path, seed: int):
    write_image(path, default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8))


@fixture
def data(tmp_path) -> Path:
    for split, count in COUNTS.items():
        for number in range(2 * count):
            noise(tmp_path / f"data/{split}/class{number % 2}/{number}.png", 100 * len(split) + number)
    return tmp_path / "data"


@fixture
def argv(data, tmp_path) -> list[str]:
    """18 training images in batches of 4: each epoch leaves out two."""
    options = [*TINY_VIT, *cli("MODEL.NUM_CLASSES=2 MODEL.DEPTH=1 TRAIN.NUM_EPOCHS=3 TRAIN.BASE_LR=1e-3")]
    flags = cli(f"-dataset=folder -data_path={data} -batch_size=4 -num_workers=0")
    return [*flags, f"-output={tmp_path / 'out'}", "-opts", *options]


def digest_in(run: Path) -> str:
    return read_json(run / "run.json")["facts"]["ImagesRead"]["digest"]


def digest_of(rows: list[ImageRow]) -> str:
    lines = sorted(f"{row.sha256} {row.split} {row.path} {row.label} {row.group}" for row in rows)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def warnings_of(run: Path) -> list[str]:
    return [text for text in read_json(run / "run.json")["warnings"] if text.startswith("the figures")]


def test_a_run_lists_the_files_that_it_has_read(argv, data, tmp_path):
    """Of a few steps, of its continuation, and after it, when nothing is read again."""
    run = train([*argv, "TRAIN.MAX_STEPS=1"])
    assert digest_in(run) == "partial: 4 of 28"
    train([*argv, f"-resume={run}"], pictures=True)
    rows = images_of(run)
    assert {(row.split, row.path): row.sha256 for row in rows} == {
        (split, str(file.relative_to(data / split))): hashlib.sha256(file.read_bytes()).hexdigest()
        for split in COUNTS
        for file in (data / split).rglob("*.png")
    }
    assert {row.label == row.path.split("/")[0] and row.group == "" for row in rows} == {True}
    digest = digest_in(run)
    assert digest == digest_of(rows)
    assert "partial: 22 of 28" in log_of(run)  # after an epoch without two training images, and before the test
    assert digest in (run / "report.html").read_text()
    packed = (run / IMAGES).read_bytes()
    assert packed[3:8] == bytes(5)  # of no name and no time
    export_as("safetensors", run, tmp_path / "x.safetensors", "-no_check")
    assert digest in read_metadata(tmp_path / "x.safetensors")["images_digest"]
    train([*argv, f"-resume={run}"])
    assert digest_in(run) == digest


def test_images_that_differ_from_the_runs_are_named(argv, data, tmp_path):
    run = train(argv)
    strict = ["-opts", "DATA.IMAGE_HASHES=strict"]
    evaluate(tmp_path / "renamed", f"-resume={run}", *strict, "DATA.RENAME={class0: new}")
    noise(data / "val/class0/0.png", 7)
    (data / "val/class1/1.png").unlink()
    noise(data / "val/class1/new.png", 8)
    noise(data / "train/class0/0.png", 9)
    (text,) = warnings_of(evaluate(tmp_path / "eval", f"-resume={run}"))
    for part in ("1 changed ('class0/0.png')", "1 missing ('class1/1.png')", "1 new ('class1/new.png')"):
        assert part in text
    with refused("strict"):
        evaluate(tmp_path / "strict", f"-resume={run}", *strict)
    assert read_result(only_run(tmp_path / "strict", "eval"))["top1"] is None
    longer = [*argv, *cli(f"-resume={run} -opts TRAIN.NUM_EPOCHS=4 DATA.IMAGE_HASHES=strict")]
    for number in (2, 1):  # then no training image is read again
        with refused(f"{number} changed .*strict"):
            train(longer)
    folder = evaluate(tmp_path / "none", f"-resume={run}", "-opts", "DATA.IMAGE_HASHES=none")
    assert not warnings_of(folder)
    assert not (folder / IMAGES).exists()


def test_a_fine_tuning_on_other_data_names_the_images_that_the_weights_were_trained_on(argv, data):
    run = train(argv)
    shutil.rmtree(data / "test")
    for number, file in enumerate(sorted(data.rglob("*.png"))):
        noise(file.rename(file.with_name(f"x{number}.png")), 1000 + number)
    assert not warnings_of(train([*argv, "-name=a", f"-pretrained={run / 'best.pth'}"]))
    noise(data / "val/class0/copy.png", 500)  # train/class0/0.png
    (text,) = warnings_of(train([*argv, "-name=b", f"-pretrained={run / 'best.pth'}"]))
    assert "content of 1 image" in text
    assert "copy.png" in text


def contents(samples: Samples, *options: str) -> list[str]:
    """The hashes of the samples, which two workers have read."""
    samples.hash_content()
    config = config_for("-image_size=16", "-num_workers=2", "-opts", "DATA.BATCH_SIZE_EVAL=4", *options)
    for _ in eval_loader_for(config, samples, CPU):
        pass
    assert samples.hashes
    return [row.tobytes().hex() for row in samples.hashes.rows]


@mark.parametrize("kind", ["csv", "tar", "parquet"])
def test_workers_hash_the_record_that_they_read(kind, tmp_path):
    data = write_data(tmp_path / "data", kind, train=["0", "1"] * 7)
    (samples,) = read_samples(data, None, CPU, "train")
    found = contents(samples)
    expected = {hashlib.sha256(jpeg(number)).hexdigest() for number in range(14)}
    assert len({*found} & expected) == len(found) == len(samples)
    part = samples.select(np.array([3, 5]))
    part.open(0, 3)
    assert [row.tobytes().hex() for row in samples.hashes.rows] == found


def test_weights_of_timm_are_of_no_folder(argv, tmp_path, monkeypatch):
    """The list in the folder of a run, in which a command is typed, is not of these weights."""
    run = train(argv)
    monkeypatch.chdir(run)
    data = config_for(*argv).data
    (samples,) = samples_for(config_for(*argv), CPU, "train")
    samples.hash_content()
    samples.open(0, 3)
    logger = RunLogger(CPU)
    for weights, number in (("timm", 0), (run / "best.pth", 1)):
        (tmp_path / "new").mkdir(exist_ok=True)
        known = write_images({"val": samples}, tmp_path / "new", weights, False, data, CPU, logger)
        assert len(logger.record.values["warnings"]) == number
    (tmp_path / "new" / IMAGES).unlink()
    for index, is_written in ((0, False), (1, True)):  # which has been read, and one more
        samples.open(index, 3)
        known = write_images({"val": samples}, tmp_path / "new", None, True, data, CPU, logger, known)
        assert (tmp_path / "new" / IMAGES).exists() == is_written


def rows_of_two_ranks(context, data: Path, folder: Path):
    config = config_for("-dataset=folder", f"-data_path={data}", "-image_size=16", "-num_workers=0", "-batch_size=2")
    (samples,) = samples_for(config, context, "train")
    samples.hash_content()
    for _ in eval_loader_for(config, samples, context):
        pass
    assert not samples.hashes.rows.any(1).all()  # the other rank has read the others
    write_images({"train": samples}, folder, None, False, config.data, context, RunLogger(context))


@mark.slow
def test_the_list_has_the_images_of_all_ranks(data, tmp_path, ranks):
    (tmp_path / "run").mkdir()
    ranks(2)(rows_of_two_ranks, data, tmp_path / "run")
    found = {row.path: row.sha256 for row in images_of(tmp_path / "run")}
    files = (data / "train").rglob("*.png")
    assert found == {str(f.relative_to(data / "train")): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def at_hand(rows: list[ImageRow]) -> ImagesAtHand:
    """Images of which only the rows are known."""
    splits = {}
    for split, group in groupby(rows, key=lambda row: row.split):
        _, paths, labels, groups, _ = zip(*group, strict=True)
        names = sorted({*labels})
        targets = np.array([names.index(label) for label in labels])
        arrays = {**to_arrays(paths, "paths"), **to_arrays(groups, "groups"), "targets": targets}
        splits[split] = ImageFiles(Path(), names, arrays)
    content = b"".join(bytes.fromhex(row.sha256) or bytes(32) for row in rows)
    return ImagesAtHand(splits, np.frombuffer(content, np.uint8).reshape(-1, 32).copy())


# So many of ten images, in reverse if negative, with these changes; a part of the difference
DIFFERENCES = """
number | changes | part
10 | {} |
-10 | {} |
5 | {split: all, sha256: OTHER} |
6 | {split: all, sha256: OTHER} | 6 changed ('1.jpg', '2.jpg', '3.jpg' and 3 more), 4 missing
10 | {sha256: ''} |  # not read
10 | {label: b, sha256: ''} | 10 changed
10 | {split: val} |
"""
BEFORE = [ImageRow("train", f"{number}.jpg", "a", "", f"{number:064x}") for number in range(1, 11)]


def lines_of(rows: list[ImageRow]) -> list[list[bytes]]:
    return [[",".join(row).encode() for row in rows]]


@each_value(DIFFERENCES)
def test_other_data_with_some_equal_names_are_no_difference(number, changes, part):
    if "sha256" in changes:
        changes["sha256"] = changes["sha256"] and "f" * 64
    now = [row._replace(**changes) for row in BEFORE[:number] or BEFORE[::-1]]
    texts = compare_images(lines_of(BEFORE), at_hand(now)).texts()
    assert [part in text for text in texts] == [True] * bool(part)


# Images of the training that are now of another split and path, with a content; what the training has known
TRAINED_ON = """
split | path | is_read | was_read | number
val | y | true | true | 2
val | y | false | false | 0
train | 1.jpg | true | true | 0  # who evaluates the training images asked for them
"""


@each_value(TRAINED_ON)
def test_images_of_the_training_with_another_name_are_told(split, path, is_read, was_read, number):
    images = at_hand([row._replace(split=split, path=path, sha256=row.sha256 * is_read) for row in BEFORE[:2]])
    before = [row._replace(sha256=row.sha256 * was_read) for row in BEFORE]
    texts = compare_images(lines_of(before), images).trained_on(images)
    assert [f"{number} image(s)" in text for text in texts] == [True] * bool(number)


def test_images_whose_classes_exchange_their_names_are_changed():
    rows = [ImageRow("val", f"{name}.jpg", name, "", "f" * 64) for name in "abc"]
    lines = lines_of(rows)
    assert compare_images(lines, at_hand(rows), {"a": "b", "b": "a"}).changed == ["a.jpg", "b.jpg"]
    exchanged = [row._replace(label={"a": "b", "b": "a"}.get(row.label, row.label)) for row in rows]
    found = compare_images(lines, at_hand(exchanged), {"a": "b", "b": "a"})
    assert (found.number, found.common, found.changed) == (3, 3, [])


def test_the_digest_is_the_one_of_all_lines_in_any_number_of_parts(monkeypatch):
    monkeypatch.setattr("engine.evaluation.images._SORTED", 7)
    generator = default_rng(0)
    rows = [ImageRow("train", f"{n}.jpg", "a, b", "", generator.bytes(32).hex()) for n in range(40)]
    rows += [row._replace(split="val") for row in rows[:9]]
    assert at_hand(rows).digest() == digest_of(rows)


@mark.parametrize("is_multi_hot", [False, True])
def test_the_digest_has_the_names_of_all_labels_where_a_part_lacks_the_last_one(is_multi_hot, monkeypatch):
    """Two classes have one name: 'crane (0)' and 'crane (2)'; the second is the label of one image of 60."""
    targets = np.array([2, *[0, 1] * 30][:60])
    targets = np.eye(3, dtype=np.float32)[targets] if is_multi_hot else targets
    paths = [f"{number}.jpg" for number in range(60)]
    samples = ImageFiles(Path(), ["crane", "b", "crane"], to_arrays(paths, "paths") | {"targets": targets})
    content = default_rng(0).integers(1, 256, (60, 32), dtype=np.uint8)
    images = ImagesAtHand({"train": samples}, content)
    rows = [*images.rows()]
    assert [row.label for row in rows[:3]] == ["crane (2)", "crane (0)", "b"]
    monkeypatch.setattr("engine.evaluation.images._SORTED", 5)
    assert images.digest() == digest_of(rows)


def test_names_with_characters_of_csv_are_read_as_they_were_written(tmp_path):
    names = ['a,"b"', "a\nb", "a\r\nb", '"', "\n\n", "\udcff", "a"]
    rows = [
        ImageRow(split, name, name, name, f"{n:064x}") for split in ("train", "val") for n, name in enumerate(names, 1)
    ]
    images = at_hand(rows)
    for part in (rows, rows[:-1], rows[-1:]):
        at_hand(part).write(tmp_path / IMAGES)
        assert images_of(tmp_path) == part
        assert read_trained(tmp_path, {rows[1].sha256.encode()})[1:] == (len(names) * (len(part) > 1),) * 2
        found = compare_images(_lines(tmp_path), images)
        assert (found.number, found.changed, found.missing) == (len(part), [], [])


def test_a_damaged_list_is_none(tmp_path):
    for content in (b"", b"\x1f\x8b\x08\x00no", gzip.compress(b"a,b\nc\n"), gzip.compress(b"split\n" + b"x" * 10)):
        (tmp_path / IMAGES).write_bytes(content)
        assert read_trained(tmp_path, set()) == (set(), 0, 0)
