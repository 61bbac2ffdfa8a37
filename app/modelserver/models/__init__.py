"""The models: where they come from, how they are configured, and which are registered."""
