"""Checkpoints that timm reads; files of other programs in place of a checkpoint; the metadata of a .safetensors file:
class names, preprocessing and options, also of one that means harm."""

import re
import shlex
import shutil
from argparse import Namespace
from pathlib import Path
from unicodedata import normalize

import safetensors.torch
import timm
import torch
from conftest import (
    CPU,
    assert_same_state,
    cells_of,
    cli,
    config_for,
    each_row,
    each_value,
    line_of,
    of_module,
    refused,
)
from pytest import approx, mark
from timm import create_model
from timm.data import create_transform, resolve_data_config
from timm.models import load_state_dict
from torch import Tensor, nn
from torchvision.transforms import InterpolationMode, v2

from configs.command_line import parse_command_line
from configs.schema import Config, Data
from configs.weights import follow_weights
from configs.yaml_io import parse_value
from datasets.decoding.decode import LazyImage
from datasets.transforms.device import Normalize
from datasets.transforms.host import build_eval_host_transform
from engine.checkpoint.files import CheckpointWriter, load_checkpoint
from engine.checkpoint.weights_record import describe_data, read_record, to_metadata, weights_record
from engine.evaluation.session import build_eval_model
from engine.plan.evaluation import options_of_weights
from models.weights.read import read_weights
from tests.datasets.photo import PHOTO, as_tensor


@of_module
def checkpoint(trained_digits, tmp_path_factory):
    """A copy with another ending, outside the folder of its run."""
    run = trained_digits("TRAIN.BASE_LR=1e-2", "TRAIN.MODEL_EMA=true", "TRAIN.MODEL_EMA_DECAY=0.9")
    return shutil.copy(run / "best.pth", tmp_path_factory.mktemp("copy") / "best.ckpt")


def evaluated(weights: Path | str, *words: str) -> Config:
    """The options of an evaluation of these weights."""
    return options_of_weights(parse_command_line(["-eval", f"-pretrained={weights}", *words]))[0]


def built(config: Config) -> nn.Module:
    return build_eval_model(config, CPU).fp32.eval()


@each_row("options | key\n-opts MODEL.WEIGHTS_ENTRY=raw | model\n | state_dict_ema")
def test_timm_and_this_program_read_the_raw_weights_and_the_average(checkpoint, options, key):
    expected = load_checkpoint(checkpoint)[key]
    model = built(evaluated(checkpoint, *cli(options)))
    assert_same_state(load_state_dict(str(checkpoint), use_ema=not options), expected)
    assert_same_state(dict(model.state_dict()), expected)
    assert read_record(str(checkpoint)).class_names == list("0123456789")


def test_weights_in_a_checkpoint_are_contiguous(checkpoint, tmp_path):
    state = load_checkpoint(checkpoint)
    weight = torch.rand(4, 3, 2, 2).contiguous(memory_format=torch.channels_last)
    writer = CheckpointWriter(tmp_path, 0, lambda *_: None)
    writer.save(state | {"model": {"conv.weight": weight}, "state_dict_ema": None}, is_best=False, periodic=None)
    writer.wait()
    saved = load_checkpoint(tmp_path / "last.pth")
    safetensors.torch.save_file(saved["model"], tmp_path / "x.safetensors")
    assert torch.equal(saved["model"]["conv.weight"], weight)
    assert saved["state_dict_ema"] is None


def test_an_evaluation_takes_the_model_that_the_file_of_another_program_names(saved):
    """As timm's train.py and DeiT write it; a given model stays."""
    model = create_model("test_vit2", num_classes=3)
    content = {"arch": "test_vit2", "state_dict": model.state_dict()}
    weights = saved(content | {"hyper_parameters": {"std": 0.02}})  # of its initial weights
    options = evaluated(weights)
    assert options.model.num_classes == 3
    assert_same_state(built(options).state_dict(), model.state_dict())
    with refused("-model=test_vit2"):
        built(evaluated(weights, "-model=test_vit3"))


def pixels_of(data: Data) -> Tensor:
    """What an evaluation shows a model of a photograph of 131 x 96 pixels: normalized (1, 3, S, S)."""
    photo = LazyImage(as_tensor(PHOTO.resize((131, 96))))
    return Normalize(data)(build_eval_host_transform(data)(photo, 0, 0)[0][None])


def torchvisions(resized: int | tuple[int, int], method: str, size: int) -> v2.Compose:
    """The transform of a PIL image; size: of the crop."""
    crop = [v2.Resize(resized, InterpolationMode(method)), v2.CenterCrop(size), v2.ToImage()]
    normalize = v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    return v2.Compose([*crop, v2.ToDtype(torch.float32, scale=True), normalize])


