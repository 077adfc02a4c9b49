"""The order of samples and their augmentation: functions of seed, epoch and index, on any ranks and workers."""

import random
from collections import Counter

import pytest
import torch
from conftest import assert_same_state
from timm.data.random_erasing import RandomErasing
from torchvision.transforms import v2

from configs.command_line import parse_command_line
from configs.schema import Data, Train
from datasets.decoding.decode import Picture
from datasets.loading.sampler import PADDING, EvalSampler, TrainSampler, epoch_order
from datasets.registry import eval_loader, read_samples, train_loader, train_sampler
from datasets.transforms.device import DeviceTransform
from datasets.transforms.host import Augmentation, TrainTransform, random_erase_box
from datasets.transforms.mixup import build_mixup
from utils.errors import UserError

GREY = {"IMAGE_CHANNELS": 1, "IMAGENET_MEAN": [0.0], "IMAGENET_STD": [1.0]}


def test_an_epoch_goes_through_a_permutation_and_the_next_through_another():
    order = epoch_order(100, seed=0, epoch=0)
    assert sorted(order.tolist()) == list(range(100))
    assert torch.equal(order, epoch_order(100, seed=0, epoch=0))
    assert not torch.equal(order, epoch_order(100, seed=0, epoch=1))
    assert not torch.equal(order, epoch_order(100, seed=1, epoch=0))


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_ranks_together_see_the_same_batches(world_size):
    one = TrainSampler(100, 12, num_epochs=3, seed=7)
    ranks = [TrainSampler(100, 12 // world_size, 3, 7, rank, world_size) for rank in range(world_size)]
    for whole, *parts in zip(one, *ranks, strict=True):
        assert sorted(whole) == sorted(key for part in parts for key in part)


@pytest.mark.parametrize("first_batch", [0, 1, 7, 8, 9, 23, 24])
def test_sampler_starts_anywhere(first_batch):
    whole = list(TrainSampler(100, 12, 3, 7))
    assert len(whole) == 24
    rest = TrainSampler(100, 12, 3, 7, first_batch=first_batch)
    assert list(rest) == whole[first_batch:] and len(rest) == 24 - first_batch


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("num_samples", [1, 7, 8, 24, 25])
def test_evaluation_sees_each_sample_once_in_equally_many_batches(num_samples, world_size):
    samplers = [EvalSampler(num_samples, 4, rank, world_size) for rank in range(world_size)]
    batches = [list(sampler) for sampler in samplers]
    assert len({len(part) for part in batches}) == 1 == len({len(batch) for part in batches for batch in part})
    seen = Counter(index for part in batches for batch in part for _, index in batch)
    seen.pop(PADDING, None)
    assert seen == Counter(range(num_samples))


def config_for(*options: str):
    grey = ["DATA.IMAGE_CHANNELS=1", "DATA.IMAGENET_MEAN=[0.5]", "DATA.IMAGENET_STD=[0.5]", "MODEL.NUM_CLASSES=10"]
    return parse_command_line(["-dataset=digits", "-image_size=16", "-batch_size=50", "-opts", *grey, *options]).config


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_do_not_change_a_batch(cpu, workers):
    def batches(count: int) -> list:
        config = config_for(
            f"DATA.NUM_WORKERS={count}",
            "TRAIN.NUM_EPOCHS=1",
            "TRAIN.WARMUP_EPOCHS=0",
            "DATA.AFFINE_DEGREES=9",
            "TRAIN.RANDOM_ERASE_PROB=0.5",
        )
        (samples,) = read_samples(config, cpu, "train")
        return list(train_loader(config, samples, train_sampler(config, samples, cpu), cpu))

    alone, shared = batches(0), batches(workers)
    assert len(alone) == len(shared) == 1437 // 50
    for one, other in zip(alone, shared, strict=True):
        assert_same_state((*one[:2], *one.augmentation), (*other[:2], *other.augmentation))


def test_evaluation_batches_are_padded(cpu):
    config = config_for()
    batches = list(eval_loader(config, *read_samples(config, cpu, "val"), cpu))
    targets = torch.cat([batch.targets for batch in batches])
    assert [len(batch.images) for batch in batches] == [50] * 8
    assert (targets >= 0).sum() == 360 and (targets[360:] == PADDING).all()


def test_too_few_samples_and_too_few_classes(cpu):
    with pytest.raises(UserError, match="1437 training samples do not fill one batch of 1438"):
        read_samples(config_for("DATA.BATCH_SIZE=1438"), cpu, "train")
    with pytest.raises(UserError, match=r"labels up to 9, but MODEL.NUM_CLASSES is 9; set it to 10 or more"):
        read_samples(config_for("MODEL.NUM_CLASSES=9"), cpu, "train")


def test_unknown_data_set_names_its_neighbour(cpu):
    with pytest.raises(UserError, match=r"unknown data set cifar1; did you mean cifar10"):
        read_samples(parse_command_line(["-dataset=cifar1"]).config, cpu, "train")


def test_an_unreadable_image_is_one_line_from_a_worker_too(tmp_path, cpu):
    (tmp_path / "x.jpg").write_bytes(b"\xff\xd8 no picture")
    for split in ("train", "val"):
        (tmp_path / f"{split}_list.txt").write_text("x.jpg 0\n" * 2)
    for workers in (0, 1):
        config = parse_command_line([f"-data_path={tmp_path}", "-batch_size=2", f"-num_workers={workers}"]).config
        with pytest.raises(UserError, match=r"x\.jpg: [^\n]*$"):
            next(iter(eval_loader(config, *read_samples(config, cpu, "val"), cpu)))


def test_crop_is_a_function_of_seed_epoch_and_index():
    image = torch.randint(0, 256, (3, 40, 50), dtype=torch.uint8)
    options = Data.model_validate({"IMAGE_SIZE": 16})

    def crop(seed: int, epoch: int, index: int) -> torch.Tensor:
        transform = TrainTransform(options, Train(), seed)
        random.random()
        torch.rand(3)
        return transform.crop(Picture(image), transform.generator(epoch, index))

    assert torch.equal(crop(0, 1, 2), crop(0, 1, 2))
    for other in ((1, 1, 2), (0, 2, 2), (0, 1, 3)):
        assert not torch.equal(crop(0, 1, 2), crop(*other))


def test_flip_probability():
    image = torch.arange(9, dtype=torch.uint8).view(1, 3, 3)
    whole = {"IMAGE_SIZE": 3, "RANDOM_CROP_SCALE": [1, 1], "RANDOM_CROP_RATIO": [1, 1]}
    for probability in (0.0, 0.3, 1.0):
        transform = TrainTransform(Data.model_validate(whole | {"HFLIP_PROB": probability}), Train(), seed=0)
        crops = [transform.crop(Picture(image), transform.generator(0, index)) for index in range(2000)]
        flipped = sum(torch.equal(crop, image.flip(-1)) for crop in crops)
        assert flipped + sum(torch.equal(crop, image) for crop in crops) == 2000
        assert flipped / 2000 == pytest.approx(probability, abs=0.04)


def test_normalization_equals_torchvisions():
    options = Data.model_validate({"IMAGENET_MEAN": [0.4, 0.5, 0.6], "IMAGENET_STD": [0.2, 0.3, 0.4]})
    images = torch.randint(0, 256, (2, 3, 5, 5), dtype=torch.uint8)
    expected = v2.functional.normalize(images / 255, [0.4, 0.5, 0.6], [0.2, 0.3, 0.4])
    assert torch.allclose(DeviceTransform(options, Train())(images), expected, atol=1e-5)


@pytest.mark.parametrize(("degrees", "shift", "zoom"), [(30, 0, 1.0), (0, 0.25, 1.0), (0, 0, 1.5), (20, 0.1, 0.8)])
def test_affine_map_equals_torchvisions(degrees, shift, zoom):
    """One drawn map, against torchvision's affine with the same angle, shift and zoom."""

    class Fixed(random.Random):
        def uniform(self, low: float, high: float) -> float:
            return high

    options = {"AFFINE_DEGREES": degrees, "AFFINE_TRANSLATE": shift, "AFFINE_SCALE": [min(zoom, 1.0) / 2, zoom]}
    matrix = torch.tensor([TrainTransform(Data.model_validate(options), Train(), 0).affine(Fixed())])
    images = torch.nn.functional.avg_pool2d(torch.rand(1, 1, 48, 48), 9, 1, 4).mul(255).to(torch.uint8)
    augmentation = Augmentation(matrix)
    ours = DeviceTransform(Data.model_validate(GREY), Train())(images, augmentation) * 255
    # Ours shifts in the old picture's frame before turning, torchvision's after: undo it for the comparison.
    cos, sin = matrix[0, 0, 0] * zoom, matrix[0, 1, 0] * zoom
    right, down = -shift * 48 * zoom, -shift * 48 * zoom
    moved = [float(right * cos + down * sin), float(-right * sin + down * cos)]
    theirs = v2.functional.affine(
        images.float(), -degrees, moved, zoom, [0.0], interpolation=v2.InterpolationMode.BILINEAR
    )
    assert (ours - theirs)[..., 8:-8, 8:-8].abs().max() < 1.0


def test_erased_boxes_are_distributed_as_timms():
    size, count, draws = 64, 2, 4000
    areas = [box[2] * box[3] / size**2 for box in erase_boxes(size, count, draws)]
    theirs = RandomErasing(probability=1, min_count=count, device="cpu")
    erased = torch.zeros(())
    random.seed(0)
    for _ in range(500):
        erased += (theirs(torch.ones(1, size, size)) == 0).float().mean() / 500
    assert min(areas) > 0.01 * 0.8 and max(areas) < 1 / 6 * 1.1
    assert sum(areas) / draws == pytest.approx((0.02 + 1 / 3) / 2 / count, rel=0.05)
    union = torch.zeros(500, size, size, dtype=torch.bool)
    for number, (top, left, height, width) in enumerate(erase_boxes(size, count, 1000)):
        union[number // 2, top : top + height, left : left + width] = True
    assert union.float().mean() == pytest.approx(float(erased), rel=0.08)


def erase_boxes(size: int, count: int, draws: int) -> list:
    rng = random.Random(0)
    boxes = [random_erase_box(size, count, rng) for _ in range(draws)]
    assert all(0 <= top <= size - height and 0 <= left <= size - width for top, left, height, width in boxes)
    return boxes


@pytest.mark.parametrize("mode", ["const", "rand", "pixel"])
def test_erasing_fills_the_drawn_boxes_and_nothing_else(mode):
    options = Data.model_validate({"IMAGE_SIZE": 16, "HFLIP_PROB": 0.0})
    train = Train.model_validate({"RANDOM_ERASE_PROB": 0.5, "RANDOM_ERASE_MODE": mode, "RANDOM_ERASE_COUNT": 2})
    transform = TrainTransform(options, train, seed=0)
    drawn = transform.draw([transform.generator(0, index) for index in range(40)])
    images = torch.randint(0, 256, (40, 3, 16, 16), dtype=torch.uint8)
    plain, erased = DeviceTransform(options, train)(images), DeviceTransform(options, train)(images, drawn)
    inside = torch.zeros(40, 16, 16, dtype=torch.bool)
    for place, boxes in zip(drawn.erased, drawn.boxes, strict=True):
        for top, left, height, width in boxes:
            inside[place, top : top + height, left : left + width] = True
    assert 10 < len(drawn.erased) < 30 and inside.any()
    assert torch.equal(erased.permute(0, 2, 3, 1)[~inside], plain.permute(0, 2, 3, 1)[~inside])
    fill = erased.permute(0, 2, 3, 1)[inside]  # (N, C)
    colours = len(fill.unique(dim=0))
    assert {
        "const": colours == 1 and not fill.any(),
        "rand": colours == len(drawn.erased),
        "pixel": colours == len(fill),
    }[mode]
    assert mode == "const" or abs(fill.mean()) < 0.3


def test_no_erasing_for_an_empty_place():
    train = Train.model_validate({"RANDOM_ERASE_PROB": 1.0})
    transform = TrainTransform(Data.model_validate({"IMAGE_SIZE": 16}), train, seed=0)
    drawn = transform.draw([None, transform.generator(0, 1), None])
    assert drawn.erased.tolist() == [1] and drawn.boxes.shape == (1, 1, 4)
    assert transform.draw([None]).boxes is None


@pytest.mark.parametrize(
    ("options", "mixes"),
    [
        ({}, 0.0),
        ({"MIXUP_ALPHA": 0.8}, 1.0),
        ({"CUTMIX_ALPHA": 1.0}, 1.0),
        ({"MIXUP_ALPHA": 0.8, "CUTMIX_ALPHA": 1.0, "MIXUP_PROB": 0.5}, 0.5),
    ],
)
def test_mixup_probabilities(options, mixes):
    mixup = build_mixup(Train.model_validate(options), num_classes=4)
    images, targets = torch.rand(5, 3, 8, 8), torch.tensor([0, 1, 2, 3, 0])
    torch.manual_seed(0)
    mixed = 0
    for _ in range(400):
        new_images, new_targets = mixup(images, targets)
        if new_targets.ndim == 2:
            mixed += 1
            assert torch.allclose(new_targets.sum(1), torch.ones(5))
        else:
            assert new_images is images and torch.equal(new_targets, targets)
    assert mixed / 400 == pytest.approx(mixes, abs=0.08)
