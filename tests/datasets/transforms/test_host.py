"""Host transforms: functions of (seed, epoch, sample index); crops and resizing as of Pillow and torchvision."""

import hashlib
import math
import random

import numpy as np
import torch
from conftest import assert_same_state, each_row, each_value, refused
from PIL import Image
from pytest import approx, mark
from scipy import stats
from timm.data import create_transform
from torch import Tensor
from torchvision.transforms import InterpolationMode, RandomResizedCrop
from torchvision.transforms.v2 import Resize

from configs.parts import HOST_AUGMENTATIONS, Part
from configs.schema import Data, Train
from datasets.decoding.decode import LazyImage, open_image
from datasets.transforms import host
from datasets.transforms.device import Normalize
from datasets.transforms.host import (
    HostTransform,
    build_eval_host_transform,
    build_host_transform,
    random_crop_box,
    resize,
)
from tests.datasets.photo import PHOTO, as_tensor, encode


def transform_of(keys: dict, seed: int = 0, **train) -> HostTransform:
    """The transform of a training. keys: of DATA."""
    return build_host_transform(Data(**keys), Train(**train), seed)


@each_value("""
axis | horizontal | vertical
-1 | 0.3 | 0.0
-1 | 1.0 | 0.0
-2 | 0.0 | 0.3
-1 | 0.0 | 0.0
""")
def test_flip_probability(axis, horizontal, vertical):
    image = torch.arange(9, dtype=torch.uint8).view(1, 3, 3)
    keys = {"IMAGE_SIZE": 3, "RANDOM_CROP_SCALE": [1, 1], "RANDOM_CROP_RATIO": [1, 1]}
    transform = transform_of(keys | {"HFLIP_PROB": horizontal, "VFLIP_PROB": vertical})
    crops = [transform(LazyImage(image), 0, index)[0] for index in range(2000)]
    flipped, plain = (sum(torch.equal(crop, one) for crop in crops) for one in (image.flip(axis), image))
    assert flipped + plain == 2000
    assert flipped / 2000 == approx(horizontal + vertical, abs=0.04)


