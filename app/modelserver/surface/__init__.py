"""What clients speak: HTTP, the inference protocols, management, tokens, TLS."""
