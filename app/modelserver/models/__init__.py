"""The models: registry, versions, their preparation, changes and replacement, snapshots."""
