"""Models of transformers: logits, training, evaluation and export as transformers has them, on reduced models."""

import json
from pathlib import Path

import numpy as np
import timm
import torch
import yaml
from conftest import (
    assert_same_state,
    cli,
    config_for,
    each_value,
    export_as,
    model_for,
    of_module,
    refused,
    run_here,
    states,
    train,
)
from numpy.random import default_rng
from PIL import Image
from pytest import approx, importorskip, mark
from timm import create_model
from torch import Tensor, nn
from torch.testing import assert_close
from transformers_models import transformers_model

from configs.command_line import parse_command_line
from configs.schema import Amp
from configs.schema.section import as_tuple
from configs.weights import PREPROCESSING
from configs.yaml_io import parse_value
from datasets.transforms.device import Normalize
from engine.checkpoint.weights_record import read_record
from engine.evaluation.evaluate import Evaluator
from engine.evaluation.files import attention_rollout
from engine.parallel import Strategy
from engine.plan.evaluation import options_of_weights
from engine.precision.policy import Precision
from engine.run.cost import copy_to_meta
from models.blocks import FeatureModel
from models.recompute import store_products
from models.weights.choose import EVALUATE, FINE_TUNE
from models.weights.read import read_weights
from tests.datasets.sources.source_helpers import write_image
from utils.file_formats import hf_folder
from utils.tables import read_csv_rows

NAMES = ("cat", "bee", "dog")  # not in their order
# model_type: class, configuration, class of the processor, its options
FAMILIES = yaml.safe_load("""
vit: [ViTForImageClassification,
  &vit {hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 64, image_size: 32,
        patch_size: 8}, ViT, &squash {size: &shown {height: 32, width: 32}}]
deit: [DeiTForImageClassification, *vit, DeiT, {size: {height: 36, width: 36}, crop_size: *shown}]
dinov2: [Dinov2ForImageClassification, &dino {<<: *vit, mlp_ratio: 2}, Bit,
  &crop {size: {shortest_edge: 36}, crop_size: *shown}]
dinov2_with_registers: [Dinov2WithRegistersForImageClassification, *dino, Bit, *crop]
dinov3_vit: [DINOv3ViTModel, {<<: *vit, num_register_tokens: 2}, DINOv3ViT, *squash]
swin: [SwinForImageClassification,
  &windows {embed_dim: 16, depths: [1, 2], num_heads: [2, 2], window_size: 4, image_size: 32, patch_size: 4},
  ViT, *squash]
swinv2: [Swinv2ForImageClassification, *windows, ViT, *squash]
beit: [BeitForImageClassification, {<<: *vit, use_relative_position_bias: true}, Beit, *squash]
convnext: [ConvNextForImageClassification, &stages {hidden_sizes: [8, 16, 24, 32], depths: [1, 1, 2, 1]}, ConvNext,
  &staged {size: {shortest_edge: 32}, crop_pct: 0.8}]
convnextv2: [ConvNextV2ForImageClassification, *stages, ConvNext, *staged]
siglip: [SiglipForImageClassification, &towers {vision_config: *vit, text_config: {hidden_size: 32,
  num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 64, vocab_size: 50000}}, Siglip, *squash]
clip: [CLIPModel, *towers, CLIP, *crop]
mobilevit: [MobileViTForImageClassification, {hidden_sizes: [16, 24, 32], num_attention_heads: 2, image_size: 32,
  neck_hidden_sizes: [8, 8, 16, 16, 24, 24, 32]}, MobileViT, *crop]
""")
HEADLESS = ("clip", "dinov3_vit")
PIXELS = torch.randn(2, 3, 32, 32)


def save(folder: Path, kind: str):
    """Writes a model of random weights and its processor, as transformers does; returns both."""
    transformers = importorskip("transformers")
    class_name, values, processor_name, options = FAMILIES[kind]
    if kind not in HEADLESS:
        label_of = {name: label for label, name in enumerate(NAMES)}
        values = values | {"id2label": dict(enumerate(NAMES)), "label2id": label_of}
    torch.manual_seed(0)
    config = transformers.CONFIG_MAPPING[kind].from_dict(values)
    model = getattr(transformers, class_name)(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=min(0.3, (2 / parameter[0].numel()) ** 0.5))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
    processor = getattr(transformers, f"{processor_name}ImageProcessor")(**options)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return model, processor


