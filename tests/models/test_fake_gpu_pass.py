"""The forward pass on a GPU without one: devices, dtypes, and copies from host memory."""

from typing import Any

import pytest
import torch
from dispatch import DispatchMode, op_name
from fake_gpu import CONTEXT, GPU, fake_gpu

from configs.command_line import parse_command_line
from engine.training.batch_size import build_state
from utils.torch_compat import tree_leaves

SMALL = ["-image_size=64", "-opts", "DATA.BATCH_SIZE=4", "AMP.ENABLED=true", "AMP.DTYPE=float16"]
MODELS = {
    "vit": ["MODEL.DEPTH=2", "MODEL.DROPOUT=0.1", "MODEL.ATTENTION_DROPOUT=0.1", "MODEL.DROPPATH=0.5"],
    "distilled": ["MODEL.TYPE=timm", "MODEL.NAME=deit_tiny_distilled_patch16_224"],
    "swin": ["MODEL.TYPE=timm", "MODEL.NAME=swin_tiny_patch4_window7_224", "DATA.IMAGE_SIZE=224"],
    "convnext": ["MODEL.TYPE=timm", "MODEL.NAME=convnext_atto"],
}


class OpRecorder(DispatchMode):
    """The devices of the tensors of each op, and the dtypes of matrix products and layer norms."""

    def __init__(self) -> None:
        super().__init__()
        self.with_host_tensors: set[str] = set()
        self.dtypes: dict[str, set[torch.dtype]] = {}

    def __torch_dispatch__(self, op: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = op(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves([args, kwargs, result]) if isinstance(leaf, torch.Tensor)]
        if any(tensor.device != GPU for tensor in tensors):
            self.with_host_tensors.add(op_name(op))
        self.dtypes.setdefault(op_name(op), set()).update(tensor.dtype for tensor in tensors)
        return result


def recorded_pass(*options: str) -> tuple[torch.Tensor, OpRecorder]:
    config = parse_command_line(["-dataset=fake", *SMALL, *options]).config
    with fake_gpu():
        state = build_state(config, CONTEXT)
        images = torch.zeros(4, 3, config.data.image_size, config.data.image_size, device=GPU)
        with OpRecorder() as recorder, state.precision.autocast():
            logits = state.wrapped.train()(images)
    return logits, recorder


@pytest.mark.parametrize("level", ["O1", "O3"])
@pytest.mark.parametrize("model", MODELS)
def test_a_pass_uses_no_host_memory_and_multiplies_in_half(model, level):
    logits, recorder = recorded_pass(f"AMP.LEVEL={level}", *MODELS[model])
    logits = logits[0] if isinstance(logits, tuple) else logits
    assert logits.device == GPU and logits.dtype == torch.float16
    assert recorder.with_host_tensors == set()
    products = recorder.dtypes.keys() & {"mm", "addmm", "bmm", "convolution"}
    assert products and all(recorder.dtypes[op] == {torch.float16} for op in products)