def assert_evaluated_as(options: Config, model: nn.Module, expected: Tensor, limit: float):
    """An evaluation shows these pixels but for differences of `limit` in the mean, and has the logits of the model."""
    pixels = pixels_of(options.data)
    assert (pixels - expected).abs().mean() < limit
    assert torch.allclose(built(options)(pixels), model(pixels), atol=1e-5)


UNSET = dict.fromkeys(cli("img_size input_size in_chans crop_pct mean std gp bn_eps"))
OF_TIMM = """
name | given
resnet10t | {mean: [0.2, 0.3, 0.7], std: [0.5, 0.4, 0.3], img_size: 48, gp: max}
test_vit | {crop_pct: 0.6, interpolation: bilinear, img_size: 96, model_kwargs: {reg_tokens: 2}}
test_efficientnet | {bn_eps: 0.5, crop_mode: squash, mean: [0.1, 0.1, 0.1]}
resnet10t | {val_resize_size: 72, val_crop_size: 48, interpolation: bilinear}  # torchvision's
"""


@each_value(OF_TIMM)
def test_the_args_of_a_file_decide_its_pixels_and_its_network(name, given, saved):
    """By timm's own functions; a given key stays, and a fine-tuning starts with the same values."""
    args = UNSET | {"interpolation": "", "model_kwargs": {}} | given
    network = {"global_pool": args["gp"], "bn_eps": args["bn_eps"]} | args["model_kwargs"]
    if name == "test_vit":
        network["img_size"] = 96
    network = {key: value for key, value in network.items() if value}
    model = create_model(name, num_classes=3, **network).eval()
    path = saved({"state_dict": model.state_dict(), "args": Namespace(model=name, **args)})
    shown = create_transform(**resolve_data_config(args, model=model))
    if "val_crop_size" in given:
        shown = torchvisions(72, "bilinear", 48)
    expected = shown(PHOTO.resize((131, 96)))[None]
    weights = f"-pretrained={path}"
    for words in ([], [f"-model={name}"]):
        options, _, notes = options_of_weights(parse_command_line(["-eval", weights, *words]))
        assert_evaluated_as(options, model, expected, 0.01)
        assert "screen" in {getattr(note, "kind", "") for note in notes}
    config = config_for("-cfg=configs/finetune.yaml", "-data_path=data", f"-model={name}", weights)
    tuned = follow_weights(config, {}, weights_record(config.model)).options
    changed = options.data.model_copy(update={"resize": "crop", "crop_pct": tuned.data.crop_pct})
    assert tuned.model.kwargs == options.model.kwargs
    assert (pixels_of(tuned.data) == pixels_of(changed)).all()
    kept = evaluated(path, "-opts", "DATA.IMAGENET_MEAN=[0.4, 0.4, 0.4]")
    assert kept.data.imagenet_mean == (0.4, 0.4, 0.4)


# The model, its arguments, the crop, what the file has beside the weights; size after the resize, filter
OF_PROGRAMS = """
name | changes | size | beside | resized | method
test_resnet | {} | 160 | {arch: test_resnet, epoch: 1} | 182 | bilinear  # PyTorch's example
test_vit | {img_size: 96} | 96 | {args: {model: test_vit, nb_classes: 3, input_size: 96}} | 109 | bicubic  # DeiT
test_convnext | {} | 384 | {args: {model: test_convnext, nb_classes: 3, input_size: 384, crop_pct: null}} | \
    [384, 384] | bicubic  # ConvNeXt
test_convnext | {} | 384 | {args: {model: test_convnext, nb_classes: 3, input_size: 384, crop_pct: null, \
    rel_pos_bias: true}} | 384 | bicubic  # BEiT
test_vit | {img_size: 256, global_pool: avg} | 256 | \
    {args: {model: test_vit, nb_classes: 3, input_size: 256, global_pool: true}} | 256 | bicubic  # MAE
test_convnext | {} | 64 | {config: {DATA: {IMG_SIZE: 64, INTERPOLATION: bilinear}, TEST: {CROP: false}}} | \
    [64, 64] | bilinear  # Swin
"""


@each_value(OF_PROGRAMS)
def test_what_a_program_fixes_decides_pixels_and_network(name, changes, size, beside, resized, method, saved):
    model = create_model(name, num_classes=3, **changes).eval()
    if "args" in beside:
        beside = {"args": Namespace(**beside["args"])}
    path = saved({"state_dict": model.state_dict(), **beside})
    expected = torchvisions(resized, method, size)(PHOTO.resize((131, 96)))[None]
    words = [f"-model={name}"] if "config" in beside else []
    assert_evaluated_as(evaluated(path, *words), model, expected, 0.02)


