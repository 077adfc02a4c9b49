"""The plan of a command: all that is decided before a model is built, from options, data, weights and checkpoint."""
