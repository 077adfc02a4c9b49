"""JPEGs that reach the device encoded; here the device is a CPU, which takes the same way but for nvJPEG."""

import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

from configs.command_line import parse_command_line
from datasets.decoding.decode import open_image
from datasets.decoding.device_decode import DEVICE, HOST, DecodeTrial, is_for_device
from datasets.loading.sampler import PADDING
from datasets.registry import read_samples, train_loader, train_sampler
from datasets.transforms.host import TrainTransform
from utils.errors import UserError

PHOTO = Image.fromarray(load_sample_images().images[0])


@pytest.fixture
def folder(tmp_path):
    """Ten JPEGs in two classes, and two images that only the host can decode."""
    for number in range(12):
        path = tmp_path / "train" / str(number % 2) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        kinds = {10: {"format": "PNG"}, 11: {"exif": turned()}}
        PHOTO.crop((10 * number, 0, 10 * number + 300, 225)).save(path, **kinds.get(number, {}))
    return tmp_path


def turned() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def first_batch(folder, cpu, decode: str, *options: str, workers: int = 0):
    argv = [f"-data_path={folder}", "-dataset=folder", "-batch_size=12", f"-num_workers={workers}"]
    fixed = ["MODEL.NUM_CLASSES=2", "DATA.IMAGE_SIZE=64", "MODEL.PATCH_SIZE=16", "DATA.VAL_FRACTION=0.01"]
    config = parse_command_line([*argv, "-opts", *fixed, *options]).config
    (folder / "val").mkdir(exist_ok=True)
    for name in ("0", "1"):
        if not (folder / "val" / name).exists():
            (folder / "val" / name).symlink_to(folder / "train" / name)
    (samples,) = read_samples(config, cpu, "train")
    return next(iter(train_loader(config, samples, train_sampler(config, samples, cpu), cpu, decode=decode)))


@pytest.mark.parametrize("workers", [0, 1])
def test_the_device_decodes_what_the_host_would(folder, cpu, workers):
    host, device = (first_batch(folder, cpu, decode, workers=workers) for decode in (HOST, DEVICE))
    assert torch.equal(host.targets, device.targets) and device.encoded is None
    difference = (host.images.int() - device.images.int()).abs().float().mean((1, 2, 3))
    assert difference.max() <= 0.5 and host.images.float().std((1, 2, 3)).min() > 5
    assert (difference == 0).sum() == 2  # those that the host decoded in both


def test_a_damaged_image_is_named_or_skipped(folder, cpu, monkeypatch):
    def refuse(*_):
        raise RuntimeError("one of them")

    host = first_batch(folder, cpu, HOST)
    monkeypatch.setattr("datasets.loading.loader.decode_crops", refuse)
    assert torch.equal(first_batch(folder, cpu, DEVICE).images, host.images)  # none is: the host decodes all
    path = folder / "train" / "0" / "4.jpg"
    data = path.read_bytes()
    scan = data.index(b"\xff\xda")
    path.write_bytes(data[:scan] + b"\xff\xd9")
    monkeypatch.setattr("datasets.decoding.decode.decode_part", lambda *_: None)
    with pytest.raises(UserError, match=r"4\.jpg: cannot be decoded"):
        first_batch(folder, cpu, DEVICE)
    batch = first_batch(folder, cpu, DEVICE, "DATA.ON_BAD_IMAGE=skip")
    empty = batch.targets == PADDING
    assert empty.sum() == 1 and not batch.images[empty].any()
    assert [image.path for image in batch.bad] == [str(path)]
    assert torch.equal(batch.images[~empty], host.images[~empty])


def test_only_images_whose_colours_are_sure_are_for_the_device(tmp_path):
    kinds = {"plain": {}, "rgb": {"keep_rgb": True}, "progressive": {"progressive": True}}
    for name, options in kinds.items():
        PHOTO.save(tmp_path / name, "JPEG", **options)
    PHOTO.convert("CMYK").save(tmp_path / "cmyk", "JPEG")
    PHOTO.convert("L").save(tmp_path / "grey", "JPEG")
    data = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    data["cut"] = data["plain"][:-3]
    sure = {name for name, content in data.items() if is_for_device(open_image(content, 3, name))}
    assert sure == {"plain", "progressive"}


def test_the_trial_times_both_ways(folder, cpu):
    config = parse_command_line(
        [f"-data_path={folder}", "-dataset=folder", "-opts", "MODEL.NUM_CLASSES=2", "DATA.BATCH_SIZE=2"]
    ).config
    (samples,) = read_samples(config, cpu, "train")
    trial = DecodeTrial(samples, TrainTransform(config.data, config.train, 0))
    assert len(trial.crops.sizes) >= 8 and trial.device_can(cpu.device) and trial.file_bytes() in (2**13, 2**14, 2**15)
    one, four = (trial.seconds(workers, cpu.device) for workers in (1, 4))
    assert all(0 < seconds[way] < 1 for seconds in (one, four) for way in (HOST, DEVICE))
