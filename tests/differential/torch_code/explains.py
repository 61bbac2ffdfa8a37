"""Explains and describes itself in the ways of BaseHandler."""

import torch
from ts.torch_handler.base_handler import BaseHandler


class Explains(BaseHandler):
    def preprocess(self, data):
        rows = [row.get("data") or row.get("body") for row in data]
        return torch.tensor([row["numbers"] for row in rows])

    def get_insights(self, tensor_data, inputs, target=0):
        target = target if isinstance(target, (int, str)) else bytes(target).decode()
        return [{"explained": inputs, "target": target, "shape": list(tensor_data.shape)}]

    def describe_handle(self):
        return {"described": type(self).__name__}
