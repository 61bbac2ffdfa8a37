"""REST except inference: parses requests, delegates, builds responses."""
