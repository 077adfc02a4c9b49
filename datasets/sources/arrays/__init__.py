"""Samples in arrays: in memory, or in files that all processes map."""