@of_module
def images(tmp_path_factory) -> Path:
    """Class folders of colored noise. A crop of other sizes is placed up to a pixel differently by transformers."""
    root = tmp_path_factory.mktemp("images")
    rng = default_rng(0)
    for number in range(36):
        split = "train" if number < 24 else "val"
        height, width = ((40, 50), (50, 40), (45, 60), (40, 40))[number % 4]
        pixels = rng.integers(0, 256, (height // 5, width // 5, 3)) // [1 + number % 5, 1, 3]
        image = Image.fromarray(pixels.astype(np.uint8)).resize((width, height), 3)
        write_image(root / split / NAMES[number % 3] / f"{number}.png", image)
    return root


def built(place: str, *options: str, purpose=FINE_TUNE, size: int = 32):
    """place: local-dir:FOLDER, or a name of the Hub."""
    argv = cli(f"-model={place} -pretrained={place.removeprefix('local-dir:')} -image_size={size}")
    config = config_for(*argv, "-opts", "MODEL.NUM_CLASSES=3", *options)
    return model_for(config, purpose=purpose)[0], config


@mark.slow
@mark.parametrize("kind", FAMILIES)
def test_a_family_has_the_logits_of_transformers_trains_and_resumes(kind, images, tmp_path, cpu):
    source, _ = save(tmp_path / "hf", kind)
    model, _ = built(f"local-dir:{tmp_path / 'hf'}", purpose=FINE_TUNE if kind in HEADLESS else EVALUATE)
    with torch.no_grad():
        if kind in HEADLESS:
            found = FeatureModel(model.eval(), kind)(PIXELS)
        else:
            found = model.eval()(PIXELS)
        if kind == "clip":
            wanted = source.vision_model(pixel_values=PIXELS).last_hidden_state[:, 1:].mean(1)
        elif kind == "dinov3_vit":
            wanted = source(pixel_values=PIXELS).pooler_output
        elif kind == "mobilevit":  # in the order BGR
            wanted = source(pixel_values=PIXELS.flip(1)).logits
        else:
            wanted = source(pixel_values=PIXELS).logits
    assert_close(found, wanted, atol=1e-5, rtol=0)
    assert wanted.std() > 1e-3
    weights = cli(f"-model=local-dir:{tmp_path / 'hf'} -pretrained={tmp_path / 'hf'} -lr=1e-3 -epochs=2")
    data = cli(f"-dataset=folder -data_path={images} -batch_size=8 -output={tmp_path / 'out'}")
    argv = [*weights, *data, *cli("-opts TRAIN.WARMUP_EPOCHS=0 TRAIN.LAYER_DECAY=0.7 MODEL.DROPOUT=0.0")]
    resumes = kind in ("vit", "mobilevit")  # without and with batch norms
    whole = train(argv if resumes else [*argv, "TRAIN.MAX_STEPS=2"], cpu)
    before = model.state_dict()
    after = states(whole)["model"]
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed > {name for name in changed if "classifier" in name}
    if resumes:
        stopped = train([*argv, "TRAIN.MAX_STEPS=4", f"SAVE={tmp_path / 'stopped'}"], cpu)
        train(cli(f"-resume={stopped} -opts TRAIN.MAX_STEPS=null"), cpu)
        assert_same_state(after, states(stopped)["model"])


@mark.slow
@mark.parametrize("parts", [1, 2])
def test_weights_in_one_part_and_in_two_are_read_from_a_folder_and_the_cache_of_the_hub(parts, tmp_path, monkeypatch):
    importorskip("transformers")
    folder = tmp_path / "models--org--name" / "snapshots" / "c0ffee"
    source, _ = save(folder, "vit")
    if parts == 2:
        (folder / "model.safetensors").unlink()
        source.save_pretrained(folder, max_shard_size="60KB")
        old = folder / "preprocessor_config.json"  # in the form of a processor of transformers 5
        (folder / "processor_config.json").write_text(json.dumps({"image_processor": json.loads(old.read_text())}))
        old.unlink()
    assert len(list(folder.glob("*.safetensors"))) == parts
    (folder.parents[1] / "refs").mkdir()
    (folder.parents[1] / "refs" / "main").write_text("c0ffee")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    hf_folder.download.cache_clear()
    for place in (f"local-dir:{folder}", "hf:org/name"):
        model, _ = built(place, purpose=EVALUATE)
        with torch.no_grad():
            assert_close(model.eval()(PIXELS), source(pixel_values=PIXELS).logits, atol=1e-5, rtol=0)
        assert read_record(place.removeprefix("local-dir:")).class_names == list(NAMES)
    max(folder.glob("*.safetensors")).unlink()
    with refused(r"^[^\n]*c0ffee[^\n]*$"):
        _ = read_weights(str(folder)).tensors


def exported(checkpoint: Path, target: Path):
    """The export hf as transformers alone reads it, and its processor."""
    transformers = importorskip("transformers")
    export_as("hf", checkpoint, target, "-no_check")
    model = transformers.AutoModelForImageClassification.from_pretrained(target).eval()
    return model, transformers.AutoImageProcessor.from_pretrained(target)


def predictions(images: Path, weights: Path, *argv: str) -> list[dict[str, str]]:
    output = weights.with_name(f"{weights.name}-out")
    assert run_here(f"-predict={images / 'val'}", f"-pretrained={weights}", f"-output={output}", *argv) == 0
    return read_csv_rows(output / "predictions.csv")


@torch.no_grad()
def logits_of(source, processor, path: str) -> Tensor:
    """Of transformers, of one image."""
    inputs = processor(Image.open(path).convert("RGB"), return_tensors="pt")
    return source(**inputs).logits[0]


@mark.slow
@mark.parametrize("kind", ["vit", "deit", "convnext", "mobilevit"])
def test_predictions_equal_transformers_own_to_the_image_also_after_an_export(kind, images, tmp_path):
    sources = {"hf": save(tmp_path / "hf", kind)}
    if kind != "deit":  # which squashes, then crops
        sources["again"] = exported(tmp_path / "hf" / "model.safetensors", tmp_path / "again")
    for name, (source, processor) in sources.items():
        rows = predictions(images, tmp_path / name)
        assert len(rows) == 12
        assert np.ptp([float(row["probability_1"]) for row in rows]) > 0.01
        for row in rows:
            logits = logits_of(source, processor, row["path"])
            assert row["class_1"] == source.config.id2label[logits.argmax().item()]
            assert float(row["probability_1"]) == approx(logits.softmax(-1).max().item(), abs=1e-5)


def test_several_labels_have_transformers_probabilities(images, tmp_path):
    """The sigmoids of its logits, by `problem_type`; the softmax with DATA.MULTI_LABEL=false."""
    source, processor = save(tmp_path / "hf", "vit")
    source.config.problem_type = "multi_label_classification"
    source.save_pretrained(tmp_path / "hf")
    one_label = ["-opts", "DATA.MULTI_LABEL=false"]
    for options, probabilities in (([], Tensor.sigmoid), (one_label, lambda logits: logits.softmax(-1))):
        for row in predictions(images, tmp_path / "hf", "-top_k=3", *options):
            expected = probabilities(logits_of(source, processor, row["path"])).tolist()
            found = {row[f"class_{rank}"]: float(row[f"probability_{rank}"]) for rank in (1, 2, 3)}
            assert [found[name] for name in NAMES] == approx(expected, abs=1e-4)
            assert ("predicted" in row) == (not options)


TUNED = """
kind | level | option
dinov3_vit | O1 | MODEL.TUNE=lora
swin | O1 | MODEL.GRAD_CHECKPOINTING=cheap
vit | O2 | MODEL.TUNE=last:1
vit | O3 | MODEL.GRAD_CHECKPOINTING=true
"""


@mark.slow
@each_value(TUNED)
def test_levels_and_tuning(kind, level, option, images, tmp_path, cpu):
    save(tmp_path / "hf", kind)
    weights = cli(f"-model=local-dir:{tmp_path / 'hf'} -pretrained={tmp_path / 'hf'} -amp -amp_dtype=bfloat16")
    data = cli(f"-dataset=folder -data_path={images} -batch_size=8 -output={tmp_path / 'out'} -epochs=1")
    options = [f"AMP.LEVEL={level}", option, "MODEL.HEAD=probe", "DATA.CLASSES=natural"]
    folder = train([*weights, *data, "-opts", *options], cpu)
    assert all(tensor.isfinite().all() for tensor in states(folder)["model"].values())


@mark.slow
def test_attention_and_recomputation(tmp_path, cpu):
    save(tmp_path / "hf", "dinov2_with_registers")
    model, config = built(f"local-dir:{tmp_path / 'hf'}", size=48)
    pixels = torch.randn(2, 3, 48, 48)
    gradients = []
    evaluator = Evaluator(Normalize(config.data), Precision(Amp(), cpu.device), Strategy(), cpu)
    maps = attention_rollout(model.eval(), pixels, evaluator)
    assert maps.shape == (2, 6, 6)
    assert maps.std() > 0
    for mode in (False, True, "cheap"):
        model.train().set_grad_checkpointing(mode is True)
        if mode == "cheap":
            store_products(model, copy_to_meta(model), (3, 48, 48), "NAME")
        model.zero_grad()
        model(pixels).square().sum().backward()
        gradients.append({name: one.grad for name, one in model.named_parameters() if one.grad is not None})
    assert len(gradients[0]) > 40
    for other in gradients[1:]:
        assert_same_state(other, gradients[0])
    dropped, _ = built(f"local-dir:{tmp_path / 'hf'}", "MODEL.DROPPATH=0.9")
    assert any(not torch.equal(dropped.train()(pixels), dropped(pixels)) for _ in range(3))


def test_a_folder_of_transformers_describes_a_model_without_the_package(tmp_path, monkeypatch):
    kept = {"model_type": "vit", "architectures": ["ViTForImageClassification"]}
    (tmp_path / "config.json").write_text(json.dumps(kept | {"id2label": {"0": "a"}, "dtype": "float16"}))
    config = config_for(f"-model=local-dir:{tmp_path}")
    assert (config.model.type, config.model.name) == ("transformers", "ViTForImageClassification")
    assert config.model.kwargs == kept
    monkeypatch.setattr("utils.system.is_installed", lambda module: False)
    with refused(r"^MODEL.TYPE transformers: needs transformers[^\n]*$"):
        model_for(config)
    (tmp_path / "pytorch_model.bin").touch()
    with refused(r"no model\.safetensors"):
        read_record(str(tmp_path))


def small_vit(droppath: float, **changes: object):
    torch.manual_seed(0)
    return transformers_model("vit", FAMILIES["vit"][1] | changes, DROPPATH=droppath).eval()


@torch.no_grad()
def test_a_drop_path_changes_no_bit_of_an_evaluation():
    assert torch.equal(small_vit(0.3)(PIXELS), small_vit(0.0)(PIXELS))
    assert not torch.equal(small_vit(1.0).train()(PIXELS), small_vit(0.0).train()(PIXELS))


@mark.parametrize("rate", [0.0, 0.3])
def test_the_rates_of_efficientnet_are_those_of_the_options(rate):
    values = parse_value("{width_coefficient: 0.1, depth_coefficient: 0.1, hidden_dim: 128}")
    model = transformers_model("efficientnet", values, DROPOUT=rate, DROPPATH=rate)
    rates = [layer.p for layer in model.modules() if isinstance(layer, nn.Dropout)]
    assert len(rates) > 1 and max(rates) == rates[-1] == rate  # of the blocks, rising, and of the head


def test_a_wrong_configuration_or_preprocessor_ends_in_one_line(tmp_path, saved):
    with refused(r"^MODEL\.NAME: vit [^\n]*hidden_size[^\n]*$"):
        small_vit(0.0, hidden_size="wide")
    swift = "{architectures: [SwiftFormerForImageClassification], depths: [1, 1, 1, 1], embed_dims: [8, 8, 8, 8]}"
    with refused(r"^MODEL\.NAME: the heads of swiftformer are not supported[^\n]*$"):
        transformers_model("swiftformer", parse_value(swift), size=64)
    model, _ = save(tmp_path, "vit")
    path = saved({f"{name}.old": one for name, one in model.state_dict().items()})
    with refused(r"^[^\n]*x\.pth: contains [^\n]*$"):
        model_for(config_for(f"-model=local-dir:{tmp_path}", f"-pretrained={path}"))
    assert read_record(str(tmp_path)).data["IMAGENET_MEAN"] == (0.5, 0.5, 0.5)
    file = tmp_path / "preprocessor_config.json"
    for content in ("{", '{"image_processor_type": "Unknown"}', "[1]", None):  # else the mean is the default, silently
        file.write_text(content) if content else file.unlink()
        with refused(r"^[^\n]*preprocessor_config\.json[^\n]*$"):
            read_record(str(tmp_path))


@torch.no_grad()
def test_a_model_of_timm_that_transformers_saved(tmp_path):
    transformers = importorskip("transformers")
    described = transformers.TimmWrapperConfig(
        architecture="test_vit", pretrained_cfg=create_model("test_vit").pretrained_cfg | {"mean": [0.4] * 3},
        id2label={0: "b", 1: "a"}, label2id={"b": 0, "a": 1}
    )  # fmt: skip
    model = transformers.TimmWrapperForImageClassification(described).eval()
    model.save_pretrained(tmp_path)
    record = read_record(str(tmp_path))
    assert (record.class_names, record.data["IMAGENET_MEAN"]) == (["b", "a"], [0.4] * 3)
    options = options_of_weights(parse_command_line(["-eval", f"-pretrained={tmp_path}"]))[0]
    images = torch.randn(2, 3, 160, 160)
    assert_close(model_for(options)[0].eval()(images), model(pixel_values=images).logits, atol=1e-5, rtol=0)


@mark.parametrize("kind", ["transformers", "timm"])
def test_the_folder_of_a_model_describes_a_file_that_states_nothing(kind, tmp_path):
    """Its preprocessing and its class names; what the file itself states stays."""
    folder = tmp_path / "model"
    if kind == "timm":
        model = create_model("test_vit", num_classes=3, img_size=96)
        config = parse_value("{input_size: [3, 96, 96], mean: [0.1, 0.2, 0.3], crop_pct: 0.6, interpolation: bilinear}")
        timm.models.save_for_hf(model, folder, {"label_names": NAMES}, data_config=model.default_cfg | config)
    else:
        model, _ = save(folder, "vit")
    expected = read_record(str(folder))
    torch.save(model.state_dict(), tmp_path / "plain.pth")
    torch.save({"state_dict": model.state_dict(), "args": {"mean": [0.4] * 3}}, tmp_path / "args.pth")
    for name, mean in (("plain", expected.data["IMAGENET_MEAN"]), ("args", (0.4,) * 3)):
        argv = [f"-model=local-dir:{folder}", f"-pretrained={tmp_path / name}.pth"]
        options, record, _ = options_of_weights(parse_command_line(["-eval", *argv]))
        assert record.class_names == list(NAMES)
        assert options.model.num_classes == 3
        wanted = expected.data | expected.evaluation | {"IMAGENET_MEAN": mean}
        found = options.data.model_dump(by_alias=True)
        for key in wanted.keys() & PREPROCESSING:
            assert as_tuple(found[key]) == as_tuple(wanted[key]), key


@mark.parametrize("kind", ["cvt", "levit"])  # a list of rates per stage, an int
def test_rates_of_other_types(kind):
    transformers = importorskip("transformers")
    values = transformers.CONFIG_MAPPING[kind]().to_dict()
    with torch.device("meta"):
        model = transformers_model(kind, values, 224, "meta", NUM_CLASSES=3)
    assert model(torch.zeros(2, 3, 224, 224, device="meta")).shape == (2, 3)
    assert hasattr(model, "patch_embed") == (kind == "levit")  # the grid of attention maps; the other has three
    with torch.device("meta"), refused(r"^MODEL\.ATTENTION: [^\n]*$"):  # no fused attention
        transformers_model(kind, values, 224, "meta", ATTENTION="fused")
