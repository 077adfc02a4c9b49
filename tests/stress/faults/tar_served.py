"""Faults of web servers with tar shards: they refuse, go away, or change the shards; and the checks after such runs."""

import functools
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from faults.processes import MULTI, SINGLE, Running, finish
from faults.runner import Fault, finished
from faults.saved import state_hash
from faults.scene import Provoke, Scene
from faults.tar import data_of, secret_is_kept, tar_flags

from datasets.shards.index import INDEX_NAME
from tests.datasets.shards.range_server import Fault as ServerFault
from tests.datasets.shards.range_server import RangeHandler, RangeServer, body, range_server
from tests.datasets.shards.tar_files import write_shard
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
        scene.server = scene.resources.enter_context(range_server(root))
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


def hang_up(handler: RangeHandler) -> None:
    handler.close_connection = True


def server_faults() -> list[Fault]:
    def unknown(scene: Scene) -> list[str]:
        return tar_flags(scene, f"http://no-such-host.invalid/d/{PATTERN}", SHORT_TIMEOUT)

    def away(running: Running) -> None:
        running.wait_for("Epoch[002")
        server: RangeServer = running.scene.server
        server.fail_always(hang_up)
        time.sleep(20.0)
        server.faults = iter(())
        if not server.requests:
            raise TimeoutError("the run did not need the server")

    def gone(running: Running) -> None:
        running.wait_for("Epoch[002")
        running.scene.server.fail_always(hang_up)

    def replaced(running: Running) -> None:
        running.wait_for("Epoch[002")
        for number in range(6):
            new = running.scene.folder / "new.tar"
            write_shard(new, range(500 + 10 * number, 510 + 10 * number))
            os.replace(new, running.scene.server.folder / f"train-{number:04d}.tar")

    whole = served(CACHE, answer=body(ranges=False))
    line = r"invalid/d/\S+\.tar: the host .*, after \d+ s of attempts; check the"
    with_worker = "DATA.NUM_WORKERS=1"
    lost = r"http://127\.0\.0\.1:\d+/\S+\.tar: .*, after \d+ s of attempts; check the network and the server, then"
    other = r"train-000\d\.tar: has changed since it was indexed; index it again: python scripts/index_shards.py"
    long_timeout, short_timeout = served(with_worker, "TIMEOUT_SECONDS=60"), served(with_worker, SHORT_TIMEOUT)
    return [
        Fault("tar server: an unknown host", unknown, line, waits=True, check=secret_is_kept),
        finished("tar server: whole files only, with a cache", whole, check=is_equal()),
        finished("tar server: away for 20 s", long_timeout, act=away, check=is_equal(), waits=True),
        Fault("tar server: goes away", short_timeout, lost, act=gone, state="failed", check=resumed(), waits=True),
        Fault("tar server: shards are replaced during the run", served(), other, act=replaced, state="failed"),
    ]
