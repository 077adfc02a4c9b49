"""Configurations and weights: valid examples and readers."""

import argparse
import contextlib
import io
import pickle
import re
import shlex
from collections import defaultdict, deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from checkpoint_content import small_model
from faults.processes import ROOT

from configs.command_line import parse_command_line, to_yaml
from engine.checkpoint.weights_record import describe_data, read_record, to_metadata
from models.weights.fit import load_pretrained
from tests.models.weights.weight_files import FIXTURE, small_vit
from utils.errors import UserError


def config_examples() -> list[bytes]:
    """Flags in the first line, then a YAML file."""
    recipes = [path.read_text() for path in sorted((ROOT / "configs").glob("vit_*.yaml"))]
    recipes = [re.sub(r"(?m)^BASE:.*", "BASE: [base.yaml]", text) for text in recipes]
    every_key = to_yaml(parse_command_line([]).config)
    flags = (
        "-amp -batch_size=4 -opts TRAIN.BASE_LR=1e-3 DATA.IMAGENET_MEAN=[0.5,0.5,0.5]",
        "-image_size 32 -num_workers=0 -output=a -opts MODEL.PATCH_SIZE=8 'TRAIN.OPTIMIZER.BETAS=(0.9, 0.98)'",
        "-dataset=digits --eval -pretrained=x -debug -dry_run -amp_dtype bfloat16",
    )
    texts = [f"{flags[number % 3]}\n{text}" for number, text in enumerate([every_key, every_key, *recipes])]
    return [text.encode() for text in texts]


def read_config(data: bytes, folder: Path) -> None:
    flags, _, recipe = data.partition(b"\n")
    (folder / "a.yaml").write_bytes(recipe)
    (folder / "base.yaml").write_text("DATA: {IMAGE_SIZE: 64}\nTRAIN: {NUM_EPOCHS: 3, WARMUP_EPOCHS: 1}")
    text = flags.decode(errors="replace").replace("\0", " ")  # a command line cannot contain a zero byte
    try:
        argv = [word for word in shlex.split(text) if word.lstrip("-") not in ("h", "help")]
    except ValueError:
        argv = text.split()
    try:
        config = parse_command_line([f"-cfg={folder / 'a.yaml'}", *argv]).config
    except SystemExit:  # -h
        return
    (folder / "saved.yaml").write_text(to_yaml(config))
    assert parse_command_line([f"-cfg={folder / 'saved.yaml'}"]).config == config


def pdparams_examples() -> list[bytes]:
    """A state of PaddleClas, with timm's names and PaddlePaddle's layout, and PaddleViT's files."""
    state = {name: (one.t() if one.ndim == 2 else one).numpy() for name, one in small_vit().state_dict().items()}
    plain = [pickle.dumps(state, protocol=protocol) for protocol in (0, 2, 4)]
    return [*plain, *(path.read_bytes() for path in sorted(FIXTURE.glob("*.pdparams")))]


def weights_examples() -> list[bytes]:
    """.pth in both formats of torch, .npz, .safetensors with class names, preprocessing and options in its metadata."""
    state = small_model().state_dict()
    data = parse_command_line([]).config.data
    options = {"MODEL": {"TYPE": "vit", "EMBED_DIM": 12, "NUM_HEADS": 3}, "DATA": {"DATASET": "digits"}}
    metadata = {"format": "pt"} | to_metadata(describe_data(data, ["cat", "dog"]), options)
    arrays = {"embedding/kernel": np.ones((8, 8, 3, 12), "f4"), "cls": np.ones((1, 1, 12), "f4")}
    arrays["Transformer/encoderblock/LayerNorm_0/scale"] = np.ones((1, 12), "f4")
    objects = [argparse.Namespace(lr=0.1), np.float64(1), defaultdict(list, a=[1]), deque([1]), Path("a")]
    foreign = {"teacher": {f"backbone.{name}": one for name, one in state.items()}, "student": state, "args": objects}
    old_format = {"_use_new_zipfile_serialization": False}
    return [
        _saved(state),
        _saved({"model": state}, **old_format),
        _saved(foreign),
        _saved(foreign, **old_format),
        safetensors.torch.save(state),
        safetensors.torch.save({"a": torch.ones(2)}, metadata),
        _packed(np.savez, arrays),
        _packed(np.savez_compressed, arrays),
    ]


def _saved(content: object, **options: object) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, **options)
    return file.getvalue()


def _packed(save: Callable, arrays: dict[str, np.ndarray]) -> bytes:
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


def read_pdparams(data: bytes, folder: Path) -> None:
    (folder / "vit.pdparams").write_bytes(data)
    load_pretrained(small_vit(), str(folder / "vit.pdparams"))


def read_weights_file(data: bytes, folder: Path) -> None:
    file = folder / "vit.ckpt"
    file.write_bytes(data)
    with contextlib.suppress(UserError):  # with damaged metadata, the tensors are read, too
        read_record(str(file))
        parse_command_line(["-eval", f"-pretrained={file}"])
    load_pretrained(small_model(), str(file))
