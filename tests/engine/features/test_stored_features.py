"""The features of a data set are found again, and computed again after any of its images was replaced."""

import io
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import CPU, TINY_VIT, samples_for
from PIL import Image

from configs.command_line import parse_command_line
from engine.evaluation.session import build_eval_model
from engine.features.store import FeatureFile, extract
from models.blocks import FeatureModel
from tests.datasets.shards.tar_files import tar_of

Contents = list[bytes]


@pytest.fixture
def contents() -> Contents:
    """100 BMP files of equal size."""
    return [bmp(number) for number in range(100)]


def bmp(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(256, size=(8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer := io.BytesIO(), "BMP")
    return buffer.getvalue()


def replace(path: Path, content: bytes) -> None:
    """Writes a file; an earlier one is replaced in place by one of its size and, but for shards, its modification time.

    An index of shards knows them by this time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.stat() if path.exists() else None
    if before and path.read_bytes() == content:
        return
    path.write_bytes(content)
    if before and path.suffix != ".tar":
        assert path.stat().st_size == before.st_size
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def write_folder(root: Path, contents: Contents) -> Path:
    for number, content in enumerate(contents):
        replace(root / f"class{number % 2}" / f"{number}.bmp", content)
    return root


def write_table(root: Path, contents: Contents) -> Path:
    for number, content in enumerate(contents):
        replace(root / f"images/{number}.bmp", content)
    replace(root / "all.csv", "\n".join(["path,label", *(f"images/{n}.bmp,{n % 2}" for n in range(100))]).encode())
    return root / "all.csv"


def write_parquet(root: Path, contents: Contents) -> Path:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table({"image": contents, "label": [number % 2 for number in range(100)]})
    pq.write_table(table, buffer := io.BytesIO(), compression="none", write_statistics=False, use_dictionary=False)
    replace(root / "all.parquet", buffer.getvalue())
    return root / "all.parquet"


def write_tar(root: Path, contents: Contents) -> Path:
    pytest.importorskip("obstore")
    members = [((f"{n}.bmp", one), (f"{n}.cls", str(n % 2).encode())) for n, one in enumerate(contents)]
    for split in ("train", "val"):
        replace(root / f"{split}-0000.tar", tar_of([member for sample in members for member in sample]))
    return root


def features(output: Path, dataset: str, path: Path) -> np.ndarray:
    """The features of all images, in `output`, with a model that is always the same."""
    flags = [f"-dataset={dataset}", f"-data_path={path}", "-num_workers=0", "-batch_size_eval=50"]
    config = parse_command_line([*flags, "-opts", *TINY_VIT, "MODEL.NUM_CLASSES=2"]).config
    (samples,) = samples_for(config, CPU, "train" if dataset == "tar" else "all")
    torch.manual_seed(0)
    built = build_eval_model(config, CPU)
    model = FeatureModel(built.compute, config.model.name)
    file = extract(config, samples, built.evaluator, model, lambda digest: output / digest / "features.npy")
    assert file
    return np.array(file.values)


@pytest.mark.parametrize(
    ("dataset", "write"),
    [("folder", write_folder), ("csv", write_table), ("parquet", write_parquet), ("tar", write_tar)],
)
def test_features_follow_their_images(
    dataset: str, write: Callable[[Path, Contents], Path], contents, tmp_path, monkeypatch
):
    path, kept = write(tmp_path / "data", contents), tmp_path / "kept"
    before = features(kept, dataset, path)
    contents[42] = bmp(1000)
    write(tmp_path / "data", contents)
    after, fresh = (
        features(kept, dataset, path),
        features(tmp_path / "fresh", dataset, write(tmp_path / "new", contents)),
    )
    assert np.array_equal(after, fresh) and (after != before).any(axis=1).sum() == 1
    monkeypatch.setattr(FeatureFile, "append", lambda *_: pytest.fail("computes features again"))
    assert np.array_equal(features(kept, dataset, path), after)
