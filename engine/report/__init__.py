"""The page of a run: an HTML file made from the plain files in the run's folder."""
