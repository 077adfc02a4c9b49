"""Policies: what they draw, their precedence, functions of the sample; timm's, as in timm's `create_transform`."""

import hashlib
import pickle
import random
from collections import Counter
from functools import partial

import numpy as np
import timm.data
import timm.data.auto_augment
import torch
from conftest import GREY, assert_same_state, config_for, each_row, each_value, seeded
from PIL import Image, ImageEnhance, ImageOps
from pytest import approx, mark, raises
from scipy import stats
from torchvision import transforms
from torchvision.transforms import InterpolationMode, autoaugment
from torchvision.transforms.v2 import functional as TF

from configs.schema import Data, Train
from configs.schema.train import check_policy
from datasets.decoding.decode import LazyImage
from datasets.transforms.host import (
    _auto_augment,
    _rand_augment,
    apply_policies,
    auto_augment,
    build_host_transform,
    build_policies,
    color_jitter,
    from_pillow,
    rand_augment,
    timm_policies,
    timm_policy,
    to_pillow,
    torchvision_policy,
)
from tests.datasets.photo import PHOTO

PIXELS = torch.randint(256, (3, 24, 20), dtype=torch.uint8, generator=seeded(0))


def draw(policy, draws: int, operations: list, monkeypatch) -> list[tuple]:
    """The names, magnitudes and arguments of the operations on so many images."""
    drawn = []
    for operation in operations:
        arguments_of = operation.level_fn or (lambda *_: ())

        def note(magnitude, parameters, name=operation.name, arguments_of=arguments_of):
            drawn.append((name, magnitude, *arguments_of(magnitude, parameters)))
            return ()

        monkeypatch.setattr(operation, "level_fn", note)
        monkeypatch.setattr(operation, "aug_fn", lambda image, **_: image)
    image = to_pillow(PIXELS)
    rng = random.Random(0)
    for _ in range(draws):
        policy(image, rng)
    return drawn


def digest_of(drawn: list[tuple]) -> str:
    rounded = [(name, *(round(value, 6) for value in values)) for name, *values in drawn[:2000]]
    return hashlib.blake2b(repr(rounded).encode(), digest_size=8).hexdigest()


def test_rand_augment_draws_each_operation_equally_often(monkeypatch):
    """The recorded digest keeps old runs resumable."""
    drawn = draw(partial(rand_augment, 2, 9), 6000, _rand_augment(9, 3), monkeypatch)
    counts = Counter(name for name, *_ in drawn)
    assert len(counts) == 15
    assert len(drawn) / 6000 == approx(2 * 0.5, abs=0.03)
    assert stats.chisquare(list(counts.values())).pvalue > 0.01
    magnitudes = np.array([magnitude for _, magnitude, *_ in drawn])
    assert (magnitudes == 10).mean() == approx(stats.norm.sf(2), abs=0.01)
    assert stats.kstest(magnitudes[magnitudes < 10], stats.truncnorm(-20, 2, 9, 0.5).cdf).pvalue > 0.01
    assert digest_of(drawn) == "4dbce4cd746ba71b"


def test_auto_augment_draws_its_25_pairs_by_their_probabilities(monkeypatch):
    pairs = _auto_augment(3)
    drawn = draw(auto_augment, 8000, [operation for pair in pairs for operation in pair], monkeypatch)
    expected = Counter()
    for pair, published in zip(pairs, transforms.AutoAugment().policies, strict=True):
        for ours, (name, probability, magnitude) in zip(pair, published, strict=True):
            assert ours.name.removesuffix("Original") == name
            assert magnitude in (ours.magnitude, None)
            assert ours.prob == approx(probability)
            expected[ours.name] += probability / 25
    counts = Counter(name for name, *_ in drawn)
    for name, share in expected.items():
        assert counts[name] / 8000 == approx(share, abs=0.02), name
    assert digest_of(drawn) == "39e0cef1d870f1be"


