"""``BaseHandler``: loads a network and processes batches in three phases (reference 14.1)."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import torch

from modelserver_handlers.context import record_phases, with_gaps
from modelserver_handlers.errors import BadInput, ModelLoadError, PredictionException
from modelserver_handlers.handler_options import NetworkOptions
from modelserver_handlers.labels import LABELS_FILE, load_label_mapping
from modelserver_handlers.networks import exported, weights
from modelserver_handlers.networks.device import choose_device, give_back_memory, keep_memory
from modelserver_handlers.networks.exported import OnnxNetwork, declared_signature, fixed_rows_of
from modelserver_handlers.networks.int8 import NotInt8Error, calibration_rows
from modelserver_handlers.networks.precision import choose_float32
from modelserver_handlers.networks.readiness import Batches, Calibration, make_ready, warm_up
from modelserver_handlers.number_rows import are_requests, datatypes_of, grouped, takes_floats, tensors_of
from modelserver_handlers.tensor_rows import TensorRows, rows_of, stacked
from modelserver_handlers.typed.handler import HandlerSignature
from modelserver_handlers.typed.signature import Described

logger = logging.getLogger(__name__)

# TorchServe's module of this name has these; some handlers check them.
PROFILER_AVAILABLE = True
PT2_AVAILABLE = True
PT230_AVAILABLE = True
XLA_AVAILABLE = find_spec("torch_xla") is not None
IPEX_AVAILABLE = find_spec("intel_extension_for_pytorch") is not None
ONNX_AVAILABLE = exported.ONNX_AVAILABLE
setup_ort_session = exported.setup_ort_session


class BaseHandler:
    """Override ``preprocess``, ``inference`` or ``postprocess``; :meth:`handle` combines them.

    ``pipelined = True`` in a class means that its ``preprocess`` may run for the next batch, in another
    thread, while the rest runs for the current one. It is not inherited: a subclass must repeat it.

    As in TorchServe, GPUs may round float32 to TF32 unless ``precision`` in model-config.yaml says otherwise,
    but importing this changes nothing yet. Unlike in TorchServe, an ONNX model can be called like any other,
    and every row of a batch is explained, not just the first.
    """

    pipelined: ClassVar[bool] = False
    # Whether answers have labels, so that a missing file of them is worth a warning.
    _ms_names_classes: ClassVar[bool] = False
    # What the server calls of a subclass, and ``handle`` of this class.
    _ms_overridden: ClassVar[tuple[str, ...]] = (
        "initialize",
        "handle",
        "preprocess",
        "inference",
        "postprocess",
    )
    # The memory format of batches for the network.
    _ms_order: torch.memory_format = torch.contiguous_format

    def __init__(self) -> None:
        self.model: Any = None
        self.mapping: dict[str, str] | None = None
        self.device: Any = None
        self.initialized = False
        self.context: Any = None
        self.model_pt_path: str | None = None
        self.manifest: dict[str, Any] | None = None
        self.map_location: str | None = None
        self.model_yaml_config: dict[str, Any] = {}
        self.explain = False
        self.target: Any = 0
        self.profiler_args: dict[str, Any] = {}

    # Loading

    def _ms_before_initialize(self, context: Any) -> None:
        """Where TorchServe's handlers have it, by importing its module: TF32 where GPUs have it.

        For classes with their own ``initialize``, before it is called. CUDA is not used yet.
        """
        is_built = torch.backends.cuda.is_built()  # type: ignore[no-untyped-call]
        if is_built and context.system_properties.get("gpu_id") is not None:
            torch.set_float32_matmul_precision("high")

    def initialize(self, context: Any) -> None:
        """Load the network and the labels. Raises ModelLoadError naming the file and the problem."""
        properties = context.system_properties
        self.context = context
        self.map_location, self.device = choose_device(
            properties.get("gpu_id"), getattr(context, "_ms_warn", None)
        )
        self.manifest = context.manifest
        self.model_yaml_config = getattr(context, "model_yaml_config", None) or {}
        if self.device.type == "cpu":
            keep_memory()
        model_dir = str(properties.get("model_dir"))
        serialized = self._ms_manifest_entry("serializedFile")
        self.model_pt_path = os.path.join(model_dir, serialized) if serialized else None
        self.model = self._ms_load_model(model_dir)
        self._ms_warn_of_fixed_rows()
        self.mapping = self._ms_load_labels(model_dir)
        self._ms_choose_processing()
        self.model = self._ms_prepare_network(self.model)
        give_back_memory()
        self.initialized = True

    def _ms_choose_processing(self) -> None:
        """Choose how inputs are prepared, in subclasses for which the network or configuration decides."""

    def _ms_input_shape(self) -> tuple[int, ...] | None:
        """The shape of one row for ``inference``, None if unknown; model-config.yaml may set it too."""
        return None

    def _ms_prepare_network(self, model: Any) -> Any:
        options = NetworkOptions.parse(self.model_yaml_config)
        size = int(self.context.system_properties.get("batch_size") or 1)
        if isinstance(model, OnnxNetwork):
            shape = options.shape or model.row_shape() or self._ms_input_shape()
            if options.warmup and shape is not None:
                warm_up(lambda rows: model(rows.to(self.device)), shape, size, self.device, self._ms_warn)
            return model
        if not options.optimize_requested and not self._ms_loads_as_built_in():
            options = replace(options, optimize=False)
        batches = Batches(size, options.shape or self._ms_input_shape(), self._ms_order)
        self._ms_choose_float32(options)
        calibration = Calibration(
            partial(self._ms_calibration_rows, options.calibration),
            partial(self._ms_report_precision, "int8"),
        )
        return make_ready(
            model, options, self.model_yaml_config, batches, self.device, calibration, self._ms_warn
        )

    def _ms_calibration_rows(self, name: str | None) -> torch.Tensor:
        """The network's inputs for the calibration set. Raises NotInt8Error."""
        if name is None:
            raise NotInt8Error("model-config.yaml names no calibration set (handler: calibration: FOLDER)")
        return calibration_rows(
            Path(str(self.context.system_properties.get("model_dir"))), name, self.preprocess
        )

    def _ms_choose_float32(self, options: NetworkOptions) -> None:
        used, why = choose_float32(self.device, options.tf32)
        on_gpu = self.device.type == "cuda"
        if options.tf32 or (on_gpu and options.precision == "fp32"):
            requested = {None: "default", True: "tf32", False: "fp32"}[options.tf32]
            self._ms_report_precision(requested, used, why)

    def _ms_report_precision(self, requested: str, used: str, why: str) -> None:
        report = getattr(self.context, "_ms_set_precision", None)
        if report is not None:
            report(requested, used, why)
            if requested not in ("default", used):
                self._ms_warn(f"precision: {requested} is not used, but {used}: {why}")

    def _ms_warn(self, message: str) -> None:
        """Tell those who register the model."""
        getattr(self.context, "_ms_warn", logger.warning)(message)

    def _ms_loads_as_built_in(self) -> bool:
        """Whether the class uses our loading: one with its own ``initialize`` may do more to the model."""
        return all(
            getattr(type(self), name).__module__.startswith(f"{__package__}.")
            for name in ("initialize", "_ms_load_model", "_load_pickled_model", "_ms_prepare_network")
        )

    def _ms_manifest_entry(self, key: str) -> str | None:
        return ((self.manifest or {}).get("model") or {}).get(key) or None

    def _ms_load_model(self, model_dir: str) -> Any:
        """The network on its device, in evaluation mode, by the first loader that fits (reference 14.1)."""
        model_file = self._ms_manifest_entry("modelFile")
        if model_file:
            model = self._load_pickled_model(model_dir, model_file, self.model_pt_path)
            if self.model_pt_path is None:
                self._ms_warn_of_random_weights(model, model_file)
            return model.to(self.device).eval()
        path = self.model_pt_path or ""
        if path.endswith(".pt"):
            return self._load_torchscript_model(path).eval()
        if path.endswith(".pt2"):
            self._ms_use_device_of(Path(path))
            return weights.load_exported(Path(path), self.device)
        if path.endswith(".onnx"):
            return OnnxNetwork(setup_ort_session(path, self.map_location, self.device.index), self.device)
        if path.endswith(".so") and self._use_torch_export_aot_compile():
            return self._load_torch_export_aot_compile(path)
        raise ModelLoadError(weights.NO_WEIGHTS + _hint(path))

    def _ms_use_device_of(self, program: Path) -> None:
        """The processor instead of the GPU for a ``.pt2`` that was compiled for processors."""
        device = weights.device_of(program, self.device)
        if device == self.device:
            return
        self._ms_warn(
            f"{program.name} was compiled for a processor: it is computed there, not on {self.device}"
        )
        self.map_location, self.device = device.type, device

    def _ms_warn_of_random_weights(self, model: torch.nn.Module, model_file: str) -> None:
        if self._ms_loads_as_built_in() and any(True for _ in model.parameters()):
            self._ms_warn(
                f"The archive has no weights (--serialized-file): the network uses those that"
                f" {model_file} creates, which are random unless it loads some itself"
            )

    def _ms_warn_of_fixed_rows(self) -> None:
        rows = fixed_rows_of(self.model)
        size = int(self.context.system_properties.get("batch_size") or 1)
        if rows is None or rows == size == 1:
            return
        filled = "" if rows == 1 else ", the last one filled up with copies of a row"
        self._ms_warn(
            f"{os.path.basename(self.model_pt_path or '')} was exported for batches of {rows}, and batch_size"
            f" is {size}: batches are computed in parts of {rows}{filled}. Export it with a first dimension"
            " of any size to compute them as a whole"
        )

    def _load_pickled_model(self, model_dir: str, model_file: str, model_pt_path: str | None) -> Any:
        """An eager network: the class in ``model_file`` with the state dict at ``model_pt_path``."""
        return weights.load_eager(Path(model_dir), model_file, Path(model_pt_path) if model_pt_path else None)

    def _load_torchscript_model(self, model_pt_path: str) -> Any:
        """A TorchScript program."""
        return weights.load_torchscript(Path(model_pt_path), self.device)

    def _load_torch_export_aot_compile(self, model_so_path: str) -> Any:
        """A library compiled by AOTInductor."""
        return weights.load_compiled_library(Path(model_so_path), str(self.device))

    def _use_torch_export_aot_compile(self) -> bool:
        pt2 = self.model_yaml_config.get("pt2")
        export = pt2.get("export") if isinstance(pt2, Mapping) else None
        return bool(isinstance(export, Mapping) and export.get("aot_compile"))

    def _ms_load_labels(self, model_dir: str) -> dict[str, str] | None:
        """Class number to name, or None."""
        path = os.path.join(model_dir, LABELS_FILE)
        return load_label_mapping(path) if self._ms_names_classes or os.path.isfile(path) else None

    # One batch

    def preprocess(self, data: Any) -> Any:
        """Converts rows of requests to the network's input: here, a tensor.

        For JSON numbers or V2 tensors: a tensor of all rows, or for several inputs a dict of tensors. For
        batches of V2 rows, a handler with a method ``preprocess_tensors(inputs)`` gets that dict (name to a
        tensor whose first dimension is the rows) there instead; not in TorchServe. Only rows whose numbers
        cannot be read are rejected.
        """
        tensors = stacked(data)
        if tensors is None and are_requests(data):
            tensors = self._ms_read_numbers(data)
        if tensors is None:
            return torch.as_tensor(data, device=self.device)
        on_device = {name: tensor.to(self.device) for name, tensor in tensors.items()}
        return on_device if len(on_device) > 1 else next(iter(on_device.values()))

    def _ms_read_numbers(self, rows: Any) -> dict[str, torch.Tensor]:
        """The tensors of JSON requests; empty if all are rejected."""
        requests = self._ms_read_each(lambda row: tensors_of(row, *self._ms_number_types), rows)
        return stacked([row for instances in requests for row in instances]) or {"data": torch.empty(0)}

    def _ms_read_each(self, read: Callable[[Any], Any], rows: Any) -> list[Any]:
        """What ``read`` makes of each row; rows for which it raises BadInput are rejected."""
        made = []
        for idx, row in enumerate(rows):
            try:
                made.append(read(row))
            except BadInput as bad:  # noqa: PERF203 - each row fails alone
                self._ms_reject(idx, str(bad))
        return made

    @cached_property
    def _ms_number_types(self) -> tuple[dict[str, torch.dtype], bool]:
        return datatypes_of(self.model_yaml_config), takes_floats(self.model)

    def _ms_reject(self, idx: int, message: str) -> None:
        reject = getattr(self.context, "reject", None)
        if reject is None:
            raise PredictionException(message, 400)
        reject(idx, message, 400)

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """The network's outputs for one prepared batch."""
        with torch.inference_mode():
            if isinstance(data, dict):
                # Several V2 inputs, by forward's names.
                return self.model(*args, **{k: v.to(self.device) for k, v in data.items()}, **kwargs)
            return self.model(data.to(self.device), *args, **kwargs)

    def postprocess(self, data: Any) -> Any:
        """Converts the network's outputs to one answer per row: here, nested lists."""
        return data.tolist()

    def handle(self, data: Any, context: Any) -> Any:
        """Answers, one per row, None for rows that ``preprocess`` rejected (``context.reject``)."""
        self.context = context
        if "ENABLE_TORCH_PROFILER" in os.environ:
            return self._infer_with_profiler(data)[0]
        return self._ms_complete(self._ms_prepare(data, context), data, context)

    def _ms_prepare(self, data: Any, context: Any) -> Any:
        """The first half of :meth:`handle`: preprocess."""
        self.context = context
        if self._is_describe():
            return None
        started = time.perf_counter()
        take = getattr(self, "preprocess_tensors", None) if isinstance(data, TensorRows) else None
        prepared = self.preprocess(data) if take is None else take(data.tensors)
        record_phases(context, time.perf_counter() - started, 0.0, 0.0)
        return prepared

    def _ms_complete(self, prepared: Any, data: Any, context: Any) -> Any:
        """The second half: inference and postprocess of the rows that ``prepare`` returned."""
        self.context = context
        if self._is_describe():
            return [self.describe_handle()]
        started = inferred = time.perf_counter()
        rejected: Mapping[int, Any] = getattr(context, "_ms_rejections", None) or {}
        if rejected and len(rejected) >= len(data):
            answers: Any = []
        elif self._is_explain():
            answers = self.explain_handle(prepared, _without(data, rejected))
        else:
            outputs = self.inference(prepared)
            inferred = time.perf_counter()
            answers = self._ms_answers(outputs, data, rejected)
        record_phases(context, 0.0, inferred - started, time.perf_counter() - inferred)
        return with_gaps(answers, len(data), rejected)

    def _ms_answers(self, outputs: Any, data: Any, rejected: Mapping[int, Any]) -> Any:
        """Postprocess; unless a class overrides it, tensors are answered with tensors."""
        if isinstance(data, TensorRows):
            return rows_of(outputs) if self._ms_inherits("postprocess") else self.postprocess(outputs)
        answers = self.postprocess(outputs)
        return grouped(answers, _without(data, rejected)) if self._ms_inherits("preprocess") else answers

    def _ms_inherits(self, method: str) -> bool:
        """Whether the class does not override ``method``."""
        return getattr(type(self), method) is getattr(BaseHandler, method)

    def _ms_signature(self) -> HandlerSignature | None:
        """What the model file declares, as far as the class passes its inputs and outputs on unchanged."""
        leaves = all(map(self._ms_inherits, ("preprocess", "inference", "handle")))
        declared = declared_signature(self.model) if leaves else None
        if declared is None or self._ms_inherits("postprocess"):
            return declared
        return HandlerSignature(declared.inputs, Described())

    def _infer_with_profiler(self, data: Any) -> tuple[Any, Any]:
        """Answers, and the profiler whose trace goes to ``<temp>/pytorch_profiler/<model>``."""
        from torch.profiler import ProfilerActivity, profile, tensorboard_trace_handler  # noqa: PLC0415

        folder = os.path.join(
            tempfile.gettempdir(), "pytorch_profiler", str(getattr(self.context, "model_name", ""))
        )
        arguments: dict[str, Any] = {"activities": [ProfilerActivity.CPU], "record_shapes": True}
        if torch.cuda.is_available():
            arguments["activities"].append(ProfilerActivity.CUDA)
        arguments |= self.profiler_args
        if "on_trace_ready" not in arguments:
            arguments["on_trace_ready"] = tensorboard_trace_handler(folder)
        with profile(**arguments) as profiler:
            answers = self._ms_complete(self._ms_prepare(data, self.context), data, self.context)
        return answers, profiler

    # Explanations and descriptions

    def explain_handle(self, data_preprocess: Any, raw_data: Any) -> Any:
        """Explanations instead of answers: a subclass's ``get_insights`` for the rows' targets.

        Raises PredictionException (501) without that method, (400) for a target that is not a whole number.
        """
        get_insights = getattr(self, "get_insights", None)
        if get_insights is None:
            raise PredictionException("The handler has no get_insights method, so it explains nothing", 501)
        rows = [row if isinstance(row, Mapping) else {"data": row} for row in raw_data]
        targets = [_target(row) for row in rows]
        inputs = rows[0].get("data") or rows[0].get("body")
        logger.debug("Explaining %d rows", len(rows))
        return get_insights(data_preprocess, inputs, targets[0] if len(set(targets)) == 1 else targets)

    def describe_handle(self) -> Any:
        """The answer to a customized describe, for subclasses."""
        return None

    def _is_explain(self) -> bool:
        return bool(self._ms_server_property("explain") == "True")

    def _is_describe(self) -> bool:
        return bool(self._ms_server_property("describe") == "True")

    def _ms_server_property(self, name: str) -> Any:
        if self.context is None:
            return None
        return self.context.get_request_header(0, name)

    def get_device(self) -> Any:
        """The device the network is on."""
        return self.device


def _hint(path: str) -> str:
    if not path:
        return ": the archive's manifest names neither a model file nor a serialized file"
    return f": {os.path.basename(path)} is a state dict without a model file, or in an unknown format"


def _target(row: Mapping[str, Any]) -> int:
    target = row.get("target") or 0
    try:
        return int(bytes(target) if isinstance(target, (bytes, bytearray)) else target)
    except (TypeError, ValueError):
        raise PredictionException("target must be a whole number: the class to explain", 400) from None


def _without(data: Any, rejected: Mapping[int, Any]) -> list[Any]:
    return [row for idx, row in enumerate(data) if idx not in rejected]
