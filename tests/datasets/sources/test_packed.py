"""Packed data sets contain the same images as their sources, and damage to their files is named."""

import io
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import GREY, eval_loader_for, samples_for, train_batches_for
from PIL import Image
from torch.nn.functional import interpolate

from configs.reading.command_line import parse_command_line
from configs.schema import Config, Data
from datasets.decoding.bad_images import BadImage
from datasets.decoding.decode import decode_image
from datasets.sources.arrays.mapped_arrays import save_arrays
from datasets.sources.arrays.packed import CHECKSUMS, COLUMNS, index_checksums, packed
from scripts.pack_dataset import Packable, main, write_packed
from utils.errors import UserError

CLASSES = ("ünï 中🙂", os.fsdecode(b"\xff\xe9"), "plain")


@pytest.fixture
def folders(tmp_path) -> Path:
    """LazyImages of several sizes and kinds in class folders, 12 for training and 6 for validation."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 4), ("val", 2)):
        for name in CLASSES:
            (tmp_path / "folders" / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(256, size=(20 + number, 35 - 5 * number, 3), dtype=np.uint8)
                image = Image.fromarray(pixels).convert("RGB" if number % 2 else "L")
                ending = ("jpg", "png", "webp", "jpg")[number]
                image.save(tmp_path / "folders" / split / name / f"ä{number}.{ending}")
    return tmp_path / "folders"


def options_for(root: Path, dataset: str, *options: str) -> list[str]:
    return [f"-dataset={dataset}", f"-data_path={root}", "-opts", "DATA.NUM_WORKERS=0", *options]


def pack(root: Path, *flags: str) -> Path:
    output = root.parent / "packed"
    assert main(["-output", str(output), *flags, *options_for(root, "folder")]) == 0
    return output


def config_for(root: Path, dataset: str, *options: str) -> Config:
    sizes = ["MODEL.PATCH_SIZE=8", "DATA.IMAGE_SIZE=16", "DATA.BATCH_SIZE=4", "TRAIN.NUM_EPOCHS=1"]
    return parse_command_line(options_for(root, dataset, *sizes, "TRAIN.WARMUP_EPOCHS=0", *options)).config


def all_tensors(root: Path, dataset: str, cpu) -> list[torch.Tensor]:
    """Images and targets of one epoch of training and of an evaluation."""
    config = config_for(root, dataset)
    train, val = samples_for(config, cpu, "train", "val")
    batches = [*train_batches_for(config, train, cpu), *eval_loader_for(config, val, cpu)]
    return [part for batch in batches for part in (batch.images, batch.targets)]


def test_training_sees_the_same_pixels(folders, cpu):
    before, after = all_tensors(folders, "folder", cpu), all_tensors(pack(folders), "packed", cpu)
    assert len(before) == len(after) == 2 * (3 + 2)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_names_and_classes_are_kept(folders, cpu):
    output = pack(folders)
    for split, count in (("train", 12), ("val", 6)):
        (files,) = samples_for(config_for(folders, "folder"), cpu, split)
        (samples,) = samples_for(config_for(output, "packed"), cpu, split)
        assert samples.class_names == files.class_names == sorted(CLASSES)
        assert samples.targets.tolist() == files.targets.tolist()
        assert samples.targets.dtype == np.int64
        assert len(samples) == count
        for index in range(count):
            path = Path(files.name(index)).relative_to(folders)
            assert samples.name(index) == f"{output}/{split}.blob: image {index} ({path})"
            assert samples.read_bytes(index) == files.read_bytes(index)


@pytest.mark.parametrize("channels", [1, 3])
def test_smaller_pixels(folders, cpu, channels):
    output = pack(folders, "-size", "21", *(["-opts", *GREY] if channels == 1 else []))
    (files,) = samples_for(config_for(folders, "folder"), cpu, "train")
    (samples,) = samples_for(config_for(output, "packed"), cpu, "train")
    sizes = set()
    for index in range(len(files)):
        expected = decode_image(files.read_bytes(index), channels, "")
        height, width = expected.shape[1:]
        if min(height, width) > 21:
            size = (height * 21 // min(height, width), width * 21 // min(height, width))
            expected = interpolate(expected[None], size=size, mode="bicubic", antialias=True)[0]
        image = samples.open(index, channels).pixels
        assert torch.equal(image, expected)
        assert image.permute(1, 2, 0).is_contiguous()  # as decoders write them
        assert samples.open(index, 4 - channels).pixels.shape == (4 - channels, *image.shape[1:])
        sizes.add(tuple(image.shape[1:]))
    assert (20, 35) in sizes and any(min(size) == 21 for size in sizes)


def test_a_damaged_image_is_named(folders, cpu):
    output = pack(folders)
    blob = output / "train.blob"
    (samples,) = samples_for(config_for(output, "packed"), cpu, "train")
    place = sum(len(samples.read_bytes(index)) for index in range(5)) + 7
    data = bytearray(blob.read_bytes())
    data[place] ^= 1
    blob.write_bytes(data)
    for index in range(12):
        if index == 5:
            with pytest.raises(
                BadImage, match=rf"^{blob}: image 5 \(train/ünï.*ä1.png\): is damaged .*; pack the data"
            ):
                samples.open(index, 3)
        else:
            samples.open(index, 3)
    os.truncate(blob, place)
    with pytest.raises(BadImage, match=rf"^{blob}: image 5 \(.*\): ends after 7 of [\d,]+ bytes; pack the data again"):
        samples.open(5, 3)
    with pytest.raises(BadImage, match=r"image 11 .*: ends after 0 of"):
        pickle.loads(pickle.dumps(samples)).open(11, 3)
    with pytest.raises(
        UserError, match=rf"^{output}/train.index: describes a blob of [\d,]+ bytes, but the blob has {place:,};"
    ):
        samples_for(config_for(output, "packed"), cpu, "train")


@pytest.fixture
def small(tmp_path) -> Path:
    """Two images of one red pixel each, encoded and as pixels."""
    Image.new("RGB", (1, 1), "red").save(png := io.BytesIO(), "PNG")
    for name, data, shape in (("encoded", png.getvalue(), None), ("pixels", b"\xff\0\0", (1, 1, 3))):
        (tmp_path / name).mkdir()
        write_packed(tmp_path / name, "val", ["a", "b"], [Packable(data, label, f"{label}", shape) for label in (0, 1)])
    return tmp_path


def read_val(folder: Path):
    return packed(Data.model_validate({"DATA_PATH": str(folder)}), "val")


@pytest.mark.parametrize("kind", ["encoded", "pixels"])
@pytest.mark.parametrize("file", [CHECKSUMS, *(f"{name}.npy" for name in COLUMNS)])
def test_damage_to_an_index_is_found(small, kind, file):
    index = small / kind / "val.index"
    path = index / file
    content = path.read_bytes()
    size = len(content)
    damaged = [content[:place] + bytes([content[place] ^ 16]) + content[place + 1 :] for place in range(0, size, 7)]
    for data in (b"", b"x" * 100, content[:-1], content[: size // 2], content + b"x", *damaged):
        path.unlink()
        path.write_bytes(data)
        with pytest.raises(UserError, match=rf"^{index}: is damaged \(a checksum does not match\); pack the"):
            read_val(small / kind)
    path.unlink()
    with pytest.raises(UserError, match=rf"^{path}: cannot be read \(No such file.*\); .*scripts/pack_dataset.py$"):
        read_val(small / kind)


def rewrite(index: Path, changed: dict[str, np.ndarray]) -> None:
    """With correct checksums."""
    for name in changed:
        (index / f"{name}.npy").unlink()  # it may be mapped
    save_arrays(index, changed)
    (index / CHECKSUMS).write_text(index_checksums(index))


NO_NAMES = {"names": np.empty(0, "u1"), "names_ends": np.empty(0, "i8")}
FORGED = {
    "texts outside": {"names_ends": np.array([1, 9])},
    "texts backwards": {"names_ends": np.array([2, 1])},
    "images outside": {"ends": np.array([-3, 6])},
    "images backwards": {"ends": np.array([7, 6])},
    "overflow": {"ends": np.array([-(2**63), 6])},
    "few ends": {"ends": np.array([6])},
    "no images": {"ends": np.empty(0, "i8"), "crcs": np.empty(0, "u4"), "targets": np.empty(0, "i8"), **NO_NAMES},
    "another type": {"targets": np.zeros(2, "i4")},
    "another shape": {"crcs": np.zeros((2, 1), "u4")},
    "no class": {"targets": np.array([0, 2])},
    "negative class": {"targets": np.array([-1, 0])},
    "sides": {"shapes": np.array([[1, 1, 3], [1, -1, -3]], "i4")},
    "channels": {"shapes": np.array([[1, 1, 3], [1, 1, 2]], "i4")},
    "too small": {"shapes": np.array([[1, 1, 3], [1, 1, 1]], "i4")},
    "one shape": {"shapes": np.array([[1, 1, 3]], "i4")},
    "large sides": {"shapes": np.array([[1, 1, 3], [2**31 - 1, 2**31 - 1, 3]], "i4")},
}  # fmt: skip


@pytest.mark.parametrize("forged", FORGED)
def test_contradictions_are_refused(small, forged):
    index = small / "pixels" / "val.index"
    rewrite(index, {name: np.asarray(values) for name, values in FORGED[forged].items()})
    with pytest.raises(UserError, match=rf"^{index}: is damaged .*; pack the data again with scripts/pack_dataset.py$"):
        read_val(small / "pixels")


def test_bad_images_end_the_packing_or_are_skipped(folders, cpu, capsys):
    bad = folders / "train" / "plain" / "ä1.png"
    bad.write_bytes(b"no image")
    output = folders.parent / "packed"
    with pytest.raises(BadImage, match=rf"^{bad}: is not an image"):
        main(["-output", str(output), *options_for(folders, "folder")])
    assert not list(folders.parent.glob("*packed*"))
    assert main(["-output", str(output), *options_for(folders, "folder", "DATA.ON_BAD_IMAGE=skip")]) == 0
    assert "11 training and 6 validation images" in capsys.readouterr().out
    assert 'ä1.png,"is not an image' in (output / "bad_images_0.csv").read_text()
    (samples,) = samples_for(config_for(output, "packed"), cpu, "train")
    assert np.bincount(samples.targets).tolist() == [3, 4, 4]


def test_packing_errors(folders, cpu, monkeypatch):
    def refused(expected: str, *argv: str) -> None:
        with pytest.raises(UserError, match=expected):
            main([*argv])

    output = folders.parent / "packed"
    output.mkdir()
    flags = options_for(folders, "folder")
    refused(f"^{output}: exists; remove it", "-output", str(output), *flags)
    output.rmdir()
    (folders.parent / ".packed.tmp").mkdir()
    refused(r"\.packed\.tmp: another packing is running or was killed", "-output", str(output), *flags)
    (folders.parent / ".packed.tmp").rmdir()
    refused("^-dataset fake: has no image files", "-output", str(output), "-dataset=fake")
    monkeypatch.setattr("scripts.pack_dataset.os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left")))
    refused(rf"^{output}: cannot be written \(No space left\); nothing was kept", "-output", str(output), *flags)
    assert not list(folders.parent.glob("*packed*"))
