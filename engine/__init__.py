"""How a run is executed."""
