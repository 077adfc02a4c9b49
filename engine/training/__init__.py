"""The trainer and the parts of a training step."""
