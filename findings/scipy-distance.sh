#!/usr/bin/env bash
# scipy 1.17.1, numpy 2.4.6
# Subject: metrics and statistics
# Behaviour: euclidean(), cityblock(), chebyshev() and minkowski() of scipy.spatial.distance subtract two vectors of
#   uint8 in uint8, where 200 - 210 is 246, and cosine() multiplies them in uint8. cdist() of the same vectors, and
#   sqeuclidean() beside euclidean(), take them as numbers. Only cosine() warns, of an overflow.
# Expected: euclidean(a, b) is cdist([a], [b]), and the root of sqeuclidean(a, b).
# Why it matters: thumbnails, and embeddings quantized to 8 bits, are uint8. The copy of an image that is darker by one
#   level is far away, farther than another image, and a search for duplicates or neighbours that was checked on floats
#   finds others.
# Instead: `astype(float)` before
# Last lines of a run on 2026-11-30 (a thumbnail of 64 pixels; its copy, each pixel darker or brighter by one; noise):
#   euclidean: scipy 1.17.1 copy 1530, noise 1258; cdist copy 8, noise 826
#   cityblock: scipy 1.17.1 copy 9208, noise 9202; cdist copy 64, noise 5686
#   chebyshev: scipy 1.17.1 copy 255, noise 250; cdist copy 1, noise 220
#   cosine:    scipy 1.17.1 copy 0.00, noise 0.00; cdist copy 0.00, noise 0.26
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq scipy==1.17.1 numpy==2.4.6
venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import numpy as np
import scipy
from scipy.spatial import distance

generator = np.random.default_rng(0)
thumbnail = generator.integers(1, 255, 64, dtype=np.uint8)
copy = (thumbnail + generator.choice([-1, 1], 64)).astype(np.uint8)
noise = generator.integers(1, 255, 64, dtype=np.uint8)
for name in ("euclidean", "cityblock", "chebyshev", "cosine"):
    one = getattr(distance, name)
    single = [one(thumbnail, other) for other in (copy, noise)]
    many = distance.cdist([thumbnail], [copy, noise], name)[0].tolist()
    of_floats = [one(thumbnail.astype(float), other.astype(float)) for other in (copy, noise)]
    digits = 2 if name == "cosine" else 0
    print(
        f"{name + ':':10} scipy {scipy.__version__} copy {single[0]:.{digits}f}, noise {single[1]:.{digits}f}; "
        f"cdist copy {many[0]:.{digits}f}, noise {many[1]:.{digits}f}"
    )
    assert np.allclose(many, of_floats) and many[0] < many[1]
    assert name == "cosine" or single[0] > 20 * many[0]
    assert not np.allclose(single, many)
squared = distance.sqeuclidean(thumbnail, copy)
assert squared == 64 and distance.euclidean(thumbnail, copy) > 8
PYTHON
