"""The formats of an export: `write_FORMAT` writes a model, `load_FORMAT` reads it as its users do.

onnx and torch_export are programs: images float32 (B, C, S, S) -> logits (B, classes), for any B. hf is a folder for
the Hugging Face Hub, which timm, transformers and this program read: config.json and model.safetensors are as timm
saves them; README.md is the model card. With a MODEL.STEM, which no name of timm's has, the folder also has the code of
the model.
"""

import errno
import json
import logging
import shutil
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from timm.models import save_for_hf
from torch import Tensor, nn

from configs.schema import Data
from configs.schema.data import properties_of
from configs.schema.operating_point import probability_of
from configs.yaml_io import Values
from datasets.sources.class_names import positions
from engine.checkpoint.weights_record import exported_entry
from engine.report.contents import RunContents, read_contents
from engine.report.overview import point_figures, score_text
from engine.run.cost import copy_to_meta, count_parameters
from engine.run.facts import TrainingData
from models.build import CONSTRUCTORS
from models.kernels import AUTO, use_attention
from models.vit import evaluation_arguments
from scripts.exporting.formats import OPSET, STEM_FILES
from scripts.weights.trained_model import Forward, TrainedModel
from utils.device import on_meta_device
from utils.errors import UserError, first_line, hide_passwords, to_single_line
from utils.file_formats.hf_folder import FLIPS, PREPROCESSOR, WEIGHTS
from utils.files import indented_json, tensor_bytes

_MAX_ONNX_BYTES = 2_000_000_000  # of a file: protobuf's limit is 2 GiB
_ROOT = Path(__file__).parents[2]
# names whose arguments can all be given
_VIT = "vit_base_patch16_224"
_VIT_WITH_STEM = "vit_stem"
# timm describes its own weights: only these keys are true of the model.
_KEPT_OF_TIMM = ("architecture", "input_size", "fixed_input_size", "pool_size", "first_conv", "classifier")
_STEM_OF_TRANSFORMERS = {
    "model_type": _VIT_WITH_STEM,
    "image_processor_type": "TimmWrapperImageProcessor",
    "auto_map": {
        "AutoConfig": "modeling_vit_stem.VitStemConfig",
        "AutoModelForImageClassification": "modeling_vit_stem.VitStemForImageClassification",
    },
}


def write_safetensors(model: nn.Module, trained: TrainedModel, path: Path) -> None:
    """The weights, with class names, preprocessing and options in the metadata; raises OSError for a full disk."""
    _write_tensors(model.state_dict(), trained, path)


def _write_tensors(state: dict[str, Tensor], trained: TrainedModel, path: Path) -> None:
    """A tensor with several names is written under each of them, as `-pretrained` needs."""
    path.touch()
    mode = path.stat().st_mode
    whole = {name: tensor.contiguous() for name, tensor in state.items()}
    last = {tensor.data_ptr(): name for name, tensor in whole.items()}  # of its names
    tensors = {name: one if last[one.data_ptr()] == name else one.clone() for name, one in whole.items()}
    try:
        others = {"class_names": trained.class_names} | exported_entry(trained.split)  # as in the checkpoint
        texts = {entry: json.dumps(value) for entry, value in others.items()}
        save_file(tensors, path, {"format": "pt"} | trained.metadata() | texts)
    except SafetensorError as error:
        raise OSError(errno.EIO, str(error), str(path)) from error
    path.chmod(mode)  # the library makes a file that only its owner can read


