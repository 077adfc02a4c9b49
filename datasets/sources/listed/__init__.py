"""Samples that a list, a table or parquet files name."""
