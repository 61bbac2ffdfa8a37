import json

import pytest

from modelserver.surface.http.connection_exchange import ConnectionExchange
from modelserver.surface.http.exchange import Target
from modelserver.surface.inference.routes import target_finder
from modelserver.surface.inference.scopes import scope_of, without_version

find = target_finder([("openai", r"(?:/openai)?/(?P<url_path>v1/rerank)")])


def target_of(url: bytes) -> Target:
    target = find(url)
    assert target is not None
    return target


def scope(url: bytes, *headers: tuple[bytes, bytes], method: bytes = b"GET"):
    exchange = ConnectionExchange(None, target_of(url), method, "1.1", list(headers), True)
    return json.loads(scope_of(exchange))


@pytest.mark.parametrize(
    ("url", "root", "path"),
    [
        (b"/predictions/m", "/predictions/m", "/predictions/m/"),
        (b"/predictions/m/", "/predictions/m", "/predictions/m/"),
        (b"/predictions/m/1.0/items/5/", "/predictions/m/1.0", "/predictions/m/1.0/items/5/"),
        (b"/predictions/m/1.0", "/predictions/m/1.0", "/predictions/m/1.0/"),
        (b"/models/m/invoke", "/models/m/invoke", "/models/m/invoke/"),
        (b"/v1/rerank", "", "/v1/rerank"),
        (b"/openai/v1/rerank", "/openai", "/openai/v1/rerank"),
    ],
)
def test_path_begins_with_that_of_the_model(url, root, path):
    result = scope(url)

    assert (result["root_path"], result["path"]) == (root, path)


def test_scope_has_what_the_client_sent():
    headers = [(b"Cookie", b"a=1"), (b"Accept", b"\xe9"), (b"cookie", b"b=2")]
    result = scope(b"/predictions/m/1/caf%C3%A9%2Fx?q=a%20b&q=", *headers, method=b"PATCH")

    assert result == {
        "method": "PATCH",
        "http_version": "1.1",
        "path": "/predictions/m/1/café/x",
        "root_path": "/predictions/m/1",
        "raw_path": "/predictions/m/1/caf%C3%A9%2Fx",
        "query_string": "q=a%20b&q=",
        "headers": [["cookie", "a=1"], ["accept", "é"], ["cookie", "b=2"]],
    }


@pytest.mark.parametrize(
    ("url", "rest"), [(b"/predictions/m/items/5", "items/5"), (b"/predictions/m/items", "items")]
)
def test_first_part_of_a_path_may_look_like_a_version(url, rest):
    route = without_version(target_of(url)).route

    assert (route.model, route.version, route.url_path) == ("m", None, rest)
