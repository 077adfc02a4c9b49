"""The data set tar: splits and labels; images from a folder, a web server and the cache are the same, and checked."""

import json
import os
import pickle

from conftest import (
    each_value,
    read_samples,
    refused,
    told,
)
from pytest import fixture, mark, raises
from range_server import body, range_server, wait_for
from tar_files import jpeg, tar_of, write_shard, write_shards

from configs.schema import Data
from datasets.decoding.images import BadImage
from datasets.loading.sampler import EvalSampler
from datasets.shards.data_set import TarShards
from datasets.shards.samples import TarSamples
from datasets.sources.source import Wanted
from tests.datasets.photo import decode_image


@fixture
def root(tmp_path):
    return write_shards(tmp_path / "shards")


@fixture
def cache(tmp_path, monkeypatch):
    """The default folder of indexes and shards."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ampvit"


def options(path, **values) -> Data:
    return Data(DATASET="tar", DATA_PATH=str(path), **{key.upper(): value for key, value in values.items()})


def on(server, names="{train-{0000..0003},val-0000}.tar", **values) -> Data:
    return options(f"{server.url}/{names}", **values)


def tar(data: Data, split: str = "train") -> TarSamples:
    source = TarShards(Wanted(data))
    return source.read(source.split_for(split))


def contents(samples) -> list[bytes]:
    """The pixels of all samples, opened as one batch."""
    return [image.pixels.numpy().tobytes() for image in samples.open_all(range(len(samples)), 3)]


def pixels(*numbers: int) -> list[bytes]:
    return [decode_image(jpeg(number), 3).numpy().tobytes() for number in numbers]


def test_splits_labels_names_and_images(root):
    train = tar(options(root))
    val = tar(options(root), "val")
    assert contents(train) == pixels(*range(40))
    assert contents(val) == pixels(*range(1000, 1012))
    assert train.targets.tolist() == [number % 2 for number in range(40)]
    assert train.name(13) == f"{root}/train-0001.tar/000013.jpg"
    assert train.windows.ends.tolist() == [10, 20, 30, 40]
    assert val.windows.ends.tolist() == [12]
    assert train.class_names == ["0", "1"]
    assert not train.has_class_names
    source = TarShards(Wanted(options(root)))
    assert source.splits.keys() == {"train", "val"}
    assert source.find_test() == (False, None)


def test_a_dry_run_writes_no_index_beside_the_shards(root, cache):
    for is_dry in (True, False):
        TarShards(Wanted(options(root), is_dry=is_dry))
        assert (root / "index.npz").exists() == (not is_dry)


def test_a_broken_link_to_a_shard_is_named(root):
    (root / "train-0009.tar").symlink_to("nowhere")
    with refused(r"train-0009\.tar: does not exist"):
        tar(options(root))


@each_value("""
labels                  | info                     | several | names      | targets
[ba, a]                 | {}                       | false   | [a, ba]    | [1, 0]
[0, 2]                  | {class_names: [b, c, a]} | false   | [b, c, a]  | [0, 2]
[[cat], [dog, cat], []] | {}                       | true    | [cat, dog] | [[1, 0], [1, 1], [0, 0]]
[[0, 3], [2]]           | {}                       | true    | ['0', '1', '2', '3'] | [[1, 0, 0, 1], [0, 0, 1, 0]]
[[10]] | {} | true | ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', '10'] | [[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]]
""")
def test_classes_are_names_or_numbers_by_their_value(labels, info, several, names, targets, tmp_path):
    """info: the names in timm's file."""
    files = {}
    for number, label in enumerate(labels):
        files |= {f"{number}.jpg": jpeg(number), f"{number}.json": json.dumps({"labels": label}).encode()}
    (tmp_path / "data.tar").write_bytes(tar_of(files))
    splits = {"train": {"filenames": ["data.tar"], "alt_label": "labels"}}
    (tmp_path / "_info.json").write_text(json.dumps({"splits": splits} | info))
    samples = tar(options(tmp_path, multi_label=several))
    assert samples.class_names == names
    assert samples.targets.tolist() == targets
    assert samples.has_class_names == (names[0] != "0")


def test_the_shards_are_found_and_indexed_once_for_all_splits(root, cache, cpu):
    write_shard(root / "test-0000.tar", range(2000, 2003))
    with range_server(root) as server:
        data = on(server, "{train-{0000..0003},val-0000,test-0000}.tar", batch_size=2)
        splits = read_samples(data, 2, cpu, "train", "val", with_test=True)
        assert sorted(path for method, path, _ in server.requests if method == "HEAD") == [
            f"/{path.name}" for path in sorted(root.glob("*.tar"))
        ]
    assert contents(splits[2]) == contents(tar(options(root), "test")) == pixels(*range(2000, 2003))


