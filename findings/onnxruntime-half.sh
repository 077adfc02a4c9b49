#!/usr/bin/env bash
# onnxruntime 1.32.0 (CPU, x86-64), onnx 1.23.2
# Subject: weights, exports and runtimes
# Behaviour: a model in float16 is run in float32 where the CPU has no kernel for float16, and neighbouring conversions
#   to float16 and back are left out, also with all optimizations off. Attention scores that are beyond float16's 65504
#   before they are scaled come out right.
# Expected: each tensor is rounded to float16, as the file says and as onnx's reference evaluator does: the scores are
#   inf, and the softmax is NaN.
# Why it matters: an export in half precision is checked on a CPU against float32, and passes; on a device that computes
#   in float16 the same file gives NaN. Only a look at the scores themselves, as an output of the graph, shows it.
# Instead: make the scores an output of the graph, or run onnx's reference evaluator
# Last lines of a run on 2026-11-29 (q = k = 40 in 64 dimensions, scores 102400, times 1/8):
#   onnxruntime 1.32.0: softmax [0.5, 0.5], all optimizations off [0.5, 0.5]
#   onnx 1.23.2, reference: [nan, nan]
#   with the scores as a second output, onnxruntime: scores [inf, inf], softmax [0.5, 0.5]
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator


def build(outputs):
    nodes = [
        helper.make_node("Transpose", ["q"], ["k"], perm=[1, 0]),
        helper.make_node("MatMul", ["q", "k"], ["scores"]),
        helper.make_node("Mul", ["scores", "scale"], ["scaled"]),
        helper.make_node("Softmax", ["scaled"], ["softmax"], axis=-1),
    ]
    q = helper.make_tensor_value_info("q", TensorProto.FLOAT16, [2, 64])
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, [2, 2]) for name in outputs]
    scale = numpy_helper.from_array(np.array(0.125, np.float16), "scale")
    graph = helper.make_graph(nodes, "attention", [q], ends, [scale])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def run(model, level=ort.GraphOptimizationLevel.ORT_ENABLE_ALL):
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [output[0].tolist() for output in session.run(None, {"q": queries})]


queries = np.full((2, 64), 40, np.float16)
plain, both = build(["softmax"]), build(["scores", "softmax"])
fast, slow = run(plain)[0], run(plain, ort.GraphOptimizationLevel.ORT_DISABLE_ALL)[0]
with np.errstate(all="ignore"):
    reference = ReferenceEvaluator(plain).run(None, {"q": queries})[0][0].tolist()
scores, softmax = run(both)
print(f"onnxruntime {ort.__version__}: softmax {fast}, all optimizations off {slow}")
print(f"onnx {onnx.__version__}, reference: {reference}")
print(f"with the scores as a second output, onnxruntime: scores {scores}, softmax {softmax}")
assert fast == slow == [0.5, 0.5] and np.isnan(reference).all() and np.isinf(scores).all()
assert softmax == fast
PYTHON
