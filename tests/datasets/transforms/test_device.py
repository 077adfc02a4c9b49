"""Device transforms, mixup and CutMix among them, compared with torchvision and timm for the same parameters."""

import itertools
import math
import random
from types import SimpleNamespace

import numpy as np
import timm.data.mixup as timm_mixup
import torch
from conftest import each_value, seeded
from pytest import approx
from scipy import stats
from timm.data.random_erasing import RandomErasing
from torch import Tensor
from torchvision.transforms import v2

from configs.schema import Data, Train
from datasets.batch import Batch
from datasets.sources.samples import UNKNOWN
from datasets.transforms.device import Mixup, Normalize, RandomAffine, RandomErase, TrainTransform

GREY = {"IMAGE_CHANNELS": 1, "IMAGENET_MEAN": [0.0], "IMAGENET_STD": [1.0]}


def test_normalization_equals_torchvisions():
    mean = [0.4, 0.5, 0.6]
    std = [0.2, 0.3, 0.4]
    data = Data(IMAGENET_MEAN=mean, IMAGENET_STD=std)
    images = torch.randint(0, 256, (2, 3, 5, 5), dtype=torch.uint8)
    transformed, _ = TrainTransform(data, Train(), 10, Train().horizon)(Batch(images, torch.tensor([1, 2]), 2))
    for found in (Normalize(data)(images), transformed):
        assert torch.allclose(found, v2.functional.normalize(images / 255, mean, std), atol=1e-5)


def test_affine_map_has_its_probability():
    affine = RandomAffine(Data(AFFINE_DEGREES=15.0, AFFINE_PROB=0.25))
    rng = random.Random(0)
    drawn = [affine.draw(rng) != [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]] for _ in range(2000)]
    assert sum(drawn) / 2000 == approx(0.25, abs=0.03)


MAPS = """
degrees | shift | zoom | width
0 | 0 | 1 | 48
0 | 0 | 1.5 | 48
20 | 0.1 | 0.8 | 48
20 | 0 | 1 | 36
"""


@each_value(MAPS)
def test_affine_map_equals_torchvisions(degrees, shift, zoom, width):
    """One drawn map, against torchvision's affine with the same angle, shift and zoom."""

    options = {"IMAGE_SIZE": [48, width], "AFFINE_DEGREES": degrees, "AFFINE_TRANSLATE": shift}
    affine = RandomAffine(Data(**GREY | options | {"AFFINE_SCALE": [min(zoom, 1.0) / 2, zoom]}))
    (matrix,) = affine.collate([affine.draw(SimpleNamespace(uniform=max))])
    images = torch.nn.functional.avg_pool2d(torch.rand(1, 1, 48, width), 9, 1, 4).mul(255).to(torch.uint8)
    ours = affine(images, matrix)
    # Ours shifts in the frame of the old image before it rotates, torchvision's after: the shift is converted here.
    cos = math.cos(math.radians(degrees))
    sin = math.sin(math.radians(degrees))
    moved = [-shift * 48 * zoom * (cos + sin), -shift * 48 * zoom * (cos - sin)]
    theirs = v2.functional.affine(
        images.float(), -degrees, moved, zoom, [0.0], interpolation=v2.InterpolationMode.BILINEAR
    )
    assert (ours - theirs)[..., 8:-8, 8:-8].abs().max() < 1.0


def erase_of(size: int, **train) -> RandomErase:
    """Each image of this size has rectangles."""
    return RandomErase(Data(IMAGE_SIZE=size), Train(RANDOM_ERASE_PROB=1.0, **train))


def test_the_number_of_rectangles_is_uniform_and_scales_their_area():
    """As in timm and PaddleViT: 1 to RANDOM_ERASE_COUNT."""
    rng = random.Random(0)
    erase = erase_of(64, RANDOM_ERASE_COUNT=3)
    drawn = [erase.draw(rng) for _ in range(3000)]
    for count in (1, 2, 3):
        images = [boxes for boxes in drawn if len(boxes) == count]
        assert len(images) / 3000 == approx(1 / 3, abs=0.03)
        areas = [height * width for boxes in images for _, _, height, width in boxes]
        assert sum(areas) / len(images) / 64**2 == approx((0.02 + 1 / 3) / 2, rel=0.06)


