"""Writing, verifying and finding checkpoints."""
