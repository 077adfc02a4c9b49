"""Classifiers of transformers by the content of their config.json, with the methods of timm's models that the engine
calls. No code of a repository runs, and only safetensors are read. They are mixed in: the state dict has transformers'
names. Legend: B images, C channels, S pixels on a side, H heads, T tokens.
"""

import importlib
import inspect
import re
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from timm.layers import drop_path
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.checkpoint import checkpoint

from configs.schema import Data
from configs.schema.families.family import TransformersModel
from configs.schema.section import without
from configs.yaml_io import Values
from models.blocks import add_mixin
from models.timm_model import check_image_size, errors_of_building
from utils.errors import UserError
from utils.file_formats.hf_folder import FLIPS, read_config
from utils.library_compat import has_eager_attention
from utils.system import require
from utils.torch_compat import has_forward_hooks

_RATES = {  # of configurations
    "hidden_dropout_prob": "dropout", "classifier_dropout_prob": "dropout", "drop_path_rate": "droppath",
    "attention_dropout": "attention_dropout", "attention_probs_dropout_prob": "attention_dropout",
    "dropout_rate": "dropout", "drop_connect_rate": "droppath",  # EfficientNet's
}  # fmt: skip
_TOKENS = ("cls_token", "class_embedding", "distillation_token", "register_tokens")
_AVERAGES = ("beit", "clip", "data2vec-vision", "metaclip_2")  # have a class token, which their classifiers do not read
_UNDECAYED = re.compile(r"(tokens?|class_embedding)$|position|pos_emb|attention_biases|logit_scale|\bgrn\b")
_DEPTHS = ("stage_num_blocks", "depths", "depth", "num_hidden_layers")  # of configurations; the first that is stated
_INNERMOST = ("efficientnet", "mobilenet_v2", "mobilevit", "mobilevitv2")  # state no depths; their blocks were checked
_INTERPOLATES = "interpolate_pos_encoding"  # an argument of a pass
_FILES: Values = {"local_files_only": True, "trust_remote_code": False}


def _library() -> Any:
    require("MODEL.TYPE transformers", "transformers")
    library = importlib.import_module("transformers")
    library.logging.set_verbosity_error()  # new heads are in our own log
    library.logging.disable_progress_bar()
    return library


def _configuration(values: Values) -> tuple[Any, Any]:
    """transformers' configuration, and the class that builds it: `AutoModel` if it has no classifier of this kind."""
    library = _library()
    kind = values.get("model_type")
    if kind not in library.CONFIG_MAPPING:
        problem = f"transformers {library.__version__} has no model_type {ascii(kind)[:80]}"
        raise UserError(f"MODEL.KWARGS: {problem}; update the package, or give -model=hf:ORG/NAME of another model")
    config = library.CONFIG_MAPPING[kind].from_dict(values | {"architectures": values.get("architectures") or []})
    has_classifier = type(config) in library.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING
    return config, library.AutoModelForImageClassification if has_classifier else library.AutoModel


def _set_rates(vision: Any, options: TransformersModel) -> dict[str, str]:
    """Sets the rates that the configuration has; returns their names, and their keys in MODEL."""
    # CvT has a list of rates, one per stage; LeViT an int
    own = {name: key for name, key in _RATES.items() if not isinstance(getattr(vision, name, []), list | tuple)}
    rates = {name: getattr(options, key) for name, key in own.items()}
    vision.update({name: rate for name, rate in rates.items() if rate != getattr(vision, name)})
    return own


def _blocks_of(model: nn.Module, config: Any, vision: Any) -> tuple[list[nn.Module], bool]:
    """The blocks, and whether they are known: items of lists with the lengths that the configuration states by stage.

    Else the innermost items of lists, which were checked for some families.
    """
    by_pattern = defaultdict(list)
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList | nn.Sequential) and all([*item.children()] for item in module):
            by_pattern[re.sub(r"\d+", "*", path)].append([*module])
    stated: Any = next((getattr(vision, key) for key in _DEPTHS if getattr(vision, key, None)), ())
    lengths = [stated] if isinstance(stated, int) else [*stated]
    for lists in by_pattern.values():
        if [len(items) for items in lists] == lengths:
            return [block for items in lists for block in items], True
    items = {item for lists in by_pattern.values() for items in lists for item in items}
    innermost = [item for item in model.modules() if items & {*item.modules()} == {item}]
    return innermost, config.model_type in _INNERMOST


