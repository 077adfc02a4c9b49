"""Models and weight files in the formats of PaddleViT, Google, timm and torch."""

import pickle
import re
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from conftest import line_of, seeded
from numpy.random import default_rng
from timm.models import VisionTransformer
from torch import Tensor, nn

from configs.schema.model import Model
from models.weights.choose import FINE_TUNE, Purpose, choose
from models.weights.fit import load_pretrained
from models.weights.read import read_weights

FIXTURE = Path(__file__).parents[2] / "fixtures" / "paddlevit_small"


def small_vit(**changes) -> VisionTransformer:
    options = {"img_size": 32, "patch_size": 8, "num_classes": 10, "embed_dim": 48, "depth": 2, "num_heads": 3}
    return VisionTransformer(**options | changes).eval()


def random_vit(seed: int = 0, **changes) -> VisionTransformer:
    """All parameters are random, so that exchanged parameters change the logits."""
    model = small_vit(**changes)
    generator = seeded(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


@torch.no_grad()
def logits(model: nn.Module, size: int = 32) -> Tensor:
    return model(torch.randn(2, 3, size, size, generator=seeded(1)))


def assert_same_logits(one: nn.Module, other: nn.Module):
    assert torch.equal(logits(one), logits(other))


def refusal(path: Path | str, model: nn.Module | None = None, purpose: Purpose = FINE_TUNE) -> str:
    """The error message; also checks that it is one line and that the model is unchanged."""
    model = model or small_vit()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    message = line_of(load_pretrained, model, str(path), purpose=purpose)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert message.startswith(str(path))
    assert len(message) < 500 + len(str(path))
    return message


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, with timm's names of a ViT."""
    return choose(read_weights(str(path)), small_vit(), Model(), FINE_TUNE).state


def without(state: dict, *names: str) -> dict:
    """Without the entries whose names end so."""
    return {name: tensor for name, tensor in state.items() if not name.endswith(names)}


def renamed(model: nn.Module, names: dict[str, object]) -> dict[str, Tensor]:
    """The state of a model. names: pattern -> replacement, in this order."""
    state = {}
    for name, tensor in model.state_dict().items():
        for pattern, replacement in names.items():
            name = re.sub(pattern, replacement, name)
        state[name] = tensor
    return state


def paddle_state() -> dict[str, np.ndarray]:
    """The arrays of the fixture, which can be unpickled because it is a file of this project."""
    state = pickle.loads((FIXTURE / "vit.pdparams").read_bytes())
    del state["StructuredToParameterName@@"]
    return state


class Reduced:
    """Pickles as a call of a function, by its name: nothing runs when the file is written."""

    def __init__(self, function, *arguments, state=None):
        self.call = function, arguments, state

    def __reduce__(self):
        return self.call


def pickled(path: Path, content: object, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


def google_arrays(model: VisionTransformer, prefix: str = "", big_vision: bool = False, stacked: bool = False) -> dict:
    """The arrays of `model` as vit_jax or big_vision saves them."""
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    heads = model.blocks[0].attn.num_heads
    width = model.embed_dim
    attention, norm2, mlp = ("0", "1", "0") if big_vision else ("1", "2", "3")
    arrays = {
        "pos_embedding" if big_vision else "Transformer/posembed_input/pos_embedding": state["pos_embed"],
        "embedding/kernel": state["patch_embed.proj.weight"].transpose(2, 3, 1, 0),
        "embedding/bias": state["patch_embed.proj.bias"],
        "Transformer/encoder_norm/scale": state["norm.weight"],
        "Transformer/encoder_norm/bias": state["norm.bias"],
        "head/kernel": state["head.weight"].T,
        "head/bias": state["head.bias"],
    }
    arrays |= {"cls": state["cls_token"]} if "cls_token" in state else {}
    blocks = []
    for i in range(len(model.blocks)):
        part = {name.removeprefix(f"blocks.{i}."): array for name, array in state.items()}
        attend = f"MultiHeadDotProductAttention_{attention}"
        block = {
            "LayerNorm_0/scale": part["norm1.weight"],
            "LayerNorm_0/bias": part["norm1.bias"],
            f"LayerNorm_{norm2}/scale": part["norm2.weight"],
            f"LayerNorm_{norm2}/bias": part["norm2.bias"],
            f"{attend}/out/kernel": part["attn.proj.weight"].T.reshape(heads, -1, width),
            f"{attend}/out/bias": part["attn.proj.bias"],
        }
        for j, name in enumerate(("query", "key", "value")):
            rows = slice(j * width, (j + 1) * width)
            block[f"{attend}/{name}/kernel"] = part["attn.qkv.weight"][rows].T.reshape(width, heads, -1)
            block[f"{attend}/{name}/bias"] = part["attn.qkv.bias"][rows].reshape(heads, -1)
        for j in range(2):
            block[f"MlpBlock_{mlp}/Dense_{j}/kernel"] = part[f"mlp.fc{j + 1}.weight"].T
            block[f"MlpBlock_{mlp}/Dense_{j}/bias"] = part[f"mlp.fc{j + 1}.bias"]
        blocks.append(block)
    if stacked:
        arrays |= {f"Transformer/encoderblock/{k}": np.stack([block[k] for block in blocks]) for k in blocks[0]}
    else:
        arrays |= {f"Transformer/encoderblock_{i}/{k}": a for i, block in enumerate(blocks) for k, a in block.items()}
    return {prefix + name: array for name, array in arrays.items()}


def map_head(width: int, heads: int, prefix: str) -> dict:
    """Random arrays of big_vision's pooling by attention."""
    generator = default_rng(0)
    shapes = {"probe": (1, 1, width), "LayerNorm_0/scale": (width,), "LayerNorm_0/bias": (width,)}
    attention = dict.fromkeys(("query", "key", "value"), ((width, heads, width // heads), (heads, width // heads)))
    attention["out"] = (heads, width // heads, width), (width,)
    sizes = (width, 4 * width, width)
    dense = {f"Dense_{i}": (sizes[i : i + 2], sizes[i + 1 : i + 2]) for i in range(2)}
    for place, layers in (("MultiHeadDotProductAttention_0", attention), ("MlpBlock_0", dense)):
        for layer, (kernel, bias) in layers.items():
            shapes |= {f"{place}/{layer}/kernel": kernel, f"{place}/{layer}/bias": bias}
    arrays = {name: generator.standard_normal(shape).astype("f4") for name, shape in shapes.items()}
    return {f"{prefix}MAPHead_0/{name}": array for name, array in arrays.items()}


def written(folder: Path, ending: str) -> Path:
    path = folder / f"vit.{ending}"
    model = random_vit(embed_dim=12, depth=1)
    if ending == "pdparams":
        path.write_bytes((FIXTURE / "checkpoint.pdparams").read_bytes())
    elif ending == "npz":
        np.savez(path, **google_arrays(model))
    elif ending == "safetensors":
        safetensors.torch.save_file(model.state_dict(), path)
    else:
        torch.save(model.state_dict(), path)
    return path
