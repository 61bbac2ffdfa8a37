"""The server's side of workers: processes, supervision, and the pool of a model version."""
