"""``modelserver check``: says what will hurt when a handler serves."""
