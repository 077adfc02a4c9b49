"""The trained parameters: all weights, the head, the last blocks, or low-rank adapters (MODEL.TUNE)."""
