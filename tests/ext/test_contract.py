import asyncio
import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from modelserver.engine.telemetry.access import AccessLog
from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.engine.tensors.shared_memory import SharedMemory
from modelserver.errors import ConfigError
from modelserver.ext import EXTENSIONS
from modelserver.extension import Host, open_extensions
from modelserver.models.settings.address import Address
from modelserver.models.settings.load import load_settings
from modelserver.models.settings.settings import Settings
from modelserver.models.version import DefaultRouter
from modelserver.surface.api.services import Services
from modelserver.surface.http.intake import Intake
from modelserver.surface.http.off_loop import OffLoop
from modelserver.surface.http.outgoing import Outgoing

# Settings with which only the core is on.
ALL_OFF = {
    "enable_grpc_api": False,
    "enable_workflows": False,
    "enable_console": False,
    "worker_start": "spawn",
    "openai_api": False,
    "ts_open_inference_protocol": False,
    "frontend_processes": 1,
    "disable_system_metrics": True,
}
WITHOUT_SETTINGS = {"docs", "events", "files", "stores", "paths", "repository"}
# On with any settings: what they need is imported when it is used.
_OF_MODELS = {"autoscaling", "packages", "parking", "rollout", "sequences"}
ALWAYS = WITHOUT_SETTINGS | _OF_MODELS | {"snapshots", "workflows"}
# Settings that turn each on, besides its defaults.
ON = {
    **{name: {} for name in ALWAYS},
    "snapshots": {"model_snapshot": "{}"},
    "tokens": {"token_authorization": "always"},
    "tls": {"inference_address": Address("https", "127.0.0.1", 0)},
    "cluster": {"worker_launcher": "agents", "worker_address": "127.0.0.1:0"},
    "grpc": {"enable_grpc_api": True, "grpc_inference_port": 0, "grpc_management_port": 0},
    "otel": {"otel": "all"},
    "forking": {"worker_start": "auto"},
    "collector": {"disable_system_metrics": False},
    "payloads": {"payload_log_url": "http://127.0.0.1:1/"},
    "recording": {"allow_recording": True},
    "openai": {"openai_api": True},
    "triton": {"ts_open_inference_protocol": True},
    "workflows": {"enable_workflows": True},
    "console": {"enable_console": True},
    "frontends": {"frontend_processes": 2},
}
# Seconds for closing.
GRACE = 20.0
# A value that each refuses. The settings of the others are names, or true and false as TorchServe reads
# them, where any text is one of both.
WRONG = {
    "cluster": "worker_lost_timeout=-1",
    "grpc": "grpc_inference_port=70000",
    "otel": "otel=logs",
    "forking": "worker_start=fork",
    "collector": "metric_time_interval=0",
    "payloads": "payload_log_connections=0",
    "autoscaling": "autoscale_target_wait=0",
    "parking": "idle_timeout=-1",
    "rollout": "shadow_bodies=-1",
    "frontends": "frontend_processes=0",
}
ANY_VALUE = {
    "tokens": "disable_token_authorization",
    "tls": "keystore_pass",
    "openai": "openai_api",
    "recording": "allow_recording",
    "packages": "install_py_dep_per_model",
    "sequences": "ts_header_key_sequence_id",
    "snapshots": "standby",
    "triton": "ts_open_inference_protocol",
    "workflows": "enable_workflows",
    "console": "enable_console",
}


@pytest.fixture
async def make_host(tmp_path):
    """Hosts with these settings, and without models."""
    asides = []

    def make(**changed):
        settings = Settings(**{**ALL_OFF, **changed})
        off_loop, intake = OffLoop(1000), Intake.of(settings)
        asides.append(off_loop)
        registry = _Registry()
        services = Services(
            registry,
            ServerMetrics(),
            settings,
            tokens=None,
            off_loop=off_loop,
            intake=intake,
            outgoing=Outgoing.of(settings, intake.give_back),
            shared=SharedMemory(allowed=False, most=0),
        )
        return Host(services, tmp_path, AccessLog(), print)

    yield make
    for off_loop in asides:
        off_loop.close()


class _Registry:
    has = None

    def __init__(self):
        self.workflows: dict[str, Any] = {}
        self.builder = self
        self.cluster = None
        self.router = DefaultRouter()
        self.affinities: dict[str, Any] = {}
        self.follows: list[Any] = []
        self.store = SimpleNamespace(remote={})
        self.install = None


