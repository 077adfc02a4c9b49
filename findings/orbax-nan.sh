#!/usr/bin/env bash
# orbax-checkpoint 0.12.8, jax 0.10.2
# Subject: training
# Behaviour: CheckpointManager(best_fn=..., max_to_keep=2) sorts the checkpoints by their metric, and NaN compares with
#   nothing: a run whose loss becomes NaN keeps the two latest checkpoints, of NaN, as its best ones, and deletes the
#   good ones. One NaN in between can cost the best checkpoint, too, with best_mode "min" and "max".
# Expected: NaN is the worst value, or is refused.
# Why it matters: the best checkpoints are kept in order to survive a divergence. In mixed precision a loss that
#   overflows once gives one NaN, and the best step of the run is deleted at the next save.
# Instead: `best_fn` that returns infinity for NaN
# Last lines of a run on 2026-11-30 (losses of the steps 0, 1, ...; kept steps):
#   orbax-checkpoint 0.12.8, losses 1.0, 0.5, 0.6, nan, nan, nan: kept [4, 5], best 5
#   losses 0.9, 0.5, nan, 0.6, 0.7, 0.8: kept [3, 4], best 3
#   losses 0.9, 0.5, 0.8, 0.6, 0.7, 0.8: kept [1, 3], best 1
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq orbax-checkpoint==0.12.8 jax==0.10.2 numpy==2.4.6
venv/bin/python - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import importlib.metadata
import os

import numpy as np
import orbax.checkpoint as orbax

nan = float("nan")


def kept(name, losses, sign=1):
    mode = "min" if sign == 1 else "max"
    options = orbax.CheckpointManagerOptions(
        max_to_keep=2, best_fn=lambda metrics: sign * metrics["loss"], best_mode=mode
    )
    manager = orbax.CheckpointManager(os.path.abspath(f"{name}-{mode}"), options=options)
    for step, loss in enumerate(losses):
        weights = orbax.args.StandardSave({"weight": np.float32([step])})
        manager.save(step, args=weights, metrics={"loss": loss})
        manager.wait_until_finished()
    return list(manager.all_steps()), manager.best_step()


runs = {
    "diverged": [1.0, 0.5, 0.6, nan, nan, nan],
    "one": [0.9, 0.5, nan, 0.6, 0.7, 0.8],
    "none": [0.9, 0.5, 0.8, 0.6, 0.7, 0.8],
}
found = {name: kept(name, losses) for name, losses in runs.items()}
start = f"orbax-checkpoint {importlib.metadata.version('orbax-checkpoint')}, "
for name, (steps, best) in found.items():
    print(f"{start}losses {', '.join(map(str, runs[name]))}: kept {steps}, best {best}")
    start = ""
assert found == {"diverged": ([4, 5], 5), "one": ([3, 4], 3), "none": ([1, 3], 1)}
assert 1 not in kept("one", runs["one"], sign=-1)[0] and 1 in kept("none", runs["none"], sign=-1)[0]
PYTHON
