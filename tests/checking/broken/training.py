"""A network as it comes from training, which takes one row at a time."""

import torch


class Training:
    def initialize(self, context):
        self.network = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.0))
        self.last = {"layer": torch.nn.Linear(2, 1)}

    def handle(self, data, context):
        rows = torch.tensor([[row["body"]["number"]] * 2 for row in data], dtype=torch.float32)
        return self.last["layer"](self.network(rows.reshape(1, 2))).tolist()
