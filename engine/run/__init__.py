"""The folder of a run: facts, log lines, tables, plot, loggers."""
