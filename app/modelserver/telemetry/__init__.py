"""What the server tells about itself: metrics, readings of the host, logs."""
