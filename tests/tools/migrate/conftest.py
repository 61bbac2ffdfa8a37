"""A proof without servers: both are played from recorded answers."""

from dataclasses import dataclass, field

import pytest
from tests.recorded_calls import make_call  # noqa: F401 - a fixture
from tests.tools.migrate.sites import build_site, key_of, recorded
from tests.tools.tune.tune_samples import Notes

from modelserver.tools.migrate.calls import Probe, Response
from modelserver.tools.migrate.installation import read_installation
from modelserver.tools.migrate.proof import ProofPlan, prove
from modelserver.tools.migrate.servers import ComparedServer


@dataclass(frozen=True)
class Played(ComparedServer):
    answers: dict[str, Response] = field(default_factory=dict)
    calls: list[Probe] = field(default_factory=list)

    def ask(self, call):
        self.calls.append(call)
        result = self.answers.get(key_of(call.port, call.method, call.path, call.body))
        return result or Response(404, "Not Found", {}, b"{}")

    def memory(self):
        return 300 << 20


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    return build_site(tmp_path_factory.mktemp("site") / "site")


@pytest.fixture
def plan(site, tmp_path):
    """Both servers answer as TorchServe did, for requests of the command's own."""
    servers = [
        Played(name, {"grpc_inference": ("", 0)}, answers=recorded())
        for name in ("TorchServe", "modelserver")
    ]
    return ProofPlan(
        read_installation(site, None, {}, {}), *servers, "builtin", 0.0, True, tmp_path / "archives"
    )


@pytest.fixture
def proof(plan):
    """One difference is explained, one is not, for a model with a name that must be escaped."""
    answers = plan.ours.answers
    changed = [key for key in answers if key.startswith("inference POST /predictions/plain ")][:2]
    answers[changed[0]] = answers[changed[0]].but(reason="OK")
    answers[changed[1]] = answers[changed[1]].but(body=b"<script>")
    return prove(plan, Notes())
