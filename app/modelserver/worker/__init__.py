"""The process's side of a worker: the only code that loads and calls user code."""
