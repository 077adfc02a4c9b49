"""Device transforms, compared with torchvision and timm."""

import random

import pytest
import torch
from timm.data.random_erasing import RandomErasing
from torchvision.transforms import v2

from configs.schema import Data, Train
from datasets.batch import Batch
from datasets.transforms.device import (
    Normalize,
    RandomAffine,
    RandomErase,
    build_eval_transform,
    build_train_transform,
    random_erase_box,
)
from datasets.transforms.host import build_host_transform

GREY = {"IMAGE_CHANNELS": 1, "IMAGENET_MEAN": [0.0], "IMAGENET_STD": [1.0]}


def test_normalization_equals_torchvisions():
    data = Data.model_validate({"IMAGENET_MEAN": [0.4, 0.5, 0.6], "IMAGENET_STD": [0.2, 0.3, 0.4]})
    images = torch.randint(0, 256, (2, 3, 5, 5), dtype=torch.uint8)
    expected = v2.functional.normalize(images / 255, [0.4, 0.5, 0.6], [0.2, 0.3, 0.4])
    assert torch.allclose(build_eval_transform(data)(images), expected, atol=1e-5)
    transformed, _ = build_train_transform(data, Train(), 10)(Batch(images, torch.tensor([1, 2]), 2))
    assert torch.allclose(transformed, expected, atol=1e-5)


@pytest.mark.parametrize(("degrees", "shift", "zoom"), [(30, 0, 1.0), (0, 0.25, 1.0), (0, 0, 1.5), (20, 0.1, 0.8)])
def test_affine_map_equals_torchvisions(degrees, shift, zoom):
    """One drawn map, against torchvision's affine with the same angle, shift and zoom."""

    class Fixed(random.Random):
        def uniform(self, low: float, high: float) -> float:
            return high

    scale = [min(zoom, 1.0) / 2, zoom]
    data = Data.model_validate(GREY | {"AFFINE_DEGREES": degrees, "AFFINE_TRANSLATE": shift, "AFFINE_SCALE": scale})
    affine = RandomAffine(data)
    (matrix,) = affine.collate([affine.draw(Fixed())])
    images = torch.nn.functional.avg_pool2d(torch.rand(1, 1, 48, 48), 9, 1, 4).mul(255).to(torch.uint8)
    ours = affine(images, matrix)
    # Ours shifts in the frame of the old image before it rotates, torchvision's after: the shift is converted here.
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
    theirs = RandomErasing(probability=1, min_count=count, device="cpu")  # always `count`
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


def test_the_number_of_rectangles_is_uniform_and_scales_their_area():
    """As in timm and PaddleViT: 1 to RANDOM_ERASE_COUNT."""
    size, draws, rng = 64, 3000, random.Random(0)
    options = {"RANDOM_ERASE_PROB": 1.0, "RANDOM_ERASE_COUNT": 3}
    erase = RandomErase(Data.model_validate({"IMAGE_SIZE": size}), Train.model_validate(options))
    drawn = [erase.draw(rng) for _ in range(draws)]
    for count in (1, 2, 3):
        images = [boxes for boxes in drawn if len(boxes) == count]
        assert len(images) / draws == pytest.approx(1 / 3, abs=0.03)
        area = sum(height * width for boxes in images for _, _, height, width in boxes) / len(images) / size**2
        assert area == pytest.approx((0.02 + 1 / 3) / 2, rel=0.06)
    theirs = RandomErasing(probability=1, max_count=3, device="cpu")
    random.seed(0)
    erased = sum((theirs(torch.ones(1, size, size)) == 0).float().mean() for _ in range(600)) / 600
    ours = 0.0
    for boxes in drawn[:600]:
        union = torch.zeros(size, size, dtype=torch.bool)
        for top, left, height, width in boxes:
            union[top : top + height, left : left + width] = True
        ours += float(union.float().mean()) / 600
    assert ours == pytest.approx(float(erased), rel=0.1)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("mode", ["const", "rand", "pixel"])
