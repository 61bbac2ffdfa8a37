"""Micro-batches of two rows, as TorchServe's example makes them."""

import torch
from ts.handler_utils.micro_batching import MicroBatching
from ts.torch_handler.base_handler import BaseHandler


class Micro(BaseHandler):
    def __init__(self):
        super().__init__()
        self.handle = MicroBatching(self, micro_batch_size=2)

    def initialize(self, context):
        super().initialize(context)
        settings = context.model_yaml_config.get("micro_batching", {})
        self.handle.parallelism = settings.get("parallelism", {})
        self.handle.micro_batch_size = settings.get("micro_batch_size", 2)

    def preprocess(self, data):
        return torch.tensor([[float(row["body"]), 1.0] for row in data])

    def postprocess(self, data):
        return [{"rows": len(data), "first": round(row[0], 3)} for row in data.tolist()]
