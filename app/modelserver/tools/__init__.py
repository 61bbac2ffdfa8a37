"""The commands beside the server."""
