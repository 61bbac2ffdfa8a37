"""The names of the core that extensions may use, by module. The list only gets shorter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMES: Final[Mapping[str, str]] = {
    "engine.batching.policies": "Policy Waiting make_policy",
    "engine.batching.queue": "BatchQueue ImmediateKey QueueFull",
    "engine.batching.request": "Batch Parcel Request SequenceMark SequencedRequest",
    "engine.demand": "Demand",
    "engine.file_locks": "replace_file sync",
    "engine.ids": "accept_request_id make_uuid",
    "engine.offload.gradual": "GradualCalls",
    "engine.offload.helpers": "Helpers",
    "engine.otlp": "GRACE close_within is_enabled open_provider resource",
    "engine.pools.channel": "FrameChannel",
    "engine.pools.interpreter": "worker_command",
    "engine.pools.memory_kills": "kills",
    "engine.pools.output": "LineReader MAX_LINES",
    "engine.pools.pool": "Pool",
    "engine.pools.printed_metrics": "Measured",
    "engine.pools.process": "describe_exit",
    "engine.pools.ranks": "Position RankGroup member_spec",
    "engine.pools.spec": (
        "Node OnLost OnMessage PoolLimits Ports Process Ranks SequenceStatistics WorkerSpec "
        "WorkerState policy_for"
    ),
    "engine.pools.variables": "worker_variables",
    "engine.pools.worker": "Worker",
    "engine.simulation.costs": "Cost fit",
    "engine.simulation.engine": "SimulatedServer Simulation",
    "engine.simulation.figures": "summarize",
    "engine.telemetry.access": "AccessLog",
    "engine.telemetry.arrivals": "ArrivalHistory ArrivalInterval",
    "engine.telemetry.families": "REQUEST_BOUNDS",
    "engine.telemetry.gpus": "Gpus VISIBLE",
    "engine.telemetry.logs": "ACCESS_LOGGER MULTILINE log_level set_log_level",
    "engine.telemetry.metrics": "ServerMetrics",
    "engine.telemetry.prometheus": "Counter Distribution Gauge Histogram SECONDS_BOUNDS Value",
    "engine.telemetry.repeated": "limit_tracebacks",
    "engine.telemetry.stalls": "LoopWatch served",
    "engine.telemetry.system": "worker_memory",
    "engine.tensors.datatypes": "BYTES TensorError from_json pack unpack",
    "engine.tensors.limits": "RequestLimits",
    "engine.tensors.rest": "InferRequest RequestedOutput list_inputs read_shared",
    "engine.tensors.rows": "join_answers",
    "engine.tensors.shared_memory": "Memory NO_CUDA NO_MEMORY REGION Regions",
    "engine.tensors.tensor": "OutputTensor Tensor TensorSpec VARIABLE check_data check_form",
    "engine.tensors.weight": "LIGHT_BYTES LIGHT_ELEMENTS TooHeavy",
    "engine.wire.arena": (
        "Arena HALF LARGE MappedIncoming NoSuchBlock adopt create open_arena read_started "
        "recall receive_with send_with"
    ),
    "engine.wire.frames": "FrameReader ProtocolError encode",
    "engine.wire.greeting": (
        "CHALLENGE CONFIRMATION GreetingError Invitation RESPONSE challenge confirm invite "
        "named_ticket respond"
    ),
    "engine.wire.marks": "MARK end_marked end_orphans new_mark",
    "engine.wire.messages": (
        "Answer BODY FIELDS Load METRICS_CONFIG Ping Recalled Result Row SequenceHeaders "
        "TENSORS ToServer ToWorker TracedPredict"
    ),
    "engine.workdir": "work_directory",
    "engine.worker.channel": "Connection ServerChannel",
    "engine.worker.parent": "die_with",
    "engine.worker.runtime": "be_left_alone run",
    "errors": (
        "BadRequest ConfigError Conflict DeadlineExceeded DownloadFailed HandlerError "
        "InternalError InvalidDag InvalidModel InvalidWorkflow MethodNotAllowed "
        "ModelFileExists ModelNotFound ModelServerError ModelVersionNotFound PayloadTooLarge "
        "ResourceNotFound ServiceUnavailable StartFailed WorkerDied WorkflowFailed "
        "WorkflowNotFound"
    ),
    "extension": "Endpoints Host ExtensionRow Rpc",
    "models.archives.incoming": "AS_USUAL Transfer failed",
    "models.archives.sources": "Located locate",
    "models.archives.store": "SUFFIXES",
    "models.archives.unpack": "UnsafeEntryError safe_parts unpack",
    "models.archives.urls": "OBJECT_STORES UrlPolicy leaves_its_place scheme",
    "models.environments": "environment_store",
    "models.environments.cache_folder": "cache_folder",
    "models.environments.environment_store": "Use",
    "models.environments.environments": "Environments PackageRequest WorkerEnvironment",
    "models.options.resolve": "ModelOptions Registration",
    "models.options.table": "OPTIONS",
    "models.options.values": "excerpt",
    "models.options.yaml_file": "load_document",
    "models.registry": "Registry check_name",
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
    "surface.api.metadata": "PLATFORM describe_tensors extensions is_ready tensors_of",
    "surface.api.models": (
        "AnyObject Count Error Int64 Nothing PageQuery Percent Promotion Share Status about optional"
    ),
    "surface.api.parameters": "Parameters one_page read_json",
    "surface.api.repository": "is_near list_models load_model read_object unload_model",
    "surface.api.routes": "V2_VERSIONS",
    "surface.api.services": "Services",
    "surface.auth.guard": "Guard",
    "surface.auth.scopes": "CONSOLE_PATH Scope",
    "surface.auth.verifier": "Fingerprint InvalidKey Verifier",
    "surface.http": "trace_context",
    "surface.http.answers": "JSON clean is_kserve pretty",
    "surface.http.asgi_cycle": "prepared",
    "surface.http.connection": "HttpListener check_regularly",
    "surface.http.content": "MAX_PARAMETERS_BODY inflate",
    "surface.http.cors": "Cors",
    "surface.http.exchange": "Exchange HotRoutes MAX_UNSENT Target UNREAD with_header",
    "surface.http.intake": "Intake IntakeFull MUCH too_large",
    "surface.http.off_loop": "OffLoop",
    "surface.http.outgoing": "Outgoing OutgoingFull",
    "surface.http.protocol": "HttpProtocol",
    "surface.http.trace_context": "trace_context",
    "surface.inference.codec": "Parsed SECONDS contents_of failure_of",
    "surface.inference.requests": "NO_HEADERS home_of_sequence make_request",
    "surface.inference.routes": "Route WORKFLOW find_target",
    "surface.inference.v2": (
        "BINARY Inference InputRules ResponseParts header_length sequence_of split_request"
    ),
    "surface.tls.context": "Certificate renew server_context tls_arguments",
    "surface.tls.throwaway": "make_certificate",
    "surface.watching": "GRPC Watch Watched Watcher message_framed",
}
