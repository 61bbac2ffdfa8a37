"""The worker process: the only code that loads and calls user code."""
