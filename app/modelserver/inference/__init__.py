"""Inference over REST: what each route makes of a body, and of an answer."""
