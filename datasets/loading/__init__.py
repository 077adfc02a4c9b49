"""The order of samples, worker processes, and batches on the device."""
