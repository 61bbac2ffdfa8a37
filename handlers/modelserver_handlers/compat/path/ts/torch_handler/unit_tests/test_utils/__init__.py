"""Help for tests of handlers."""
