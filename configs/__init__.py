"""What a run is: the options, their checks, and the recipes."""
