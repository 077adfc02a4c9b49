"""The features of a data set are found again, and computed again after a change of their inputs or damage."""

import io
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from conftest import CPU, GREY, TINY_VIT, cli, config_for, each_value, read_result, samples_for, train
from numpy.random import default_rng
from PIL import Image
from pytest import approx, fail, fixture, importorskip, mark

from engine.checkpoint import run_folder
from engine.evaluation.evaluate import AfterBatch
from engine.evaluation.session import build_eval_model
from engine.features import store
from engine.features.store import digest_inputs
from models.blocks import FeatureModel
from tests.datasets.shards.tar_files import tar_of

Contents = list[bytes]


@fixture
def contents() -> Contents:
    """100 BMP files of equal size."""
    return [bmp(number) for number in range(100)]


def bmp(seed: int) -> bytes:
    pixels = default_rng(seed).integers(256, size=(8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer := io.BytesIO(), "BMP")
    return buffer.getvalue()


def replace(path: Path, content: bytes):
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


def write_parquet(root: Path, contents: Contents) -> Path:
    pa = importorskip("pyarrow")
    pq = importorskip("pyarrow.parquet")
    table = pa.table({"image": contents, "label": [number % 2 for number in range(100)]})
    pq.write_table(table, buffer := io.BytesIO(), compression="none", write_statistics=False, use_dictionary=False)
    replace(root / "all.parquet", buffer.getvalue())
    return root / "all.parquet"


def write_tar(root: Path, contents: Contents) -> Path:
    importorskip("obstore")
    members = [((f"{n}.bmp", one), (f"{n}.cls", str(n % 2).encode())) for n, one in enumerate(contents)]
    for split in ("train", "val"):
        replace(root / f"{split}-0000.tar", tar_of([member for sample in members for member in sample]))
    return root


def features(output: Path, dataset: str, path: Path, after_batch: AfterBatch = lambda *_: None) -> np.ndarray:
    """The features of all images, kept in `output`, of a model that is always the same."""
    flags = cli(f"-dataset={dataset} -data_path={path} -num_workers=0 -batch_size_eval=50")
    config = config_for(*flags, "-opts", *TINY_VIT, "MODEL.NUM_CLASSES=2")
    (samples,) = samples_for(config, CPU, "train" if dataset == "tar" else "all")
    torch.manual_seed(0)
    built = build_eval_model(config, CPU)
    model = FeatureModel(built.compute, config.model.name)
    config = config.model_copy(update={"save": str(output)})
    found = store.Extraction(config, samples, built.evaluator, model, after_batch=after_batch).once("all")
    assert found
    return np.array(found.values)


@mark.parametrize("dataset, write", [("folder", write_folder), ("parquet", write_parquet), ("tar", write_tar)])
def test_features_follow_their_images(dataset, write, contents, tmp_path, monkeypatch):
    path = write(tmp_path / "data", contents)
    kept = tmp_path / "kept"
    before = features(kept, dataset, path)
    contents[42] = bmp(1000)
    write(tmp_path / "data", contents)
    after = features(kept, dataset, path)
    fresh = features(tmp_path / "fresh", dataset, write(tmp_path / "new", contents))
    assert after == approx(fresh, abs=1e-5)
    assert (abs(after - before) > 1e-3).any(axis=1).sum() == 1
    if dataset == "folder":  # the others are not computed again
        assert (after != before).any(axis=1).sum() == 1
    monkeypatch.setattr(store.Extraction, "to_file", lambda *_: fail("computes features again"))
    assert np.array_equal(features(kept, dataset, path), after)


def test_runs_compute_the_same_features_at_the_same_time(contents, tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "_LOCK_SECONDS", 0)
    path = write_folder(tmp_path / "data", contents)
    inner = []

    def run_another(*_):
        if not inner:
            inner.append(None)
            inner.append(features(tmp_path, "folder", path))

    outer = features(tmp_path, "folder", path, run_another)
    assert np.array_equal(outer, inner[1])


@mark.parametrize(
    "name, damage",
    [
        ("features.npy", lambda content: content[:-1] + bytes([content[-1] ^ 1])),
        ("features.npy", lambda content: content.replace(b"(100,", b"(10, ")),
        ("features.npy.json", lambda content: b"{"),
    ],
)
def test_damaged_features_are_computed_again(contents, tmp_path, name, damage):
    path = write_folder(tmp_path / "data", contents)
    expected = features(tmp_path, "folder", path)
    (file,) = tmp_path.glob("features/*/all-*/features.npy")
    content = file.read_bytes()
    damaged = file.with_name(name)
    damaged.write_bytes(damage(damaged.read_bytes()))
    assert np.array_equal(features(tmp_path, "folder", path), expected)
    assert file.read_bytes() == content


SHARED = """
option | is_same
MODEL.TUNE=lora | true
TRAIN.BASE_LR=1 | true
DATA.BATCH_SIZE_EVAL=7 | true
DATA.SPLIT_SEED=1 | true
EVAL.BEST_METRIC=auroc | true
DATA.ON_BAD_IMAGE=skip | false
DATA.CROP_PCT=0.5 | false
EVAL.TTA=flip | false
"""


@each_value(SHARED)
def test_features_of_equal_inputs_are_shared(option, is_same):
    """Training keys have no effect on stored features; a key that changes them, or errors, does."""
    digests = set()
    for more in ([], [option]):
        config = config_for("-dataset=digits", "-opts", *TINY_VIT, *GREY, *more)
        digests.add(digest_inputs(config, [torch.ones(2)], "cpu"))
    assert (len(digests) == 1) == is_same


def test_features_of_another_decoder_are_not_reused(monkeypatch):
    config = config_for("-dataset=digits", "-opts", *TINY_VIT, *GREY)
    digests = set()
    for version in ("12.0", "13.0", "13.0"):
        packages = {"pillow": [SimpleNamespace(version=version)]}
        monkeypatch.setattr(store, "distributions", lambda name, packages=packages: packages.get(name, []))
        digests.add(digest_inputs(config, [torch.ones(2)], "cpu"))
    assert len(digests) == 2


def test_probes_of_all_folds_pass_each_image_once(tmp_path, monkeypatch, few_penalties):
    """Test images, too; a fold alone has the same figures."""
    for split, number in (("train", 60), ("test", 20)):
        write_folder(tmp_path / "data" / split, [bmp(seed) for seed in range(number)])
    passed = 0
    forward = FeatureModel.forward

    def count(model, images):
        nonlocal passed
        passed += int((images.flatten(1).std(1) > 0).sum())  # without padding
        return forward(model, images)

    monkeypatch.setattr(FeatureModel, "forward", count)
    flags = cli(f"-dataset=folder -data_path={tmp_path / 'data'} -num_workers=0 -batch_size_eval=7 -opts")
    keys = [*TINY_VIT, "MODEL.NUM_CLASSES=2", "MODEL.TUNE=probe", "DATA.FOLDS=2"]
    for fold in range(2):
        folder = train([f"-output={tmp_path / 'out'}", *flags, *keys, f"DATA.FOLD={fold}", f"NAME=f{fold}"])
    assert passed == 80
    last = read_result(folder)
    alone = read_result(train([f"-output={tmp_path / 'alone'}", *flags, *keys, "DATA.FOLD=1"]))
    assert alone["loss"] == approx(last["loss"], rel=1e-4)
    assert alone["test"]["samples"] == 20
    assert alone["test"]["loss"] == approx(last["test"]["loss"], rel=1e-4)
