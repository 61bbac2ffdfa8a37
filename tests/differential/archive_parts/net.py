"""A network of the archive."""


class Net:
    """Nothing."""
