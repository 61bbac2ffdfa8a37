"""TorchServe's names: what they lead to, who wins where others have them, and what the table says."""

from __future__ import annotations

import importlib
import io
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from modelserver_handlers.batch_streamer import TextIteratorStreamerBatch
from modelserver_handlers.compat import PATH, launcher, mock_context
from modelserver_handlers.compat.absent import ABSENT
from modelserver_handlers.compat.names import LEFT_OUT, REMARKS, document, names, offered
from modelserver_handlers.metrics.metric import MetricsStore

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]

# Reference 13, and what reference 14 adds.
SECTION_13 = [
    "ts.torch_handler.base_handler.BaseHandler",
    "ts.torch_handler.image_classifier.ImageClassifier",
    "ts.context.Context",
    "ts.handler_utils.timer.timed",
    "ts.metrics.dimension.Dimension",
    "ts.handler_utils.micro_batching.MicroBatching",
    "ts.handler_utils.utils.send_intermediate_predict_response",
    "ts.protocol.otf_message_handler.send_intermediate_predict_response",
    "ts.handler_utils.utils.import_class",
    "ts.utils.util.map_class_to_label",
    "ts.utils.util.list_classes_from_module",
    "ts.utils.util.load_label_mapping",
    "ts.utils.util.check_valid_pt2_backend",
    "ts.utils.util.CLEANUP_REGEX",
    "ts.utils.util.PredictionException",
    "ts.service.PredictionException",
    "ts.torch_handler.object_detector.ObjectDetector",
    "ts.torch_handler.vision_handler.VisionHandler",
    "ts.torch_handler.image_segmenter.ImageSegmenter",
    "ts.torch_handler.text_handler.TextHandler",
    "ts.torch_handler.text_classifier.TextClassifier",
    "ts.metrics.metric_type_enum.MetricTypes",
    "ts.metrics.metric.Metric",
    "ts.metrics.process_memory_metric.check_process_mem_usage",
    "ts.metrics.metrics_store.MetricsStore",
    "ts.metrics.unit.Units",
    "ts.metrics.caching_metric.CachingMetric",
    "ts.metrics.metric_cache_yaml_impl.MetricsCacheYamlImpl",
    "ts.metrics.metric_cache_errors.MetricsCacheValueError",
    "ts.metrics.metric_cache_errors.MetricsCacheKeyError",
    "ts.torch_handler.dali_handler",
    "ts.torch_handler.dali_image_classifier",
    "ts.torch_handler.distributed.base_pippy_handler",
    "ts.torch_handler.distributed.base_deepspeed_handler",
    "ts.handler_utils.distributed.pt_pippy",
    "ts.handler_utils.distributed.deepspeed",
    "ts.handler_utils.hf_batch_streamer.TextIteratorStreamerBatch",
    "ts.torch_handler.unit_tests.test_utils.mock_context.MockContext",
    "ts.torch_handler.vllm_handler",
    "ts.torch_handler.trt_llm_handler",
    "ts.torch_handler.densenet_handler.DenseNetHandler",
    "ts.torch_handler.contractions.CONTRACTION_MAP",
    "ts.service.Service",
    "ts.service.emit_metrics",
    "ts.arg_parser",
    "ts.model_server.start",
    "ts.metrics.system_metrics.collect_all",
    "ts.metrics.metric_collector",
    "ts.metrics.metric_encoder.MetricEncoder",
    "ts.model_loader",
    "ts.model_service.model_service.ModelService",
    "ts.model_service.model_service.SingleNodeService",
    "ts.launcher.start",
    "ts.launcher.stop",
    "ts.launcher.register_model",
    "ts.launcher.register_model_with_params",
    "ts.version.__version__",
    "ts.__version__",
    "ts.utils.timeit_decorator.timeit",
    "ts.utils.hf_utils",
    "ts.llm_launcher",
    "ts.utils.util.PT2Backend",
    "ts.utils.util.get_yaml_config",
    "ts.utils.util.deprecated",
    "ts.handler_utils.text_utils.get_tokenizer",
    "ts.handler_utils.text_utils.ngrams_iterator",
    "ts.torch_handler.base_handler.setup_ort_session",
    "ts.torch_handler.base_handler.PROFILER_AVAILABLE",
    "ts.torch_handler.base_handler.XLA_AVAILABLE",
    "ts.torch_handler.base_handler.PT2_AVAILABLE",
    "ts.torch_handler.base_handler.PT230_AVAILABLE",
    "ts.torch_handler.base_handler.IPEX_AVAILABLE",
    "ts.torch_handler.base_handler.ONNX_AVAILABLE",
    "ts.torch_handler.request_envelope.base.BaseEnvelope",
    "ts.torch_handler.request_envelope.body.BodyEnvelope",
    "ts.torch_handler.request_envelope.json.JSONEnvelope",
    "ts.torch_handler.request_envelope.kserve.KServeEnvelope",
    "ts.torch_handler.request_envelope.kservev2.KServev2Envelope",
]


