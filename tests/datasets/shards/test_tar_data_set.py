"""The data set tar: splits and labels; images from a folder, a web server and the cache are the same, and checked."""

import json
import os
import pickle
import time

import numpy as np
import pytest
from conftest import eval_loader_for, samples_for, train_batches_for
from fault_server import fault_server, status
from tar_files import tar_of
from tar_shards import jpeg, write_shard, write_shards

from configs.reading.command_line import parse_command_line
from configs.schema import Data
from datasets.decoding.bad_images import BadImage
from datasets.decoding.decode import decode_image
from datasets.registry import has_splits, has_test_split, read_samples
from datasets.shards.data_set import TarShards
from datasets.shards.samples import TarSamples
from utils.errors import UserError


@pytest.fixture
def root(tmp_path):
    return write_shards(tmp_path / "shards")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The default folder of indexes and shards."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ampvit"


def options(path, **values) -> Data:
    return Data.model_validate({"DATASET": "tar", "DATA_PATH": str(path)} | {k.upper(): v for k, v in values.items()})


def on(server, **values) -> Data:
    return options(values.pop("data_path", f"{server.url}/{{train-{{0000..0003}},val-0000}}.tar"), **values)


def tar(data: Data, split: str) -> TarSamples:
    return TarShards(data).samples(split)


def contents(samples) -> list[bytes]:
    """The pixels of all samples, opened as one batch."""
    return [image.pixels.numpy().tobytes() for image in samples.open_all(range(len(samples)), 3)]


def pixels(*numbers: int) -> list[bytes]:
    return [decode_image(jpeg(number), 3, "").numpy().tobytes() for number in numbers]


def test_splits_labels_names_and_images(root, cpu):
    train, val = tar(options(root), "train"), tar(options(root), "val")
    assert contents(train) == pixels(*range(40))
    assert contents(val) == pixels(*range(1000, 1012))
    assert train.targets.tolist() == [number % 2 for number in range(40)]
    assert train.name(13) == f"{root}/train-0001.tar/000013.jpg"
    assert train.shard_ends.tolist() == [10, 20, 30, 40] and val.shard_ends.tolist() == [12]
    assert (train.class_names, train.has_class_names) == (["0", "1"], False)
    assert contents(tar(options(root), "all")) == contents(val)
    assert has_splits(options(root)) and has_test_split(options(root), cpu) == (False, None)
    write_shard(root / "test-0000.tar", range(2000, 2003))
    assert has_test_split(options(root), cpu) == (True, None)
    assert contents(tar(options(root), "test")) == pixels(*range(2000, 2003))


def test_a_part_of_each_class_is_held_out_if_no_shard_is_of_val(tmp_path):
    """As img2dataset names them: 00000.tar, 00001.tar."""
    for number in range(2):
        write_shard(tmp_path / f"{number:05d}.tar", range(number * 20, number * 20 + 20))
    data = options(tmp_path, val_fraction=0.2)
    train, val, both = (tar(data, split) for split in ("train", "val", "all"))
    assert (len(train), len(val), len(both)) == (32, 8, 40) and not has_splits(data)
    assert np.bincount(val.targets).tolist() == [4, 4]
    assert sorted(contents(train) + contents(val)) == sorted(contents(both))


def test_class_names_of_the_info_file_and_of_texts(root, tmp_path):
    splits = {"train": {"filenames": ["train-0000.tar"], "name": "train", "shard_lengths": [10], "num_samples": 10}}
    (root / "_info.json").write_text(json.dumps({"splits": splits, "class_names": ["b", "c", "a"]}))
    numbered = tar(options(root), "train")
    files = [
        (f"{n}.{end}", content)
        for n in range(4)
        for end, content in (("jpg", jpeg(n)), ("json", json.dumps({"label": "ba"[n % 2]}).encode()))
    ]
    (tmp_path / "train-0.tar").write_bytes(tar_of(files))
    named = tar(options(tmp_path), "train")
    for samples, names, targets in ((numbered, ["b", "c", "a"], {0, 1}), (named, ["a", "b"], {0, 1})):
        assert (samples.class_names, samples.has_class_names) == (names, True)
        assert set(samples.targets.tolist()) == targets


def test_the_shards_are_found_and_indexed_once_for_all_splits(root, cache, cpu):
    write_shard(root / "test-0000.tar", range(2000, 2003))
    with fault_server(root) as server:
        data = on(server, batch_size=2, data_path=f"{server.url}/{{train-{{0000..0003}},val-0000,test-0000}}.tar")
        assert has_test_split(data, cpu) == (True, None) and not server.requests
        splits = read_samples(data, 2, cpu, "train", "val", "test")
        assert sorted(path for method, path, _ in server.requests if method == "HEAD") == [
            f"/{path.name}" for path in sorted(root.glob("*.tar"))
        ]
    assert [contents(samples) for samples in splits[2:]] == [pixels(*range(2000, 2003))]


def test_a_split_without_images_is_refused(tmp_path):
    write_shard(tmp_path / "train-0.tar", range(4))
    write_shard(tmp_path / "train-1.tar", ())
    write_shard(tmp_path / "val-0.tar", ())
    assert tar(options(tmp_path), "train").shard_ends.tolist() == [4]
    for split, problem in (("val", "of the split val have no image"), ("test", "no shard of the split test")):
        with pytest.raises(UserError, match=problem):
            tar(options(tmp_path), split)


