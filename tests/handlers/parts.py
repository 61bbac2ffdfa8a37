import json
from typing import Any

SUM = """
from torch import nn

class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1, bias=False)
        nn.init.ones_(self.layer.weight)

    def forward(self, x):
        return self.layer(x)
"""


def network(name: str, forward: str, inputs: str = "x", **layers: str) -> str:
    """The source of a network with seeded layers, of which ``forward`` computes the outputs."""
    lines = [f"        self.{layer} = {made}" for layer, made in layers.items()]
    start = f"import torch\nfrom torch import nn\n\nclass {name}(nn.Module):\n    def __init__(self):\n"
    body = ["        super().__init__()", "        torch.manual_seed(0)", *lines]
    return start + "\n".join([*body, f"    def forward(self, {inputs}):", f"        return {forward}", ""])


class Stream:
    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def send(self, parts: Any) -> None:
        self.parts.append(parts[0])

    @staticmethod
    def send_together(parts: Any) -> None:
        for stream, part in parts:
            stream.parts.append(part)

    def events(self, rest: bytes) -> list[Any]:
        """The documents of all events, of which the last one says that it is the last."""
        *events, done, nothing = b"".join([*self.parts, rest]).split(b"\n\n")
        assert (done, nothing) == (b"data: [DONE]", b"")
        return [json.loads(event.removeprefix(b"data: ")) for event in events]

    def is_cancelled(self, idx: int) -> bool:
        return False

    def close(self) -> None:
        """There is nothing to do."""
