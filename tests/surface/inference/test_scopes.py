import json

import pytest

from modelserver.engine.wire.messages import Load
from modelserver.surface.http.connection_exchange import ConnectionExchange
from modelserver.surface.http.exchange import Target
from modelserver.surface.inference.routes import target_finder
from modelserver.surface.inference.scopes import may_take_scopes, scope_of, without_version
from modelserver_handlers import BUILT_IN

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


@pytest.mark.parametrize(
    ("handler", "source", "may_be"),
    [
        ("h.py", "app = FastAPI()", True),
        ("h", "from shop import *", True),
        ("h:shop", "shop = FastAPI()", True),
        ("h", "def handle(data, context):\n    return happy", False),
        ("elsewhere", "", True),
        *((handler, "", handler == "vllm_handler") for handler in BUILT_IN),
    ],
)
def test_handler_without_the_name_of_an_application_is_none(tmp_path, handler, source, may_be):
    (tmp_path / "h.py").write_text(source)

    assert may_take_scopes(Load("m", "1.0", str(tmp_path), handler, 1)) is may_be
