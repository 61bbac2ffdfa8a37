"""Virtual environments of models with their own packages."""
