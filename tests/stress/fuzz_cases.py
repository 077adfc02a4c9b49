"""The cases of the fuzzer: valid files of each kind, with seeded damage.

A case is a function of (kind, seed, number). A reader must succeed or raise `UserError`; all else is a finding.
"""

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import fuzz_data_kinds as data_kinds
import fuzz_folder_kinds as folder_kinds
import fuzz_model_kinds as model_kinds
import fuzz_tar_kinds as tar_kinds

from utils.seeding import derive_seed

_NUMBERS = (0, 1, -1, 127, 255, 65535, 2**31 - 1, 2**32 - 1, 2**40, 2**63 - 1)
_WORDS = (
    "[", "]", "{", "}", ": ", "- ", "'", '"', "\\", "&a ", "*a", "!!python/name:os.system ", "\n", "\t", "#", "null",
    "-1", "1e999", ".nan", "0x" + "f" * 300, "9" * 5000, "\0", "é", "../", "/etc/passwd", "BASE: [a.yaml]", " ", ",",
    "true", "TRAIN", "DATA:", "%YAML 9", "---", "|", ">", "? ", "<<: ",
)  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A kind of input.

    examples: returns valid inputs.
    read: reads an input; may write to the given folder.
    repair: restores valid checksums after the damage, so that the damage is not detected by them.
    """

    examples: Callable[[], list[bytes]]
    read: Callable[[bytes, Path], None]
    repair: Callable[[bytes], bytes] = bytes
    is_text: bool = False


KINDS = {
    "images": Kind(data_kinds.image_examples, data_kinds.read_image, data_kinds.repair_png),
    "lists": Kind(data_kinds.list_examples, data_kinds.read_list_file, is_text=True),
    "cifar": Kind(data_kinds.cifar_examples, data_kinds.read_cifar),
    "configs": Kind(model_kinds.config_examples, model_kinds.read_config, is_text=True),
    "policies": Kind(data_kinds.policy_examples, data_kinds.read_policy, is_text=True),
    "checkpoints": Kind(model_kinds.checkpoint_examples, model_kinds.read_checkpoint, model_kinds.repair_checkpoint),
    "pdparams": Kind(model_kinds.pdparams_examples, model_kinds.read_pdparams),
    "exports": Kind(model_kinds.export_examples, model_kinds.read_export),
    "runs": Kind(folder_kinds.run_examples, folder_kinds.read_run, is_text=True),
    "sharded": Kind(folder_kinds.sharded_examples, folder_kinds.read_sharded, folder_kinds.repair_sharded),
    "tar": Kind(tar_kinds.tar_examples, tar_kinds.read_tar, tar_kinds.repair_tar),
    "tar-index": Kind(tar_kinds.tar_index_examples, tar_kinds.read_tar_index, tar_kinds.repair_tar_index),
    "weights": Kind(model_kinds.weights_examples, model_kinds.read_weights_file),
}


def make_case(name: str, seed: int, number: int) -> bytes:
    kind, rng = KINDS[name], random.Random(derive_seed(name, seed, number))
    examples = _cached_examples(name)
    data = rng.choice(examples)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        data = damage(data, rng, examples, kind.is_text)
    return kind.repair(data) if rng.random() < 0.5 else data


@functools.cache
def _cached_examples(name: str) -> list[bytes]:
    return KINDS[name].examples()


def damage(data: bytes, rng: random.Random, examples: list[bytes], is_text: bool) -> bytes:
    """Damages the data once, in a random way at a random position."""
    start, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    # Half of the positions are in the header, which has sizes and types.
    position = rng.randrange(min(len(data), 256) if rng.random() < 0.5 else len(data)) if data else 0
    kind = rng.choice(("flip", "byte", "number", "cut", "drop", "repeat", "splice", *(["word"] * 5 if is_text else [])))
    if kind == "flip":
        return _overwrite(data, position, bytes([data[position] ^ 1 << rng.randrange(8)]) if data else b"")
    if kind == "byte":
        return _overwrite(data, position, bytes([rng.choice((0, 0x7F, 0x80, 0xFF, rng.randrange(256)))]))
    if kind == "number":
        size, order = rng.choice((2, 4, 8)), rng.choice(("little", "big"))
        return _overwrite(data, position, (rng.choice(_NUMBERS) % 256**size).to_bytes(size, order))
    if kind == "cut":
        return data[:end]
    if kind == "drop":
        return data[:start] + data[min(end, start + 64) :]
    if kind == "repeat":
        return data[:end] + data[start:end] * rng.choice((1, 2, 20)) + data[end:]
    if kind == "splice":
        other = rng.choice(examples)
        return data[:start] + other[rng.randrange(len(other)) :]
    return data[:position] + rng.choice(_WORDS).encode() + data[position:]


def _overwrite(data: bytes, position: int, new: bytes) -> bytes:
    return (data[:position] + new + data[position + len(new) :])[: len(data)]
