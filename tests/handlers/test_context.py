import threading

import pytest

from modelserver_handlers.context import BatchState, Context, Headers, RequestProcessor


@pytest.fixture
def context():
    return Context("noop", "/models/noop", {"model": {}}, 4, 1, "0.12.0", False, "metrics", {"a": 1})


def decoded(calls, idx, headers):
    """A source of headers that counts its uses."""

    def decode():
        calls.append(idx)
        return headers

    return decode


def test_system_properties_are_torchserves_and_no_batch_is_there(context):
    assert context.system_properties == {
        "model_dir": "/models/noop",
        "gpu_id": 1,
        "batch_size": 4,
        "server_name": "MMS",
        "server_version": "0.12.0",
        "limit_max_image_pixels": False,
    }
    assert context.metrics == "metrics"
    assert context.model_yaml_config == {"a": 1}

    assert context.request_ids is None
    assert context.get_request_id() is None
    assert len(context.request_processor) == 1
    assert context.get_request_header(0, "x") is None


def test_headers_are_decoded_once_and_only_where_needed(context):
    calls = []
    client = {"explain": "True", "describe": "True", "url_path": "evil"}
    sources = [decoded(calls, idx, {"X-N": str(idx), **client}) for idx in range(3)]
    own = {"explain": "False", "url_path": "predict"}
    context._ms_begin(BatchState("abc", sources, properties=[own] * 3))

    assert context.get_request_header(1, "explain") == "False"
    assert context.get_request_header(1, "describe") is None
    assert calls == []
    assert context.get_request_header(1, "x-n") == "1"
    assert context.get_all_request_header(1)["url_path"] == "predict"
    assert isinstance(context.get_all_request_header(1), Headers)
    assert calls == [1]


def test_untouched_requests_have_no_processor(context):
    state = BatchState(["a", "b"], [{}, {}])
    context._ms_begin(state)
    context.set_response_status(201, "Made", 1)
    context.set_response_header(1, "x-count", 3)

    assert state.touched(0) is None
    assert state.touched(1) is context.request_processor[1]
    assert context.get_response_headers(1) == {"x-count": "3"}


def test_processors_and_inner_names_can_be_set(context):
    context.request_processor = [RequestProcessor({"explain": "True"}), RequestProcessor({})]
    context.request_ids = {0: "a", 1: "b"}

    assert context.get_request_header(0, "explain") == "True"
    assert context.get_request_id(1) == "b"

    context._ms_begin(BatchState(["a"], [{"x": "1"}]))
    context._system_properties["gpu_id"] = 3

    assert context.system_properties["gpu_id"] == 3
    assert context._request_processor[0].get_request_property("x") == "1"
    context._request_processor = [RequestProcessor({"x": "2"})]
    assert context.get_request_header(0, "x") == "2"


def test_response_parameters_are_checked(context):
    for value in ("text", 3, 0.5, True):
        context.set_response_parameter(0, "p", value)
    for wrong in (float("nan"), 1 << 63):
        with pytest.raises(ValueError, match="no form on the wire"):
            context.set_response_parameter(0, "p", wrong)
    with pytest.raises(TypeError, match="p is list"):
        context.set_response_parameter(0, "p", [1])

    assert context.request_processor[0]._ms_parameters == {"p": True}


def test_parameters_are_decoded_when_needed(context):
    context._ms_begin(BatchState(["a", "b"], parameters=[lambda: {"temperature": 0.5}, {}]))

    assert context.get_request_parameters(0) == {"temperature": 0.5}
    assert context.get_request_parameters(1) == {}
    context._ms_begin(BatchState(["a"]))
    assert context.get_request_parameters(0) == {}


def test_rejections_belong_to_a_batch(context):
    context._ms_begin(BatchState(["a", "b"]))
    context.reject(1, "not a picture")
    context.reject(-2, "too old", status=410)

    assert context._ms_rejections == {1: (400, "not a picture"), 0: (410, "too old")}
    with pytest.raises(IndexError, match="request 2 of a batch of 2"):
        context.reject(2, "nobody")
    context._ms_begin(BatchState(["c"]))
    assert context._ms_rejections == {}


def in_thread(function):
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def test_each_thread_has_its_own_batch(context):
    def prepare_next():
        context._ms_begin(BatchState(["next"]))
        context.reject(0, "bad")
        return context.get_request_id(0)

    context._ms_begin(BatchState(["current"]))

    assert in_thread(lambda: context.get_request_id(0)) == "current"
    assert in_thread(prepare_next) == "next"
    assert context.get_request_id(0) == "current"
    assert context._ms_rejections == {}


def test_contexts_of_one_model_are_equal(context):
    same = Context("noop", "/models/noop", {"model": {}}, 4, 1, "0.12.0", False, "metrics", {"a": 1})

    assert context == same
    same.cache = 1
    assert context != same
    assert context != "noop"


def test_headers_are_a_dict_that_ignores_case():
    """Of two names that differ in case alone, each finds its own, and a third case the later."""
    headers = Headers({"X-Foo": "1", "accept": None, "host": {"content-type": "text/plain"}, "Host": "a.org"})

    for name in ("X-Foo", "x-foo", "X-FOO"):
        assert headers[name] == headers.get(name) == "1"
        assert name in headers
    assert list(headers) == ["X-Foo", "accept", "host", "Host"]
    assert headers.get("Accept", "default") is None
    assert headers["host"] == {"content-type": "text/plain"}
    assert headers["Host"] == headers["HOST"] == "a.org"
    headers["B"] = "2"
    assert headers.copy()["b"] == "2"
    assert Headers({"a": "1"}) == {"a": "1"}


def test_absent_headers_have_a_default():
    headers = Headers({"a": "1"})

    assert headers.get("b") is None
    assert headers.get("b", "x") == "x"
    assert "b" not in headers
    assert 3 not in headers
    with pytest.raises(KeyError, match="b"):
        headers["b"]
