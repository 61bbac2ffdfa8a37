import json
import os
import socket
import sys
from types import SimpleNamespace

import msgspec
import pytest

from modelserver.tools.doctor.patient import ObservedWorkers, Patient, place_in
from modelserver.tools.doctor.probing import PROBE, Called, Reported, SourceLine
from modelserver.tools.doctor.samples import JSON, InputRow

_SOURCE = """
import os


class Ending:
    def handle(self, data, context):
        if any(row["body"] == 0 for row in data):
            os._exit(3)
        return [row["body"] for row in data]
"""
_ONE, _ZERO = InputRow("one", b"1", JSON), InputRow("zero", b"0", JSON)


@pytest.fixture(scope="module")
def patient(tmp_path_factory):
    script = tmp_path_factory.mktemp("patient") / "ending.py"
    script.write_text(_SOURCE)
    with Patient(str(script), model_file=None, settings={}) as opened:
        yield opened


def test_calls_are_seen_with_their_answers(patient):
    assert patient.loaded.methods["handle"].line == 6
    assert patient.grow(4) == 4
    outcome = patient.ask(patient.rows([_ONE], 3))

    assert [answer.json() for answer in outcome.answers] == [1, 1, 1]
    assert [(call.rows, call.answers) for call in outcome.calls] == [(3, 3)]
    assert outcome.ended == ""
    readings = patient.readings()
    assert readings.resident > 1 << 20
    assert (readings.threads, readings.processes) == (1, 0)


@pytest.mark.slow
def test_an_end_is_seen_and_waited_for(patient):
    outcome = patient.ask([_ZERO])

    assert outcome.ended
    assert outcome.answers[0].json()["message"] == "Worker died."
    assert patient.ask([_ONE]).answers[0].json() == 1
    assert patient.calls[-1].rows == 1


def test_place_is_read_from_errors():
    assert place_in("KeyError: 'a' (my/h.py, line 12, in handle)") == SourceLine("my/h.py", 12, "handle")
    assert place_in("invalid syntax (h.py, line 3)") == SourceLine("h.py", 3)
    assert place_in("nothing") is None


_PROGRAM = f"""
import json, os, socket, sys
reports = socket.socket(fileno=int(os.environ["{PROBE}"]))
for text in json.loads(os.environ["TEXTS"]):
    reports.send(bytes.fromhex(text))
print(json.dumps(sys.argv[1:]))
"""


async def test_reports_are_read_as_far_as_they_have_come(monkeypatch):
    workers, text = ObservedWorkers(), [Reported([], 1.0, 2.0), Called(1, 1), Called(2, 2)]
    monkeypatch.setattr(
        "modelserver.tools.doctor.patient.worker_command", lambda *_: [sys.executable, "-c", _PROGRAM]
    )
    environment = {**os.environ, "TEXTS": json.dumps([msgspec.msgpack.encode(each).hex() for each in text])}
    spec = SimpleNamespace(python=sys.executable)
    ours, reference = socket.socketpair()
    read, write = os.pipe()
    with ours, reference:
        process = await workers.spawn(spec, environment, (write, write), reference.fileno())
        os.close(write)
        assert await process.wait() == 0
        workers.read()
        workers.read()

        assert (workers.loads, workers.calls) == (text[:1], text[1:])
        assert json.loads(os.read(read, 1000)) == [str(reference.fileno()), str(os.getpid())]
    os.close(read)
    workers.close()
    workers.read()