def test_images_without_a_label_are_one_finding(tmp_path, cpu):
    for split in ("train", "val"):
        (tmp_path / f"{split}-0.tar").write_bytes(tar_of([(f"{n}.jpg", jpeg(n)) for n in range(4)]))
    with pytest.raises(
        UserError, match=r"2 problems\n.*train-0.tar/0.jpg: has no label .4 of the 4 images of the split train"
    ):
        read_samples(options(tmp_path, batch_size=2), 10, cpu, "train", "val")


@pytest.mark.parametrize("cache_gb", [0, 1])
def test_a_server_gives_the_same_images(root, cache, cache_gb):
    expected = contents(tar(options(root), "train"))
    with fault_server(root) as server:
        samples = tar(on(server, cache_gb=cache_gb), "train")
        server.requests.clear()
        samples = samples.with_timeout(7)
        reader = samples.reader
        assert {part.timeout_seconds for part in (reader.store, *([reader.cache.store] if cache_gb else []))} == {7}
        assert contents(samples) == expected
        assert len(server.requests) == 4  # one per shard, whose images are close together
        received = pickle.loads(pickle.dumps(samples))
        received.follow([0, 1, 2, 3])
        if cache_gb:
            wait_for(lambda: len(list((cache / "shards").glob("*.tar"))) == 4)
        server.requests.clear()
        assert contents(received) == expected
        assert len(server.requests) == (0 if cache_gb else 4)


def wait_for(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("is_beside", [False, True])
def test_the_index_of_a_server_is_read_once(root, cache, is_beside):
    expected = contents(tar(options(root), "train"))
    if not is_beside:
        (root / "index.safetensors").unlink()
    with fault_server(root) as server:
        tar(on(server), "train")
        shards = set() if is_beside else {f"/{path.name}" for path in root.glob("*.tar")}
        assert {path for method, path, _ in server.requests if method == "GET"} == shards | {"/index.safetensors"}
        server.requests.clear()
        samples = tar(on(server), "train")
        assert {method for method, *_ in server.requests} == {"HEAD"}
        assert contents(samples) == expected


def test_a_damaged_copy_in_the_cache_is_replaced(root, cache):
    with fault_server(root) as server:
        samples = tar(on(server, cache_gb=1), "train")
        samples.follow([0])
        wait_for(lambda: list((cache / "shards").glob("*.tar")))
        (copy,) = (cache / "shards").glob("*.tar")
        copy.write_bytes(bytes(copy.stat().st_size))
        fresh = pickle.loads(pickle.dumps(samples))
        assert fresh.read_bytes(0) == jpeg(0) and not copy.exists()


def test_a_damaged_image_is_named(root):
    samples = tar(options(root), "train")
    path = root / "train-0001.tar"
    data, times = bytearray(path.read_bytes()), path.stat()
    data[512 + 20] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"train-0001.tar: has changed since it was indexed; start the run again"):
        samples.read_bytes(10)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(BadImage, match=r"train-0001.tar/000010.jpg: is damaged \(its checksum does not match\)"):
        samples.read_bytes(10)
    assert samples.read_bytes(11) == jpeg(11)
    (root / "train-0002.tar").unlink()
    with pytest.raises(UserError, match=r"train-0002.tar: cannot be read \(No such file") as error:
        samples.read_bytes(20)
    assert not isinstance(error.value, BadImage)  # which ON_BAD_IMAGE may skip


def test_a_server_without_ranges_needs_the_cache(root, cache):
    def whole(handler):
        del handler.headers["Range"]
        type(handler).__mro__[1]._answer(handler, handler.command == "GET")

    expected = contents(tar(options(root), "train"))
    with fault_server(root) as server:
        server.fail_always(whole)
        with pytest.raises(UserError, match=r"train-0000.tar: .*sends whole files only; set DATA.CACHE_GB"):
            contents(tar(on(server), "train"))
        assert contents(tar(on(server, cache_gb=1), "train")) == expected


@pytest.mark.slow
def test_batches_do_not_depend_on_the_source_and_the_workers(root, cache, cpu):
    def images(path, *flags):
        config = parse_command_line(
            ["-dataset=tar", f"-data_path={path}", "-batch_size=4", "-image_size=16", *flags, "-opts",
             "DATA.SHUFFLE_SHARDS=1", "TRAIN.NUM_EPOCHS=2", "MODEL.NUM_CLASSES=2", "MODEL.PATCH_SIZE=4"]
        ).config  # fmt: skip
        train, val = samples_for(config, cpu, "train", "val")
        batches = [*train_batches_for(config, train, cpu), *eval_loader_for(config, val, cpu)]
        return [(batch.images.sum().item(), batch.targets.tolist()) for batch in batches]

    expected = images(root, "-num_workers=0")
    assert len(expected) == 2 * 10 + 3
    assert images(root, "-num_workers=2") == expected
    with fault_server(root) as server:
        server.fail(*[status(503)] * 3)
        assert images(on(server).data_path, "-num_workers=2") == expected
