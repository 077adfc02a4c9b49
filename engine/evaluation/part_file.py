"""The results of a prediction as they are computed, in one file, from which a killed run continues.

Each line is JSON: `SampleResults`, and as `key` a digest of all inputs with the index of the first sample.
"""

import json
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from configs.schema import Config
from datasets.sources.digest import digest_of
from datasets.sources.samples import Samples
from engine.evaluation.results import SampleResults
from engine.run.log import RunLogger

BATCHES_PER_WRITE = 8  # before a write, the host waits for the device
_WITHOUT_EFFECT = {"data": {"num_workers", "data_path", "cache_dir", "cache_gb"}, "model": {"pretrained", "resume"}}


def digest_inputs(config: Config, samples: Samples, weights: Iterable[torch.Tensor], *more: Any) -> str:
    """A digest of all that the results of the samples depend on: options, images in their order, weights, `more`."""
    sections = {"data", "model", "amp", "eval", "deterministic"}
    options = config.model_dump(mode="json", include=sections, exclude=_WITHOUT_EFFECT)
    digest = sha256(json.dumps([options, *more, digest_of(samples)]).encode())
    for index in range(len(samples)):
        digest.update(f"\n{samples.name(index)}".encode(errors="surrogateescape"))
    for tensor in weights:
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


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


def open_part_file(path: Path, digest: str, num_samples: int, logger: RunLogger) -> PartFile:
    """The results of an earlier run with the same inputs, of `num_samples`, or else an empty file."""
    existed, part = path.exists() and path.stat().st_size > 0, PartFile(path, digest)
    if existed:
        start = f"continues after {part.num_samples} of {num_samples} images" if part.num_samples else "starts again"
        logger.info(f"----- {path}: the prediction {start}, by the digest of weights, images and options")
    return part
