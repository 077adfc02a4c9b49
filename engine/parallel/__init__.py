"""Data parallelism and compilation."""
