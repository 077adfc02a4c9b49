"""The data set tar: splits and labels; images from a folder, a web server and the cache are the same, and checked."""

import json
import os
import pickle
from itertools import chain

from conftest import config_for, each_row, eval_loader_for, read_samples, refused, samples_for, told, train_batches_for
from pytest import fixture, mark, raises
from range_server import body, range_server, status, wait_for
from tar_files import jpeg, tar_of, write_shard, write_shards

from configs.schema import Data
from configs.yaml_io import parse_value
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
    return Data.model_validate({"DATASET": "tar", "DATA_PATH": str(path)} | {k.upper(): v for k, v in values.items()})


def on(server, names="{train-{0000..0003},val-0000}.tar", **values) -> Data:
    return options(f"{server.url}/{names}", **values)


def tar(data: Data, split: str = "train") -> TarSamples:
    source = TarShards(Wanted(data))
    return source.read(source.split_for(split))


def contents(samples) -> list[bytes]:
    """The pixels of all samples, opened as one batch."""
    return [image.pixels.numpy().tobytes() for image in samples.open_all(range(len(samples)), 3)]


def pixels(*numbers: int) -> list[bytes]:
    return [decode_image(jpeg(number), 3, "").numpy().tobytes() for number in numbers]


def test_splits_labels_names_and_images(root):
    train = tar(options(root))
    val = tar(options(root), "val")
    assert contents(train) == pixels(*range(40))
    assert contents(val) == pixels(*range(1000, 1012))
    assert train.targets.tolist() == [number % 2 for number in range(40)]
    assert train.name(13) == f"{root}/train-0001.tar/000013.jpg"
    assert train.windows.ends.tolist() == [10, 20, 30, 40]
    assert val.windows.ends.tolist() == [12]
    assert (train.class_names, train.has_class_names) == (["0", "1"], False)
    assert TarShards(Wanted(options(root))).splits.keys() == {"train", "val"}
    assert TarShards(Wanted(options(root))).find_test() == (False, None)


def test_a_dry_run_writes_no_index_beside_the_shards(root, cache):
    for is_dry in (True, False):
        TarShards(Wanted(options(root), is_dry=is_dry))
        assert (root / "index.npz").exists() == (not is_dry)


def test_a_broken_link_to_a_shard_is_named(root):
    (root / "train-0009.tar").symlink_to("nowhere")
    with refused(r"train-0009\.tar: does not exist"):
        tar(options(root))


def test_class_names_of_the_info_file_and_of_texts(root, tmp_path):
    splits = {"train": {"filenames": ["train-0000.tar"], "name": "train", "shard_lengths": [10], "num_samples": 10}}
    (root / "_info.json").write_text(json.dumps({"splits": splits, "class_names": ["b", "c", "a"]}))
    labels = {"jpg": (jpeg(0), jpeg(1)), "json": (b'"ba"', b'"a"')}
    files = {f"{n}.{end}": content[n] for n in range(2) for end, content in labels.items()}
    (tmp_path / "train-0.tar").write_bytes(tar_of(files))
    for path, names in ((root, ["b", "c", "a"]), (tmp_path, ["a", "ba"])):
        samples = tar(options(path))
        assert (samples.class_names, samples.has_class_names) == (names, True)
        assert set(samples.targets.tolist()) == {0, 1}


SEVERAL = """
labels | names
[[cat], [dog, cat], []] | cat dog
[[0, 11], [2], [10]] | 0 1 2 3 4 5 6 7 8 9 10 11
"""


@each_row(SEVERAL)
def test_several_labels_are_names_or_numbers_by_their_value(labels, names, tmp_path):
    files = {}
    rows = parse_value(labels)
    for number, one in enumerate(rows):
        files |= {f"{number}.jpg": jpeg(number), f"{number}.json": json.dumps({"labels": one}).encode()}
    (tmp_path / "data.tar").write_bytes(tar_of(files))
    info = {"splits": {"train": {"filenames": ["data.tar"], "alt_label": "labels"}}}
    (tmp_path / "_info.json").write_text(json.dumps(info))
    samples = tar(options(tmp_path, multi_label=True))
    assert samples.class_names == names.split()
    assert samples.targets.tolist() == [[name in map(str, one) for name in names.split()] for one in rows]


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
        server.requests.clear()
        assert contents(samples) == pixels(*range(40))
        assert len(server.requests) == 4  # one per shard, whose images are close together
        received = pickle.loads(pickle.dumps(samples))
        assert [len(keys) for keys in batches] == [40]
        if cache_gb:
            wait_for(lambda: len(list((cache / "shards").glob("*.tar"))) == 4)
        server.requests.clear()
        assert contents(received) == pixels(*range(40))
        assert len(server.requests) == (0 if cache_gb else 4)


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
    (tmp_path / "some").mkdir()
    (tmp_path / "some/train-0.tar").write_bytes(tar_of(dict(sorted(files.items()))))
    train, val = read_samples(options(tmp_path / "some"), 10, cpu, "train", "val", predicts=True)
    assert told(train.notes, "3 further images", "warning")
    assert len(train) + len(val) == 16
    for content, named in (
        ({"a/0.image.npy": b""}, r"no image .*'a/0\.image\.npy'"),
        ({"0.0.jpg": b"", "0.1.jpg": b""}, "dot"),
    ):
        (tmp_path / "train-0.tar").write_bytes(tar_of(content))
        for _ in range(2):
            with refused(named):
                tar(options(tmp_path))


def test_a_server_without_ranges_needs_the_cache(root, cache):
    tar(options(root))  # writes the index
    with range_server(root) as server:
        server.fail_always(body(ranges=False))
        with refused(r"train-0000.tar: .*DATA.CACHE_GB"):
            tar(on(server))  # before the first batch, also in a dry run
        assert contents(tar(on(server, cache_gb=1))) == pixels(*range(40))


@mark.slow
def test_batches_do_not_depend_on_the_source_and_the_workers(root, cache, cpu):
    def images(path, *more):
        flags = ["-dataset=tar", f"-data_path={path}", "-batch_size=4", "-image_size=16", *more]
        options = ["DATA.SHUFFLE_SHARDS=1", "TRAIN.NUM_EPOCHS=2", "MODEL.NUM_CLASSES=2", "MODEL.PATCH_SIZE=4"]
        config = config_for(*flags, "-opts", *options)
        train, val = samples_for(config, cpu, "train", "val")
        batches = chain(train_batches_for(config, train, cpu), eval_loader_for(config, val, cpu))
        return [(batch.images.sum().item(), batch.targets.tolist()) for batch in batches]

    expected = images(root, "-num_workers=0")
    assert len(expected) == 2 * 10 + 3
    assert images(root, "-num_workers=2") == expected
    with range_server(root) as server:
        server.fail(*[status(503)] * 3)
        assert images(on(server).data_path, "-num_workers=2") == expected
