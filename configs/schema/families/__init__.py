"""The model families: one file each, or one for families with equal keys; `registry.py` has the table."""
