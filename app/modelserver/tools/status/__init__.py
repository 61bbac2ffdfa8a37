"""``modelserver status``: what is wrong with a running server."""
