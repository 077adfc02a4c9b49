"""The formats of an export, and the checks before the model is read. This file needs no torch."""

from pathlib import Path
from typing import NamedTuple

from utils.errors import UserError
from utils.file_formats.hf_folder import CONFIG, PREPROCESSOR, WEIGHTS

OPSET = 18
STEM_FILES = ("models/vit_stem.py", "scripts/exporting/modeling_vit_stem.py")  # of an export with a MODEL.STEM
FOLDERS = {  # the files of each
    "hf": {CONFIG, PREPROCESSOR, WEIGHTS[0], "README.md", *(Path(file).name for file in STEM_FILES)},
    "web": {"index.html", "model.json", "model.onnx"},
    "deploy": {
        "README.md", "check.py", "decide.cpp", "model-batch.onnx", "model.json", "model.onnx", "model.txt", "reference",
    },
}  # fmt: skip
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


class ExportFormat(NamedTuple):
    """suffix: of the default output, which is named as the weights. title: for the user. packages: that it needs."""

    suffix: str
    title: str
    packages: tuple[str, ...] = ()


FORMATS = {
    "safetensors": ExportFormat(".safetensors", "for -pretrained"),
    "hf": ExportFormat("-hf", "a folder for timm and transformers"),
    "onnx": ExportFormat(".onnx", f"opset {OPSET}, any batch size", ONNX_PACKAGES),
    "onnx_float16": ExportFormat(
        ".float16.onnx", "weights of 16 bits: half of the size, images and logits in float32", ONNX_PACKAGES
    ),
    "web": ExportFormat("-web", "a page that runs the model in a browser: onnxruntime-web", ONNX_PACKAGES),
    "deploy": ExportFormat("-deploy", "a folder for a computer without Python: ONNX that reads pixels", ONNX_PACKAGES),
    "torch_export": ExportFormat(".pt2", "torch.export, any batch size"),
}


def check_target(target: Path, kind: str, weights: Path) -> None:
    """Raises a UserError if `target` is anything but an earlier export of this kind.

    weights: the file to export, or the folder of its run.
    """
    if kind in FOLDERS:
        is_right = not target.exists()
        if target.is_dir():
            is_right = {path.name for path in target.iterdir()} <= FOLDERS[kind]
        need = "a new folder, or one that was exported"
    else:
        suffix = f".{FORMATS[kind].suffix.rpartition('.')[2]}"
        is_right = target.suffix == suffix and not target.is_dir() and target.resolve() != weights.resolve()
        need = f"another file, whose name ends with {suffix}"
    if not is_right:
        raise UserError(f"-output {target}: give {need}")
