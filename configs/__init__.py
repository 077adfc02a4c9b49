"""Recipes, the options of a run (`schema`), and the code that reads and completes them; without torch."""

import sys

from utils.system import why_unusable

if problem := why_unusable():  # all commands import this package first
    sys.exit(f"error: {problem}")
