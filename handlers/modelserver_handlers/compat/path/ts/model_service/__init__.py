"""Services of the time before handlers."""