def test_erased_images_equal_timms_given_its_boxes(mode, count, monkeypatch):
    """Where the fill is random, its pattern: which pixels are equal, and its moments."""
    plain, boxes = torch.randn(60, 3, 24, 24, generator=torch.Generator().manual_seed(9)), []
    theirs = RandomErasing(probability=1, mode=mode, max_count=count, device="cpu")
    randint = random.randint

    def recorded(low: int, high: int) -> int:  # 0 is the lowest corner; 1 the lowest count
        value = randint(low, high)
        if low == 1:
            boxes.append([])
        else:
            boxes[-1].append((value, 24 - high))  # a corner and the side
        return value

    monkeypatch.setattr(random, "randint", recorded)
    random.seed(0), torch.manual_seed(0)
    reference = []
    for image in plain:
        if count == 1:
            boxes.append([])
        reference.append(theirs(image.clone()))
    reference = torch.stack(reference)
    drawn = [
        [(top, left, height, width) for (top, height), (left, width) in zip(one[::2], one[1::2], strict=True)]
        for one in boxes
    ]
    erase = RandomErase(
        Data.model_validate({"IMAGE_SIZE": 24}),
        Train.model_validate({"RANDOM_ERASE_PROB": 1.0, "RANDOM_ERASE_MODE": mode, "RANDOM_ERASE_COUNT": count}),
    )
    erased = erase(plain.clone(), *erase.collate(drawn))
    assert torch.equal(erased == plain, reference == plain)
    if mode == "const":
        assert torch.equal(erased, reference)
    for one, other in zip(erased, reference, strict=True):
        pattern = [len(image.permute(1, 2, 0).reshape(-1, 3).unique(dim=0)) for image in (one, other)]
        assert pattern[0] == pattern[1]  # colors
    ours, expected = erased[erased != plain], reference[erased != plain]
    assert float(ours.mean()) == pytest.approx(float(expected.mean()), abs=0.3 if mode == "rand" else 0.06)
    assert float(ours.std()) == pytest.approx(float(expected.std()), abs=0.3 if mode == "rand" else 0.06)


@pytest.mark.parametrize("mode", ["const", "rand", "pixel"])
def test_erasing_fills_the_drawn_boxes_and_nothing_else(mode):
    torch.manual_seed(0)
    data = Data.model_validate({"IMAGE_SIZE": 16, "HFLIP_PROB": 0.0})
    train = Train.model_validate({"RANDOM_ERASE_PROB": 0.5, "RANDOM_ERASE_MODE": mode, "RANDOM_ERASE_COUNT": 1})
    erase = RandomErase(data, train)
    transform = build_host_transform(data, train, seed=0)
    positions, boxes = erase.collate([erase.draw(transform.generator(0, index)) for index in range(40)])
    plain = Normalize(data)(torch.randint(0, 256, (40, 3, 16, 16), dtype=torch.uint8))
    erased = erase(plain.clone(), positions, boxes)
    inside = torch.zeros(40, 16, 16, dtype=torch.bool)
    for position, image_boxes in zip(positions, boxes, strict=True):
        for top, left, height, width in image_boxes:
            inside[position, top : top + height, left : left + width] = True
    assert 10 < len(positions) < 30 and inside.any()
    assert torch.equal(erased.permute(0, 2, 3, 1)[~inside], plain.permute(0, 2, 3, 1)[~inside])
    fill = erased.permute(0, 2, 3, 1)[inside]  # (N, C)
    colors = len(fill.unique(dim=0))
    assert {
        "const": colors == 1 and not fill.any(),
        "rand": colors == len(positions),
        "pixel": colors == len(fill),
    }[mode]
    assert mode == "const" or abs(fill.mean()) < 0.3


def test_padding_is_not_erased():
    erase = RandomErase(Data.model_validate({"IMAGE_SIZE": 16}), Train.model_validate({"RANDOM_ERASE_PROB": 1.0}))
    positions, boxes = erase.collate([None, erase.draw(random.Random(0)), None])
    assert positions.tolist() == [1] and boxes.shape == (1, 1, 4)
    assert erase.collate([None]) is None