def test_a_split_without_images_is_refused(tmp_path):
    write_shard(tmp_path / "train-0.tar", range(4))
    write_shard(tmp_path / "train-1.tar", ())
    write_shard(tmp_path / "val-0.tar", ())
    assert tar(options(tmp_path)).windows.ends.tolist() == [4]
    for split in ("val", "test"):
        with refused(rf"{tmp_path}.*{split}|{split}.*{tmp_path}"):
            tar(options(tmp_path), split)


def test_images_without_a_label_are_one_finding(tmp_path, cpu):
    for split in ("train", "val"):
        (tmp_path / f"{split}-0.tar").write_bytes(tar_of([(f"{n}.jpg", jpeg(n)) for n in range(4)]))
    with refused(r"2 problems\n.*train-0.tar/0.jpg: .*4 of the 4 images of the split train"):
        read_samples(options(tmp_path, batch_size=2), 10, cpu, "train", "val")


@mark.parametrize("cache_gb", [0, 1])
def test_a_server_gives_the_same_images(root, cache, cache_gb):
    with range_server(root) as server:
        samples, batches = tar(on(server, cache_gb=cache_gb)).for_loader(EvalSampler(40, 40), 7)
        stores = [samples.reader.store, *([samples.reader.cache.store] if cache_gb else [])]
        assert {store.timeout_seconds for store in stores} == {7}
        received = pickle.loads(pickle.dumps(samples))
        for reader, requests in ((samples, 4), (received, 0 if cache_gb else 4)):  # of a shard, all images at once
            server.requests.clear()
            assert contents(reader) == pixels(*range(40))
            assert len(server.requests) == requests
            assert [len(keys) for keys in batches] == [40]
            if cache_gb:
                wait_for(lambda: len(list((cache / "shards").glob("*.tar"))) == 4)


def test_a_damaged_copy_in_the_cache_is_replaced(root, cache):
    with range_server(root) as server:
        samples = tar(on(server, cache_gb=1))
        assert samples.reader.cache.download(samples.shards[0])
        (path,) = (cache / "shards").glob("*.tar")
        for damaged in (bytes(path.stat().st_size), path.read_bytes()[:1000]):
            path.write_bytes(damaged)
            received = pickle.loads(pickle.dumps(samples))  # has no open file
            assert received.read_bytes(3) == jpeg(3)
            assert not path.exists()


def test_a_changed_shard_is_named(root):
    samples = tar(options(root))
    path = root / "train-0001.tar"
    times = path.stat()
    data = bytearray(path.read_bytes())
    data[data.index(jpeg(10)) + 50] ^= 1
    path.write_bytes(data)
    with refused(r"train-0001.tar: has changed"):
        samples.read_bytes(10)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with raises(BadImage, match=r"train-0001.tar/000010.jpg: .*checksum"):
        samples.read_bytes(10)
    assert isinstance(next(samples.open_all([10], 3)), BadImage)
    assert samples.read_bytes(11) == jpeg(11)
    (root / "train-0002.tar").unlink()
    with refused(r"train-0002.tar: .*No such file") as error:
        samples.read_bytes(20)
    assert not isinstance(error.value, BadImage)  # which ON_BAD_IMAGE may skip


def test_images_that_are_not_read_are_counted_or_named(tmp_path, cpu):
    """Phones write PXL_1.MP.jpg."""
    files = {f"{name}/{number}.MP.jpg": jpeg(number) for name in "ab" for number in range(8)}
    files |= {"b/0.png": b"", "b/1.jpg": jpeg(1), "b/1.mask.png": b""}
    path = tmp_path / "train-0.tar"
    path.write_bytes(tar_of(dict(sorted(files.items()))))
    train, val = read_samples(options(tmp_path), 10, cpu, "train", "val", predicts=True)
    assert told(train.notes, "3 further images", "warning")
    assert len(train) + len(val) == 16
    for names, problem in (("a/0.image.npy", r"no image .*'a/0\.image\.npy'"), ("0.0.jpg 0.1.jpg", "dot")):
        path.write_bytes(tar_of(dict.fromkeys(names.split(), b"")))
        for _ in range(2):
            with refused(problem):
                tar(options(tmp_path))


def test_a_server_without_ranges_needs_the_cache(root, cache):
    tar(options(root))  # writes the index
    with range_server(root) as server:
        server.fail_always(body(ranges=False))
        with refused(r"train-0000.tar: .*DATA.CACHE_GB"):
            tar(on(server))  # before the first batch, also in a dry run
        assert contents(tar(on(server, cache_gb=1))) == pixels(*range(40))
