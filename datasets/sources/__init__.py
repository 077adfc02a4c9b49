"""Where the samples are and which labels they have."""
