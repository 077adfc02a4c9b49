"""The data a model is trained on."""
