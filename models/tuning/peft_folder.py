"""The adapters as a folder that `peft` opens: `PeftModel.from_pretrained(model, folder)`, with timm's model as base."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import nn

from configs.schema.model import Lora
from models.timm_model import classifiers
from models.tuning.lora import A, B
from utils.atomic_file import atomic_write

FOLDER = "adapter"  # beside the checkpoint
_PREFIX = "base_model.model."


def write_peft_folder(checkpoint: Path, content: dict[str, Any], model: nn.Module, options: Lora) -> None:
    """Writes `adapter_model.safetensors`, with the trained head, and `adapter_config.json` beside a checkpoint.

    Raises:
        OSError: a file cannot be written.
    """
    state = content["ema"] or content["model"]
    heads = [path for path, module in model.named_modules() if module in classifiers(model)]
    names = {name: f"{name}.weight" for name in state if name.endswith((f".{A}", f".{B}"))}
    targets = [name.removesuffix(f".{A}") for name in names if name.endswith(f".{A}")]
    names |= {name: name for name in state if name.startswith(tuple(f"{head}." for head in heads))}
    tensors = {f"{_PREFIX}{to}": state[name] for name, to in names.items()}
    config = {
        "peft_type": "LORA", "r": options.rank, "lora_alpha": options.alpha, "lora_dropout": options.dropout,
        "target_modules": targets, "modules_to_save": heads, "bias": "none", "inference_mode": True,
    }  # fmt: skip
    folder = checkpoint.with_name(FOLDER)
    folder.mkdir(exist_ok=True)
    float32 = {name: tensor.detach().to("cpu", torch.float32).contiguous() for name, tensor in tensors.items()}
    atomic_write(folder / "adapter_model.safetensors", save(float32, {"format": "pt"}))
    atomic_write(folder / "adapter_config.json", json.dumps(config, indent=2) + "\n")
