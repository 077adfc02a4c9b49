"""Reads finished shards as training does, compares them with the written samples, and makes their index."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tqdm import tqdm

from datasets.loading.workers import default_num_workers
from datasets.shards.indexing.archive import DamagedShard
from datasets.shards.indexing.index import Index, join, to_index
from datasets.shards.indexing.records import read_records
from datasets.shards.shard import Shard
from scripts.packing.tar import REPAIR, WrittenShard, hash_rows
from utils.cpu_cores import own_share
from utils.errors import UserError
from utils.files import open_regular_file

_CHUNK_BYTES = 1 << 22


def read_back(folder: Path, shards: Sequence[WrittenShard]) -> Index:
    """The index of the shards in `folder`, without versions: it is valid wherever they are copied.

    Raises:
        UserError: a shard is damaged, or its keys, its labels or the CRC-32 of its images differ from the written ones.
        OSError: a shard cannot be read.
    """

    def index_of(shard: WrittenShard) -> Index:
        path = folder / shard.name
        try:
            with open_regular_file(path) as file:
                records, _ = read_records(iter(partial(file.read, _CHUNK_BYTES), b""), str(path), shard.num_bytes)
        except DamagedShard as error:
            raise UserError(f"{error}; {REPAIR}") from error
        if hash_rows((record.name, record.label, record.crc) for record in records) != shard.sha256:
            raise UserError(f"{path}: read back, it is not as it was written; {REPAIR}")
        return to_index(Shard(shard.name, shard.num_bytes), records, str(path))

    with ThreadPoolExecutor(default_num_workers(own_share(), on_gpu=False)) as pool:
        bar = tqdm(pool.map(index_of, shards), "reading back", len(shards), unit="shard", leave=False, disable=None)
        return join(list(bar))
