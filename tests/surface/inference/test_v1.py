import contextlib
import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelserver.errors import BadRequest
from modelserver.surface.inference.v1 import join, split

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.lists(JSON_VALUES, min_size=1, max_size=6),
    st.dictionaries(st.text(min_size=1), JSON_VALUES, max_size=3),
)
def test_instances_are_taken_apart_unchanged(instances, others):
    others.pop("instances", None)
    text = json.dumps({"instances": instances, **others}, ensure_ascii=False)

    body = split(text.encode())

    assert repr([json.loads(instance) for instance in body.bodies]) == repr(instances)
    assert (json.loads(body.extra) if body.extra else {}) == others


@pytest.mark.parametrize(
    "text", [b"9007199254740993", b"1.0", b"1e30", b'"\\u003c"', b'{"b" : 1,"a":2}', b"1e400", '"ü"'.encode()]
)
def test_instances_keep_the_bytes_of_the_client(text):
    assert split(b'{"instances": [ ' + text + b" , 2]}").bodies == [text, b"2"]


def test_other_fields_are_one_object_sorted_by_name():
    """Requests that say the same in another order are the same, so that they share batches."""
    first = split(b'{"parameters":{"k":1},"instances":[1],"id":"x"}')
    second = split(b'{"id":"x","instances":[2],"parameters":{"k":1}}')

    assert first.extra == second.extra == b'{"id":"x","parameters":{"k":1}}'
    assert split(b'{"instances":[1]}').extra == b""


@pytest.mark.parametrize(
    ("body", "bodies", "extra"),
    [
        (b'{"inputs":[1,2]}', [b"1", b"2"], b""),
        (b'{"instances":null,"inputs":[1,2]}', [b"1", b"2"], b""),
        (b' {"inputs" : [1,2]} ', [b"1", b"2"], b""),
        (b'{"inputs":[9],"instances":[1]}', [b"1"], b'{"inputs":[9]}'),
        (b'{"instances":[1],"instances":[2]}', [b"2"], b""),
    ],
)
def test_inputs_stand_in_for_instances(body, bodies, extra):
    """The last of repeated keys counts, as in KServe's batcher."""
    result = split(body)
    assert (result.bodies, result.extra) == (bodies, extra)


NO_OBJECTS = [b"", b"{", b"[1]", b'"text"', b"5", b"null", b"\xff\xfe", '{"instances":[1]}'.encode("utf-16")]
# Bodies without rows, by how the refusals begin: as KServe's do.
REFUSED = {
    "can't Unmarshal body: Unrecognized request format: ": [
        *NO_OBJECTS,
        *(b'{"instances":' + rest for rest in (b"[1]", b"[1]} x", b"[1,]}", b"[NaN]}", b'[1],"x":NaN}')),
        b'{"instances":["a\x00"]}',
        b'{"instances":["\\ud800"]}',
        b'{"instances":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' * 100_000,
        b'{"\xff":1,"instances":[1]}',
    ],
    'can\'t Unmarshal body: Expected "instances" to be a list': [
        b'{"instances":' + value + b"}" for value in (b'"abc"', b"5", b"{}", b"true")
    ],
    "no instances in the request": [
        b"{%b}" % inner for inner in (b"", b'"instances":null', b'"instances":[]', b'"inputs":[]', b'"x":[1]')
    ],
}


@pytest.mark.parametrize(
    ("body", "message"),
    [(body, message) for message, bodies in REFUSED.items() for body in bodies],
    ids=lambda value: repr(value[:24]),
)
def test_what_has_no_list_of_instances_is_refused(body, message):
    """Malformed JSON of every kind (F1, F2, F3), other values under the key, and no or empty lists (F10)."""
    with pytest.raises(BadRequest) as caught:
        split(body)

    assert caught.value.status == 400
    assert caught.value.message.startswith(message)


@given(
    st.binary(max_size=60)
    | st.text(max_size=40).map(lambda t: ('{"instances":' + t).encode("utf-8", "replace"))
)
def test_any_bytes_are_split_or_refused(body):
    """Random bytes raise nothing but BadRequest (F70)."""
    with contextlib.suppress(BadRequest):
        assert split(body).bodies


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        (([b"1", b'"a"'], None), b'{"predictions":[1,"a"]}'),
        (([b"2"], "b-1"), b'{"message":"","batchId":"b-1","predictions":[2]}'),
        (([b"1"], None, b"explanations"), b'{"explanations":[1]}'),
        (([b"1"], "b-1", b"explanations"), b'{"message":"","batchId":"b-1","explanations":[1]}'),
    ],
)
def test_answer_has_the_form_of_kserve_with_and_without_a_batcher(arguments, body):
    assert join(*arguments) == body


@pytest.mark.parametrize("batch_id", [None, "b-1"])
def test_a_large_answer_is_copied_once(batch_id):
    """Each copy of several megabytes would hold up the event loop for milliseconds."""
    large = bytes(4_000_000)
    tracemalloc.start()
    try:
        join([large], batch_id)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert most < 1.5 * len(large)
