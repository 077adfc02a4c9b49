"""Models and weight files in the formats of PaddleViT, Google, timm and torch."""

import pickle
import re
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from conftest import cells_of, line_of, seeded
from numpy.random import default_rng
from timm import create_model
from timm.models import VisionTransformer
from torch import Tensor, nn

from configs.schema.model import Model
from configs.yaml_io import parse_value
from models.weights.choose import FINE_TUNE, Purpose, choose
from models.weights.fit import load_pretrained
from models.weights.read import read_weights

FIXTURE = Path(__file__).parents[2] / "fixtures" / "paddlevit_small"


def small_vit(**changes) -> VisionTransformer:
    options = parse_value("{img_size: 32, patch_size: 8, num_classes: 10, embed_dim: 48, depth: 2, num_heads: 3}")
    return VisionTransformer(**options | changes).eval()


def random_vit(seed: int = 0, **changes) -> VisionTransformer:
    """All parameters are random, so that exchanged parameters change the logits."""
    model = small_vit(**changes)
    generator = seeded(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def vit(name: str = "vit_tiny_patch16_224", **changes) -> nn.Module:
    options = parse_value("{img_size: 32, patch_size: 8, embed_dim: 48, depth: 2, num_heads: 3}")
    return create_model(name, **options | changes)


def randomized(model: nn.Module) -> nn.Module:
    """In evaluation mode; scales and variances are above 1."""
    generator = seeded(0)
    for name, tensor in model.eval().state_dict().items():
        if tensor.is_floating_point():
            noise = 0.1 * torch.randn(tensor.shape, generator=generator)
            tensor.copy_(1 + noise.abs() if name.endswith(("var", "norm.weight", "gamma")) else noise)
    return model


@torch.no_grad()
def logits(model: nn.Module, size: int = 32) -> Tensor:
    return model(torch.randn(2, 3, size, size, generator=seeded(1)))


def loaded(path: Path | str, model: nn.Module | None = None, **options) -> nn.Module:
    """The model, by default a small ViT, with the weights of a file."""
    model = model or small_vit()
    load_pretrained(model, str(path), **options)
    return model


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


def prefixed(prefix: str, state: dict) -> dict:
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


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


# Names of Google's programs and of timm; matrices are transposed. Layers have other numbers in big_vision.
GOOGLE = """
embedding/bias | patch_embed.proj.bias
Transformer/encoder_norm/scale | norm.weight
Transformer/encoder_norm/bias | norm.bias
head/kernel | head.weight
head/bias | head.bias
cls | cls_token
"""
VIT_JAX = """
LayerNorm_0/scale | norm1.weight
LayerNorm_0/bias | norm1.bias
LayerNorm_2/scale | norm2.weight
LayerNorm_2/bias | norm2.bias
MultiHeadDotProductAttention_1/out/bias | attn.proj.bias
MlpBlock_3/Dense_0/kernel | mlp.fc1.weight
MlpBlock_3/Dense_0/bias | mlp.fc1.bias
MlpBlock_3/Dense_1/kernel | mlp.fc2.weight
MlpBlock_3/Dense_1/bias | mlp.fc2.bias
"""
BIG_VISION = VIT_JAX.replace("Attention_1", "Attention_0").replace("Norm_2", "Norm_1").replace("Block_3", "Block_0")


def transposed(state: dict[str, np.ndarray], table: str) -> dict[str, np.ndarray]:
    """The arrays that there are, by the names of a table."""
    named = {name: state[timms] for name, timms in cells_of(table) if timms in state}
    return {name: array.T if array.ndim == 2 else array for name, array in named.items()}


def google_arrays(model: VisionTransformer, prefix: str = "", big_vision: bool = False, stacked: bool = False) -> dict:
    """The arrays of `model` as vit_jax or big_vision saves them."""
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    heads = model.blocks[0].attn.num_heads
    width = model.embed_dim
    arrays = transposed(state, GOOGLE)
    arrays["pos_embedding" if big_vision else "Transformer/posembed_input/pos_embedding"] = state["pos_embed"]
    arrays["embedding/kernel"] = state["patch_embed.proj.weight"].transpose(2, 3, 1, 0)
    blocks = []
    for i in range(len(model.blocks)):
        part = {name.removeprefix(f"blocks.{i}."): array for name, array in state.items()}
        block = transposed(part, BIG_VISION if big_vision else VIT_JAX)
        attend = f"MultiHeadDotProductAttention_{0 if big_vision else 1}"
        block[f"{attend}/out/kernel"] = part["attn.proj.weight"].T.reshape(heads, -1, width)
        for j, name in enumerate(("query", "key", "value")):
            rows = slice(j * width, (j + 1) * width)
            block[f"{attend}/{name}/kernel"] = part["attn.qkv.weight"][rows].T.reshape(width, heads, -1)
            block[f"{attend}/{name}/bias"] = part["attn.qkv.bias"][rows].reshape(heads, -1)
        blocks.append(block)
    if stacked:
        arrays |= {f"Transformer/encoderblock/{k}": np.stack([block[k] for block in blocks]) for k in blocks[0]}
    else:
        arrays |= {f"Transformer/encoderblock_{i}/{k}": a for i, block in enumerate(blocks) for k, a in block.items()}
    return {prefix + name: array for name, array in arrays.items()}


# W: the width, H: the heads, D: the width of a head, M: the width of the MLP
MAP_HEAD = """
probe | 1 1 W
LayerNorm_0/scale | W
LayerNorm_0/bias | W
MultiHeadDotProductAttention_0/query/kernel | W H D
MultiHeadDotProductAttention_0/query/bias | H D
MultiHeadDotProductAttention_0/key/kernel | W H D
MultiHeadDotProductAttention_0/key/bias | H D
MultiHeadDotProductAttention_0/value/kernel | W H D
MultiHeadDotProductAttention_0/value/bias | H D
MultiHeadDotProductAttention_0/out/kernel | H D W
MultiHeadDotProductAttention_0/out/bias | W
MlpBlock_0/Dense_0/kernel | W M
MlpBlock_0/Dense_0/bias | M
MlpBlock_0/Dense_1/kernel | M W
MlpBlock_0/Dense_1/bias | W
"""


def map_head(width: int, heads: int, prefix: str) -> dict:
    """Random arrays of big_vision's pooling by attention."""
    generator = default_rng(0)
    sizes = {"1": 1, "W": width, "H": heads, "D": width // heads, "M": 4 * width}
    arrays = {}
    for name, letters in cells_of(MAP_HEAD):
        shape = [sizes[letter] for letter in letters.split()]
        arrays[f"{prefix}MAPHead_0/{name}"] = generator.standard_normal(shape).astype("f4")
    return arrays


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
