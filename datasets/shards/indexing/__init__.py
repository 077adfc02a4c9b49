"""Reads the images and labels of shards once, and stores them in an index."""
