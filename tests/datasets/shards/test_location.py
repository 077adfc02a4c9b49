"""Where shards are: a location and its pattern, and the shards of each split that are found there."""

import json

from conftest import each_row, each_value, line_of, refused
from pytest import mark

from datasets.shards.data_set import find_shards
from datasets.shards.location import parse_location
from datasets.shards.store import ShardStore
from tests.datasets.shards.range_server import range_server

# DATA.DATA_PATH, the root, the names of shards
LOCATIONS = """
data_path | root | names
/data/in1k/ | /data/in1k |
https://host:80/d/ | https://host:80/d |
a.tar | . | a.tar
gs://bucket/d/a.tar | gs://bucket/d | a.tar
/d/{train,val}/{08..10}.tar | /d | train/08.tar, train/09.tar, train/10.tar, val/08.tar, val/09.tar, val/10.tar
https://host/my%20d/a%20{1..2}.tar | https://host/my%20d | a 1.tar, a 2.tar
s3://bucket/x/t-{0..4..2}.tar | s3://bucket/x | t-0.tar, t-2.tar, t-4.tar
{a,b{1..2}}.tar | . | a.tar, b1.tar, b2.tar
"""


@each_row(LOCATIONS)
def test_location(data_path, root, names):
    assert parse_location(data_path) == (root, names.split(", ") if names else [])


@mark.parametrize("name", ["{a,b}", "set.tar"])
def test_existing_folder_is_no_pattern(tmp_path, name):
    (tmp_path / name).mkdir()
    assert parse_location(f"{tmp_path}/{name}") == (f"{tmp_path}/{name}", [])


UNSUPPORTED = """
data_path | problem
ftp://host/d | 'ftp'
https://me:hunter2@host/d | user or password
https://host/a.tar?token=hunter2 | without a query
https://[::1/d | not a valid URL
https://h{0..3}/d | not a valid URL
s3://b/../d | not a valid URL
/d/{a,b | not balanced
/d/{0..99999999999}.tar | 1,000,000
/d/{1..2} | .tar
/d/{a,../b}.tar | '../b.tar'
"""


@each_row(UNSUPPORTED)
def test_one_line_for_what_is_not_supported(data_path, problem):
    message = line_of(parse_location, data_path)
    assert problem in message
    assert "hunter2" not in message


def make(folder, names):
    for name in names.split():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def find(data_path):
    root, names = parse_location(str(data_path))
    return find_shards(ShardStore(root, timeout_seconds=2), names)


SPLITS = """
names | pattern | splits
train-1.tar train-0.tar val/0.tar | | {train: [train-0.tar, train-1.tar], val: [val/0.tar]}
train-0.tar notes/train.tar train.txt val/._0.tar x-test.tar | | {train: [train-0.tar], test: [x-test.tar]}
1.tar 0.tar | | {all: [0.tar, 1.tar]}
9.tar | "http://host/a/{train/{0..1},val/9}.tar" | {train: [train/0.tar, train/1.tar], val: [val/9.tar]}
"""


@each_value(SPLITS)
def test_shards_in_a_folder_and_of_a_pattern(tmp_path, names, pattern, splits):
    make(tmp_path, names)
    found = find(pattern or tmp_path)
    assert found.splits == splits
    assert not found.class_names
    assert not found.label_key


UNCLEAR = r"""
names | problem
 | no shard
a.tar.gz | not compressed
0.tar val-0.tar | 0\.tar: .*val-0\.tar
"""


@each_row(UNCLEAR)
def test_folders_without_clear_shards(tmp_path, names, problem):
    make(tmp_path, names)
    with refused(problem):
        find(tmp_path)


def test_places_that_cannot_be_listed(tmp_path):
    with refused(rf"{tmp_path}/missing.* does not exist"):
        find(tmp_path / "missing")
    with range_server(tmp_path) as server, refused(rf"^{server.url}: .*cannot be listed"):
        find(server.url)


SHARDS = {
    "train": {"filenames": ["t-1.tar", "t-0.tar"], "alt_label": "species"},
    "validation": {"filenames": ["v.tar"], "alt_label": "species"},
}
INFO = {"splits": SHARDS, "class_names": ["cat", "Ha\u0308her"]}


def test_info_of_timm(tmp_path):
    make(tmp_path, "t-0.tar t-1.tar v.tar not-listed.tar")
    (tmp_path / "_info.json").write_text(json.dumps(INFO))
    with range_server(tmp_path) as server:
        for root in (tmp_path, server.url):
            found = find(root)
            assert found.splits == {"train": ["t-0.tar", "t-1.tar"], "val": ["v.tar"]}
            assert found.class_names == ["cat", "Häher"]
            assert found.label_key == "species"
    without_key = {"train": SHARDS["train"] | {"alt_label": ""}, "validation": {"filenames": ["v.tar"]}}
    (tmp_path / "_info.json").write_text(json.dumps({"splits": without_key}))
    assert not find(tmp_path).label_key


TRAIN = '{"splits": {"train": {"filenames": '
VAL = '"val": {"filenames": ["v.tar"], "alt_label": "a"}'
TEST = '"test": {"filenames": ["t.tar"], "alt_label": "b"}'
HOSTILE = {  # a part of the error: _info.json
    "JSON": "[" * 100_000,
    "'other'": '{"splits": {"other": {"filenames": ["t-0.tar"]}}}',
    "splits.train.filenames": TRAIN + "[]}}}",
    "splits.train.filenames.0": TRAIN + "[5]}}}",
    "../a.tar": TRAIN + '["../a.tar"]}}}',
    "pipe:a.tar": TRAIN + '["pipe:a.tar"]}}}',
    "a\\n.tar": TRAIN + r'["a\n.tar"]}}}',
    "a shard or a class twice": TRAIN + '["a.tar", "a.tar"]}}}',
    "alt_label": f'{{"splits": {{{VAL}, {TEST}}}}}',
    "a class twice": TRAIN + '["a.tar"]}}, "class_names": ["a", "a"]}',
}


@mark.parametrize("problem", HOSTILE)
def test_hostile_info(tmp_path, problem):
    (tmp_path / "_info.json").write_text(HOSTILE[problem])
    message = line_of(find, tmp_path)
    assert message.startswith(f"{tmp_path}/_info.json: ")
    assert problem in message
    assert message.isprintable()
