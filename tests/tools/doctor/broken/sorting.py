"""Loses the order of its rows, answers all of them for one that is bad, and begins again in each call."""

import json
import threading
from pathlib import Path


class Sorting:
    def initialize(self, context):
        self.folder = Path(context.system_properties["model_dir"])
        self.locks = []

    def handle(self, data, context):
        with open(self.folder / "names.json") as file:
            names = json.load(file)
        self.wait_for_ever()
        try:
            return sorted(names[row["body"]["number"]] for row in data)
        except TypeError:
            return ["none"] * len(data)

    def wait_for_ever(self):
        lock = threading.Lock()
        lock.acquire()
        self.locks.append(lock)
        threading.Thread(target=lock.acquire, daemon=True).start()
