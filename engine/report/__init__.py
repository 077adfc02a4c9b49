"""The page of a run: an HTML file made from the plain files in the run's folder."""

from engine.run.record import DETAILS

REPORT = "report.html"
TRAIN_BATCH = f"{DETAILS}/train_batch.png"  # images that the run was trained on
