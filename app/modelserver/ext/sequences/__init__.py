"""Sequences: requests that share the state of one worker."""
