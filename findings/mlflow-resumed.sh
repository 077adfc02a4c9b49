#!/usr/bin/env bash
# mlflow-skinny 3.17.2
# Subject: trackers
# Behaviour: run.data.metrics, and a search by metrics.loss, have the value of the largest step, not the value that was
#   logged last: after a run is continued from an earlier step, the value of before stays until that step is passed.
# Expected: the value that was logged last, or the history cut at the step where the run continues.
# Why it matters: a run diverges at step 1000, is continued under its id from step 500, and stops early at step 900:
#   the table of runs, and a choice of the best run, show the loss of the diverged weights.
# Instead: take the last entry of `get_metric_history()` by time
# Last lines of a run on 2026-11-29 (losses 2, 1, 9 at steps 0, 500, 1000; continued: 0.9, 0.5 at steps 600, 900):
#   mlflow-skinny 3.17.2: loss of the run 9.0, logged last 0.5; runs with metrics.loss < 1: 0
#   without steps (losses 0.1, 0.9, 0.3): 0.3
set -euo pipefail
folder=$(mktemp -d)
cd "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv venv
venv/bin/pip install -qq mlflow-skinny==3.17.2 sqlalchemy==2.1.9 alembic==1.20.1
venv/bin/python -W ignore - 2> errors.txt <<'PYTHON' || { cat errors.txt; exit 1; }
import mlflow

mlflow.set_tracking_uri("sqlite:///runs.db")
experiment = mlflow.set_experiment("vit").experiment_id
client = mlflow.MlflowClient()
with mlflow.start_run() as run:
    for step, loss in ((0, 2.0), (500, 1.0), (1000, 9.0)):
        mlflow.log_metric("loss", loss, step=step)
with mlflow.start_run(run_id=run.info.run_id):
    for step, loss in ((600, 0.9), (900, 0.5)):
        mlflow.log_metric("loss", loss, step=step)
shown = client.get_run(run.info.run_id).data.metrics["loss"]
last = client.get_metric_history(run.info.run_id, "loss")[-1].value
found = client.search_runs([experiment], "metrics.loss < 1")
print(
    f"mlflow-skinny {mlflow.__version__}: loss of the run {shown}, logged last {last}; runs with metrics.loss < 1: "
    f"{len(found)}"
)
with mlflow.start_run() as other:
    for loss in (0.1, 0.9, 0.3):
        mlflow.log_metric("loss", loss)
without_steps = client.get_run(other.info.run_id).data.metrics["loss"]
print(f"without steps (losses 0.1, 0.9, 0.3): {without_steps}")
assert (shown, last, len(found)) == (9, 0.5, 0)
assert without_steps == 0.3
PYTHON
