"""The formats of an export: `write_FORMAT` writes a model.

onnx and torch_export are programs: images float32 (B, C, S, S) -> logits (B, classes), for any B. hf is a folder with
config.json and model.safetensors, as timm saves it for the Hugging Face Hub: `timm.create_model("local-dir:FOLDER",
pretrained=True)` and the TimmWrapper classes of transformers read it.
"""

import contextlib
import copy
import errno
import io
import json
import logging
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from timm.models import save_for_hf
from torch import nn

from engine.checkpoint.weights_record import exported_entry
from models.families import CONSTRUCTORS
from models.kernels import FUSED, use_attention
from models.vit import evaluation_arguments
from scripts.exporting.formats import OPSET
from scripts.weights.trained_model import Forward, TrainedModel
from utils.errors import UserError
from utils.files import tensor_bytes

_VIT = "vit_base_patch16_224"  # a name of timm's VisionTransformer whose arguments can all be given
# timm describes its own weights: only these keys are true of the model.
_KEPT_OF_TIMM = ("architecture", "input_size", "fixed_input_size", "pool_size", "first_conv", "classifier")
_MAX_ONNX_BYTES = 2_000_000_000  # of a file: protobuf's limit is 2 GiB


def write_safetensors(model: nn.Module, trained: TrainedModel, path: Path) -> None:
    """The weights, with class names, preprocessing and options in the metadata; raises OSError for a full disk.

    A tensor with several names is written under each of them, as `-pretrained` needs.
    """
    path.touch()
    mode = path.stat().st_mode
    tensors = {name: tensor.contiguous().clone() for name, tensor in model.state_dict().items()}
    try:
        split = {entry: json.dumps(value) for entry, value in exported_entry(trained.split).items()}
        save_file(tensors, path, {"format": "pt"} | trained.metadata() | split)
    except SafetensorError as error:
        raise OSError(errno.EIO, str(error), str(path)) from error
    path.chmod(mode)  # the library makes a file that only its owner can read


def _export_program(model: nn.Module, trained: TrainedModel) -> torch.export.ExportedProgram:
    """Raises UserError if torch cannot trace the model."""
    data = trained.config.data
    images = torch.zeros((2, data.image_channels, *data.input_size))  # with 1, torch fixes the batch
    try:
        program = torch.export.export(model, (images,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    except Exception as error:  # of many types, by the operation
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(
            f"MODEL.TYPE {trained.config.model.type}: torch.export cannot trace this model ({reason}); use safetensors"
        ) from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # names the folders of this machine
    return program


def write_torch_export(model: nn.Module, trained: TrainedModel, path: Path) -> None:
    """A program of torch.export; class names and preprocessing are in its extra files of these names."""
    model = copy.deepcopy(model)
    use_attention(model, FUSED)  # the kernel is chosen where the program runs
    torch.export.save(_export_program(model, trained), path, extra_files=trained.metadata())


def write_onnx(model: nn.Module, trained: TrainedModel, path: Path) -> None:
    """One file; class names and preprocessing are in its metadata. Raises UserError if the weights are too large."""
    size = tensor_bytes(model.state_dict())
    if size > _MAX_ONNX_BYTES:
        raise UserError(f"-format onnx: the weights have {size:,} bytes, a file at most 2 GiB; use torch_export")
    program = _export_program(model, trained)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with contextlib.redirect_stdout(io.StringIO()):  # progress of each step
        exported = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=OPSET,
            input_names=["images"],
            output_names=["logits"],
            dynamic_shapes=({0: "batch"},),  # the name of the axis: torch forgets the program's
            external_data=False,
        )
    exported.model.metadata_props.update(trained.metadata())
    exported.save(str(path), external_data=False)


def load_onnx(trained: TrainedModel, path: Path) -> Forward:
    """The model in onnxruntime, on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(["logits"], {"images": images.numpy()})[0])


def write_hf(model: nn.Module, trained: TrainedModel, path: Path) -> None:
    """Raises UserError if timm's `create_model` cannot rebuild the model."""
    options: Any = trained.config.model
    is_vit, reason = options.type == "vit", ""
    if options.features not in ("pre_logits", getattr(model, "global_pool", None)):
        reason = f"timm has no MODEL.FEATURES={options.features} of it"
    elif is_vit and options.attn_head_size and options.attn_head_size * options.num_heads != options.embed_dim:
        reason = "its ViT has no MODEL.ATTN_HEAD_SIZE"
    elif is_vit and options.stem:
        reason = "timm's ViT has no MODEL.STEM"
    elif options.type in CONSTRUCTORS:
        reason = "no name of timm's accepts its options"
    else:
        # A model of timm's `create_model`, with the shapes of `model`; its weights do not matter.
        rebuilt = timm.create_model(_VIT, **evaluation_arguments(options, trained.config.data)) if is_vit else model
        rebuilt.pretrained_cfg = {key: rebuilt.pretrained_cfg.get(key) for key in _KEPT_OF_TIMM}
        names = {"label_names": trained.class_names} if trained.class_names else {}
        try:
            save_for_hf(rebuilt, str(path), names, data_config=data_config(trained.description["preprocessing"]))
        except ValueError as error:
            reason = str(error)
    if reason:
        problem = f"-format hf: timm.create_model cannot rebuild this model (MODEL.TYPE {options.type}): {reason}"
        raise UserError(f"{problem}; use another format")
    config = json.loads((file := path / "config.json").read_text())
    config.get("model_args", {}).pop("num_classes", None)  # transformers passes it too, and timm reads it elsewhere
    # transformers computes probabilities by it: softmax, or sigmoid for several labels per image.
    kind = "multi_label_classification" if trained.config.data.multi_label else "single_label_classification"
    file.write_text(json.dumps(config | {"problem_type": kind}, indent=2) + "\n")
    (path / "pytorch_model.bin").unlink()  # timm's .safetensors lacks metadata, and tensors may not share memory
    write_safetensors(model, trained, path / "model.safetensors")


def data_config(values: dict[str, Any]) -> dict[str, Any]:
    """The preprocessing of `describe_data` in timm's names."""
    size = values["image_size"]
    return {
        "input_size": (values["channels"], *(size if isinstance(size, list) else (size, size))),
        "interpolation": values["interpolation"],
        "mean": tuple(values["mean"]),
        "std": tuple(values["std"]),
        "crop_pct": values["crop_pct"],
        "crop_mode": {"crop": "center", "squash": "squash", "pad": "border"}[values["resize"]],
    }