@pytest.fixture
def ts_names(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """``ts`` can be imported, and is forgotten afterwards."""
    monkeypatch.syspath_prepend(PATH)
    yield
    for name in [name for name in sys.modules if name == "ts" or name.startswith("ts.")]:
        del sys.modules[name]


def python(*arguments: str, cwd: Path = ROOT, path: str = "") -> subprocess.CompletedProcess[str]:
    """A Python of its own, with our packages and ``path`` on its path."""
    roots = [path, str(ROOT / "app"), str(ROOT / "handlers")]
    environment = {"PYTHONPATH": ":".join(filter(None, roots)), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


# The names


@pytest.mark.usefixtures("ts_names")
def test_every_offered_name_is_there() -> None:
    """Each name of the table that is offered can be imported."""
    for name in offered():
        module, _, attribute = name.rpartition(".")
        assert getattr(importlib.import_module(module), attribute) is not None


@pytest.mark.usefixtures("ts_names")
@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("ts.torch_handler.base_handler.BaseHandler", "base.BaseHandler"),
        ("ts.torch_handler.vision_handler.VisionHandler", "vision.VisionHandler"),
        ("ts.context.Context", "context.Context"),
        ("ts.service.PredictionException", "errors.PredictionException"),
        ("ts.utils.util.PredictionException", "errors.PredictionException"),
        ("ts.utils.util.PT2Backend", "networks.compilation.PT2Backend"),
        ("ts.metrics.metric_cache_abstract.MetricCacheAbstract", "metrics.cache.MetricsCache"),
        ("ts.torch_handler.request_envelope.kservev2.KServev2Envelope", "envelopes.KserveV2Envelope"),
        (
            "ts.handler_utils.utils.send_intermediate_predict_response",
            "streaming.send_intermediate_predict_response",
        ),
    ],
)
def test_one_implementation_two_doors(name: str, ours: str) -> None:
    """A name of TorchServe is the very object of modelserver_handlers."""
    theirs_module, _, theirs = name.rpartition(".")
    our_module, _, our = f"modelserver_handlers.{ours}".rpartition(".")

    found = getattr(importlib.import_module(theirs_module), theirs)
    assert found is getattr(importlib.import_module(our_module), our)


@pytest.mark.usefixtures("ts_names")
@pytest.mark.parametrize("module", sorted(ABSENT))
def test_what_is_not_offered_says_why(module: str) -> None:
    """Importing it is an ImportError with its name and the reason."""
    with pytest.raises(ImportError, match="modelserver does not offer") as caught:
        importlib.import_module(module)

    assert (caught.value.name, ABSENT[module] in str(caught.value)) == (module, True)


@pytest.mark.usefixtures("ts_names")
def test_unknown_names_are_unknown() -> None:
    """What TorchServe has not is not there either."""
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("ts.nothing")
    with pytest.raises(AttributeError, match=r"'ts\.utils\.util' has no attribute 'nothing'"):
        _ = importlib.import_module("ts.utils.util").nothing


