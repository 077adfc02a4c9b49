"""scripts/export.py: each format gives the model's logits on validation images, with class names and preprocessing."""

import base64
import json
import re
import shutil
import sys
import zipfile
from pathlib import Path

import numpy as np
import torch
from client_pixels import photographs, pixel_options, steps_between
from conftest import (
    ALL_DIGITS,
    CPU,
    ROOT,
    TINY_VIT,
    cli,
    code_of,
    config_for,
    each_value,
    evaluate,
    export_as,
    model_for,
    noise_folder,
    of_module,
    read_result,
    refused,
    run_here,
    slow,
    tensor_bytes_in_memory,
    train,
)
from PIL import Image
from pytest import approx, importorskip, mark, raises
from timm import create_model
from timm.data import resolve_model_data_config
from torch import nn

from configs.command_line import parse_command_line
from configs.schema import Amp
from datasets.decoding.decode import open_image
from engine.checkpoint.weights_record import read_record
from models.weights.choose import EVALUATE
from scripts import export
from scripts.exporting import files, formats
from scripts.exporting.run import _PROGRAMS, Reference, make_reference, replaced
from scripts.exporting.run import export as write_export
from scripts.weights.trained_model import TrainedModel, locate_weights, open_trained
from tests.datasets.decoding.test_properties import CASES
from utils.errors import UserError
from utils.files import read_json, tensor_bytes
from utils.tables import read_csv_rows

FAMILIES = Path(__file__).parents[1] / "fixtures" / "families"


@of_module
def digits_run(trained_digits) -> Path:
    """A run whose logits depend on the image; it has weight averages."""
    return trained_digits("TRAIN.BASE_LR=1e-2", "TRAIN.MODEL_EMA=true", "TRAIN.MODEL_EMA_DECAY=0.9")


@of_module
def reference(digits_run) -> Reference:
    """The logits of the run's averaged weights."""
    trained = open_trained(parse_command_line(["-eval", f"-pretrained={locate_weights(digits_run)}"]), CPU)
    model, _ = model_for(trained.config, purpose=EVALUATE)
    state = torch.load(trained.weights)
    assert all(torch.equal(tensor, state["state_dict_ema"][name]) for name, tensor in model.state_dict().items())
    return make_reference(model, trained.samples, trained.config.data)


def family_model(name: str) -> tuple[nn.Module, TrainedModel, Reference]:
    """A model with PaddleViT's weights, and its logits."""
    folder = FAMILIES / name
    argv = cli(f"-cfg={folder / 'model.yaml'} -eval -pretrained={folder / 'weights.pdparams'}")
    config = config_for(*argv).model_copy(update={"amp": Amp()})
    model = model_for(config, purpose=EVALUATE)[0].eval()
    images = torch.from_numpy(np.load(folder / "reference.npz")["images"])
    with torch.no_grad():
        return model, TrainedModel(config, None, []), Reference(images, model(images))


def test_safetensors_knows_its_model_classes_and_preprocessing(digits_run, tmp_path):
    file = tmp_path / "elsewhere" / "digits.safetensors"
    export_as("safetensors", digits_run, file)
    assert read_record(str(file)).class_names == list("0123456789")
    assert read_record(str(file)).preprocessing == read_record(str(digits_run / "best.pth")).preprocessing
    files = {"eval": file, "pth": digits_run / "best.pth"}
    found, expected = (read_result(evaluate(tmp_path / name, f"-pretrained={files[name]}")) for name in files)
    assert found["top1"] == expected["top1"]
    assert found["loss"] == approx(expected["loss"])


def test_labels_that_are_numbers_are_names_for_clients_and_numbers_for_this_program(tmp_path):
    root = noise_folder(tmp_path, 8, 8, (8, 8, 3))
    for split in ("train", "val"):
        lines = [f"{path.relative_to(root)},{number % 4}" for number, path in enumerate(root.glob(f"{split}/*/*"))]
        (root / f"{split}.csv").write_text("\n".join(["image_path,grade", *lines]))
    data = cli(f"-dataset=csv -data_path={root} -num_workers=0 -batch_size=4 -output={tmp_path / 'out'}")
    folder = train([*data, "-image_size=8", "-opts", *TINY_VIT, "TRAIN.NUM_EPOCHS=1", "MODEL.NUM_CLASSES=null"])
    files = {"hf": tmp_path / "hf", "torch_export": tmp_path / "a.pt2", "safetensors": tmp_path / "a.safetensors"}
    for kind, file in files.items():
        export_as(kind, folder, file, "-no_check")
    names = list("0123")
    assert read_json(folder / "run.json")["class_names"] == names
    torch.export.load(files["torch_export"], extra_files=(extra := {"class_names": "", "temperature": "1"}))
    assert json.loads(extra["class_names"]) == names
    assert json.loads(extra["temperature"]) == read_record(str(folder / "best.pth")).decision.temperature
    assert create_model(f"local-dir:{files['hf']}", pretrained=True).pretrained_cfg["label_names"] == names
    for weights in (folder / "best.pth", files["safetensors"], files["hf"] / "model.safetensors"):
        assert read_record(str(weights)).class_names is None  # DATA.CLASSES may name them


