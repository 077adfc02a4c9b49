"""Augmentation: per image on the host, per batch on the device."""
