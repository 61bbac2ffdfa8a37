"""HTTP/2, the server's side: what gRPC is carried by."""
