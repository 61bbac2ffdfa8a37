import logging
from pathlib import Path

from modelserver.ext.events.extension import REMIND, Disks


def test_it_warns_once_an_hour_while_the_disk_is_full(caplog):
    now, used = [0.0], [95]

    def usage(folder):
        if folder == Path("/missing"):
            raise FileNotFoundError
        return 100, used[0], 100 - used[0]

    disks = Disks([Path("/missing"), Path("/logs")], usage, lambda: now[0])
    counts = []
    with caplog.at_level(logging.WARNING):
        for seconds, percent in ((0, 95), (60, 96), (REMIND, 97), (60, 50), (60, 91)):
            now[0] += seconds
            used[0] = percent
            disks.look()
            counts.append(len(caplog.records))

    assert counts == [1, 1, 2, 2, 3]
    assert caplog.messages[0] == "The disk of /logs is full to 95 %"
