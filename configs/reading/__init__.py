"""Command line, YAML files and the options of weights -> one checked `Config`."""
