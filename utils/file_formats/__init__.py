"""Formats of files that are read without trust in their content."""
