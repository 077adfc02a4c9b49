#!/usr/bin/env bash
# keras 3.15.1 (with its jax backend), h5py 3.16.0
# Subject: weights, exports and runtimes
# Behaviour: save_weights() of a .weights.h5 names layers by class and position (dense, dense_1, ...), not by the names
#   that the layers have; load_weights() fills them by position. A model whose two layers "stem" and "head" are in the
#   other order takes the file without a word. Read by name, dense_10 comes before dense_2.
# Expected: names of layers decide, as in a state_dict or in Keras' own .h5 files of before (by_name=True).
# Why it matters: a converter to another framework cannot match by name, and one that sorts the names swaps blocks from
#   the eleventh on, without an error where blocks have equal shapes, as those of a ViT have.
# Instead: match the layers by `model.layers`, not by the names in the file
# Last lines of a run on 2026-11-28:
#   keras 3.15.1: layers "stem", "head" are stored as dense, dense_1; swapped model: "head" has the weights of "stem"
#   order of twelve layers in the file: dense, dense_1, dense_10, dense_11, dense_2
# The same on 2026-11-30 with Python 3.13 and jax 0.12.0.1, numpy 2.5.5.
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq keras==3.15.1 h5py==3.16.0 jax==0.10.2 numpy==2.4.6
KERAS_BACKEND=jax venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import h5py
import keras
import numpy as np


def chain(names):
    inputs = outputs = keras.Input((4,))
    for name in names:
        outputs = keras.layers.Dense(4, name=name)(outputs)
    return keras.Model(inputs, outputs)


def stored_layers():
    with h5py.File("model.weights.h5") as file:
        return [name for name in file["layers"] if name.startswith("dense")]


model, swapped = chain(["stem", "head"]), chain(["head", "stem"])
model.save_weights("model.weights.h5")
names = stored_layers()
swapped.load_weights("model.weights.h5")
is_swapped = np.array_equal(swapped.get_layer("head").kernel, model.get_layer("stem").kernel)
words = 'has the weights of "stem"' if is_swapped else "keeps its own"
print(
    f'keras {keras.__version__}: layers "stem", "head" are stored as {", ".join(names)}; '
    f'swapped model: "head" {words}'
)
chain([f"block{number}" for number in range(12)]).save_weights("model.weights.h5")
first = stored_layers()[:5]
print(f"order of twelve layers in the file: {', '.join(first)}")
assert names == ["dense", "dense_1"] and is_swapped
assert first == ["dense", "dense_1", "dense_10", "dense_11", "dense_2"]
PYTHON