def test_hf_is_loaded_by_timm(digits_run, reference, tmp_path):
    folder = tmp_path / "hf"
    export_as("hf", digits_run, folder)
    export_as("hf", digits_run, folder)  # replaces the earlier export
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf"]
    model = create_model(f"local-dir:{folder}", pretrained=True).eval()
    with refused("has no checkpoint"):
        export.main([str(folder), "-format", "onnx"])
    export_as("safetensors", folder / "model.safetensors", folder / "a.safetensors")
    assert reference.check(model, "", "") < 1e-5
    config = read_json(folder / "config.json")
    assert (config["label_names"], config["num_classes"]) == ([*"0123456789"], 10)
    assert "num_classes" not in config["model_args"]  # transformers passes it a second time
    data = resolve_model_data_config(model)
    assert (data["mean"], data["std"], data["input_size"], data["crop_pct"]) == ([0.5], [0.5], (1, 8, 8), 1.0)


def paths_of_machine(content: bytes, *folders: Path) -> list[bytes]:
    """The folders of this machine that the content names."""
    known = [ROOT, Path.home(), Path(sys.prefix), Path(torch.__file__).parents[1], *folders]
    return [path for path in (str(folder).encode() for folder in known) if path in content]


@mark.parametrize("scale, limit", [(10, "0.001"), (548, "0.0055")])  # float32 rounds as much
def test_the_limit_of_a_difference_grows_with_the_logits(scale, limit):
    logits = torch.tensor([[0.0, 1.0, 0.3], [1.0, 0.0, 0.2]]) * scale
    reference = Reference(torch.zeros(2, 3, 4, 4), logits)

    def check(shift):
        moved = iter((logits + shift * torch.tensor([0.0, 1.0, 0.0])).split(1))
        return reference.check(lambda images: next(moved), "-format hf", "fix")

    shift = 0.75 * float(limit)
    assert check(shift) == approx(shift, rel=0.02)
    with refused(f"logits differ by .*, more than {limit}"):
        check(1.3 * float(limit))


@mark.slow
def test_onnx_of_16_bits_has_weights_of_16_bits_and_takes_and_gives_float32(digits_run, reference, tmp_path):
    onnxruntime = importorskip("onnxruntime")
    files = {kind: tmp_path / f"{kind}.onnx" for kind in ("onnx", "onnx_float16")}
    for kind, file in files.items():
        export_as(kind, digits_run, file)
    onnx = importorskip("onnx")
    weights = {kind: onnx.load(file).graph.initializer for kind, file in files.items()}
    kinds = {kind: {one.data_type for one in found if len(one.dims) > 1} for kind, found in weights.items()}
    assert kinds == {"onnx": {onnx.TensorProto.FLOAT}, "onnx_float16": {onnx.TensorProto.FLOAT16}}
    session = onnxruntime.InferenceSession(str(files["onnx_float16"]), providers=["CPUExecutionProvider"])
    logits = session.run(None, {"images": reference.images.numpy()})[0]
    assert logits.dtype == np.float32
    assert 0 < np.abs(logits - reference.logits.numpy()).max() < 0.05
    assert json.loads(session.get_modelmeta().custom_metadata_map["class_names"]) == list("0123456789")


@mark.slow
def test_onnx_runs_any_batch_and_has_no_paths(digits_run, reference, tmp_path):
    onnxruntime = importorskip("onnxruntime")
    file = tmp_path / "digits.onnx"
    export_as("onnx", digits_run, file, "-no_paths")
    assert not paths_of_machine(file.read_bytes(), digits_run, tmp_path)
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    logits = session.run(None, {"images": reference.images[:3].numpy()})[0]
    assert np.abs(logits - reference.logits[:3].numpy()).max() < 1e-4
    metadata = session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["preprocessing"])["mean"] == [0.5]
    assert [node.shape[0] for node in (*session.get_inputs(), *session.get_outputs())] == ["batch"] * 2
    assert importorskip("onnx").load(file).opset_import[0].version == formats.OPSET