@each_value("""
dtype | shape
uint8 | [8, 8]
uint8 | [8, 8, 3]
uint16 | [8, 8]
""")
def test_without_other_keys_the_pixels_are_the_normalized_ones_of_the_file(dtype, shape):
    """Each later key of the preprocessing has a neutral default: weights of before do not have it."""
    data = Data(IMAGE_SIZE=8, CROP_PCT=1.0, IMAGENET_MEAN=[0.5] * 3, IMAGENET_STD=[0.25] * 3)
    levels = np.resize(np.arange(0, 256, 4), shape)
    pixels = (levels * (np.iinfo(dtype).max // 255)).astype(dtype)
    crop, _ = build_eval_host_transform(data)(open_image(encode(Image.fromarray(pixels), "PNG"), 3, str), 0, 0)
    shown = Normalize(data)(crop[None])[0].permute(1, 2, 0).numpy()
    expected = (levels.reshape(8, 8, -1) / 255 - 0.5) / 0.25
    assert shown == approx(np.broadcast_to(expected, (8, 8, 3)), abs=1e-6)


def test_options_of_the_device_draw_nothing_from_an_earlier_operation():
    """An additional device operation changes neither the crop nor the draws of the operations before it."""
    image = LazyImage(torch.randint(0, 256, (3, 40, 50), dtype=torch.uint8))
    affine = {"IMAGE_SIZE": 16, "AFFINE_DEGREES": 9.0}
    plain, _ = transform_of({"IMAGE_SIZE": 16})(image, 0, 1)
    one = transform_of(affine)(image, 0, 1)
    both, (of_affine, erased) = transform_of(affine, RANDOM_ERASE_PROB=1.0)(image, 0, 1)
    assert_same_state(one, (plain, [of_affine]))
    assert torch.equal(plain, both)
    assert len(erased) == 1


@each_value("resize | top | bottom\nsquash | 0 | 16\npad | 4 | 12")
def test_training_and_validation_see_the_whole_image(resize, top, bottom):
    """With pad between rows of the mean color."""
    image = torch.full((3, 20, 40), 200, dtype=torch.uint8)
    keys = {"IMAGE_SIZE": 16, "RESIZE": resize, "HFLIP_PROB": 0.0, "CROP_PCT": 1.0}
    expected = torch.full((3, 16, 16), 128, dtype=torch.uint8)
    expected[:, top:bottom] = 200
    assert torch.equal(transform_of(keys)(LazyImage(image), 0, 1)[0], expected)
    assert torch.equal(eval_crop(image, **keys), expected)


SIZES = [(261, 199), (300, 12), (97, 640), (31, 33)]  # of photographs


@each_value("size\n[64, 64]\n[40, 96]")
def test_timms_no_aug_squashes_in_training_only(size):
    """By the keys that docs/recipes.md names; no other box fits into the image."""
    keys = {"IMAGE_SIZE": size, "RANDOM_CROP_SCALE": [1, 1], "RANDOM_CROP_RATIO": [1e-99, 1e99], "HFLIP_PROB": 0.0}
    train = transform_of(keys)
    timms = create_transform((3, *size), is_training=True, no_aug=True, interpolation="bicubic", normalize=False)
    for photo in map(PHOTO.resize, SIZES):
        image = as_tensor(photo)
        squashed = resize(image, *size, "bicubic")
        for index in range(20):
            assert torch.equal(train(LazyImage(image), 0, index)[0], squashed)
        assert (squashed.int() - timms(photo).int()).abs().max() <= 1
        assert torch.equal(eval_crop(image, **keys), eval_crop(image, IMAGE_SIZE=size))


def test_draws_equal_those_of_earlier_versions(monkeypatch):
    """The recorded digest keeps old runs resumable: boxes, flips and erased boxes of 400 samples."""
    columns = torch.linspace(0, 255, 500).to(torch.uint8).expand(3, 375, 500)
    boxes = []

    def draw_box(*arguments):
        boxes.append(random_crop_box(*arguments))
        return boxes[-1]

    monkeypatch.setattr(host, "random_crop_box", draw_box)
    drawn = []
    for seed in (0, 7):
        transform = transform_of({"IMAGE_SIZE": 8}, seed, RANDOM_ERASE_PROB=0.5)
        for number in range(200):
            pixels, (erased,) = transform(LazyImage(columns), number % 3, 1000 * number, number % 2)
            drawn.append((boxes.pop(), bool(pixels[0, 0, 0] > pixels[0, 0, -1]), erased))
    assert hashlib.blake2b(repr(drawn).encode(), digest_size=8).hexdigest() == "dc032e5521afe328"


def test_a_plugin_that_returns_other_pixels_is_refused(monkeypatch):
    """Normalized pixels would become black images."""
    monkeypatch.setitem(HOST_AUGMENTATIONS, "unit", Part(lambda image, rng, options: image / 255))
    transform = transform_of({"IMAGE_SIZE": 8, "HOST_AUGMENTATIONS": {"unit": {}}})
    with refused(r"^DATA.HOST_AUGMENTATIONS: .*float32"):
        transform(LazyImage(torch.zeros(3, 8, 8, dtype=torch.uint8)), 0, 0)


@mark.parametrize("mode", ["RGB", "L"])
@mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_resize_is_pillows_antialiased_filter(mode, interpolation):
    photo = PHOTO.convert(mode)
    for height, width in ((32, 32), (9, 200), (224, 224), (PHOTO.height, PHOTO.width)):
        reference = as_tensor(photo.resize((width, height), Image.Resampling[interpolation.upper()]))
        resized = resize(as_tensor(photo), height, width, interpolation)
        assert resized.dtype == torch.uint8
        difference = (resized.int() - reference.int()).abs()
        assert difference.float().mean() < 0.25
        assert difference.max() <= (0 if height == PHOTO.height else 3)  # no pixel changes


def eval_crop(image: Tensor, **keys) -> Tensor:
    return build_eval_host_transform(Data(**keys))(LazyImage(image), 0, 0)[0]


@each_row("resize | mode\ncrop | center\nsquash | squash\npad | border")
@mark.parametrize("crop_pct", [0.95, 0.6])
@each_value("size\n225\n[128, 33]")
def test_the_modes_are_timms(resize, mode, crop_pct, size):
    mean = (0.485, 0.456, 0.406)  # the color of a border
    timms = create_transform(
        size, interpolation="bicubic", mean=mean, crop_pct=crop_pct, crop_mode=mode, normalize=False
    )
    for photo in map(PHOTO.resize, [*SIZES, (224, 224)]):
        ours = eval_crop(as_tensor(photo), IMAGE_SIZE=size, RESIZE=resize, CROP_PCT=crop_pct, IMAGENET_MEAN=mean)
        theirs = timms(photo)
        assert ours.shape == theirs.shape
        assert (ours.int() - theirs.int()).abs().float().mean() < 0.2


WIDE = """
width | height | size | crop_pct
199 | 261 | 223 | 1.15
300 | 100 | 96 | 1.3
300 | 200 | 224 | 1.004
"""


@each_value(WIDE)
def test_a_share_above_one_gives_a_border_of_zeros(width, height, size, crop_pct):
    image = as_tensor(PHOTO.resize((width, height)))
    crop = eval_crop(image, IMAGE_SIZE=size, CROP_PCT=crop_pct)
    resized = Resize(math.floor(size / crop_pct), InterpolationMode.BICUBIC, antialias=True)(image)
    # PaddlePaddle's CenterCrop: Pillow's crop, whose box may exceed the image.
    top, left = (round((side - size) / 2) for side in resized.shape[1:])
    on_pillow = Image.fromarray(resized.permute(1, 2, 0).numpy()).crop((left, top, left + size, top + size))
    assert torch.equal(crop, as_tensor(on_pillow))


def draw_both(height, width, scale, count):
    """(top, left, height, width) of our boxes and of torchvision's, both (count, 4)."""
    rng = random.Random(0)
    ratio = (3 / 4, 4 / 3)
    torch.manual_seed(0)
    own = [random_crop_box(height, width, scale, ratio, rng) for _ in range(count)]
    reference = [RandomResizedCrop.get_params(torch.empty(1, height, width), scale, ratio) for _ in range(count)]
    return np.array(own), np.array(reference)


@each_value("""
height | width | scale
500 | 375 | [0.08, 1.0]
200 | 1000 | [0.5, 0.6]
""")
def test_random_crop_box_is_distributed_as_torchvisions(height, width, scale):
    own, reference = draw_both(height, width, scale, 3000)
    assert (own >= [0, 0, 1, 1]).all()
    assert (own[:, :2] + own[:, 2:] <= [height, width]).all()
    for ours, theirs in zip(own.T, reference.T, strict=True):
        assert stats.ks_2samp(ours, theirs).pvalue > 0.01


@each_value("height | width\n20 | 3000\n7 | 3")
def test_random_crop_box_falls_back_to_the_center(height, width):
    own, reference = draw_both(height, width, (1.0, 1.0), 3)
    assert (own == reference).all()