@pytest.mark.usefixtures("ts_names")
def test_the_old_name_of_streaming_warns() -> None:
    """The deprecated path gives TorchServe's warning, and does the same."""
    old = importlib.import_module("ts.protocol.otf_message_handler").send_intermediate_predict_response

    with (
        pytest.warns(PendingDeprecationWarning, match=r"ts\.handler_utils\.utils"),
        pytest.raises(RuntimeError, match="only while the server calls"),
    ):
        old(["part"], {0: "id"}, "", 200, object())


# The table


def test_the_table_has_every_name_of_the_reference() -> None:
    """No name of reference 13 is left without a state."""
    assert set(SECTION_13) - {entry.name for entry in names()} == set()


def test_remarks_are_of_offered_names() -> None:
    """No remark is about a name that is not there, none about one that is left out is about one that is."""
    there = set(offered())

    assert set(REMARKS) - there == set()
    assert set(LEFT_OUT) & there == set()
    assert {entry.state for entry in names()} == {"same", "better", "differs", "not offered"}


def test_the_document_is_current() -> None:
    """docs/ts-names.md is what the program prints."""
    assert (ROOT / "docs" / "ts-names.md").read_text(encoding="utf-8") == document()


# Where the names are offered


def test_the_folder_holds_ts_and_nothing_else() -> None:
    """Nothing but ``ts`` can be found through it."""
    assert [entry.name for entry in Path(PATH).iterdir() if entry.name != "__pycache__"] == ["ts"]


def test_nobody_has_the_names_unasked() -> None:
    """A process that only imports our packages cannot import ``ts``: it is never in site-packages."""
    done = python("-c", "import modelserver, modelserver_handlers.compat, ts")

    assert "No module named 'ts'" in done.stderr


def test_light_names_do_not_load_torch() -> None:
    """Contexts, metrics, timers and helpers need neither torch nor what is heavier."""
    modules = [
        "context",
        "service",
        "metrics.caching_metric",
        "metrics.system_metrics",
        "handler_utils.hf_batch_streamer",
        "metrics.metrics_store",
        "metrics.metric_cache_yaml_impl",
        "utils.util",
        "handler_utils.utils",
        "handler_utils.timer",
        "handler_utils.micro_batching",
        "handler_utils.text_utils",
        "torch_handler.contractions",
        "torch_handler.request_envelope.json",
        "launcher",
        "version",
        "torch_handler.unit_tests.test_utils.mock_context",
        "model_service.model_service",
    ]
    script = "".join(f"import ts.{module}\n" for module in modules)
    done = python(
        "-c",
        f"import modelserver_handlers.compat.activate, sys\n{script}"
        "print({'torch', 'PIL', 'numpy', 'captum'} & set(sys.modules))",
    )

    assert (done.stdout.strip(), done.stderr.strip()) == ("set()", "")


def test_base_handler_loads_only_torch() -> None:
    """The base class costs torch, and neither torchvision nor Captum nor onnxruntime."""
    done = python(
        "-c",
        "import modelserver_handlers.compat.activate, ts.torch_handler.base_handler, sys;"
        "print({'torchvision', 'captum', 'onnxruntime', 'torch'} & set(sys.modules))",
    )

    assert (done.stdout.strip(), done.stderr.strip()) == ("{'torch'}", "")


def test_activation_wins_over_an_installed_torchserve(tmp_path: Path) -> None:
    """After activation ``ts`` is ours, also where another one is installed."""
    (tmp_path / "ts").mkdir()
    (tmp_path / "ts" / "__init__.py").write_text("")
    done = python(
        "-c", "import modelserver_handlers.compat.activate, ts; print(ts.__version__)", path=str(tmp_path)
    )

    assert (done.stdout.strip(), done.stderr.strip()) == ("0.12.0", "")


