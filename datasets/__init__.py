"""The data of a run, from files to batches. Hugging Face's package of this name cannot be imported beside it."""

import importlib.util
from typing import TYPE_CHECKING, NoReturn

if not TYPE_CHECKING:  # for a type checker, it would define every name

    def __getattr__(name: str) -> NoReturn:
        """Raises ImportError for a public name of Hugging Face's package, such as `load_dataset`."""
        if name.startswith("_") or importlib.util.find_spec(f"{__name__}.{name}"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        problem = f"datasets.{name}: `datasets` is AmpViT's package here ({__path__[0]}), which hides Hugging Face's"
        fix = "use that one in another folder and process, and give its files to AmpViT (docs/data.md#parquet-files)"
        raise ImportError(f"{problem}; {fix}")
