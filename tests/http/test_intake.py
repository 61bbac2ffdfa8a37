from __future__ import annotations

from modelserver.http.head import HEADER_LIMIT
from modelserver.http.intake import Intake
from modelserver.settings.settings import Settings


def test_share_of_a_process() -> None:
    """Each of several processes has its share, and always room for one whole request."""
    settings = Settings(max_incoming_bytes=1000, max_request_size=300)

    assert Intake.of(settings).limit == 300 + HEADER_LIMIT
    assert Intake.of(Settings(max_incoming_bytes=1 << 30), 4).limit == 1 << 28
