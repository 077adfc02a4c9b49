"""Recipes, the options of a run (`schema`), and the code that reads them (`reading`); without torch."""

import importlib.util
import sys

if importlib.util.find_spec("pydantic") is None:  # all commands import this package first
    sys.exit("error: pydantic is not installed; pip install pydantic (docs/benchmarks.md, GPU: without a network)")
