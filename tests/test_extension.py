import sys
from types import ModuleType, SimpleNamespace

import pytest

from modelserver.errors import ConfigError
from modelserver.extension import ExtensionRow, Host, close_extensions, open_extensions

ANY = None


def host(**settings):
    services = SimpleNamespace(settings=SimpleNamespace(**settings), registry=SimpleNamespace())
    return Host(services, ANY, ANY, ANY)


@pytest.fixture
def events(monkeypatch):
    """What happens to three extensions; the last one cannot be opened."""
    events = []

    class Extension:
        def __init__(self, name):
            self._name = name

        async def open(self, _):
            events.append(("open", self._name))
            if self._name == "broken":
                raise ConfigError("broken=yes is not possible")

        async def close(self, grace):
            events.append((f"close in {grace:g} s", self._name))
            if self._name == "failing":
                raise OSError("no close")

    for name in ("first", "failing", "second", "broken"):
        module = ModuleType(name)
        module.Extension = lambda name=name: Extension(name)
        monkeypatch.setitem(sys.modules, f"modelserver.ext.{name}", module)
    return events


def row(name):
    return ExtensionRow(f"modelserver.ext.{name}", lambda host: getattr(host.settings, name, False))


async def test_extensions_are_closed_in_reverse_order(events):
    """Those that are on; the others are not even imported. A failure of one leaves none open."""
    table = {name: row(name) for name in ("first", "absent", "failing", "second")}
    extensions = await open_extensions(table, host(first=True, failing=True, second=True))
    with pytest.raises(OSError, match="no close"):
        await close_extensions(extensions, 2.0)

    names = ["first", "failing", "second"]
    closed = [("close in 2 s", name) for name in reversed(names)]
    assert events == [("open", name) for name in names] + closed


async def test_extension_that_cannot_be_opened_ends_the_start(events):
    """All are closed, the broken one too, which may have opened in part."""
    table = {name: row(name) for name in ("first", "broken")}
    with pytest.raises(ConfigError, match="broken=yes"):
        await open_extensions(table, host(first=True, broken=True))

    assert events[2:] == [("close in 0 s", "broken"), ("close in 0 s", "first")]
