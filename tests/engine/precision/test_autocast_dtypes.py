"""The dtypes in which autocast of CUDA computes the ops of AMP's lists at O1, by torch version."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fake_gpu import GPU, fake_gpu
from torch.torch_version import TorchVersion

from configs.schema import Amp
from engine.precision.op_lists import OPS
from engine.precision.policy import Precision

HALF = {"linear", "matmul", "einsum", "conv1d", "conv2d", "conv3d", "conv_transpose2d", "scaled_dot_product_attention"}
FLOAT32 = {
    "softmax", "log_softmax", "layer_norm", "group_norm", "cosine_similarity", "softplus",
    "pow", "square", "exp", "log", "rsqrt", "sum", "norm", "normalize", "cumsum", "interpolate",
}  # fmt: skip
if TorchVersion(torch.__version__) >= (2, 12):
    FLOAT32.add("rms_norm")
IN_AUTOCAST = dict.fromkeys(HALF, "bfloat16") | dict.fromkeys(FLOAT32, "float32")  # others keep the input's

CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "linear": lambda x: F.linear(x, x[0, 0]),
    "einsum": lambda x: torch.einsum("bchw,bcwh->b", x, x),
    "conv1d": lambda x: F.conv1d(x[0], x[0]),
    "conv3d": lambda x: F.conv3d(x, x[None]),
    "scaled_dot_product_attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "softmax": lambda x: F.softmax(x, -1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "rms_norm": lambda x: F.rms_norm(x, (8,)),
    "group_norm": lambda x: F.group_norm(x, 2),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "elementwise_mul": lambda x: x * x,
    "pow": lambda x: x**3,
    "cumsum": lambda x: x.cumsum(0),
    "cat": lambda x: torch.cat([x, x]),
    "stack": lambda x: torch.stack([x, x]),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 1),
}
BINARY = {"matmul", "conv2d", "conv_transpose2d", "cosine_similarity", "add", "sub", "div"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_dtype_of_each_op(dtype):
    found = {}
    with fake_gpu():
        precision = Precision(Amp.model_validate({"ENABLED": True, "DTYPE": "bfloat16"}), GPU)
        x = torch.zeros(8, 8, 8, 8, device=GPU, dtype=dtype)
        for op in OPS:
            function = CALLS.get(op) or getattr(F, op, None) or getattr(torch, op)
            with precision.autocast():
                found[op] = str(function(*[x, x][: 1 + (op in BINARY)]).dtype)[6:]
    assert found == {op: IN_AUTOCAST.get(op, str(dtype)[6:]) for op in OPS}
