#!/usr/bin/env bash
# onnxruntime 1.32.0, onnx 1.23.2, Pillow 13.0.0
# Subject: weights, exports and runtimes
# Behaviour: Resize with antialias=1 equals Pillow's resize in the inside of an image, not at its border, where the
#   weights beyond the image count for the last pixel: values of noise differ by 7 to 11 of 255. With
#   exclude_outside=1, which is not the default, all pixels are equal to 0.002. (torch 2.14's exporter sets it for
#   interpolate with antialias=True.)
# Expected: antialias=1 gives Pillow's pixels, as antialias=True of torch does.
# Why it matters: a preprocessing that is written into the ONNX file by hand differs from the one in training along the
#   border, on a larger part of the picture the smaller the output is. A check on a picture with an even background
#   passes.
# Instead: `exclude_outside=1`
# Last lines of a run on 2026-11-29 (noise of 0 to 255, largest difference from Pillow):
#   onnxruntime 1.32.0, Pillow 13.0.0
#   (64, 64) to 23, linear: 11.3, inside 0.000; with exclude_outside=1 0.000
#   (64, 64) to 23, cubic: 7.8, inside 0.000; with exclude_outside=1 0.000
#   (480, 640) to 224, linear: 9.8, inside 0.001; with exclude_outside=1 0.002
#   (480, 640) to 224, cubic: 7.0, inside 0.001; with exclude_outside=1 0.002
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq onnxruntime==1.32.0 onnx==1.23.2 pillow==13.0.0 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import numpy as np
import onnxruntime
import PIL
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

METHODS = {"linear": Image.Resampling.BILINEAR, "cubic": Image.Resampling.BICUBIC}


def resized(pixels, size, mode, exclude_outside):
    options = {"antialias": 1, "cubic_coeff_a": -0.5, "exclude_outside": exclude_outside}
    node = helper.make_node("Resize", ["pixels", "", "", "sizes"], ["resized"], mode=mode, **options)
    inputs = [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, pixels.shape)]
    outputs = [helper.make_tensor_value_info("resized", TensorProto.FLOAT, (size, size))]
    sizes = numpy_helper.from_array(np.array([size, size]), "sizes")
    graph = helper.make_graph([node], "resize", inputs, outputs, [sizes])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, {"pixels": pixels})[0]


def apart(shape, size, mode, exclude_outside=0):
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.float32)
    of_pillow = np.asarray(Image.fromarray(pixels).resize((size, size), METHODS[mode]))
    difference = np.abs(resized(pixels, size, mode, exclude_outside) - of_pillow)
    margin = size // 8
    return difference.max(), difference[margin:-margin, margin:-margin].max()


print(f"onnxruntime {onnxruntime.__version__}, Pillow {PIL.__version__}")
for shape, size in (((64, 64), 23), ((480, 640), 224)):
    for mode in METHODS:
        (everywhere, inside), (excluded, _) = apart(shape, size, mode), apart(shape, size, mode, 1)
        print(
            f"{shape} to {size}, {mode}: {everywhere:.1f}, inside {inside:.3f}; with exclude_outside=1 {excluded:.3f}"
        )
        assert everywhere > 5 and inside < 0.01 and excluded < 0.01
PYTHON
