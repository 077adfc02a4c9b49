"""Faults of the data set tar: its path, and shards in a folder with their members, labels and index."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from faults.processes import SINGLE, finish
from faults.runner import Fault, finished
from faults.scene import TINY, Provoke, Scene, in_namespace, require_mounts, truncated

from configs.schema import Data
from datasets.shards.data_set import TarShards
from datasets.shards.index import INDEX_NAME
from tests.datasets.shards.range_server import SECRET
from tests.datasets.shards.tar_files import jpeg, write_shards


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


def _changed(change: Callable[[Path], Any], *options: str) -> Provoke:
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


def tar_faults() -> list[Fault]:
    def with_password(scene: Scene) -> list[str]:
        return tar_flags(scene, f"https://me:{SECRET}@host/d")

    def without_a_place_for_the_index(scene: Scene) -> list[str]:
        require_mounts()
        root = data_of(scene)
        (root / INDEX_NAME).unlink()
        return tar_flags(scene, root, f"DATA.CACHE_DIR={root}")

    def with_other_windows(scene: Scene) -> list[str]:
        root = data_of(scene)
        finish(scene, SINGLE, tar_flags(scene, root, "TRAIN.MAX_STEPS=20"), "first")
        (folder,) = scene.output.iterdir()
        return tar_flags(scene, root, "DATA.SHUFFLE_SHARDS=3", flags=(f"-resume={folder}",))

    def lists_the_image(scene: Scene) -> list[str]:
        lists = [path.read_text() for path in scene.output.glob("*/bad_images_0.csv")]
        return [] if any("train-0002.tar/000023.jpg" in text for text in lists) else ["the image is not listed"]

    cut_short = _changed(lambda root: truncated(root / "train-0001.tar"))
    no_place = r"shards/indexes: cannot store .*Read-only file system.*DATA\.CACHE_DIR"
    read_only = in_namespace("mount --bind shards shards && mount -o remount,ro,bind shards")
    skipping, skipped = _changed(_with_flipped_bit, "DATA.ON_BAD_IMAGE=skip"), r"1 of 60 training images"
    windows = r"SHUFFLE_SHARDS 2, .* 3"
    refused = [
        Fault("a password in the URL", with_password, r"contains a user or password; remove it"),
        Fault("cut short", cut_short, r"train-0001\.tar: .*15,360 bytes"),
        Fault("an image with a bit flipped", _changed(_with_flipped_bit), r"train-0002\.tar/000023\.jpg: is damaged"),
        Fault("another SHUFFLE_SHARDS inside an epoch", with_other_windows, windows),
        Fault("no writable place for the index", without_a_place_for_the_index, no_place, shell=read_only),
    ]
    return [
        *(replace(fault, name=f"tar: {fault.name}", check=secret_is_kept) for fault in refused),
        finished("tar: a flipped bit, with ON_BAD_IMAGE=skip", skipping, prints=skipped, check=lists_the_image),
    ]
