"""Runs on tar shards of a web server, and the checks after them."""

import functools
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from fault_server import Fault as ServerFault
from fault_server import fault_server
from faults.processes import MULTI, SINGLE, finish
from faults.runner import Provoke
from faults.saved import state_hash
from faults.scene import Scene
from faults.tar import data_of, tar_flags

from datasets.shards.index import INDEX_NAME
from utils.errors import UserError

PATTERN = "{train-{0000..0005},val-0000}.tar"
LONG = ("TRAIN.NUM_EPOCHS=5", "REPORT_FREQ=1")
CACHE = "DATA.CACHE_GB=1"
SHORT_TIMEOUT = "TIMEOUT_SECONDS=6"
_TRAINING = threading.Lock()
Check = Callable[[Scene], list[str]]


def served(
    *options: str, flags: tuple[str, ...] = (), answer: ServerFault | None = None, indexed: bool = True
) -> Provoke:
    """A run on shards of a web server, `scene.server`. `answer` replaces its answer to each request."""

    def provoke(scene: Scene) -> list[str]:
        root = data_of(scene)
        if not indexed:
            (root / INDEX_NAME).unlink()
        scene.server = scene.resources.enter_context(fault_server(root))
        if answer:
            scene.server.fail_always(answer)
        return remote_flags(scene, *options, flags=flags)

    return provoke


def remote_flags(scene: Scene, *options: str, flags: tuple[str, ...] = ()) -> list[str]:
    return tar_flags(scene, f"{scene.server.url}/{PATTERN}", *LONG, *options, flags=flags)


def _ranks(number: int) -> tuple[str, tuple[str, ...]]:
    return (MULTI, (f"-ngpus={number}",)) if number > 1 else (SINGLE, ())


def undisturbed(ranks: int) -> str:
    """The state hash of a run on the shards in a folder."""
    with _TRAINING:  # one thread trains, and the others take its result
        return _train_undisturbed(ranks)


@functools.cache
def _train_undisturbed(ranks: int) -> str:
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        scene = Scene(Path(folder), Path(folder))
        script, flags = _ranks(ranks)
        finish(scene, script, tar_flags(scene, data_of(scene), *LONG, flags=flags))
        (last,) = scene.output.glob("*/last.pth")
        return state_hash(last)


def is_equal(ranks: int = 1, runs: int = 1) -> Check:
    def check(scene: Scene) -> list[str]:
        hashes = [state_hash(last) for last in scene.output.glob("*/last.pth")]
        is_equal = hashes == runs * [undisturbed(ranks)]
        return [] if is_equal else [f"{len(hashes)} run(s), not with the weights of an undisturbed one"]

    return check


def all_of(*checks: Check) -> Check:
    return lambda scene: [problem for check in checks for problem in check(scene)]


def resumed(ranks: int = 1, *options: str) -> Check:
    """Resumes the run to its end, on a server that answers again."""

    def check(scene: Scene) -> list[str]:
        scene.server.faults = iter(())
        (folder,) = scene.output.iterdir()
        script, flags = _ranks(ranks)
        argv = remote_flags(scene, *options, flags=(*flags, f"-resume={folder}"))
        try:
            finish(scene, script, argv, "resumed")
        except UserError as error:
            return [str(error)]
        return is_equal(ranks)(scene)

    return check
