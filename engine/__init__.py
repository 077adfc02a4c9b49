"""How a run goes: the trainer and its parts."""
