"""Log lines, tables, TensorBoard, plots, throughput and MFU."""