def test_table_and_contract_have_the_same_extensions():
    """Each is in ON, and in WRONG or ANY_VALUE; one that is always on, in WITHOUT_SETTINGS instead."""
    assert set(ON) == set(EXTENSIONS)
    assert {*WRONG, *ANY_VALUE} == set(EXTENSIONS) - WITHOUT_SETTINGS


@pytest.mark.parametrize("name", EXTENSIONS)
def test_settings_turn_it_on_and_off(name):
    on, off = Settings(**{**ALL_OFF, **ON[name]}), Settings(**ALL_OFF)
    file = "key_file.json" if name == "tokens" else None
    assert EXTENSIONS[name].is_on(SimpleNamespace(settings=on, key_file=file))
    assert EXTENSIONS[name].is_on(SimpleNamespace(settings=off, key_file=None)) is (name in ALWAYS)


def test_extension_that_is_off_is_not_imported():
    code = (
        "import asyncio, json, sys\n"
        "import modelserver.__main__, modelserver.run.server, modelserver.run.listeners\n"
        "from contextlib import AsyncExitStack\n"
        "from unittest.mock import MagicMock\n"
        "from modelserver.ext import EXTENSIONS\n"
        "from modelserver.extension import open_extensions\n"
        "from modelserver.models.settings.settings import Settings\n"
        f"settings = Settings(**json.loads('{json.dumps(ALL_OFF)}'))\n"
        "host = MagicMock(settings=settings, snapshots=None, key_file=None, closing=AsyncExitStack())\n"
        "asyncio.run(open_extensions(EXTENSIONS, host))\n"
        "print(json.dumps([name for name in sys.modules if name.startswith('modelserver.ext.')]))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    imported = json.loads(run.stdout)

    assert {name.split(".")[2] for name in imported} & set(EXTENSIONS) == ALWAYS
    assert [name for name in imported if name.startswith("modelserver.ext.stores.")] == [
        "modelserver.ext.stores.extension"
    ]


@pytest.mark.parametrize("name", EXTENSIONS)
async def test_it_opens_and_closes(name, make_host, tmp_path, monkeypatch):
    # Tokens are written to a file there.
    monkeypatch.chdir(tmp_path)
    host = make_host(**ON[name])
    host.key_file = tmp_path / "key_file.json" if name == "tokens" else None
    await open_extensions({name: EXTENSIONS[name]}, host)
    # TimeoutError if it takes too long.
    await asyncio.wait_for(host.closing.aclose(), GRACE)

    added = (
        host.watches,
        host.listeners,
        host.added_routes,
        host.mounts,
        host.protocols,
        host.restores,
        host.settles,
        host.tasks,
        host.registry.builder.cluster,
        host.registry.builder.store.remote,
        host.registry.builder.affinities,
        host.registry.builder.follows,
        host.certificate,
        host.spawner,
        host.lay_out,
        host.first,
        host.registry.builder.install,
    )
    assert any(added)


@pytest.mark.parametrize(
    ("name", "wrong", "text"),
    [
        ("cluster", {"worker_address": "203.0.113.1:1"}, "worker_address"),
        ("grpc", {"grpc_inference_address": "203.0.113.1"}, "grpc_inference_address=203.0.113.1"),
        (
            "payloads",
            {"payload_log_url": "https://h/", "payload_log_ca_file": "/none"},
            "payload_log_ca_file",
        ),
    ],
)
async def test_wrong_setting_is_refused_by_name(name, wrong, text, make_host):
    host = make_host(**{**ON["recording"], **ON[name], **wrong})
    rows = {each: EXTENSIONS[each] for each in ("recording", name)}
    with pytest.raises(ConfigError, match=text):
        await open_extensions(rows, host)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_value_is_refused_in_one_line(name, tmp_path):
    file = tmp_path / "config.properties"
    file.write_text(WRONG[name])
    with pytest.raises(ConfigError) as error:
        load_settings({}, {}, tmp_path)

    message = str(error.value)
    assert message.startswith(f"Invalid configuration: {WRONG[name]}: ")
    assert message.endswith(f" is needed ({file}, line 1)")


@pytest.mark.parametrize("name", ANY_VALUE)
def test_any_text_is_a_value(name, tmp_path):
    (tmp_path / "config.properties").write_text(f"{ANY_VALUE[name]}=perhaps")

    value = getattr(load_settings({}, {}, tmp_path).settings, ANY_VALUE[name])
    assert value in {False, "perhaps"}
