"""Runs work that would block the event loop in helper processes, which can be killed."""
