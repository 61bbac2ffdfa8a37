"""The registered models as the JSON document of a snapshot (reference 17).

The fields are TorchServe's, so that either server can read the other's. Our own fields keep what TorchServe
loses: ``url`` if it is more than the archive's file name, ``downloaded`` if the server fetched that file,
``trusted`` if an operator set it at startup, ``handler`` if the registration named one, ``batchPolicy``,
``splitInstances``, the options of ``autoscale`` and of workers' limits, ``batcher`` with ``timeout`` for
registrations with KServe's parameters, and ``workflows``, which are not in TorchServe's snapshots. The
default version has the ``traffic`` between all of them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from modelserver.errors import BadRequest, ConfigError
from modelserver.models.archives.urls import scheme
from modelserver.models.options.resolve import Registration
from modelserver.models.options.table import OPTIONS
from modelserver.models.registry import Registry
from modelserver.models.version import ModelVersion, SavedWorkflow

DEFAULT_TIMEOUT = 120  # seconds, for TorchServe's older snapshots, which have none

# The options that only this server has, and that registrations may name.
_OWN = [option for option in OPTIONS.values() if option.own and option.requested]

Read = TypeVar("Read", int, str, bool)


@dataclass(frozen=True, slots=True)
class SavedModel:
    """One version to be registered again.

    ``default``: requests without a version go to it, unless ``traffic``, the router's state, says otherwise.
    ``downloaded``: its file in the model store is the server's own.
    """

    name: str
    version: str
    default: bool
    registration: Registration
    traffic: Mapping[str, Any] | None = None
    downloaded: bool = False


class Saved(NamedTuple):
    """The state in a snapshot: the versions in order, the workflows by name."""

    models: tuple[SavedModel, ...]
    workflows: dict[str, SavedWorkflow]


def registry_document(registry: Registry) -> dict[str, Any]:
    """The state of the registry, without the snapshot's file name."""
    # A workflow registers its models itself.
    versions = [model for model in registry.versions() if not model.registration.workflow]
    nodes = {model.name: model for model in registry.versions() if model.registration.workflow}
    models: dict[str, dict[str, Any]] = {}
    for model in versions:
        models.setdefault(model.name, {})[model.version] = {
            "defaultVersion": registry.is_default(model),
            **_version_document(model),
        }
        if registry.is_default(model) and model.name not in nodes:
            models[model.name][model.version].update(_traffic_document(model))
    document = {"modelCount": len(versions), "created": int(time.time() * 1000), "models": models}
    workflows = {}
    for name, saved in registry.workflows.items():
        own = [node for node, model in nodes.items() if model.registration.workflow == name]
        # Before it is restored, or if it cannot be, what was saved stays.
        defaults = {node: registry.get(node) for node in own if node in models}
        restored = {
            node: {"defaultVersion": default.version, **_traffic_document(default)}
            for node, default in defaults.items()
        }
        workflows[name] = _workflow_document(saved, restored if own else saved.nodes)
    return {**document, "workflows": workflows} if workflows else document


def _traffic_document(model: ModelVersion) -> dict[str, Any]:
    return {"traffic": model.traffic.state} if model.traffic is not None and model.traffic.state else {}


def _workflow_document(saved: SavedWorkflow, nodes: Mapping[str, Mapping[str, Any]]) -> str | dict[str, Any]:
    """Its URL, with its timeouts where it has some, and the nodes that have other versions, too."""
    timeouts = {"responseTimeout": saved.response_timeout, "startupTimeout": saved.startup_timeout}
    state: dict[str, Any] = {name: seconds for name, seconds in timeouts.items() if seconds is not None}
    if nodes:
        state["nodes"] = nodes
    if saved.downloaded:
        state["downloaded"] = True
    return {"url": saved.url, **state} if state else saved.url


def _version_document(model: ModelVersion) -> dict[str, Any]:
    options, registration, pool = model.options, model.registration, model.pool
    document: dict[str, Any] = {
        "marName": model.mar_name,
        "minWorkers": pool.min_workers,
        "maxWorkers": pool.max_workers,
        "batchSize": options.batch_size,
        "maxBatchDelay": options.max_batch_delay,
        "responseTimeout": options.response_timeout,
        "startupTimeout": options.startup_timeout,
        "runtimeType": model.runtime,
        "batchPolicy": options.batch_policy,
    }
    if options.parallel_level > 0:
        document["parallelLevel"] = options.parallel_level
    if model.archive.downloaded is not None:
        document["downloaded"] = True
    elif scheme(model.url) not in {"http", "https"} and model.url != document["marName"]:
        document["url"] = model.url
        if registration.trusted:
            document["trusted"] = True
    if registration.handler:
        document["handler"] = registration.handler
    for option in _OWN:
        if options.by_request(option.name):
            document.setdefault(option.key, getattr(options, option.name))
    if registration.has_batcher:
        document["batcher"] = True
        document["timeout"] = registration.timeout
    return document


