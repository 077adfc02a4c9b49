"""`-profile`: the time of each phase of a step."""
