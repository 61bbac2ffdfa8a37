from typing import get_type_hints

import pytest

from modelserver.ext.parking.routes import DeviceMemory, Parking, page_of
from modelserver.surface.api.parameters import Parameters


@pytest.mark.parametrize("gpus", [(), (0, 1)])
async def test_document_says_what_the_response_has(floor, gpus):
    for name, devices in zip("ab", (gpus[:1], gpus[1:]), strict=True):
        floor.add(name, gpus=devices)
    await floor.use(1, "a")
    described = page_of(floor.keeper.describe(), Parameters({"limit": 1}))
    last = page_of(floor.keeper.describe(), Parameters({"next_page_token": described["nextPageToken"]}))

    assert described.keys() == get_type_hints(Parking).keys()
    assert described["counts"] == last["counts"] == {"loaded": 1, "parked": 1}
    assert (described["models"], last["models"]) == ({"loaded": ["a 1.0"]}, {"parked": ["b 1.0"]})
    assert "nextPageToken" not in last
    for device in described["devices"] or ():
        assert device.keys() == get_type_hints(DeviceMemory).keys()
    assert [device["gpu"] for device in described["devices"] or ()] == list(gpus)
