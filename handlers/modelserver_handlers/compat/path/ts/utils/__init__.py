"""Helpers for everything."""
