"""Overrides ``preprocess`` and ``postprocess``, and calls what it overrides where that can be."""

import torch
from ts.torch_handler.base_handler import BaseHandler


class Post(BaseHandler):
    def preprocess(self, data):
        return torch.tensor([row["body"] for row in data], dtype=torch.float32)

    def postprocess(self, data):
        return [{"sum": sum(row)} for row in super().postprocess(data)]
