import json

import pytest

from datasets.shards.find import find_shards, split_of
from datasets.shards.location import parse_location
from datasets.shards.storage.store import ShardStore
from tests.datasets.shards.fault_server import fault_server
from utils.errors import UserError


def make(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())


def find(data_path):
    root, names = parse_location(str(data_path))
    return find_shards(ShardStore(root, timeout_seconds=2), names)


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("imagenet1k-train-0000.tar", "train"),
        ("imagenet1k-validation-63.tar", "val"),
        ("val/00001.tar", "val"),
        ("training_1.tar", "train"),
        ("valid.tar", "val"),
        ("test.0.tar", "test"),
        ("train/val-0.tar", "train"),
        ("00000.tar", None),
        ("trainset-0.tar", None),
    ],
)
def test_split_of(name, split):
    assert split_of(name) == split


def test_folder(tmp_path):
    make(
        tmp_path, "train-1.tar", "train-0.tar", "val/0.tar", "x-test.tar", "notes/train.tar", "train.txt", "val/._0.tar"
    )
    found = find(tmp_path)
    assert found.splits == {"train": ["train-0.tar", "train-1.tar"], "val": ["val/0.tar"], "test": ["x-test.tar"]}
    assert not found.unsplit and found.class_names is None and found.label_key == ""


def test_shards_without_a_split(tmp_path):
    make(tmp_path, "00001.tar", "00000.tar")
    found = find(tmp_path)
    assert found.unsplit == ["00000.tar", "00001.tar"] and not found.splits
    make(tmp_path, "val-0.tar")
    with pytest.raises(UserError, match=r"00000\.tar: has no 'train', 'val' or 'test' in its name, but val-0\.tar has"):
        find(tmp_path)


def test_pattern():
    assert find("http://host/a/{train/{0..1},val/9}.tar").splits == {
        "train": ["train/0.tar", "train/1.tar"],
        "val": ["val/9.tar"],
    }


def test_nothing_found(tmp_path):
    with pytest.raises(UserError, match=r"has no shard \(\*\.tar\)"):
        find(tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        find(tmp_path / "missing")
    with fault_server(tmp_path) as server, pytest.raises(UserError, match=r"cannot be listed.* give a pattern"):
        find(server.url)


INFO = {
    "splits": {
        "train": {
            "filenames": ["t-1.tar", "t-0.tar"],
            "shard_lengths": [3, 4],
            "num_samples": 7,
            "alt_label": "species",
        },
        "validation": {"filenames": ["v.tar"], "shard_lengths": [2], "num_samples": 2, "alt_label": "species"},
    },
    "class_names": ["cat", "dog"],
}


def test_info_of_timm(tmp_path):
    make(tmp_path, "t-0.tar", "t-1.tar", "v.tar", "not-listed.tar")
    (tmp_path / "_info.json").write_text(json.dumps(INFO))
    with fault_server(tmp_path) as server:
        for root in (tmp_path, server.url):
            found = find(root)
            assert found.splits == {"train": ["t-0.tar", "t-1.tar"], "val": ["v.tar"]}
            assert found.class_names == ["cat", "dog"] and found.label_key == "species"


def with_names(*names):
    return INFO | {"splits": {"train": {"filenames": list(names)}}}


@pytest.mark.parametrize(
    ("info", "problem"),
    [
        (b"{", "JSON"),
        (b"\xff", "JSON"),
        (b"[" * 100_000, "JSON"),
        ([], "object"),
        (INFO | {"splits": {}}, "splits"),
        (INFO | {"splits": {"other": {"filenames": ["a.tar"]}}}, "'other'"),
        (INFO | {"splits": {"val": {"filenames": ["a.tar"]}, "valid": {"filenames": ["b.tar"]}}}, "'valid'"),
        (INFO | {"splits": {"train": []}}, "splits.train"),
        (INFO | {"splits": {"train": {}}}, "splits.train.filenames"),
        (with_names(), "splits.train.filenames"),
        (with_names(5), "splits.train.filenames.0"),
        (with_names("../a.tar"), "../a.tar"),
        (with_names("/etc/a.tar"), "/etc/a.tar"),
        (with_names("http://host/a.tar"), "http://host/a.tar"),
        (with_names("pipe:a.tar"), "pipe:a.tar"),
        (with_names("a\n.tar"), "a\\n.tar"),
        (with_names("a.zip"), "a.zip"),
        (with_names("a.tar", "a.tar"), "a shard or a class twice"),
        (
            INFO | {"splits": {name: {"filenames": [f"{name}.tar"], "alt_label": name} for name in ("val", "test")}},
            "alt_l",
        ),
        (INFO | {"class_names": []}, "class_names"),
        (INFO | {"class_names": ["a", "a"]}, "a class twice"),
        (INFO | {"class_names": ["a", ""]}, "class_names.1"),
        (INFO | {"class_names": ["a", 3]}, "class_names.1"),
    ],
)
def test_hostile_info(tmp_path, info, problem):
    (tmp_path / "_info.json").write_bytes(info if isinstance(info, bytes) else json.dumps(info).encode())
    with pytest.raises(UserError) as error:
        find(tmp_path)
    message = str(error.value)
    assert message.startswith(f"{tmp_path}/_info.json: ") and problem in message and message.isprintable()
