import asyncio

import pytest
from tests.simulated_time import run

from modelserver.errors import ServiceUnavailable
from modelserver.models.settings.settings import Settings
from modelserver.surface.http import intake
from modelserver.surface.http.head import HEADER_LIMIT
from modelserver.surface.http.intake import Intake


def test_share_of_a_process_is_bounded():
    settings = Settings(max_incoming_bytes=1000, max_request_size=300)

    assert Intake.of(settings).limit == Intake.of(settings).share(4) == 300 + HEADER_LIMIT
    assert Intake.of(Settings(max_incoming_bytes=1 << 30)).share(4) == 1 << 28


def test_what_waits_in_the_meantime():
    sut = Intake(10)

    with sut.holding(6):
        with pytest.raises(ServiceUnavailable, match="max_incoming_bytes=10"), sut.holding(5):
            pass
        with sut.holding(4):
            assert sut.held == 10
    assert sut.held == 0


def test_memory_is_released_when_no_more_comes(monkeypatch):
    trims: list[int] = []
    monkeypatch.setattr(intake, "_LONGEST", 1.0)
    sut = Intake(1 << 30)
    monkeypatch.setattr(intake, "trim", lambda: trims.append(sut.held))

    async def receive() -> None:
        with sut.holding(1 << 20):
            pass
        sut.add(8 << 20)
        await asyncio.sleep(4.0)
        assert trims == []
        for _ in range(4):
            sut.add(-(8 << 20))
            await asyncio.sleep(0.4)
            sut.add(8 << 20)
        sut.add(-(8 << 20))
        assert trims == []
        await asyncio.sleep(1.5)
        assert trims == [0]
        # Workers that come and go free memory, too.
        await asyncio.sleep(4.0)
        assert trims == [0] * 5

    run(receive())


def test_memory_of_requests_that_take_long_is_released(monkeypatch):
    trims: list[float] = []
    monkeypatch.setattr(intake, "_LONGEST", 4.0)
    monkeypatch.setattr(intake, "trim", lambda: trims.append(asyncio.get_running_loop().time()))

    async def receive() -> None:
        sut = Intake(1 << 30)
        with sut.holding(8 << 20):
            pass
        await asyncio.sleep(12.0)
        assert trims == pytest.approx([1.0, 3.0, 7.0, 11.0])

        with sut.holding(8 << 20):
            pass
        await asyncio.sleep(1.5)
        assert trims[4:] == pytest.approx([13.0])

    run(receive())


def test_memory_can_be_released_with_any_c_library():
    intake.trim()