OPEN_CLIP = """
{"model_cfg":
    {"quick_gelu": true, "vision_cfg": {"layers": 1, "width": 64, "patch_size": 16, "image_size": 32}},
 "preprocess_cfg": {"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25], "resize_mode": "squash"}}
"""


def test_the_file_beside_open_clips_weights_decides_pixels_and_activation(tmp_path):
    small = {"embed_dim": 64, "depth": 1, "num_heads": 1}
    model = create_model("vit_base_patch16_clip_quickgelu_224", img_size=32, num_classes=3, **small).eval()
    torch.save(model.state_dict(), tmp_path / "open_clip_pytorch_model.bin")
    (tmp_path / "open_clip_config.json").write_text(OPEN_CLIP)
    words = ["-model=vit_base_patch16_clip_224", "-opts", f"MODEL.KWARGS={small}", "MODEL.NUM_CLASSES=3"]
    options = evaluated(tmp_path / "open_clip_pytorch_model.bin", *words)
    expected = as_tensor(PHOTO.resize((131, 96)).resize((32, 32)))[None] / 255
    assert_evaluated_as(options, model, (expected - 0.5) / 0.25, 0.02)


def test_files_of_other_programs_are_not_read_as_those_of_these(saved):
    """A template with `config`, timm's saver without arguments, a network by that name, and a pooling by its name."""
    own = create_model("test_vit", num_classes=3)
    content = {"state_dict": own.state_dict(), "arch": "test_vit", "epoch": 1}
    positions = {"arch": "vit_small", "state_dict": {"module.pos_embed": torch.ones(1, 2, 4)}}
    arguments = {"nb_classes": 3, "input_size": 160, "global_pool": "token"}
    more = [{"config": {}}, {"version": 2}, positions, {"args": Namespace(**arguments)}]
    found = [read_weights(saved(content | entries)).program_arguments for entries in more]
    assert found[:2] == [{}, {}]
    assert "model_kwargs" not in found[2]
    assert "gp" not in found[3]


def test_a_vit_small_of_moco_v3_has_twelve_heads(saved):
    """Its tensors fit six heads as well. The recipe of this name has six: the line for twelve works."""
    small = {"img_size": 16, "depth": 1, "num_classes": 3}
    state = create_model("vit_small_patch16_224", **small, num_heads=12).state_dict()
    state["pos_embed"][0, 0] = 0
    wrapped = {f"module.{name}": one for name, one in state.items()}
    path = saved({"arch": "vit_small", "epoch": 1, "state_dict": wrapped})
    reduced = evaluated(path, "-model=vit_small_patch16_224", "-opts", "MODEL.KWARGS={depth: 1}")
    assert reduced.model.kwargs == {"num_heads": 12, "depth": 1}
    message = line_of(evaluated, path, "-model=vit_small_patch16_224")
    advised = shlex.split(message.partition("; give ")[2])
    assert config_for("-eval", f"-pretrained={path}", *advised).model.kwargs == {"num_heads": 12}


def test_who_trained_in_gray_with_timms_input_size_evaluates_in_gray(saved):
    """As timm's train.py: without in_chans, the channels are the first of the three values."""
    state = create_model("resnet10t", in_chans=1).state_dict()
    for in_chans, channels in ((None, 1), (3, 3)):
        args = Namespace(model="resnet10t", input_size=[1, 48, 48], in_chans=in_chans)
        data = evaluated(saved({"state_dict": state, "args": args})).data
        assert (data.image_channels, data.image_size) == (channels, 48)


NOT_FOLLOWED = """
given | key
{interpolation: hamming} | DATA.INTERPOLATION
{in_chans: 4} | DATA.IMAGE_CHANNELS
{mean: abc} | DATA.IMAGENET_MEAN
"""


@each_value(NOT_FOLLOWED)
def test_an_argument_that_cannot_be_followed_is_named(given, key, saved):
    args = Namespace(model="resnet10t", **given)
    path = saved({"state_dict": create_model("resnet10t").state_dict(), "args": args})
    with refused(key):
        evaluated(path)


@each_value("given\n{bn_eps: 0.1}\n{model_kwargs: {deepness: 9}}")
def test_an_argument_that_cannot_be_followed_is_left_out_as_advised(given, saved):
    args = Namespace(model="resnet10t", crop_pct=0.6, **given)
    path = saved({"state_dict": create_model("resnet10t").state_dict(), "args": args})
    message = line_of(evaluated, path)
    advised = re.findall(r"-model=resnet10t|-opts|MODEL\.KWARGS=\S+", message)
    config = evaluated(path, *advised)
    assert (config.model.kwargs, config.data.crop_pct) == ({}, 0.6)