@each_value("""
mode | colors | deviation
const | 1 | 0
rand | 1 | 1
pixel | 200 | 1
""")
def test_the_boxes_are_filled_with_zeros_a_color_or_noise(mode, colors, deviation):
    """As in timm, the values of the noise have the mean 0 and the deviation 1."""
    erase = erase_of(24, RANDOM_ERASE_MODE=mode, RANDOM_ERASE_COUNT=3)
    torch.manual_seed(0)
    box = (2, 3, 10, 20)
    erased = erase(torch.full((60, 3, 24, 24), 9.0), *erase.collate([[box], [box, box]] * 30))
    inside = erased[..., 2:12, 3:23].clone()
    erased[..., 2:12, 3:23] = 9
    assert (erased == 9).all()
    assert (inside != 9).all()
    assert {len(image.flatten(1).unique(dim=1)[0]) for image in inside} == {colors}
    assert [inside.mean().item(), inside.std().item()] == approx([0, deviation], abs=0.2)


def test_a_batch_of_padding_is_not_erased():
    assert erase_of(16).collate([None, None]) is None


BOTH = {"MIXUP_ALPHA": 0.8, "CUTMIX_ALPHA": 1.0}


def mixup_of(options: dict) -> Mixup:
    train = Train(**options)
    return Mixup(train, 5, train.horizon)


def batch_of(count: int) -> tuple[Tensor, Tensor]:
    return torch.randn((count, 3, 12, 20), generator=seeded(0)), torch.arange(count) % 5


def timms(kind: type[timm_mixup.Mixup], weight, box, monkeypatch) -> timm_mixup.Mixup:
    """timm's class with our draw in place of its own."""
    mixup = kind(mixup_alpha=1.0, cutmix_alpha=1.0, mode="batch", label_smoothing=0.0, num_classes=5)
    parameters = (0.5 if box else weight), box is not None
    monkeypatch.setattr(mixup, "_params_per_batch", lambda: parameters)
    monkeypatch.setattr(timm_mixup, "cutmix_bbox_and_lam", lambda shape, lam, **_: (box, weight))
    return mixup


def test_targets_of_several_labels_are_mixed_linearly():
    """A multi-hot target is the sum of the targets of its labels."""
    images, labels = batch_of(6)
    others = (labels + 1) % 5
    multi_hot = (torch.eye(5)[labels] + torch.eye(5)[others]).to(torch.int8)
    mixed = []
    for targets in (multi_hot, labels, others):
        torch.manual_seed(3)
        mixed.append(mixup_of(BOTH)(images.clone(), targets, epoch=0)[1])
    assert torch.allclose(mixed[0], mixed[1] + mixed[2])
    assert not torch.equal(mixed[0], multi_hot)


def test_a_label_that_is_unknown_of_one_image_is_unknown_in_the_mix():
    images, _ = batch_of(2)
    targets = torch.tensor([[1, 0, UNKNOWN, 0, 1], [0, 0, 1, UNKNOWN, 1]], dtype=torch.int8)
    torch.manual_seed(3)
    _, mixed = mixup_of(BOTH)(images, targets, epoch=0)
    assert (mixed == UNKNOWN).tolist() == [[False, False, True, True, False]] * 2
    assert mixed[:, 0].sum() == approx(1)
    assert mixed[:, 4].tolist() == [1, 1]


@each_value("""
is_last | box           | weight
false   | [2, 9, 4, 17] | 0.6    # as with timm's -no-prefetcher
false   |               | 0.3
true    | [2, 9, 4, 17] | 0.6    # as by default
true    |               | 0.3
""")
def test_the_order_of_erasing_and_mixup_is_the_one_of_timms_loaders(is_last, box, weight, monkeypatch):
    """With equal boxes, weight and noise. timm's default loader rounds a mixture to 8 bits."""
    data = Data(IMAGE_SIZE=[12, 20], IMAGENET_STD=[1.0, 1.0, 1.0])
    train = Train(RANDOM_ERASE_PROB=0.7, MIXUP_ALPHA=1.0, RANDOM_ERASE_AFTER_MIXUP=is_last)
    images = torch.randint(256, (8, 3, 12, 20), dtype=torch.uint8)
    targets = torch.arange(8) % 5
    transform = TrainTransform(data, train, 5, train.horizon)
    erase = RandomErase(data, train)
    monkeypatch.setattr(transform.mixup, "draw", lambda *_: (weight, box))
    monkeypatch.setattr(Tensor, "normal_", lambda noise: noise.copy_(torch.arange(noise.numel()).view_as(noise)))
    rng = random.Random(5)
    drawn = erase.collate([erase.draw(rng) for _ in images])
    ours, our_targets = transform(Batch(images.clone(), targets, 8, {"erase": drawn}))

    random.seed(5)
    erasing = RandomErasing(0.7, mode="pixel", device="cpu")
    mixup = timms(timm_mixup.FastCollateMixup if is_last else timm_mixup.Mixup, weight, box, monkeypatch)
    if is_last:
        mixed, their_targets = mixup([*zip(images.numpy(), targets.tolist(), strict=True)])
        theirs = erasing(Normalize(data)(mixed))
    else:
        theirs, their_targets = mixup(erasing(Normalize(data)(images)), targets)
    tolerance = 0.5 / 255 if is_last and not box else 0
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6 + tolerance)
    torch.testing.assert_close(our_targets, their_targets, rtol=1e-6, atol=1e-6)


