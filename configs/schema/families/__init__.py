"""The model families: one file each, or one for a few that are alike; `registry.py` has the table."""
