"""A section of docs/migrating.md: code of other projects, and the tests that run it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.models.settings.torchserve_configurations import CONFIGURATIONS, REFUSED

if TYPE_CHECKING:
    from collections.abc import Mapping

_TRIAL = """
## Tests with code of other projects

41 cases over 28 examples of TorchServe's repository, and 37 handlers of public repositories, were once run
unmodified: the examples and most handlers over HTTP on both servers, some handlers only in a worker. Of those
that TorchServe serves, 4 cases and 6 handlers failed with modelserver or had other results. Their files are
not in this repository, so the run is not repeated. Its defects were corrected, and each has a test now:

| defect | test |
|---|---|
"""
_NOW = """
These run in today's tests:

| code | test |
|---|---|
"""
_END = """
Tests with a star take a minute or two, as most of them install public packages. Run them with
`MODELSERVER_LONG_TESTS=1 python -m pytest -m slow tests/e2e/test_public_libraries.py
tests/e2e/test_torchserves_own_tests.py tests/e2e/test_torchserve_configurations.py`. Without the variable,
all configuration files are parsed, but a server starts only with a few, which together set all keys. Two
requests in one batch must have the same results as the models without a server.
"""

_DEFECTS = {
    "A model file overrides `load_state_dict`: densenet161, the first example of TorchServe's README": (
        "tests/e2e/test_builtin_handlers.py::test_a_densenet_with_weights_of_old_names"
    ),
    "`base_handler` did not get tensors when clients sent numbers in JSON": (
        "tests/e2e/test_builtin_handlers.py::test_base_handler_gets_numbers_as_tensors"
    ),
    "Detectors and subclasses of `ObjectDetector` (YOLO) got a list of pictures, not a tensor": (
        "tests/handlers/test_object_detector.py::test_subclasses_get_what_torchserve_hands_them"
    ),
    "A handler sets `TS_DECODE_INPUT_REQUEST` while it is imported": (
        "tests/engine/worker/test_service.py::test_a_handler_may_turn_decoding_off"
    ),
    "The envelope `kservev2` refused the requests of TorchServe's samples": (
        "tests/handlers/test_envelopes.py::test_shapes_of_torchserves_samples_are_read"
    ),
    'A handler reads `body["instances"]` itself, but bodies are split': (
        "tests/e2e/test_error_details.py::test_a_handler_that_reads_the_whole_body"
    ),
}
_OWN, _PUBLIC = "tests/e2e/test_torchserves_own_tests.py", "tests/e2e/test_public_libraries.py"
_EACH = "tests/e2e/test_torchserve_configurations.py"
_RUN = {
    f"{len(CONFIGURATIONS)} files `config.properties` of TorchServe's repository and its history: a server "
    f"starts with each. {len(REFUSED)} more have an invalid port, and neither server starts": (
        f"{_EACH}::test_each_starts"
    ),
    "PyPI's `sagemaker-pytorch-inference`, which starts a server": (
        "tests/e2e/test_sagemaker.py::test_toolkit_starts_the_server"
    ),
    "TorchServe's own tests of handlers: 11 tests in 3 files; 3 other files download weights": (
        f"{_OWN}::test_their_tests_of_handlers_pass"
    ),
    "The names in the modules of torch-model-archiver": f"{_OWN}::test_the_archivers_names_are_there",
    "transformers 5.23: a small random BERT that classifies": (
        f"{_PUBLIC}::test_transformers_classifier_is_served"
    ),
    "transformers 5.23: a small random GPT-2, whose texts `hf_batch_streamer` streams": (
        f"{_PUBLIC}::test_each_client_gets_its_text_from_transformers_streamer"
    ),
    "ultralytics 8.4: a random YOLOv8 in a subclass of `ObjectDetector`": (
        f"{_PUBLIC}::test_ultralytics_detector_is_served"
    ),
}


def tried() -> str:
    """The section."""
    return _TRIAL + _rows(_DEFECTS) + _NOW + _rows(_RUN) + _END


def _rows(rows: Mapping[str, str]) -> str:
    star = (_OWN, _PUBLIC, _EACH)
    return "".join(
        f"| {what} | `{test}`{' *' if test.startswith(star) else ''} |\n" for what, test in rows.items()
    )
