"""Fuzzes the readers of files: each input must give a result or a one-line error, within a second and a gigabyte.

    python -m pytest tests/stress/fuzz.py                            # 30 cases of each kind
    CASES=100000 SEED=1 python -m pytest -rP tests/stress/fuzz.py -k 'images or configs'

A case is a valid file of its kind with seeded damage, a function of (kind, seed, number). A forked process reads the
cases. If it hangs, dies or uses too much memory, a new one replaces it and the case is a finding, as is any exception
but `UserError`. The findings are saved in output/fuzz.
"""

import contextlib
import functools
import os
import random
import re
import resource
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
import fuzz_data_kinds as data_kinds
import fuzz_model_kinds as model_kinds
from pytest import mark

from tests.datasets.photo import with_bytes
from utils.errors import UserError
from utils.seeding import derive_seed
from utils.system import is_installed

CASES = int(os.environ.get("CASES", "30"))
SEED = int(os.environ.get("SEED", "0"))
FINDINGS = Path("output/fuzz")
SLOW_SECONDS = 1.0  # CPU time, so that other processes do not matter
HANG_SECONDS = 60.0
MAX_BYTES = 1 << 30
_ADDRESS_SPACE_BYTES = 4 << 30  # in addition to the child's own; an allocation that is not used counts here only


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
    "configs": Kind(model_kinds.config_examples, model_kinds.read_config, is_text=True),
    "pdparams": Kind(model_kinds.pdparams_examples, model_kinds.read_pdparams),
    "tar": Kind(data_kinds.tar_examples, data_kinds.read_tar, data_kinds.repair_tar),
    "tar-index": Kind(data_kinds.tar_index_examples, data_kinds.read_tar_index, data_kinds.repair_tar_index),
    "weights": Kind(model_kinds.weights_examples, model_kinds.read_weights_file),
}
if is_installed("pydicom"):
    KINDS["dicom"] = Kind(data_kinds.dicom_examples, data_kinds.read_image)
if is_installed("pyarrow"):
    KINDS["parquet"] = Kind(data_kinds.parquet_examples, data_kinds.read_parquet)


def make_case(name: str, seed: int, number: int) -> bytes:
    kind = KINDS[name]
    rng = random.Random(derive_seed(name, seed, number))
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
        size = rng.choice((2, 4, 8))
        order = rng.choice(("little", "big"))
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
    return with_bytes(data, position, new)[: len(data)]


def try_case(kind: str, seed: int, number: int, folder: Path) -> str:
    """'accepted', 'refused', or 'finding: problem'."""
    data = make_case(kind, seed, number)
    try:
        KINDS[kind].read(data, folder)
    except UserError:
        return "refused"
    except BaseException as error:
        return f"finding: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return "accepted"


def read_cases(kind: str, seed: int, numbers: range) -> Iterator[tuple[int, float, int, str]]:
    """Runs in the child: number, seconds, bytes and outcome of each case."""
    with tempfile.TemporaryDirectory() as folder:
        for number in numbers:
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins at the present size
            own_bytes = _peak_bytes()
            started = time.process_time()
            outcome = try_case(kind, seed, number, Path(folder))
            seconds = time.process_time() - started
            more_bytes = _peak_bytes() - own_bytes
            if more_bytes > MAX_BYTES:
                outcome = f"finding: used {more_bytes / 2**30:.1f} GB"
            elif seconds > SLOW_SECONDS:
                outcome = f"finding: took {seconds:.1f} s"
            yield number, seconds, more_bytes, outcome


def _peak_bytes() -> int:
    """Peak memory of this process; `getrusage` would include the parent's."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024


@mark.parametrize("kind", KINDS)
def test_damaged_files_are_read_or_refused(kind, tmp_path):
    """Forks a new child after each case that ends one."""
    KINDS[kind].read(_cached_examples(kind)[0], tmp_path)  # the children inherit the examples and the imported modules
    outcomes: Counter[str] = Counter()
    findings = []
    done = 0
    peak_bytes = 0
    slowest = (0.0, 0)
    while done < CASES:
        for number, seconds, more_bytes, outcome in _read_in_child(kind, SEED, range(done, CASES)):
            done = number + 1
            peak_bytes = max(peak_bytes, more_bytes)
            slowest = max(slowest, (seconds, number))
            verdict, _, problem = outcome.partition(": ")
            outcomes[verdict] += 1
            if problem:
                FINDINGS.mkdir(parents=True, exist_ok=True)
                path = FINDINGS / f"{kind}-{SEED}-{number}"
                path.write_bytes(make_case(kind, SEED, number))
                findings.append(f"{path}: {problem}")
    print(f"{dict(outcomes)}; slowest: case {slowest[1]}, {slowest[0]:.2f} s; memory: {peak_bytes / 2**20:.0f} MB")
    assert not findings


def _read_in_child(kind: str, seed: int, numbers: range) -> Iterator[tuple[int, float, int, str]]:
    """The outcomes of `read_cases` in a child, and of the case that made the child hang or die."""
    receiver, sender = Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        _send_cases(sender, kind, seed, numbers)
    sender.close()
    number = numbers.start
    problem = ""
    with contextlib.suppress(EOFError), receiver:  # the child has ended
        while receiver.poll(HANG_SECONDS):
            yield (case := receiver.recv())
            number = case[0] + 1
        problem = f"hung for {HANG_SECONDS:.0f} s"
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        yield number, 0.0, 0, f"finding: {problem or f'died with status {status}'}"


def _send_cases(sender: Connection, kind: str, seed: int, numbers: range) -> None:
    """Runs in the child, and ends it."""
    try:
        limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + _ADDRESS_SPACE_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        for case in read_cases(kind, seed, numbers):
            sender.send(case)
        os._exit(0)
    finally:
        os._exit(1)  # an error must not run the rest of the parent's program here
