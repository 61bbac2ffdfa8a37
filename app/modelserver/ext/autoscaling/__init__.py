"""Autoscaling: as many workers of a model as its load needs."""
