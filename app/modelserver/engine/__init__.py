"""Rows in, answers out: queues, policies, pools, workers, and the messages between them.

Nothing here knows HTTP, a settings file or an archive.
"""
