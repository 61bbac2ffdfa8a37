import logging

import pytest

from modelserver.ext.events import store as stores
from modelserver.ext.events.store import BURST, FILE, OLD_FILE, EventStore, Query


class Scene:
    """A store, a logger whose records it gets, and its clock."""

    def __init__(self, folder):
        self.now = 100.0
        self.changes = 0
        self.store = EventStore(folder, lambda *_: False, self.count, lambda: self.now)
        self.logger = logging.Logger("x")  # noqa: LOG001 - of this test only
        self.logger.addHandler(self.store)

    def count(self):
        self.changes += 1

    def messages(self, limit=10_000, **query):
        return [event.message for event in self.store.page(Query(**query), limit)]


@pytest.fixture
def scene(tmp_path):
    return Scene(tmp_path)


def test_pages_go_back_and_forth(scene):
    for number in range(1, 8):
        scene.logger.warning("event %d", number)

    assert scene.messages(3) == ["event 5", "event 6", "event 7"]
    assert scene.messages(3, before=5) == ["event 2", "event 3", "event 4"]
    assert scene.messages(3, since=2) == ["event 3", "event 4", "event 5"]
    assert scene.messages(3, since=7) == scene.messages(3, since=99) == []
    assert scene.store.last == scene.changes == 7


def test_events_are_chosen_by_model_level_kind_time_and_text(scene):
    scene.logger.info("Model %s %s is parked (%s)", "a", "1", "idle")
    scene.logger.warning("Model %s: odd", "b")
    scene.logger.error("Worker %s is given up", "W-1-a_1")

    assert scene.messages(model="a") == ["Model a 1 is parked (idle)", "Worker W-1-a_1 is given up"]
    assert scene.messages(model="a", level="error", since=0) == ["Worker W-1-a_1 is given up"]
    assert scene.messages(level="warn") == ["Model b: odd", "Worker W-1-a_1 is given up"]
    assert scene.messages(kind="parked") == scene.messages(text="(idle)") == ["Model a 1 is parked (idle)"]
    assert scene.messages(since_time="2001") == scene.messages()
    assert scene.messages(since_time="9999") == []


def test_the_oldest_leave(scene, monkeypatch):
    scene.store._events = stores.deque(maxlen=3)
    for number in range(1, 6):
        scene.logger.warning("event %d", number)

    assert scene.messages(since=0) == scene.messages() == ["event 3", "event 4", "event 5"]
    assert scene.messages(since=4) == ["event 5"]


def test_a_storm_is_counted_and_reported(scene):
    for number in range(BURST + 200):
        scene.logger.error("failure %d", number)
    scene.now += 1.0
    scene.logger.error("after it")

    assert (scene.store.last, scene.store.left_out) == (BURST + 2, 200)
    assert scene.messages(2) == ["200 events were left out: there were more than 50 a second", "after it"]


def test_a_long_storm_is_reported_once_a_second(scene):
    for _ in range(BURST):
        scene.logger.warning("storm")
    for _ in range(256):
        scene.logger.warning("storm")
        scene.now += 1 / 128

    left_out = [text for text in scene.messages() if "left out" in text]
    assert left_out == ["128 events were left out: there were more than 50 a second"]


def test_the_next_server_goes_on_after_the_last_id(scene, tmp_path):
    scene.logger.warning("before, 1")
    scene.logger.warning("before, 2")
    scene.store.write()
    with open(tmp_path / FILE, "ab") as file:
        file.write(b'{"id":3,"time":"cut o')
    later = Scene(tmp_path)
    later.logger.warning("started")
    later.store.read()
    later.logger.warning("after")
    later.store.write()

    assert later.messages() == ["before, 1", "before, 2", "started", "after"]
    assert [event.id for event in later.store.page(Query(since=1), 9)] == [2, 3, 4]
    third = Scene(tmp_path)
    third.store.read()
    assert third.messages() == later.messages()


def test_the_file_is_bounded(scene, tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "FILE_BYTES", 1000)
    for number in range(30):
        scene.logger.warning("event %d", number)
        scene.store.write()
    later = Scene(tmp_path)
    later.store.read()

    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes.keys() == {FILE, OLD_FILE}
    assert max(sizes.values()) <= 1000
    assert later.messages()[-1] == "event 29"
    assert later.store.last == 30
    assert (tmp_path / FILE).stat().st_mode & 0o007 == 0


def test_a_full_disk_is_one_event(scene, tmp_path):
    blocked = Scene(tmp_path / "file" / "folder")
    (tmp_path / "file").write_text("not a folder")
    for number in range(3):
        blocked.logger.warning("event %d", number)
        blocked.store.write()

    assert [event.kind for event in blocked.store.page(Query(), 9)] == ["warn", "disk_full", "warn", "warn"]


def test_without_files_there_is_none(tmp_path):
    scene = Scene(None)
    scene.store.read()
    scene.logger.warning("only in memory")
    scene.store.write()

    assert scene.messages() == ["only in memory"]


def test_a_record_that_cannot_be_read_does_no_harm(scene, capsys):
    scene.logger.warning("%d", "no number")
    scene.logger.warning("next")

    assert scene.messages() == ["next"]
    assert "no number" in capsys.readouterr().err
