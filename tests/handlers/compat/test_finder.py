import importlib
import pkgutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from modelserver.tools.migrate.ts_names import offered
from modelserver_handlers.compat import PATH
from modelserver_handlers.compat.offered import ABSENT

ROOT = Path(__file__).parents[3]


def python(*arguments, cwd=ROOT, path=""):
    """A Python of its own, with our packages and ``path`` on its path."""
    roots = [path, str(ROOT / "app"), str(ROOT / "handlers")]
    environment = {"PYTHONPATH": ":".join(filter(None, roots)), "PATH": "/usr/bin:/bin"}
    # Those of this environment take longer than the tests that one of these processes may run.
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.usefixtures("ts_names")
def test_every_offered_name_is_there():
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
def test_names_are_our_very_objects(name, ours):
    torchserve_module, _, torchserves = name.rpartition(".")
    our_module, _, our = f"modelserver_handlers.{ours}".rpartition(".")

    result = getattr(importlib.import_module(torchserve_module), torchserves)
    assert result is getattr(importlib.import_module(our_module), our)


@pytest.mark.usefixtures("ts_names")
@pytest.mark.parametrize("module", sorted(ABSENT))
def test_what_is_not_offered_says_why(module):
    with pytest.raises(ImportError, match="modelserver does not offer") as caught:
        importlib.import_module(module)

    assert (caught.value.name, ABSENT[module] in str(caught.value)) == (module, True)


@pytest.mark.usefixtures("ts_names")
def test_unknown_names_are_unknown():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("ts.nothing")
    with pytest.raises(AttributeError, match=r"'ts\.utils\.util' has no attribute 'nothing'"):
        _ = importlib.import_module("ts.utils.util").nothing


@pytest.mark.usefixtures("ts_names")
def test_the_old_name_of_streaming_warns():
    old = importlib.import_module("ts.protocol.otf_message_handler").send_intermediate_predict_response

    with (
        pytest.warns(PendingDeprecationWarning, match=r"ts\.handler_utils\.utils"),
        pytest.raises(RuntimeError, match="only while the server calls"),
    ):
        old(["part"], {0: "id"}, "", 200, object())


@pytest.mark.usefixtures("ts_names")
def test_all_modules_are_listed():
    package = importlib.import_module("ts")
    result = {
        module.name: module.ispkg
        for module in pkgutil.walk_packages(package.__path__, "ts.", onerror=lambda name: None)
    }

    assert set(result) >= {"ts.version", *ABSENT, *(name.rpartition(".")[0] for name in offered())} - {"ts"}
    assert result["ts.torch_handler.unit_tests.models"]
    assert not result["ts.torch_handler.unit_tests.models.base_model"]


@pytest.mark.usefixtures("ts_names")
def test_modules_are_imported_and_loaded_again():
    result = {name: find_spec(name) for name in ("ts.torch_handler.base_handler", "ts.llm_launcher")}

    assert all(spec is not None and Path(str(spec.origin)).is_file() for spec in result.values())
    assert find_spec("ts.torch_handler.nothing") is None

    module = importlib.import_module("ts.context")
    context = module.Context

    assert importlib.reload(module).Context is context


def test_another_ts_has_its_own_modules(tmp_path):
    package = tmp_path / "ts"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "context.py").write_text("MINE = True\n")
    done = python(
        "-c",
        "import ts.context, modelserver_handlers.compat.finder as finder; finder.install_finder()\n"
        "print(ts.context.MINE)\nimport ts.version",
        path=str(tmp_path),
    )

    assert (done.stdout.strip(), "No module named 'ts.version'" in done.stderr) == ("True", True)


def test_processes_that_a_handler_starts_have_the_names(tmp_path):
    (tmp_path / "asked.py").write_text(
        "import multiprocessing\n"
        "def ask(queue):\n"
        "    from ts.metrics.unit import Units\n"
        "    queue.put(Units.__name__)\n"
        "if __name__ == '__main__':\n"
        "    import modelserver_handlers.compat.activate, ts\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    queue = context.Queue()\n"
        "    context.Process(target=ask, args=(queue,)).start()\n"
        "    print(queue.get(timeout=60))\n"
    )
    done = python("asked.py", cwd=tmp_path)

    assert (done.stdout.strip(), done.stderr) == ("Units", "")


def test_the_folder_holds_ts_and_nothing_else():
    assert [entry.name for entry in Path(PATH).iterdir() if entry.name != "__pycache__"] == ["ts"]


def test_nobody_has_the_names_unasked():
    """A process that only imports our packages cannot import ``ts``: it is never in site-packages."""
    done = python("-c", "import modelserver, modelserver_handlers.compat, ts")
    assert "No module named 'ts'" in done.stderr


LIGHT = """
    context service metrics.caching_metric metrics.system_metrics
    handler_utils.hf_batch_streamer metrics.metrics_store metrics.metric_cache_yaml_impl
    utils.util handler_utils.utils handler_utils.timer handler_utils.micro_batching
    handler_utils.text_utils torch_handler.contractions torch_handler.request_envelope.json
    launcher version torch_handler.unit_tests.test_utils.mock_context
    model_service.model_service
"""


def test_light_names_do_not_load_torch():
    script = "".join(f"import ts.{module}\n" for module in LIGHT.split())
    done = python(
        "-c",
        f"import modelserver_handlers.compat.activate, sys\n{script}"
        "print({'torch', 'PIL', 'numpy', 'captum'} & set(sys.modules))",
    )

    assert (done.stdout.strip(), done.stderr.strip()) == ("set()", "")


def test_base_handler_loads_only_torch():
    done = python(
        "-c",
        "import modelserver_handlers.compat.activate, ts.torch_handler.base_handler, sys;"
        "print({'torchvision', 'captum', 'onnxruntime', 'torch'} & set(sys.modules))",
    )

    assert (done.stdout.strip(), done.stderr.strip()) == ("{'torch'}", "")


def test_activation_wins_over_an_installed_torchserve_or_comes_too_late(tmp_path):
    (tmp_path / "ts").mkdir()
    (tmp_path / "ts" / "__init__.py").write_text("")
    first = python(
        "-c", "import modelserver_handlers.compat.activate, ts; print(ts.__version__)", path=str(tmp_path)
    )
    late = python("-c", "import ts, modelserver_handlers.compat.activate", path=str(tmp_path))

    assert (first.stdout.strip(), first.stderr.strip()) == ("0.12.0", "")
    assert "Another package ts is in use already" in late.stderr


@pytest.mark.slow  # runs pytest in a new process
def test_handler_tests_run_with_the_plugin(tmp_path):
    """A test of a handler with MockContext passes under pytest with the activation as a plugin. So does
    one with a context of its own that has what MockContext has; the network of TorchServe's tests is there;
    the profiler may be on.
    """
    (tmp_path / "test_mock_context.py").write_text(
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
        "    assert (context.model_name, MockContext(model_name='m').model_name) == ('mnist', 'm')\n"
        "    context.metrics.add_counter('n', 1)\n"
        "    assert [m.name for m in context.metrics.store] == ['n']\n"
    )
    (tmp_path / "test_own_context.py").write_text(
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


@pytest.mark.usefixtures("ts_names")
def test_services_of_old_answer():
    base = importlib.import_module("ts.model_service.model_service").SingleNodeService

    class Doubling(base):
        def _inference(self, data):
            return [2 * number for number in data]

    made = Doubling("m", "/", {})
    assert (made.handle([1, 2], None), made.handle(None, None), made.ping()) == ([2, 4], None, "healthy")