def _layers_of(model: Any, blocks: list[nn.Module], run: Callable[[], None]) -> dict[str, float]:
    """Path of a module -> its layer, in the order of the pass `run`.

    0 before the blocks, then the last block that began; the classifier is the last layer.
    """
    numbers = {block: number for number, block in enumerate(blocks, 1)}
    called: dict[nn.Module, float] = {}
    layer = 0

    def record(module: nn.Module, _: Any) -> None:
        nonlocal layer
        layer = numbers.get(module, layer)
        called.setdefault(module, layer)

    with register_module_forward_pre_hook(record):
        run()
    called |= {module: float("inf") for head in model.get_classifier() for module in head.modules()}
    layers: dict[str, float] = {}
    for path, module in model.named_modules():  # one that is not called has the layer of the module around it
        layers[path] = called.get(module, layers.get(path.rpartition(".")[0], 0))
    return layers


def _match_groups(layers: dict[str, float], coarse: bool = False) -> Callable[[str], float]:
    """As `group_matcher` of timm's models."""
    return lambda name: layers[name.rpartition(".")[0]]


def _pooled_width(output: Any, name: str) -> int:
    """The width of the pooled output. Raises UserError: there is none: SwiftFormer has heads of other names."""
    if not hasattr(output, "pooler_output"):
        raise UserError(f"MODEL.NAME: the heads of {name} are not supported; use a model of timm")
    return output.pooler_output.shape[1]


def build_transformers(options: TransformersModel, data: Data) -> nn.Module:
    """The model of the configuration MODEL.KWARGS: normalized images (B, C, S, S) -> logits (B, classes).

    A model without a classifier (DINOv3) gets a linear one on its pooled output. Position embeddings keep the size of
    the weights, and each pass interpolates them. Without a drop path of its own, equal blocks are dropped whole (Huang
    et al., 2016). Raises UserError: transformers is missing, or lacks this model; an option that the model lacks.
    """
    with errors_of_building(f"MODEL.NAME: {options.name}", data):
        config, auto = _configuration(options.kwargs or {})
        vision = getattr(config, "vision_config", config)
        config.num_labels = options.num_logits
        vision.num_channels = data.image_channels
        own_rates = _set_rates(vision, options)
        model = auto.from_config(config, dtype=torch.float32)
        blocks, are_known = _blocks_of(model, config, vision)
        shapes = {(type(block), *(weight.shape for weight in block.parameters())) for block in blocks}
        is_uniform = len(shapes) == 1
        _check_rates(options, own_rates, is_uniform)
        _drop_blocks(blocks, 0.0 if "droppath" in own_rates.values() else options.droppath)
        for module in [one for one in model.modules() if hasattr(one, "inv_freq")]:
            add_mixin(module, _KeepsBuffers)
        model.own_blocks = blocks
        model.blocks = blocks if is_uniform and not options.droppath else []
        model.arguments = _arguments(model, vision, data)
        _describe_tokens(model, vision, data)
        model.attn_drop = nn.Identity()  # each layer calls its hooks with the attention
        model.global_pool = "avg" if config.model_type in _AVERAGES else "token"
        if not add_mixin(model, _Classifier).get_classifier():
            image = torch.zeros((1, *data.image_shape), device=model.device)
            model.classifier = nn.Linear(_pooled_width(model.outputs(image), options.name), options.num_logits)
    layers = _layers_of(model, blocks, partial(check_image_size, model, options.name, data))
    if are_known:
        model.group_matcher = partial(_match_groups, layers)
    return model


def _check_rates(options: TransformersModel, own: dict[str, str], is_uniform: bool) -> None:
    """Raises UserError: a rate that the configuration lacks is set; equal blocks can be dropped without it."""
    replaced = {"droppath"} if is_uniform else set()
    for key in {*_RATES.values()} - {*own.values()} - replaced:
        if getattr(options, key):
            raise UserError(f"MODEL.{key.upper()}: {options.name} has none; set it to 0")


def _drop_blocks(blocks: list[nn.Module], last_rate: float) -> None:
    """Gives the blocks a drop path whose rate grows from 0 to `last_rate`."""
    for index, block in enumerate(blocks):
        add_mixin(block, _Block).drop_rate = last_rate * index / max(1, len(blocks) - 1)


