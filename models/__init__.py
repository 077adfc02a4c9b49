"""The trained model."""
