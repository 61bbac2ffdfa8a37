"""The Open Inference Protocol besides inference: what clients and tools, Triton's too, ask a server."""