@mark.parametrize("channels", [1, 3])
def test_borders_are_gray_and_the_corners_of_a_rotation_black(channels):
    image = to_pillow(PIXELS[:channels].clamp(200))
    operations = {op.name: op for op in _rand_augment(10, channels)}
    for name, border in (("Rotate", 0), ("ShearX", 128), ("TranslateY", 128)):
        seen = Counter()
        for seed in range(9):
            timm_policies().random = random.Random(seed)
            seen.update(from_pillow(operations[name](image)).flatten().tolist())
        assert min(seen) == border
        assert seen[border] > 9 * channels
        assert not seen.keys() - {border, *range(200, 256)}


@mark.parametrize("channels", [1, 3])
@mark.parametrize("policy", [partial(rand_augment, 9, 10), auto_augment, partial(color_jitter, 2.0)])
def test_no_draw_fails(policy, channels):
    """Among them posterizing to 0 bits, where timm fails with Pillow 13."""
    pixels = PIXELS[:channels]
    results = [apply_policies([policy], pixels, random.Random(seed)) for seed in range(300)]
    assert all(result.shape == pixels.shape and result.dtype == torch.uint8 for result in results)
    assert sum(not torch.equal(result, pixels) for result in results) > 150


def test_color_jitter_is_torchvisions():
    """The drawn factors in the drawn order, with torchvision's functions."""
    image = to_pillow(PIXELS)
    functions = {
        ImageEnhance.Brightness: TF.adjust_brightness,
        ImageEnhance.Contrast: TF.adjust_contrast,
        ImageEnhance.Color: TF.adjust_saturation,
    }
    for seed in range(100):
        rng = random.Random(seed)
        expected = image
        for kind in rng.sample([*functions], 3):
            expected = functions[kind](expected, rng.uniform(0.6, 1.4))
        assert color_jitter(0.4, image, random.Random(seed)).tobytes() == expected.tobytes()


PRECEDENCE = """
options | names
{} | []
{COLOR_JITTER: 0.3} | [color_jitter]
{COLOR_JITTER: 0.3, AUTO_AUGMENT: true} | [auto_augment]
{COLOR_JITTER: 0.3, AUTO_AUGMENT: true, RAND_AUGMENT: true} | [rand_augment]
{COLOR_JITTER: 0.3, RAND_AUGMENT: true, AUGMENT_POLICY: rand-m9} | [timm_policy]
{COLOR_JITTER: 0.3, AUGMENT_POLICY: 3a} | [timm_policy, color_jitter]
"""


@each_value(PRECEDENCE)
def test_precedence(options, names):
    policies = build_policies(Data(), Train(**options))
    assert [getattr(policy, "func", policy).__name__ for policy in policies] == names


@mark.parametrize("channels, keys", [(1, GREY), (3, [])])
@each_value("""
options
{RAND_AUGMENT: true, RAND_AUGMENT_LAYERS: 9}
{AUTO_AUGMENT: true}
{AUGMENT_POLICY: rand-n9}
{AUGMENT_POLICY: 3a, COLOR_JITTER: 0.3}
""")
def test_an_augmented_image_is_a_function_of_seed_epoch_index_and_repeat(channels, keys, options):
    data = config_for("-image_size=16", "-opts", "DATA.AFFINE_DEGREES=9", *keys).data
    image = LazyImage(PIXELS[:channels])
    train = Train(**options | {"RANDOM_ERASE_PROB": 0.5})
    transform = build_host_transform(data, train, seed=3)
    in_worker = pickle.loads(pickle.dumps(transform))
    results = []
    for place in ((0, 1), (1, 1), (0, 2), (0, 1, 1), (0, 1, 2)):
        result = transform(image, *place)
        random.seed(5), np.random.seed(6)
        assert_same_state(in_worker(image, *place), result)
        results.append(result)
    results.append(build_host_transform(data, train, seed=4)(image, 0, 1))
    assert_same_state(transform(image, 0, 1, 0), results[0])
    assert len({pixels.numpy().tobytes() for pixels, _ in results}) == 6


