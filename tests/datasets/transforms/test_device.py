"""Device transforms, compared with torchvision and timm."""

import random

import pytest
import torch
from torchvision.transforms import v2

from configs.schema import Data, Train
from datasets.batch import Batch
from datasets.transforms.device import Normalize, RandomAffine, RandomErase, TrainTransform

GREY = {"IMAGE_CHANNELS": 1, "IMAGENET_MEAN": [0.0], "IMAGENET_STD": [1.0]}


def test_normalization_equals_torchvisions():
    data = Data.model_validate({"IMAGENET_MEAN": [0.4, 0.5, 0.6], "IMAGENET_STD": [0.2, 0.3, 0.4]})
    images = torch.randint(0, 256, (2, 3, 5, 5), dtype=torch.uint8)
    expected = v2.functional.normalize(images / 255, [0.4, 0.5, 0.6], [0.2, 0.3, 0.4])
    assert torch.allclose(Normalize(data)(images), expected, atol=1e-5)
    transformed, _ = TrainTransform(data, Train(), 10)(Batch(images, torch.tensor([1, 2]), 2))
    assert torch.allclose(transformed, expected, atol=1e-5)


def test_affine_map_has_its_probability():
    data = Data.model_validate({"AFFINE_DEGREES": 15.0, "AFFINE_PROB": 0.25})
    affine, rng = RandomAffine(data), random.Random(0)
    drawn = [affine.draw(rng) for _ in range(2000)]
    unchanged = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]
    assert 0.22 < sum(matrix != list(unchanged) for matrix in drawn) / 2000 < 0.28
    images = torch.rand(1, 3, 9, 9) * 255
    (matrix,) = affine.collate([list(unchanged)])
    assert torch.allclose(affine(images, matrix), images, atol=1e-3)


@pytest.mark.parametrize(("degrees", "shift", "zoom", "width"), [(0, 0, 1.5, 48), (20, 0.1, 0.8, 48), (20, 0, 1, 36)])
def test_affine_map_equals_torchvisions(degrees, shift, zoom, width):
    """One drawn map, against torchvision's affine with the same angle, shift and zoom."""

    class Fixed(random.Random):
        def uniform(self, low: float, high: float) -> float:
            return high

    options = {"IMAGE_SIZE": [48, width], "AFFINE_DEGREES": degrees, "AFFINE_TRANSLATE": shift}
    affine = RandomAffine(Data.model_validate(GREY | options | {"AFFINE_SCALE": [min(zoom, 1.0) / 2, zoom]}))
    (matrix,) = affine.collate([affine.draw(Fixed())])
    images = torch.nn.functional.avg_pool2d(torch.rand(1, 1, 48, width), 9, 1, 4).mul(255).to(torch.uint8)
    ours = affine(images, matrix)
    # Ours shifts in the frame of the old image before it rotates, torchvision's after: the shift is converted here.
    cos, sin = matrix[0, 0, 0] * zoom, matrix[0, 1, 0] * zoom * width / 48
    right, down = -shift * 48 * zoom, -shift * 48 * zoom
    moved = [float(right * cos + down * sin), float(-right * sin + down * cos)]
    theirs = v2.functional.affine(
        images.float(), -degrees, moved, zoom, [0.0], interpolation=v2.InterpolationMode.BILINEAR
    )
    assert (ours - theirs)[..., 8:-8, 8:-8].abs().max() < 1.0


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


@pytest.mark.parametrize(("mode", "colors"), [("const", 1), ("rand", 1), ("pixel", 200)])
def test_the_boxes_are_filled_with_zeros_a_color_or_noise(mode, colors):
    """As in timm, the values of the noise have the mean 0 and the deviation 1."""
    options = {"RANDOM_ERASE_PROB": 1.0, "RANDOM_ERASE_MODE": mode, "RANDOM_ERASE_COUNT": 3}
    erase = RandomErase(Data.model_validate({"IMAGE_SIZE": 24}), Train.model_validate(options))
    torch.manual_seed(0)
    plain, box = torch.full((60, 3, 24, 24), 9.0), (2, 3, 10, 20)
    erased = erase(plain.clone(), *erase.collate([[box]] * 60))
    inside = torch.zeros(24, 24, dtype=torch.bool)
    inside[2:12, 3:23] = True
    assert torch.equal((erased != 9).all(1), inside.expand(60, -1, -1))
    assert all(len(image[:, inside].unique(dim=1)[0]) == colors for image in erased)
    values = erased[:, :, inside]
    assert values.mean().item() == pytest.approx(0, abs=0.2)
    assert values.std().item() == pytest.approx(float(mode != "const"), abs=0.2)


def test_padding_is_not_erased():
    erase = RandomErase(Data.model_validate({"IMAGE_SIZE": 16}), Train.model_validate({"RANDOM_ERASE_PROB": 1.0}))
    positions, boxes = erase.collate([None, erase.draw(random.Random(0)), None])
    assert positions.tolist() == [1] and boxes.shape == (1, 1, 4)
    assert erase.collate([None]) is None
