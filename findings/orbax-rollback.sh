#!/usr/bin/env bash
# orbax-checkpoint 0.12.8, jax 0.10.2
# Subject: training
# Behaviour: CheckpointManager.save() of a step that is not above the latest one in its folder writes nothing and
#   returns False, without a warning. After a restore of step 500 where step 1000 exists, the saves of 600 to 1000 are
#   skipped, and latest_step() is the one of before.
# Expected: a file that is replaced, an error, or a warning; save() with the step of a file that exists looks the same.
# Why it matters: a run that diverged goes on from an earlier step with a smaller rate. None of its checkpoints is
#   written until it passes the step of before: if it is stopped there, restore() of latest_step(), and an export of it,
#   give the diverged weights.
# Instead: `delete()` the later steps first, or use a new folder
# Last lines of a run on 2026-11-30 (steps 0, 500 and 1000 saved, 500 restored, then 600, 900, 1000 saved):
#   orbax-checkpoint 0.12.8: save() of 600, 900, 1000 returns [False, False, False]; steps [0, 500, 1000]
#   latest_step() restored: the weights of before, 1000.0
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

manager = orbax.CheckpointManager(os.path.abspath("run"))


def save(step, value):
    saved = manager.save(step, args=orbax.args.StandardSave({"weight": np.float32([value])}))
    manager.wait_until_finished()
    return saved


first = [save(step, step) for step in (0, 500, 1000)]
manager.restore(500, args=orbax.args.StandardRestore())
later = [save(step, -step) for step in (600, 900, 1000)]
steps = manager.all_steps()
weight = float(manager.restore(manager.latest_step(), args=orbax.args.StandardRestore())["weight"][0])
version = importlib.metadata.version("orbax-checkpoint")
print(f"orbax-checkpoint {version}: save() of 600, 900, 1000 returns {later}; steps {steps}")
print(f"latest_step() restored: the weights of before, {weight}")
assert all(first) and not any(later) and weight == 1000
PYTHON
