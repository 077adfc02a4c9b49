"""Evaluation: one pass over the samples of all ranks, and all that is said about it."""
