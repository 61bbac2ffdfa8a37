"""``docs/docker.md``, ``kserve.md``, ``cluster.md``: files in commands exist; each manifest is described."""

import itertools
import re
import shlex

import pytest
from tests.deploy.manifests import KSERVE, KUBERNETES, ROOT

_DOCKER = (ROOT / "docs" / "docker.md").read_text(encoding="utf-8")
_RECIPE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
_KSERVE = (ROOT / "docs" / "kserve.md").read_text(encoding="utf-8")
_MANY = (ROOT / "docs" / "many-models.md").read_text(encoding="utf-8")
_CLUSTER = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")


def lines(text, command):
    """The words of the lines that begin with a command."""
    joined = text.replace("\\\n", " ")
    return [shlex.split(line) for line in re.findall(rf"(?m)^ *({command} .*)$", joined)]


@pytest.mark.parametrize("words", lines(_DOCKER + _KSERVE + _CLUSTER + _MANY, "kubectl"), ids=" ".join)
def test_what_kubectl_applies_is_there(words):
    named = [after for flag, after in itertools.pairwise(words) if flag in {"-f", "-k"}]

    assert [name for name in named if not (ROOT / name).exists()] == []
    assert named != [] or "apply" not in words


def test_arguments_of_the_build_exist():
    used = [each.partition("=")[0] for row in lines(_DOCKER, "docker build") for each in row if "=" in each]

    assert set(used) == {"TORCH_INDEX", "MODELSERVER_EXTRAS"}
    value = {name: text.strip('"') for name, text in re.findall(r"(?m)^ARG (\w+)=(.+)$", _RECIPE)}
    assert dict(re.findall(r"(?m)^\| `([A-Z_]+)` \| `([^`]+)` \|", _DOCKER)) == value


def test_every_manifest_is_described():
    kustomization = (KUBERNETES / "kustomization.yaml").read_text(encoding="utf-8")
    output = {*re.findall(r"- (\S+\.yaml)", kustomization), "kustomization.yaml"}
    folders = (KUBERNETES, KSERVE, ROOT / "deploy" / "queue-metric")
    files = [path.name for folder in folders for path in folder.glob("*.yaml")]
    texts = _DOCKER + _KSERVE + _MANY

    assert [name for name in files if name not in output and name not in texts] == ["secret.yaml"]


@pytest.mark.parametrize("text", [_DOCKER, _KSERVE], ids=["docker", "kserve"])
def test_untested_parts_are_listed(text):
    assert "\n## Not tested\n" in text
