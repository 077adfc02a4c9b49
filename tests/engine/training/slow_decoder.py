"""A decoder that other processes import: it takes longer than a test."""

import time
from typing import Any


def decode_slowly(*arguments: Any) -> list[Any]:
    time.sleep(600)
    return []
