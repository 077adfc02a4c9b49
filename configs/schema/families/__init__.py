"""The model families, by the sizes of their blocks; `registry.py` has the table."""
