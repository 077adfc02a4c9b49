#!/usr/bin/env bash
# optuna 5.0.0
# Subject: training
# Behaviour: a sampler with a seed begins its random numbers anew in each process. A study that is continued
#   (load_if_exists=True) tries the parameters of its first trials again: all of RandomSampler, and the first ten of a
#   study of TPESampler, until it leaves its random start. Processes that share a study try the same ones at once.
# Expected: the seed and the number of the trial decide the parameters, so that a study in two parts is the study in
#   one; or a warning.
# Why it matters: a sweep of ten nights in parts of four trials trains four networks ten times over. The importance of
#   parameters and the best of n count repeats as evidence.
# Instead: `QMCSampler`, or another seed for each process
# Last lines of a run on 2026-11-29 (three processes of four trials each, one after another):
#   optuna 5.0.0: different parameters of 12 trials: RandomSampler 4, TPESampler 6, QMCSampler 12
#   RandomSampler in one process: 12
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq optuna==5.0.0 scipy==1.17.1 numpy==2.4.6
cat > part.py <<'PYTHON'
import sys

import optuna

name, count = sys.argv[1], int(sys.argv[2])
sampler = getattr(optuna.samplers, name)(seed=0)
storage = f"sqlite:///{name}-{count}.db"
study = optuna.create_study(storage=storage, study_name="sweep", sampler=sampler, load_if_exists=True)


def loss(trial):
    return (trial.suggest_float("rate", 0, 1) - 0.3) ** 2 + trial.suggest_float("decay", 0, 1)


study.optimize(loss, n_trials=count)
print(len({tuple(trial.params.values()) for trial in study.trials}), len(study.trials), optuna.__version__)
PYTHON
for sampler in RandomSampler TPESampler QMCSampler; do
    for _ in 1 2 3; do last=$(venv/bin/python part.py "$sampler" 4 2> errors.txt) || { cat errors.txt; exit 1; }; done
    echo "$sampler $last"
done > parts.txt
whole=$(venv/bin/python part.py RandomSampler 12 2> errors.txt) || { cat errors.txt; exit 1; }
version=${whole##* }
counts=$(cut -d " " -f 1,2 parts.txt | paste -s -d , | sed "s/,/, /g")
echo "optuna $version: different parameters of 12 trials: $counts"
echo "RandomSampler in one process: ${whole%% *}"
[ "$counts" = "RandomSampler 4, TPESampler 6, QMCSampler 12" ]
[ "${whole% *}" = "12 12" ]
