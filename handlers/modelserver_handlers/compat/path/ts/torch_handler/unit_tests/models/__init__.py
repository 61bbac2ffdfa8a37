"""Networks for tests of handlers."""
