"""The names of the core that extensions may use, by module. The list only gets shorter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMES: Final[Mapping[str, str]] = {
    "engine.batching.policies": "make_policy Policy Waiting",
    "engine.batching.queue": "BatchQueue ImmediateKey QueueFull",
    "engine.batching.request": "Batch Parcel Request SequencedRequest SequenceMark",
    "engine.demand": "Demand",
    "engine.file_locks": "replace_file sync",
    "engine.ids": "accept_request_id make_uuid",
    "engine.offload.gradual": "GradualCalls",
    "engine.offload.helpers": "Helpers",
    "engine.otlp": "close_within GRACE is_enabled open_provider resource",
    "engine.pools.channel": "FrameChannel",
    "engine.pools.interpreter": "worker_command",
    "engine.pools.memory_kills": "kills",
    "engine.pools.output": "LineReader MAX_LINES",
    "engine.pools.pool": "Pool",
    "engine.pools.printed_metrics": "Measured",
    "engine.pools.process": "describe_exit",
    "engine.pools.ranks": "member_spec Position RankGroup",
    "engine.pools.spec": (
        "Node OnLost OnMessage policy_for PoolLimits Ports Process Ranks SequenceStatistics "
        "WorkerSpec WorkerState"
    ),
    "engine.pools.variables": "worker_variables",
    "engine.pools.worker": "Worker",
    "engine.telemetry.access": "AccessLog",
    "engine.telemetry.arrivals": "ArrivalHistory ArrivalInterval",
    "engine.telemetry.families": "REQUEST_BOUNDS",
    "engine.telemetry.gpus": "Gpus VISIBLE",
    "engine.telemetry.logs": "ACCESS_LOGGER log_level MULTILINE set_log_level",
    "engine.telemetry.metrics": "ServerMetrics",
    "engine.telemetry.prometheus": "Counter Distribution Gauge Histogram SECONDS_BOUNDS Value",
    "engine.telemetry.repeated": "limit_tracebacks",
    "engine.telemetry.stalls": "LoopWatch served",
    "engine.telemetry.system": "worker_memory",
    "engine.tensors.datatypes": "BYTES from_json pack TensorError unpack",
    "engine.tensors.limits": "RequestLimits",
    "engine.tensors.rest": "InferRequest list_inputs read_shared RequestedOutput",
    "engine.tensors.rows": "join_answers",
    "engine.tensors.shared_memory": "Memory NO_CUDA NO_MEMORY REGION Regions",
    "engine.tensors.tensor": "check_data check_form OutputTensor Tensor TensorSpec VARIABLE",
    "engine.tensors.weight": "LIGHT_BYTES LIGHT_ELEMENTS TooHeavy",
    "engine.wire.arena": (
        "adopt Arena create HALF LARGE MappedIncoming NoSuchBlock open_arena read_started recall "
        "receive_with send_with"
    ),
    "engine.wire.frames": "encode FrameReader ProtocolError",
    "engine.wire.marks": "end_marked end_orphans MARK new_mark",
    "engine.wire.messages": (
        "Answer BODY FIELDS Load METRICS_CONFIG Ping Recalled Result Row SequenceHeaders TENSORS "
        "ToServer ToWorker TracedPredict"
    ),
    "engine.workdir": "work_directory",
    "engine.worker.channel": "Connection ServerChannel",
    "engine.worker.parent": "die_with",
    "engine.worker.runtime": "be_left_alone run",
    "errors": (
        "BadRequest ConfigError Conflict DeadlineExceeded DownloadFailed HandlerError "
        "InternalError InvalidModel MethodNotAllowed ModelFileExists ModelNotFound "
        "ModelServerError ModelVersionNotFound PayloadTooLarge ResourceNotFound "
        "ServiceUnavailable StartFailed WorkerDied"
    ),
    "extension": "Endpoints ExtensionRow Host Rpc",
    "models.archives.incoming": "AS_USUAL failed Transfer",
    "models.archives.sources": "locate Located",
    "models.archives.store": "SUFFIXES",
    "models.archives.unpack": "safe_parts unpack",
    "models.archives.urls": "leaves_its_place OBJECT_STORES scheme UrlPolicy",
    "models.environments": "environment_store",
    "models.environments.cache_folder": "cache_folder",
    "models.environments.environment_store": "Use",
    "models.environments.environments": "Environments PackageRequest WorkerEnvironment",
    "models.options.resolve": "ModelOptions Registration",
    "models.options.table": "OPTIONS",
    "models.options.values": "excerpt",
    "models.options.yaml_file": "load_document",
    "models.registry": "check_name Registry",
    "models.settings.address": "is_loopback parse_endpoint",
    "models.settings.checks": "holds_credentials is_header_name listed",
    "models.settings.key": "LARGEST property_text",
    "models.settings.load": "settings_as_text",
    "models.settings.properties": "dump parse",
    "models.settings.settings": "Settings",
    "models.settings.sources": "BENEATH",
    "models.version": "Headed ModelVersion SavedWorkflow",
    "run.binding": "bind_tcp",
    "run.pidfile": "address_file",
    "surface.api.application": "ANY_METHOD Application BINARY JsonBody Operation",
    "surface.api.describe": "describe moment read_gpus_of",
    "surface.api.management": "ManagementApi status",
    "surface.api.metadata": "describe_tensors extensions is_ready PLATFORM tensors_of",
    "surface.api.models": "Error Nothing PageQuery Promotion Status",
    "surface.api.parameters": "one_page Parameters read_json",
    "surface.api.repository": "is_near list_models load_model read_object unload_model",
    "surface.api.routes": "V2_VERSIONS",
    "surface.api.services": "Services",
    "surface.auth.guard": "Guard",
    "surface.auth.scopes": "CONSOLE_PATH Scope",
    "surface.auth.verifier": "Fingerprint InvalidKey Verifier",
    "surface.http": "trace_context",
    "surface.http.answers": "clean is_kserve JSON pretty",
    "surface.http.asgi_cycle": "prepared",
    "surface.http.connection": "check_regularly HttpListener",
    "surface.http.content": "inflate MAX_PARAMETERS_BODY",
    "surface.http.cors": "Cors",
    "surface.http.exchange": "Exchange HotRoutes MAX_UNSENT Target UNREAD with_header",
    "surface.http.intake": "Intake IntakeFull MUCH too_large",
    "surface.http.off_loop": "OffLoop",
    "surface.http.outgoing": "Outgoing OutgoingFull",
    "surface.http.protocol": "HttpProtocol",
    "surface.http.trace_context": "trace_context",
    "surface.inference.codec": "contents_of failure_of Parsed SECONDS",
    "surface.inference.requests": "home_of_sequence make_request NO_HEADERS",
    "surface.inference.routes": "find_target Route",
    "surface.inference.v2": (
        "BINARY header_length Inference InputRules ResponseParts sequence_of split_request"
    ),
    "surface.tls.context": "Certificate renew server_context tls_arguments",
    "surface.tls.throwaway": "make_certificate",
    "surface.watching": "GRPC message_framed Watch Watched Watcher",
}
