"""What handlers measure: the classes behind ``context.metrics`` and ``ts.metrics`` (reference 13.6)."""