def test_activation_refuses_to_come_too_late(tmp_path: Path) -> None:
    """Where another ``ts`` is in use, activation says so instead of mixing the two."""
    (tmp_path / "ts").mkdir()
    (tmp_path / "ts" / "__init__.py").write_text("")
    done = python("-c", "import ts, modelserver_handlers.compat.activate", path=str(tmp_path))

    assert "Another package ts is in use already" in done.stderr


def test_handler_tests_run_with_the_plugin(tmp_path: Path) -> None:
    """A user's test of a handler with MockContext passes under pytest with the activation as a plugin."""
    (tmp_path / "test_it.py").write_text(
        "from ts.context import Context\n"
        "from ts.torch_handler.unit_tests.test_utils.mock_context import MockContext\n"
        "def test_it(tmp_path):\n"
        "    (tmp_path / 'c.yaml').write_text('a: 1')\n"
        "    context = MockContext(None, tmp_path, gpu_id=None, model_yaml_config_file='c.yaml')\n"
        "    context.explain = True\n"
        "    assert context.get_request_header(0, 'explain')\n"
        "    assert not context.get_request_header(0, 'describe')\n"
        "    assert context.model_yaml_config == {'a': 1}\n"
        "    assert context.manifest == {'model': {'modelFile': 'model.py'}}\n"
        "    context.metrics.add_counter('n', 1)\n"
        "    assert [m.name for m in context.metrics.store] == ['n']\n"
    )
    done = python("-m", "pytest", "-q", "-p", "modelserver_handlers.compat.activate", cwd=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr


def test_a_context_without_a_model_name_will_do(tmp_path: Path) -> None:
    """A handler answers with a test's own context that has what TorchServe's MockContext has; the network of
    TorchServe's tests is there; the profiler may be on.
    """
    (tmp_path / "test_it.py").write_text(
        "from pathlib import Path\n"
        "from types import SimpleNamespace\n"
        "from ts.metrics.metrics_store import MetricsStore\n"
        "from ts.torch_handler.base_handler import BaseHandler\n"
        "from ts.torch_handler.request_envelope.json import JSONEnvelope\n"
        "from ts.torch_handler.unit_tests.models.base_model import save_pt_file\n"
        "def test_it(tmp_path, monkeypatch):\n"
        "    save_pt_file(tmp_path / 'model.pt')\n"
        "    (tmp_path / 'model.py').write_text('from ts.torch_handler.unit_tests.models.base_model '\n"
        "        'import ArgmaxModel\\nclass Model(ArgmaxModel): pass\\n')\n"
        "    monkeypatch.setenv('ENABLE_TORCH_PROFILER', '1')\n"
        "    monkeypatch.setattr('tempfile.tempdir', str(tmp_path))\n"
        "    context = SimpleNamespace(\n"
        "        manifest={'model': {'serializedFile': 'model.pt', 'modelFile': 'model.py'}},\n"
        "        system_properties={'model_dir': str(tmp_path)}, model_yaml_config={},\n"
        "        metrics=MetricsStore('id', 'm'), get_request_header=lambda idx, name: False)\n"
        "    handler = BaseHandler()\n"
        "    handler.initialize(context)\n"
        "    data = [{'body': {'instances': [[1.0, 2.0]]}}]\n"
        "    answers = JSONEnvelope(handler.handle).handle(data, context)\n"
        "    assert answers == ['{\"predictions\": [1]}']\n"
    )
    done = python("-m", "pytest", "-q", "-p", "modelserver_handlers.compat.activate", cwd=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr


def test_a_downloaded_model_is_model_pt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its URL says, as MockContext's default expects it; what is there is not fetched again."""
    monkeypatch.setattr(mock_context, "urlopen", lambda url: io.BytesIO(b"weights"))
    mock_context.download_model("https://example.com/resnet18-f37072fd.pth", tmp_path)
    monkeypatch.setattr(mock_context, "urlopen", None)
    mock_context.download_model("https://example.com/resnet18-f37072fd.pth", tmp_path)

    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("model.pt", b"weights")]


def test_texts_are_streamed_until_the_last_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step has one text per generation; one that has ended is empty while others go on."""

    class Streamer:
        """What transformers has for one text."""

        def __init__(self, tokenizer: object, skip_prompt: bool, timeout: object, **options: object) -> None:
            self.texts: list[str | None] = []
            assert (tokenizer, skip_prompt, timeout, options) == ("tokenizer", True, None, {"skip": 1})

        def put(self, value: list[str]) -> None:
            self.texts += [text for text in value if text]

        def end(self) -> None:
            self.texts.append(None)

        def __iter__(self) -> Iterator[str]:
            return self

        def __next__(self) -> str:
            text = self.texts.pop(0)  # fails if it is asked after its end
            if text is None:
                raise StopIteration
            return text

    class Row(list[str]):
        """A tensor of one dimension."""

        @property
        def shape(self) -> tuple[int]:
            return (len(self),)

    streamers = ModuleType("transformers.generation.streamers")
    streamers.TextIteratorStreamer = Streamer  # type: ignore[attr-defined]
    for name in ("transformers", "transformers.generation"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, streamers.__name__, streamers)
    streamer = TextIteratorStreamerBatch("tokenizer", 2, skip_prompt=True, skip=1)
    for row in (Row(["a", "x"]), Row(["b", ""])):
        streamer.put(row)
    streamer.end()

    assert list(streamer) == [[{"text": "a"}, {"text": "x"}], [{"text": "b"}, {"text": ""}]]
    with pytest.raises(ValueError, match="batch size is set to 2"):
        streamer.put(Row(["a"]))


@pytest.mark.usefixtures("ts_names")
def test_the_machine_is_measured_by_the_old_module(caplog: pytest.LogCaptureFixture) -> None:
    """``collect_all`` calls what a module has to measure and logs a line for each value."""
    module = importlib.import_module("ts.metrics.system_metrics")
    caplog.set_level("INFO")
    module.collect_all(module, 0)

    names = {line.partition(".")[0] for line in caplog.messages if line}
    module.system_metrics.clear()
    assert names == {
        *("CPUUtilization", "MemoryUsed", "MemoryAvailable", "MemoryUtilization"),
        *("DiskUsage", "DiskUtilization", "DiskAvailable"),
    }


def test_stored_metrics_are_found_by_torchserves_keys() -> None:
    """Name, unit, requests and dimensions, joined by hyphens."""
    store = MetricsStore({0: "abcd", 1: "xyz"}, "m")
    store.add_counter("Words", 1, 1)
    store.add_counter("Words", 1)
    store.add_error("Broken", "wrong")

    assert list(store.cache) == [
        "Words-count-xyz-ModelName:m-Level:Model",
        "Words-count-abcd,xyz-ModelName:m-Level:Model",
        "Broken--None-Level:Error",
    ]


# The launcher


def test_the_launcher_speaks_the_commands_language(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every flag that it gives is one of the command."""
    from modelserver.cli import build_parser

    given: list[list[str]] = []
    monkeypatch.setattr(launcher.subprocess, "run", lambda command, check: given.append(command))
    launcher.start("store", "file", True, "plugins", True, "all", True)
    launcher.stop()

    parsed = [build_parser().parse_args(command[3:]) for command in given]
    assert (parsed[0].start, parsed[0].model_store, parsed[0].models) == (True, "store", ["all"])
    assert parsed[0].enable_model_api
    assert parsed[1].stop


@pytest.mark.usefixtures("ts_names")
def test_services_of_old_answer() -> None:
    """A SingleNodeService goes through its three steps, and answers nothing without data."""
    base = importlib.import_module("ts.model_service.model_service").SingleNodeService

    class Doubling(base):  # type: ignore[misg, misc, valid-type]
        """Doubles."""

        def _inference(self, data: list[int]) -> list[int]:
            return [2 * number for number in data]

    service = Doubling("m", "/", {})
    assert (service.handle([1, 2], None), service.handle(None, None), service.ping()) == (
        [2, 4],
        None,
        "healthy",
    )
