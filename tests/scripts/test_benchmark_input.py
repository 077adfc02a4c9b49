"""benchmark_input.py: images, equal transforms, and small runs. No test here asserts a time."""

from pathlib import Path

import pytest
from conftest import samples_for

from configs.command_line import parse_command_line
from datasets.loading.loader import BatchReader
from datasets.transforms.device import Normalize
from datasets.transforms.host import build_host_transform
from scripts.benchmarks import benchmark_input
from scripts.benchmarks.benchmark_train import link_images, make_images


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(benchmark_input, "make_images", small_images)
    monkeypatch.setattr(benchmark_input, "EPOCH", 48)


def small_images(folder: Path, count: int = 16) -> Path:
    return make_images(folder, (64, 48), count, noise=0.0)


def linked(folder: Path, entries: int, count: int = 16) -> list[str]:
    """Links to images; the flags of a run on them."""
    link_images(small_images(folder / "images", count), folder / "data", entries)
    data = ["-dataset=folder", f"-data_path={folder / 'data'}", "-batch_size=8", "-num_workers=0"]
    return [*data, "-image_size=32", "-opts", "MODEL.PATCH_SIZE=16"]


def test_all_contenders_apply_the_same_transform(tmp_path, cpu, monkeypatch):
    """Crops of the whole image that are always flipped have only one result."""
    whole = ["DATA.RANDOM_CROP_SCALE=[1.0, 1.0]", "DATA.RANDOM_CROP_RATIO=[1.3333333, 1.3333334]"]
    argv = linked(tmp_path, 8, count=8)
    config = parse_command_line([*argv, *whole, "DATA.HFLIP_PROB=1.0"]).config
    data, loaded = config.data, []

    def create_loader(*arguments, **options):
        loader = original(*arguments, **options)
        return (loaded.append(batch) or batch for batch in loader)

    original = benchmark_input.timm.data.create_loader
    monkeypatch.setattr(benchmark_input.timm.data, "create_loader", create_loader)
    next(benchmark_input.timm_batches(data, cpu.device))
    (timm_images, timm_targets), (samples,) = loaded[0], samples_for(config, cpu, "train")
    reader = BatchReader(samples, data, build_host_transform(data, config.train, config.seed))
    batch = reader.__getitems__([(0, index, 0) for index in range(8)])
    ours = Normalize(data)(batch.images)
    for index, image in enumerate(ours):
        (timms,) = timm_images[timm_targets == batch.targets[index]]
        assert (image - timms).abs().mean() < 0.5 / 127.5
