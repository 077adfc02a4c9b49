"""The operations of the policies, compared with Pillow's calls, and the ranges of their arguments."""

import random

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps
from sklearn.datasets import load_sample_images

from datasets.transforms.policies import ARGUMENTS, INCREASING_ARGUMENTS, OPERATIONS

PHOTO = Image.fromarray(load_sample_images().images[0]).crop((150, 100, 350, 299)).resize((96, 80))


def grey_fill(image: Image.Image) -> dict:
    return {"fillcolor": (128, 128, 128) if image.mode == "RGB" else 128, "resample": Image.Resampling.NEAREST}


def solarized_sum(image: Image.Image, addend: int) -> Image.Image:
    values = np.asarray(image).astype(int)
    return Image.fromarray(np.where(values < 128, np.minimum(values + addend, 255), values).astype(np.uint8))


def transform(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, **grey_fill(image))


# operation -> [(argument, Pillow's call)]
EXPECTED = {
    "AutoContrast": [(None, ImageOps.autocontrast)],
    "Equalize": [(None, ImageOps.equalize)],
    "Invert": [(None, ImageOps.invert)],
    "Solarize": [(limit, lambda im, limit=limit: ImageOps.solarize(im, limit)) for limit in (0, 26, 256)],
    "Sharpness": [(factor, lambda im, f=factor: ImageEnhance.Sharpness(im).enhance(f)) for factor in (0.1, 1.9)],
    "Rotate": [(degrees, lambda im, d=degrees: im.rotate(d, fillcolor=None)) for degrees in (-27.3, 30)],
    "Posterize": [
        *((bits, lambda im, b=bits: ImageOps.posterize(im, b)) for bits in range(1, 9)),
        *((bits, lambda im: Image.new(im.mode, im.size)) for bits in (0, -3)),
    ],
    "SolarizeAdd": [(addend, lambda im, a=addend: solarized_sum(im, a)) for addend in (0, 99, 110)],
    "ShearY": [(-0.3, lambda im: transform(im, 1, 0, 0, -0.3, 1, 0))],
    "TranslateY": [(p, lambda im, p=p: transform(im, 1, 0, 0, 0, 1, p)) for p in (12.5, 100)],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_an_operation_is_pillows(name):
    mode = "L" if name in ("Equalize", "ShearY") else "RGB"
    image = PHOTO.convert(mode)
    before = image.tobytes()
    for argument, pillow in EXPECTED[name]:
        result, expected = OPERATIONS[name](image, argument), pillow(image)
        assert (result.mode, result.size) == (mode, image.size)
        assert result.tobytes() == expected.tobytes(), argument
    assert image.tobytes() == before


class Sign(random.Random):
    """Draws one sign."""

    def __init__(self, draw: float) -> None:
        super().__init__()
        self.draw = draw

    def random(self) -> float:
        return self.draw


# operation -> arguments at magnitudes 0, 9 and 10: in AutoAugment, and in RandAugment; negated for half of the draws
ENHANCE = ((0.1, 1.72, 1.9), (1.0, 1.81, 1.9))
RANGES = {
    "AutoContrast": ((None,) * 3,) * 2,
    "Equalize": ((None,) * 3,) * 2,
    "Invert": ((None,) * 3,) * 2,
    "Rotate": ((0, 27, 30),) * 2,
    "Posterize": ((4, 7, 8), (4, 1, 0)),
    "Solarize": ((0, 230, 256), (256, 26, 0)),
    "SolarizeAdd": ((0, 99, 110),) * 2,
    "Color": ENHANCE,
    "Contrast": ENHANCE,
    "Brightness": ENHANCE,
    "Sharpness": ENHANCE,
    "ShearX": ((0, 0.27, 0.3),) * 2,
    "ShearY": ((0, 0.27, 0.3),) * 2,
    "TranslateX": ((0, 90, 100),) * 2,
    "TranslateY": ((0, 90, 100),) * 2,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_arguments_follow_from_the_magnitude_as_in_paddlevit(name):
    for table, expected in zip((ARGUMENTS, INCREASING_ARGUMENTS), RANGES[name], strict=True):
        values = [table[name](magnitude / 10, Sign(0.2)) for magnitude in (0, 9, 10)]
        assert values == (pytest.approx(expected) if expected[0] is not None else list(expected))
        if name.startswith(("Rotate", "Shear", "Translate")):
            negative = [table[name](magnitude / 10, Sign(0.8)) for magnitude in (0, 9, 10)]
            assert negative == pytest.approx([-value for value in values])
    if ENHANCE is RANGES[name]:
        assert INCREASING_ARGUMENTS[name](0.9, Sign(0.8)) == pytest.approx(0.19)
        assert INCREASING_ARGUMENTS[name](1.0, Sign(0.8)) == pytest.approx(0.1)
