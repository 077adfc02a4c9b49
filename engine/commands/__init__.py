"""The commands of the entry scripts."""
