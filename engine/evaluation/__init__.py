"""Evaluation: one pass over the samples of all ranks, its figures and its files."""
