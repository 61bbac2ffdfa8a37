from types import SimpleNamespace

import pytest
from tests.ext.frontends.doubles import endpoints_of

from modelserver.ext.frontends import messages
from modelserver.ext.frontends.link import Link
from modelserver.ext.frontends.messages import LARGE
from modelserver.ext.frontends.server_end import ServerEnd
from modelserver.surface.http.exchange import Target


@pytest.mark.parametrize(
    ("unsent", "size", "status"), [(11, LARGE, 503), (10, LARGE, 200), (11, LARGE - 1, 200)]
)
async def test_large_answer_for_a_front_end_that_is_behind_gets_503(monkeypatch, unsent, size, status):
    monkeypatch.setattr(Link, "unsent", property(lambda _: unsent))
    statuses = []
    hot = SimpleNamespace(
        find=lambda _: Target("/predictions/m", b"", "/predictions/m"),
        serve=lambda exchange: exchange.reply(200, b"x" * size),
    )
    end = ServerEnd(endpoints_of(hot, count=statuses.append, most=10), None)
    sent = []
    end.link.send = lambda message, body=b"": sent.append((message, body))
    end._ask(messages.Ask(1, 0, b"/predictions/m", b"POST", "1.1", b"\x90", "", b"", 0, "id", False), b"")
    ((message, body),) = sent

    assert [message.status] == statuses == [status]
    assert (b"max_outgoing_bytes=10" in body) is (status == 503)
    assert end.exchanges == {}