def parse_snapshot(text: str) -> Saved:
    """The state in a document. Raises ConfigError naming the invalid field."""
    try:
        document = _mapping(json.loads(text), "the whole")
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"Invalid configuration: model_snapshot: a JSON object is needed ({error})"
        ) from None
    models = tuple(
        _saved(name, version, _mapping(settings, f"models.{name}.{version}"))
        for name, versions in _mapping(document.get("models", {}), "models").items()
        for version, settings in _mapping(versions, f"models.{name}").items()
    )
    workflows = _mapping(document.get("workflows", {}), "workflows")
    return Saved(models, {name: _saved_workflow(name, state) for name, state in workflows.items()})


def check_routes(saved: Saved, check: Callable[[Any], None]) -> None:
    """Raises ConfigError for what the router could never carry out; ``check`` raises BadRequest for it."""
    models = ((f"models.{item.name}.{item.version}", item.traffic) for item in saved.models)
    nodes = (
        (f"workflows.{name}.nodes.{node}", each.get("traffic"))
        for name, workflow in saved.workflows.items()
        for node, each in workflow.nodes.items()
    )
    for place, document in (*models, *nodes):
        try:
            if document is not None:
                check(document)
        except BadRequest as error:  # noqa: PERF203 - each has its own place
            text = f"Invalid configuration: model_snapshot: {place}.traffic: {error.message}"
            raise ConfigError(text) from None


def _saved_workflow(name: str, state: Any) -> SavedWorkflow:
    place = f"workflows.{name}"
    fields = _Fields(place, {"url": state} if isinstance(state, str) else _mapping(state, place))
    url = fields.text("url", needed=True) or ""
    nodes = {}
    for node, node_document in _mapping(fields.values.get("nodes", {}), f"{place}.nodes").items():
        of_node = _Fields(f"{place}.nodes.{node}", _mapping(node_document, f"{place}.nodes.{node}"))
        of_node.text("defaultVersion", needed=True)
        of_node.traffic()
        nodes[node] = of_node.values
    response, startup = fields.number("responseTimeout"), fields.number("startupTimeout")
    return SavedWorkflow(url, response, startup, nodes, fields.flag("downloaded"))


def _saved(name: str, version: str, settings: Mapping[str, Any]) -> SavedModel:
    fields = _Fields(f"models.{name}.{version}", settings)
    batch_size, delay = fields.number("batchSize"), fields.number("maxBatchDelay")
    batcher = fields.flag("batcher")
    try:
        registration = Registration(
            url=fields.text("url") or fields.text("marName", needed=True),
            model_name=name,
            handler=fields.text("handler"),
            runtime=fields.text("runtimeType"),
            min_workers=fields.number("minWorkers") or 0,
            max_workers=fields.number("maxWorkers"),
            response_timeout=fields.number("responseTimeout") or DEFAULT_TIMEOUT,
            startup_timeout=fields.number("startupTimeout") or DEFAULT_TIMEOUT,
            timeout=fields.number("timeout"),
            **{option.name: fields.value(option.key, option.values.type) for option in _OWN},
            batch_size=None if batcher else batch_size,
            max_batch_delay=None if batcher else delay,
            max_batch_size=batch_size if batcher else None,
            max_latency=delay if batcher else None,
            trusted=fields.flag("trusted"),
        )
    except BadRequest as error:
        raise ConfigError(f"Invalid configuration: model_snapshot: {fields.place}: {error.message}") from None
    default, downloaded = fields.flag("defaultVersion"), fields.flag("downloaded")
    return SavedModel(name, version, default, registration, fields.traffic(), downloaded)


@dataclass(frozen=True, slots=True)
class _Fields:
    """The settings of one version; missing fields are None or False."""

    place: str
    values: Mapping[str, Any]

    def value(self, name: str, kind: str) -> Any:
        kinds: dict[str, Callable[[str], Any]] = {"string": self.text, "integer": self.number}
        return kinds.get(kind, self.flag)(name) if name in self.values else None

    def number(self, name: str) -> int | None:
        return self._typed(name, int, "a whole number")

    def text(self, name: str, *, needed: bool = False) -> str | None:
        value = self._typed(name, str, "text") or None
        if value is None and needed:
            raise self._wrong(name, "text")
        return value

    def flag(self, name: str) -> bool:
        return bool(self._typed(name, bool, "true or false", default=False))

    def traffic(self) -> Mapping[str, Any] | None:
        value = self.values.get("traffic")
        return None if value is None else _mapping(value, f"{self.place}.traffic")

    def _typed(self, name: str, kind: type[Read], needed: str, default: Read | None = None) -> Read | None:
        value = self.values.get(name, default)
        # Exactly, as True is an int.
        if value is default or type(value) is kind:
            return value
        raise self._wrong(name, needed)

    def _wrong(self, name: str, needed: str) -> ConfigError:
        return ConfigError(f"Invalid configuration: model_snapshot: {self.place}.{name}: {needed} is needed")


def _mapping(value: object, place: str) -> Mapping[str, Any]:
    if isinstance(value, dict):
        return value
    raise ConfigError(f"Invalid configuration: model_snapshot: {place}: a JSON object is needed")
