"""The page of a run: an HTML file made from the plain files in the run's folder."""

REPORT = "report.html"
TRAIN_BATCH = "train_batch.png"  # images that the run was trained on
