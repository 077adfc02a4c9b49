"""The data set `tar`, imported where it is used: it needs packages that no other data set needs."""

from types import ModuleType

from utils.packages import require


def tar_shards() -> ModuleType:
    """Imports `datasets.shards.data_set`; raises UserError if a package is not installed."""
    require("DATA.DATASET tar", "obstore", "braceexpand")
    from datasets.shards import data_set

    return data_set
