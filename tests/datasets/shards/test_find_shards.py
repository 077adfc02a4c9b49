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
    location = parse_location(str(data_path))
    return find_shards(location, ShardStore(location.root, timeout_seconds=2))


def names_in(found):
    return {split: [shard.name for shard in shards] for split, shards in found.splits.items()}


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
    assert names_in(found) == {"train": ["train-0.tar", "train-1.tar"], "val": ["val/0.tar"], "test": ["x-test.tar"]}
    assert [shard.num_bytes for shard in found.splits["train"]] == [11, 11]
    assert not found.unsplit and found.class_names is None and found.label_key == ""


def test_shards_without_a_split(tmp_path):
    make(tmp_path, "00001.tar", "00000.tar")
    found = find(tmp_path)
    assert [shard.name for shard in found.unsplit] == ["00000.tar", "00001.tar"] and not found.splits
    make(tmp_path, "val-0.tar")
    with pytest.raises(UserError, match=r"00000\.tar: has no 'train', 'val' or 'test' in its name, but val-0\.tar has"):
        find(tmp_path)


def test_pattern(tmp_path):
    make(tmp_path, "a/train/0.tar", "a/train/1.tar", "a/val/0.tar", "a/val/9.tar")
    with fault_server(tmp_path) as server:
        for root in (tmp_path, server.url):
            assert names_in(find(f"{root}/a/{{train/{{0..1}},val/9}}.tar")) == {
                "train": ["train/0.tar", "train/1.tar"],
                "val": ["val/9.tar"],
            }
            with pytest.raises(UserError, match=r"/a/train/2\.tar: does not exist"):
                find(f"{root}/a/train/{{0..2}}.tar")


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
            assert names_in(found) == {"train": ["t-0.tar", "t-1.tar"], "val": ["v.tar"]}
            assert found.class_names == ["cat", "dog"] and found.label_key == "species"


def changed(**changes):
    return json.dumps(INFO | changes)


def with_names(*names):
    return changed(splits={"train": {"filenames": list(names)}})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not JSON"),
        ("\udcff", "is not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("9" * 5000, "_info.json: "),
        ("[]", "has no 'splits'"),
        (changed(splits={}), "has no 'splits'"),
        (changed(splits={"other": {}}), "'other', which is not one of"),
        (changed(splits={"val": {"filenames": ["a.tar"]}, "valid": {"filenames": ["b.tar"]}}), "twice the same"),
        (changed(splits={"train": []}), "not an object"),
        (changed(splits={"train": {}}), "has no 'filenames'"),
        (with_names(5), "not a text: 5"),
        (with_names("../a.tar"), "'..'"),
        (with_names("/etc/a.tar"), "not a relative path"),
        (with_names("http://host/a.tar"), "not a relative path"),
        (with_names("pipe:a.tar"), "not a relative path"),
        (with_names("a\n.tar"), "not a text"),
        (with_names("a.zip"), "does not end with .tar"),
        (with_names("a.tar", "a.tar"), "names a shard twice"),
        (changed(class_names=[]), "not a list of names"),
        (changed(class_names=["a", "a"]), "equal"),
        (changed(class_names=["a", ""]), "empty"),
        (changed(class_names=["a", 3]), "not a text: 3"),
        (with_names("missing.tar"), "missing.tar: does not exist"),
    ],
)
def test_hostile_info(tmp_path, text, problem):
    make(tmp_path, "a.tar", "b.tar")
    (tmp_path / "_info.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UserError) as error:
        find(tmp_path)
    assert problem in str(error.value) and "\n" not in str(error.value)
