"""Faults of the data set tar: its path, and shards in a folder with their members, labels and index."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fault_server import SECRET
from faults.processes import SINGLE, finish
from faults.runner import Fault, Provoke, finished
from faults.scene import TINY, Scene, in_namespace, require_mounts, truncated
from tar_files import jpeg, write_shards

from configs.schema import Data
from datasets.shards.data_set import TarShards
from datasets.shards.index import INDEX_NAME


def tar_flags(scene: Scene, path: object, *options: str, flags: tuple[str, ...] = ()) -> list[str]:
    more = ["-dataset=tar", f"-data_path={path}", "-batch_size=4", f"-output={scene.output}"]
    cache = f"DATA.CACHE_DIR={scene.folder / 'cache'}"
    return [*more, *flags, "-opts", *TINY, "DATA.NUM_WORKERS=0", "DATA.SHUFFLE_SHARDS=2", cache, *options]


def data_of(scene: Scene) -> Path:
    """Six shards of ten training images, and one of 12 validation images, with an index."""
    root = write_shards(scene.folder / "shards", train=6)
    TarShards(Data.model_validate({"DATASET": "tar", "DATA_PATH": str(root)}))
    return root


def secret_is_kept(scene: Scene) -> list[str]:
    files = [path for path in scene.folder.rglob("*") if path.is_file()]
    return [f"a secret is in {path.name}" for path in files if SECRET.encode() in path.read_bytes()]


def tar_faults() -> list[Fault]:
    return [*_refused(), *_finished_runs()]


def changed(change: Callable[[Path], Any], *options: str) -> Provoke:
    """A run on shards in a folder that `change` has changed after they were indexed."""

    def provoke(scene: Scene) -> list[str]:
        change(root := data_of(scene))
        return tar_flags(scene, root, *options)

    return provoke


def _with_flipped_bit(root: Path) -> None:
    """Flips a bit of an image, as a failing disk does: the file keeps its time."""
    path = root / "train-0002.tar"
    times, data = path.stat(), bytearray(path.read_bytes())
    data[data.index(jpeg(23)) + 100] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _refused() -> list[Fault]:
    def at(path: str) -> Provoke:
        return lambda scene: tar_flags(scene, path)

    cut_short = changed(lambda root: truncated(root / "train-0001.tar"))
    table: dict[str, tuple[Provoke, str]] = {
        "a password in the URL": (at(f"https://me:{SECRET}@host/d"), r"contains a user or password; remove it"),
        "cut short": (cut_short, r"train-0001\.tar: .*15,360 bytes"),
        "an image with a bit flipped": (changed(_with_flipped_bit), r"train-0002\.tar/000023\.jpg: is damaged"),
        "another SHUFFLE_SHARDS inside an epoch": (_resumed_with_other_windows, r"SHUFFLE_SHARDS 2, .* 3"),
    }
    no_place = r"shards/indexes: cannot store .*Read-only file system.*DATA\.CACHE_DIR"
    read_only = in_namespace("mount --bind shards shards && mount -o remount,ro,bind shards")
    return [
        *(Fault(f"tar: {name}", provoke, line, check=secret_is_kept) for name, (provoke, line) in table.items()),
        Fault("tar: no writable place for the index", _without_a_place_for_the_index, no_place, shell=read_only),
    ]


def _without_a_place_for_the_index(scene: Scene) -> list[str]:
    require_mounts()
    root = data_of(scene)
    (root / INDEX_NAME).unlink()
    return tar_flags(scene, root, f"DATA.CACHE_DIR={root}")


def _resumed_with_other_windows(scene: Scene) -> list[str]:
    root = data_of(scene)
    finish(scene, SINGLE, tar_flags(scene, root, "TRAIN.MAX_STEPS=20"), "first")
    (folder,) = scene.output.iterdir()
    return tar_flags(scene, root, "DATA.SHUFFLE_SHARDS=3", flags=(f"-resume={folder}",))


def _lists_the_image(scene: Scene) -> list[str]:
    lists = [path.read_text() for path in scene.output.glob("*/bad_images_0.csv")]
    return [] if any("train-0002.tar/000023.jpg" in text for text in lists) else ["the image is not listed"]


def _finished_runs() -> list[Fault]:
    skipping = changed(_with_flipped_bit, "DATA.ON_BAD_IMAGE=skip")
    skipped = r"1 of 60 training images"
    return [finished("tar: a flipped bit, with ON_BAD_IMAGE=skip", skipping, prints=skipped, check=_lists_the_image)]
