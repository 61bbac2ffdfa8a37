"""The models: registry, versions, how they are built, changes and replacement."""
