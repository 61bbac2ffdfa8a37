from dataclasses import replace
from typing import get_args

import pytest
from tests.tools.migrate.conftest import Played
from tests.tools.tune.tune_samples import Notes

from modelserver.tools.migrate.calls import Port, Probe, Response
from modelserver.tools.migrate.proof import (
    EXPLAINED,
    SAME,
    UNKNOWN,
    _predicts,
    align_versions,
    clients_for,
    head_and_body,
    prove,
)
from modelserver.tools.migrate.servers import ComparedServer, ServedVersion

TEXT = 'inference POST /predictions/plain "The quick brown fox jumps over the lazy dog."'


def changed(plan, change, key=TEXT):
    plan.ours.answers[key] = change(plan.ours.answers[key])
    return plan


def test_servers_that_answer_alike_are_the_same(plan):
    notes = Notes()
    proof = prove(plan, notes)

    assert proof.verdict == SAME
    assert proof.count(SAME) == len(proof.compared) > 40
    assert [subject.version.name for subject in proof.subjects] == ["parts", "plain", "reads"]
    assert {call.port for call in (each.call for each in proof.compared)} == set(get_args(Port))
    assert proof.remarks == []
    assert notes.lines == [f"asking both servers {len(proof.compared)} requests"]
    assert notes.shares == sorted(notes.shares)
    assert 0 <= notes.shares[0] < notes.shares[-1] <= 1


def test_equal_failures_prove_nothing(plan):
    for server in (plan.reference, plan.ours):
        for key, answer in server.answers.items():
            if key.startswith(("inference POST", "grpc_inference")) and "plain" in key:
                server.answers[key] = replace(answer, status=503)
    proof = prove(plan, Notes())

    assert proof.verdict == SAME
    assert proof.remarks == ["plain: no prediction was answered well by both, so nothing is shown of it."]


@pytest.mark.parametrize(
    ("change", "verdict", "names", "line"),
    [
        ({"reason": "OK"}, EXPLAINED, [["phrase"]], ""),
        ({"body": b"other"}, UNKNOWN, [], "body: TorchServe b'fine', modelserver b'other'"),
    ],
)
def test_only_known_differences_are_explained(plan, change, verdict, names, line):
    proof = prove(changed(plan, lambda answer: answer.but(**change)), Notes())
    (result,) = [each for each in proof.compared if each.verdict != SAME]

    assert (proof.verdict, result.verdict) == (verdict, verdict)
    assert [[rule.name for rule in rules] for rules in result.reasons] == names
    assert verdict == EXPLAINED or result.summary_line == f"a text to /predictions/plain: {line}"


def test_an_answer_that_varies_is_not_held_against_modelserver(plan):
    """If nothing explains a difference, TorchServe gets the request a second time."""

    class Varying(Played):
        def ask(self, call):
            answer = super().ask(call)
            again = call.name == "a text to /predictions/plain"
            return answer.but(body=b"%d" % len(self.calls)) if again else answer

    reference = Varying("TorchServe", {}, answers=dict(plan.ours.answers))
    proof = prove(replace(plan, reference=reference), Notes())
    (result,) = [each for each in proof.compared if each.verdict != SAME]

    assert [rule.name for rules in result.reasons for rule in rules] == ["varies"]


def test_nothing_is_concluded_without_a_response_of_torchserve(plan):
    silent = Response(0, "ConnectionRefusedError", {}, b"")
    for server in (plan.reference, plan.ours):
        lost = [key for key in server.answers if key == TEXT or key.startswith("metrics ")]
        server.answers.update(dict.fromkeys(lost, silent))
    proof = prove(plan, Notes())
    (result,) = [each for each in proof.compared if each.verdict != SAME]

    assert result.what == ["no answer from TorchServe: ConnectionRefusedError"]
    assert result.verdict == UNKNOWN
    assert "metrics were not compared" in proof.remarks[0]


def test_grpc_that_does_not_answer_is_left_out(plan):
    silent = Response(0, "ConnectionRefusedError", {}, b"")
    plan.reference.answers.update({key: silent for key in plan.reference.answers if key.startswith("grpc_")})
    for each in (plan, replace(plan, reference=replace(plan.reference, addresses={}))):
        proof = prove(each, Notes())

        assert proof.verdict == SAME
        assert "gRPC was not compared" in proof.remarks[0]
        assert not any("grpc" in each.call.port for each in proof.compared)


def test_a_model_that_only_torchserve_has_is_not_explained(plan):
    listed = plan.ours.answers['management GET /models?limit=100 ""']
    plan.ours.answers['management GET /models?limit=100 ""'] = listed.but(body=b'{"models": []}')
    proof = prove(plan, Notes())

    assert proof.verdict == UNKNOWN
    missing = [(each.version.name, each.server) for each in proof.missing]
    assert missing == [(name, "modelserver") for name in ("parts", "plain", "reads")]
    assert [call.path for call in plan.ours.calls if call.method == "POST"][1] == (
        "/models?url=plain.mar&model_name=plain&batch_size=4&max_batch_delay=1&response_timeout=120"
        "&initial_workers=1"
    )
    assert not any("plain" in each.call.path for each in proof.compared)


def test_workers_are_scaled_as_in_the_running_torchserve(plan):
    def two_workers(answer):
        return answer.but(body=(answer.body or b"").replace(b'"maxWorkers": 1', b'"maxWorkers": 2'))

    changed(plan, two_workers, 'management GET /models/plain/all ""')
    assert align_versions(plan) == {}

    scaled = [call.path for call in plan.ours.calls if call.method == "PUT"]
    assert scaled == ["/models/plain/1.0?min_worker=1&max_worker=1"]


@pytest.mark.parametrize(("read_only", "left_out"), [(True, 1), (False, 0)])
def test_a_running_torchserve_is_not_changed(plan, read_only, left_out):
    """Requests that would do so are left out, and counted."""
    folder = plan.workdir.parent / "requests"
    folder.mkdir()
    (folder / "requests.json").write_text(
        '[{"path": "/models/plain", "method": "DELETE", "port": "management"}, {"path": "/ping"}]'
    )
    proof = prove(replace(plan, source=str(folder), read_only=read_only), Notes())

    assert proof.left_out == left_out
    assert len(proof.compared) == 2 - left_out


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/predictions/m", True),
        ("/predictions/m/1.0", True),
        ("/v1/models/m:predict", True),
        ("/predictions/m2", False),
        ("/predictions/m-large/1.0", False),
    ],
)
def test_a_model_is_measured_with_its_own_requests(path, expected):
    """As many clients as fill the batches of all workers twice, within bounds."""
    assert _predicts(Probe("", "inference", "POST", path), "m") is expected
    for batch, workers, clients in ((1, 0, 2), (1, 1, 2), (4, 2, 16), (64, 8, 64)):
        version = ServedVersion("m", "1", "m.mar", ready=workers, batch_size=batch)
        assert clients_for(version) == clients


def test_requests_carry_the_token_of_their_server(proof):
    server = ComparedServer("TorchServe", {"inference": ("h", 80)}, {"inference": "secret"})
    call = Probe("", "inference", "POST", "/predictions/m", (("X", "y"), ("Host", "other")), b"body")

    assert head_and_body(server, call) == (
        b"POST /predictions/m HTTP/1.1\r\nHost: h:80\r\nX: y\r\nAuthorization: Bearer secret\r\n"
        b"Content-Length: 4\r\n\r\nbody"
    )
    assert (proof.memory, proof.start) == ((300 << 20, 300 << 20), (None, None))
