"""Workflows: models and functions joined to a graph that answers one request (reference 19)."""
