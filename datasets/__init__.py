"""The data of a run, from files to batches. Hugging Face's package of this name cannot be imported beside it."""
