"""benchmark_input.py: its contenders do the same work."""

from conftest import samples_for

from configs.command_line import parse_command_line
from datasets.loading.loader import BatchReader
from datasets.transforms.device import Normalize
from datasets.transforms.host import build_host_transform
from scripts.benchmarks import benchmark_input
from scripts.benchmarks.benchmark_train import link_images, make_images


def test_all_contenders_apply_the_same_transform(tmp_path, cpu, monkeypatch):
    """Crops of the whole image that are always flipped have only one result."""
    link_images(make_images(tmp_path / "images", (64, 48), 8, noise=0.0), tmp_path / "data", 8)
    flags = ["-dataset=folder", f"-data_path={tmp_path / 'data'}", "-batch_size=8", "-num_workers=0", "-image_size=32"]
    whole = ["DATA.RANDOM_CROP_SCALE=[1.0, 1.0]", "DATA.RANDOM_CROP_RATIO=[1.3333333, 1.3333334]"]
    config = parse_command_line([*flags, "-opts", "MODEL.PATCH_SIZE=16", *whole, "DATA.HFLIP_PROB=1.0"]).config
    data, loaded = config.data, []
    original = benchmark_input.timm.data.create_loader

    def create_loader(*arguments, **options):
        return (loaded.append(batch) or batch for batch in original(*arguments, **options))

    monkeypatch.setattr(benchmark_input.timm.data, "create_loader", create_loader)
    next(benchmark_input.timm_batches(data, cpu.device))
    (timm_images, timm_targets), (samples,) = loaded[0], samples_for(config, cpu, "train")
    reader = BatchReader(samples, data, build_host_transform(data, config.train, config.seed))
    batch = reader.__getitems__([(0, index, 0) for index in range(8)])
    for index, image in enumerate(Normalize(data)(batch.images)):
        (timms,) = timm_images[timm_targets == batch.targets[index]]
        assert (image - timms).abs().mean() < 0.5 / 127.5
