"""The optimizer, its learning rate, and the average of the weights."""