POLICIES = ["rand-m9-mstd0.5-inc1", "rand-n3-p1.0-tweights", "3a", "originalr-mstd0.5", "augmix-m5-w4-d2-a0.5-mstd1"]
MEAN = (0.485, 0.456, 0.406)


def safe_posterize(image: Image.Image, bits_to_keep: int, **_) -> Image.Image:
    return ImageOps.posterize(image, bits_to_keep) if bits_to_keep > 0 else Image.new(image.mode, image.size)


@each_row("mode | interpolation\nRGB | bicubic\nL | bilinear")
@mark.parametrize("policy", POLICIES)
def test_images_equal_timms_with_the_same_generators(policy, mode, interpolation, monkeypatch):
    for name in ("Posterize", "PosterizeIncreasing", "PosterizeOriginal"):
        monkeypatch.setitem(timm.data.auto_augment.NAME_TO_OP, name, safe_posterize)
    mean = MEAN if mode == "RGB" else (0.5,)
    image = PHOTO.resize((48, 48)).convert(mode)
    _, theirs, _ = timm.data.create_transform(  # the second part is between the flip and the tensor
        48, is_training=True, auto_augment=policy, color_jitter=None, interpolation=interpolation, mean=mean, std=mean,
        hflip=0.0, separate=True,
    )  # fmt: skip
    for seed in range(25):
        result = timm_policy(policy, 48, mean, interpolation, image, random.Random(seed))
        rng = random.Random(seed)
        np.random.seed(rng.getrandbits(32))
        random.setstate(rng.getstate())
        expected = theirs(image)
        assert result.mode == mode
        assert result.size == (48, 48)
        assert result.tobytes() == expected.tobytes(), seed


OF_TORCHVISION = {
    "tv_ta_wide": autoaugment.TrivialAugmentWide,
    "tv_ra-m7": partial(autoaugment.RandAugment, magnitude=7),
    "tv_imagenet": autoaugment.AutoAugment,
    "tv_augmix": autoaugment.AugMix,
}


@mark.parametrize("policy", OF_TORCHVISION)
def test_images_equal_torchvisions_with_the_same_generator(policy):
    theirs = OF_TORCHVISION[policy](interpolation=InterpolationMode.BILINEAR)
    for seed in range(25):
        before = torch.random.get_rng_state()
        result = torchvision_policy(check_policy(policy), "bilinear", PHOTO, random.Random(seed))
        assert torch.equal(before, torch.random.get_rng_state())
        torch.manual_seed(random.Random(seed).getrandbits(63))
        assert result.tobytes() == theirs(PHOTO).tobytes(), seed


UNREAD = (
    "v1 rand- rand-tfoo rand-m9.5 rand-p2 rand-n0 rand-n15-tweights augmix-w0 augmix-m3-inc1 3a-m4 rand-m9-m8 rand-m11"
)


@mark.parametrize("policy", ["", "rand-m" + "9" * 5000, *UNREAD.split()])
def test_strings_that_timm_does_not_read_completely(policy):
    with raises(ValueError):
        check_policy(policy)


TOO_LARGE = """
policy | written
rand-m15-inc1 | rand-m10-inc1
rand-m9-mmax8-n3 | rand-m8-mmax8-n3
augmix-m12-w2 | augmix-m10-w2
"""


@each_value(TOO_LARGE)
def test_a_magnitude_above_the_maximum_is_answered_with_the_one_that_timm_takes(policy, written):
    with raises(ValueError, match=f"write {written.split('-')[1]}$"):
        check_policy(policy)
    check_policy(written)
    for seed in range(9) if "rand" in policy else ():  # augmix draws up to m
        found, expected = (
            timm_policy(one, 48, MEAN, "bicubic", PHOTO, random.Random(seed)) for one in (policy, written)
        )
        assert found.tobytes() == expected.tobytes()
