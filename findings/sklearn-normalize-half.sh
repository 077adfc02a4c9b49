#!/usr/bin/env bash
# scikit-learn 1.9.1
# Subject: metrics and statistics
# Behaviour: normalize() and Normalizer of a float16 array take the sum of the squares in float16. A row with a norm
#   above 256 has an infinite sum, and becomes zeros; one with values below 0.00017 has the sum 0, and is left as it is.
#   There is no error. cosine_similarity() of the same array, and normalize(norm="max"), are right.
# Expected: sums in float32, as cosine_similarity() has them, or an error for infinity, as for infinite values.
# Why it matters: features of a ViT are stored in float16, and normalized for a search of neighbours, a kNN or a linear
#   probe. Their norms are of the size of the root of their number, 28 for 768 values of the standard deviation 1: a few
#   large values are enough, and only these images become zeros, equal to each other and similar to none.
# Instead: `astype(np.float32)` before
# Last lines of a run on 2026-11-29 (768 values; norms after normalize, 1 is right):
#   scikit-learn 1.9.1, float16: norm 28 becomes 1.000, 249 becomes 1.000, 277 becomes 0.000, 0.00277 becomes 0.00277
#   float32: 1.000, 1.000, 1.000, 1.000
#   cosine of two equal images of the norm 277: cosine_similarity 1.000, product of normalize's rows 0.000
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq scikit-learn==1.9.1 scipy==1.17.1 numpy==2.4.6
venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import numpy as np
import sklearn
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.preprocessing import Normalizer, normalize

features = np.full((4, 768), [[1], [9], [10], [1e-4]], np.float16)


def norms(rows):
    return np.linalg.norm(rows.astype(np.float64), axis=1)


before, half, single = norms(features), norms(normalize(features)), norms(normalize(features.astype(np.float32)))
print(
    f"scikit-learn {sklearn.__version__}, float16: norm {before[0]:.0f} becomes {half[0]:.3f}, {before[1]:.0f} becomes "
    f"{half[1]:.3f}, {before[2]:.0f} becomes {half[2]:.3f}, {before[3]:.5f} becomes {half[3]:.5f}"
)
print("float32: " + ", ".join(f"{norm:.3f}" for norm in single))
large = features[[2, 2]]
first, second = normalize(large).astype(np.float32)
similar, product = cosine_similarity(large)[0, 1], float(first @ second)
print(
    f"cosine of two equal images of the norm {before[2]:.0f}: cosine_similarity {similar:.3f}, product of normalize's "
    f"rows {product:.3f}"
)
assert np.allclose(half[:2], 1, atol=0.01) and half[2] == 0 and half[3] == before[3] < 0.01
assert np.allclose(single, 1) and abs(similar - 1) < 0.01 and product == 0
assert np.allclose(normalize(large, norm="max"), 1) and not Normalizer().fit_transform(large).any()
PYTHON
