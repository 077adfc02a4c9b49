"""Pixels of transformers' image processors, which compute more than their keys state."""

from pathlib import Path

from conftest import cells_of, each_value, refused
from pytest import importorskip, mark

from configs.schema import Data
from configs.yaml_io import parse_value
from datasets.decoding.decode import LazyImage
from datasets.transforms.device import Normalize
from datasets.transforms.host import build_eval_host_transform
from engine.checkpoint.processor import published_in
from models.timm_model import preprocessing_of
from tests.datasets.photo import PHOTO, as_tensor


def saved(name: str, options: dict, folder: Path):
    transformers = importorskip("transformers")
    processor = getattr(transformers, f"{name}ImageProcessor")(**options)
    processor.save_pretrained(folder)
    return processor


SHORT = {"SIDES": "{height: 128, width: 128}", "HALF": "[0.5, 0.5, 0.5]", "ONES": "[1.0, 1.0, 1.0]"}
PROCESSORS = """
Levit | {}  # 256/224
EfficientNet | {size: SIDES, resample: 0, image_mean: HALF, image_std: HALF}  # normalizes twice; nearest
EfficientNet | {size: SIDES, rescale_offset: true, rescale_factor: 0.00784313725490196}
ViT | {size: SIDES, rescale_factor: 0.00784313725490196, image_mean: ONES, image_std: ONES}
ViT | {size: SIDES, image_std: [60.0, 70.0, 80.0], do_rescale: false, image_mean: [127.5, 127.5, 127.5]}
ViT | {size: {height: 96, width: 128}, do_normalize: false}
ViT | {size: SIDES, resample: 1}  # Lanczos
DeiT | {}
Perceiver | {}  # crops before it resizes
MobileViT | {crop_size: {height: 192, width: 192}}  # BGR
ConvNext | {size: {shortest_edge: 224}}
ConvNext | {size: {shortest_edge: 384}}
PoolFormer | {size: {shortest_edge: 384}, crop_size: {height: 384, width: 384}, crop_pct: 0.95}
CLIP | {}
"""


@mark.parametrize("name, options", cells_of(PROCESSORS))
def test_an_evaluation_shows_the_pixels_of_the_processor(name, options, tmp_path):
    for word, meaning in SHORT.items():
        options = options.replace(word, meaning)
    options = parse_value(options)
    processor = saved(name, options, tmp_path)
    training, evaluation = preprocessing_of(published_in(tmp_path))
    data = Data.model_validate(training | evaluation)
    for photo in (PHOTO.resize((240, 160)), PHOTO.resize((160, 240))):  # even margins: the others are a pixel beside
        expected = processor(images=photo, return_tensors="pt")["pixel_values"]
        shown = build_eval_host_transform(data)(LazyImage(as_tensor(photo)), 0, 0)[0][None]
        found = Normalize(data)(shown)
        if name == "MobileViT":
            found = found.flip(1)
        close = 0.03 if options.get("resample") == 1 else 0.01
        assert found.shape == expected.shape
        assert (found - expected).abs().mean() < close


OTHERS = """
name | options | keys
TextNet | {size: {shortest_edge: 64}} | size_divisor
Vilt | {size: {shortest_edge: 64}} | do_pad, size_divisor
ViT | {do_resize: false} | do_resize
"""


@each_value(OTHERS)
def test_other_pixels_end_in_a_line_with_their_keys(name, options, keys, tmp_path):
    saved(name, options, tmp_path)
    with refused(rf"^[^\n]*{name}ImageProcessor [^\n]* {keys}[^\n]*$"):
        published_in(tmp_path)
