#!/usr/bin/env bash
# openvino 2026.4.1, onnx 1.23.2
# Subject: weights, exports and runtimes
# Behaviour: save_model() writes float32 weights as float16, unless compress_to_fp16=False. Values of an array beyond
#   65504 become 65504 and those below 3e-8 become 0, if the others of the array fit; an array of which all are beyond
#   is kept. There is no warning, and inputs and outputs of the saved model are float32.
# Expected: a file has the weights of the model in memory; who wants a smaller type asks for it.
# Why it matters: an exported classifier is compared with the original before it is saved, and equals it to 1e-5. The
#   saved one differs by a hundred times as much, and a layer that scales some channels by large or tiny factors is
#   another one. Only a test that reads the file back shows it.
# Instead: `compress_to_fp16=False`
# Last lines of a run on 2026-11-29 (a linear layer of 768 x 1000, CPU in float32, beside numpy):
#   openvino 2026.4.1, largest difference of logits: in memory 5e-06, saved 1e-03, compress_to_fp16=False 5e-06
#   scales 70000, 1e-08, 0.1: saved 65504, 0, 0.0999756; four times 70000: 70000; size of the file 0.50
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq openvino==2026.4.1 onnx==1.23.2 numpy==2.4.6
venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
from pathlib import Path

import numpy as np
import onnx
import openvino
from onnx import TensorProto, helper, numpy_helper

random = np.random.default_rng(0)
features = random.normal(size=(8, 768)).astype(np.float32)
constants = {
    "weights": random.normal(scale=0.05, size=(768, 1000)),
    "some": np.array([70000, 1e-8, 0.1, 0.1]),
    "all": np.full(4, 70000.0),
}
nodes = [
    helper.make_node("MatMul", ["features", "weights"], ["logits"]),
    helper.make_node("Mul", ["ones", "some"], ["some_scaled"]),
    helper.make_node("Mul", ["ones", "all"], ["all_scaled"]),
]
shapes = {"features": [8, 768], "ones": [4], "logits": [8, 1000], "some_scaled": [4], "all_scaled": [4]}
infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
initializers = [numpy_helper.from_array(values.astype(np.float32), name) for name, values in constants.items()]
graph = helper.make_graph(nodes, "head", infos[:2], infos[2:], initializers)
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), "head.onnx")

model = openvino.convert_model("head.onnx")
openvino.save_model(model, "saved.xml")
openvino.save_model(model, "whole.xml", compress_to_fp16=False)


def outputs(source):
    compiled = openvino.compile_model(source, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    assert all(output.element_type == openvino.Type.f32 for output in compiled.outputs)
    logits, some, every = (values.copy() for values in compiled([features, np.ones(4, np.float32)]).values())
    error = np.abs(logits - features.astype(np.float64) @ constants["weights"]).max()
    return error, some, every


memory, saved, whole = (outputs(source) for source in (model, "saved.xml", "whole.xml"))
size = Path("saved.bin").stat().st_size / Path("whole.bin").stat().st_size
print(
    f"openvino {openvino.__version__.split('-')[0]}, largest difference of logits: in memory "
    f"{memory[0]:.0e}, saved {saved[0]:.0e}, compress_to_fp16=False {whole[0]:.0e}"
)
print(
    f"scales 70000, 1e-08, 0.1: saved {', '.join(f'{scale:.6g}' for scale in saved[1][:3])}; four times 70000: "
    f"{saved[2][0]:.6g}; size of the file {size:.2f}"
)
assert memory[0] < 5e-5 and whole[0] < 5e-5 and saved[0] > 5e-4 and size < 0.51
assert np.allclose(memory[1], constants["some"]) and saved[1][:2].tolist() == [65504, 0]
assert saved[2].tolist() == memory[2].tolist() == [70000] * 4
PYTHON
