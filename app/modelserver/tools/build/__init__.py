"""``modelserver build``: the context of a container image that serves one model."""
