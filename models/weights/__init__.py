"""Weights files in several formats -> one checked state dict."""
