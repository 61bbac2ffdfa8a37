"""Answers with what its model-config.yaml says under ``say``, and the names of the files beside it."""

import os


class Configured:
    def initialize(self, context):
        self.said = context.model_yaml_config.get("say")
        self.manifest = context.manifest
        self.directory = context.system_properties["model_dir"]

    def handle(self, data, context):
        found = []
        for folder, _, files in os.walk(self.directory):
            inside = os.path.relpath(folder, self.directory)
            found += [os.path.normpath(os.path.join(inside, name)) for name in files]
        files = sorted(name for name in found if not name.endswith(".pyc"))
        model = self.manifest["model"] if self.manifest else None
        return [{"say": self.said, "files": files, "model": model}] * len(data)
