#!/usr/bin/env bash
# keras 3.15.1 (with its jax backend)
# Subject: metrics and statistics
# Behaviour: SparseTopKCategoricalAccuracy counts an image as right if fewer than k classes have a larger score than its
#   own. Ties are right: equal scores give 100%, NaN gives 100%, and of float16 probabilities, most of which are 0,
#   most wrong predictions are right.
# Expected: k of N at equal scores, 0% or an error at NaN; the same figure of logits and of their probabilities.
# Why it matters: a training that has diverged to NaN shows the best top-5 accuracy of all; a monitor "max" of it keeps
#   these weights. With mixed_float16 and a softmax as the last layer the figure rises with overconfidence alone.
# Instead: compute it from float32 logits, and look for NaN first
# Last lines of a run on 2026-11-29 (20 classes, random scores, 1000 images):
#   keras 3.15.1, top-5: logits 24%, float16 probabilities 24%, of logits times 20 74%, times 40 96%
#   equal scores 100%, NaN 100%; top-1 by SparseCategoricalAccuracy: NaN 5%
# The same on 2026-11-30 with Python 3.13 and jax 0.12.0.1, numpy 2.5.5.
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq keras==3.15.1 jax==0.10.2 numpy==2.4.6
KERAS_BACKEND=jax venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import keras
import numpy as np

generator = np.random.default_rng(0)
labels = generator.integers(0, 20, 1000)
logits = generator.normal(size=(1000, 20)).astype(np.float32)


def probabilities(factor):
    values = np.exp(factor * (logits - logits.max(1, keepdims=True)))
    return (values / values.sum(1, keepdims=True)).astype(np.float16)


def percent(scores, metric):
    metric.update_state(labels, scores)
    return round(100 * float(metric.result()))


def top_5(scores):
    return percent(scores, keras.metrics.SparseTopKCategoricalAccuracy(5))


own, small, large, larger = [top_5(scores) for scores in (logits, *map(probabilities, (1, 20, 40)))]
equal, lost = top_5(np.zeros_like(logits)), top_5(np.full_like(logits, np.nan))
first = percent(np.full_like(logits, np.nan), keras.metrics.SparseCategoricalAccuracy())
print(
    f"keras {keras.__version__}, top-5: logits {own}%, float16 probabilities {small}%, of logits times 20 {large}%, "
    f"times 40 {larger}%\nequal scores {equal}%, NaN {lost}%; top-1 by SparseCategoricalAccuracy: NaN {first}%"
)
assert abs(own - 25) < 5 and small == own and large > 60 and larger > 90
assert equal == lost == 100 and first < 10
PYTHON
