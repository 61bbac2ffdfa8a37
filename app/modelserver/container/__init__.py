"""The container image: what it does at its start, under KServe, and when it is asked for its health."""
