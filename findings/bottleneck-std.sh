#!/usr/bin/env bash
# bottleneck 1.6.0, pandas 3.1.1, numpy 2.4.6
# Subject: metrics and statistics
# Behaviour: bottleneck adds float32 values one after another in float32, where 16777216 + 1 is 16777216: its nanmean()
#   of 40 million ones is 0.42. pandas takes its std() and var() from bottleneck if that is installed: of 20 million
#   values with the standard deviation 0.25 they are 2% too small. mean() of pandas is numpy's, and right.
# Expected: an optional package for speed changes the last digits.
# Why it matters: mean and standard deviation of the pixels for Normalize are taken over many images; 400 gray ones
#   of 224 pixels have 20 million values, float32 after the division by 255. The figure depends on a package that nobody
#   imported.
# Instead: `pandas.set_option("compute.use_bottleneck", False)`, or values of float64
# Last lines of a run on 2026-11-30:
#   bottleneck 1.6.0, mean of 40 million ones: 0.42, numpy 1.0, pandas 1.0
#   pandas 3.1.1, std of 20 million values: 0.2447, without bottleneck 0.2499
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq bottleneck==1.6.0 pandas==3.1.1 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import bottleneck
import numpy as np
import pandas as pd

ones = np.ones(40_000_000, np.float32)
means = bottleneck.nanmean(ones), float(np.nanmean(ones)), float(pd.Series(ones).mean())
version = bottleneck.__version__
print(f"bottleneck {version}, mean of 40 million ones: {means[0]:.2f}, numpy {means[1]}, pandas {means[2]}")
pixels = np.random.default_rng(0).normal(0.5, 0.25, 20_000_000).astype(np.float32)
series = pd.Series(pixels)
with_it = series.std()
with pd.option_context("compute.use_bottleneck", False):
    without = series.std()
print(f"pandas {pd.__version__}, std of 20 million values: {with_it:.4f}, without bottleneck {without:.4f}")
assert means[0] < 0.5 and means[1] == means[2] == 1
assert with_it < 0.246 and abs(without - 0.25) < 0.001 and series.var() < 0.246**2
PYTHON
