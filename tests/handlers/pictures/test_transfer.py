"""Where crops land; the GPU is played by the processor."""

import pytest
import torch
from tests.handlers.conftest import Played

from modelserver_handlers.pictures.classic import MEAN, STD, ClassicProcessing
from modelserver_handlers.pictures.transfer import DeviceCropBuffer, HostCropBuffer

PROCESSING = ClassicProcessing(8, 6, MEAN, STD)
CROPS = torch.arange(3 * 6 * 6 * 3).remainder(256).to(torch.uint8).view(3, 6, 6, 3)


@pytest.fixture(params=["host", "device"])
def buffer(request):
    if request.param == "host":
        return HostCropBuffer(PROCESSING, 3)
    return DeviceCropBuffer(PROCESSING, 3, Played())


@pytest.mark.parametrize("places", [[0, 1, 2], [0, 2], [1]])
def test_crops_come_out_normalised(buffer, places):
    for place in places:
        buffer.put(place, CROPS[place])

    assert torch.equal(buffer.finish(places), PROCESSING.normalise(CROPS[places]))


def test_a_batch_is_there_when_it_is_handed_over():
    stream = Played()
    DeviceCropBuffer(PROCESSING, 3, stream).finish([0, 1, 2])

    assert stream.calls == ["begin", "done", "hand over 3"]


@pytest.mark.parametrize("there", [[0, 1, 2], [1], [0, 2], []])
def test_crops_made_on_the_device_are_put_between(there):
    buffer = DeviceCropBuffer(PROCESSING, 3, Played())
    buffer.put_on_device(there, lambda: list(CROPS[there]))
    for place in set(range(3)) - set(there):
        buffer.put(place, CROPS[place])

    assert torch.equal(buffer.finish([0, 1, 2]), PROCESSING.normalise(CROPS))
