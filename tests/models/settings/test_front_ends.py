import pytest

from modelserver.models.settings import settings as module
from modelserver.models.settings.settings import CORES_EACH, MOST_FRONT_ENDS, Settings


@pytest.mark.parametrize(
    ("setting", "cores", "front_ends"),
    [
        *(("auto", cores, 1) for cores in (1, 2, 7, 8, 15)),
        ("auto", 2 * CORES_EACH, 2),
        ("auto", 4 * CORES_EACH, MOST_FRONT_ENDS),
        ("auto", 1000, MOST_FRONT_ENDS),
        (3, 1, 3),
        (1, 1000, 1),
    ],
)
def test_number_of_cores_decides_unless_it_is_set(setting, cores, front_ends, monkeypatch):
    monkeypatch.setattr(module, "usable_cpus", lambda: cores)
    assert Settings(frontend_processes=setting).front_ends == front_ends
