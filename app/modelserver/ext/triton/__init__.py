"""Triton's extensions of the protocol, in its terms: what its clients and tools ask a server."""
