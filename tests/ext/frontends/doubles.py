"""What an end of the link needs of the server."""

from types import SimpleNamespace

from modelserver.surface.http.outgoing import Outgoing


def endpoints_of(hot=None, *, count=print, on_stall=print, most=1 << 28, **more):
    metrics = SimpleNamespace(response=count, stalled=on_stall)
    services = SimpleNamespace(metrics=metrics, outgoing=Outgoing(most), **more)
    return SimpleNamespace(hot=hot, services=services)
