"""The names of batch policies, for modules that do not import :mod:`modelserver.engine.batching.policies`."""

POLICIES = ADAPTIVE, GREEDY, WINDOW = "adaptive", "greedy", "window"
