"""Data sets that are known by their names."""
