"""Several processes that take in requests for one server: they speak HTTP, the server decides."""
