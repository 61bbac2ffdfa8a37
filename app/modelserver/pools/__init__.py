"""The server's side of workers: processes, their supervision, and the pool of one model version."""
