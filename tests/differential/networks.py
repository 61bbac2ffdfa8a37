"""Archives with small networks, whose answers can be computed by hand, or with a configuration."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from modelserver.tools.archiver import ArchiveConfig, build_archive

HERE: Final = Path(__file__).parent
TORCH_CODE: Final = HERE / "torch_code"
MODEL_CODE: Final = HERE / "model_code"

_ONE_WORKER: Final = {"minWorkers": 1, "maxWorkers": 1}
_OF_THE_HANDLER: Final = {"handler": {"say": [1, "two"]}, "own": {"deep": True}}
CONFIGURED: Final[dict[str, tuple[str, dict[str, object]]]] = {
    "sequences": (
        "sums",
        {
            **_ONE_WORKER,
            "batchSize": 2,
            "maxBatchDelay": 50,
            "sequenceBatching": True,
            "sequenceMaxIdleMSec": 60000,
            "sequenceTimeoutMSec": 0,
            "maxNumSequence": 2,
            "maxSequenceJobQueueSize": 4,
        },
    ),
    "continuous": ("steps", {**_ONE_WORKER, "batchSize": 4, "continuousBatching": True}),
    "asynchronous": ("awaits", {**_ONE_WORKER, "asyncCommunication": True}),
    "tickets": ("counts", {**_ONE_WORKER, "useJobTicket": True}),
    "facts_configured": ("facts", {**_ONE_WORKER, "batchSize": 3, "maxBatchDelay": 1, **_OF_THE_HANDLER}),
}
"""Archive to its handler and its model-config.yaml."""


def build_configured(store: Path) -> None:
    """Archives with a model-config.yaml."""
    made = store / ".made"
    made.mkdir()
    for name, (handler, settings) in CONFIGURED.items():
        config = made / "model-config.yaml"
        config.write_text(yaml.safe_dump(settings, sort_keys=False))
        build_archive(
            ArchiveConfig(
                name, str(MODEL_CODE / f"{handler}.py"), "1.0", config_file=str(config), export_path=store
            )
        )
    for name, handler in (
        ("class_named", "one_class.py:One"),
        ("function_missing", "one_class:nothing"),
        ("function_named", "styles:other"),
        ("function_file_named", "styles.py:other"),
    ):
        path, _, attribute = handler.partition(":")
        source = MODEL_CODE / f"{path.removesuffix('.py')}.py"
        spoken = str(source if path.endswith(".py") else source.with_suffix(""))
        build_archive(ArchiveConfig(name, f"{spoken}:{attribute}", "1.0", export_path=store))
    shutil.rmtree(made)


def build_networks(store: Path) -> None:
    made = store / ".made"
    made.mkdir()
    for name, handler, fields in _networks(made):
        build_archive(ArchiveConfig(name, handler, "1.0", export_path=store, **fields))
    shutil.rmtree(made)


def _networks(made: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    import torch

    labels = made / "index_to_name.json"
    labels.write_text(json.dumps({"0": "zero", "1": "one", "2": "two"}))
    profile = made / "profile"
    profile.mkdir()
    (profile / "model-config.yaml").write_text("handler:\n  profile: true\n")
    micro = made / "micro"
    micro.mkdir()
    (micro / "model-config.yaml").write_text(
        "micro_batching:\n  micro_batch_size: 2\n  parallelism:\n    preprocess: 2\n    inference: 1\n"
    )

    class Linear(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(2, 2)
            self.head.weight = torch.nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
            self.head.bias = torch.nn.Parameter(torch.tensor([0.5, -0.5]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.head(x)
            return scores

    class Pixels(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"out": torch.cat([x[:, :1, :2, :2], x[:, 1:2, :2, :2] * 2.0], dim=1)}

    linear = Linear().eval()
    scripted, state = made / "linear.pt", made / "linear.pth"
    torch.jit.script(linear).save(str(scripted))  # type: ignore[no-untyped-call]
    torch.save(linear.state_dict(), state)
    eager = {"model_file": str(TORCH_CODE / "linear.py"), "serialized_file": str(state)}
    for name, fields in (
        ("post", {"serialized_file": str(scripted)}),
        ("init", {**eager, "extra_files": str(labels)}),
        ("explains", {"serialized_file": str(scripted)}),
        ("own_explain", {"serialized_file": str(scripted)}),
        ("profiled", {"serialized_file": str(scripted), "config_file": str(profile / "model-config.yaml")}),
        ("micro", {"serialized_file": str(scripted), "config_file": str(micro / "model-config.yaml")}),
    ):
        yield name, str(TORCH_CODE / f"{name}.py"), fields
    yield "init_no_weights", str(TORCH_CODE / "init.py"), {"model_file": str(TORCH_CODE / "linear.py")}
    yield "init_no_model", str(TORCH_CODE / "init.py"), {"serialized_file": str(state)}
    yield "base_built_in", "base_handler", {"serialized_file": str(scripted)}
    pixels = made / "pixels.pt"
    torch.jit.script(Pixels().eval()).save(str(pixels))  # type: ignore[no-untyped-call]
    yield "segments", "image_segmenter", {"serialized_file": str(pixels)}
    boxes = made / "boxes.pth"
    torch.save({"nothing": torch.zeros(1)}, boxes)
    detector = {"model_file": str(TORCH_CODE / "boxes.py"), "serialized_file": str(boxes)}
    yield "detects", "object_detector", {**detector, "extra_files": str(labels)}
    yield "detects_numbers", "object_detector", detector
    yield from _texts(made, labels)


def _texts(made: Path, labels: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    import torch

    weights = made / "words.pth"
    torch.save({"embedding.weight": torch.arange(64.0).reshape(32, 2).sin()}, weights)
    words = ("a", "good", "bad", "book", "is", "not", "very", "good book", "not bad", "bad book", "very good")
    vocabulary = made / "source_vocab.pt"
    torch.save({word: number for number, word in enumerate(words, 1)}, vocabulary)
    yield (
        "reads",
        "text_classifier",
        {
            "model_file": str(TORCH_CODE / "words.py"),
            "serialized_file": str(weights),
            "extra_files": f"{vocabulary},{labels}",
        },
    )
