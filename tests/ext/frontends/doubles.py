"""What an end of the link needs of the server."""

from types import SimpleNamespace


def endpoints_of(hot=None, *, count=print, on_stall=print, **more):
    metrics = SimpleNamespace(response=count, stalled=on_stall)
    return SimpleNamespace(hot=hot, services=SimpleNamespace(metrics=metrics, **more))
