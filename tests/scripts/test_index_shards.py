"""`scripts/index_shards.py`: the index of a folder and of a web server, and its use beside the shards."""

import sys
from dataclasses import replace

import pytest

from configs.schema import Data
from datasets.decoding.images import BadImage
from datasets.shards import data_set
from datasets.shards.data_set import TarShards, open_index
from datasets.shards.index import INDEX_NAME, encode_index, read_index
from datasets.shards.store import ShardStore
from scripts.index_shards import main
from tests.datasets.shards.range_server import range_server
from tests.datasets.shards.tar_files import jpeg, write_shard, write_shards
from utils.errors import UserError


@pytest.fixture
def folder(tmp_path):
    return write_shards(tmp_path / "d", train=2)


def flags(data_path, tmp_path, *more: str) -> list[str]:
    return [f"-data_path={data_path}", *more, "-opts", f"DATA.CACHE_DIR={tmp_path / 'cache'}"]


def test_the_index_of_a_folder_needs_no_other_package(folder, tmp_path, monkeypatch, capsys):
    for name in ("obstore", "braceexpand"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(flags(folder, tmp_path)) == 0
    train, val = capsys.readouterr().out.splitlines()[:2]
    assert "2 shards" in train and "20 with a label, 2 classes" in train and "12 with a label" in val
    index = read_index((folder / INDEX_NAME).read_bytes(), "i")
    assert [shard.name for shard in index.shards] == ["train-0000.tar", "train-0001.tar", "val-0000.tar"]
    assert main(flags(folder, tmp_path, f"-output={tmp_path / 'copy'}")) == 0
    assert len(read_index((tmp_path / "copy").read_bytes(), "i")) == 32
    with pytest.raises(UserError, match="missing/i"):
        main(flags(folder, tmp_path, f"-output={tmp_path / 'missing' / 'i'}"))


def test_the_index_of_a_web_server_is_used_beside_its_shards(folder, tmp_path, monkeypatch, capsys):
    with range_server(folder) as server:
        pattern = f"{server.url}/{{train-{{0000,0001}},val-0000}}.tar"
        assert main(flags(pattern, tmp_path, f"-output={folder / INDEX_NAME}")) == 0
        monkeypatch.setattr(data_set, "read_records", None)
        assert main(flags(pattern, tmp_path / "other", f"-output={tmp_path / 'again'}")) == 0
    assert (tmp_path / "again").stat().st_size == (folder / INDEX_NAME).stat().st_size


@pytest.mark.parametrize("is_local", [True, False])
def test_a_shard_is_replaced_beside_an_index_without_versions(folder, tmp_path, is_local):
    """The error names the command that indexes it again."""
    store = ShardStore(str(folder), 5.0)
    index, _ = open_index(store, store.head(["train-0000.tar", "train-0001.tar", "val-0000.tar"]), tmp_path / "cache")
    without_versions = [shard._replace(version=None) for shard in index.shards]
    (folder / INDEX_NAME).write_bytes(encode_index(replace(index, shards=without_versions)))
    size = (folder / "train-0001.tar").stat().st_size
    write_shard(folder / "train-0001.tar", range(30, 40))
    assert (folder / "train-0001.tar").stat().st_size == size
    with range_server(folder) as server:
        root = folder if is_local else f"{server.url}/{{train-{{0000,0001}},val-0000}}.tar"
        data = Data.model_validate({"DATA_PATH": str(root), "CACHE_DIR": str(tmp_path / "cache")})
        train = TarShards(data).read("train")
        assert train.read_bytes(9) == jpeg(9)
        url = folder if is_local else server.url
        with pytest.raises(BadImage, match=rf"000010.jpg: .* python scripts/index_shards\.py -data_path={url}"):
            train.read_bytes(10)
        assert main(flags(root, tmp_path, f"-output={folder / INDEX_NAME}")) == 0
        for cache in ("cache", "other"):
            train = TarShards(data.model_copy(update={"cache_dir": str(tmp_path / cache)})).read("train")
            assert train.read_bytes(10) == jpeg(30) and not any(shard.is_assumed for shard in train.shards)
