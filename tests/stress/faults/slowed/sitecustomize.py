"""Makes functions of the program slow: Python imports this file at its start if its folder is in PYTHONPATH.

SLOWED: words `module:function:seconds`; each call of the function leaves a file of its name in SLOWED_FOLDER, and
sleeps. The module is changed when it is imported, before others import names from it.
"""

import importlib.util
import os
import sys
import time
from functools import wraps
from importlib.abc import MetaPathFinder
from pathlib import Path


class Slowed(MetaPathFinder):
    def __init__(self, module, function, seconds):
        self.module = module
        self.function = function
        self.seconds = float(seconds)

    def find_spec(self, name, path, target=None):
        if name != self.module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def load_and_change(module):
            load(module)
            self.change(module)

        spec.loader.exec_module = load_and_change
        return spec

    def change(self, module):
        *owners, name = self.function.split(".")
        owner = module
        for one in owners:
            owner = getattr(owner, one)
        original = getattr(owner, name)

        @wraps(original)
        def slowed(*arguments, **options):
            Path(os.environ["SLOWED_FOLDER"], self.function).touch()
            time.sleep(self.seconds)
            return original(*arguments, **options)

        setattr(owner, name, slowed)


sys.meta_path[:0] = [Slowed(*words.split(":")) for words in os.environ.get("SLOWED", "").split()]
