#!/usr/bin/env bash
# safetensors 0.8.0 (safetensors.numpy), ml_dtypes 0.6.0
# Subject: weights, exports and runtimes
# Behaviour: save() accepts arrays of bfloat16 and float8 of ml_dtypes, which JAX uses; load() of the result ends with
#   KeyError 'BF16' or 'F8_E4M3'.
# Expected: load() reads what save() of the same module wrote, or save() refuses.
# Why it matters: weights of a JAX model are converted on a machine without torch; the file is right, but the check that
#   reads it back there fails, and looks like a damaged file.
# Instead: read with `safetensors.flax` or `safetensors.torch`
# Last lines of a run on 2026-11-28:
#   safetensors 0.8.0: float32 read, float16 read, bfloat16 KeyError 'BF16', float8_e4m3fn KeyError 'F8_E4M3'
# The same on 2026-11-30 with Python 3.13 and numpy 2.5.5.
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq safetensors==0.8.0 ml_dtypes==0.6.0 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import ml_dtypes
import numpy as np
import safetensors
from safetensors.numpy import load, save


def outcome(dtype):
    data = save({"weight": np.ones(4, dtype)})
    try:
        return f"{np.dtype(dtype).name} {'read' if load(data)['weight'].dtype == dtype else 'of another type'}"
    except KeyError as error:
        return f"{np.dtype(dtype).name} KeyError {error}"


outcomes = [outcome(dtype) for dtype in (np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn)]
print(f"safetensors {safetensors.__version__}: {', '.join(outcomes)}")
expected = ["float32 read", "float16 read", "bfloat16 KeyError 'BF16'", "float8_e4m3fn KeyError 'F8_E4M3'"]
assert outcomes == expected
PYTHON
