"""Leaves: they import nothing of the project but each other."""
