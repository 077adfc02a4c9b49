"""Weights bring their preprocessing: timm's, a checkpoint's, a family's; keys that the user sets win. A run of images
that are no squares."""

from argparse import Namespace
from pathlib import Path

import timm
import torch
from conftest import (
    assert_same_state,
    cli,
    config_for,
    each_value,
    export_as,
    model_for,
    run_here,
    session_for,
    told,
    train,
)
from pytest import fixture, mark
from timm import create_model
from timm.data import create_transform, resolve_data_config
from timm.layers import resample_abs_pos_embed
from timm.models import save_for_hf

from configs.command_line import parse_command_line
from configs.schema import Data
from configs.weights import NO_RECORD, WeightsRecord, follow_weights
from configs.yaml_io import read_yaml
from datasets.decoding.decode import LazyImage
from datasets.transforms.device import Normalize
from datasets.transforms.host import build_eval_host_transform
from engine.checkpoint import weights_record
from engine.evaluation.session import build_eval_model
from engine.plan.evaluation import plan_evaluation
from engine.run.facts import Preprocessing, read_fact
from engine.run.log import RunLogger
from engine.run.record import read_run
from models.build import build_model
from tests.datasets.photo import PHOTO, as_tensor
from tests.datasets.sources.source_helpers import write_image

NAMES = ["resnet18.tv_in1k", "resnet18", "vit_small_patch16_224", "beit_base_patch16_384", "convnext_tiny.fb_in22k"]
FINETUNE = ["-cfg=configs/finetune.yaml", "-data_path=data"]


def completed(*argv: str) -> tuple[Data, str, list[str]]:
    """DATA, its sources and the warnings, as a training run completes them before it reads the data."""
    config = config_for(*argv)
    given = {field.upper() for field in config.data.model_fields_set}
    followed = follow_weights(config, {f"DATA.{key}" for key in given}, weights_record.weights_record(config.model))
    return followed.options.data, followed.sources, [note.text for note in followed.differing.values()]


def timms(name: str) -> dict:
    return resolve_data_config(pretrained_cfg=timm.get_pretrained_cfg(name).to_dict())


@mark.parametrize("name", NAMES)
@mark.parametrize("weights", ["-batch_size=2", "-pretrained=file.pth"])
def test_a_recipe_with_weights_of_timms_has_timms_values(name, weights, tmp_path):
    torch.save({"a": torch.ones(1)}, tmp_path / "file.pth")
    weights = weights.replace("file", f"{tmp_path}/file")
    data, sources, warnings = completed(*FINETUNE, f"-model={name}" if name != NAMES[2] else "-batch_size=2", weights)
    expected = timms(name)
    found = {"input_size": (3, data.image_size, data.image_size), "interpolation": data.interpolation}
    found |= {"mean": data.imagenet_mean, "std": data.imagenet_std, "crop_pct": data.crop_pct}
    assert found == {key: expected[key] for key in found}
    assert not warnings
    assert sources.startswith(f"timm's {name}")


_TIMM = config_for("-eval", "-dataset=folder", "-opts", "MODEL.TYPE=timm", "MODEL.PRETRAINED=timm")
_MODES = {"crop": "center", "squash": "squash", "pad": "border"}


def evaluated(name: str, **follows) -> Data:
    """DATA of an evaluation of weights that timm publishes."""
    config = _TIMM.with_model(name=name)
    record = weights_record.weights_record(config.model)
    return follow_weights(config, {}, record, evaluates=True, **follows).options.data


def test_an_evaluation_of_each_published_model_has_timms_values():
    """With its test size, test crop and crop mode; -embed sees the images as a training does, such as a probe."""
    names = timm.list_pretrained()
    for name in names:
        published = timm.get_pretrained_cfg(name).to_dict()
        expected = resolve_data_config(pretrained_cfg=published, use_test_size=True)
        data = evaluated(name)
        assert expected == {
            "input_size": (3, *data.input_size), "crop_pct": data.crop_pct, "crop_mode": _MODES[data.resize],
            "interpolation": data.interpolation, "mean": data.imagenet_mean, "std": data.imagenet_std
        }  # fmt: skip
        trained = resolve_data_config(pretrained_cfg=published)
        embedded = evaluated(name, as_published=False)
        assert ((3, *embedded.input_size), embedded.crop_pct) == (trained["input_size"], trained["crop_pct"])
        assert embedded.resize == "crop"
    assert len(names) > 1800


