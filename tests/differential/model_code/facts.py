"""Reports facts about the context that a handler receives, and about its process."""

import inspect
import os
import sys

from ts.context import RequestProcessor


class Facts:
    def __init__(self):
        self.calls = 0

    def initialize(self, context):
        self.first = context
        self.ids_at_start = context.request_ids
        context.noted = "at the start"

    def handle(self, data, context):
        self.calls += 1
        return [self.answer(row["body"], index, context) for index, row in enumerate(data)]

    def answer(self, question, index, context):
        properties = context.system_properties
        answers = {
            "properties": lambda: {
                key: properties[key] for key in sorted(properties) if key not in {"model_dir", "gpu_id"}
            },
            "types": lambda: {key: type(value).__name__ for key, value in sorted(properties.items())},
            "manifest": lambda: context.manifest["model"],
            "manifest keys": lambda: sorted(context.manifest),
            "config": lambda: context.model_yaml_config,
            "model name": lambda: context.model_name,
            "same context": lambda: context is self.first,
            "noted": lambda: context.noted,
            "ids at the start": lambda: self.ids_at_start,
            "ids": lambda: [list(context.request_ids), type(context.request_ids).__name__],
            "id": lambda: [type(context.get_request_id(index)).__name__, len(context.get_request_id(index))],
            "id of another": lambda: context.get_request_id(7),
            "header": lambda: context.get_request_header(index, "X-Asked"),
            "header not there": lambda: context.get_request_header(index, "X-Nothing"),
            "all headers": lambda: sorted(
                key for key in context.get_all_request_header(index) if key.lower() not in {"host", "accept"}
            ),
            "type of headers": lambda: isinstance(context.get_all_request_header(index), dict),
            "processors": lambda: [len(context.request_processor), type(context.request_processor).__name__],
            "processor": lambda: isinstance(context.request_processor[index], RequestProcessor),
            "property": lambda: context.request_processor[index].get_request_property("X-Asked"),
            "status": lambda: list(context.get_response_status(index)),
            "status set": lambda: self.set_status(index, context),
            "response headers": lambda: context.get_response_headers(index),
            "response header": lambda: self.set_header(index, context),
            "content type": lambda: context.get_response_content_type(index),
            "content type set": lambda: self.set_type(index, context),
            "sequence": lambda: context.get_sequence_id(index),
            "sequence keys": lambda: [
                context.header_key_sequence_id,
                context.header_key_sequence_start,
                context.header_key_sequence_end,
            ],
            "criteria": lambda: context.stopping_criteria,
            "metrics": lambda: [context.metrics.model_name, len(context.metrics.request_ids)],
            "equal": lambda: [context == context, context == 5],
            "signature": lambda: list(inspect.signature(type(context).__init__).parameters),
            "directory": lambda: os.path.realpath(os.getcwd()) == os.path.realpath(properties["model_dir"]),
            "files": lambda: sorted(name for name in os.listdir(".") if not name.startswith("__")),
            "path": lambda: os.path.realpath(properties["model_dir"]) in map(os.path.realpath, sys.path),
            "module": lambda: __name__,
            "environment": lambda: {
                name: os.environ.get(name)
                for name in ("TS_DECODE_INPUT_REQUEST", "TS_IPEX_ENABLE", "TS_IPEX_GPU_ENABLE")
            },
            "calls": lambda: self.calls > 1,
            "pixels": lambda: properties.get("limit_max_image_pixels"),
            "absent": lambda: context.nothing_of_this_name,
        }
        return answers[question]()

    def set_status(self, index, context):
        context.set_response_status(202, "Well", index)
        return list(context.get_response_status(index))

    def set_header(self, index, context):
        context.set_response_header(index, "X-Mine", "1")
        return context.get_response_headers(index)

    def set_type(self, index, context):
        context.set_response_content_type(index, "text/x-mine")
        return context.get_response_content_type(index)
