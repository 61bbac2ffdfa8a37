from types import SimpleNamespace

import pytest

from modelserver_handlers.streaming import send_intermediate_predict_response


class Sent:
    def __init__(self, *ids):
        self.parts = []
        self.rejected = []
        self._ms_state = SimpleNamespace(
            request_ids=dict(enumerate(ids)),
            stream=SimpleNamespace(send=self.parts.append),
            reject=lambda *rejected: self.rejected.append(rejected),
        )


def test_parts_go_to_the_requests_of_their_ids():
    context = Sent("a", "b")
    send_intermediate_predict_response(["1", "2"], context._ms_state.request_ids, "", 200, context)
    send_intermediate_predict_response({5: "x", 6: "y"}, {5: "b", 6: "gone"}, "", 200, context)

    assert context.parts == [{0: "1", 1: "2"}, {1: "x"}]


def test_other_ranks_send_nothing(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    send_intermediate_predict_response(["1"], {0: "a"}, "", 200, object())
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(RuntimeError, match="only while the server calls"):
        send_intermediate_predict_response(["1"], {0: "a"}, "", 200, object())
