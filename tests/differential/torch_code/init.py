"""Extends every method through ``super()``, and returns the attributes that BaseHandler has set."""

from abc import ABC

from ts.torch_handler.base_handler import BaseHandler


class Init(BaseHandler, ABC):
    def __init__(self):
        super().__init__()
        self.before = [self.initialized, self.model, self.map_location, self.explain, self.target]

    def initialize(self, context):
        self.manifest = context.manifest
        super().initialize(context)
        self.scale = 10

    def preprocess(self, data):
        rows = [row.get("data") or row.get("body") for row in data]
        return super().preprocess([row["numbers"] for row in rows]).float()

    def inference(self, data, *args, **kwargs):
        return super().inference(data, *args, **kwargs) * self.scale

    def postprocess(self, data):
        return [
            {
                "answer": row,
                "before": self.before,
                "initialized": self.initialized,
                "device": str(self.device.type),
                "mapping": self.mapping,
                "path": self.model_pt_path.rpartition("/")[2],
                "training": self.model.training,
                "config": self.model_yaml_config,
            }
            for row in super().postprocess(data)
        ]

    def handle(self, data, context):
        return super().handle(data, context)
