"""HTTP/1.1 as bytes: connections, exchanges, and what is answered at the edge."""
