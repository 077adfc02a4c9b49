"""Faults of web servers with tar shards: they refuse, go away, or change the shards."""

import os
import time

from fault_server import FaultHandler, FaultServer, body
from faults.processes import Running
from faults.runner import Fault, finished
from faults.scene import Scene
from faults.tar import secret_is_kept, tar_flags
from faults.tar_served import CACHE, PATTERN, SHORT_TIMEOUT, is_equal, resumed, served
from tar_files import write_shard


def server_faults() -> list[Fault]:
    return [*_refusing_servers(), *_absent_servers()]


def hang_up(handler: FaultHandler) -> None:
    handler.close_connection = True


def _refusing_servers() -> list[Fault]:
    def unknown(scene: Scene) -> list[str]:
        return tar_flags(scene, f"http://no-such-host.invalid/d/{PATTERN}", SHORT_TIMEOUT)

    whole = served(CACHE, answer=body(ranges=False))
    line = r"invalid/d/\S+\.tar: the host .*, after \d+ s of attempts; check the"
    return [
        Fault("tar server: an unknown host", unknown, line, waits=True, check=secret_is_kept),
        finished("tar server: whole files only, with a cache", whole, check=is_equal()),
    ]


def _absent_servers() -> list[Fault]:
    def away(running: Running) -> None:
        running.wait_for("Epoch[002")
        server: FaultServer = running.scene.server
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

    with_worker = "DATA.NUM_WORKERS=1"
    lost = r"http://127\.0\.0\.1:\d+/\S+\.tar: .*, after \d+ s of attempts; check the network and the server, then"
    other = r"train-000\d\.tar: has changed since it was indexed; index it again: python scripts/index_shards.py"
    long_timeout, short_timeout = served(with_worker, "TIMEOUT_SECONDS=60"), served(with_worker, SHORT_TIMEOUT)
    return [
        finished("tar server: away for 20 s", long_timeout, act=away, check=is_equal(), waits=True),
        Fault("tar server: goes away", short_timeout, lost, act=gone, state="failed", check=resumed(), waits=True),
        Fault("tar server: shards are replaced during the run", served(), other, act=replaced, state="failed"),
    ]
