"""Trains the text classifier and packs it: ``python examples/text/build.py --export-path model_store``.

Takes a few seconds; the training data is in ``sentences.py``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

from modelserver.tools.archiver import ArchiveConfig, build_archive
from modelserver_handlers.text_classifier import TextClassifier
from modelserver_handlers.texts import features
from modelserver_handlers.vocabulary import Vocabulary

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from sentences import HELD_OUT, LEARNT  # noqa: E402
from text_model import ROOM, MoodNet  # noqa: E402

LABELS = {"0": "complaint", "1": "praise"}


def runs(text: str) -> list[str]:
    """The words and word pairs of a text, as the handler extracts them."""
    handler = TextClassifier()
    words = handler.cleaned_words(text)
    return [" ".join(words[start:end]) for start, end in features(words, handler.ngrams)]


def make_vocabulary() -> Vocabulary:
    """All words and word pairs of the sentences, sorted; number 0 is for everything else."""
    known = sorted({run for text, _ in LEARNT for run in runs(text)})
    vocabulary = Vocabulary.of_tokens(["<unk>", *known])
    assert len(vocabulary) <= ROOM, f"{len(vocabulary)} numbers are more than the network has room for"
    return vocabulary


def as_batch(texts: list[str], vocabulary: Vocabulary) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers and offsets of several texts."""
    numbers = [[vocabulary[run] for run in runs(text)] for text in texts]
    offsets = [sum(map(len, numbers[:position])) for position in range(len(numbers))]
    return torch.tensor([number for text in numbers for number in text]), torch.tensor(offsets)


def train(vocabulary: Vocabulary, steps: int, seed: int) -> MoodNet:
    """A trained network in evaluation mode."""
    torch.manual_seed(seed)
    model = MoodNet().train()
    with torch.no_grad():
        model.embedding.weight[0] = 0  # unknown words contribute nothing
    ids, offsets = as_batch([text for text, _ in LEARNT], vocabulary)
    labels = torch.tensor([label for _, label in LEARNT])
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2, weight_decay=1e-1)
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(ids, offsets), labels, label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model.eval()


def accuracy(model: MoodNet, vocabulary: Vocabulary) -> float:
    """The share of held-out sentences that are classified correctly."""
    ids, offsets = as_batch([text for text, _ in HELD_OUT], vocabulary)
    with torch.inference_mode():
        answers = model(ids, offsets).argmax(dim=1)
    return float((answers == torch.tensor([label for _, label in HELD_OUT])).float().mean())


def pack(model: MoodNet, vocabulary: Vocabulary, export_path: Path) -> Path:
    """Write ``mood.mar`` and return its path."""
    with tempfile.TemporaryDirectory() as folder:
        weights, words = Path(folder) / "mood.pt", Path(folder) / "source_vocab.pt"
        torch.save(model.state_dict(), weights)
        vocabulary.save(words)
        labels = Path(folder) / "index_to_name.json"
        labels.write_text(json.dumps(LABELS))
        config = ArchiveConfig(
            model_name="mood",
            version="1.0",
            handler="text_classifier",
            model_file=HERE / "text_model.py",
            serialized_file=weights,
            extra_files=f"{words},{labels}",
            config_file=HERE / "model-config.yaml",
            export_path=export_path,
            force=True,
        )
        return build_archive(config)


def main() -> None:
    """Train, test on the held-out sentences, pack."""
    parser = argparse.ArgumentParser(description="Train a classifier of sentences and pack it as mood.mar.")
    parser.add_argument("--export-path", type=Path, default=Path("model_store"), help="folder for mood.mar")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    vocabulary = make_vocabulary()
    model = train(vocabulary, options.steps, options.seed)
    print(f"{accuracy(model, vocabulary):.0%} of {len(HELD_OUT)} held-out sentences are right")
    options.export_path.mkdir(parents=True, exist_ok=True)
    print(f"wrote {pack(model, vocabulary, options.export_path)}")


if __name__ == "__main__":
    main()
