"""The embedded digits model, served as it comes (needs torch)."""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.e2e.serving import ROOT, Home, Server, serving

PICTURE = ROOT / "examples" / "mnist" / "digit-2.png"


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A server of the clone's own model store."""
    home = Home(tmp_path_factory.mktemp("digits"))
    with serving(Server(home, ROOT / "model_store")) as server:
        yield server.registered("mnist.mar", batch_size=8, max_batch_delay=1000)


@pytest.mark.slow
def test_undecodable_picture_among_good_ones(digits):
    """A picture that cannot be read gets its own 400; those that share its batch are answered (F17, F18)."""
    good = PICTURE.read_bytes()
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda body: digits.predict("mnist", body), [good, good[:100], good]))

    assert [answer.status_code for answer in answers] == [200, 400, 200]
    assert {answer.headers["x-batch-size"] for answer in answers} == {"3"}
    assert len({answer.headers["x-batch-id"] for answer in answers}) == 1
    assert answers[0].text == answers[2].text
    assert answers[1].json()["type"] == "BadRequestException"


@pytest.mark.slow
def test_documented_sample(digits):
    """KServe's documented sample, a digit 2 as base64, is answered with 2."""
    encoded = base64.b64encode(PICTURE.read_bytes()).decode()
    answer = digits.v1("mnist", [{"data": encoded, "target": 0}, {"data": encoded}])

    assert answer.json()["predictions"] == [2, 2]


@pytest.mark.slow
def test_bad_instances(digits):
    """Instances that are no pictures are the client's fault, and named."""
    answer = digits.v1("mnist", [{"data": "no base64!"}])

    assert answer.status_code == 400
    assert answer.json()["error"]
    assert digits.inference.post("/v1/models/mnist:predict", json={"data": "x"}).status_code == 400


@pytest.mark.slow
def test_network_of_torchvision_without_an_archive(digits):
    """``torchvision://`` builds a network by name; what it depends on is in the query of the URL."""
    digits.registered("torchvision://resnet18?weights=random&seed=3", batch_size=2)
    answer = digits.predict("resnet18", PICTURE.read_bytes())

    assert answer.status_code == 200
    assert len(answer.json()) == 5
    assert digits.describe("resnet18")["modelUrl"] == "torchvision://resnet18?weights=random&seed=3"
