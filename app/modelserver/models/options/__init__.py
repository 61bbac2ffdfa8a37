"""The options of a model: one table, the file that sets them, and how they are resolved."""