@mark.parametrize("name", [
    "resnet50.a1_in1k", "test_resnet.r160_in1k", "vit_base_patch16_siglip_224.webli", "dm_nfnet_f0.dm_in1k",
    "deepseek_vit_412m.deepseek_v4_flash_vision_exp", "vit_base_patch16_sapiens2.fb"
])  # fmt: skip
def test_an_evaluation_shows_timms_pixels(name):
    expected = resolve_data_config(pretrained_cfg=timm.get_pretrained_cfg(name).to_dict(), use_test_size=True)
    ours = build_eval_host_transform(evaluated(name))
    theirs = create_transform(**expected, normalize=False)
    for size in ((261, 199), (97, 640), (333, 500), (31, 33), (1000, 777)):
        photo = PHOTO.resize(size)
        pixels = ours(LazyImage(as_tensor(photo)), 0, 0)[0]
        timms = theirs(photo)
        assert pixels.shape == timms.shape
        assert (pixels.int() - timms.int()).abs().float().mean() < 0.2


SQUASHED = {"RESIZE": "squash", "CROP_PCT": 0.875}
RECORDS = {
    "no": NO_RECORD,
    "own": WeightsRecord("it", {}, SQUASHED | {"DATASET": "folder"}),
    "foreign": WeightsRecord("it", {}, {}, evaluation=SQUASHED),
}
# resize: of the options; given: keys of the user's, of which CROP_PCT is 0.9; crop: of the run
CROPS = """
resize | given | record | evaluates | crop
squash | [DATA.RESIZE, DATA.CROP_PCT] | 'no' | false | 1.0
squash | [DATA.RESIZE, DATA.CROP_PCT] | foreign | false | 1.0
squash | [DATA.RESIZE, DATA.CROP_PCT] | own | true | 1.0
squash | [DATA.RESIZE, DATA.CROP_PCT] | foreign | true | 0.9
squash | [DATA.RESIZE, DATA.CROP_PCT] | 'no' | true | 0.9
squash | [DATA.RESIZE] | 'no' | true | 1.0
crop | [] | own | true | 1.0
crop | [] | foreign | true | 0.875
"""


@each_value(CROPS)
def test_a_run_of_squashed_images_has_no_crop(resize, given, record, evaluates, crop):
    """As in its training, for any CROP_PCT that was given; weights of others may have one."""
    options = config_for("-opts", f"DATA.RESIZE={resize}", "DATA.CROP_PCT=0.9")
    assert follow_weights(options, given, RECORDS[record], evaluates=evaluates).options.data.crop_pct == crop


def test_a_training_names_the_pixels_that_its_weights_do_not_expect(digits_run, digits_argv):
    """Both values of each option that is given; the size and the crop are a choice of a fine-tuning."""
    weights = f"MODEL.PRETRAINED={digits_run() / 'last.pth'}"
    given = cli("DATA.RESIZE=pad DATA.INTERPOLATION=bilinear DATA.GREY_RANGE=[0,4095] DATA.CROP_PCT=0.5")
    found = told(session_for([*digits_argv, weights, *given]).plan.notes, "DATA.", "warning")
    values = {"RESIZE": ("pad", "crop"), "INTERPOLATION": ("bilinear", "bicubic"), "GREY_RANGE": ("4095", "null")}
    assert len(found) == len(values)
    for key, both in values.items():
        (text,) = [text for text in found if f"DATA.{key} " in text]
        assert all(value in text for value in both)


@fixture
def photos(tmp_path) -> Path:
    """A folder of two classes."""
    for index in range(12):
        write_image(tmp_path / "data" / "ab"[index % 2] / f"{index}.png", PHOTO.rotate(index))
    return tmp_path / "data"


def run_on(folder: Path, *argv: str) -> tuple[Path, Preprocessing]:
    """A run of one more step."""
    run = train([*cli(f"-data_path={folder} -batch_size=4 -num_workers=0 -output={folder.parent / 'out'}"), *argv])
    return run, read_fact(read_run(run), Preprocessing)


