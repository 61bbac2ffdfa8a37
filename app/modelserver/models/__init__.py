"""What a model is: where it comes from, how it is configured, and which ones there are."""
