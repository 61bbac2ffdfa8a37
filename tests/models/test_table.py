import pytest
from tests.models.conftest import register

from modelserver.errors import ModelNotFound, ModelVersionNotFound


async def test_versions_are_looked_up_by_number(registry):
    first = await register(registry, "m-1.0.mar")
    second = await register(registry, "m-2.0.mar")

    assert registry.get("m") is registry.get("m", "1.0") is first
    assert registry.get("m", "2.0") is second
    assert registry.versions("m") == [first, second]
    assert list(registry.defaults()) == [first]
    assert registry.names() == ["m"]


async def test_error_lists_what_there_is(registry):
    telling = type(registry)(registry.builder, tells_names=True)
    await register(telling, "m.mar")

    with pytest.raises(ModelNotFound, match=r"^Model not found: none\. There is: m$"):
        telling.versions("none")
    with pytest.raises(ModelVersionNotFound, match=r"for model: m\. There is: 1\.0$"):
        telling.get("m", "9")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("none", None), ModelNotFound, "Model not found: none"),
        (("m", "9"), ModelVersionNotFound, "Model version: 9 does not exist for model: m"),
    ],
)
async def test_unknown_names_get_torchserves_words(registry, arguments, error, message):
    await register(registry, "m.mar")
    with pytest.raises(error) as caught:
        registry.get(*arguments)

    assert str(caught.value) == message
    with pytest.raises(ModelNotFound):
        registry.versions("none")


async def test_health_is_that_of_the_default_versions(registry):
    """The health is that of the default versions (reference 6.2)."""
    first = await register(registry, "m-1.0.mar")
    second = await register(registry, "m-2.0.mar")
    assert registry.healthy
    second.pool.healthy = False
    assert registry.healthy
    first.pool.healthy = False
    assert not registry.healthy
