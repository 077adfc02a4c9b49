"""The data of a run, from files to batches. Hugging Face's package of this name cannot be imported beside it."""

from typing import TYPE_CHECKING, NoReturn

_OTHERS = ("load_dataset", "load_from_disk", "Dataset", "DatasetDict", "IterableDataset", "Features", "ClassLabel")

if not TYPE_CHECKING:  # for a type checker, it would define every name

    def __getattr__(name: str) -> NoReturn:
        """Raises ImportError for names of Hugging Face's package. pickle, for one, asks modules for any other name."""
        if name not in _OTHERS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        raise ImportError(
            f"datasets.{name}: `datasets` is AmpViT's package here ({__path__[0]}), which hides Hugging Face's; "
            "use that one in another folder and process, and give its files to AmpViT (docs/data.md#parquet-files)"
        )