@of_module
def private(tmp_path_factory) -> tuple[Path, Path]:
    """A checkpoint away from its run, and the folder of its images, which were held out by path and are gone."""
    home = tmp_path_factory.mktemp("jane_doe")
    data = noise_folder(home, 40, 0, (8, 8, 3)) / "train"
    flags = cli(f"-data_path={data} -output={home / 'out'} -batch_size=8 -epochs=1 -num_workers=0")
    folder = train([*flags, "-opts", *TINY_VIT])
    moved = shutil.copy(folder / "best.pth", tmp_path_factory.mktemp("moved"))
    shutil.rmtree(home)
    return Path(moved), data


def export_bytes(argv: list[str], kind: str, folder: Path) -> bytes:
    """The content of the file, of the files of a folder, or of the members of an archive."""
    target = folder / f"a{formats.FORMATS[kind].suffix}"
    assert export.main([*argv, "-format", kind, f"-output={target}"]) == 0
    if target.is_dir():
        return b"".join(path.read_bytes() for path in target.iterdir())
    if not zipfile.is_zipfile(target):
        return target.read_bytes()
    with zipfile.ZipFile(target) as archive:
        return b"".join(map(archive.read, archive.namelist()))


@mark.parametrize("kind", [*sorted(formats.FORMATS.keys() - {"onnx", "onnx_float16", "web", "deploy"}), slow("web")])
def test_an_export_without_paths_and_without_data(kind, private, tmp_path):
    weights, data = private
    argv = [str(weights), "-no_check"]
    paths = [str(data).encode(), b"class0/", b"jane_doe", b"GROUPS", b"COLUMNS"]
    if kind == "safetensors":
        named = export_bytes(argv, kind, tmp_path)
        assert all(path in named for path in paths)
    content = export_bytes([*argv, "-no_paths"], kind, tmp_path)
    assert not [path for path in paths if path in content] + paths_of_machine(content, weights.parent, tmp_path)
    assert b"CROP_PCT" in content


@mark.parametrize("options", [
    ["MODEL.FEATURES=token_avg"], ["MODEL.FEATURES=avg"], ["MODEL.ATTN_HEAD_SIZE=4"]
])  # fmt: skip
def test_a_vit_that_timm_has_not_is_refused_with_the_key(options, tmp_path):
    """Also without a comparison of logits: avg has the shapes of timm's model."""
    config = config_for("-dataset=digits", "-opts", *TINY_VIT, *options)
    model, _ = model_for(config)
    with refused(options[0].partition("=")[0]):
        write_export(model, TrainedModel(config, None, []), None, "hf", tmp_path / "out")


def test_a_family_that_timm_cannot_rebuild_is_refused(tmp_path):
    model, trained, reference = family_model("PoolFormer")
    with refused(rf"^-format hf: .*MODEL.TYPE {trained.config.model.type}"):
        write_export(model, trained, reference, "hf", tmp_path / "out")
    assert not list(tmp_path.iterdir())


@mark.parametrize("kind", ["hf", slow("safetensors"), slow("torch_export")])
def test_an_export_has_one_model_in_memory(kind, tmp_path, monkeypatch):
    config = config_for("-dataset=digits", "-opts", *TINY_VIT, "MODEL.EMBED_DIM=256", "DATA.IMAGE_CHANNELS=1")
    before = tensor_bytes_in_memory()
    model = model_for(config)[0].eval()
    size = tensor_bytes(model.state_dict())
    images = torch.rand(4, 1, 8, 8)
    found = []

    def recorded(function):
        def record(*arguments, **options):
            found.append(tensor_bytes_in_memory() - before)
            return function(*arguments, **options)

        return record

    monkeypatch.setattr("scripts.exporting.files.save_file", recorded(files.save_file))
    monkeypatch.setattr("torch.export.save", recorded(torch.export.save))
    write, load = _PROGRAMS[kind]
    monkeypatch.setitem(_PROGRAMS, kind, (write, recorded(load)))
    with torch.no_grad():
        reference = Reference(images, model(images))
    named = config.with_model(pretrained=str(tmp_path / "weights.pth"))  # which is not read
    line = write_export(model, TrainedModel(named, None, []), reference, kind, tmp_path / "out")
    written, read = found
    assert size <= written < 1.1 * size
    assert read < size / 10
    assert "Compared: 4 validation images" in line


def conversion(name: str, target: Path, **changes: np.ndarray | None) -> list[str]:
    """Arguments to export PaddleViT's weights of a family with a check; changes: of the arrays of the reference."""
    folder = FAMILIES / name
    file = target.with_suffix(".npz")
    arrays = dict(np.load(folder / "reference.npz")) | changes
    np.savez(file, **{key: array for key, array in arrays.items() if array is not None})
    source = [str(folder / "weights"), f"-cfg={folder / 'model.yaml'}", "-format", target.suffix[1:]]
    return [*source, f"-output={target}", "-check", str(file)]


