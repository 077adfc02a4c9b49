"""Decoded images in memory: batches are equal without them, with workers and ranks, also of unusual files."""

import fcntl
import gc
import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from conftest import assert_same_state, cli, config_for, each_row, each_value, samples_for, slow, train_batches_for
from pytest import MonkeyPatch, fixture, mark, raises

from datasets.loading import image_cache
from datasets.loading.image_cache import open_cache
from datasets.loading.loader import cache_images
from datasets.sources.samples import ImageFiles
from tests.datasets.photo import PHOTO, encode, jpeg, photos

NOT_KEPT = {"damaged.jpg", "warned.jpg"}
PLAIN = jpeg(quality=90)
FILES = {
    **photos("""
plain.jpg       | RGB  | JPEG | {quality: 90}
progressive.jpg | RGB  | JPEG | {progressive: true}
444.jpg         | RGB  | JPEG | {subsampling: 0}
gray.jpg        | L    | JPEG | {}
rotated.jpg     | RGB  | JPEG | {orientation: 5}
cmyk.jpg        | CMYK | JPEG | {}
png.png         | RGB  | PNG  | {}
palette.png     | P    | PNG  | {}
webp.webp       | RGB  | WEBP | {}
bmp.bmp         | RGB  | BMP  | {}
gif.gif         | P    | GIF  | {}
ppm.ppm         | RGB  | PPM  | {}
"""),
    "small.jpg": jpeg(PHOTO.resize((32, 32))),
    "tall.png": encode(PHOTO.crop((0, 0, 5, 199)), "PNG"),
    "damaged.jpg": PLAIN[: int(0.7 * len(PLAIN))] + PLAIN[-2:],
    "warned.jpg": PLAIN[:-2] + bytes(range(1, 60)) + PLAIN[-2:],
}


@fixture
def root(tmp_path) -> Path:
    for number, (name, content) in enumerate(FILES.items()):
        for split in ("train", "val"):
            folder = tmp_path / split / f"class{number % 2}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
    return tmp_path


def batches(context, root: Path, workers: int, cache: str) -> tuple[list, list[list[str]]]:
    """Images, warnings and unusable files of each batch of two epochs; the files that this process reads in each epoch.

    Crops have as few columns as one, or the whole height.
    """
    flags = f"-dataset=folder -data_path={root} -batch_size=2 -num_workers={workers} -image_size=32 -opts"
    options = f"TRAIN.NUM_EPOCHS=2 DATA.ON_BAD_IMAGE=skip DATA.RANDOM_CROP_RATIO=[0.004,4] DATA.CACHE={cache}"
    config = config_for(*cli(f"{flags} {options}"))
    splits = samples_for(config, context, "train", "val")
    cache_images(splits, config.data, 2 * len(splits[0]), context)
    found = []
    read = []
    read_bytes = ImageFiles.read_bytes

    def noted(samples, index):
        read[-1].append(Path(samples.name(index)).name)
        return read_bytes(samples, index)

    with MonkeyPatch.context() as patch:
        patch.setattr(ImageFiles, "read_bytes", noted)
        loaded = iter(train_batches_for(config, splits[0], context))
        for _ in range(2):
            read.append([])
            for _ in range(len(splits[0]) // (2 * context.world_size)):
                if context.world_size > 1:
                    dist.barrier()
                batch = next(loaded)
                found.append((batch.images.clone(), batch.samples, batch.warnings, [one.path for one in batch.bad]))
    return found, read


@mark.parametrize("workers", [0, slow(2)])
def test_batches_are_equal_and_the_second_epoch_reads_damaged_files_only(root, cpu, workers):
    expected, without = batches(cpu, root, workers, "false")
    found, read = batches(cpu, root, workers, "auto")
    assert_same_state(found, expected)
    if not workers:
        assert [len(files) for files in without] == [len(FILES), len(FILES)]
        assert sorted({*read[0]}) == sorted(FILES) and {*read[1]} == NOT_KEPT


@mark.slow
def test_ranks_share_one_cache(root, ranks):
    """Each file is decoded by one rank."""
    without = [found for found, _ in ranks(2)(batches, root, 0, "false")]
    results = ranks(2)(batches, root, 0, "true")
    for (found, read), expected in zip(results, without, strict=True):
        assert_same_state(found, expected)
        assert {*read[1]} <= NOT_KEPT
    intact = [name for _, read in results for name in read[0] if name not in NOT_KEPT]
    assert sorted(intact) == sorted({*FILES} - NOT_KEPT)


@mark.parametrize("free", [0, 10**4, 4 * 10**5])
def test_images_that_do_not_fit_are_read_from_their_files(root, cpu, monkeypatch, free):
    """With auto all or none are kept, with true as many as fit."""
    expected, _ = batches(cpu, root, 0, "false")
    monkeypatch.setattr(image_cache, "available_bytes", lambda: free)
    found, read = batches(cpu, root, 0, "auto")
    assert_same_state(found, expected)
    assert len(read[1]) == len(FILES)
    found, read = batches(cpu, root, 0, "true")
    assert_same_state(found, expected)
    assert (len({*read[1]}) < len(FILES)) == (free > 10**5)


def test_a_cache_stops_growing_where_memory_is_scarce(root, cpu, monkeypatch):
    """Another program has taken the memory since the start."""
    expected, _ = batches(cpu, root, 0, "false")
    answers = iter([10**9])
    monkeypatch.setattr(image_cache, "_CHECKED_BYTES", 2**18)
    monkeypatch.setattr(image_cache, "available_bytes", lambda: next(answers, 0))
    found, read = batches(cpu, root, 0, "auto")
    assert_same_state(found, expected)
    assert 0 < len({*read[1]} - NOT_KEPT) < len({*FILES} - NOT_KEPT)


@each_value("reads | cache\n16 | auto\n1000000 | 'false'")
def test_a_run_that_reads_no_image_twice_has_no_cache(root, cpu, reads, cache):
    config = config_for(*cli(f"-dataset=folder -data_path={root} -batch_size=2 -opts DATA.CACHE={cache}"))
    (samples,) = samples_for(config, cpu, "train")
    assert cache_images([samples], config.data, reads, cpu) is None
    assert samples.cache is None


def test_memory_and_descriptors_are_released(root, cpu):
    batches(cpu, root, 0, "true")
    gc.collect()
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        batches(cpu, root, 0, "true")
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= len(before)


def test_an_interrupted_process_does_not_keep_the_lock(root, cpu, monkeypatch):
    """Other ranks wait for it, and this one for them in a collective, before it ends."""
    config = config_for(*cli(f"-dataset=folder -data_path={root} -opts DATA.CACHE=true"))
    (samples,) = samples_for(config, cpu, "train")
    cache_images([samples], config.data, 0, cpu)
    monkeypatch.setattr(samples.cache, "_table", None)  # as a signal, an error within the lock
    with raises(TypeError):
        samples.cache._add(0, torch.zeros(3, 2, 2, dtype=torch.uint8))
    lock = f"import fcntl; fcntl.lockf(open({samples.cache.source[0]!r}, 'r+b'), {fcntl.LOCK_EX | fcntl.LOCK_NB})"
    assert subprocess.run([sys.executable, "-c", lock], check=False).returncode == 0


@each_row("path\n/proc/self/fd/0\n/proc/self/fd/999\n/dev/null")
def test_a_path_of_another_host_gives_no_cache(path):
    assert open_cache(path, "ampvit-0", 1, 3) is None