KEYS = ("IMAGE_SIZE", "CROP_PCT", "INTERPOLATION", "IMAGENET_MEAN", "IMAGENET_STD")


def values_of(fact: Preprocessing) -> list:
    """Of `KEYS`."""
    return [fact.image_size, fact.crop_pct, fact.interpolation, list(fact.mean), list(fact.std)]


def test_runs_take_it_from_timm_then_from_their_checkpoint(photos, tmp_path):
    """The preprocessing of a run is in its files; runs that start or resume from its weights have the same."""
    name = "test_resnet.r160_in1k"
    weights = tmp_path / "timm.pth"
    args = Namespace(model=name, gp="max")
    torch.save({"state_dict": create_model(name).state_dict(), "args": args}, weights)
    recipe = ["-cfg=configs/finetune.yaml", f"-model={name}"]
    stop = cli("-opts DATA.IMAGE_SIZE=32 DATA.INTERPOLATION=bilinear TRAIN.MAX_STEPS=1")
    run, _ = run_on(photos, *recipe, f"-pretrained={weights}", *stop)
    expected = timms(name)
    values = [32, expected["crop_pct"], "bilinear", [*expected["mean"]], [*expected["std"]]]
    data = read_yaml(run / "config.yaml")["DATA"]
    assert [data[key] for key in KEYS] == values
    again = [f"-pretrained={weights}", "-resume=auto", *stop[:-1], "TRAIN.MAX_STEPS=2"]
    resumed, fact = run_on(photos, *recipe, *again)
    assert (resumed, values_of(fact)) == (run, values)
    assert read_yaml(run / "config.yaml")["MODEL"]["KWARGS"] == {"global_pool": "max"}
    _, fact = run_on(photos, *recipe, f"-pretrained={run / 'last.pth'}", "-opts", "TRAIN.MAX_STEPS=1")
    assert values_of(fact) == values


def test_a_run_of_tall_images(photos, tmp_path):
    """With all operations that draw boxes; its checkpoint and its export give the logits of its model."""
    size = cli(f"-image_size=48,16 -dataset=folder -data_path={photos} -output={tmp_path}")
    model = cli("MODEL.PATCH_SIZE=8 MODEL.EMBED_DIM=16 MODEL.DEPTH=1 MODEL.NUM_HEADS=2 TRAIN.NUM_EPOCHS=2")
    boxes = cli("TRAIN.CUTMIX_MINMAX=[0.2,0.8] TRAIN.MIXUP_ALPHA=0.8 TRAIN.RANDOM_ERASE_PROB=1.0")
    more = cli("DATA.AFFINE_DEGREES=9.0 TRAIN.AUGMENT_POLICY=rand-m9-mstd0.5-inc1 DATA.VAL_FRACTION=0.3")
    folder = train([*size, "-batch_size=4", "-num_workers=0", "-opts", *model, *boxes, *more], pictures=True)
    record = read_run(folder)
    assert record["facts"]["Preprocessing"]["image_size"] == record["preprocessing"]["image_size"] == [48, 16]
    run_here("-predict", str(photos / "a"), f"-resume={folder}", "-explain", f"-output={tmp_path}/p")
    assert len([*tmp_path.glob("p/explanations/*")]) == 6
    export_as("hf", folder, tmp_path / "hf")
    theirs = create_model(f"local-dir:{tmp_path / 'hf'}", pretrained=True).eval()
    assert theirs.pretrained_cfg["input_size"] == (3, 48, 16)
    assert theirs.patch_embed.grid_size == (6, 2)


PUBLISHED = {
    "input_size": (3, 48, 48), "mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6), "crop_pct": 0.8,
    "interpolation": "bilinear"
}  # fmt: skip


@fixture
def hf_folder(tmp_path) -> Path:
    """A model with register tokens, saved by timm for the Hub with the classes 'b' and 'a'."""
    model = create_model("test_vit", img_size=48, num_classes=2, reg_tokens=2, global_pool="avg")
    save_for_hf(model, str(tmp_path / "hf"), {"label_names": ["b", "a"]}, data_config=PUBLISHED)
    return tmp_path / "hf"


