#!/usr/bin/env bash
# ml_dtypes 0.6.0, onnx 1.23.2
# Subject: weights, exports and runtimes
# Behaviour: a value above the range of float8_e4m3fn (448) becomes nan when numpy casts it with ml_dtypes, and 448
#   when onnx casts it (Cast and QuantizeLinear saturate by default).
# Expected: one conversion for one format; infinity does not exist in it, so 448 for both, or nan for both.
# Why it matters: weights or activations that were scaled in numpy for an 8-bit model have nan where the exported graph
#   has its largest value: one outlier of a calibration makes all outputs nan, and only in the check with numpy.
# Instead: `numpy.clip()` to the range of the type before the cast
# Last lines of a run on 2026-11-29:
#   of 448, 464, 465, 1000, -1000: ml_dtypes 0.6.0 [448.0, 448.0, nan, nan, nan]
#   onnx 1.23.2, Cast: [448.0, 448.0, 448.0, 448.0, -448.0]; with saturate=0: [448.0, 448.0, nan, nan, nan]
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq ml_dtypes==0.6.0 onnx==1.23.2 numpy==2.4.6
venv/bin/python -W ignore - <<'PYTHON'
import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

values = np.array([448, 464, 465, 1000, -1000], np.float32)


def cast_by_onnx(**options):
    down = helper.make_node("Cast", ["x"], ["small"], to=TensorProto.FLOAT8E4M3FN, **options)
    up = helper.make_node("Cast", ["small"], ["y"], to=TensorProto.FLOAT)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None]) for name in "xy"]
    graph = helper.make_graph([down, up], "casts", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    return ReferenceEvaluator(model).run(None, {"x": values})[0].tolist()


by_numpy = values.astype(ml_dtypes.float8_e4m3fn).astype(np.float32).tolist()
by_onnx, unsaturated = cast_by_onnx(), cast_by_onnx(saturate=0)
print(f"of 448, 464, 465, 1000, -1000: ml_dtypes {ml_dtypes.__version__} {by_numpy}")
print(f"onnx {onnx.__version__}, Cast: {by_onnx}; with saturate=0: {unsaturated}")
assert by_onnx == [448, 448, 448, 448, -448]
assert np.isnan(by_numpy).tolist() == [False, False, True, True, True]
PYTHON
