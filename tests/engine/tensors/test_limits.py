import json
import re
import timeit

import pytest

from modelserver.engine.tensors import weight
from modelserver.engine.tensors.limits import MAX_REPEATED, RequestLimits
from modelserver.engine.tensors.rest import decode_request, encode_request
from modelserver.errors import BadRequest, PayloadTooLarge
from modelserver.models.settings.settings import Settings


@pytest.mark.parametrize(("instances", "repeated"), [(10_001, 0), (10_000, MAX_REPEATED // 9_999)])
def test_instances_and_what_is_repeated_are_limited(instances, repeated):
    """Very many instances, or long parameters for many of them, are a 413 that names the limit."""
    with pytest.raises(PayloadTooLarge, match=r"allowed"):
        RequestLimits().check_instances(instances, repeated)

    RequestLimits().check_instances(10_000, MAX_REPEATED // 10_000)


def test_who_needs_more_sets_more():
    settings = Settings()
    assert RequestLimits(settings.max_request_instances, settings.max_request_tensors) == RequestLimits()
    wide = RequestLimits(instances=20_000, tensors=9_000)

    wide.check_instances(20_000, 1)
    wide.check_tensors("inputs", 9_000)
    with pytest.raises(PayloadTooLarge, match="max_request_instances=20000 are allowed"):
        wide.check_instances(20_001, 1)
    with pytest.raises(BadRequest, match="inputs: there are 9001, max_request_tensors=9000 are allowed"):
        wide.check_tensors("inputs", 9_001)


@pytest.mark.parametrize("count", [3, 5000])
@pytest.mark.parametrize("what", ["inputs", "outputs", "parameters"])
def test_requests_are_held_to_them(what, count):
    def body_of(number):
        inputs = [
            {"name": str(n), "shape": [1], "datatype": "INT8", "data": [1]}
            for n in range(number if what == "inputs" else 1)
        ]
        outputs = [{"name": str(n)} for n in range(number if what == "outputs" else 1)]
        parameters = {str(n): 1 for n in range(number if what == "parameters" else 1)}
        fields = {"inputs": inputs, "outputs": outputs, "parameters": parameters}
        return json.dumps(fields, separators=(",", ":")).encode()

    limits = RequestLimits(tensors=count)
    decode_request(body_of(count), None, limits=limits)
    more = body_of(count + 1)
    refusal = re.escape(f"there are {count + 1}, max_request_tensors={count} are allowed")
    with pytest.raises(BadRequest, match=refusal):
        decode_request(more, None, limits=limits)
    with pytest.raises(BadRequest, match=refusal):
        encode_request(more, str(len(more)), limits)


@pytest.mark.parametrize("mark", [b",", b"[", b"{"])
def test_json_of_many_elements_or_much_text_is_heavy(mark):
    assert weight.is_heavy_json(mark * 20_000)
    assert not weight.is_heavy_json(mark * 4_000 + b"a" * 100_000)

    assert not weight.is_heavy_json(b"," * weight.LIGHT_BYTES)
    assert weight.is_heavy_json(b"a" * (weight.LIGHT_TEXT + 1))


@pytest.mark.alone
def test_a_heavy_body_is_known_by_its_beginning():
    heavy, light = b"," * weight.LIGHT_TEXT, b"a" * weight.LIGHT_TEXT

    def fastest(body):
        return min(timeit.repeat(lambda: weight.is_heavy_json(body), number=3, repeat=7))

    assert weight.is_heavy_json(heavy)
    assert not weight.is_heavy_json(light)
    assert fastest(heavy) < fastest(light)