def test_the_normalization_follows_one_channel():
    """`timm`: ImageNet's, of the published weights; a given value stays."""
    published = timm.get_pretrained_cfg("resnet10t").mean
    for options, mean in (([], (0.5,)), (["DATA.IMAGENET_MEAN=[0.4]"], (0.4,))):
        data = config_for("-model=resnet10t", "-opts", "DATA.IMAGE_CHANNELS=1", *options).data
        assert (data.imagenet_mean, data.imagenet_std) == (mean, (0.5,))
    family = config_for("-opts", "MODEL.TYPE=swin", "DATA.IMAGE_CHANNELS=1").data
    assert family.imagenet_mean == approx((sum(published) / 3,))
    weights = evaluated("timm", "-model=resnet10t", "-opts", "DATA.IMAGE_CHANNELS=1")
    assert weights.data.imagenet_mean == approx((sum(published) / 3,))


OPTIONS = parse_value("{MODEL: {TYPE: vit, EMBED_DIM: 48, NUM_HEADS: 3, NUM_CLASSES: 2}, DATA: {DATASET: digits}}")
DATA = Data(IMAGE_SIZE=32, IMAGENET_MEAN=(0.1, 0.2, 0.0))


def write(folder: Path, names: list[str] | None = None, **changes: str) -> Path:
    metadata = to_metadata(describe_data(DATA, names or ["cat", "dog"]), OPTIONS) | changes
    file = folder / "a.safetensors"
    safetensors.torch.save_file({"a": torch.ones(1)}, file, metadata)
    return file


def options_of(file: Path) -> dict:
    config = config_for("-eval", f"-pretrained={file}")
    return {"embed_dim": config.model.embed_dim, "dataset": config.data.dataset, "resume": config.model.resume}


@mark.parametrize("names", [["cat", "dog"], ["<script>", "=1+1"], ["a\nb", "\x1b[2J"], ["ü", "x" * 300], ["u\u0308"]])
def test_names_and_preprocessing_are_read_back(names, tmp_path):
    file = write(tmp_path, names)
    record = read_record(str(file))
    assert record.class_names == [normalize("NFC", name) for name in names]
    assert (record.num_classes, record.model) == (2, OPTIONS["MODEL"])
    known = {"CROP_PCT": DATA.crop_pct, "IMAGENET_MEAN": list(DATA.imagenet_mean), "DATASET": "digits"}
    assert record.data.items() >= known.items()
    assert options_of(file) == {"embed_dim": 48, "dataset": "digits", "resume": None}


WRONG_VALUES = """
thresholds | [2.0, 0.5] | thresholds.0
thresholds | "abc" | thresholds
threshold_logits | [NaN] | threshold_logits.0
threshold_logits | [1e99] | threshold_logits.0
class_names | "abc" | class_names
class_names | [1, 2] | class_names.0
class_names | [] | class_names
class_names | { | property name
preprocessing | [] | preprocessing
preprocessing | NaN | preprocessing
preprocessing | {"image_size": 1e99} | IMAGE_SIZE
preprocessing | {"edges": "soft"} | edges is unknown
preprocessing | {} | image_size, resize, crop_pct, channels, mean, std, interpolation missing
split | 3 | no split
options | {"MODEL": {}, "DATA": {"RESIZE": "fold"}} | RESIZE
"""


@mark.parametrize("entry, text, named", cells_of(WRONG_VALUES))
def test_a_wrong_value_or_an_unknown_key_of_the_record_is_refused_by_name(entry, text, named, tmp_path):
    """Weights without their preprocessing would see other pixels."""
    changes = {"preprocessing": "null"} if entry == "options" else {}
    file = write(tmp_path, None, **changes, **{entry: text})
    with refused(rf"^{file}: [^\n]*{named}[^\n]*$"):
        read_record(str(file))


@mark.parametrize("text", ["[" * 100_000, "9" * 10_000, '{"MODEL": [], "DATA": {}}', "{}"])
def test_options_of_another_form_are_of_another_program(text, tmp_path):
    file = write(tmp_path, None, options=text)
    assert read_record(str(file)) is None
    assert options_of(file)["embed_dim"] == 768


def test_options_that_name_other_files_are_not_read(tmp_path):
    model = '{"RESUME": "/other", "PRETRAINED": "/other.pth"}'
    file = write(tmp_path, options=f'{{"MODEL": {model}, "DATA": {{"NUM_WORKERS": 99}}, "SAVE": "/other"}}')
    config = config_for("-eval", f"-pretrained={file}")
    assert (config.model.resume, config.model.pretrained) == (None, str(file))
    assert config.data.num_workers is None
    assert config.save != "/other"
