"""``deploy/compose.yaml``: its settings are the server's, and its volumes lie where the image writes."""

import re

from tests.deploy.manifests import ROOT, resources

from modelserver.models.settings.load import load_settings
from modelserver.models.settings.settings import KEYS
from modelserver.surface.auth.scopes import Scope

_IMAGE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def service():
    (document,) = resources(ROOT / "deploy" / "compose.yaml")
    (result,) = document["services"].values()
    assert set(document["volumes"]) == {text.partition(":")[0] for text in result["volumes"]}
    return result


def test_volumes_lie_where_the_image_has_folders_of_its_user():
    """A new volume gets owner and content of the folder: of archives, and of logs with the snapshots."""
    (made,) = re.findall(r"mkdir ([^\n\\]+)", _IMAGE)

    assert sorted(text.partition(":")[2] for text in service()["volumes"]) == sorted(made.split())
    assert "chown -R 1000:0 /home/model-server" in _IMAGE


def test_variables_are_settings_and_a_token_for_each_scope():
    """Nothing starts without tokens of one's own, so no file of tokens is needed after a restart."""
    variables = service()["environment"]
    tokens = {f"MODELSERVER_{scope.value.upper()}_TOKEN" for scope in Scope}

    assert set(variables) - tokens <= {key.env for key in KEYS.values()}
    assert [variables[name] for name in tokens if not re.fullmatch(r"\$\{\w+:\?.+\}", variables[name])] == []


def test_management_is_published_to_this_machine_alone():
    published = dict(text.rpartition(":")[::-2] for text in service()["ports"])
    ports = {
        name: str(KEYS[f"{name}_address"].default).rpartition(":")[2] for name in ("management", "metrics")
    }

    assert {published[port] for port in ports.values()} == {f"127.0.0.1:{port}" for port in ports.values()}
    assert published["8080"] == "8080"


def test_there_is_time_to_drain(tmp_path):
    """Compose waits for 10 seconds by default."""
    grace = int(service()["stop_grace_period"].removesuffix("s"))
    assert grace >= load_settings({}, {}, tmp_path).settings.drain_timeout + 12
