#!/usr/bin/env bash
# onnx2torch 1.5.15, onnx 1.23.2, torch 2.14.1 (5 GB are downloaded)
# Subject: weights, exports and runtimes
# Behaviour: convert() returns the torch module of an ONNX file in training mode, though the file is a model for
#   inference: batch norms take the statistics of the batch, change those of the file at each call, and a Dropout node
#   drops values.
# Expected: the outputs of the file, as the reference evaluator of onnx gives them.
# Why it matters: the logits of an image depend on the images beside it, and a batch of training images of one class has
#   another mean than the data. Each call moves the running statistics, so that eval() afterwards is another model, too.
# Instead: `convert(path).eval()` before the first call
# Last lines of a run on 2026-12-01 (a batch norm and a dropout of a half on eight images of the values 0 to 7):
#   onnx2torch 1.5.15: training True; largest difference to the file 5.47, running mean 0.00, then 0.35
#   after eval(): 1.57; eval() before the first call: 0.00; zeros among the outputs of a dropout of ones True, False
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq onnx2torch==1.5.15 onnx==1.23.2 torch==2.14.1 torchvision==0.29.1 numpy==2.4.6
OMP_NUM_THREADS=1 venv/bin/python -W ignore - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
from importlib.metadata import version

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx2torch import convert

IMAGES = np.arange(8, dtype=np.float32).reshape(8, 1, 1, 1)
NORM = {"scale": 1, "bias": 0, "mean": 0, "variance": 1}


def model_of(nodes, **constants):
    """An ONNX file of x (N, 1, 1, 1) -> y."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 1, 1, 1]) for name in "xy"]
    values = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:], values)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def difference(module):
    return (module(torch.from_numpy(IMAGES)).detach() - expected).abs().max().item()


norm = model_of(
    [helper.make_node("BatchNormalization", ["x", *NORM], ["y"])],
    **{name: np.array([value], np.float32) for name, value in NORM.items()},
)
dropout = model_of([helper.make_node("Dropout", ["x", "ratio"], ["y"])], ratio=np.array(0.5, np.float32))
expected = torch.from_numpy(ReferenceEvaluator(norm).run(None, {"x": IMAGES})[0])

module = convert(norm)
mean = next(value for name, value in module.named_buffers() if name.endswith("running_mean"))
means, is_training = [mean.item()], module.training
first = difference(module)
means.append(mean.item())
later, before = difference(module.eval()), difference(convert(norm).eval())
ones = torch.ones(64, 1, 1, 1)
dropped = [bool((converted(ones) == 0).any()) for converted in (convert(dropout), convert(dropout).eval())]
print(
    f"onnx2torch {version('onnx2torch')}: training {is_training}; largest difference to the file {first:.2f}, "
    f"running mean {means[0]:.2f}, then {means[1]:.2f}"
)
print(
    f"after eval(): {later:.2f}; eval() before the first call: {before:.2f}; "
    f"zeros among the outputs of a dropout of ones {dropped[0]}, {dropped[1]}"
)
assert is_training and first > 5 and means[0] == 0 and means[1] > 0.3 and later > 1 and before < 1e-4
assert dropped == [True, False]
PYTHON
