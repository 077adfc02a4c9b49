"""Where the figures of a run go besides its files: TensorBoard, and Weights & Biases and MLflow on request."""
