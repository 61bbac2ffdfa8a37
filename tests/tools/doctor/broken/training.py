"""A network as it comes from training, which takes one row at a time, and another one for each call."""

import torch


class Training:
    def initialize(self, context):
        self.network = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.0))
        self.last = {"layer": torch.nn.Linear(2, 1)}

    def handle(self, data, context):
        rows = torch.tensor([[row["body"]["number"]] * 2 for row in data], dtype=torch.float32)
        return torch.nn.PReLU()(self.last["layer"](self.network(rows.reshape(1, 2)))).tolist()
