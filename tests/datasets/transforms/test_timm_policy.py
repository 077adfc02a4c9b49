"""timm's policies by their strings, compared with timm's `create_transform`; strings that timm cannot read."""

import random

import numpy as np
import pytest
import timm.data
import timm.data.auto_augment
from PIL import Image, ImageOps
from sklearn.datasets import load_sample_images
from torchvision.transforms import Compose

from configs.schema.train import check_policy
from datasets.transforms.policies import TimmPolicy

PHOTO = Image.fromarray(load_sample_images().images[1]).crop((150, 100, 350, 300)).resize((48, 48))
POLICIES = ["rand-m9-mstd0.5-inc1", "rand-n3-p1.0-tweights", "3a", "originalr-mstd0.5", "augmix-m5-w4-d2-a0.5-mstd1"]
MEAN = (0.485, 0.456, 0.406)


def timm_policy(policy: str, size: int, mean: tuple[float, ...], interpolation: str):
    """The part of timm's transform between the flip and the tensor."""
    transform = timm.data.create_transform(
        size, is_training=True, auto_augment=policy, color_jitter=None, interpolation=interpolation, mean=mean,
        std=mean, hflip=0.0, separate=True,
    )[1]  # fmt: skip
    return Compose(transform.transforms)


def safe_posterize(image: Image.Image, bits_to_keep: int, **_) -> Image.Image:
    return ImageOps.posterize(image, bits_to_keep) if bits_to_keep > 0 else Image.new(image.mode, image.size)


@pytest.mark.parametrize(("mode", "interpolation"), [("RGB", "bicubic"), ("L", "bilinear")])
@pytest.mark.parametrize("policy", POLICIES)
def test_images_equal_timms_with_the_same_generators(policy, mode, interpolation, monkeypatch):
    for name in ("Posterize", "PosterizeIncreasing", "PosterizeOriginal"):
        monkeypatch.setitem(timm.data.auto_augment.NAME_TO_OP, name, safe_posterize)
    mean = MEAN if mode == "RGB" else (0.5,)
    arguments = policy, 48, mean, interpolation
    image, ours, theirs = PHOTO.convert(mode), TimmPolicy(*arguments), timm_policy(*arguments)
    for seed in range(25):
        result = ours(image, random.Random(seed))
        rng = random.Random(seed)
        np.random.seed(rng.getrandbits(32))
        random.setstate(rng.getstate())
        expected = theirs(image)
        assert (result.mode, result.size) == (mode, (48, 48))
        assert result.tobytes() == expected.tobytes(), seed


def test_the_generators_of_the_process_stay_as_they_are():
    random.seed(1), np.random.seed(2)
    before = random.getstate(), np.random.get_state()[1].tolist()
    for policy in POLICIES:
        TimmPolicy(policy, 48, MEAN)(PHOTO, random.Random(3))
    assert before == (random.getstate(), np.random.get_state()[1].tolist())


MISTAKES = {
    "unknown; known: rand, augmix": ["", "v1"],
    "section .* of rand": [
        "rand-", "rand-tfoo", "rand-m9.5", "rand-p2", "rand-n0", "rand-n15-tweights", "rand-m" + "9" * 5000,
    ],
    "section .* of augmix": ["augmix-w0", "augmix-m3-inc1"],
    "section 'm4' of 3a": ["3a-m4"],
    "m is given twice": ["rand-m9-m8"],
    "add mmax11": ["rand-m11"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("problem", "policy"), [(problem, policy) for problem, policies in MISTAKES.items() for policy in policies]
)
def test_strings_that_timm_does_not_read_completely(problem, policy):
    with pytest.raises(ValueError, match=problem):
        check_policy(policy)
