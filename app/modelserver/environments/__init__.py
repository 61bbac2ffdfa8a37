"""Virtual environments of models that bring packages of their own."""
