"""The data set `tar`: `datasets.shards` is imported here, where it is used, because it needs packages of its own."""

from collections.abc import Callable
from types import ModuleType

from configs.schema import Data
from datasets.sources.samples import Samples
from utils.packages import require


def tar(data: Data, split: str) -> Samples:
    """One split of `open_shards`."""
    return open_shards(data)(split)


def open_shards(data: Data) -> Callable[[str], Samples]:
    """`TarShards.samples`: the samples of a split, of shards that are found and indexed once for all splits.

    Raises:
        UserError: as `TarShards`; or a package is not installed.
    """
    return _data_set().TarShards(data).samples


def splits_of_shards(data: Data) -> list[str]:
    """Those of 'train', 'val' and 'test' that have shards of their own; raises UserError as `open_shards`."""
    return _data_set().splits_of_shards(data)


def _data_set() -> ModuleType:
    require("DATA.DATASET tar", "obstore", "braceexpand")
    from datasets.shards import data_set

    return data_set
