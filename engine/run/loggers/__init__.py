"""Loggers of the figures of a run: TensorBoard, and Weights & Biases and MLflow on request."""