@mark.parametrize("kwargs", [{"dynamic_img_size": False}, {}])
def test_a_model_of_tall_images_is_timms(kwargs, tmp_path, photos, cpu):
    """Its grid of 4 x 2 tokens is resized, also to 8 of 2 x 4. timm evaluates one of any size at 160 x 160 pixels."""
    model = create_model("test_vit", img_size=(64, 32), num_classes=2, **kwargs).eval()
    timm.layers.trunc_normal_(model.pos_embed, std=0.5)
    save_for_hf(model, str(tmp_path / "hf"), {"label_names": ["a", "b"]}, model_args={"img_size": (64, 32)} | kwargs)
    argv = cli(f"-eval -dataset=folder -data_path={photos} -pretrained={tmp_path / 'hf'}")
    plan = plan_evaluation(parse_command_line(argv), cpu, RunLogger(cpu))
    theirs = create_model(f"local-dir:{tmp_path / 'hf'}", pretrained=True).eval()
    settings = resolve_data_config(model=theirs, use_test_size=True)
    assert plan.record.image_size == (64, 32)
    assert (3, *plan.config.data.input_size) == settings["input_size"]
    pixels = create_transform(**settings)(PHOTO)[None]
    ours = build_eval_host_transform(plan.config.data)(LazyImage(as_tensor(PHOTO)), 0, 0)[0][None]
    built = build_eval_model(plan.config, cpu, record=plan.record).compute
    assert (built(Normalize(plan.config.data)(ours)) - theirs(pixels)).abs().max() < 0.05
    for size in ([32, 64], [64, 64], 32):
        data = plan.config.data.model_copy(update={"image_size": Data(IMAGE_SIZE=size).image_size})
        resized = build_model(plan.config.model, data, cpu.device, weights_size=plan.record.image_size)[0].pos_embed
        grid = [side // 16 for side in data.input_size]
        assert torch.equal(resized, resample_abs_pos_embed(model.pos_embed, grid, [4, 2]))
    tall = plan.config.data.model_copy(update={"image_size": (64, 32)})
    assert torch.equal(build_model(plan.config.model, tall, cpu.device)[0].pos_embed, model.pos_embed)


def test_a_model_of_the_hub_brings_all_its_values(hf_folder, photos, tmp_path, monkeypatch, cpu):
    """The same in training, resumed, in -eval, -predict, and exports, which do not need the Hub again."""
    state = torch.load(hf_folder / "pytorch_model.bin")
    monkeypatch.setattr("huggingface_hub.file_exists", lambda repo, file, revision: (hf_folder / file).exists())
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda repo, file, revision: str(hf_folder / file))
    start = ["-model=hf-hub:ORG/NAME@v1", "-pretrained=timm"]
    config = config_for(*start, "-image_size=48", "-opts", "MODEL.NUM_CLASSES=2")
    assert_same_state(dict(model_for(config)[0].state_dict()), dict(state))

    run, _ = run_on(photos, "-dataset=folder", *start, "-opts", "TRAIN.MAX_STEPS=1")
    values = [48, 0.8, "bilinear", (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)]
    hf_folder.rename(tmp_path / "moved")
    _, fact = run_on(photos, f"-resume={run}", "-opts", "TRAIN.MAX_STEPS=2")
    assert values_of(fact) == [*values[:3], *map(list, values[3:])]
    exports = [tmp_path / "digits.safetensors", tmp_path / "export"]
    for path, form in zip(exports, ("safetensors", "hf"), strict=True):
        export_as(form, run, path, "-no_check")
    of_data = ["-dataset=folder", f"-data_path={photos}"]
    for weights in (run / "last.pth", *exports, tmp_path / "moved"):
        for command in (["-eval", *of_data], ["-predict", str(photos)]):
            command = parse_command_line([*command, f"-pretrained={weights}"])
            config = plan_evaluation(command, cpu, RunLogger(cpu)).config
            data = config.data.model_dump(by_alias=True)
            assert [data[key] for key in KEYS] == values
            assert config.model.name == "test_vit"
            assert config.model.kwargs.items() >= {"reg_tokens": 2, "global_pool": "avg"}.items()
