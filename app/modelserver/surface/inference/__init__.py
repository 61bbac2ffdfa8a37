"""Inference over REST: how each route reads a body and writes an answer."""
