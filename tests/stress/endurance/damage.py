"""Checkpoints with single flipped bits, and checkpoints that are cut short: each must be refused."""

import random
from pathlib import Path

from faults.saved import is_good
from results import Result


def damaged_checkpoint(checkpoint: Path, flips: int, cuts: int, seed: int) -> Result:
    """Damages a checkpoint, a file or a folder of parts, at random positions. It is whole again afterwards."""
    files = sorted(checkpoint.iterdir()) if checkpoint.is_dir() else [checkpoint]
    contents, rng, result = {file: file.read_bytes() for file in files}, random.Random(seed), Result("", flips + cuts)
    sizes = [len(content) for content in contents.values()]
    for number in range(flips + cuts):
        # Every third case is in any file: the tensors are nearly all of the bytes.
        (file,) = rng.choices(files, sizes if number % 3 else None)
        data, position = bytearray(contents[file]), rng.randrange(len(contents[file]))
        if number < flips:
            data[position] ^= 1 << rng.randrange(8)
        else:
            del data[position:]
        file.write_bytes(data)
        if is_good(checkpoint):
            result.failures.append(f"{'flip' if number < flips else 'cut'} at byte {position} of {file.name}")
        file.write_bytes(contents[file])
    if not is_good(checkpoint):
        result.failures.append("the undamaged checkpoint is refused")
    result.figures["bytes"] = sum(sizes)
    return result
