import pytest

from modelserver import testing

SCRIPT = """
import modelserver


class Doubler(modelserver.Handler):
    def predict(self, rows: list[int]) -> list[int]:
        return [2 * row for row in rows]


class Teller:
    def handle(self, data, context):
        return [self.tell(context, index) for index in range(len(data))]

    def tell(self, context, index):
        yield context.get_request_header(index, "who") or "nobody"
        yield "!"


def breaks(data, context):
    raise SystemError("not today")


def longest(rows: list[str]) -> list[str]:
    return [max(rows, key=len)] * len(rows)
"""


@pytest.fixture(scope="session")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("script") / "numbers_served.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture(scope="session")
def doubler(script):
    with testing.client(f"{script}:Doubler", batch_size=4, max_request_instances=9) as client:
        yield client
