"""What a network is, in one short text: its code's outline, and the content of its tensors."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping


def fingerprint(outline: str, tensors: Mapping[str, torch.Tensor], *more: object) -> str:
    """Hex digits that differ where the outline, a tensor's name, form or value, or any of ``more`` does."""
    digest = hashlib.sha256(repr((outline, *map(str, more))).encode())
    for name, tensor in tensors.items():
        digest.update(repr((name, tuple(tensor.shape), str(tensor.dtype))).encode())
        flat = tensor.detach().contiguous().flatten()
        if flat.numel():
            digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
