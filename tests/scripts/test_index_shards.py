"""`scripts/index_shards.py`: the index of a folder and of a web server, and its use beside the shards."""

import io
import sys
import tarfile
import threading

import pytest
from test_layers import head_imports

from datasets.shards.indexing import build
from datasets.shards.indexing.build import open_index
from datasets.shards.indexing.index import INDEX_NAME, read_index
from datasets.shards.storage.store import ShardStore
from scripts.benchmarks.range_server import RangeServer
from scripts.index_shards import main
from utils.errors import UserError

NAMES = ["train-0.tar", "train-1.tar", "val-0.tar"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "d").mkdir()
    for shard, name in enumerate(NAMES):
        with tarfile.open(tmp_path / "d" / name, "w") as tar:
            for sample in range(4):
                for end, content in (("jpg", b"x" * 600), ("cls", b"%d" % (sample + shard))):
                    member = tarfile.TarInfo(f"{sample}.{end}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    return tmp_path / "d"


def flags(data_path, tmp_path, *more: str) -> list[str]:
    return [f"-data_path={data_path}", *more, "-opts", f"DATA.CACHE_DIR={tmp_path / 'cache'}"]


def test_the_index_of_a_folder(folder, tmp_path, capsys):
    assert main(flags(folder, tmp_path)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "train: 2 shards, 0.000 GB, 8 images, 8 with a label, 5 classes"
    assert lines[1] == "val: 1 shards, 0.000 GB, 4 images, 4 with a label, 4 classes"
    assert lines[2].startswith(f"{folder / INDEX_NAME}: 0.0 MB; it belongs beside the shards")
    index = read_index((folder / INDEX_NAME).read_bytes(), "i")
    assert [shard.name for shard in index.shards] == NAMES
    assert index.arrays["targets"].tolist() == [0, 1, 2, 3, 1, 2, 3, 4, 2, 3, 4, 5]
    assert main(flags(folder, tmp_path, f"-output={tmp_path / 'copy'}")) == 0
    assert len(read_index((tmp_path / "copy").read_bytes(), "i")) == 12


def test_the_index_of_a_web_server_is_used_beside_its_shards(folder, tmp_path, monkeypatch):
    with RangeServer(folder) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        pattern = f"{server.url}/{{train-{{0,1}},val-0}}.tar"
        with pytest.raises(UserError, match="give a file with -output"):
            main(flags(pattern, tmp_path))
        assert main(flags(pattern, tmp_path, f"-output={tmp_path / 'i'}")) == 0
        (tmp_path / "i").rename(folder / INDEX_NAME)
        monkeypatch.setattr(build, "read_records", None)
        store = ShardStore(server.url, 5.0)
        index, notes = open_index(store, store.head(NAMES[1:]), tmp_path / "other")
        assert len(index) == 8 and notes == []
        server.shutdown()


def test_a_wrong_output_is_named(folder, tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        main(flags(folder, tmp_path, f"-output={tmp_path / 'missing' / 'i'}"))


def test_the_tools_without_the_packages_of_tar(folder, tmp_path, monkeypatch):
    for name in ("obstore", "braceexpand"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=r"index_shards\.py: needs obstore, braceexpand; pip install"):
        main(flags(folder, tmp_path))
    imports, loaded, waiting = head_imports(), set(), ["scripts.make_shards"]
    while waiting:
        loaded.add(module := waiting.pop())
        waiting += imports.get(module, set()) - loaded
    assert "datasets.shards.indexing.index" in loaded and not loaded & {"obstore", "braceexpand"}
