"""`scripts/index_shards.py`: the index of a folder and of a web server, and its use beside the shards."""

import sys

import pytest

from datasets.shards.index import INDEX_NAME, read_index
from scripts.index_shards import main
from tests.datasets.shards.tar_files import write_shards
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
    assert "2 shards" in train and "20 with a label" in train and "12 with a label" in val
    index = read_index((folder / INDEX_NAME).read_bytes(), "i")
    assert [shard.name for shard in index.shards] == ["train-0000.tar", "train-0001.tar", "val-0000.tar"]
    assert main(flags(folder, tmp_path, f"-output={tmp_path / 'copy'}")) == 0
    assert len(read_index((tmp_path / "copy").read_bytes(), "i")) == 32
    with pytest.raises(UserError, match="missing/i"):
        main(flags(folder, tmp_path, f"-output={tmp_path / 'missing' / 'i'}"))
