"""Snapshots of the registered models, which are restored at the next start (reference 17)."""
