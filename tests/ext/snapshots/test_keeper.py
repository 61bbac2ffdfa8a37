import asyncio
import threading
from types import SimpleNamespace

from modelserver.ext.snapshots.keeper import StateKeeper


class Folder:
    def __init__(self):
        self.written = []
        self.may_go = threading.Event()
        self.may_go.set()
        self.full = False

    def write(self, kind, document):
        self.may_go.wait(10)
        if self.full:
            raise OSError(28, "No space left on device")
        self.written.append((kind, document["modelCount"]))
        return "path"


def keeper(folder):
    registry = SimpleNamespace(versions=list, workflows={}, on_change=None)
    return StateKeeper(registry, folder)


async def test_changes_at_the_same_time_share_a_file():
    folder = Folder()
    folder.may_go.clear()
    state_keeper = keeper(folder)
    first = asyncio.create_task(state_keeper.changed())
    await asyncio.sleep(0)
    others = [asyncio.create_task(state_keeper.changed()) for _ in range(20)]
    await asyncio.sleep(0)
    assert not first.done()
    folder.may_go.set()
    await asyncio.gather(first, *others)

    assert folder.written == [("snapshot", 0)] * 2


async def test_changes_are_written_between_start_and_end():
    folder = Folder()
    state_keeper = keeper(folder)
    await state_keeper.start()
    await state_keeper._registry.on_change()
    await state_keeper.end()

    assert [kind for kind, _ in folder.written] == ["startup", "snapshot", "shutdown"]
    assert state_keeper._registry.on_change is None


async def test_full_disk_keeps_the_last_snapshot(caplog):
    """A state that cannot be written is logged, and the next one is tried again (F56)."""
    folder = Folder()
    folder.full = True
    state_keeper = keeper(folder)
    await state_keeper.changed()
    folder.full = False
    await state_keeper.changed()

    assert "Cannot write the snapshot" in caplog.text
    assert len(folder.written) == 1