@each_value("size\n[15, 15]\n[16, 9]")
def test_boxes_of_even_and_odd_sides_equal_timms(size, monkeypatch):
    """Every side of a box, around centers at the border and inside; the shares follow from the pixels."""
    rows, columns = (np.unique(np.linspace(0, side - 1, 16).astype(int)) for side in size)
    mixup = mixup_of({"CUTMIX_ALPHA": 1.0})
    for side, *center in itertools.product(range(size[0]), rows.tolist(), columns.tolist()):
        weight = 1 - ((side + 0.5) / size[0]) ** 2
        drawn = iter(2 * center)  # timm draws the row, then the column
        monkeypatch.setattr(timm_mixup.np.random, "randint", lambda *_, drawn=drawn, **__: next(drawn))
        box, share = timm_mixup.cutmix_bbox_and_lam((3, *size), weight)
        rng = SimpleNamespace(beta=lambda *_, weight=weight: weight, random=lambda: 0.0, integers=np.random.randint)
        assert mixup.draw(rng, *size) == (share, tuple(map(int, box)))


def test_boxes_of_a_range_of_sides():
    mixup = mixup_of({"CUTMIX_MINMAX": (0.2, 0.8)})
    rng = np.random.default_rng(0)
    weights, boxes = zip(*(mixup.draw(rng, 32, 24) for _ in range(8000)), strict=True)
    top, bottom, left, right = np.array(boxes).T
    assert np.allclose(weights, 1 - (bottom - top) * (right - left) / (32 * 24))
    for low, high, side in ((top, bottom, 32), (left, right, 24)):
        assert (low.min(), high.max()) == (0, side)
        assert set(high - low) == set(range(int(0.2 * side), int(0.8 * side)))


def test_probabilities_and_weights():
    mixup = mixup_of(BOTH | {"MIXUP_PROB": 0.6, "MIXUP_SWITCH_PROB": 0.3})
    rng = np.random.default_rng(0)
    mixed = [draw for draw in (mixup.draw(rng, 224, 224) for _ in range(20000)) if draw != (1, None)]
    mixup_weights = [weight for weight, box in mixed if box is None]
    assert len(mixed) / 20000 == approx(0.6, abs=0.015)
    assert 1 - len(mixup_weights) / len(mixed) == approx(0.3, abs=0.015)
    assert stats.kstest(mixup_weights, stats.beta(0.8, 0.8).cdf).pvalue > 0.001


MIXED = """
off_epoch | num_epochs | plans | mixed_epochs
0 | 4 | [] | [0, 1, 2, 3]
2 | 4 | [] | [0, 1]
2 | 4 | [[0, 0, 4], [0, 0, 2], [1, 2, 4]] | [0]
2 | 5 | [[0, 0, 3], [1, 1, 5]] | [0, 1, 2]
"""


@each_value(MIXED)
def test_epochs_with_mixup(off_epoch, num_epochs, plans, mixed_epochs):
    options = {"NUM_EPOCHS": num_epochs, "WARMUP_EPOCHS": 0, "PLANS": plans, "MIXUP_OFF_EPOCH": off_epoch}
    train = Train(MIXUP_ALPHA=0.8, **options)
    transform = TrainTransform(Data(), train, 4, train.horizon)
    batch = Batch(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.tensor([3, 1]), 2)
    targets = [transform(batch._replace(epoch=epoch))[1] for epoch in range(4)]
    assert [epoch for epoch in range(4) if targets[epoch].ndim == 2] == mixed_epochs
