"""``modelserver.Handler``: a handler whose annotations say what its rows are."""
