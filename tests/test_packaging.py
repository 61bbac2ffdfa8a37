from importlib.metadata import requires, version

import pytest
from packaging.requirements import Requirement

_ALL = [Requirement(line) for line in requires("modelserver") or ()]


def brought(extra=""):
    """The packages that an installation with this extra, or none, requires."""
    expected = [need for need in _ALL if need.marker is None or need.marker.evaluate({"extra": extra})]
    return {need.name: need for need in expected}


def test_torch_is_left_as_it_is_without_its_extra():
    """With the extra both come, from the oldest that works on, and no release is shut out."""
    assert not {"torch", "torchvision", "captum"} & set(brought())

    extra = brought("torch")

    assert (str(extra["torch"].specifier), str(extra["torchvision"].specifier)) == (">=2.2", ">=0.17")


@pytest.mark.parametrize("extra", ["test", "examples"])
def test_what_needs_torch_brings_it(extra):
    assert {"torch", "torchvision"} <= set(brought(extra))


def test_grpc_needs_no_library():
    assert not [name for name in brought() if name.startswith("grpcio")]
    assert {"protobuf", "hpack"} <= set(brought())
    assert {"grpcio", "grpcio-reflection", "grpcio-tools"} <= set(brought("test"))


@pytest.mark.parametrize("name", ["hpack", "httpx"])
def test_inner_parts_are_of_releases_that_were_tried(name):
    """What we use of these beside their API is bounded above; the installed release is within the bounds."""
    specifier = brought()[name].specifier

    assert "<" in {each.operator for each in specifier}
    assert version(name) in specifier
