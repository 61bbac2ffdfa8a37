"""HTTP/1.1 as bytes: connections, exchanges, and early responses."""
