"""Log lines, tables, TensorBoard, plots, throughput and utilization."""
