#!/usr/bin/env bash
# keras 3.15.1 (with its jax backend)
# Subject: training
# Behaviour: with gradient_accumulation_steps=4 the learning rate schedule and the moving average of the weights
#   (use_ema=True) count batches, not updates: the schedule runs four times as fast as optimizer.iterations, which has
#   the updates, and the average forgets four times as fast.
# Expected: four batches of 8 are one of 32: equal rates, updates and averages.
# Why it matters: accumulation stands in for a larger batch that does not fit. A recipe for that batch (warm-up, decay
#   over 10,000 steps, an average over 2,000) ends its warm-up and its decay after a quarter of the training, with a
#   rate of 0 for the rest; no message says so.
# Instead: count schedules and averages in batches: steps times `gradient_accumulation_steps`
# Last lines of a run on 2026-11-30 (updates of 8 images; CosineDecay over 4 steps; average of 20, momentum 0.9):
#   keras 3.15.1, one batch of 8: iterations 2, rate 0.500
#   four batches of 2: iterations 2, rate 0.000
#   distance of the average from the weights: one batch 0.5087, four batches 0.1530
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq keras==3.15.1 jax==0.10.2 numpy==2.4.6
KERAS_BACKEND=jax venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import keras
import numpy as np

images, targets = np.eye(8, dtype=np.float32), np.ones((8, 1), np.float32)


def train(rate, updates, steps, **average):
    """The optimizer and the weights after updates of 8 images each, in `steps` batches (None: one)."""
    keras.utils.set_random_seed(0)
    optimizer = keras.optimizers.SGD(rate, gradient_accumulation_steps=steps, **average)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(optimizer, "mse", jit_compile=False)
    for _ in range(updates):
        for batch in np.split(np.arange(8), steps or 1):
            model.train_on_batch(images[batch], targets[batch])
    return optimizer, np.ravel(model.get_weights()[0])


def distance(steps):
    optimizer, weights = train(0.1, 20, steps, use_ema=True, ema_momentum=0.9)
    average = np.ravel(optimizer._model_variables_moving_average[0])
    return float(np.linalg.norm(average - weights)), weights


start = f"keras {keras.__version__}, "
rates = []
for name, steps in (("one batch of 8", None), ("four batches of 2", 4)):
    optimizer, _ = train(keras.optimizers.schedules.CosineDecay(1.0, 4), 2, steps)
    rates.append(round(float(optimizer.learning_rate), 3))
    print(f"{start}{name}: iterations {int(optimizer.iterations)}, rate {rates[-1]:.3f}")
    assert int(optimizer.iterations) == 2
    start = ""
(one, weights), (four, accumulated) = distance(None), distance(4)
print(f"distance of the average from the weights: one batch {one:.4f}, four batches {four:.4f}")
assert rates == [0.5, 0] and np.allclose(weights, accumulated, atol=1e-6) and one > 2 * four
PYTHON
