#!/usr/bin/env bash
# keras 3.15.1 (with its jax backend), optax 0.2.8, jax 0.10.2
# Subject: training
# Behaviour: sparse_categorical_crossentropy gives the loss 0, without an error, for labels outside 0 to N - 1. optax's
#   softmax_cross_entropy_with_integer_labels gives NaN for the label N, and takes -1 as the last class.
# Expected: an error, as torch's cross_entropy raises, or NaN; -1 as no class.
# Why it matters: labels that count from 1 (MATLAB files, Oxford's flowers) train with keras under a loss that falls:
#   no image has class 0, and those of class N teach nothing. Images without a label, -1, count nothing in keras and are
#   trained as the last class in optax.
# Instead: check that all labels are from 0 to N - 1 before the training
# Last lines of a run on 2026-11-29 (three classes, equal logits, so that a label costs log 3 = 1.099):
#   keras 3.15.1: label 0 1.099, 2 1.099, 3 0.0, -1 0.0, 255 0.0
#   optax 0.2.8: label 0 1.099, 2 1.099, 3 nan, -1 1.099, 255 nan
#   trained with the labels 1, 2, 3: keras' loss falls from 0.73 to 0.01, images of class 3 are predicted as [1]
# The same on 2026-11-30 with Python 3.13 and jax 0.12.0.1, numpy 2.5.5.
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq keras==3.15.1 jax==0.10.2 optax==0.2.8 numpy==2.4.6
KERAS_BACKEND=jax venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import keras
import numpy as np
import optax

LABELS = np.array([0, 2, 3, -1, 255])
logits = np.zeros((len(LABELS), 3), np.float32)


def shown(losses):
    return ", ".join(f"{label} {abs(round(float(loss), 3))}" for label, loss in zip(LABELS, losses, strict=True))


of_keras = np.asarray(keras.losses.sparse_categorical_crossentropy(LABELS, logits, from_logits=True))
of_optax = np.asarray(optax.softmax_cross_entropy_with_integer_labels(logits, LABELS))
print(f"keras {keras.__version__}: label {shown(of_keras)}")
print(f"optax {optax.__version__}: label {shown(of_optax)}")

images = np.repeat(np.eye(3, dtype=np.float32), 8, axis=0)
labels = np.repeat([1, 2, 3], 8)
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3, kernel_initializer="zeros")])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.optimizer.learning_rate = 2.0
losses = model.fit(images, labels, epochs=60, batch_size=24, verbose=0).history["loss"]
predicted = sorted({int(label) for label in model.predict(images[16:], verbose=0).argmax(1)})
print(
    f"trained with the labels 1, 2, 3: keras' loss falls from {losses[0]:.2f} to {losses[-1]:.2f}, "
    f"images of class 3 are predicted as {predicted}"
)
chance = np.float32(np.log(3))
assert np.allclose(of_keras, [chance, chance, 0, 0, 0])
assert np.allclose(of_optax, [chance, chance, np.nan, chance, np.nan], equal_nan=True)
assert losses[-1] < 0.1 < losses[0] and 3 not in predicted
PYTHON