def _arguments(model: Any, vision: Any, data: Data) -> dict[str, bool]:
    """The arguments of each pass: whether it interpolates position embeddings of another size."""
    accepted = inspect.signature(getattr(model, "vision_model", model).forward).parameters
    is_resized = getattr(vision, "image_size", data.image_size) != data.image_size
    return {_INTERPOLATES: True} if is_resized and _INTERPOLATES in accepted else {}


def _describe_tokens(model: Any, vision: Any, data: Data) -> None:
    """Sets the grid of patches, and the number of tokens before them, as timm's models have them."""
    patch = getattr(vision, "patch_size", None)
    if isinstance(patch, int):
        model.patch_embed = SimpleNamespace(grid_size=[side // patch for side in data.input_size])
    tokens = [one for name, one in model.named_parameters() if name.endswith(_TOKENS)]
    model.num_prefix_tokens = sum(one.shape[1] if one.ndim == 3 else 1 for one in tokens)


class _KeepsBuffers(nn.Module):
    """A mix-in for rotary embeddings, whose frequencies transformers makes in fp32 also for half weights: they stay."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        return super()._apply(lambda buffer: buffer.to(fn(buffer).device), recurse)  # type: ignore[no-untyped-call]


class _Block(nn.Module):
    """A mix-in for blocks: drop path around them, and recomputation in the backward pass."""

    drop_rate = 0.0
    is_recomputed = False

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        run = super().forward
        if not self.training:
            return run(x, *args, **kwargs)
        if self.is_recomputed:
            run = partial(checkpoint, run, use_reentrant=False)
        result = run(x, *args, **kwargs)
        if not self.drop_rate:
            return result
        return x + drop_path(result - x, self.drop_rate, True)


class _Classifier(nn.Module):
    """A mix-in for the model: images -> logits, and timm's methods. blocks: equal ones, which share a compilation."""

    def forward(self: Any, images: Tensor) -> Any:
        output = self.outputs(images)
        return output.logits if hasattr(output, "logits") else self.classifier(output.pooler_output)

    def outputs(self: Any, images: Tensor) -> Any:
        images = images.flip(1) if getattr(self.config, FLIPS, False) else images
        is_read = has_forward_hooks(self.attn_drop)
        result = super().forward(pixel_values=images, output_attentions=is_read, **self.arguments)
        if is_read:
            for maps in getattr(result, "attentions", None) or images[:1, 0]:
                self.attn_drop(maps)  # (B, H, T, T) of a layer; a matrix if the model has none
        return result

    @property
    def fused_attn(self: Any) -> bool:
        return not has_eager_attention(self.config)

    @fused_attn.setter
    def fused_attn(self: Any, is_fused: bool) -> None:
        try:
            self.set_attn_implementation("sdpa" if is_fused else "eager")
        except ValueError:
            raise UserError(
                f"MODEL.ATTENTION: transformers has no fused attention of {type(self).__name__}; use auto"
            ) from None

    def get_classifier(self) -> tuple[nn.Module, ...]:
        """`fc` is HGNet's and TextNet's, whose `classifier` has no parameters."""
        heads = [child for name, child in self.named_children() if "classifier" in name or name == "fc"]
        return tuple(head for head in heads if [*head.parameters()])

    def no_weight_decay(self) -> set[str]:
        return {name for name, _ in self.named_parameters() if _UNDECAYED.search(name)}

    def set_grad_checkpointing(self: Any, enable: bool) -> None:
        for block in self.own_blocks:
            block.is_recomputed = enable


def read_folder(folder: Path) -> dict[str, Tensor]:
    """The tensors of model.safetensors with the names of the model that `build_transformers` makes of config.json."""
    config, auto = _configuration(read_config(folder))
    options = {"dtype": torch.float32, "use_safetensors": True, "output_loading_info": True}
    model, report = auto.from_pretrained(folder, config=config, **options, **_FILES)
    return without(model.state_dict(), report["missing_keys"])


def image_processor(folder: Path) -> Any:
    """transformers' image processor of the folder. Raises OSError without its file."""
    return _library().AutoImageProcessor.from_pretrained(folder, **_FILES)
