import sys
from functools import partial
from types import ModuleType, SimpleNamespace

import pytest

from modelserver.errors import ConfigError
from modelserver.extension import ExtensionRow, Host, open_extensions

ANY = None


def host(**settings):
    services = SimpleNamespace(settings=SimpleNamespace(**settings), registry=SimpleNamespace())
    return Host(services, ANY, ANY, ANY)


@pytest.fixture
def events(monkeypatch):
    """What happens to three extensions; the last one cannot be opened."""
    events = []

    async def extend(host, name):
        events.append(("open", name))
        host.closing.callback(close, name)
        if name == "broken":
            raise ConfigError("broken=yes is not possible")

    def close(name):
        events.append(("close", name))
        if name == "failing":
            raise OSError("no close")

    for name in ("first", "failing", "second", "broken"):
        module = ModuleType(name)
        module.extend = partial(extend, name=name)
        monkeypatch.setitem(sys.modules, f"modelserver.ext.{name}", module)
    return events


def row(name):
    return ExtensionRow(f"modelserver.ext.{name}", lambda host: getattr(host.settings, name, False))


async def test_extensions_are_closed_in_reverse_order(events):
    """Those that are on; the others are not even imported. A failure of one leaves none open."""
    table = {name: row(name) for name in ("first", "absent", "failing", "second")}
    extended = host(first=True, failing=True, second=True)
    await open_extensions(table, extended)
    with pytest.raises(OSError, match="no close"):
        await extended.closing.aclose()

    names = ["first", "failing", "second"]
    closed = [("close", name) for name in reversed(names)]
    assert events == [("open", name) for name in names] + closed


async def test_extension_that_cannot_be_opened_ends_the_start(events):
    """All are closed, the broken one too, which may have opened in part."""
    table = {name: row(name) for name in ("first", "broken")}
    with pytest.raises(ConfigError, match="broken=yes"):
        await open_extensions(table, host(first=True, broken=True))

    assert events[2:] == [("close", "broken"), ("close", "first")]
