"""Host transforms: functions of (seed, epoch, sample index)."""

import hashlib

import pytest
import torch

from configs.parts import HOST_AUGMENTATIONS, Options
from configs.schema import Data, Train
from datasets.decoding.decode import LazyImage
from datasets.transforms.host import build_eval_host_transform, build_host_transform
from utils.errors import UserError


@pytest.mark.parametrize(("axis", "key", "other"), [(-1, "HFLIP_PROB", "VFLIP_PROB"), (-2, "VFLIP_PROB", "HFLIP_PROB")])
def test_flip_probability(axis, key, other):
    image = torch.arange(9, dtype=torch.uint8).view(1, 3, 3)
    whole = {"IMAGE_SIZE": 3, "RANDOM_CROP_SCALE": [1, 1], "RANDOM_CROP_RATIO": [1, 1], other: 0.0}
    for probability in (0.0, 0.3, 1.0):
        transform = build_host_transform(Data.model_validate(whole | {key: probability}), Train(), seed=0)
        crops = [transform(LazyImage(image), 0, index)[0] for index in range(2000)]
        flipped = sum(torch.equal(crop, image.flip(axis)) for crop in crops)
        assert flipped + sum(torch.equal(crop, image) for crop in crops) == 2000
        assert flipped / 2000 == pytest.approx(probability, abs=0.04)


def test_options_of_the_device_draw_nothing_from_an_earlier_operation():
    """An additional device operation changes neither the crop nor the draws of the operations before it."""
    image = LazyImage(torch.randint(0, 256, (3, 40, 50), dtype=torch.uint8))
    affine = {"IMAGE_SIZE": 16, "AFFINE_DEGREES": 9.0}
    erase = Train.model_validate({"RANDOM_ERASE_PROB": 1.0})
    plain, _ = build_host_transform(Data.model_validate({"IMAGE_SIZE": 16}), Train(), 0)(image, 0, 1)
    one, drawn = build_host_transform(Data.model_validate(affine), Train(), 0)(image, 0, 1)
    both, drawn_both = build_host_transform(Data.model_validate(affine), erase, 0)(image, 0, 1)
    assert torch.equal(plain, one) and torch.equal(plain, both)
    assert drawn == drawn_both[:1] and len(drawn_both[1]) == 1


@pytest.mark.parametrize("resize", ["squash", "pad"])
def test_training_and_validation_see_the_whole_image(resize):
    image = torch.full((3, 20, 40), 200, dtype=torch.uint8)
    data = Data.model_validate({"IMAGE_SIZE": 16, "RESIZE": resize, "HFLIP_PROB": 0.0, "CROP_PCT": 0.5})
    trained, _ = build_host_transform(data, Train(), 0)(LazyImage(image), 0, 1)
    validated, _ = build_eval_host_transform(data)(LazyImage(image), 0, 1)
    assert torch.equal(trained, validated) and trained.shape == (3, 16, 16)
    rows = (trained == 200).all(dim=(0, 2))
    assert rows.sum() == (16 if resize == "squash" else 8)
    assert (trained[:, ~rows] == 128).all()  # the mean color


def test_validation_images_are_center_crops():
    image = LazyImage(torch.randint(0, 256, (3, 32, 40), dtype=torch.uint8))
    transform = build_eval_host_transform(Data.model_validate({"IMAGE_SIZE": 28}))
    pixels, drawn = transform(image, 0, 7)
    assert torch.equal(pixels, image.pixels[:, 2:30, 6:34]) and drawn == []
    assert transform.collate([drawn, None]) == {}


def test_draws_equal_those_of_earlier_versions():
    """The recorded digest keeps old runs resumable: boxes, flips and erased boxes of 400 samples."""
    columns = torch.linspace(0, 255, 500).to(torch.uint8).expand(3, 375, 500)
    boxes = []

    class Image(LazyImage):
        def crop(self, box):
            boxes.append(box)
            return super().crop(box)

    train = Train.model_validate({"RANDOM_ERASE_PROB": 0.5})
    drawn = []
    for seed in (0, 7):
        transform = build_host_transform(Data.model_validate({"IMAGE_SIZE": 8}), train, seed)
        for number in range(200):
            pixels, (erased,) = transform(Image(columns), number % 3, 1000 * number, number % 2)
            drawn.append((boxes.pop(), bool(pixels[0, 0, 0] > pixels[0, 0, -1]), erased))
    assert drawn[0] == ((20, 56, 320, 383), False, None)
    assert drawn[-1] == ((162, 235, 163, 180), True, [(1, 1, 6, 3)])
    assert hashlib.blake2b(repr(drawn).encode(), digest_size=8).hexdigest() == "dc032e5521afe328"


def test_a_plugin_that_returns_other_pixels_is_refused(monkeypatch):
    """Normalized pixels would become black images."""
    monkeypatch.setitem(HOST_AUGMENTATIONS, "unit", (lambda image, rng, options: image / 255, Options))
    data = Data.model_validate({"IMAGE_SIZE": 8, "HOST_AUGMENTATIONS": {"unit": {}}})
    image = LazyImage(torch.zeros(3, 8, 8, dtype=torch.uint8))
    with pytest.raises(UserError, match=r"^DATA.HOST_AUGMENTATIONS: .*float32"):
        build_host_transform(data, Train(), 0)(image, 0, 0)
