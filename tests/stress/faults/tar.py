"""Faults of the data set tar: no place for the index; a web server that goes away or changes shards; a shared cache."""

import functools
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from conftest import assert_same_state, only_run, states
from faults.processes import MULTI, SINGLE, Running, finish
from faults.runner import Fault, finished
from faults.scene import TINY, Provoke, Scene, in_namespace, require_mounts

from configs.schema import Data
from datasets.shards.data_set import TarShards
from datasets.shards.index import INDEX_NAME
from datasets.sources.source import Wanted
from tests.datasets.shards.range_server import Fault as ServerFault
from tests.datasets.shards.range_server import RangeHandler, body, range_server
from tests.datasets.shards.tar_files import write_shard, write_shards
from utils.errors import MAY_PASS, UserError

_LONG = ("TRAIN.NUM_EPOCHS=5", "REPORT_FREQ=1")
_CACHE = "DATA.CACHE_GB=1"
_WORKER = "DATA.NUM_WORKERS=1"
Check = Callable[[Scene], list[str]]


def tar_faults() -> list[Fault]:
    def without_a_place_for_the_index(scene: Scene) -> list[str]:
        require_mounts()
        root = _data_of(scene)
        (root / INDEX_NAME).unlink()
        return _flags(scene, root, f"DATA.CACHE_DIR={root}")

    def away(running: Running) -> None:
        gone(running)
        time.sleep(20.0)
        running.scene.server.faults = iter(())
        if not running.scene.server.requests:
            raise TimeoutError("the run did not need the server")

    def gone(running: Running) -> None:
        running.wait_for("Epoch[002")
        running.scene.server.fail_always(_hang_up)

    def replaced(running: Running) -> None:
        running.wait_for("Epoch[002")
        for number in range(6):
            new = running.scene.folder / "new.tar"
            write_shard(new, range(500 + 10 * number, 510 + 10 * number))
            os.replace(new, running.scene.server.folder / f"train-{number:04d}.tar")

    def killed(running: Running) -> None:
        running.wait_for("Epoch[002")
        if not list((running.scene.folder / "cache").rglob("*.part")):
            raise TimeoutError("nothing was being downloaded")
        running.send(signal.SIGKILL, *running.ranks(), running.process.pid)

    def once(scene: Scene) -> list[str]:
        whole = Counter(path for method, path, part in scene.server.requests if method == "GET" and not part)
        counts = [whole[f"/train-{number:04d}.tar"] for number in range(6)]
        return [] if set(counts) == {1} else [f"the shards were downloaded {counts} times"]

    def nothing_left(scene: Scene) -> list[str]:
        return [f"is left: {path.name}" for path in (scene.folder / "cache").rglob("*.part")]

    no_place = r"shards/indexes: cannot store .*Read-only file system.*DATA\.CACHE_DIR"
    read_only = in_namespace("mount --bind shards shards && mount -o remount,ro,bind shards")
    lost = r"http://127\.0\.0\.1:\d+/\S+\.tar: .*, after \d+ s of attempts; check the network and the server, then"
    other = r"train-000\d\.tar: has changed since it was indexed; index it again: python scripts/index_shards.py"
    patient = _served(_WORKER, "TIMEOUT_SECONDS=60")
    impatient = _served(_WORKER, "TIMEOUT_SECONDS=6")
    two = _served(_CACHE, flags=("-ngpus=2",))
    two_slow = _served(_CACHE, flags=("-ngpus=2",), answer=_slow_downloads)
    killed_check = _all_of(_resumed(2, _CACHE), nothing_left)
    return [
        Fault(
            "tar: no writable place for the index",
            without_a_place_for_the_index,
            no_place,
            (MAY_PASS,),
            shell=read_only,
        ),
        finished("tar server: away for 20 s", patient, act=away, check=_is_equal()),
        Fault("tar server: goes away", impatient, lost, (MAY_PASS,), act=gone, state="failed", check=_resumed()),
        Fault("tar server: replaced shards", _served(), other, (MAY_PASS,), act=replaced, state="failed"),
        finished("tar cache: two ranks", two, script=MULTI, check=_all_of(_is_equal(2), once, nothing_left)),
        Fault("tar cache: ranks killed in a download", two_slow, None, (137,), MULTI, act=killed, check=killed_check),
    ]


def _flags(scene: Scene, path: object, *options: str, flags: tuple[str, ...] = ()) -> list[str]:
    more = ["-dataset=tar", f"-data_path={path}", "-batch_size=4", f"-output={scene.output}"]
    cache = f"DATA.CACHE_DIR={scene.folder / 'cache'}"
    return [*more, *flags, "-opts", *TINY, "DATA.NUM_WORKERS=0", "DATA.SHUFFLE_SHARDS=2", cache, *options]


def _data_of(scene: Scene) -> Path:
    """Six shards of ten training images, and one of 12 validation images, with an index."""
    root = write_shards(scene.folder / "shards", train=6)
    TarShards(Wanted(Data.model_validate({"DATASET": "tar", "DATA_PATH": str(root)})))
    return root


def _served(*options: str, flags: tuple[str, ...] = (), answer: ServerFault | None = None) -> Provoke:
    """A run on shards of a web server, `scene.server`. `answer` replaces its answer to each request."""

    def provoke(scene: Scene) -> list[str]:
        scene.server = scene.resources.enter_context(range_server(_data_of(scene)))
        if answer:
            scene.server.fail_always(answer)
        return _remote_flags(scene, *options, flags=flags)

    return provoke


def _remote_flags(scene: Scene, *options: str, flags: tuple[str, ...] = ()) -> list[str]:
    pattern = "{train-{0000..0005},val-0000}.tar"
    return _flags(scene, f"{scene.server.url}/{pattern}", *_LONG, *options, flags=flags)


def _hang_up(handler: RangeHandler) -> None:
    handler.close_connection = True


def _slow_downloads(handler: RangeHandler) -> None:
    """Whole shards arrive slowly; the index and ranges of shards at once."""
    is_whole_shard = handler.path.endswith(".tar") and not handler.headers.get("Range")
    body(pause_seconds=10.0 if is_whole_shard else 0.0)(handler)


def _ranks(number: int) -> tuple[str, tuple[str, ...]]:
    return (MULTI, (f"-ngpus={number}",)) if number > 1 else (SINGLE, ())


@functools.cache
def _train_undisturbed(ranks: int) -> dict:
    """The last checkpoint of a run on the shards in a folder."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        scene = Scene(Path(folder), Path(folder))
        script, flags = _ranks(ranks)
        finish(scene, script, _flags(scene, _data_of(scene), *_LONG, flags=flags))
        return states(only_run(scene.output))


def _is_equal(ranks: int = 1) -> Check:
    def check(scene: Scene) -> list[str]:
        try:
            assert_same_state(states(only_run(scene.output)), _train_undisturbed(ranks))
        except AssertionError as error:
            return [f"other weights than of an undisturbed run: {error}"]
        return []

    return check


def _all_of(*checks: Check) -> Check:
    return lambda scene: [problem for check in checks for problem in check(scene)]


def _resumed(ranks: int = 1, *options: str) -> Check:
    """Resumes the run to its end, on a server that answers again."""

    def check(scene: Scene) -> list[str]:
        scene.server.faults = iter(())
        (folder,) = scene.output.iterdir()
        script, flags = _ranks(ranks)
        argv = _remote_flags(scene, *options, flags=(*flags, f"-resume={folder}"))
        try:
            finish(scene, script, argv, "resumed")
        except UserError as error:
            return [str(error)]
        return _is_equal(ranks)(scene)

    return check
