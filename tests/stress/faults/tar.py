"""Faults of the data set tar: its path, and shards in a folder with their members, labels and index."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fault_server import SECRET
from faults.processes import SINGLE, finish
from faults.runner import Fault, Provoke, finished
from faults.scene import TINY, Scene, flipped, in_namespace, require_mounts, truncated
from tar_files import jpeg, tar_of, with_header, write_shard, write_shards

from configs.schema import Data
from datasets.shards.data_set import TarShards
from datasets.shards.indexing.index import INDEX_NAME


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
    return [*_path_faults(), *_shard_faults(), *_finished_runs()]


def _path_faults() -> list[Fault]:
    def on(path: str) -> Provoke:
        return lambda scene: tar_flags(scene, path)

    def on_empty(scene: Scene) -> list[str]:
        return tar_flags(scene, scene.write("shards/readme.txt", "").parent)

    table: dict[str, tuple[Provoke, str]] = {
        "no such folder": (on("nowhere"), r"nowhere: .*; check"),
        "a folder without shards": (on_empty, r"shards: has no shard \(\*\.tar\); check it"),
        "a shell command": (on("pipe:touch exploded"), r"'pipe:' is a shell command, and is not run; use a folder"),
        "a password in the URL": (on(f"https://me:{SECRET}@host/d"), r"contains a user or password; remove it"),
        "a query in the URL": (on(f"https://host/d/0.tar?sig={SECRET}"), r"contains '\?' .*without a query"),
        "a URL of FTP": (on("ftp://host/d"), r"URLs of 'ftp' are not supported; use http"),
        "a compressed archive": (on("train.tar.gz"), r"train\.tar\.gz'?: a compressed archive .*; decompress it"),
        "a pattern with an open brace": (on("/d/train-{0000..0003.tar"), r"braces of the pattern .* are not balanced"),
        "a pattern of 10^9 names": (on("/d/{0..999999999}.tar"), r"has more than 1,000,000 names; shorten it"),
    }
    return [Fault(f"tar: {name}", provoke, line, check=secret_is_kept) for name, (provoke, line) in table.items()]


def changed(change: Callable[[Path], Any], *options: str) -> Provoke:
    """A run on shards in a folder that `change` has changed after they were indexed."""

    def provoke(scene: Scene) -> list[str]:
        change(root := data_of(scene))
        return tar_flags(scene, root, *options)

    return provoke


def with_shard(archive: bytes, name: str = "train-0006.tar") -> Provoke:
    return changed(lambda root: (root / name).write_bytes(archive))


def _with_flipped_bit(root: Path) -> None:
    """Flips a bit of an image, as a failing disk does: the file keeps its time."""
    path = root / "train-0002.tar"
    times, data = path.stat(), bytearray(path.read_bytes())
    data[data.index(jpeg(23)) + 100] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _shard_faults() -> list[Fault]:
    plain = tar_of({"a.jpg": jpeg(0), "a.cls": b"0"})
    link = with_header(plain, 0, type=b"2", linkname=b"/etc/passwd")
    foreign = '{"splits": {"train": {"filenames": ["../../etc/train-0.tar"]}}}'
    foreign_name = changed(lambda root: (root / "_info.json").write_text(foreign))
    table: dict[str, tuple[Provoke, str]] = {
        "a shard without a split in its name": (with_shard(plain, "00000.tar"), r"00000\.tar: has no 'train', 'val'"),
        "no labels": (with_shard(tar_of({"a.jpg": jpeg(0)})), r"train-0006\.tar/a\.jpg: has no label"),
        "mixed labels": (with_shard(tar_of({"a.jpg": jpeg(0), "a.json": b'{"label": "cat"}'})), r"0006\.tar"),
        "a label too high": (with_shard(tar_of({"a.jpg": jpeg(0), "a.cls": b"12"})), r"12.*NUM_CLASSES is 10"),
        "an image with a bit flipped": (changed(_with_flipped_bit), r"train-0002\.tar/000023\.jpg: is damaged"),
        "cut short": (changed(lambda root: truncated(root / "train-0001.tar")), r"train-0001\.tar: .*15,360 bytes"),
        "a shard that is no tar": (with_shard(b"hello" * 1000), r"train-0006\.tar: is not a tar archive; copy or"),
        "a path outside": (with_shard(tar_of({"../../etc/passwd": b"x"})), r"'\.\./\.\./etc/passwd' is not"),
        "a link": (with_shard(link), r"train-0006\.tar: member 'a\.jpg' is a link; write the file itself"),
        "a sparse file": (with_shard(with_header(plain, 0, type=b"S")), r"member 'a\.jpg' is a sparse file; write"),
        "a name outside the folder in _info.json": (foreign_name, r"_info\.json: .*'\.\./\.\./etc/train-0\.tar'"),
    }
    no_place = r"shards/indexes: cannot store .*Read-only file system.*DATA\.CACHE_DIR"
    read_only = in_namespace("mount --bind shards shards && mount -o remount,ro,bind shards")
    return [
        *(Fault(f"tar: {name}", provoke, line) for name, (provoke, line) in table.items()),
        Fault("tar: no writable place for the index", _without_a_place_for_the_index, no_place, shell=read_only),
        Fault("tar: another SHUFFLE_SHARDS inside an epoch", _resumed_with_other_windows, r"SHUFFLE_SHARDS 2, .* 3"),
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
    flipped_index = changed(lambda root: flipped(root / INDEX_NAME))
    replaced = changed(lambda root: write_shard(root / "train-0001.tar", range(90, 95)))
    skipped, rebuilt = r"1 of 60 training images", r"Warning: .*index\.safetensors: is damaged"
    return [
        finished("tar: a flipped bit, with ON_BAD_IMAGE=skip", skipping, prints=skipped, check=_lists_the_image),
        finished("tar: an index with a bit flipped", flipped_index, prints=rebuilt),
        finished("tar: a shard that was replaced since it was indexed", replaced),
    ]
