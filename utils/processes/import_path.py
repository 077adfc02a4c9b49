"""The import path of Python processes that libraries start: the fork server, and the ones of torch.compile."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def inherited_import_path(**variables: str) -> Iterator[None]:
    """Gives Python processes that start in the block the import path of this one.

    They are started with `python -c`, which imports from the working folder first: its files are data, and may have the
    names of modules. Python 3.11 to 3.13 do not give the path to the fork server, which ignores that a module is
    missing.

    variables: other environment variables for the processes.
    """
    variables |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1"}
    before = {name: os.environ[name] for name in variables if name in os.environ}
    os.environ |= variables
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]
        os.environ |= before
