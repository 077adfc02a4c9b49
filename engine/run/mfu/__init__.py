"""Model FLOPs utilization: FLOPs of a model, datasheet peaks of GPUs."""
