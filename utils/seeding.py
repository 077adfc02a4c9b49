"""Chance as a function: every random number of a run follows from (seed, where it is used), so none needs saving."""

import hashlib

import torch


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed from any tuple, e.g. (run seed, "augment", epoch, index); equal on every machine and process."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seeded_generator(*parts: int | str) -> torch.Generator:
    return torch.Generator().manual_seed(derive_seed(*parts))