def _export_program(model: nn.Module, trained: TrainedModel) -> torch.export.ExportedProgram:
    """Raises UserError if torch cannot trace the model."""
    data = trained.config.data
    images = torch.zeros((2, *data.image_shape))  # with 1, torch fixes the batch
    try:
        program = torch.export.export(model, (images,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    except Exception as error:  # of many types, by the operation
        reason = first_line(error)
        raise UserError(
            f"MODEL.TYPE {trained.config.model.type}: torch.export cannot trace this model ({reason}); use safetensors"
        ) from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # names the folders of this machine
    return program


def write_torch_export(model: nn.Module, trained: TrainedModel, path: Path) -> None:
    """A program of torch.export; class names and preprocessing are in its extra files of these names."""
    use_attention(model, AUTO)  # the kernel is chosen where the program runs
    torch.export.save(_export_program(model, trained), path, extra_files=trained.metadata())


def write_onnx(model: nn.Module, trained: TrainedModel, path: Path) -> None:
    """One file; class names and preprocessing are in its metadata. Raises UserError if the weights are too large."""
    size = tensor_bytes(model.state_dict())
    if size > _MAX_ONNX_BYTES:
        raise UserError(f"-format onnx: the weights have {size:,} bytes, a file at most 2 GiB; use torch_export")
    program = _export_program(model, trained)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    exported = torch.onnx.export(
        program,
        dynamo=True,
        opset_version=OPSET,
        input_names=["images"],
        output_names=["logits"],
        dynamic_shapes=({0: "batch"},),  # the name of the axis: torch forgets the program's
        verbose=False,
    )
    exported.model.metadata_props.update(trained.metadata())
    exported.save(str(path), external_data=False)


def write_onnx_float16(model: nn.Module, trained: TrainedModel, path: Path) -> None:
    """As `write_onnx`; onnxconverter-common, unlike onnxruntime's converter, would cut large weights."""
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    write_onnx(model, trained, path)
    onnx.save(convert_float_to_float16(onnx.load(path), keep_io_types=True), path)


def write_web(model: nn.Module, trained: TrainedModel, path: Path) -> None:
    """The ONNX file, what the page must know of it, and the page; see docs/export.md."""
    path.mkdir()
    write_onnx(model, trained, path / "model.onnx")
    known = {"name": trained.config.model.name, "multi_label": trained.config.data.multi_label}
    (path / "model.json").write_text(indented_json(known | trained.description), encoding="utf-8")
    shutil.copy(_ROOT / "scripts/exporting/web.html", path / "index.html")


def load_onnx(trained: TrainedModel, path: Path) -> Forward:
    """The model in onnxruntime, on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(["logits"], {"images": images.numpy()})[0])


def write_hf(model: nn.Module, trained: TrainedModel, path: Path) -> None:
    """Raises UserError if timm's `create_model`, or transformers, cannot rebuild the model."""
    options = trained.config.model
    # transformers computes probabilities by it: softmax, or sigmoid for several labels per image.
    kind = "multi_label_classification" if trained.config.data.multi_label else "single_label_classification"
    if options.type == "transformers":
        _write_transformers(model, trained, path, kind)
        return
    try:
        rebuilt = _as_timm_builds(model, trained)
        names = {"label_names": trained.names_of_outputs}  # transformers takes no fewer
        save_for_hf(rebuilt, str(path), names, data_config=data_config(trained.config.data))
    except ValueError as error:
        raise UserError(
            f"-format hf: timm.create_model cannot rebuild this model (MODEL.TYPE {options.type}): {error}; "
            "use another format"
        ) from error
    file = path / "config.json"
    config = json.loads(file.read_text())
    config.get("model_args", {}).pop("num_classes", None)  # transformers passes it too, and timm reads it elsewhere
    config["problem_type"] = kind
    has_stem = options.type == "vit" and bool(options.stem)
    if has_stem:
        config |= _STEM_OF_TRANSFORMERS
        for code in STEM_FILES:
            shutil.copy(_ROOT / code, path)
    file.write_text(indented_json(config))
    (path / "pytorch_model.bin").unlink()  # timm's .safetensors lacks metadata, and tensors may not share memory
    write_safetensors(model, trained, path / "model.safetensors")
    (path / "README.md").write_text(_model_card(model, trained, has_stem), encoding="utf-8")


def _as_timm_builds(model: nn.Module, trained: TrainedModel) -> Any:
    """A model with the name, the arguments and the shapes of `model` in timm; its weights do not matter.

    Raises ValueError: timm has none.
    """
    options = trained.config.model
    rebuilt = copy_to_meta(model)
    if options.features not in ("pre_logits", getattr(model, "global_pool", None)):
        raise ValueError(f"timm has no MODEL.FEATURES={options.features} of it")
    if options.type == "vit":
        if options.attn_head_size and options.attn_head_size * options.num_heads != options.embed_dim:
            raise ValueError("its ViT has no MODEL.ATTN_HEAD_SIZE")
        name = _VIT
        arguments = evaluation_arguments(options, trained.config.data)
        if options.stem:
            name = _VIT_WITH_STEM
            arguments["stem"] = options.stem
        with on_meta_device():
            rebuilt = timm.create_model(name, **arguments)
    elif options.type in CONSTRUCTORS:
        raise ValueError("no name of timm's accepts its options")
    rebuilt.pretrained_cfg = {key: rebuilt.pretrained_cfg.get(key) for key in _KEPT_OF_TIMM}
    return rebuilt


def _write_transformers(model: Any, trained: TrainedModel, path: Path, kind: str) -> None:
    """config.json, preprocessor_config.json and weights, with the names that transformers writes."""
    data = trained.config.data
    names = trained.names_of_outputs
    if "Classification" not in type(model).__name__ or data.resize == "pad":
        raise UserError(
            f"-format hf: transformers has no classifier of a {type(model).__name__}, or none that pads images; "
            "use another format"
        )
    model.config.update({"problem_type": kind, "dtype": "float32"})
    model.config.id2label = dict(enumerate(names))
    model.config.label2id = positions(names)
    model.save_pretrained(path)
    written = (path / WEIGHTS[0]).rename(path / "written")
    _write_tensors(load_file(written), trained, path / WEIGHTS[0])
    written.unlink()
    height, width = data.input_size
    shown = {"height": height, "width": width}
    whole = round(min(height, width) / data.crop_pct)
    crops = data.resize == "crop"
    flips = getattr(model.config, FLIPS, False)
    preprocessor = {
        "image_processor_type": "MobileViTImageProcessor" if flips else "CLIPImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": whole} if crops else shown,
        "resample": {"nearest": 0, "bilinear": 2, "bicubic": 3}[data.interpolation],
        "do_center_crop": crops,
        "crop_size": shown,
        "do_rescale": True,
        "do_normalize": True,
        "image_mean": data.imagenet_mean,
        "image_std": data.imagenet_std,
    }
    (path / PREPROCESSOR).write_text(indented_json(preprocessor))


def load_hf(trained: TrainedModel, path: Path) -> Forward:
    """The exported folder as timm reads it, or transformers: normalized images -> logits."""
    if trained.config.model.type != "transformers":
        return timm.create_model(f"local-dir:{path}", pretrained=True).eval()
    from transformers import AutoModelForImageClassification

    exported = AutoModelForImageClassification.from_pretrained(path, local_files_only=True).eval()
    flips = getattr(exported.config, FLIPS, False)
    return lambda images: exported(images.flip(1) if flips else images).logits


def data_config(data: Data) -> Values:
    """The preprocessing in timm's names."""
    return {
        "input_size": data.image_shape,
        "interpolation": data.interpolation,
        "mean": data.imagenet_mean,
        "std": data.imagenet_std,
        "crop_pct": data.crop_pct,
        "crop_mode": {"crop": "center", "squash": "squash", "pad": "border"}[data.resize],
    }


_CARD = """---
library_name: {library}
pipeline_tag: image-classification
tags:
- image-classification
- timm
- transformers
license: other
license_name: to-be-chosen
---

# {name}

{facts}
"""
_IN_TIMM = 'timm: `timm.create_model("hf-hub:ORG/NAME", pretrained=True)`; transformers: `{}`'
_OF_TEMPERATURE = "of the logits / {:.4g} (`temperature` in the metadata); the pipeline of transformers does not divide"
_IN_TRANSFORMERS = "transformers: `{}`; it runs the code in `modeling_vit_stem.py` and `vit_stem.py`"


def _model_card(model: nn.Module, trained: TrainedModel, has_code: bool) -> str:
    """The Markdown of the Hub."""
    temperature = trained.decision.temperature
    call = f'AutoModelForImageClassification.from_pretrained("ORG/NAME"{", trust_remote_code=True" * has_code})'
    facts = {
        "Use": (_IN_TRANSFORMERS if has_code else _IN_TIMM).format(call),
        **card_facts(model, trained),
        "Probabilities": _OF_TEMPERATURE.format(temperature) * (temperature != 1),
        "License": "to be chosen, here and in `license` at the head of this file",
    }
    library = "transformers" if has_code else "timm"
    return _CARD.format(library=library, name=trained.config.model.name, facts=list_facts(facts))


def list_facts(facts: dict[str, str]) -> str:
    return "\n".join(f"- **{name}:** {text}" for name, text in facts.items() if text)


def card_facts(model: nn.Module, trained: TrainedModel) -> dict[str, str]:
    """Lines of a model card by their names: with the figures of the run if the weights are in its folder."""
    data = trained.config.data
    options = trained.config.model
    names = trained.class_names or ()
    try:
        run = read_contents(trained.weights.parent)
    except UserError:
        run = None
    has_path = trained.names_data_path and properties_of(data.dataset).has_files
    place = f" `{Path(hide_passwords(str(data.data_path))).name}`" if has_path else ""
    images = run.fact(TrainingData) if run else None
    preprocessing = trained.description["preprocessing"]
    gray = '; gray: `Image.open(FILE).convert("L")`'
    deep = "; values of 16 bits from {:g} to {:g} become 0 to 255".format(*data.grey_range) if data.grey_range else ""
    shown = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in preprocessing.items())
    return {
        "Model": f"`{options.type}`, {count_parameters(model)[0]:,} parameters, {options.num_logits} classes",
        "Images": f"{shown}{gray if data.image_channels == 1 else ''}{deep}",
        "Data": f"`{data.dataset}`{place}{f', {images.images}' if images else ''}",
        "Classes": ", ".join(map(_quoted, names)),
        **_scores(run, trained),
        **_operating_point(run, trained),
    }


