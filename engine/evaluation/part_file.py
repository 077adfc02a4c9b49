"""The results of a prediction as they are computed, in one file, from which a killed run continues.

Each line is JSON: `SampleResults`, and as `key` a digest of all inputs with the index of the first sample.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from engine.evaluation.results import SampleResults


class PartFile:
    """Iterates over the results so far, in the order of the samples, of which only a few are in memory."""

    def __init__(self, path: Path, digest: str) -> None:
        """Removes the results of other inputs."""
        self.path, self.digest = path, digest
        path.touch()
        self.num_samples = sum(len(results.labels) for results in self)
        if not self.num_samples:
            path.write_bytes(b"")

    def append(self, results: SampleResults) -> None:
        fields = {name: value.tolist() for name, value in vars(results).items() if isinstance(value, np.ndarray)}
        line = {"key": [self.digest, self.num_samples], "errors": list(results.errors.items()), **fields}
        try:
            with open(self.path, "a", encoding="ascii") as file:
                file.write(f"\n{json.dumps(line)}")
        except OSError as error:  # of a full disk, it names no file
            raise OSError(error.errno, f"{error.strerror}; free space and repeat the command", self.path) from None
        self.num_samples += len(results.labels)

    def __iter__(self) -> Iterator[SampleResults]:
        start = 0
        with open(self.path, "rb") as file:
            for line in file:
                try:
                    fields = json.loads(line)
                    key = fields.pop("key")
                except (ValueError, AttributeError, LookupError, TypeError):  # not written completely, or not by us
                    continue
                if key == [self.digest, start]:
                    errors = dict(fields.pop("errors"))
                    yield SampleResults(**{name: np.array(fields[name]) for name in fields}, errors=errors)
                    start += len(fields["labels"])
