"""The last lines of the log, for the console."""
