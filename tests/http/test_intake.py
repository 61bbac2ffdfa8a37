from __future__ import annotations

import pytest

from modelserver.http.head import HEADER_LIMIT
from modelserver.http.intake import Intake, IntakeFull
from modelserver.settings.settings import Settings


def test_share_of_a_process() -> None:
    """Each of several processes has its share, and always room for one whole request."""
    settings = Settings(max_incoming_bytes=1000, max_request_size=300)

    assert Intake.of(settings).limit == 300 + HEADER_LIMIT
    assert Intake.of(Settings(max_incoming_bytes=1 << 30), 4).limit == 1 << 28


def test_what_waits_in_the_meantime() -> None:
    """It counts until it was read or refused."""
    sut = Intake(10)

    with sut.holding(6):
        with pytest.raises(IntakeFull, match="max_incoming_bytes=10"), sut.holding(5):
            pass
        with sut.holding(4):
            assert sut.held == 10
    assert sut.held == 0
