"""Transforms: operations on the host, per image, and on the device, per batch."""
