"""Chats and embeddings of ``language`` in LitServe; the argument says which, then comes the port."""

from __future__ import annotations

import sys
from typing import Any

import litserve  # type: ignore[import-not-found, unused-ignore]

from benchmarks.language_work import BATCH, Embedder, pieces
from benchmarks.peers.apps.lit import serve


class Chat(litserve.LitAPI):  # type: ignore[misc, unused-ignore]
    """The pretended engine."""

    def setup(self, _device: str) -> None:
        """Nothing is to be loaded."""

    def predict(self, prompt):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201
        """The pieces of an answer."""
        yield from pieces()


class Vectors(litserve.LitAPI):  # type: ignore[misc, unused-ignore]
    """The embedding model, for batches."""

    def setup(self, _device: str) -> None:
        """Make the network."""
        self.embedder = Embedder()

    def decode_request(self, request: Any) -> Any:
        """The only text of a request."""
        return request.ensure_list()[0]

    def predict(self, texts):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201
        """A vector for each."""
        return self.embedder.vectors(list(texts)).tolist()

    def unbatch(self, output):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201
        """One for each request."""
        return output

    def encode_response(self, output: Any) -> Any:
        """As the specification has it."""
        return {"embeddings": [output]}


if __name__ == "__main__":
    kind, port = sys.argv[1:]
    if kind == "chat":
        api: Any = Chat(spec=litserve.OpenAISpec())
    else:
        api = Vectors(max_batch_size=BATCH, batch_timeout=0.005, spec=litserve.OpenAIEmbeddingSpec())
    serve(api, int(port))
