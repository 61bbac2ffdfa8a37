"""examples/text: trained from nothing, packed, and asked."""

from __future__ import annotations

import importlib
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from modelserver_handlers.context import BatchState, Context
from modelserver_handlers.networks.modules import import_file
from modelserver_handlers.text_classifier import TextClassifier

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "text"


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The archive that build.py writes, loaded, and the sentences."""
    folder = tmp_path_factory.mktemp("text")
    before = set(sys.modules)
    sys.path.insert(0, str(EXAMPLE))
    build: Any = import_file(EXAMPLE / "build.py")
    vocabulary = build.make_vocabulary()
    archive = build.pack(build.train(vocabulary, 150, 0), vocabulary, folder)
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(folder)
    manifest = json.loads((folder / "MAR-INF" / "MANIFEST.json").read_bytes())
    handler = TextClassifier()
    handler.initialize(Context("mood", str(folder), manifest, 32, None, "0.12.0"))
    yield handler, importlib.import_module("sentences")
    sys.path.remove(str(EXAMPLE))
    for name in set(sys.modules) - before:
        del sys.modules[name]


def ask(handler: TextClassifier, rows: list[Any], explain: str = "False") -> Any:
    own = {"explain": explain, "url_path": ""}
    handler.context._ms_begin(BatchState([str(at) for at in range(len(rows))], properties=[own] * len(rows)))
    return handler.handle(rows, handler.context)


def test_held_out_sentences_are_named(example: Any) -> None:
    """All sentences that training never saw are named rightly, in one batch."""
    handler, sentences = example
    answers = ask(handler, [{"body": text} for text, _ in sentences.HELD_OUT])

    result = [max(answer, key=answer.get) for answer in answers]
    assert result == [("complaint", "praise")[mood] for _, mood in sentences.HELD_OUT]


def test_explanations_name_the_words(example: Any) -> None:
    """Of praise and complaint in one sentence, each speaks for its own class."""
    handler, _ = example
    (answer,) = ask(handler, [{"data": "A great book and a boring evening", "target": 1}], explain="True")
    spoke = dict(zip(answer["words"], answer["importances"], strict=True))

    assert spoke["great"] > 0 > spoke["boring"]
