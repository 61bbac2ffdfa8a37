"""Programs that run in a peer's own environment: each serves the same work in that server's way."""
