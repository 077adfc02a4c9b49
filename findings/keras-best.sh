#!/usr/bin/env bash
# keras 3.15.1 (with its jax backend)
# Subject: training
# Behaviour: BackupAndRestore continues an interrupted fit() with the weights, the optimizer and the epoch.
#   ModelCheckpoint(save_best_only=True) begins anew: it takes the first epoch after the restart for the best one, and
#   writes it over the file of the best epoch.
# Expected: the file that a run without an interruption has: the callback is there to make runs survive one.
# Why it matters: after the best epoch a run gets worse, and is stopped on a cluster with time limits several times. The
#   weights that are tested and published are those of the best epoch of the last part.
# Instead: pass `initial_value_threshold=` the best value before the interruption
# Last lines of a run on 2026-11-30 (validation loss of six epochs, the third is the best; stopped in the fifth):
#   keras 3.15.1, without an interruption: 1.251, 1.085, 0.943, 1.008, 1.077, 1.151; best.keras has 0.943
#   before the interruption best.keras has 0.943, after it 1.077
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq keras==3.15.1 jax==0.10.2 numpy==2.4.6
KERAS_BACKEND=jax venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import os

import keras
import numpy as np

images, labels = np.eye(4, dtype=np.float32), np.arange(4)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Interruption(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 4:
            raise KeyboardInterrupt


def train(folder, *callbacks):
    """Losses of the epochs, and of the file best.keras; from the fourth epoch on the network becomes worse."""
    os.makedirs(folder, exist_ok=True)
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)])
    model.compile(keras.optimizers.SGD(1.0), loss)
    callbacks = [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: 1.0 if epoch < 3 else -0.5),
        keras.callbacks.BackupAndRestore(f"{folder}/backup"),
        keras.callbacks.ModelCheckpoint(f"{folder}/best.keras", monitor="val_loss", save_best_only=True),
        *callbacks,
    ]
    losses = []
    try:
        fitted = model.fit(images, labels, epochs=6, verbose=0, validation_data=(images, labels), callbacks=callbacks)
        losses = [round(value, 3) for value in fitted.history["val_loss"]]
    except KeyboardInterrupt:
        pass
    best = keras.models.load_model(f"{folder}/best.keras").evaluate(images, labels, verbose=0)
    return losses, round(best, 3)


losses, whole = train("whole")
_, before = train("parts", Interruption())
_, after = train("parts")
print(
    f"keras {keras.__version__}, without an interruption: {', '.join(map('{:.3f}'.format, losses))}; "
    f"best.keras has {whole}"
)
print(f"before the interruption best.keras has {before}, after it {after}")
assert whole == before == min(losses) and after == losses[4] > before
PYTHON
