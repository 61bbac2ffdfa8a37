"""The names of batch policies, for all that does not need :mod:`modelserver.engine.batching.policies`."""

POLICIES = ADAPTIVE, GREEDY, WINDOW = "adaptive", "greedy", "window"
