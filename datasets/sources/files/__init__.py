"""Samples with one file per image: lists, tables, class folders, and their checks."""
