"""Data sources: where the images are and which labels they have."""
