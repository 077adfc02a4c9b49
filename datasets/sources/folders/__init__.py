"""Folders of images: splits, classes, and advice about other layouts."""
