#!/usr/bin/env bash
# onnx 1.23.2, onnxruntime 1.32.0
# Subject: weights, exports and runtimes
# Behaviour: onnx.utils.extract_model() leaves out the metadata of the model (metadata_props), without a word.
#   merge_models(), convert_version() and onnxruntime's quantizers keep them.
# Expected: metadata that stay, as with the other tools: they describe the inputs, which are the same.
# Why it matters: class names, mean, standard deviation and size of the input are kept in the metadata of many exports;
#   who cuts the graph at the features to make an encoder loses how its images must be prepared.
# Instead: copy `metadata_props` to the new model
# Last lines of a run on 2026-11-29 (names in metadata_props):
#   onnx 1.23.2: extract_model [], merge_models ['mean', 'size'], convert_version ['mean', 'size']
#   onnxruntime 1.32.0, quantize_dynamic: ['mean', 'onnx.infer', 'size']
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
venv/bin/python -W ignore 2> errors.txt - <<'PYTHON' || { cat errors.txt; exit 1; }
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, compose, helper, numpy_helper, version_converter
from onnxruntime.quantization import quantize_dynamic


def model_of(nodes, source, target, weights=()):
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 8]) for name in (source, target)]
    graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:], list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


weights = numpy_helper.from_array(np.eye(8, dtype=np.float32), "weights")
nodes = [
    helper.make_node("MatMul", ["image", "weights"], ["features"]),
    helper.make_node("Relu", ["features"], ["logits"]),
]
model = model_of(nodes, "image", "logits", [weights])
helper.set_model_props(model, {"size": "224", "mean": "0.5"})
onnx.save(model, "model.onnx")


def names_of(changed):
    return sorted(entry.key for entry in changed.metadata_props)


onnx.utils.extract_model("model.onnx", "encoder.onnx", ["image"], ["features"])
behind = model_of([helper.make_node("Identity", ["a"], ["b"])], "a", "b")
quantize_dynamic("model.onnx", "quantized.onnx")
extracted = names_of(onnx.load("encoder.onnx"))
merged = names_of(compose.merge_models(model, behind, [("logits", "a")]))
converted = names_of(version_converter.convert_version(model, 18))
quantized = names_of(onnx.load("quantized.onnx"))
print(f"onnx {onnx.__version__}: extract_model {extracted}, merge_models {merged}, convert_version {converted}")
print(f"onnxruntime {onnxruntime.__version__}, quantize_dynamic: {quantized}")
assert extracted == [] and merged == converted == ["mean", "size"] and {"mean", "size"} <= set(quantized)
PYTHON