def _quoted(name: str) -> str:
    return f"`{to_single_line(name).replace('`', chr(39))}`"


def _scores(run: RunContents | None, trained: TrainedModel) -> dict[str, str]:
    """The metric that decides, on the validation and test images; none if the run did not evaluate this model."""
    others = ", ".join(trained.others)
    if trained.measured:
        return {"Validation": f"{trained.measured}, of this model itself, which the run has not evaluated ({others})"}
    if others:
        return {"Figures": f"none: the run has not evaluated this model ({others})"}
    if not run or not _is_best(run, trained):
        return {"Figures": "none: these weights are not the best ones in the folder of their run"}
    title = run.metric.title
    scores = {"Validation": f"{title} {score_text(run, run.evaluation, run.score)}, by which the epoch was chosen"}
    if run.test_score is not None:
        scores["Test"] = f"{title} {score_text(run, run.test, run.test_score)}"
    return scores


def _is_best(run: RunContents, trained: TrainedModel) -> bool:
    """Whether the figures of the run are of these weights."""
    return run.score is not None and Path(str(run.values["result"].get("checkpoint"))).name == trained.weights.name


def _operating_point(run: RunContents | None, trained: TrainedModel) -> dict[str, str]:
    """The threshold that decides, and its figures on the images of which this threshold has been evaluated."""
    point = trained.decision.point
    if not point or point.threshold is None:
        return {}
    start = f"{_quoted(point.name)} from a probability of {probability_of(point.threshold):.6g} on"
    facts = {"Operating point": f"{start}; validation images have chosen it for {point.title}"}
    evaluated = {"validation": trained.measured_point}
    if run and not trained.measured and _is_best(run, trained):
        evaluated = {one.split: one.values.get("operating_point") for one in (run.evaluation, run.test)}
    for split, figures in evaluated.items():
        if figures and figures.get("threshold") == point.threshold:  # else of another epoch
            facts[f"Sensitivity on {split} images"] = "; ".join(point_figures(figures))
    return facts