def test_a_conversion_is_checked_with_paddles_logits_and_without_images(tmp_path, capsys):
    assert export.main(conversion("SwinTransformer", target := tmp_path / "a.safetensors")) == 0
    difference = re.search(r"Compared: 2 images of .*a.npz: .* by at most (\S+) ", capsys.readouterr().out)[1]
    assert 0 < float(difference) < 1e-5
    assert target.is_file()


CHECKS = {
    "differ by": {"logits": np.load(FAMILIES / "CaiT" / "reference.npz")["logits"] + np.float32(2e-3)},
    r"\(2, 3, 8, 8\)": {"images": np.zeros((2, 3, 8, 8), np.float32)},
    "prove nothing": {"logits": np.zeros((2, 7), np.float32)},
    "logits is not a file": {"logits": None},
}


def test_a_check_that_fails_writes_nothing(tmp_path):
    for problem, changes in CHECKS.items():
        with refused(problem):
            export.main(conversion("CaiT", tmp_path / "a.safetensors", **changes))
        assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


@mark.parametrize("name", ["", "config.json"], ids=["file", "folder"])
def test_an_export_replaces_the_old_one_only_when_it_is_complete(tmp_path, name):
    target = tmp_path / "below" / "export"

    def write(text, error=None):
        with replaced(target) as temporary:
            written = temporary / name
            written.parent.mkdir(exist_ok=True)
            written.write_text(text)
            if error:
                raise error

    def assert_is(text):
        assert (target / name).read_text() == text
        assert list(target.parent.iterdir()) == [target]

    write("first")
    assert_is("first")
    for error in (KeyboardInterrupt(), OSError(28, "No space left on device")):
        with raises((KeyboardInterrupt, UserError)):
            write("cut off", error)
        assert_is("first")
    write("second")
    assert_is("second")


CLIENT = code_of("docs/export.md", "Preprocessing in a client")


def client_of_docs():
    """`preprocess` of the page."""
    exec(CLIENT.partition("session = ")[0].replace("import onnxruntime", ""), names := {})
    return names["preprocess"]


RULES = """
resize | size | crop_pct
crop | 64 | 0.875
crop | 65 | 1.3
squash | 64 | 1
pad | 64 | 1
pad | 47 | 1
"""


@mark.parametrize("interpolation", ["bicubic", slow("bilinear")])
@each_value(RULES)
def test_the_pixels_of_the_client_are_the_pixels_of_an_evaluation(resize, size, crop_pct, interpolation, tmp_path):
    preprocess = client_of_docs()
    data, values = pixel_options(resize, size, crop_pct, interpolation)
    file = tmp_path / "photo.png"

    def steps_of(image: Image.Image) -> np.ndarray:
        image.save(file)
        return np.rint(steps_between(data, open_image(file.read_bytes(), 3, str), preprocess(file, values)))

    for number, image in enumerate(photographs()):
        steps = steps_of(image.convert(("RGB", "RGBA", "P", "LA", "1")[number % 5]))
        assert steps.max() <= 2
        assert (steps > 0).mean() < 1 / 20
        if crop_pct == 1:
            assert not steps_of(image.resize((size, size))).any()  # it needs no resize


def test_the_client_refuses_more_than_8_bits(tmp_path):
    preprocess = client_of_docs()
    deep = [case["data"] for case in CASES if "16 bits" in case["row"] and case["values"]]
    assert deep
    for data in deep:
        (tmp_path / "photo").write_bytes(base64.b64decode(data))
        with raises(ValueError, match="more than 8 bits"):
            preprocess(tmp_path / "photo", {"image_size": 9, "mean": [0.5], "std": [0.5]})


@mark.slow
def test_the_client_gives_the_probabilities_of_predictions(trained_digits, tmp_path, monkeypatch):
    """Of logits that it divides by the temperature."""
    importorskip("onnxruntime")
    folder = trained_digits(ALL_DIGITS, "TRAIN.BASE_LR=1e-2", "TRAIN.SMOOTHING=0.4")
    monkeypatch.chdir(tmp_path)
    Image.fromarray(np.arange(0, 256, 4, np.uint8).reshape(8, 8)).save("photo.jpg")
    export.main([str(folder), "-format=onnx", "-output=best.onnx", "-no_check"])
    exec(CLIENT, names := {})
    assert names["temperature"] < 0.9
    run_here(*cli(f"-predict photo.jpg -resume={folder} -format=wide -output=p"))
    (row,) = read_csv_rows(tmp_path / "p/predictions.csv")
    assert {name: float(row[name]) for name in names["probabilities"]} == approx(names["probabilities"], abs=1e-4)
