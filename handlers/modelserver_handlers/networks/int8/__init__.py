"""Networks in 8 bits."""
