"""Times a step with ``timed``, which ``handler: {profile: true}`` turns on."""

import torch
from ts.handler_utils.timer import timed
from ts.torch_handler.base_handler import BaseHandler


class Profiled(BaseHandler):
    @timed
    def preprocess(self, data):
        return torch.ones(len(data), 2)

    @timed
    def postprocess(self, data):
        return [round(sum(row), 3) for row in data.tolist()]
