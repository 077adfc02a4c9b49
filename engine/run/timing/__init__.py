"""The time of steps and of ranks, and work that has a share of the time of a run."""
